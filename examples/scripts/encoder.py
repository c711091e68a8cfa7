"""A small transformer encoder as the older exporters write it.

Opset 14: LayerNorm and GELU appear as their formulas, attention as MatMul,
Add, Softmax, MatMul, and the head split as Reshape and Transpose with shapes
computed from the input. Weights are random from a fixed seed: the model shows
dynamic lengths, not language.
"""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

SEED = 2051


class Builder:
    """Collects nodes and weights; every method returns the name of its output."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.nodes = []
        self.weights = []
        self.known = {}

    def op(self, kind, inputs, name, outputs=1, **attributes):
        names = [name] if outputs == 1 else [f"{name}.{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, name=f"{name}/{kind}", **attributes))
        return names[0] if outputs == 1 else names

    def tensor(self, name, array):
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def constant(self, array):
        """One initializer per distinct value."""
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self.known:
            self.known[key] = self.tensor(f"constant_{len(self.known)}", array)
        return self.known[key]

    def scalar(self, value):
        return self.constant(np.array(value, np.float32))

    def ints(self, *values):
        return self.constant(np.array(values, np.int64))

    def normal(self, name, *shape, scale=None):
        scale = scale if scale is not None else shape[0] ** -0.5
        return self.tensor(name, self.rng.normal(0, scale, shape).astype(np.float32))

    def linear(self, x, name, features_in, features_out):
        w = self.normal(f"{name}.weight", features_in, features_out)
        b = self.normal(f"{name}.bias", features_out, scale=0.02)
        return self.op("Add", [self.op("MatMul", [x, w], f"{name}.product"), b], name)

    def layer_norm(self, x, name, width):
        gain = self.tensor(f"{name}.gain", (1 + self.rng.normal(0, 0.02, width)).astype(np.float32))
        bias = self.normal(f"{name}.bias", width, scale=0.02)
        mean = self.op("ReduceMean", [x], f"{name}.mean", axes=[-1], keepdims=1)
        centred = self.op("Sub", [x, mean], f"{name}.centred")
        square = self.op("Pow", [centred, self.scalar(2)], f"{name}.square")
        variance = self.op("ReduceMean", [square], f"{name}.variance", axes=[-1], keepdims=1)
        shifted = self.op("Add", [variance, self.scalar(1e-5)], f"{name}.shifted")
        deviation = self.op("Sqrt", [shifted], f"{name}.deviation")
        unit = self.op("Div", [centred, deviation], f"{name}.unit")
        return self.op("Add", [self.op("Mul", [unit, gain], f"{name}.scaled"), bias], name)

    def gelu(self, x, name):
        e = self.op("Erf", [self.op("Div", [x, self.scalar(2**0.5)], f"{name}.argument")], f"{name}.erf")
        half = self.op("Mul", [x, self.op("Add", [e, self.scalar(1)], f"{name}.one_plus")], f"{name}.twice")
        return self.op("Mul", [half, self.scalar(0.5)], name)

    def dimension(self, x, axis, name):
        """One dimension of `x` as a tensor of one element."""
        shape = self.op("Shape", [x], f"{name}.shape")
        size = self.op("Gather", [shape, self.constant(np.array(axis, np.int64))], f"{name}.size", axis=0)
        return self.op("Unsqueeze", [size, self.ints(0)], name)

    def attention(self, x, mask, name, width, heads):
        """Self-attention; `mask` is added to the scores."""
        batch = self.dimension(x, 0, f"{name}.batch")
        length = self.dimension(x, 1, f"{name}.length")
        split = self.op("Concat", [batch, length, self.ints(heads), self.ints(width // heads)], f"{name}.split", axis=0)
        joined = self.op("Concat", [batch, length, self.ints(width)], f"{name}.joined", axis=0)
        parts = []
        for part, perm in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])):
            flat = self.linear(x, f"{name}.{part}", width, width)
            parts.append(self.op("Transpose", [self.op("Reshape", [flat, split], f"{name}.{part}.heads")],
                                 f"{name}.{part}.turned", perm=perm))
        query, key, value = parts
        scores = self.op("MatMul", [query, key], f"{name}.scores")
        scores = self.op("Div", [scores, self.scalar((width // heads) ** 0.5)], f"{name}.scaled")
        weights = self.op("Softmax", [self.op("Add", [scores, mask], f"{name}.masked")], f"{name}.weights", axis=-1)
        context = self.op("Transpose", [self.op("MatMul", [weights, value], f"{name}.context")],
                          f"{name}.context.turned", perm=[0, 2, 1, 3])
        flat = self.op("Reshape", [context, joined], f"{name}.context.flat")
        return self.linear(flat, f"{name}.output", width, width)


def encoder(vocabulary=512, positions=128, width=64, heads=4, layers=2, inner=128, seed=SEED):
    """input_ids and attention_mask [batch, length] to token states and a unit sentence vector."""
    b = Builder(seed)
    info = helper.make_tensor_value_info

    tokens = b.op("Gather", [b.normal("token.weight", vocabulary, width, scale=0.5), "input_ids"], "token")
    table = b.normal("position.weight", positions, width, scale=0.1)
    rows = b.op("Slice", [table, b.ints(0), b.dimension("input_ids", 1, "length"), b.ints(0)], "position")
    x = b.layer_norm(b.op("Add", [tokens, rows], "embedding"), "embedding.norm", width)

    # 0 where a token counts and a large negative number where it is padding, as [batch, 1, 1, length].
    real = b.op("Cast", ["attention_mask"], "mask.real", to=TensorProto.FLOAT)
    wide = b.op("Unsqueeze", [real, b.ints(1, 2)], "mask.wide")
    mask = b.op("Mul", [b.op("Sub", [b.scalar(1), wide], "mask.padding"), b.scalar(-1e4)], "mask")

    for i in range(layers):
        name = f"layer{i}"
        attended = b.attention(x, mask, f"{name}.attention", width, heads)
        x = b.layer_norm(b.op("Add", [x, attended], f"{name}.residual1"), f"{name}.norm1", width)
        inside = b.gelu(b.linear(x, f"{name}.up", width, inner), f"{name}.gelu")
        down = b.linear(inside, f"{name}.down", inner, width)
        x = b.layer_norm(b.op("Add", [x, down], f"{name}.residual2"), f"{name}.norm2", width)
    b.op("Identity", [x], "last_hidden_state")

    # Mean over the tokens that count, scaled to length one.
    column = b.op("Unsqueeze", [real, b.ints(2)], "mask.column")
    total = b.op("ReduceSum", [b.op("Mul", [x, column], "pool.kept"), b.ints(1)], "pool.total", keepdims=0)
    count = b.op("Max", [b.op("ReduceSum", [column, b.ints(1)], "pool.count", keepdims=0), b.scalar(1)], "pool.at_least_one")
    mean = b.op("Div", [total, count], "pool.mean")
    norm = b.op("ReduceL2", [mean], "pool.norm", axes=[1], keepdims=1)
    b.op("Div", [mean, norm], "sentence_embedding")

    return helper.make_graph(
        b.nodes,
        "encoder",
        [info(n, TensorProto.INT64, ["batch", "length"]) for n in ("input_ids", "attention_mask")],
        [
            info("last_hidden_state", TensorProto.FLOAT, ["batch", "length", width]),
            info("sentence_embedding", TensorProto.FLOAT, ["batch", width]),
        ],
        b.weights,
    )
