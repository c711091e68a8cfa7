"""Models that are broken, or made to do harm: an error that says what is wrong, and the server lives."""

import json
import os
import random
import resource
import socket
import subprocess

import grpc
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from support.server import binary

pytestmark = pytest.mark.halimede_only("what is said is ours")

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
info, node = helper.make_tensor_value_info, helper.make_node

# The address space of a command, so that an allocation without bound ends it instead of the machine.
BYTES_MAX = 2 << 30
SECONDS_MAX = 60


def unchecked(nodes, inputs, outputs, stored=(), functions=()):
    """As the checker would never let it pass."""
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(stored))
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=10)


def one(made, *stored, shape=(2,), functions=()):
    return unchecked([made], [info("x", FLOAT, shape)], [info("y", FLOAT, None)], stored, functions)


def ints(name, *values):
    return numpy_helper.from_array(np.array(values, np.int64), name)


def external(location):
    tensor = helper.make_tensor("w", FLOAT, [2], [])
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", "8")):
        tensor.external_data.add(key=key, value=value)
    return one(node("Add", ["x", "w"], ["y"]), tensor)


def claim(*dims):
    """A tensor of which the model holds one element."""
    tensor = helper.make_tensor("w", FLOAT, [1], [1.0])
    tensor.dims[:] = dims
    return one(node("Add", ["x", "w"], ["y"]), tensor)


def nested(depth):
    """Bodies of If within each other, as bytes: no library encodes a message that deep."""

    def wrap(field, content):
        size, length = len(content), b""
        while size > 0x7F:
            length, size = length + bytes([size & 0x7F | 0x80]), size >> 7
        return bytes([field << 3 | 2]) + length + bytes([size]) + content

    content = b""
    for _ in range(depth):
        content = wrap(1, wrap(5, wrap(6, content)))
    return helper.make_model(helper.make_graph([], "", [], []), ir_version=10).SerializeToString() + wrap(7, content)


def endless_functions():
    call = node("F", ["a"], ["b"], domain="own")
    function = helper.make_function("own", "F", ["a"], ["b"], [call], [helper.make_opsetid("", 21)])
    return one(node("F", ["x"], ["y"], domain="own"), functions=[function])


def deep_functions():
    """Each of 60 functions holds 20 bodies within each other, and the innermost calls the next function."""
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    functions = []
    for index in range(60):
        inner = node(f"F{index + 1}", ["a"], ["b"], domain="own") if index < 59 else node("Neg", ["a"], ["b"])
        for _ in range(20):
            branch = helper.make_graph([inner], "g", [], [info("b", FLOAT, None)])
            inner = node("If", ["c"], ["b"], then_branch=branch, else_branch=branch)
            # The other branch is small, or the file would double with each level.
            inner.attribute[1].g.CopyFrom(helper.make_graph([node("Neg", ["a"], ["b"])], "g", [], [info("b", FLOAT, None)]))
        cast = node("Cast", ["a"], ["c0"], to=BOOL)
        functions.append(helper.make_function("own", f"F{index}", ["a"], ["b"],
                                              [cast, node("ReduceMax", ["c0"], ["c"], keepdims=0), inner], opsets))  # fmt: skip
    return one(node("F0", ["x"], ["y"], domain="own"), functions=functions)


def endless_loop():
    body = helper.make_graph([node("Identity", ["c"], ["go"]), node("Neg", ["v"], ["w"])], "b",
                             [info("i", INT64, []), info("c", BOOL, []), info("v", FLOAT, [2])],
                             [info("go", BOOL, []), info("w", FLOAT, [2])])  # fmt: skip
    true = numpy_helper.from_array(np.array(True), "t")
    return one(node("Loop", ["", "t", "x"], ["y"], body=body), true)


def growing_loop():
    """Doubles a tensor for ever: memory ends before it does."""
    body = helper.make_graph([node("Concat", ["v", "v"], ["w"], axis=0), node("Less", ["i", "all"], ["go"])], "b",
                             [info("i", INT64, []), info("c", BOOL, []), info("v", FLOAT, None)],
                             [info("go", BOOL, []), info("w", FLOAT, None)],
                             [numpy_helper.from_array(np.array(2**62, np.int64), "all")])  # fmt: skip
    true = numpy_helper.from_array(np.array(True), "t")
    return one(node("Loop", ["", "t", "x"], ["y"], body=body), true)


def many_nodes():
    """12 MiB of nodes without content, which would take gigabytes."""
    content = b"\x0a\x00" * (6 << 20)
    head = helper.make_model(helper.make_graph([], "", [], []), ir_version=10).SerializeToString()
    return head + b"\x3a" + bytes([len(content) & 0x7F | 0x80, len(content) >> 7 & 0x7F | 0x80,
                                   len(content) >> 14 & 0x7F | 0x80, len(content) >> 21]) + content  # fmt: skip


GOOD = one(node("Add", ["x", "x"], ["y"]))

# What is wrong when the model is read, and what the error says of it.
UNREADABLE = {
    "truncated": (GOOD.SerializeToString()[:-7], "not an ONNX model"),
    "empty": (b"", "no graph"),
    "no model": (b"version https://git-lfs.github.com/spec/v1\n", "not an ONNX model"),
    "cycle": (unchecked([node("Add", ["x", "b"], ["a"]), node("Neg", ["a"], ["b"])], [info("x", FLOAT, [2])],
                        [info("b", FLOAT, None)]), "cyclic"),
    "reads itself": (one(node("Add", ["x", "y"], ["y"])), "cyclic"),
    "dimension of 2^63": (one(node("Neg", ["x"], ["y"]), shape=(2**63 - 1,)), "9223372036854775807"),
    "negative dimension": (one(node("Neg", ["x"], ["y"]), shape=(-2,)), "-2"),
    "elements beyond 2^64": (claim(2**62, 2**62), "'w'"),
    "tensor larger than the file": (claim(2**40), "'w'"),
    "negative size": (claim(-1), "negative"),
    "a thousand dimensions": (claim(*[1] * 1000), "1000 dimensions"),
    "bodies 10000 deep": (nested(10_000), "recursion limit"),
    "function calls itself": (endless_functions(), "more than 64 deep"),
    "bodies deep through functions": (deep_functions(), "deep"),
    "external data above": (external("../secret"), "outside the model's directory"),
    "external data absolute": (external("/etc/passwd"), "outside the model's directory"),
    "external data behind a link": (external("link"), "outside the model's directory"),
    "external data missing": (external("missing"), "missing"),
    "millions of nodes": (many_nodes(), "far more nodes"),
    "unknown operator": (one(node("NoSuchOperator", ["x"], ["y"])), "NoSuchOperator"),
}  # fmt: skip

# What is wrong when the model runs.
UNRUNNABLE = {
    "expanded beyond memory": (one(node("Expand", ["x", "s"], ["y"]), ints("s", 2**20, 2**20, 2)), "bytes"),
    "expanded beyond 2^64": (one(node("Expand", ["x", "s"], ["y"]), ints("s", 2**40, 2**40, 2)), ""),
    "tiled beyond memory": (one(node("Tile", ["x", "r"], ["y"]), ints("r", 2**45)), "bytes"),
    "endless loop": (endless_loop(), "would not end"),
    "loop that doubles": (growing_loop(), ""),
}


def write(folder, model):
    """The model with a file of external data behind a link, as `folder/model.onnx`."""
    folder.mkdir(parents=True)
    (folder.parent / "secret").write_bytes(bytes(8))
    os.symlink(folder.parent / "secret", folder / "link")
    path = folder / "model.onnx"
    path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    return path


def run(*arguments):
    limit = (BYTES_MAX, BYTES_MAX)
    result = subprocess.run(
        [binary(), *arguments], capture_output=True, text=True, timeout=SECONDS_MAX,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit) if os.uname().sysname == "Linux" else None,
    )  # fmt: skip
    assert "panicked" not in result.stdout + result.stderr
    return result


def case(folder, model):
    """A test case whose input is [1, 2]."""
    write(folder, model)
    data = folder / "test_data_set_0"
    data.mkdir()
    for name in ("input_0", "output_0"):
        tensor = numpy_helper.from_array(np.array([1, 2], np.float32))
        (data / f"{name}.pb").write_bytes(tensor.SerializeToString())
    return folder


@pytest.mark.parametrize(("model", "reason"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_run_refuses_what_cannot_be_read(tmp_path, model, reason):
    result = run("run", write(tmp_path / "m", model), "--input", "x=[1, 2]")
    assert result.returncode == 1
    assert result.stderr.startswith("error: ") and reason in result.stderr


@pytest.mark.parametrize(("model", "reason"), UNRUNNABLE.values(), ids=UNRUNNABLE.keys())
def test_run_gives_up(tmp_path, model, reason):
    result = run("run", write(tmp_path / "m", model), "--input", "x=[1, 2]")
    assert result.returncode == 1
    assert result.stderr.startswith("error: ") and reason in result.stderr


def test_check_goes_on_after_each(tmp_path):
    """All of them and a good one, in one run."""
    wrong = {**UNREADABLE, **UNRUNNABLE}
    for index, (model, _) in enumerate(wrong.values()):
        case(tmp_path / "cases" / f"case{index:02}", model)
    case(tmp_path / "cases" / "good", one(node("Identity", ["x"], ["y"])))
    result = run("check", tmp_path / "cases", "--json", "--jobs", "2")
    report = json.loads(result.stdout)
    assert result.returncode == 1
    assert (report["passed"], report["failed"]) == (1, len(wrong))
    for failure in report["failures"]:
        reason = list(wrong.values())[int(failure["case"][-2:])][1]
        assert reason in failure["reason"], failure


def slow_loop():
    """A loop that ends one day, but not soon."""
    steps = endless_loop()
    body = steps.graph.node[0].attribute[0].g
    body.node[0].CopyFrom(node("Less", ["i", "all"], ["go"]))
    body.initializer.append(numpy_helper.from_array(np.array(2**62, np.int64), "all"))
    return steps


def test_check_gives_up_after_a_time(tmp_path):
    result = run("check", case(tmp_path / "slow", slow_loop()), "--timeout", "0.5")
    assert result.returncode == 1 and "not done after 0.5 s" in result.stdout


@pytest.mark.parametrize("verb", ["run", "explain", "bench"])
def test_verbs_give_up_after_a_time(tmp_path, verb):
    result = run(verb, write(tmp_path / "m", slow_loop()), "--input", "x=[1, 2]", "--timeout", "0.5")
    assert result.returncode == 1 and "not done after 0.5 s" in result.stderr


def test_serve_loads_the_others(repository, serve):
    """Each model says why it is not there; those that are wrong only when they run answer with errors."""
    secret = repository.path / "secret"
    secret.write_bytes(bytes(8))
    # The server may take half of the memory, and this would take it.
    unrunnable = {name: model for name, model in UNRUNNABLE.items() if name != "loop that doubles"}
    for kind, wrong in (("unreadable", UNREADABLE), ("unrunnable", unrunnable)):
        for index, (model, _) in enumerate(wrong.values()):
            folder = repository.path / f"{kind}{index}" / "1"
            write(folder, model)
    repository.add("good", GOOD)
    server = serve(repository, "--exit-on-error=false", wait=False)
    server.wait_ready("/v2/health/live")
    server.wait_ready("/v2/models/good/ready")
    index = {entry["name"]: entry for entry in server.http.post("/v2/repository/index").json}
    for number, (_, reason) in enumerate(UNREADABLE.values()):
        entry = index[f"unreadable{number}"]
        assert entry["state"] == "UNAVAILABLE" and reason in entry["reason"]
    request = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}
    for number, (_, reason) in enumerate(unrunnable.values()):
        if index[f"unrunnable{number}"]["state"] == "READY":
            reply = server.http.infer(f"unrunnable{number}", request)
            assert reply.status == 500 and reason in reply.error
        else:
            assert reason in index[f"unrunnable{number}"]["reason"]
    reply = server.http.infer("good", request)
    assert reply.json["outputs"][0]["data"] == [2, 4]


def waiting_loop():
    """Counts up to the number that the request gives."""
    body = helper.make_graph([node("Add", ["v", "one"], ["w"]), node("Less", ["w", "x"], ["go1"]), node("Squeeze", ["go1"], ["go"])],
                             "b", [info("i", INT64, []), info("c", BOOL, []), info("v", FLOAT, [1])],
                             [info("go", BOOL, []), info("w", FLOAT, [1])])  # fmt: skip
    stored = [numpy_helper.from_array(np.array(True), "t"), numpy_helper.from_array(np.array([1], np.float32), "one"),
              numpy_helper.from_array(np.array([0], np.float32), "zero")]  # fmt: skip
    return one(node("Loop", ["", "t", "zero"], ["y"], body=body), *stored, shape=(1,))


def test_a_loop_ends_when_its_client_leaves(repository, serve):
    """Above 2^24 a float plus one stays as it is, so this loop would run for ever."""
    repository.add("loop", waiting_loop())
    server = serve(repository)

    def request(end):
        return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [end]}]}

    body = json.dumps(request(1e9)).encode()
    with socket.create_connection(("127.0.0.1", server.http_port)) as client:
        client.sendall(b"POST /v2/models/loop/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        client.settimeout(0.5)
        with pytest.raises(TimeoutError):
            client.recv(1)
    # The one instance is free again: this waits for it.
    reply = server.http.infer("loop", request(3))
    assert reply.json["outputs"][0]["data"] == [3]


def test_a_message_of_many_empty_inputs(repository, serve):
    """Two bytes each in the message, hundreds in memory."""
    repository.add("good", GOOD)
    server = serve(repository)
    with grpc.insecure_channel(server.grpc_address) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as error:
            call(b"\x0a\x04good" + b"\x2a\x00" * 70_000)
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "more than 65536 inputs" in error.value.details()


def test_changed_models_are_survived(tmp_path):
    """Bits flipped and ends cut off, reproducibly, in one run of `check`."""
    weight = numpy_helper.from_array(np.ones((2, 1, 3, 3), np.float32), "w")
    whole = unchecked(
        [node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]), node("Relu", ["c"], ["r"]),
         node("Reshape", ["r", "s"], ["f"]), node("Softmax", ["f"], ["y"])],
        [info("x", FLOAT, [1, 1, 4, 4])], [info("y", FLOAT, None)], [weight, ints("s", 1, -1)],
    ).SerializeToString()  # fmt: skip
    chance = random.Random(1)
    for index in range(200):
        changed = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        if index % 4 == 0:
            del changed[chance.randrange(len(changed)) :]
        folder = case(tmp_path / "cases" / f"changed{index}", bytes(changed))
        image = numpy_helper.from_array(np.ones((1, 1, 4, 4), np.float32))
        (folder / "test_data_set_0" / "input_0.pb").write_bytes(image.SerializeToString())
    report = json.loads(run("check", tmp_path / "cases", "--json", "--jobs", "2", "--timeout", "10").stdout)
    assert report["passed"] + report["failed"] == 200
    assert report["failed"] > 100
