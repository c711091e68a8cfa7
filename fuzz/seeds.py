"""Writes the seeds of the fuzz targets: small inputs that reach far into what they fuzz.

    python fuzz/seeds.py            needs what tests/requirements.txt lists
"""

import gzip
import json
import struct
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

SEEDS = Path(__file__).resolve().parent / "seeds"
FLOAT, INT64, BOOL, STRING, UINT8, INT8 = (
    TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING, TensorProto.UINT8, TensorProto.INT8,
)  # fmt: skip
info = helper.make_tensor_value_info
node = helper.make_node


def constant(name, values, dtype=np.float32):
    return numpy_helper.from_array(np.asarray(values, dtype), name)


def model(nodes, inputs, outputs, stored=(), functions=(), opset=21):
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(stored))
    opsets = [helper.make_opsetid(domain, version) for domain, version in
              (("", opset), ("ai.onnx.ml", 4), ("com.microsoft", 1), ("own", 1))]  # fmt: skip
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=10).SerializeToString()


def chain(operator, shape, *, dtype=FLOAT, out=FLOAT, outputs=1, stored=(), opset=21, domain="", **attributes):
    """One operator between an input and its outputs; what is stored follows the input."""
    names = [f"y{i}" for i in range(outputs)]
    made = node(operator, ["x", *(tensor.name for tensor in stored)], names, domain=domain, **attributes)
    return model([made], [info("x", dtype, shape)], [info(name, out, None) for name in names], stored, opset=opset)


def ints(name, *values):
    return constant(name, values, np.int64)


def body(nodes, inputs, outputs, stored=()):
    return helper.make_graph(nodes, "body", inputs, outputs, list(stored))


def loops():
    step = body(
        [node("Add", ["v", "one"], ["w"]), node("Less", ["i", "five"], ["go"]), node("Identity", ["w"], ["s"])],
        [info("i", INT64, []), info("c", BOOL, []), info("v", FLOAT, [2])],
        [info("go", BOOL, []), info("w", FLOAT, [2]), info("s", FLOAT, [2])],
        [constant("one", [1.0, 1.0]), constant("five", 5, np.int64)],
    )
    yield "loop", model([node("Loop", ["", "t", "x"], ["y", "all"], body=step)], [info("x", FLOAT, [2])],
                        [info("y", FLOAT, None), info("all", FLOAT, None)], [constant("t", True, np.bool_)])  # fmt: skip
    then = body([node("Neg", ["x"], ["a"])], [], [info("a", FLOAT, None)])
    other = body([node("Abs", ["x"], ["b"])], [], [info("b", FLOAT, None)])
    yield "if", model([node("If", ["c"], ["y"], then_branch=then, else_branch=other)],
                      [info("c", BOOL, []), info("x", FLOAT, ["n"])], [info("y", FLOAT, None)])  # fmt: skip
    scan = body([node("Add", ["s", "e"], ["t"]), node("Identity", ["t"], ["k"])],
                [info("s", FLOAT, [2]), info("e", FLOAT, [2])], [info("t", FLOAT, [2]), info("k", FLOAT, [2])])  # fmt: skip
    yield "scan", model([node("Scan", ["s0", "x"], ["last", "all"], num_scan_inputs=1, body=scan)],
                        [info("s0", FLOAT, [2]), info("x", FLOAT, ["n", 2])],
                        [info("last", FLOAT, None), info("all", FLOAT, None)])  # fmt: skip
    twice = helper.make_function("own", "Twice", ["a"], ["b"], [node("Add", ["a", "a"], ["b"])],
                                 [helper.make_opsetid("", 21)])  # fmt: skip
    yield "function", model([node("Twice", ["x"], ["y"], domain="own")], [info("x", FLOAT, [2])],
                            [info("y", FLOAT, None)], functions=[twice])  # fmt: skip


def operators():
    weight = constant("w", np.arange(18).reshape(2, 1, 3, 3) / 9)
    yield "conv", chain("Conv", [1, 1, 5, 5], stored=[weight, constant("b", [1, 2])], pads=[1, 1, 1, 1], strides=[2, 2])
    yield "conv_transpose", chain("ConvTranspose", [1, 2, 3, 3], stored=[constant("w", np.ones((2, 1, 2, 2)))], strides=[2, 2])
    yield "pool", chain("MaxPool", [1, 1, 4, 4], kernel_shape=[2, 2], strides=[1, 1], ceil_mode=1, outputs=2)
    yield "average", chain("AveragePool", ["n", 1, 4, 4], kernel_shape=[3, 3], auto_pad="SAME_UPPER")
    yield "gemm", chain("Gemm", ["n", 3], stored=[constant("w", np.ones((4, 3))), constant("c", np.ones(4))], transB=1)
    yield "matmul", chain("MatMul", ["n", 2, 3], stored=[constant("w", np.ones((3, 2)))])
    yield "softmax", chain("Softmax", ["n", 4], axis=-1)
    yield "norm", chain("LayerNormalization", [2, 4], stored=[constant("g", np.ones(4)), constant("b", np.zeros(4))])
    yield "batch_norm", chain("BatchNormalization", [1, 2, 3], stored=[constant(n, [1, 2]) for n in "sbmv"])
    yield "reshape", chain("Reshape", ["n", 4], stored=[ints("s", 0, 2, -1)])
    yield "transpose", chain("Transpose", [2, 3, 4], perm=[2, 0, 1])
    yield "slice", chain("Slice", [4, 6], stored=[ints("a", 1, -1), ints("e", 9, -9), ints("ax", 0, 1), ints("s", 2, -2)])
    yield "gather", chain("Gather", [3, 2], stored=[ints("i", 2, -1)], axis=0)
    yield "gather_nd", chain("GatherND", [2, 2], stored=[constant("i", [[0, 1]], np.int64)])
    yield "scatter", chain("ScatterElements", [3], stored=[ints("i", 2, 0), constant("u", [7, 8])], reduction="add")
    yield "concat", model([node("Concat", ["x", "x"], ["y"], axis=1)], [info("x", FLOAT, ["n", 2])], [info("y", FLOAT, None)])
    yield "split", chain("Split", [6], stored=[ints("s", 1, 2, 3)], outputs=3)
    yield "pad", chain("Pad", [2, 2], stored=[ints("p", 1, 0, 0, 2), constant("v", 3)], mode="constant")
    yield "resize", chain("Resize", [1, 1, 2, 3], stored=[constant("r", []), constant("s", [1, 1, 2, 1.5])], mode="cubic")
    yield "expand", chain("Expand", [1, 2], stored=[ints("s", 3, 1)])
    yield "tile", chain("Tile", [1, 2], stored=[ints("r", 2, 3)])
    yield "top_k", chain("TopK", [2, 4], stored=[ints("k", 2)], outputs=2)
    yield "reduce", chain("ReduceMean", [2, 3, 4], stored=[ints("a", -1, 0)], keepdims=0)
    yield "arg_max", chain("ArgMax", [2, 3], out=INT64, axis=1)
    yield "cumsum", chain("CumSum", [5], stored=[constant("a", 0, np.int32)], reverse=1)
    yield "range", model([node("Range", ["a", "x", "d"], ["y"])], [info("x", FLOAT, [])], [info("y", FLOAT, None)],
                         [constant("a", 0), constant("d", 0.25)])  # fmt: skip
    yield "one_hot", chain("OneHot", [3], dtype=INT64, stored=[constant("d", 4, np.int64), constant("v", [0, 1])])
    yield "constant_of_shape", chain("ConstantOfShape", [2], dtype=INT64, value=constant("v", [3]))
    yield "non_zero", chain("NonZero", [2, 3], out=INT64)
    yield "unique", chain("Unique", [5], outputs=4)
    yield "einsum", chain("Einsum", [2, 2], equation="ij->ji")
    yield "lstm", chain("LSTM", [2, 1, 2], stored=[constant("w", np.ones((1, 8, 2))), constant("r", np.ones((1, 8, 2)))],
                        outputs=3, hidden_size=2)  # fmt: skip
    yield "gru", chain("GRU", [2, 1, 2], stored=[constant("w", np.ones((1, 6, 2))), constant("r", np.ones((1, 6, 2)))],
                       outputs=2, hidden_size=2, direction="reverse")  # fmt: skip
    yield "quantize", chain("QuantizeLinear", [2, 2], out=UINT8, stored=[constant("s", 0.5), constant("z", 3, np.uint8)])
    yield "dequantize", chain("DequantizeLinear", [2, 2], dtype=INT8, stored=[constant("s", [0.5, 2])], axis=1)
    yield "cast", chain("Cast", [3], out=INT64, to=INT64)
    yield "strings", chain("StringNormalizer", [2], dtype=STRING, out=STRING, case_change_action="UPPER")
    yield "tfidf", chain("TfIdfVectorizer", [4], dtype=INT64, mode="TF", min_gram_length=1, max_gram_length=2,
                         max_skip_count=1, ngram_counts=[0, 2], ngram_indexes=[0, 1, 2], pool_int64s=[1, 2, 0, 1])  # fmt: skip
    yield "nms", model([node("NonMaxSuppression", ["x", "s", "k"], ["y"])], [info("x", FLOAT, [1, 2, 4]), info("s", FLOAT, [1, 1, 2])],
                       [info("y", INT64, None)], [ints("k", 3)])  # fmt: skip
    yield "dft", chain("DFT", [1, 4, 1], axis=1, opset=19)
    yield "roi", model([node("RoiAlign", ["x", "r", "b"], ["y"], output_height=2, output_width=2)], [info("x", FLOAT, [1, 1, 4, 4])],
                       [info("y", FLOAT, None)], [constant("r", [[0, 0, 2, 2]]), ints("b", 0)])  # fmt: skip
    yield "trees", chain("TreeEnsembleRegressor", [2, 1], domain="ai.onnx.ml", n_targets=1, nodes_featureids=[0, 0, 0],
                         nodes_falsenodeids=[2, 0, 0], nodes_truenodeids=[1, 0, 0], nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
                         nodes_nodeids=[0, 1, 2], nodes_treeids=[0, 0, 0], nodes_values=[0.5, 0.0, 0.0], target_ids=[0, 0],
                         target_nodeids=[1, 2], target_treeids=[0, 0], target_weights=[1.0, 2.0])  # fmt: skip
    yield "sequence", model([node("SequenceConstruct", ["x", "x"], ["s"]), node("SequenceAt", ["s", "i"], ["y"])],
                            [info("x", FLOAT, [2])], [info("y", FLOAT, None)], [constant("i", 1, np.int64)])  # fmt: skip
    qkv = [info(name, FLOAT, [1, 2, 3, 4]) for name in "qkv"]
    yield "attention", model([node("Attention", ["q", "k", "v"], ["y"], is_causal=1)], qkv, [info("y", FLOAT, None)], opset=23)
    yield "shapes", model(
        [node("Shape", ["x"], ["s"]), node("Gather", ["s", "zero"], ["n"]), node("Unsqueeze", ["n", "axis"], ["n1"]),
         node("Concat", ["n1", "rest"], ["t"], axis=0), node("Reshape", ["x", "t"], ["y"])],
        [info("x", FLOAT, ["n", 4])], [info("y", FLOAT, None)],
        [constant("zero", 0, np.int64), ints("axis", 0), ints("rest", 2, -1)])  # fmt: skip


CONFIGS = {
    "whole": """name: "m" platform: "onnxruntime_onnx" max_batch_size: 8
input [ { name: "a" data_type: TYPE_FP32 dims: [ -1, 3 ] reshape { shape: [ 3 ] } }, { name: "b" data_type: TYPE_STRING dims: 1 optional: true } ]
output [ { name: "c" data_type: TYPE_INT64 dims: [ 1 ] label_filename: "labels.txt" } ]
dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 priority_levels: 2
  priority_queue_policy { key: 1 value { timeout_action: DELAY default_timeout_microseconds: 5 } } }
instance_group [ { count: 2 kind: KIND_CPU } ]
parameters { key: "x" value: { string_value: "y\\n\\x41\\101" } }
version_policy: { specific: { versions: [ 1, 3 ] } }
model_warmup [ { name: "w" batch_size: 1 inputs { key: "a" value { data_type: TYPE_FP32 dims: 3 zero_data: true } } } ]
""",
    "ensemble": """platform: "ensemble" max_batch_size: 0
input { name: 'X' data_type: TYPE_FP32 dims: [ 4 ] } output < name: 'Y' data_type: TYPE_FP32 dims: [ 4 ] >
ensemble_scheduling { step [ { model_name: "m" model_version: -1 input_map { key: "a" value: "X" } output_map { key: "c" value: "Y" } } ] }
""",
    "json": json.dumps({"name": "m", "backend": "onnxruntime", "maxBatchSize": 4, "input": [
        {"name": "a", "data_type": "TYPE_FP16", "dims": ["-1", 2]}], "optimization": {"priority": "PRIORITY_MAX"}}),
    "comments": "# a comment\nname: 'a' ; backend: 'identity', max_batch_size: 0x10 # more\n",
    "unknown": 'nam: "m"\nbackend: 7\n',
}  # fmt: skip


def http(method, path, body=b"", **headers):
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    lines = [f"{method} {path}"] + [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\n".join(lines).encode() + b"\n\n" + body


def requests():
    floats = {"name": "INPUT0", "datatype": "FP32", "shape": [2, 2]}
    yield "json", http("POST", "/v2/models/floats/infer", {"id": "1", "inputs": [{**floats, "data": [[1, 2.5], [-3e2, 4]]}]})
    header = {"inputs": [{**floats, "parameters": {"binary_data_size": 16}}],
              "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]}  # fmt: skip
    text = json.dumps(header).encode()
    binary = text + np.arange(4, dtype=np.float32).tobytes()
    yield "binary", http("POST", "/v2/models/floats/versions/1/infer", binary, Inference_Header_Content_Length=len(text))
    yield "gzip", http("POST", "/v2/models/floats/infer", gzip.compress(binary, mtime=0), content_encoding="gzip",
                       accept_encoding="deflate", Inference_Header_Content_Length=len(text))  # fmt: skip
    yield "raw", http("POST", "/v2/models/ints/infer", bytes(16), Inference_Header_Content_Length=0)
    yield "classes", http("POST", "/v2/models/floats/infer", {"inputs": [{**floats, "data": [1, 2, 3, 4]}], "outputs": [
        {"name": "OUTPUT0", "parameters": {"classification": 2}}], "parameters": {"priority": 1, "timeout": 5, "own": True}})  # fmt: skip
    yield "strings", http("POST", "/v2/models/strings/infer", {"inputs": [
        {"name": "INPUT0", "datatype": "BYTES", "shape": [2], "data": ["a\u00e9\n", ""]}]}, x_own="1")  # fmt: skip
    place = {"shared_memory_region": "region", "shared_memory_offset": 4, "shared_memory_byte_size": 16}
    yield "shared_memory", http("POST", "/v2/models/floats/infer", {"inputs": [{**floats, "parameters": place}],
                                "outputs": [{"name": "OUTPUT0", "parameters": place}]})  # fmt: skip
    for path in ("/v2", "/v2/health/ready", "/v2/models/floats", "/v2/models/floats/config", "/v2/models/stats",
                 "/v2/models/floats/stats", "/v2/logging", "/v2/trace/setting", "/v2/systemsharedmemory/status"):  # fmt: skip
        yield "get" + path.replace("/", "_"), http("GET", path)
    yield "register", http("POST", "/v2/systemsharedmemory/region/r/register", {"key": "/none", "offset": 0, "byte_size": 8})
    yield "index", http("POST", "/v2/repository/index", {"ready": True})
    yield "trace", http("POST", "/v2/trace/setting", {"trace_level": ["TIMESTAMPS"], "trace_rate": "1"})
    yield "load", http("POST", "/v2/repository/models/floats/load", {"parameters": {"config": "{}", "file:1/m": "YQ=="}})


# gRPC messages, encoded here so that no generated code is needed.
def varint(value):
    out = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        out.append(low | (0x80 if value else 0))
        if not value:
            return bytes(out)


def part(number, content):
    content = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(content)) + content


def number(field, value):
    return varint(field << 3) + varint(value & (1 << 64) - 1)


def parameter(key, value):
    kind = {bool: lambda v: number(1, v), int: lambda v: number(2, v), str: lambda v: part(3, v)}[type(value)]
    return part(1, key) + part(2, kind(value))


def messages():
    def tensor(datatype, shape, contents=b"", parameters=()):
        shape = part(3, b"".join(varint(size) for size in shape))
        found = b"".join(part(4, parameter(*entry)) for entry in parameters)
        return part(1, "INPUT0") + part(2, datatype) + shape + found + (part(5, contents) if contents else b"")

    def request(model, tensor, *, raw=(), output=b"", more=b""):
        raw = b"".join(part(7, bytes_) for bytes_ in raw)
        return b"0" + part(1, model) + part(3, "id") + part(5, tensor) + part(6, part(1, "OUTPUT0") + output) + raw + more

    floats = struct.pack("<4f", 1, 2, 3, 4)
    yield "raw", request("floats", tensor("FP32", [2, 2]), raw=[floats])
    yield "contents", request("floats", tensor("FP32", [2, 2], part(6, floats)))
    yield "int_contents", request("ints", tensor("INT64", [2], part(3, b"\x01\x02")), more=part(4, parameter("priority", 1)))
    yield "strings", request("strings", tensor("BYTES", [2], part(8, "a") + part(8, "")))
    place = (("shared_memory_region", "region"), ("shared_memory_offset", 4), ("shared_memory_byte_size", 16))
    places = b"".join(part(2, parameter(*entry)) for entry in place)
    yield "shared_memory", request("floats", tensor("FP32", [2, 2], parameters=place), output=places)
    yield "classes", request("floats", tensor("FP32", [2, 2]), raw=[floats], output=part(2, parameter("classification", 2)))
    yield "negative", request("ints", tensor("INT64", [2**64 - 1]), raw=[b""])
    for method, message in (("1", part(1, "region")), ("2", part(1, "floats")), ("3", part(1, "floats") + part(2, "1")),
                            ("4", part(1, "floats")), ("5", number(2, 1)), ("8", part(1, "r") + part(2, b"handle")),
                            ("6", part(2, "floats") + part(3, parameter("config", "{}"))),
                            ("7", part(1, part(1, "trace_rate") + part(2, part(1, "1")))) ):  # fmt: skip
        yield "method" + method, method.encode() + message


def regions():
    def run(*operations, body=b""):
        return b"".join(letter.encode() + name.encode() + struct.pack("<QQ", *numbers) for letter, name, *numbers in operations) + body

    yield "places", run(("r", "a", 16, 1000), ("p", "a", 0, 1000), ("p", "a", 999, 1), ("p", "a", 1000, 0), ("s", "a", 0, 0))
    yield "edges", run(("r", "a", 0, 10000), ("r", "b", 10000, 0), ("r", "c", 2**64 - 1, 2), ("p", "a", 2**64 - 1, 2), ("p", "b", 0, 0))
    yield "again", run(("r", "a", 0, 8), ("r", "a", 0, 8), ("u", "a", 0, 0), ("r", "a", 4097, 100), ("p", "a", 1, 99))
    yield "body", run(("!", "a", 0, 0), body=b'{"key": "/none", "offset": 18446744073709551615, "byte_size": 1}')


def main():
    for target, seeds in {
        "onnx": [*operators(), *loops()],
        "config": [(name, text.encode()) for name, text in CONFIGS.items()],
        "http": requests(),
        "grpc": messages(),
        "shared_memory": regions(),
    }.items():
        folder = SEEDS / target
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in seeds:
            (folder / name).write_bytes(content)


if __name__ == "__main__":
    main()
