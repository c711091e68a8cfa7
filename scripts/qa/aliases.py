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
    "qa_model_repository": ["libtorch", "plan"],
    "qa_variable_model_repository": ["libtorch"],
    "qa_identity_model_repository": ["libtorch", "plan", "python"],
    "qa_reshape_model_repository": ["libtorch"],
}


def main(data):
    for folder, prefixes in WANTED.items():
        for model in sorted((data / folder).glob("onnx_*")):
            for prefix in prefixes:
                name = model.name.replace("onnx", prefix, 1)
                copy = data / folder / name
                if copy.exists():
                    continue
                shutil.copytree(model, copy)
                config = copy / "config.pbtxt"
                config.write_text(re.sub(r'name: "onnx', f'name: "{prefix}', config.read_text(), count=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
