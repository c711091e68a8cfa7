"""Real architectures with random weights from a fixed seed. Nothing is downloaded: configurations are written out here."""

from dataclasses import dataclass

import numpy as np
import torch
import torchvision
import transformers as hf
from torch import nn
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

SEED = 2051


@dataclass
class Case:
    """A module, its input names and dynamic axes, and inputs for a batch and a length."""

    build: object
    # Input name: {axis: name of the dimension}.
    inputs: dict
    outputs: list
    # (batch, length) to a list of tensors.
    example: object
    # The lengths to compare at; the export traces with other sizes.
    lengths: tuple = (16, 48)


def seeded(build):
    torch.manual_seed(SEED)
    return build().eval()


def rows(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def ids(seed, vocabulary, *shape):
    return torch.randint(5, vocabulary, shape, generator=torch.Generator().manual_seed(seed))


class Only(nn.Module):
    """Calls a Hugging Face model and keeps what `pick` takes from its output."""

    def __init__(self, model, names, pick, **options):
        super().__init__()
        self.model, self.names, self.pick, self.options = model, names, pick, options

    def forward(self, *tensors):
        return self.pick(self.model(**dict(zip(self.names, tensors)), **self.options))


def trained_statistics(model):
    """Batch norms get the statistics of real activations, so that values stay in range through the depth."""
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    model.train()
    for norm in norms:
        norm.momentum = None
    with torch.no_grad():
        for i in range(3):
            model(rows(i, 4, 3, 224, 224))
    return model.eval()


def image(batch, length):
    return [rows(batch + length, batch, 3, 224, 224)]


def vision(name):
    def build():
        return trained_statistics(getattr(torchvision.models, name)(weights=None))

    return Case(lambda: seeded(build), {"image": {0: "batch"}}, ["scores"], image, lengths=(1,))


class UNet(nn.Module):
    """The U-Net of the paper, with half of its channels and with padding."""

    def __init__(self, channels=32, depth=4):
        super().__init__()

        def double(i, o):
            return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(),
                                 nn.Conv2d(o, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU())  # fmt: skip

        sizes = [channels * 2**i for i in range(depth + 1)]
        self.down = nn.ModuleList(double(i, o) for i, o in zip([3, *sizes], sizes))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in zip(sizes, sizes[1:]))
        self.join = nn.ModuleList(double(2 * a, a) for a in sizes[:-1])
        self.out = nn.Conv2d(channels, 4, 1)

    def forward(self, x):
        kept = []
        for level in self.down[:-1]:
            x = level(x)
            kept.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = self.down[-1](x)
        for up, join, before in reversed(list(zip(self.up, self.join, kept))):
            x = join(torch.cat([up(x), before], 1))
        return self.out(x)


class Yolo(nn.Module):
    """A YOLO-shaped detector: CSP blocks, spatial pyramid pooling, two-way neck, three heads, decoded boxes."""

    def __init__(self, width=32, classes=20, suppress=True):
        super().__init__()
        self.classes, self.suppress = classes, suppress
        w = [width, width * 2, width * 4, width * 8, width * 16]
        self.stem = self.conv(3, w[0], 3, 2)
        self.stages = nn.ModuleList(
            nn.Sequential(self.conv(i, o, 3, 2), Split(o, self.conv)) for i, o in zip(w, w[1:])
        )
        self.pyramid = self.conv(w[4] * 4, w[4], 1)
        self.lateral = nn.ModuleList([self.conv(w[4], w[3], 1), self.conv(w[3], w[2], 1)])
        self.top_down = nn.ModuleList([Split(w[3] * 2, self.conv, w[3]), Split(w[2] * 2, self.conv, w[2])])
        self.heads = nn.ModuleList(nn.Conv2d(c, 5 + classes, 1) for c in (w[2], w[3], w[4]))

    @staticmethod
    def conv(i, o, kernel=1, stride=1):
        return nn.Sequential(nn.Conv2d(i, o, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(o), nn.SiLU())

    def forward(self, x):
        x = self.stem(x)
        levels = []
        for stage in self.stages:
            x = stage(x)
            levels.append(x)
        _, c3, c4, c5 = levels
        pools = [c5]
        for _ in range(3):
            pools.append(nn.functional.max_pool2d(pools[-1], 5, 1, 2))
        p5 = self.pyramid(torch.cat(pools, 1))
        p4 = self.top_down[0](torch.cat([nn.functional.interpolate(self.lateral[0](p5), scale_factor=2.0), c4], 1))
        p3 = self.top_down[1](torch.cat([nn.functional.interpolate(self.lateral[1](p4), scale_factor=2.0), c3], 1))
        # Random weights give nearly equal places; the factor spreads them.
        found = 4 * torch.cat([head(p).flatten(2) for head, p in zip(self.heads, (p3, p4, p5))], 2).transpose(1, 2)
        middle, size = found[..., :2].sigmoid(), found[..., 2:4].sigmoid() * 0.5
        boxes = torch.cat([middle - size / 2, middle + size / 2], -1)
        scores = found[..., 4:5].sigmoid() * found[..., 5:].sigmoid()
        if not self.suppress:
            return boxes, scores
        # Per image the boxes kept; torchvision's operator becomes NonMaxSuppression.
        best, _ = scores.max(-1)
        kept = torchvision.ops.nms(boxes[0], best[0], 0.5)
        return boxes, scores, kept


class Split(nn.Module):
    """Half of the channels through two bottlenecks, the other half past them."""

    def __init__(self, i, conv, o=None):
        super().__init__()
        o = o or i
        self.one, self.two = conv(i, o // 2), conv(i, o // 2)
        self.inner = nn.ModuleList(nn.Sequential(conv(o // 2, o // 2), conv(o // 2, o // 2, 3)) for _ in range(2))
        self.out = conv(o, o)

    def forward(self, x):
        y = self.one(x)
        for block in self.inner:
            y = y + block(y)
        return self.out(torch.cat([y, self.two(x)], 1))


def encoder(config):
    def build():
        config._attn_implementation = "sdpa"
        return Only(hf.BertModel(config), ["input_ids", "attention_mask"], lambda o: o.last_hidden_state)

    def example(batch, length):
        mask = torch.ones(batch, length, dtype=torch.int64)
        mask[-1, length // 2 :] = 0
        return [ids(length, 30522, batch, length), mask]

    both = {0: "batch", 1: "length"}
    return Case(lambda: seeded(build), {"input_ids": both, "attention_mask": both}, ["states"], example)


class Causal(nn.Module):
    """A decoder with its cache as plain inputs and outputs; `options` go to the model."""

    def __init__(self, model, **options):
        super().__init__()
        self.model, self.options = model, options

    def forward(self, input_ids, *past):
        cache = DynamicCache()
        for i in range(len(past) // 2):
            cache.update(past[2 * i], past[2 * i + 1], i)
        out = self.model(input_ids=input_ids, past_key_values=cache, use_cache=True, **self.options)
        return out.logits, *(t for layer in out.past_key_values.layers for t in (layer.keys, layer.values))


GPT2 = dict(vocab_size=50257, n_positions=1024, n_embd=768, n_layer=12, n_head=12)


def gpt2(cached, **options):
    def build():
        return Causal(hf.GPT2LMHeadModel(hf.GPT2Config(**GPT2, attn_implementation="sdpa")), **options)

    def example(batch, length):
        if not cached:
            return [ids(length, 50257, batch, length)]
        return [ids(length, 50257, batch, 1), *(rows(i, batch, 12, length, 64) for i in range(24))]

    names = [f"{kind}{i}" for i in range(12) for kind in ("key", "value")]
    inputs = {"input_ids": {0: "batch"} if cached else {0: "batch", 1: "length"}}
    if cached:
        inputs |= {f"past_{name}": {0: "batch", 2: "past"} for name in names}
    return Case(lambda: seeded(build), inputs, ["logits", *names], example)


class CachedDecoder(nn.Module):
    """One step of an encoder-decoder: own cache grows, the encoder's stays."""

    def __init__(self, model, layers):
        super().__init__()
        self.model, self.layers = model, layers

    def forward(self, input_ids, states, *past):
        own, cross = DynamicCache(), DynamicCache()
        for i in range(self.layers):
            own.update(past[4 * i], past[4 * i + 1], i)
            cross.update(past[4 * i + 2], past[4 * i + 3], i)
        cache = EncoderDecoderCache(own, cross)
        for i in range(self.layers):
            cache.is_updated[i] = True
        out = self.model(decoder_input_ids=input_ids, encoder_outputs=(states,), past_key_values=cache, use_cache=True)
        return out.logits, *(t for layer in out.past_key_values.self_attention_cache.layers for t in (layer.keys, layer.values))


def t5():
    return hf.T5ForConditionalGeneration(
        hf.T5Config(vocab_size=32128, d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_heads=8, decoder_start_token_id=0)
    )


def whisper():
    return hf.WhisperForConditionalGeneration(
        hf.WhisperConfig(vocab_size=51865, num_mel_bins=80, encoder_layers=4, encoder_attention_heads=6, decoder_layers=4,
                         decoder_attention_heads=6, decoder_ffn_dim=1536, encoder_ffn_dim=1536, d_model=384,
                         max_source_positions=1500, max_target_positions=448)
    )  # fmt: skip


def decoder(build_model, layers, heads, source, width, vocabulary):
    def build():
        return CachedDecoder(build_model(), layers)

    def example(batch, length):
        past = []
        for i in range(layers):
            past += [rows(i, batch, heads, length, 64), rows(i + 50, batch, heads, length, 64)]
            past += [rows(i + 100, batch, heads, source, 64), rows(i + 150, batch, heads, source, 64)]
        return [ids(length, vocabulary, batch, 1), rows(7, batch, source, width), *past]

    inputs = {"input_ids": {0: "batch"}, "states": {0: "batch"}}
    for i in range(layers):
        for kind in ("key", "value"):
            inputs[f"past_{kind}{i}"] = {0: "batch", 2: "past"}
        for kind in ("cross_key", "cross_value"):
            inputs[f"{kind}{i}"] = {0: "batch"}
    outputs = ["logits", *(f"{kind}{i}" for i in range(layers) for kind in ("key", "value"))]
    return Case(lambda: seeded(build), inputs, outputs, example)


class Recurrent(nn.Module):
    """Two bidirectional LSTM layers and a classifier on the last step."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(40, 128, 2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(256, 10)

    def forward(self, x):
        y, (hidden, _) = self.lstm(x)
        return self.out(y[:, -1]), hidden


def cases():
    """Every architecture by name."""
    vit = hf.ViTConfig(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072)
    both = {0: "batch", 1: "length"}
    return {
        "resnet50": vision("resnet50"),
        "mobilenet_v2": vision("mobilenet_v2"),
        "efficientnet_b0": vision("efficientnet_b0"),
        "yolo": Case(lambda: seeded(Yolo), {"image": {0: "batch"}}, ["boxes", "scores", "kept"],
                     lambda batch, length: [rows(batch, batch, 3, 320, 320)], lengths=(1,)),
        "unet": Case(lambda: seeded(UNet), {"image": {0: "batch"}}, ["mask"],
                     lambda batch, length: [rows(batch, batch, 3, 128, 128)], lengths=(1,)),
        # Sizes that are served in earnest, for benchmarks.
        "yolo_640": Case(lambda: seeded(lambda: Yolo(suppress=False)), {"image": {0: "batch"}}, ["boxes", "scores"],
                         lambda batch, length: [rows(batch, batch, 3, 640, 640)], lengths=(1,)),
        "unet_256": Case(lambda: seeded(UNet), {"image": {0: "batch"}}, ["mask"],
                         lambda batch, length: [rows(batch, batch, 3, 256, 256)], lengths=(1,)),
        # What a prompt needs: the last token's logits, and the cache.
        "gpt2_prefill": gpt2(False, logits_to_keep=1),
        "bert_base": encoder(hf.BertConfig()),
        "minilm": encoder(hf.BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)),
        "vit_base": Case(lambda: seeded(lambda: Only(hf.ViTModel(vit), ["pixel_values"], lambda o: o.last_hidden_state)),
                         {"image": {0: "batch"}}, ["states"], image, lengths=(1,)),
        "gpt2": gpt2(False),
        "gpt2_cached": gpt2(True),
        "t5_encoder": Case(lambda: seeded(lambda: Only(t5().encoder, ["input_ids"], lambda o: o.last_hidden_state)),
                           {"input_ids": both}, ["states"], lambda batch, length: [ids(length, 32128, batch, length)]),
        "t5_decoder": decoder(t5, 6, 8, 128, 512, 32128),
        "whisper_encoder": Case(
            lambda: seeded(lambda: Only(whisper().model.encoder, ["input_features"], lambda o: o.last_hidden_state)),
            {"mel": {0: "batch"}}, ["states"], lambda batch, length: [rows(batch, batch, 80, 3000)], lengths=(1,)),
        "whisper_decoder": decoder(whisper, 4, 6, 1500, 384, 51865),
        "lstm": Case(lambda: seeded(Recurrent), {"signal": both}, ["scores", "hidden"],
                     lambda batch, length: [rows(length, batch, length, 40)]),
    }  # fmt: skip


def arrays(case, batch, length):
    """Inputs as NumPy arrays by name."""
    return dict(zip(case.inputs, (np.ascontiguousarray(t.numpy()) for t in case.example(batch, length))))
