"""Stand-ins for models of other frameworks: ONNX models under their names.

Many of NVIDIA's tests walk over `onnx_*`, `libtorch_*`, `plan_*` and so on, and
stop at the first name that the server does not know. What such a test checks
about the server does not depend on the framework, so a copy of the ONNX model
takes the place of the missing one.
"""

import re
import shutil
import sys
from pathlib import Path

# Folder of the generated data: the prefixes that are wanted there.
WANTED = {
    "qa_model_repository": ["libtorch", "plan", "openvino"],
    "qa_variable_model_repository": ["libtorch", "plan"],
    "qa_identity_model_repository": ["libtorch", "plan", "python"],
    "qa_reshape_model_repository": ["libtorch", "plan"],
    "qa_ragged_model_repository": ["libtorch", "plan"],
}

# Ensembles of such models: folder, and which.
ENSEMBLES = {
    "qa_model_repository": "simple_onnx_float32_float32_float32",
    "qa_variable_model_repository": "*_onnx_*",
}


def main(data):
    for folder, prefixes in WANTED.items():
        for model in sorted((data / folder).glob("onnx_*")):
            for prefix in prefixes:
                name = model.name.replace("onnx", prefix, 1)
                stand_in(model, data / folder / name, prefix)
    for folder, pattern in ENSEMBLES.items():
        ensembles = data / "qa_ensemble_model_repository" / folder
        for ensemble in sorted(ensembles.glob(pattern)):
            for prefix in ("libtorch", "plan"):
                stand_in(ensemble, ensembles / ensemble.name.replace("onnx", prefix), prefix)


def stand_in(model, copy, prefix):
    """A copy of a model whose names say `prefix` instead of ONNX."""
    if copy.exists():
        return
    shutil.copytree(model, copy)
    config = copy / "config.pbtxt"
    config.write_text(re.sub(r'name: "((?:simple|sequence|fan)_)?onnx', rf'name: "\1{prefix}', config.read_text()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
