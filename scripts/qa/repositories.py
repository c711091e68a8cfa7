"""Model repositories for the modules that run without NVIDIA's script.

Each function gets the folder to fill, the generated models and the checkout. Those at the end prepare
the folder of a suite for its script.

Where a suite takes a model of the Python backend for what its test checks about the server, an ONNX
model or one of the backend `identity` takes its place.
"""

import re
import shutil
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save


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


def of_identity(target, name, datatype, batch=8):
    """A model of the backend `identity`, which is built in."""
    (target / name / "1").mkdir(parents=True, exist_ok=True)
    (target / name / "config.pbtxt").write_text(f"""backend: "identity"
max_batch_size: {batch}
input [ {{ name: "INPUT0" data_type: TYPE_{datatype} dims: [ -1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_{datatype} dims: [ -1 ] }} ]
""")


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
    of_identity(target, "simple_identity", "STRING")
    of_identity(target, "simple_identity_int64", "INT64")


def generate(target, data, checkout):
    shutil.copytree(checkout / "qa" / "python_models" / "generate_models", target, dirs_exist_ok=True)


def input_size(target, data, checkout):
    copied(target, data / "qa_identity_model_repository" / "onnx_zero_1_float32")
    documented(target, checkout, "simple_identity")
    (target / "simple_identity" / "1").mkdir(exist_ok=True)
    # The test sends it data and wants it back.
    of_identity(target, "simple_identity", "STRING")


def grpc(target, data, checkout):
    documented(target, checkout, "simple")
    copied(target, data / "qa_model_repository" / "onnx_int32_int32_int32")
    of_identity(target, "string_identity", "STRING", batch=0)


def cached_ensemble(target, data, checkout):
    """The ensemble of L0_response_cache where its test changes the configurations; `target` stays empty."""
    models = target.parent / "models" / "ensemble_models"
    shutil.rmtree(models, ignore_errors=True)
    models.mkdir(parents=True)
    copied(models, data / "qa_ensemble_model_repository" / "qa_model_repository" / "simple_onnx_float32_float32_float32")
    copied(models, data / "qa_model_repository" / "onnx_float32_float32_float32")


def metrics(target, data, checkout):
    """The repository of L0_metrics for its switches."""
    shutil.copytree(checkout / "qa" / "L0_metrics" / "unit_test_models", target, dirs_exist_ok=True)
    for model in target.iterdir():
        (model / "1").mkdir(exist_ok=True)


def string_identity(target, data, checkout):
    """An ONNX model in place of the Python model of the same name."""
    copied(target, data / "qa_identity_model_repository" / "onnx_nobatch_zero_1_object", "string_identity",
           lambda config: config.replace("-1", "8", 1))  # fmt: skip


def large(framework):
    """The model of one of the tests of large payloads; all of them are ONNX models here."""

    def fill(target, data, checkout):
        copied(target, data / "qa_identity_model_repository" / f"{framework}_nobatch_zero_1_float32")

    return fill


def parameters(target, data, checkout):
    """The repository of the suite; its model `parameter` returns what the client sent."""
    shutil.copytree(checkout / "qa" / "L0_parameters" / "model_repository", target, dirs_exist_ok=True)
    for name in ("identity", "ensemble"):
        (target / name / "1").mkdir()
    (target / "parameter" / "1" / "model.py").unlink()
    (target / "parameter" / "config.pbtxt").write_text("""backend: "parameters"
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "key" data_type: TYPE_STRING dims: [ -1 ] }, { name: "value" data_type: TYPE_STRING dims: [ -1 ] } ]
""")


def class_counts(target, data, checkout):
    of_identity(target, "identity_fp32", "FP32", batch=64)
    of_identity(target, "identity_bytes", "STRING", batch=64)


def nullchar(target, data, checkout):
    copied(target, data / "qa_identity_model_repository" / "onnx_nobatch_zero_1_object")


def client_examples(count):
    """The models that the examples name, and others up to `count`, which the model control examples check."""

    def fill(target, data, checkout):
        documented(target, checkout, "simple", "simple_int8", "simple_string", "simple_sequence")
        shutil.copytree(checkout / "src" / "test" / "models" / "repeat_int32", target / "repeat_int32")
        (target / "repeat_int32" / "1").mkdir(exist_ok=True)
        of_identity(target, "custom_identity_int32", "INT32")
        (target / "simple_identity" / "1").mkdir(parents=True)
        shutil.copy(checkout / "docs" / "examples" / "model_repository" / "simple_identity" / "config.pbtxt",
                    target / "simple_identity")  # fmt: skip
        config = target / "simple_identity" / "config.pbtxt"
        config.write_text(re.sub(r'^(backend|platform):.*$', 'backend: "identity"', config.read_text(), flags=re.M))
        for other in range(count - len(list(target.iterdir()))):
            copied(target, data / "qa_identity_model_repository" / "onnx_zero_1_float32", f"other_{other}")

    return fill


def rows(path, batch):
    """A network of DenseNet's signature: the mean of every row of each colour, and zeros."""
    shape = numpy_helper.from_array(np.array([-1, 3 * 224, 1, 1], np.int64), "shape")
    pads = numpy_helper.from_array(np.array([0, 0, 0, 0, 0, 1000 - 3 * 224, 0, 0], np.int64), "pads")
    saved(path, [helper.make_tensor_value_info("data_0", TensorProto.FLOAT, [batch, 3, 224, 224])],
          [helper.make_tensor_value_info("fc6_1", TensorProto.FLOAT, [batch, 1000, 1, 1])],
          [helper.make_node("ReduceMean", ["data_0"], ["means"], axes=[3]),
           helper.make_node("Reshape", ["means", "shape"], ["column"]),
           helper.make_node("Pad", ["column", "pads"], ["fc6_1"])], [shape, pads])  # fmt: skip


def images(target, data, checkout):
    """NVIDIA's configuration of DenseNet over a network that is none. For the ensemble the same with batches, and
    before it a Python model that decodes an image."""
    documented(target, checkout, "densenet_onnx")
    (target / "densenet_onnx" / "1").mkdir()
    rows(target / "densenet_onnx" / "1" / "model.onnx", 1)
    (target / "decode" / "1").mkdir(parents=True)
    (target / "decode" / "1" / "model.py").write_text(DECODE)
    (target / "decode" / "config.pbtxt").write_text("""backend: "python"
max_batch_size: 1
input [ { name: "IMAGE" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "PIXELS" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] } ]
""")
    (target / "densenet_batched" / "1").mkdir(parents=True)
    rows(target / "densenet_batched" / "1" / "model.onnx", "n")
    (target / "densenet_batched" / "config.pbtxt").write_text('backend: "onnxruntime" max_batch_size: 1')
    ensemble = target / "preprocess_inception_ensemble"
    (ensemble / "1").mkdir(parents=True)
    shutil.copy(target / "densenet_onnx" / "densenet_labels.txt", ensemble)
    (ensemble / "config.pbtxt").write_text("""platform: "ensemble"
max_batch_size: 1
input [ { name: "INPUT" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 1000, 1, 1 ] label_filename: "densenet_labels.txt" } ]
ensemble_scheduling { step [
  { model_name: "decode" model_version: -1 input_map { key: "IMAGE" value: "INPUT" } output_map { key: "PIXELS" value: "pixels" } },
  { model_name: "densenet_batched" model_version: -1 input_map { key: "data_0" value: "pixels" }
    output_map { key: "fc6_1" value: "OUTPUT" } }
] }
""")


DECODE = """import io

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("PIXELS", self.pixels(request))]) for request in requests]

    def pixels(self, request):
        image = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy().reshape(-1)[0]
        pixels = np.asarray(Image.open(io.BytesIO(image)).convert("RGB").resize((224, 224)), np.float32)
        return pixels.transpose(2, 0, 1)[None] / 127.5 - 1
"""


def perf(target, data, checkout):
    """A model for each kind of load, and an ensemble of `simple` with itself."""
    documented(target, checkout, "simple", "simple_string", "simple_sequence")
    shutil.copytree(checkout / "src" / "test" / "models" / "repeat_int32", target / "repeat_int32")
    (target / "repeat_int32" / "1").mkdir(exist_ok=True)
    (target / "twice" / "1").mkdir(parents=True)
    (target / "twice" / "config.pbtxt").write_text("""platform: "ensemble"
max_batch_size: 8
input [ { name: "A" data_type: TYPE_INT32 dims: [ 16 ] }, { name: "B" data_type: TYPE_INT32 dims: [ 16 ] } ]
output [ { name: "SUM" data_type: TYPE_INT32 dims: [ 16 ] } ]
ensemble_scheduling { step [
  { model_name: "simple" model_version: -1
    input_map { key: "INPUT0" value: "A" } input_map { key: "INPUT1" value: "B" }
    output_map { key: "OUTPUT0" value: "more" } output_map { key: "OUTPUT1" value: "less" } },
  { model_name: "simple" model_version: -1
    input_map { key: "INPUT0" value: "more" } input_map { key: "INPUT1" value: "less" } output_map { key: "OUTPUT0" value: "SUM" } }
] }
""")


def rust(target, data, checkout):
    """The models that the Rust client's tests ask for."""
    documented(target, checkout, "simple")
    of_identity(target, "identity_fp32", "FP32", batch=0)


# What scripts need besides.


def clients(folder, data, checkout, client):
    """NVIDIA's Python client examples, where scripts look for them."""
    target = folder.parent / "clients"
    if not target.exists():
        shutil.copytree(client / "src" / "python" / "examples", target)


def socket(folder, data, checkout, client):
    """The version of `simple` that is in no checkout."""
    clients(folder, data, checkout, client)
    shutil.copytree(checkout / "docs" / "examples" / "model_repository" / "simple" / "1", folder / "models" / "simple" / "1",
                    dirs_exist_ok=True)  # fmt: skip


def custom(folder, data, checkout, client):
    """The version folders of NVIDIA's test backends, which are in no checkout."""
    for model in (folder.parent / "custom_models").iterdir():
        (model / "1").mkdir(exist_ok=True)


def rate_limiter(folder, data, checkout, client):
    """The script puts instances on a GPU, whose resources are those of device 0, as the CPU's are."""
    custom(folder, data, checkout, client)
    script = folder / "test.sh"
    script.write_text(script.read_text().replace("kind: KIND_GPU count", "kind: KIND_CPU count"))


def simple_ensemble(folder, data, checkout, client):
    """The versions of `simple` that are in no checkout."""
    for version in ("1", "2"):
        shutil.copytree(checkout / "docs" / "examples" / "model_repository" / "simple" / "1",
                        folder / "models" / "simple" / version, dirs_exist_ok=True)  # fmt: skip


def corrid(folder, data, checkout, client):
    """The script takes models of three frameworks and tests one."""
    for prefix in ("plan", "libtorch"):
        source = data / "qa_dyna_sequence_model_repository" / "onnx_dyna_sequence_int32"
        copied(source.parent, source, f"{prefix}_dyna_sequence_int32")


def implicit_state(folder, data, checkout, client):
    """The backend is built in, and states grow without a GPU."""
    (folder / "libtriton_implicit_state.so").touch()
    config = folder / "models" / "growable_memory" / "config.pbtxt"
    config.write_text(config.read_text().replace("KIND_GPU", "KIND_CPU"))
    custom(folder, data, checkout, client)


def iterative(folder, data, checkout, client):
    """The version folder that is in no checkout."""
    (folder / "models" / "iterative_sequence" / "1").mkdir(parents=True, exist_ok=True)


def saved(path, inputs, outputs, nodes, stored=()):
    save(helper.make_model(helper.make_graph(nodes, "graph", inputs, outputs, list(stored)),
                           opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)  # fmt: skip


def nan_inf(folder, data, checkout, client):
    """An ONNX model with the constant that the Python model returns."""
    model = folder / "models" / "nan_inf_output"
    config = model / "config.pbtxt"
    config.write_text(config.read_text().replace('backend: "python"', 'backend: "onnxruntime"'))
    (model / "1" / "model.py").unlink()
    value = numpy_helper.from_array(np.array([np.nan, np.inf, -np.inf, 1, 2, 3], np.float32))
    saved(model / "1" / "model.onnx",
          [helper.make_tensor_value_info("INPUT0", TensorProto.FLOAT, [None])],
          [helper.make_tensor_value_info("OUTPUT0", TensorProto.FLOAT, [6])],
          [helper.make_node("Constant", [], ["OUTPUT0"], value=value)])  # fmt: skip


SANDBOXED = """# What the script installs goes to folders of this sandbox alone.
set -e
mount -t tmpfs none /usr/local/bin
mount -t tmpfs none /usr/local/share
etc=/mnt
mount -t tmpfs none "$etc"
# Some of it belongs to others.
cp -r /etc/. "$etc" 2>/dev/null || true
mkdir -p "$etc/systemd/system"
mount --bind "$etc" /etc
export PATH=$PWD/bin:$PATH
exec bash -e test.sh "$@"
"""


def object_storage(folder, data, checkout, client):
    """Downloads of MinIO bring a stand-in."""
    stand_in = Path(__file__).resolve().parent / "minio.py"
    programs = {
        "minio": f'exec python3 {stand_in} "$@"',
        "wget": 'cp "$(dirname "$0")/minio" minio',
        "curl": '[[ "$*" == *minio.service ]] && exec touch minio.service\nexec /usr/bin/curl "$@"',
    }
    (folder / "bin").mkdir()
    for name, text in programs.items():
        (folder / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / "bin" / name).chmod(0o755)
    (folder / "sandboxed.sh").write_text(SANDBOXED)
