"""Models in Python, written into repositories."""

import sys

import numpy as np
import tritonclient.http as httpclient

from support import models

INTERPRETER = f"--backend-config=python,interpreter={sys.executable}"
HEAD = "import json, os, threading, time\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\n\n\n"
CPU = "instance_group [ { kind: KIND_CPU count: 1 } ]\n"
DECOUPLED = "model_transaction_policy { decoupled: true }\n"

# A model that runs the text of its input, with what earlier texts left, and answers with `result`.
RUNS = """
class TritonPythonModel:
    def initialize(self, args):
        self.names = {"pb_utils": pb_utils, "np": np, "os": os, "threading": threading}

    def execute(self, requests):
        answers = []
        for request in requests:
            self.names["result"] = "nothing"
            text = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0].decode()
            try:
                exec(text, self.names)
            except Exception as error:
                self.names["result"] = f"{type(error).__name__}: {error}"
            tensor = pb_utils.Tensor("OUT", np.array([str(self.names["result"])], dtype=object))
            answers.append(pb_utils.InferenceResponse([tensor]))
        return answers
"""


def config(inputs, outputs, batch=0, extra=CPU):
    text = f'backend: "python"\nmax_batch_size: {batch}\n'
    for kind, tensors in (("input", inputs), ("output", outputs)):
        for name, datatype in tensors.items():
            text += models.io(kind, name, datatype, [-1])
    return text + extra


def add(repository, name, code, settings=None):
    repository.add(name, config=settings)
    (repository.path / name / "1" / "model.py").write_text(HEAD + code)
    return repository


def ask(http, model, text, version=""):
    """What a model answers to a text, as bytes."""
    tensor = httpclient.InferInput("IN", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([text], dtype=object))
    return http.infer(model, [tensor], version).as_numpy("OUT")[0]
