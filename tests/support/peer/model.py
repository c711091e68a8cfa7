"""Runs model.onnx beside it with ONNX Runtime; without that file, copies inputs to outputs."""

import json
import os
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        parameters = {k: v["string_value"] for k, v in config.get("parameters", {}).items()}
        self.delay_s = int(parameters.get("execute_delay_ms", 0)) / 1000
        self.outputs = [output["name"] for output in config["output"]]
        path = os.path.join(args["model_repository"], args["model_version"], "model.onnx")
        self.session = None
        bf16 = any(output["data_type"] == "TYPE_BF16" for output in config["output"])
        if os.path.exists(path) and not bf16:
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = 1
            self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def execute(self, requests):
        time.sleep(self.delay_s)
        return [self.answer(request) for request in requests]

    def answer(self, request):
        try:
            if self.session is None:
                tensors = [self.copied(t) for t in request.inputs()]
            else:
                tensors = self.computed(request)
            return pb_utils.InferenceResponse(tensors)
        except Exception as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))

    def copied(self, tensor):
        name = tensor.name().replace("INPUT", "OUTPUT")
        try:
            return pb_utils.Tensor(name, tensor.as_numpy())
        except pb_utils.TritonModelException:
            return pb_utils.Tensor.from_dlpack(name, tensor.to_dlpack())

    def computed(self, request):
        feed = {}
        for tensor in request.inputs():
            array = tensor.as_numpy()
            if array.dtype == object:
                array = array.astype(str).astype(object) if array.size == 0 else self.decoded(array)
            feed[tensor.name()] = array
        wanted = [name for name in self.outputs if name in request.requested_output_names()]
        return [
            pb_utils.Tensor(name, self.encoded(array) if array.dtype == object else array)
            for name, array in zip(wanted, self.session.run(wanted, feed))
        ]

    @staticmethod
    def decoded(array):
        import numpy as np

        flat = [x.decode("latin-1") for x in array.ravel()]
        return np.array(flat, dtype=object).reshape(array.shape)

    @staticmethod
    def encoded(array):
        import numpy as np

        flat = [x.encode("latin-1") if isinstance(x, str) else x for x in array.ravel()]
        return np.array(flat, dtype=object).reshape(array.shape)
