"""Python models: tensors, life cycle, errors, decoupled responses, restart of what died."""

import json
import os
import queue
import re
import signal
import sys
import time

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from support import models
from support.python_models import CPU, DECOUPLED, INTERPRETER, add, config
from support.server import ROOT, Server
from support.waiting import wait_until

IDENTITY = """
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            tensors = []
            for tensor in request.inputs():
                name = tensor.name().replace("IN", "OUT")
                tensors.append(pb_utils.Tensor(name, tensor.as_numpy()))
            answers.append(pb_utils.InferenceResponse(tensors))
        return answers
"""

# The model of the documentation, and its configuration.
DOCUMENT = (ROOT / "docs" / "python-models.md").read_text()
ADD_SUB = DOCUMENT.split("```python\n")[1].split("```")[0]
ADD_SUB_CONFIG = DOCUMENT.split("```pbtxt\n")[1].split("```")[0]

HELPERS = """
class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        output = pb_utils.get_output_config_by_name(config, "OUT")
        self.dtype = pb_utils.triton_string_to_numpy(output["data_type"])
        assert pb_utils.get_input_config_by_name(config, "C") is None
        assert not pb_utils.using_decoupled_model_transaction_policy(config)
        assert pb_utils.triton_to_numpy_type(pb_utils.numpy_to_triton_type(np.int16)) == np.int16
        self.kept = []

    def execute(self, requests):
        answers = []
        for request in requests:
            self.kept.append(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy())
            tensor = pb_utils.Tensor("OUT", np.concatenate(self.kept).astype(self.dtype))
            response = pb_utils.InferenceResponse([tensor])
            assert pb_utils.get_output_tensor_by_name(response, "OUT") is tensor
            answers.append(response)
        return answers
"""

ABOUT = """
class TritonPythonModel:
    def initialize(self, args):
        self.args = {name: value for name, value in args.items() if name != "model_config"}

    def execute(self, requests):
        (request,) = requests
        about = {
            "args": self.args, "parameters": json.loads(request.parameters()), "id": request.request_id(),
            "outputs": sorted(request.requested_output_names()), "flags": request.flags(),
            "correlation": request.correlation_id(), "timeout": request.timeout(), "module": __name__,
            "directory": pb_utils.get_model_dir(), "pid": os.getpid(), "is_cpu": request.inputs()[0].is_cpu(),
            "shape": request.inputs()[0].shape(), "dtype": request.inputs()[0].triton_dtype(),
        }
        pb_utils.Logger.log_warn("a line of the model")
        tensor = pb_utils.Tensor("OUT", np.array([json.dumps(about)], dtype=object))
        parameters = {"text": "t", "number": 3, "flag": True}
        return [pb_utils.InferenceResponse([tensor], parameters=parameters)]
"""

# What a model does wrong, by the text of its input.
WRONG = """
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor


class Unhappy(Exception):
    pass


class Speechless(Exception):
    def __str__(self):
        raise Unhappy


class TritonPythonModel:
    def execute(self, requests):
        (request,) = requests
        what = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0].decode()
        good = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([b"ok"], dtype=object))])
        if what == "raise":
            raise Unhappy("a bad day")
        if what == "no list":
            return good
        if what == "two":
            return [good, good]
        if what == "a number":
            return [3]
        if what == "again":
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return [good]
        if what == "none":
            return [None]
        if what == "nothing":
            return None
        if what == "error":
            return [pb_utils.InferenceResponse(error=pb_utils.TritonError("mine", pb_utils.TritonError.NOT_FOUND))]
        if what == "dtype":
            pb_utils.Tensor("OUT", np.array(["text"]))
        if what == "nameless":
            pb_utils.Tensor("", np.array([1]))
        if what == "die":
            os.kill(os.getpid(), 9)
        if what == "exit":
            os._exit(3)
        if what == "child holds the socket":
            if os.fork() == 0:
                time.sleep(20)
                os._exit(0)
            os._exit(4)
        if what == "child of no arguments":
            assert len(sys.argv) == 1
            return [good]
        if what == "half a character":
            raise Unhappy("a file \\ud800 of that name")
        if what == "no text":
            raise Speechless()
        if what == "child returns" and os.fork() == 0:
            return [good]
        if what == "child raises" and os.fork() == 0:
            sys.exit(0)
        if what.startswith("child"):
            assert os.waitstatus_to_exitcode(os.wait()[1]) == (1 if what == "child raises" else 0)
        if what == "spawn":
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                assert pool.submit(len, "four").result() == 4
        if what == "kept":
            self.kept = request
        if what == "late":
            try:
                self.kept.get_response_sender().send(good, 1)
            except pb_utils.TritonModelException as error:
                assert "has been closed" in str(error)
            else:
                raise AssertionError("it was sent")
        if what == "twice":
            sender = request.get_response_sender()
            sender.send(good)
            sender.send(good)
        if what == "sender":
            sender = request.get_response_sender()
            threading.Thread(target=lambda: (time.sleep(0.2), sender.send(good, 1))).start()
            return [None]
        return [good]
"""

STREAM = """
class TritonPythonModel:
    def initialize(self, args):
        self.threads = []

    def execute(self, requests):
        for request in requests:
            count = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0])
            if count < 0:
                raise ValueError("less than nothing")
            if count == 99:
                continue
            thread = threading.Thread(target=self.answer, args=(request, count))
            thread.start()
            self.threads.append(thread)

    def answer(self, request, count):
        sender = request.get_response_sender()
        for i in range(count):
            if sender.is_cancelled():
                print("the client is gone", flush=True)
                break
            time.sleep(0.01)
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() + i
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)]))
        if count == 3:
            error = pb_utils.TritonError("enough")
            sender.send(pb_utils.InferenceResponse(error=error))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        try:
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        except pb_utils.TritonModelException as error:
            assert "has been closed" in str(error)

    def finalize(self):
        for thread in self.threads:
            thread.join()
        print("finalized", flush=True)
"""

ASYNC = """
import asyncio


class TritonPythonModel:
    async def execute(self, requests):
        await asyncio.sleep(0.01)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy() * 2)]) for r in requests]
"""

# Calls other models: once, several at a time, one that is decoupled, and wrongly.
CALLS = """
import asyncio
import multiprocessing


def request(model, outputs, **tensors):
    inputs = [pb_utils.Tensor(name, value) for name, value in tensors.items()]
    return pb_utils.InferenceRequest(
        request_id="call", model_name=model, requested_output_names=outputs, inputs=inputs, parameters={"depth": 1})


def call_here(_):
    try:
        return request("add_sub", ["SUM"]).exec().has_error()
    except RuntimeError as error:
        return str(error)


class TritonPythonModel:
    async def execute(self, requests):
        return [await self.answer(one) for one in requests]

    async def answer(self, one):
        what = pb_utils.get_input_tensor_by_name(one, "IN").as_numpy()[0].decode()
        value = np.array([[1, 2]], np.float32)
        if what == "once":
            response = request("add_sub", ["SUM"], A=value, B=value).exec()
            assert not response.has_error() and len(response.output_tensors()) == 1
            result = pb_utils.get_output_tensor_by_name(response, "SUM").as_numpy().tolist()
        elif what == "several":
            calls = [request("add_sub", ["SUM", "DIFFERENCE"], A=value * i, B=value).async_exec() for i in range(8)]
            responses = await asyncio.gather(*calls)
            result = [pb_utils.get_output_tensor_by_name(r, "DIFFERENCE").as_numpy()[0, 0].item() for r in responses]
        elif what == "strings":
            text = np.array([b"a", b""], dtype=object)
            response = await request("identity_bytes", ["OUT"], IN=text).async_exec()
            result = [text.decode() for text in response.output_tensors()[0].as_numpy()]
        elif what == "decoupled":
            responses = request("stream", ["OUT"], IN=np.array([3], np.float32)).exec(decoupled=True)
            result = []
            for response in responses:
                if response.has_error():
                    result.append(response.error().message())
                elif response.output_tensors():
                    result.append(response.output_tensors()[0].as_numpy()[0].item())
            assert len(list(responses)) == len(result) + 1
        elif what == "decoupled by and by":
            responses = request("stream", ["OUT"], IN=np.array([3], np.float32)).exec(decoupled=True)
            # A loop goes on where `next` was; when all are gone through, it begins again.
            first = next(responses)
            counts = [len(list(responses)), len(list(responses))]
            for _ in zip(range(2), responses):
                pass
            counts.append(len(list(responses)))
            result = [first.output_tensors()[0].as_numpy()[0].item(), *counts]
        elif what == "from a fork":
            # The end of a pool ends its processes with SIGTERM.
            for _ in range(5):
                with multiprocessing.get_context("fork").Pool(2) as pool:
                    result = pool.map(call_here, [0, 1])
        elif what == "not decoupled":
            result = request("stream", ["OUT"], IN=np.array([3], np.float32)).exec().error().message()
        elif what == "unknown":
            result = request("nothing", ["OUT"], IN=value).exec().error().message()
        elif what == "wrong":
            error = request("add_sub", ["SUM"], A=value).exec().error()
            result = [error.code() == pb_utils.TritonError.INTERNAL, error.message()]
        elif what == "ready":
            names = [("add_sub", ""), ("add_sub", "1"), ("add_sub", "2"), ("nothing", "")]
            result = [pb_utils.is_model_ready(model_name=name, model_version=version) for name, version in names]
        elif what == "built in":
            identity = request("built_in", ["OUTPUT0"], INPUT0=np.array([7], np.float32)).exec()
            result = [identity.output_tensors()[0].as_numpy().tolist(), json.loads(identity.parameters())["param1"]]
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([json.dumps(result)], dtype=object))])
"""

DLPACK = """
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            tensor = request.inputs()[0]
            if tensor.triton_dtype() != 14:
                tensor = np.from_dlpack(tensor)
                try:
                    pb_utils.Tensor.from_dlpack("OUT", np.zeros((2, 3)).T)
                except pb_utils.TritonModelException as error:
                    assert "not contiguous" in str(error)
                else:
                    raise ValueError("what is not contiguous was taken")
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", tensor)]))
        return answers
"""

AUTO = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [2]})
        config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [2]})
        config.set_max_batch_size(8)
        config.set_dynamic_batching()
        return config

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy() + len(requests) * 0)])
                for r in requests]
"""

DATATYPES = {
    "BOOL": np.bool_, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
    "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64, "FP16": np.float16,
    "FP32": np.float32, "FP64": np.float64, "BYTES": np.object_,
}  # fmt: skip


# A model that changes the list of its requests.
CHANGES = """
def answer(request):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())])


class TritonPythonModel:
    def execute(self, requests):
        what, responses = requests[0].inputs()[0].as_numpy()[0].decode(), []
        if what == "clear":
            requests.clear()
        elif what == "double":
            requests += requests
            responses = [answer(request) for request in requests]
        elif what == "silent":
            # As no host does.
            from halimede_host.host import Host
            Host._responses = lambda *_: "[]"
        while what in ("pop", "senders") and requests:
            request = requests.pop(0)
            if what == "pop":
                responses.append(answer(request))
            else:
                request.get_response_sender().send(answer(request), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None if what == "senders" else responses
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    repository = models.Repository(tmp_path_factory.mktemp("python"))
    for name in DATATYPES:
        datatype = "STRING" if name == "BYTES" else name
        add(repository, f"identity_{name.lower()}", IDENTITY, config({"IN": datatype}, {"OUT": datatype}))
    add(repository, "dlpack_fp32", DLPACK, config({"IN": "FP32"}, {"OUT": "FP32"}))
    add(repository, "dlpack_bf16", DLPACK, config({"IN": "BF16"}, {"OUT": "BF16"}))
    add(repository, "add_sub", ADD_SUB, ADD_SUB_CONFIG)
    add(repository, "helpers", HELPERS, config({"IN": "FP32"}, {"OUT": "FP64"}))
    add(repository, "about", ABOUT, config({"IN": "FP32"}, {"OUT": "STRING"}))
    add(repository, "wrong", WRONG, config({"IN": "STRING"}, {"OUT": "STRING"}))
    add(repository, "stream", STREAM, config({"IN": "FP32"}, {"OUT": "FP32"}, extra=CPU + DECOUPLED))
    add(repository, "async", ASYNC, config({"IN": "FP32"}, {"OUT": "FP32"}))
    add(repository, "auto", AUTO)
    add(repository, "changes", CHANGES, config({"IN": "STRING"}, {"OUT": "STRING"}, extra=CPU))
    add(repository, "calls", CALLS, config({"IN": "STRING"}, {"OUT": "STRING"}))
    repository.add("built_in", config=models.identity_config(batch=0))
    with Server([repository.path], INTERPRETER) as server:
        yield server


@pytest.fixture
def http(running):
    with httpclient.InferenceServerClient(running.http_address, network_timeout=60) as client:
        yield client


def ask(client, model, tensors, outputs=None, **options):
    inputs = []
    for name, (datatype, array) in tensors.items():
        inputs.append(httpclient.InferInput(name, list(array.shape), datatype))
        inputs[-1].set_data_from_numpy(array)
    wanted = None if outputs is None else [httpclient.InferRequestedOutput(name) for name in outputs]
    return client.infer(model, inputs, outputs=wanted, **options)


def ask_wrong(client, what):
    return ask(client, "wrong", {"IN": ("BYTES", np.array([what.encode()], np.object_))})


def error_of(client, what):
    with pytest.raises(InferenceServerException) as error:
        ask(client, "wrong", {"IN": ("BYTES", np.array([what.encode()], np.object_))})
    return error.value.message()


@pytest.mark.parametrize("datatype", DATATYPES)
def test_every_datatype_comes_back(http, datatype):
    model = f"identity_{datatype.lower()}"
    if datatype == "BYTES":
        values = np.array([b"", b"abc", "ü".encode(), bytes(range(256))], np.object_)
    else:
        values = np.array([0, 1, 0, 1, 1, 0, 1], DATATYPES[datatype])
    for array in (values, values[:0], values[:1]):
        got = ask(http, model, {"IN": (datatype, array)}).as_numpy("OUT")
        assert got.dtype == array.dtype and got.tolist() == array.tolist()


def test_tensors_of_many_sizes(http):
    for size in (1, 1000, 1 << 16, 5_000_000, 3):
        array = np.arange(size, dtype=np.float32)
        got = ask(http, "identity_fp32", {"IN": ("FP32", array)}).as_numpy("OUT")
        np.testing.assert_array_equal(got, array)


def test_dlpack(http):
    array = np.arange(6, dtype=np.float32)
    assert ask(http, "dlpack_fp32", {"IN": ("FP32", array)}).as_numpy("OUT").tolist() == array.tolist()
    tensor = httpclient.InferInput("IN", [2], "BF16")
    tensor.set_data_from_numpy(np.array([1.5, -2.0], ml_dtypes.bfloat16))
    assert http.infer("dlpack_bf16", [tensor]).as_numpy("OUT").tolist() == [1.5, -2.0]


def test_batches_and_outputs_that_are_asked_for(running, http):
    a, b = np.array([[1, 2], [3, 4]], np.float32), np.array([[10, 20], [30, 40]], np.float32)
    tensors = {"A": ("FP32", a), "B": ("FP32", b)}
    both = ask(http, "add_sub", tensors)
    assert both.as_numpy("SUM").tolist() == (a + b).tolist()
    assert both.as_numpy("DIFFERENCE").tolist() == (a - b).tolist()
    one = ask(http, "add_sub", tensors, outputs=["DIFFERENCE"]).get_response()
    assert [output["name"] for output in one["outputs"]] == ["DIFFERENCE"]
    with grpcclient.InferenceServerClient(running.grpc_address) as client:
        results = queue.Queue()
        for i in range(20):
            inputs = [grpcclient.InferInput(name, [1, 2], "FP32") for name in ("A", "B")]
            inputs[0].set_data_from_numpy(a[:1] + i)
            inputs[1].set_data_from_numpy(b[:1])
            done = lambda result, error, i=i: results.put((i, result, error))  # noqa: E731
            client.async_infer("add_sub", inputs, done)
        for _ in range(20):
            i, result, error = results.get(timeout=60)
            assert error is None and result.as_numpy("SUM").tolist() == (a[:1] + i + b[:1]).tolist()


def test_arrays_stay_as_long_as_a_model_keeps_them(http):
    sent = []
    for i in range(10):
        sent += [float(i)] * (i + 1)
        array = np.full(i + 1, i, np.float32)
        assert ask(http, "helpers", {"IN": ("FP32", array)}).as_numpy("OUT").tolist() == sent


def test_what_a_model_is_told(running, http):
    options = {"request_id": "r", "sequence_id": 7, "sequence_start": True, "timeout": 9,
               "parameters": {"a": 1, "b": "x", "c": True}}  # fmt: skip
    result = ask(http, "about", {"IN": ("FP32", np.zeros(3, np.float32))}, **options)
    about = json.loads(result.as_numpy("OUT")[0])
    directory = about["args"].pop("model_repository")
    assert about["args"] == {
        "model_instance_kind": "CPU", "model_instance_name": "about_0_0", "model_instance_device_id": "0",
        "model_version": "1", "model_name": "about",
    }  # fmt: skip
    assert about["directory"] == os.path.join(directory, "1") and os.path.basename(directory) == "about"
    assert about["parameters"] == options["parameters"] and about["id"] == "r"
    assert (about["correlation"], about["flags"], about["timeout"]) == (7, 1, 9)
    assert (about["outputs"], about["module"], about["is_cpu"]) == (["OUT"], "1.model", True)
    assert (about["shape"], about["dtype"]) == ([3], 11)
    assert result.get_response()["parameters"] == {"text": "t", "number": 3, "flag": True}
    running.wait_log("a line of the model")


def test_a_model_completes_its_configuration(http):
    config = http.get_model_config("auto")
    assert config["max_batch_size"] == 8 and config["dynamic_batching"]["preferred_batch_size"] == [8]
    assert config["input"][0]["dims"] == [2]
    assert config["instance_group"][0]["name"] == "auto_0" or config["instance_group"][0]["name"] == "auto"
    array = np.array([[1, 2]], np.float32)
    assert ask(http, "auto", {"IN": ("FP32", array)}).as_numpy("OUT").tolist() == array.tolist()


def test_coroutines(http):
    assert ask(http, "async", {"IN": ("FP32", np.ones(2, np.float32))}).as_numpy("OUT").tolist() == [2, 2]


def called(http, what):
    result = ask(http, "calls", {"IN": ("BYTES", np.array([what.encode()], np.object_))})
    return json.loads(result.as_numpy("OUT")[0])


def test_calls_of_other_models(http):
    assert called(http, "once") == [[2, 4]]
    assert called(http, "several") == [i - 1 for i in range(8)]
    assert called(http, "strings") == ["a", ""]
    assert called(http, "built in") == [[7], 42]
    assert called(http, "decoupled") == [3, 4, 5, "enough"]
    assert called(http, "decoupled by and by") == [3, 4, 5, 3]
    assert called(http, "ready") == [True, True, False, False]
    for _ in range(50):
        assert called(http, "once") == [[2, 4]]


def test_calls_that_are_wrong(http):
    failed = " - Error when running inference: "
    text = "Failed for execute the inference request. Model 'nothing' is not ready."
    assert called(http, "unknown") == f"Model nothing{failed}{text}"
    assert called(http, "not decoupled").startswith(f"Model stream{failed}Model stream is using the decoupled.")
    is_internal, text = called(http, "wrong")
    assert is_internal and text.startswith(f"Model add_sub{failed}[request id: call] ")
    assert "expected 2 inputs but got 1 inputs for model 'add_sub'" in text
    text = "a process that a model forks cannot call other models or the server: use threads for that"
    assert called(http, "from a fork") == [text, text]


def test_an_exception_of_a_coroutine_tells_the_lines_of_the_model_alone(repository, serve):
    code = "class TritonPythonModel:\n    async def execute(self, requests):\n        raise ValueError('late')\n"
    server = serve(add(repository, "late", code, config({"IN": "STRING"}, {"OUT": "STRING"})), INTERPRETER)
    with httpclient.InferenceServerClient(server.http_address) as own, pytest.raises(InferenceServerException) as caught:
        ask(own, "late", {"IN": ("BYTES", np.array([b""], np.object_))})
    path = repository.path / "late" / "1" / "model.py"
    at = f"\n\nAt:\n  {path}({len(path.read_text().splitlines())}): execute\n"
    assert caught.value.message().endswith(f"message: ValueError: late{at}")


def test_what_a_model_does_wrong_is_told(http):
    failed = "Failed to process the request(s) for model 'wrong_0_0', message: "
    text = error_of(http, "raise")
    assert text.startswith(failed + "Unhappy: a bad day\n\nAt:\n  /") and text.endswith("): execute\n")
    assert error_of(http, "no list") == (
        failed
        + "Expected a list in the execute return, found type '<class 'c_python_backend_utils.InferenceResponse'>'."
    )
    assert error_of(http, "two") == (
        failed + "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
        "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:2\n"
    )
    assert error_of(http, "a number") == (
        failed + "Expected an 'InferenceResponse' object in the execute function return list, found type "
        "'<class 'int'>'."
    )
    assert error_of(http, "again") == (
        failed + "Expected a None object in the execute function return list for reschduled request, found type "
        "'<class 'c_python_backend_utils.InferenceResponse'>'."
    )
    assert error_of(http, "dtype").startswith(failed + "TritonModelException: NumPy dtype is not supported.")
    text = "TritonModelException: Tensor name cannot be an empty string."
    assert error_of(http, "nameless").startswith(failed + text)
    assert error_of(http, "error") == "mine"
    for silent in ("none", "nothing"):
        assert error_of(http, silent) == "the model ended the request without a last response"
    assert ask_wrong(http, "nothing wrong").as_numpy("OUT")[0] == b"ok"


def test_a_model_may_change_the_list_of_its_requests(http):
    count = "Number of InferenceResponse objects do not match the number of InferenceRequest objects"
    silent = "the model's process did not say what became of the request"
    for what, reason in {"pop": None, "senders": None, "clear": count, "double": count, "silent": silent}.items():
        tensors = {"IN": ("BYTES", np.array([what.encode()], np.object_))}
        if reason is None:
            assert ask(http, "changes", tensors).as_numpy("OUT").tolist() == [what.encode()]
            continue
        with pytest.raises(InferenceServerException) as error:
            ask(http, "changes", tensors)
        assert reason in error.value.message()


def test_senders_of_models_that_answer_once(http):
    assert ask_wrong(http, "sender").as_numpy("OUT")[0] == b"ok"
    # The first response counts; the second is the model's mistake.
    assert ask_wrong(http, "twice").as_numpy("OUT")[0] == b"ok"
    assert ask_wrong(http, "nothing wrong").as_numpy("OUT")[0] == b"ok"


def test_nothing_is_sent_for_a_request_whose_response_was_returned(http):
    assert ask_wrong(http, "kept").as_numpy("OUT")[0] == b"ok"
    assert ask_wrong(http, "late").as_numpy("OUT")[0] == b"ok"


@pytest.mark.parametrize("death", ["die", "exit", "child holds the socket"])
def test_a_process_that_dies_is_started_again(running, http, death):
    assert error_of(http, death) == "Stub process 'wrong_0_0' is not healthy."
    assert ask_wrong(http, "nothing wrong").as_numpy("OUT")[0] == b"ok"
    assert http.is_model_ready("wrong") and http.is_server_ready()


@pytest.mark.parametrize("what", ["child returns", "child raises", "child of no arguments", "spawn"])
def test_models_have_processes_of_their_own(running, http, what):
    for _ in range(2):
        assert ask_wrong(http, what).as_numpy("OUT")[0] == b"ok"


def test_errors_whose_text_cannot_be_told_are_told_without(running, http):
    assert "Unhappy: a file ? of that name" in error_of(http, "half a character")
    assert "Speechless: <no text: its __str__ raised Unhappy>" in error_of(http, "no text")
    assert ask_wrong(http, "nothing wrong").as_numpy("OUT")[0] == b"ok"


def pid_of(http):
    result = ask(http, "about", {"IN": ("FP32", np.zeros(1, np.float32))})
    return json.loads(result.as_numpy("OUT")[0])["pid"]


def test_health_tells_of_a_process_that_was_killed(running, http):
    before = pid_of(http)
    os.kill(before, signal.SIGSTOP)
    os.kill(before, signal.SIGKILL)
    end = time.monotonic() + 30
    seen = True
    while seen and time.monotonic() < end:
        seen = http.is_model_ready("about")
    assert not seen, "nobody noticed"
    assert not http.is_server_ready() or http.is_model_ready("about")
    running.wait_log("the Python process of 'about_0_0' was started again")
    assert pid_of(http) != before
    assert http.is_model_ready("about") and http.is_server_ready()


DOES_NOT_START = """
class TritonPythonModel:
    def initialize(self, args):
        folder = pb_utils.get_model_dir()
        if os.path.exists(folder + "/broken"):
            raise RuntimeError("it is broken")
        with open(folder + "/pid", "w") as file:
            file.write(str(os.getpid()))

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", one.inputs()[0].as_numpy())]) for one in requests]
"""


def test_a_process_that_cannot_be_started_again_is_tried_without_a_request(tmp_path, serve):
    repository = models.Repository(tmp_path / "models")
    add(repository, "fragile", DOES_NOT_START, config({"IN": "FP32"}, {"OUT": "FP32"}))
    server = serve(repository, INTERPRETER)
    folder = repository.path / "fragile" / "1"
    (folder / "broken").touch()
    os.kill(int((folder / "pid").read_text()), signal.SIGKILL)
    server.wait_log("the Python process of 'fragile_0_0' cannot be started")
    assert server.http.get("/v2/health/ready").status == 400
    (folder / "broken").unlink()
    wait_until(lambda: server.http.get("/v2/health/ready").status == 200, "the process was started")


def test_processes_that_do_not_read_hold_up_nobody(tmp_path, serve):
    repository = models.Repository(tmp_path / "models")
    names = [f"about{number}" for number in range(4)]
    for name in names:
        add(repository, name, ABOUT, config({"IN": "FP32"}, {"OUT": "STRING"}))
    add(repository, "identity", IDENTITY, config({"IN": "FP32"}, {"OUT": "FP32"}))
    server = serve(repository, INTERPRETER)
    tensor = httpclient.InferInput("IN", [1], "FP32")
    tensor.set_data_from_numpy(np.zeros(1, np.float32))
    with httpclient.InferenceServerClient(server.http_address, concurrency=8, network_timeout=60) as client:
        about = lambda answer: json.loads(answer.as_numpy("OUT")[0])  # noqa: E731
        pids = [about(client.infer(name, [tensor]))["pid"] for name in names]
        try:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            # More than a socket takes while nobody reads it.
            waiting = [client.async_infer(name, [tensor], parameters={"long": "x" * 1_000_000}) for name in names]
            assert client.infer("identity", [tensor]).as_numpy("OUT").tolist() == [0]
            assert client.is_server_live()
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        assert [len(about(answer.get_result())["parameters"]["long"]) for answer in waiting] == [1_000_000] * 4


MANY = """
class TritonPythonModel:
    def execute(self, requests):
        (request,) = requests
        sender = request.get_response_sender()
        for number in range(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0]):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([number], np.int32))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

STOPS = """
import signal


class TritonPythonModel:
    def execute(self, requests):
        request = pb_utils.InferenceRequest(
            model_name="many", requested_output_names=["OUT"], inputs=requests[0].inputs())
        responses = request.exec(decoupled=True)
        # The first response is here, the others are on their way.
        with open(pb_utils.get_model_dir() + "/pid", "w") as file:
            file.write(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
        tensors = [one.output_tensors()[0].as_numpy() for one in responses if one.output_tensors()]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.concatenate(tensors))])]
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="asks Linux")
def test_a_model_that_does_not_read_answers_does_not_hold_up_who_answers(tmp_path, serve):
    repository = models.Repository(tmp_path / "models")
    add(repository, "stops", STOPS, config({"IN": "INT32"}, {"OUT": "INT32"}))
    add(repository, "many", MANY, config({"IN": "INT32"}, {"OUT": "INT32"}, extra=CPU + DECOUPLED))
    server = serve(repository, INTERPRETER)
    # Of more than a thousand answers the socket is full.
    tensor = httpclient.InferInput("IN", [1], "INT32")
    tensor.set_data_from_numpy(np.array([1500], np.int32))
    with httpclient.InferenceServerClient(server.http_address, concurrency=2, network_timeout=120) as client:
        waiting = client.async_infer("stops", [tensor])
        file = repository.path / "stops" / "1" / "pid"
        stopped = lambda: file.exists() and file.read_text() and state_of(int(file.read_text())) == "T"  # noqa: E731
        wait_until(stopped, "the process has stopped")
        try:
            assert server.http.post("/v2/models/many/generate", b'{"IN": 1}').json["OUT"] == 0
        finally:
            os.kill(int(file.read_text()), signal.SIGCONT)
        assert waiting.get_result().as_numpy("OUT").tolist() == list(range(1500))


def stream(running, *counts, client_timeout=60, wait=None):
    answers = queue.Queue()
    got = []
    with grpcclient.InferenceServerClient(running.grpc_address) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for i, count in enumerate(counts):
            tensor = grpcclient.InferInput("IN", [1], "FP32")
            tensor.set_data_from_numpy(np.array([count], np.float32))
            client.async_stream_infer("stream", [tensor], request_id=str(i), enable_empty_final_response=True)
        ended = 0
        while ended < len(counts):
            result, error = answers.get(timeout=client_timeout)
            if error is not None:
                got.append(error.message())
                ended += wait is not None
                continue
            response = result.get_response()
            if len(response.outputs):
                got.append((response.id, float(result.as_numpy("OUT")[0])))
            ended += response.parameters["triton_final_response"].bool_param
        client.stop_stream()
    return got


def test_responses_from_threads(running):
    assert stream(running, 2) == [("0", 2.0), ("0", 3.0)]
    assert stream(running, 0) == []
    assert stream(running, 3) == [("0", 3.0), ("0", 4.0), ("0", 5.0), "enough"]
    many = stream(running, *[20] * 8)
    assert sorted(many) == sorted((str(i), 20.0 + j) for i in range(8) for j in range(20))


def test_decoupled_models_that_do_wrong(running):
    (text,) = stream(running, -1, wait="error")
    assert "ValueError: less than nothing" in text
    (text,) = stream(running, 99, wait="error")
    assert text == "the model ended the request without a last response"


def test_a_client_that_goes_away_is_noticed(running):
    with grpcclient.InferenceServerClient(running.grpc_address) as client:
        answers = queue.Queue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        tensor = grpcclient.InferInput("IN", [1], "FP32")
        tensor.set_data_from_numpy(np.array([100_000], np.float32))
        client.async_stream_infer("stream", [tensor])
        assert answers.get(timeout=30)[1] is None
        client.stop_stream(cancel_requests=True)
    running.wait_log("the client is gone")


def failing(tmp_path, code, *flags, settings=None):
    repository = models.Repository(tmp_path / "models")
    settings = settings or config({"IN": "FP32"}, {"OUT": "FP32"})
    add(repository, "m", code, settings)
    with Server([repository.path], "--exit-on-error=false", "--strict-readiness=false", *flags, wait=False) as server:
        server.wait_ready("/v2/health/live")
        (entry,) = server.http.post("/v2/repository/index").json
        return entry


def test_a_model_that_cannot_be_made(tmp_path):
    code = "class TritonPythonModel:\n    def initialize(self, args):\n        raise ValueError('no weights')\n"
    reason = failing(tmp_path, code, INTERPRETER)["reason"]
    path = tmp_path / "models" / "m" / "1" / "model.py"
    assert reason == f"Internal: ValueError: no weights\n\nAt:\n  {path}(8): initialize\n"


@pytest.mark.parametrize(
    "code, reason",
    [
        ("x = 1\n", "Internal: AttributeError: module '1.model' has no attribute 'TritonPythonModel'"),
        ("class TritonPythonModel\n", r"Internal: SyntaxError: .* \(model.py, line 6\)"),
        ("import os\nos._exit(5)\n", "Internal: Stub process 'm' is not healthy."),
    ],
)
def test_a_model_that_cannot_be_read(tmp_path, code, reason):
    assert re.fullmatch(reason, failing(tmp_path, code, INTERPRETER)["reason"])


def test_a_model_without_its_file(tmp_path):
    settings = config({"IN": "FP32"}, {"OUT": "FP32"}) + '\ndefault_model_filename: "other.py"'
    reason = failing(tmp_path, IDENTITY, settings=settings)["reason"]
    path = tmp_path / "models" / "m" / "1" / "other.py"
    assert reason == f"Internal: Failed to preinitialize Python stub: Python model file not found in '{path}'"


def test_an_interpreter_that_does_not_do(tmp_path):
    reason = failing(tmp_path, IDENTITY, "--backend-config=python,interpreter=/no/such/python")["reason"]
    assert reason.startswith("Internal: cannot start the Python interpreter '/no/such/python': ")


def test_an_interpreter_without_numpy(tmp_path):
    program = tmp_path / "bare"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "$@"\n')
    program.chmod(0o755)
    reason = failing(tmp_path, IDENTITY, f"--backend-config=python,interpreter={program}")["reason"]
    assert "cannot import numpy, which Python models need" in reason
    assert "name another interpreter with --backend-config=python,interpreter=PATH" in reason


def test_an_execution_environment(tmp_path):
    programs = tmp_path / "environment" / "bin"
    programs.mkdir(parents=True)
    (programs / "python3").symlink_to(sys.executable)
    settings = config({"IN": "FP32"}, {"OUT": "STRING"})
    value = f'value {{ string_value: "{tmp_path}/environment" }}'
    settings += f'parameters {{ key: "EXECUTION_ENV_PATH" {value} }}\n'
    code = """
import sys


class TritonPythonModel:
    def execute(self, requests):
        text = np.array([sys.executable], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", text)]) for _ in requests]
"""
    # The environment has no packages of its own: it borrows those of the tests.
    packages = os.path.dirname(os.path.dirname(np.__file__))
    repository = add(models.Repository(tmp_path / "models"), "m", code, settings)
    with Server([repository.path], env={"PYTHONPATH": packages}) as server:
        with httpclient.InferenceServerClient(server.http_address) as client:
            result = ask(client, "m", {"IN": ("FP32", np.zeros(1, np.float32))})
    assert result.as_numpy("OUT")[0].decode() == str(programs / "python3")


def shared_memory_of(server):
    """Names that a server left behind, where the system shows them as files."""
    folder = "/dev/shm"
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return [name for name in names if name.startswith(f"hm{server.process.pid:x}-")]


def test_a_server_that_ends_behind_many_requests_lets_its_models_finalize(tmp_path):
    repository = models.Repository(tmp_path / "models")
    finalizes = IDENTITY + "\n    def finalize(self):\n        print('finalized', flush=True)\n"
    add(repository, "echo", finalizes, config({"IN": "FP32"}, {"OUT": "FP32"}, extra=CPU))
    server = Server([repository.path], INTERPRETER)
    with httpclient.InferenceServerClient(server.http_address) as client:
        for number in range(200):
            tensor = httpclient.InferInput("IN", [1], "FP32")
            tensor.set_data_from_numpy(np.array([number], np.float32))
            assert client.infer("echo", [tensor]).as_numpy("OUT").tolist() == [number]
    assert server.stop() == 0
    log = server.log_text()
    assert "finalized" in log and "took too long" not in log, log


def test_finalize_runs_at_the_end_after_the_last_response(tmp_path):
    repository = models.Repository(tmp_path / "models")
    add(repository, "stream", STREAM, config({"IN": "FP32"}, {"OUT": "FP32"}, extra=CPU + DECOUPLED))
    bad = "class TritonPythonModel:\n    def finalize(self):\n        raise ValueError('cannot end')\n"
    add(repository, "bad", bad, config({"IN": "FP32"}, {"OUT": "FP32"}))
    server = Server([repository.path], INTERPRETER)
    assert len(stream(server, 5)) == 5
    assert server.stop() == 0
    log = server.log_text()
    assert "finalized" in log and "finalize of 'bad_0_0': ValueError: cannot end" in log
    assert not shared_memory_of(server)


def state_of(pid):
    """What a process does, as a letter of proc(5); nothing where there is none."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


def is_running(pid):
    """Whether a process is there, and not only its remains that nobody asked for."""
    return state_of(pid) not in ("", "Z")


BUSY = """
class TritonPythonModel:
    def execute(self, requests):
        # The answer of another model lies in memory of the server's.
        inputs = [pb_utils.Tensor("IN", np.zeros(1, np.float32))]
        pb_utils.InferenceRequest(model_name="about", requested_output_names=["OUT"], inputs=inputs).exec()
        with open(pb_utils.get_model_dir() + "/pid", "w") as file:
            file.write(str(os.getpid()))
        time.sleep(600)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="asks Linux")
def test_busy_processes_end_with_a_server_that_is_killed(tmp_path):
    repository = models.Repository(tmp_path / "models")
    add(repository, "about", ABOUT, config({"IN": "FP32"}, {"OUT": "STRING"}))
    add(repository, "busy", BUSY, config({"IN": "FP32"}, {"OUT": "FP32"}))
    server = Server([repository.path], INTERPRETER)
    tensor = httpclient.InferInput("IN", [1], "FP32")
    tensor.set_data_from_numpy(np.zeros(1, np.float32))
    file = repository.path / "busy" / "1" / "pid"
    with httpclient.InferenceServerClient(server.http_address) as client:
        waiting = client.async_infer("busy", [tensor])
        wait_until(lambda: file.exists() and file.read_text(), "the model is busy")
        assert not shared_memory_of(server)
        server.process.kill()
        server.process.wait()
        with pytest.raises(Exception):
            waiting.get_result()
    wait_until(lambda: not is_running(int(file.read_text())), "the model's process has ended")


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="asks Linux")
def test_processes_end_with_a_server_that_is_killed(tmp_path):
    repository = models.Repository(tmp_path / "models")
    add(repository, "about", ABOUT, config({"IN": "FP32"}, {"OUT": "STRING"}))
    server = Server([repository.path], INTERPRETER)
    with httpclient.InferenceServerClient(server.http_address) as http:
        pid = pid_of(http)
    assert is_running(pid)
    server.process.kill()
    server.process.wait()
    end = time.monotonic() + 20
    while is_running(pid):
        assert time.monotonic() < end, "the model's process is still there"
        time.sleep(0.02)
    assert not shared_memory_of(server)
