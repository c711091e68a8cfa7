"""Train the handwritten-digit classifier of the example repository.

A small convolutional network on scikit-learn's digits (1,797 images of 8x8
pixels, values 0 to 16), trained with plain NumPy from a fixed seed:

    Conv 3x3, 16 -> Relu -> Conv 3x3, 32 -> Relu -> MaxPool 2 -> Gemm 64 -> Relu -> Gemm 10 -> Softmax

Every fifth image is held back. They are saved beside the model, so that the
accuracy can be checked without scikit-learn.

    python examples/scripts/train_digits.py
"""

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits

EXAMPLES = Path(__file__).resolve().parent.parent
SEED = 2051
EPOCHS = 60
BATCH = 64
LEARNING_RATE = 1e-3


def patches(x, pad):
    """im2col for a 3x3 kernel: [N, C, H, W] to [N, H, W, C * 9]."""
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))
    n, c, h, w = windows.shape[:4]
    return windows.transpose(0, 2, 3, 1, 4, 5).reshape(n, h, w, c * 9)


class Conv:
    """3x3 convolution, stride 1, padding 1, followed by Relu."""

    def __init__(self, rng, channels_in, channels_out):
        scale = np.sqrt(2.0 / (channels_in * 9))
        self.w = rng.normal(0, scale, (channels_out, channels_in * 9)).astype(np.float32)
        self.b = np.zeros(channels_out, np.float32)

    def forward(self, x):
        self.columns = patches(x, 1)
        self.y = np.maximum(self.columns @ self.w.T + self.b, 0)
        return self.y.transpose(0, 3, 1, 2)

    def backward(self, grad):
        grad = grad.transpose(0, 2, 3, 1) * (self.y > 0)
        channels_out = grad.shape[-1]
        flat = grad.reshape(-1, channels_out)
        self.grads = [flat.T @ self.columns.reshape(len(flat), -1), flat.sum(0)]
        # The gradient of a convolution is the convolution with the kernel turned by 180 degrees.
        turned = self.w.reshape(channels_out, -1, 9)[:, :, ::-1].transpose(1, 0, 2).reshape(-1, channels_out * 9)
        return (patches(grad.transpose(0, 3, 1, 2), 1) @ turned.T).transpose(0, 3, 1, 2)

    @property
    def params(self):
        return [self.w, self.b]


class MaxPool:
    """2x2 maximum, stride 2. Equal maxima share the gradient."""

    params = grads = ()

    def forward(self, x):
        n, c, h, w = x.shape
        self.tiles = x.reshape(n, c, h // 2, 2, w // 2, 2)
        self.y = self.tiles.max((3, 5), keepdims=True)
        return self.y[:, :, :, 0, :, 0]

    def backward(self, grad):
        hit = self.tiles == self.y
        share = hit / hit.sum((3, 5), keepdims=True)
        n, c, h, _, w, _ = self.tiles.shape
        return (share * grad[:, :, :, None, :, None]).reshape(n, c, h * 2, w * 2).astype(np.float32)


class Dense:
    """x @ w.T + b on flattened input, with an optional Relu."""

    def __init__(self, rng, features_in, features_out, relu):
        self.w = rng.normal(0, np.sqrt(2.0 / features_in), (features_out, features_in)).astype(np.float32)
        self.b = np.zeros(features_out, np.float32)
        self.relu = relu

    def forward(self, x):
        self.shape = x.shape
        self.x = x.reshape(len(x), -1)
        self.y = self.x @ self.w.T + self.b
        if self.relu:
            self.y = np.maximum(self.y, 0)
        return self.y

    def backward(self, grad):
        if self.relu:
            grad = grad * (self.y > 0)
        self.grads = [grad.T @ self.x, grad.sum(0)]
        return (grad @ self.w).reshape(self.shape)

    @property
    def params(self):
        return [self.w, self.b]


def forward(layers, x):
    for layer in layers:
        x = layer.forward(x)
    return x


def shifted(rng, x):
    """Each image moved by at most one pixel in both directions."""
    out = np.zeros_like(x)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    for i, (dy, dx) in enumerate(rng.integers(0, 3, (len(x), 2))):
        out[i] = padded[i, :, dy : dy + 8, dx : dx + 8]
    return out


def train(x, y):
    """Adam on the cross entropy, the rate falling to zero along a cosine."""
    rng = np.random.default_rng(SEED)
    layers = [Conv(rng, 1, 16), Conv(rng, 16, 32), MaxPool(), Dense(rng, 512, 64, True), Dense(rng, 64, 10, False)]
    moments = [[(np.zeros_like(p), np.zeros_like(p)) for p in layer.params] for layer in layers]
    steps = EPOCHS * (len(x) // BATCH)
    step = 0
    for epoch in range(EPOCHS):
        order = rng.permutation(len(x))
        for start in range(0, len(x) - BATCH + 1, BATCH):
            step += 1
            pick = order[start : start + BATCH]
            logits = forward(layers, shifted(rng, x[pick]))
            logits = logits - logits.max(1, keepdims=True)
            loss = np.log(np.exp(logits).sum(1)) - logits[np.arange(BATCH), y[pick]]
            grad = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
            grad[np.arange(BATCH), y[pick]] -= 1
            grad /= BATCH
            for layer in reversed(layers):
                grad = layer.backward(grad)
            rate = LEARNING_RATE * 0.5 * (1 + np.cos(np.pi * step / steps))
            for layer, states in zip(layers, moments):
                for p, g, (m, v) in zip(layer.params, layer.grads, states):
                    m += 0.1 * (g - m)
                    v += 0.001 * (g * g - v)
                    p -= rate * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
        if epoch % 10 == 9:
            print(f"epoch {epoch + 1}: loss of the last batch {loss.mean():.4f}")
    return layers


def export(layers, path):
    """Write the trained network as ONNX: image [batch, 1, 8, 8] to scores [batch, 10]."""
    conv1, conv2, _, dense1, dense2 = layers
    weights = {
        "conv1.weight": conv1.w.reshape(16, 1, 3, 3),
        "conv1.bias": conv1.b,
        "conv2.weight": conv2.w.reshape(32, 16, 3, 3),
        "conv2.bias": conv2.b,
        "dense1.weight": dense1.w,
        "dense1.bias": dense1.b,
        "dense2.weight": dense2.w,
        "dense2.bias": dense2.b,
    }
    conv = dict(kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    nodes = [
        helper.make_node("Conv", ["image", "conv1.weight", "conv1.bias"], ["c1"], "conv1", **conv),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("Conv", ["r1", "conv2.weight", "conv2.bias"], ["c2"], "conv2", **conv),
        helper.make_node("Relu", ["c2"], ["r2"], "relu2"),
        helper.make_node("MaxPool", ["r2"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "dense1.weight", "dense1.bias"], ["d1"], "dense1", transB=1),
        helper.make_node("Relu", ["d1"], ["r3"], "relu3"),
        helper.make_node("Gemm", ["r3", "dense2.weight", "dense2.bias"], ["logits"], "dense2", transB=1),
        helper.make_node("Softmax", ["logits"], ["scores"], "softmax", axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(np.ascontiguousarray(w), name) for name, w in weights.items()],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="halimede-examples"
    )
    onnx.checker.check_model(model, full_check=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)


def main():
    digits = load_digits()
    images = digits.images.astype(np.uint8)
    labels = digits.target.astype(np.uint8)
    held_back = np.arange(len(images)) % 5 == 4
    x = (images / 16.0).astype(np.float32)[:, None]

    layers = train(x[~held_back], labels[~held_back])
    guess = forward(layers, x[held_back]).argmax(1)
    accuracy = float((guess == labels[held_back]).mean())

    export(layers, EXAMPLES / "repository" / "digits_classifier" / "1" / "model.onnx")
    data = EXAMPLES / "data"
    data.mkdir(exist_ok=True)
    np.savez_compressed(data / "digits_held_back.npz", images=images[held_back], labels=labels[held_back])
    summary = {
        "data": "scikit-learn's digits; every fifth image held back",
        "training_images": int((~held_back).sum()),
        "held_back_images": int(held_back.sum()),
        "held_back_accuracy": round(accuracy, 4),
    }
    (data / "digits.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
