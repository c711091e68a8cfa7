"""An ONNX model in OpenVINO, as a Python model of Triton: requests of a batch are joined, run and taken apart."""

import json

import numpy as np
import openvino as ov
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.inputs = [entry["name"] for entry in config["input"]]
        self.output = config["output"][0]["name"]
        parameters = {name: value["string_value"] for name, value in config["parameters"].items()}
        settings = {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": parameters["threads"]}
        settings["NUM_STREAMS"] = "1"
        self.compiled = ov.Core().compile_model(parameters["model"], "CPU", settings)
        self.request = self.compiled.create_infer_request()

    def execute(self, requests):
        counts, parts = [], {name: [] for name in self.inputs}
        for request in requests:
            for name in self.inputs:
                parts[name].append(pb_utils.get_input_tensor_by_name(request, name).as_numpy())
            counts.append(len(parts[self.inputs[0]][-1]))
        joined = {name: arrays[0] if len(arrays) == 1 else np.concatenate(arrays) for name, arrays in parts.items()}
        result = self.request.infer(joined, share_inputs=True)[self.compiled.output(0)]
        made = np.split(result, np.cumsum(counts)[:-1])
        return [pb_utils.InferenceResponse([pb_utils.Tensor(self.output, part)]) for part in made]
