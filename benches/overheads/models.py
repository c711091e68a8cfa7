"""The models of both servers, written as a repository of Triton's: one `model.py` for all that are in Python, and
for our server the same with what it has built in."""

from pathlib import Path

# What a model of each kind does is in its parameter `kind`, so that one file is all of them.
MODEL = '''
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.kind = json.loads(args["model_config"])["parameters"]["kind"]["string_value"]
        self.totals = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            values = [tensor.as_numpy() for tensor in request.inputs()]
            if self.kind == "repeat":
                sender = request.get_response_sender()
                for number in range(int(values[0].reshape(-1)[0])):
                    out = pb_utils.Tensor("OUTPUT0", np.array([number], np.int32))
                    sender.send(pb_utils.InferenceResponse([out]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                continue
            if self.kind == "add":
                result = values[0] + values[1]
            elif self.kind == "total":
                named = {tensor.name(): value for tensor, value in zip(request.inputs(), values)}
                sequence = request.correlation_id()
                # A place of the batch without a request has the identifier 0.
                start = 0 if named["START"].reshape(-1)[0] else self.totals.get(sequence, 0)
                result = named["INPUT0"] + start
                self.totals[sequence] = result
            else:
                result = values[0]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", result)]))
        return None if self.kind == "repeat" else responses
'''


def tensor(name, dtype, dims):
    return f'{{ name: "{name}" data_type: {dtype} dims: {dims} }}'


def model(folder, name, body, inputs, outputs, python=None):
    target = Path(folder) / name
    (target / "1").mkdir(parents=True)
    text = f'name: "{name}"\n{body}\n'
    if python:
        text += f'backend: "python"\nparameters {{ key: "kind" value: {{ string_value: "{python}" }} }}\n'
        (target / "1" / "model.py").write_text(MODEL)
    text += f"input [ {', '.join(inputs)} ]\noutput [ {', '.join(outputs)} ]\n"
    (target / "config.pbtxt").write_text(text)


def ensemble(folder, name, step):
    """Three times the same step."""
    names = ["INPUT0", "first", "second", "OUTPUT0"]
    steps = ", ".join(
        f'{{ model_name: "{step}" model_version: -1 input_map {{ key: "INPUT0" value: "{a}" }} '
        f'output_map {{ key: "OUTPUT0" value: "{b}" }} }}'
        for a, b in zip(names, names[1:])
    )
    body = f'platform: "ensemble"\nmax_batch_size: 8\nensemble_scheduling {{ step [ {steps} ] }}'
    shape = ("TYPE_FP32", "[ -1 ]")
    model(folder, name, body, [tensor("INPUT0", *shape)], [tensor("OUTPUT0", *shape)])


def write(folder, built_in):
    """All models in Python, and those of our own backends too."""
    floats, strings, whole = ("TYPE_FP32", "[ -1 ]"), ("TYPE_STRING", "[ -1 ]"), ("TYPE_INT32", "[ 1 ]")
    batched = "max_batch_size: 8"
    start = (
        'sequence_batching { max_sequence_idle_microseconds: 60000000 control_input [ { name: "START" '
        "control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] } ] }"
    )
    one = lambda kind: ([tensor("INPUT0", *kind)], [tensor("OUTPUT0", *kind)])  # noqa: E731
    model(folder, "identity", batched, *one(floats), python="identity")
    model(folder, "bytes", batched, *one(strings), python="identity")
    pair = [tensor("INPUT0", *floats), tensor("INPUT1", *floats)]
    model(folder, "add", batched, pair, [tensor("OUTPUT0", *floats)], python="add")
    model(folder, "sequence", f"{batched}\n{start}", *one(whole), python="total")
    decoupled = "max_batch_size: 0\nmodel_transaction_policy { decoupled: true }"
    model(folder, "stream", decoupled, *one(whole), python="repeat")
    ensemble(folder, "ensemble", "identity")
    if built_in:
        model(folder, "identity_own", f'{batched}\nbackend: "identity"', *one(floats))
        model(folder, "bytes_own", f'{batched}\nbackend: "identity"', *one(strings))
        ensemble(folder, "ensemble_own", "identity_own")
        asked = [tensor("IN", "TYPE_INT32", "[ -1 ]"), tensor("DELAY", "TYPE_UINT32", "[ -1 ]")]
        asked.append(tensor("WAIT", "TYPE_UINT32", "[ 1 ]"))
        given = [tensor("OUT", *whole), tensor("IDX", "TYPE_UINT32", "[ 1 ]")]
        model(folder, "stream_own", f'{decoupled}\nbackend: "repeat"', asked, given)
