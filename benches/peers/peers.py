"""Who is measured: the one table of programs and precisions."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Peer:
    """A program, and how exactly it computes."""

    name: str
    # Which of the worker's runtimes; `halimede` is the server's own binary.
    runtime: str
    # The precision of products; tensors go into and out of a model as f32 all the same.
    precision: str
    options: dict = field(default_factory=dict)
    # For workloads of this group only.
    group: str = ""

    def runs(self, workload):
        if workload.group == "files" and self.runtime == "torch":
            return False
        return self.group in ("", workload.group)


# Our modes: products in f32, in 16 bits, in 8 bits.
OURS = [
    Peer("halimede exact", "halimede", "f32", {"mode": "exact"}),
    Peer("halimede balanced", "halimede", "bf16", {"mode": "balanced"}),
    Peer("halimede fast", "halimede", "int8", {"mode": "fast"}),
]

PEERS = OURS + [
    Peer("openvino f32", "openvino", "f32"),
    Peer("openvino bf16", "openvino", "bf16"),
    Peer("openvino int8", "openvino", "int8"),
    Peer("onnxruntime f32", "onnxruntime", "f32"),
    Peer("onnxruntime int8", "onnxruntime", "int8"),
    Peer("torch f32", "torch", "f32"),
    Peer("torch bf16", "torch", "bf16"),
    Peer("torch compiled f32", "torch", "f32", {"compile": True}),
    Peer("torch compiled bf16", "torch", "bf16", {"compile": True}),
    Peer("tract f32", "tract", "f32"),
    Peer("tract bf16", "tract", "bf16"),
    # oneDNN alone, weights in its own layout. `bare`: no conversion of f32 tensors is timed.
    Peer("onednn f32", "onednn", "f32", group="product"),
    Peer("onednn bf16", "onednn", "bf16", group="product"),
    Peer("onednn bf16 bare", "onednn", "bf16", {"bare": True}, group="product"),
    Peer("onednn int8 bare", "onednn", "int8", {"bare": True}, group="product"),
]
BY_NAME = {peer.name: peer for peer in PEERS}
