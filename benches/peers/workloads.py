"""The workloads: the one table of what is measured, and what each takes as input.

A workload is a model of a folder as `prepare.py` makes it, and inputs from a fixed seed. It names no
precision: that is the peer's.
"""

from dataclasses import dataclass

import numpy as np

SEED = 2051
# Words of a vocabulary that every text model here has.
WORDS = (5, 30000)


@dataclass(frozen=True)
class Workload:
    """A model on inputs. One run answers all of `feeds`."""

    name: str
    # The folder of the model, and for torch its entry in scripts/architectures/models.py.
    model: str
    group: str
    batch: int
    # Gives the inputs as a list of texts' token lengths, or of one feed: {input: array}.
    feeds: object
    # Lengths of single texts: peers may group, sort and pad them as suits them best.
    texts: tuple = ()


def random():
    return np.random.default_rng(SEED)


def floats(name, *shape):
    return lambda: [{name: random().standard_normal(shape, dtype=np.float32)}]


def tokens(batch, length, mask=True):
    def feeds():
        feed = {"input_ids": random().integers(*WORDS, (batch, length))}
        return [feed | {"attention_mask": np.ones((batch, length), np.int64)} if mask else feed]

    return feeds


def heads(length, count=12, width=64):
    """Queries, keys and values of one attention."""

    def feeds():
        rng = random()
        return [{name: rng.standard_normal((1, count, length, width), dtype=np.float32) for name in "qkv"}]

    return feeds


def rows(size):
    return lambda: [{"a": np.random.default_rng(SEED + 1).standard_normal((size, size), dtype=np.float32)}]


def square(size):
    """The weights of product_SIZE."""
    return random().standard_normal((size, size), dtype=np.float32)


def texts(lengths, group):
    """Feeds of `group` texts each, sorted by length and padded to the longest of the group."""
    rng, feeds = random(), []
    lengths = sorted(lengths)
    for start in range(0, len(lengths), group):
        part = lengths[start : start + group]
        ids, mask = (np.zeros((len(part), part[-1]), np.int64) for _ in range(2))
        for row, length in enumerate(part):
            ids[row, :length], mask[row, :length] = rng.integers(*WORDS, length), 1
        feeds.append({"input_ids": ids, "attention_mask": mask})
    return feeds


# 32 lengths from 5 to 128 tokens.
MIXED = tuple(int(length) for length in random().integers(5, 129, 32))
# Texts answered together; which is best depends on the program, and is found out for each.
GROUPS = (1, 2, 4, 8, 16, 32)


def image(name, model, batch, side=224, group="vision"):
    return Workload(name, model, group, batch, floats("image", batch, 3, side, side))


WORKLOADS = [
    image("resnet50_b1", "resnet50", 1),
    image("resnet50_b8", "resnet50", 8),
    image("mobilenet_v2_b1", "mobilenet_v2", 1),
    image("mobilenet_v2_b8", "mobilenet_v2", 8),
    image("efficientnet_b0_b1", "efficientnet_b0", 1),
    image("vit_base_b1", "vit_base", 1),
    image("unet_256_b1", "unet_256", 1, 256),
    image("yolo_640_b1", "yolo_640", 1, 640),
    Workload("bert_base_s128_b1", "bert_base", "text", 1, tokens(1, 128)),
    Workload("bert_base_s128_b8", "bert_base", "text", 8, tokens(8, 128)),
    Workload("bert_base_s384_b1", "bert_base", "text", 1, tokens(1, 384)),
    Workload("minilm_s128_b8", "minilm", "text", 8, tokens(8, 128)),
    Workload("minilm_mixed_32", "minilm", "text", 32, lambda: texts(MIXED, 1), texts=MIXED),
    Workload("gpt2_prefill_s512_b1", "gpt2_prefill", "text", 1, tokens(1, 512, mask=False)),
    Workload("t5_encoder_s128_b1", "t5_encoder", "text", 1, tokens(1, 128, mask=False)),
    Workload("whisper_encoder_b1", "whisper_encoder", "text", 1, floats("mel", 1, 80, 3000)),
    *(Workload(f"product_{n}", f"product_{n}", "product", 1, rows(n)) for n in (512, 1024, 2048)),
    *(
        Workload(f"attention_{kind}_s{n}", f"attention_{kind}", "attention", 1, heads(n))
        for kind in ("full", "causal")
        for n in (128, 512, 2048)
    ),
]
BY_NAME = {workload.name: workload for workload in WORKLOADS}
GROUPS_OF_WORKLOADS = tuple(dict.fromkeys(workload.group for workload in WORKLOADS))


def adhoc(entry):
    """A workload of a file: FILE.onnx@input=1x3x224x224,other=i64:1x128. Integers are ones."""
    path, _, given = entry.partition("@")
    shapes = dict(pair.split("=") for pair in given.split(",") if pair)

    def feeds():
        rng, feed = random(), {}
        for name, spec in shapes.items():
            kind, _, dims = spec.rpartition(":")
            shape = [int(dim) for dim in dims.split("x")]
            whole = {"i64": np.int64, "i32": np.int32}.get(kind)
            feed[name] = np.ones(shape, whole) if whole else rng.standard_normal(shape, dtype=np.float32)
        return [feed]

    return Workload(entry, path, "files", 1, feeds)
