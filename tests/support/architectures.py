"""Small versions of well-known architectures, with random weights from a fixed seed.

The same operators in the same order as the exporters write for the real ones,
at a width that a test can afford. `scripts/architectures` exports the real ones.
"""

import sys
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper

from support.server import ROOT

sys.path.insert(0, str(ROOT / "examples" / "scripts"))

from encoder import Builder, encoder  # noqa: E402

info = helper.make_tensor_value_info
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


@dataclass
class Architecture:
    """A model and a function from (batch, length) to its inputs."""

    name: str
    model: object
    inputs: object


def model(graph, opset=17):
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def graph(b, name, inputs, outputs):
    return helper.make_graph(b.nodes, name, inputs, outputs, b.weights)


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def ids(seed, high, *shape):
    return np.random.default_rng(seed).integers(0, high, shape)


class Net(Builder):
    """Layers of vision models."""

    def conv(self, x, name, channels_in, channels_out, kernel=3, stride=1, group=1, bias=True):
        fan = channels_in // group * kernel * kernel
        w = self.normal(f"{name}.weight", channels_out, channels_in // group, kernel, kernel, scale=(2 / fan) ** 0.5)
        inputs = [x, w] + ([self.normal(f"{name}.bias", channels_out, scale=0.1)] if bias else [])
        pad = kernel // 2
        return self.op("Conv", inputs, name, kernel_shape=[kernel, kernel], strides=[stride, stride],
                       pads=[pad] * 4, group=group)  # fmt: skip

    def batch_norm(self, x, name, channels):
        gain = self.tensor(f"{name}.gain", (1 + self.rng.normal(0, 0.1, channels)).astype(np.float32))
        bias = self.normal(f"{name}.bias", channels, scale=0.1)
        mean = self.normal(f"{name}.mean", channels, scale=0.1)
        variance = self.tensor(f"{name}.variance", self.rng.uniform(0.5, 2, channels).astype(np.float32))
        return self.op("BatchNormalization", [x, gain, bias, mean, variance], name, epsilon=1e-5)

    def conv_norm(self, x, name, channels_in, channels_out, **options):
        return self.batch_norm(self.conv(x, name, channels_in, channels_out, bias=False, **options), f"{name}.norm",
                               channels_out)  # fmt: skip

    def swish(self, x, name):
        return self.op("Mul", [x, self.op("Sigmoid", [x], f"{name}.sigmoid")], name)

    def relu(self, x, name):
        return self.op("Relu", [x], name)

    def classify(self, x, name, channels, classes):
        pooled = self.op("GlobalAveragePool", [x], f"{name}.pool")
        flat = self.op("Flatten", [pooled], f"{name}.flat")
        w, bias = self.normal(f"{name}.weight", classes, channels, scale=0.2), self.normal(f"{name}.bias", classes)
        return self.op("Gemm", [flat, w, bias], name, transB=1)


IMAGE = [info("image", FLOAT, ["batch", 3, "height", "width"])]


def images(batch, length):
    size = 32 * (1 + length % 2)
    return {"image": normal(batch, batch, 3, size, size)}


def resnet():
    b = Net(1)
    x = b.relu(b.conv_norm("image", "stem", 3, 16, kernel=7, stride=2), "stem.relu")
    x = b.op("MaxPool", [x], "stem.pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = 16
    for i, (inner, stride) in enumerate([(8, 1), (8, 1), (16, 2), (16, 1)]):
        name, wide = f"block{i}", inner * 4
        y = b.relu(b.conv_norm(x, f"{name}.1", channels, inner, kernel=1), f"{name}.1.relu")
        y = b.relu(b.conv_norm(y, f"{name}.2", inner, inner, stride=stride), f"{name}.2.relu")
        y = b.conv_norm(y, f"{name}.3", inner, wide, kernel=1)
        if stride != 1 or channels != wide:
            x = b.conv_norm(x, f"{name}.short", channels, wide, kernel=1, stride=stride)
        x, channels = b.relu(b.op("Add", [y, x], f"{name}.sum"), f"{name}.relu"), wide
    b.classify(x, "scores", channels, 10)
    return graph(b, "resnet", IMAGE, [info("scores", FLOAT, ["batch", 10])])


def mobilenet():
    b = Net(2)

    def clipped(x, name):
        return b.op("Clip", [x, b.scalar(0), b.scalar(6)], name)

    x, channels = clipped(b.conv_norm("image", "stem", 3, 16, stride=2), "stem.relu6"), 16
    for i, (out, stride) in enumerate([(16, 1), (24, 2), (24, 1)]):
        name, wide = f"block{i}", channels * 6
        y = clipped(b.conv_norm(x, f"{name}.up", channels, wide, kernel=1), f"{name}.up.relu6")
        y = clipped(b.conv_norm(y, f"{name}.deep", wide, wide, stride=stride, group=wide), f"{name}.deep.relu6")
        y = b.conv_norm(y, f"{name}.down", wide, out, kernel=1)
        x, channels = b.op("Add", [x, y], f"{name}.sum") if stride == 1 and channels == out else y, out
    b.classify(x, "scores", channels, 10)
    return graph(b, "mobilenet", IMAGE, [info("scores", FLOAT, ["batch", 10])])


def efficientnet():
    """Depthwise 5x5, squeeze and excitation, swish."""
    b = Net(3)
    x = b.swish(b.conv_norm("image", "stem", 3, 16, stride=2), "stem.swish")
    for i in range(2):
        name = f"block{i}"
        y = b.swish(b.conv_norm(x, f"{name}.up", 16, 64, kernel=1), f"{name}.up.swish")
        y = b.swish(b.conv_norm(y, f"{name}.deep", 64, 64, kernel=5, group=64), f"{name}.deep.swish")
        s = b.op("ReduceMean", [y], f"{name}.squeeze", axes=[2, 3], keepdims=1)
        s = b.swish(b.conv(s, f"{name}.reduce", 64, 4, kernel=1), f"{name}.reduce.swish")
        s = b.op("Sigmoid", [b.conv(s, f"{name}.expand", 4, 64, kernel=1)], f"{name}.gate")
        y = b.conv_norm(b.op("Mul", [s, y], f"{name}.excited"), f"{name}.down", 64, 16, kernel=1)
        x = b.op("Add", [x, y], f"{name}.sum")
    b.classify(x, "scores", 16, 10)
    return graph(b, "efficientnet", IMAGE, [info("scores", FLOAT, ["batch", 10])])


def unet():
    """Down, up by transposed convolution and by bilinear resize, joined with what was before."""
    b = Net(4)
    one = b.relu(b.conv_norm("image", "down1", 3, 8), "down1.relu")
    half = b.op("MaxPool", [one], "pool1", kernel_shape=[2, 2], strides=[2, 2])
    two = b.relu(b.conv_norm(half, "down2", 8, 16), "down2.relu")
    quarter = b.op("AveragePool", [two], "pool2", kernel_shape=[2, 2], strides=[2, 2])
    low = b.relu(b.conv_norm(quarter, "low", 16, 16), "low.relu")
    w = b.normal("up1.weight", 16, 16, 2, 2, scale=0.2)
    up = b.op("ConvTranspose", [low, w, b.normal("up1.bias", 16)], "up1", kernel_shape=[2, 2], strides=[2, 2])
    joined = b.op("Concat", [up, two], "join1", axis=1)
    x = b.relu(b.conv_norm(joined, "mid", 32, 8), "mid.relu")
    scales = b.constant(np.array([1, 1, 2, 2], np.float32))
    x = b.op("Resize", [x, "", scales], "up2", mode="linear", coordinate_transformation_mode="half_pixel")
    x = b.op("InstanceNormalization", [b.op("Concat", [x, one], "join2", axis=1),
                                       b.normal("in.gain", 16), b.normal("in.bias", 16)], "norm")  # fmt: skip
    b.op("Softmax", [b.conv(x, "mask", 16, 4, kernel=1)], "classes", axis=1)
    return graph(b, "unet", IMAGE, [info("classes", FLOAT, ["batch", 4, "height", "width"])])


def yolo():
    """Two scales, boxes from a grid, then non-maximum suppression."""
    b = Net(5)
    x = b.swish(b.conv_norm("image", "stem", 3, 16, stride=2), "stem.swish")
    fine = b.swish(b.conv_norm(x, "fine", 16, 16, stride=2), "fine.swish")
    coarse = b.swish(b.conv_norm(fine, "coarse", 16, 16, stride=2), "coarse.swish")
    pooled = b.op("MaxPool", [coarse], "spp", kernel_shape=[5, 5], pads=[2] * 4, strides=[1, 1])
    coarse = b.op("Concat", [coarse, pooled], "spp.joined", axis=1)
    coarse = b.swish(b.conv_norm(coarse, "spp.out", 32, 16, kernel=1), "spp.swish")
    scales = b.constant(np.array([1, 1, 2, 2], np.float32))
    up = b.op("Resize", [coarse, "", scales], "up", mode="nearest", nearest_mode="floor",
              coordinate_transformation_mode="asymmetric")  # fmt: skip
    fine = b.conv(b.op("Concat", [fine, up], "neck", axis=1), "head.fine", 32, 7, kernel=1)
    coarse = b.conv(coarse, "head.coarse", 16, 7, kernel=1)
    flat = [b.op("Reshape", [head, b.ints(0, 7, -1)], f"{head}.flat") for head in (fine, coarse)]
    found = b.op("Concat", flat, "heads", axis=2)
    place, kinds = b.op("Split", [found, b.ints(4, 3)], "split", outputs=2, axis=1)
    middle, size = b.op("Split", [b.op("Sigmoid", [place], "place"), b.ints(2, 2)], "place.split", outputs=2, axis=1)
    half = b.op("Div", [size, b.scalar(2)], "half")
    corners = b.op("Concat", [b.op("Sub", [middle, half], "from"), b.op("Add", [middle, half], "to")], "corners", axis=1)
    boxes = b.op("Transpose", [corners], "boxes", perm=[0, 2, 1])
    scores = b.op("Sigmoid", [kinds], "scores")
    b.op("NonMaxSuppression", [boxes, scores, b.ints(20), b.scalar(0.5), b.scalar(0.6)], "selected")
    return graph(b, "yolo", IMAGE, [
        info("boxes", FLOAT, ["batch", "places", 4]),
        info("scores", FLOAT, ["batch", 3, "places"]),
        info("selected", INT64, ["found", 3]),
    ])  # fmt: skip


def vit():
    """Patches by convolution, a class token, encoder layers with LayerNormalization as one node."""
    b = Net(6)
    width, heads = 32, 4
    patches = b.op("Conv", ["image", b.normal("patch.weight", width, 3, 8, 8, scale=0.1)], "patch",
                   kernel_shape=[8, 8], strides=[8, 8])  # fmt: skip
    flat = b.op("Transpose", [b.op("Reshape", [patches, b.ints(0, width, -1)], "patch.flat")], "tokens", perm=[0, 2, 1])
    batch = b.dimension("image", 0, "batch")
    token = b.normal("class.token", 1, 1, width)
    first = b.op("Expand", [token, b.op("Concat", [batch, b.ints(1, 1)], "class.shape", axis=0)], "class")
    x = b.op("Concat", [first, flat], "sequence", axis=1)
    for i in range(2):
        name = f"layer{i}"
        gain, bias = b.normal(f"{name}.gain", width), b.normal(f"{name}.bias", width)
        normed = b.op("LayerNormalization", [x, gain, bias], f"{name}.norm", axis=-1, epsilon=1e-6)
        attended = b.attention(normed, b.scalar(0), f"{name}.attention", width, heads)
        x = b.op("Add", [x, attended], f"{name}.sum1")
        inner = b.gelu(b.linear(x, f"{name}.up", width, 64), f"{name}.gelu")
        x = b.op("Add", [x, b.linear(inner, f"{name}.down", 64, width)], f"{name}.sum2")
    top = b.op("Gather", [x, b.constant(np.array(0, np.int64))], "top", axis=1)
    b.linear(top, "scores", width, 10)
    return graph(b, "vit", IMAGE, [info("scores", FLOAT, ["batch", 10])])


def gpt2(cached):
    """Causal attention, fused query-key-value projection, tanh GELU; with or without cache inputs."""
    b = Builder(7)
    width, heads, vocabulary = 32, 4, 100
    head = width // heads
    past = b.dimension("past_key0", 2, "past") if cached else b.ints(0)
    new = b.dimension("input_ids", 1, "new")
    total = b.op("Add", [past, new], "total")
    places = b.op("Range", [b.op("Squeeze", [past], "past.scalar"), b.op("Squeeze", [total], "total.scalar"),
                            b.constant(np.array(1, np.int64))], "places")  # fmt: skip
    table = b.normal("token.weight", vocabulary, width, scale=0.5)
    embedded = b.op("Gather", [table, "input_ids"], "tokens")
    x = b.op("Add", [embedded, b.op("Gather", [b.normal("place.weight", 64, width, scale=0.1), places], "placed")], "sum")
    # Row i of the mask sees the columns up to past + i.
    row = b.op("Unsqueeze", [places, b.ints(1)], "row")
    every = b.op("Range", [b.constant(np.array(0, np.int64)), "total.scalar", b.constant(np.array(1, np.int64))], "every")
    seen = b.op("LessOrEqual", [b.op("Unsqueeze", [every, b.ints(0)], "column"), row], "seen")
    outputs, inputs = [], [info("input_ids", INT64, ["batch", "new"])]
    for i in range(2):
        name = f"layer{i}"
        normed = b.layer_norm(x, f"{name}.norm1", width)
        together = b.linear(normed, f"{name}.qkv", width, 3 * width)
        parts = b.op("Split", [together, b.ints(width, width, width)], f"{name}.split", outputs=3, axis=2)
        q, k, v = (
            b.op("Transpose", [b.op("Reshape", [part, b.ints(0, 0, heads, head)], f"{part}.heads")], f"{part}.turned",
                 perm=[0, 2, 1, 3]) for part in parts
        )  # fmt: skip
        if cached:
            k = b.op("Concat", [f"past_key{i}", k], f"key{i}", axis=2)
            v = b.op("Concat", [f"past_value{i}", v], f"value{i}", axis=2)
            for kind in ("key", "value"):
                inputs.append(info(f"past_{kind}{i}", FLOAT, ["batch", heads, "past", head]))
                outputs.append(info(f"{kind}{i}", FLOAT, ["batch", heads, "total", head]))
        scores = b.op("MatMul", [q, b.op("Transpose", [k], f"{name}.k", perm=[0, 1, 3, 2])], f"{name}.scores")
        scores = b.op("Div", [scores, b.scalar(head**0.5)], f"{name}.scaled")
        scores = b.op("Where", [seen, scores, b.scalar(-3.4028235e38)], f"{name}.masked")
        weights = b.op("Softmax", [scores], f"{name}.weights", axis=-1)
        mixed = b.op("Transpose", [b.op("MatMul", [weights, v], f"{name}.mixed")], f"{name}.mixed.turned", perm=[0, 2, 1, 3])
        flat = b.op("Reshape", [mixed, b.ints(0, 0, width)], f"{name}.flat")
        x = b.op("Add", [x, b.linear(flat, f"{name}.out", width, width)], f"{name}.sum1")
        y = b.linear(b.layer_norm(x, f"{name}.norm2", width), f"{name}.up", width, 64)
        cube = b.op("Mul", [b.op("Pow", [y, b.scalar(3)], f"{name}.cube"), b.scalar(0.044715)], f"{name}.cubed")
        inner = b.op("Mul", [b.op("Add", [y, cube], f"{name}.inner"), b.scalar((2 / np.pi) ** 0.5)], f"{name}.argument")
        gate = b.op("Add", [b.op("Tanh", [inner], f"{name}.tanh"), b.scalar(1)], f"{name}.gate")
        y = b.op("Mul", [b.op("Mul", [y, b.scalar(0.5)], f"{name}.half"), gate], f"{name}.gelu")
        x = b.op("Add", [x, b.linear(y, f"{name}.down", 64, width)], f"{name}.sum2")
    turned = b.op("Transpose", [table], "token.turned", perm=[1, 0])
    b.op("MatMul", [b.layer_norm(x, "norm", width), turned], "logits")
    outputs.insert(0, info("logits", FLOAT, ["batch", "new", vocabulary]))
    return graph(b, "gpt2", inputs, outputs)


def gpt2_cache(batch, length):
    past = {f"past_{kind}{i}": normal(i, batch, 4, length, 8) for i in range(2) for kind in ("key", "value")}
    return {"input_ids": ids(batch, 100, batch, 1), **past}


def t5():
    """RMS norms by formula, no scale in attention, a relative position bias from buckets."""
    b = Builder(8)
    width, heads = 32, 4
    head = width // heads
    x = b.op("Gather", [b.normal("token.weight", 100, width, scale=0.5), "input_ids"], "tokens")
    size = b.op("Squeeze", [b.dimension("input_ids", 1, "length")], "length.scalar")
    zero, one = (b.constant(np.array(n, np.int64)) for n in (0, 1))
    places = b.op("Range", [zero, size, one], "places")
    distance = b.op("Sub", [b.op("Unsqueeze", [places, b.ints(0)], "column"), b.op("Unsqueeze", [places, b.ints(1)], "row")],
                    "distance")  # fmt: skip
    right = b.op("Mul", [b.op("Cast", [b.op("Greater", [distance, zero], "right"), ], "right.int", to=INT64),
                         b.constant(np.array(8, np.int64))], "right.offset")  # fmt: skip
    gap = b.op("Abs", [distance], "gap")
    real = b.op("Cast", [b.op("Max", [gap, one], "gap.positive")], "gap.real", to=FLOAT)
    far = b.op("Mul", [b.op("Log", [b.op("Div", [real, b.scalar(4)], "gap.ratio")], "gap.log"), b.scalar(2.0)], "far.real")
    far = b.op("Add", [b.op("Cast", [far], "far", to=INT64), b.constant(np.array(4, np.int64))], "far.bucket")
    far = b.op("Min", [far, b.constant(np.array(7, np.int64))], "far.capped")
    near = b.op("Less", [gap, b.constant(np.array(4, np.int64))], "near")
    bucket = b.op("Add", [b.op("Where", [near, gap, far], "bucket.side"), right], "bucket")
    bias = b.op("Gather", [b.normal("bias.weight", 16, heads, scale=0.5), bucket], "bias.last")
    bias = b.op("Unsqueeze", [b.op("Transpose", [bias], "bias.first", perm=[2, 0, 1]), b.ints(0)], "bias")

    def norm(x, name):
        square = b.op("ReduceMean", [b.op("Pow", [x, b.scalar(2)], f"{name}.square")], f"{name}.mean", axes=[-1], keepdims=1)
        root = b.op("Sqrt", [b.op("Add", [square, b.scalar(1e-6)], f"{name}.shifted")], f"{name}.root")
        scaled = b.op("Mul", [x, b.op("Reciprocal", [root], f"{name}.inverse")], f"{name}.scaled")
        return b.op("Mul", [b.normal(f"{name}.gain", width), scaled], name)

    for i in range(2):
        name = f"layer{i}"
        normed = norm(x, f"{name}.norm1")
        parts = []
        for part in ("q", "k", "v"):
            flat = b.op("MatMul", [normed, b.normal(f"{name}.{part}.weight", width, width)], f"{name}.{part}")
            heads_ = b.op("Reshape", [flat, b.ints(0, -1, heads, head)], f"{name}.{part}.heads")
            parts.append(b.op("Transpose", [heads_], f"{name}.{part}.turned", perm=[0, 2, 3, 1] if part == "k" else [0, 2, 1, 3]))
        scores = b.op("Add", [b.op("MatMul", parts[:2], f"{name}.scores"), bias], f"{name}.biased")
        mixed = b.op("MatMul", [b.op("Softmax", [scores], f"{name}.weights", axis=-1), parts[2]], f"{name}.mixed")
        flat = b.op("Reshape", [b.op("Transpose", [mixed], f"{name}.mixed.turned", perm=[0, 2, 1, 3]),
                                b.ints(0, -1, width)], f"{name}.flat")  # fmt: skip
        out = b.op("MatMul", [flat, b.normal(f"{name}.o.weight", width, width)], f"{name}.o")
        x = b.op("Add", [x, out], f"{name}.sum1")
        inner = b.op("MatMul", [norm(x, f"{name}.norm2"), b.normal(f"{name}.wi", width, 64)], f"{name}.up")
        down = b.op("MatMul", [b.op("Relu", [inner], f"{name}.relu"), b.normal(f"{name}.wo", 64, width)], f"{name}.down")
        x = b.op("Add", [x, down], f"{name}.sum2")
    norm(x, "states")
    return graph(b, "t5", [info("input_ids", INT64, ["batch", "length"])], [info("states", FLOAT, ["batch", "length", width])])


def whisper():
    """Two one-dimensional convolutions over a spectrogram, then encoder layers."""
    b = Builder(9)
    width = 32
    x = "mel"
    for i, stride in enumerate((1, 2)):
        w = b.normal(f"conv{i}.weight", width, 16 if i == 0 else width, 3, scale=0.15)
        x = b.op("Conv", [x, w, b.normal(f"conv{i}.bias", width, scale=0.1)], f"conv{i}", kernel_shape=[3], pads=[1, 1],
                 strides=[stride])  # fmt: skip
        x = b.gelu(x, f"conv{i}.gelu")
    x = b.op("Transpose", [x], "frames", perm=[0, 2, 1])
    for i in range(2):
        name = f"layer{i}"
        attended = b.attention(b.layer_norm(x, f"{name}.norm1", width), b.scalar(0), f"{name}.attention", width, 4)
        x = b.op("Add", [x, attended], f"{name}.sum1")
        y = b.gelu(b.linear(b.layer_norm(x, f"{name}.norm2", width), f"{name}.up", width, 64), f"{name}.gelu")
        x = b.op("Add", [x, b.linear(y, f"{name}.down", 64, width)], f"{name}.sum2")
    b.layer_norm(x, "states", width)
    return graph(b, "whisper", [info("mel", FLOAT, ["batch", 16, "time"])], [info("states", FLOAT, ["batch", "frames", width])])


def lstm():
    """Bidirectional LSTM, then a GRU, over sequences of any length."""
    b = Builder(10)
    width, hidden = 8, 12
    x = b.op("Transpose", ["signal"], "by_time", perm=[1, 0, 2])
    w, r = b.normal("lstm.w", 2, 4 * hidden, width, scale=0.3), b.normal("lstm.r", 2, 4 * hidden, hidden, scale=0.3)
    y, h, c = b.op("LSTM", [x, w, r, b.normal("lstm.b", 2, 8 * hidden, scale=0.1)], "lstm", outputs=3, hidden_size=hidden,
                   direction="bidirectional")  # fmt: skip
    flat = b.op("Reshape", [b.op("Transpose", [y], "lstm.turned", perm=[0, 2, 1, 3]), b.ints(0, 0, 2 * hidden)], "lstm.flat")
    w, r = b.normal("gru.w", 1, 3 * hidden, 2 * hidden, scale=0.2), b.normal("gru.r", 1, 3 * hidden, hidden, scale=0.3)
    _, last = b.op("GRU", [flat, w, r, b.normal("gru.b", 1, 6 * hidden, scale=0.1)], "gru", outputs=2, hidden_size=hidden,
                   linear_before_reset=1)  # fmt: skip
    b.op("Squeeze", [last, b.ints(0)], "state")
    b.op("Identity", [c], "cells")
    return graph(b, "lstm", [info("signal", FLOAT, ["batch", "time", width])],
                 [info("state", FLOAT, ["batch", hidden]), info("cells", FLOAT, [2, "batch", hidden])])  # fmt: skip


def architectures():
    """Every architecture, with inputs for a batch and a length."""
    tokens = lambda batch, length: {"input_ids": ids(length, 100, batch, length)}  # noqa: E731
    return [
        Architecture("resnet", model(resnet()), images),
        Architecture("mobilenet", model(mobilenet()), images),
        Architecture("efficientnet", model(efficientnet()), images),
        Architecture("unet", model(unet()), images),
        Architecture("yolo", model(yolo()), images),
        Architecture("vit", model(vit()), images),
        Architecture("bert", model(encoder(), 14), lambda batch, length: {
            "input_ids": ids(length, 512, batch, length), "attention_mask": np.tri(batch, length, length - 1, dtype=np.int64)}),
        Architecture("gpt2", model(gpt2(False)), tokens),
        Architecture("gpt2_cache", model(gpt2(True)), gpt2_cache),
        Architecture("t5", model(t5()), tokens),
        Architecture("whisper", model(whisper()), lambda batch, length: {"mel": normal(length, batch, 16, 8 * length)}),
        Architecture("lstm", model(lstm()), lambda batch, length: {"signal": normal(length, batch, length, 8)}),
    ]  # fmt: skip
