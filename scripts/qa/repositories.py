"""Model repositories for the modules that run without NVIDIA's script.

Each function gets the folder to fill, the generated models and the checkout.
"""

import re
import shutil


def copied(target, source, name=None, edit=lambda config: config):
    """A model under another name, its configuration edited."""
    folder = target / (name or source.name)
    shutil.copytree(source, folder, dirs_exist_ok=True)
    config = folder / "config.pbtxt"
    text = config.read_text()
    if name:
        text = re.sub(r'^name: ".*"', f'name: "{name}"', text, count=1, flags=re.M)
    config.write_text(edit(text))


def documented(target, checkout, *names):
    """Models of the documentation's example repository."""
    for name in names:
        shutil.copytree(checkout / "docs" / "examples" / "model_repository" / name, target / name, dirs_exist_ok=True)


def simple(target, data, checkout):
    documented(target, checkout, "simple")


def counted(number):
    """`simple` and others up to `number` models: the asyncio tests count those of NVIDIA's images."""

    def fill(target, data, checkout):
        documented(target, checkout, "simple")
        for other in range(1, number):
            copied(target, data / "qa_identity_model_repository" / "onnx_zero_1_float32", f"other_{other}")

    return fill


def http(target, data, checkout):
    """As L0_http/test.sh builds it for http_test.py, without the models of the Python backend."""
    identities = data / "qa_identity_model_repository"
    for name in ("onnx_zero_1_float32", "onnx_zero_1_object", "onnx_zero_1_float16", "onnx_zero_3_float32"):
        copied(target, identities / name)
    copied(target, identities / "onnx_zero_1_object", "onnx_zero_1_object_1_element",
           lambda config: config.replace("-1", "1", 1))  # fmt: skip
    queue = (
        "dynamic_batching { max_queue_delay_microseconds: 1000000 preferred_batch_size: [ 8 ] "
        "default_queue_policy { max_queue_size: 1 } }\n"
    )
    copied(target, identities / "onnx_zero_1_float32", "onnx_zero_1_float32_queue", lambda config: config + queue)
    # The script takes a Python model for these two; the test sends them data and wants it back.
    identity = """backend: "identity"
max_batch_size: 8
input [ {{ name: "INPUT0" data_type: TYPE_{0} dims: [ -1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_{0} dims: [ -1 ] }} ]
"""
    for name, datatype in (("simple_identity", "STRING"), ("simple_identity_int64", "INT64")):
        (target / name / "1").mkdir(parents=True)
        (target / name / "config.pbtxt").write_text(identity.format(datatype))


def grpc(target, data, checkout):
    documented(target, checkout, "simple")
    copied(target, data / "qa_model_repository" / "onnx_int32_int32_int32")


def ensemble(target, data, checkout):
    """The ensemble of the suite over the `simple` of the documentation."""
    models = checkout / "qa" / "L0_simple_ensemble" / "models"
    documented(target, checkout, "simple")
    shutil.copy(models / "simple" / "config.pbtxt", target / "simple")
    shutil.copytree(target / "simple" / "1", target / "simple" / "2")
    name = "ensemble_add_sub_int32_int32_int32"
    shutil.copytree(models / name, target / name)
    (target / name / "1").mkdir(exist_ok=True)


def string_identity(target, data, checkout):
    """An ONNX model in place of the Python model of the same name."""
    copied(target, data / "qa_identity_model_repository" / "onnx_nobatch_zero_1_object", "string_identity",
           lambda config: config.replace("-1", "8", 1))  # fmt: skip


def large(target, data, checkout):
    copied(target, data / "qa_identity_model_repository" / "onnx_nobatch_zero_1_float32")


def nullchar(target, data, checkout):
    copied(target, data / "qa_identity_model_repository" / "onnx_nobatch_zero_1_object")


def client_examples(target, data, checkout, count):
    """The models that the examples name, and others up to `count`, which the model control examples check."""
    documented(target, checkout, "simple", "simple_int8", "simple_string")
    (target / "simple_identity" / "1").mkdir(parents=True)
    shutil.copy(checkout / "docs" / "examples" / "model_repository" / "simple_identity" / "config.pbtxt",
                target / "simple_identity")  # fmt: skip
    config = target / "simple_identity" / "config.pbtxt"
    config.write_text(re.sub(r'^(backend|platform):.*$', 'backend: "identity"', config.read_text(), flags=re.M))
    for other in range(count - len(list(target.iterdir()))):
        copied(target, data / "qa_identity_model_repository" / "onnx_zero_1_float32", f"other_{other}")
