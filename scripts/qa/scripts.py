"""Scripts of suites without the parts that need a C++ program or a download; every other line stays as it is.

Each function prepares the folder of a suite, like those of `repositories`.
"""

import re
import shutil
import subprocess
import sys

import repositories


def cut(folder, *patterns):
    """`test.sh` without what the patterns match, each of which has to match."""
    script = folder / "test.sh"
    text = script.read_text()
    for pattern in patterns:
        text, count = re.subn(pattern, "", text, flags=re.M | re.S)
        assert count, f"{pattern} is not in {script}"
    script.write_text(text)


def command(variable):
    """Every command that a variable names, with the `if` blocks after it."""
    return rf"^ *\${variable} [^\n]*(?:\\\n[^\n]*)*\n(?:( *)if [^\n]*\n.*?^\1fi\n)+"


def between(start, end):
    return rf"^#\n# {start}\n#\n.*?(?=^#\n# {end}\n#\n)"


def secure(folder, data, checkout, client):
    """The script of TLS without the C++ client."""
    repositories.clients(folder, data, checkout, client)
    repositories.documented(folder / "models", checkout, "simple")
    cut(folder, command("TEST_CLIENT"))


def lifecycle(folder, data, checkout, client):
    """`test_concurrent_model_instance_load_sanity` with instances on the CPU alone."""
    test = folder / "lifecycle_test.py"
    text = test.read_text()
    assert "default_kinds = [cpu, gpu]" in text
    test.write_text(text.replace("default_kinds = [cpu, gpu]", "default_kinds = [cpu]"))


def tls(folder, data, checkout, client):
    """The clients, and the certificates that the script makes first."""
    secure(folder, data, checkout, client)
    script = (folder / "test.sh").read_text()
    lines = script[script.index("# Generate valid CA") : script.index("mv server.crt")]
    subprocess.run(["bash", "-e", "-c", lines], cwd=folder, check=True, capture_output=True)


def python_backend(folder, data, checkout, client):
    """Where one of its models expects it, without other versions of Python, what it installs, the part with a model on a
    GPU, and the scripts of its folders."""
    cut(folder, r"^python3 --version \| grep \"3\.12\".*?(?=^mkdir -p models/identity_fp32/1/\n)",
        r"^if \[[^\n]*\n  pip3 install torch.*?^pip3 install [^\n]*\n",
        r"^#\n# Test KIND_GPU\n.*?(?=^# Test Multi file models\n)",
        r"^# Disable env test for Jetson since cloud.*?(?=^if \[ \$RET -eq 0 \])")  # fmt: skip
    script = folder / "test.sh"
    script.write_text("cd /opt/tritonserver/qa/L0_backend_python\n" + script.read_text())


def bls(folder, data, checkout, client):
    """Without the first part, whose models need PyTorch."""
    cut(folder, r"^# FIXME: \[DLIS-5970\].*?(?=^SERVER_ARGS=[^\n]*\n# Test error handling)")


def traces(folder, data, checkout, client):
    """The interpreter where it is."""
    summary = folder.parent / "common" / "trace_summary.py"
    summary.write_text(re.sub(r"\A#!.*", f"#!{sys.executable}", summary.read_text()))


def timeouts(folder, data, checkout, client):
    """Without the C++ client."""
    cut(folder, r"^set \+e\n# Expect timeout for everything\n.*?(?=^set -e\n)", r"^set \+e\n\n# CASE 1.*?(?=^echo \"TEST:  Python Library)")
    script = folder / "test.sh"
    script.write_text(script.read_text().replace('echo "TEST:  Python Library"', 'set +e\necho "TEST:  Python Library"'))


def cancellation(folder, data, checkout, client):
    """Without the C++ programs, and the test with a PyTorch model."""
    cut(folder, between("Unit tests", "Python gRPC cancellation tests"),
        between(r"C\+\+ gRPC cancellation tests", "End-to-end scheduler tests"),
        r"^#\n# Implicit state tests\n#\n.*?(?=^if \[ \$RET -eq 0 \])")  # fmt: skip


def warmup(folder, data, checkout, client):
    """Without the last part, which downloads PyTorch and wants a GPU."""
    cut(folder, r"^# Test the onnx model to verify that the memory type.*?(?=^if \[ \$RET -eq 1 \])")


def batcher(folder, data, checkout, client):
    """Without the C++ program, and with the instances of models of NVIDIA's test backends on the CPU."""
    # Which a suite before may have made.
    shutil.rmtree(folder.parent / "custom_models" / "custom_zero_1_float32" / "1", ignore_errors=True)
    cut(folder, r"^# instance_queue_test: .*?^set -e\n")
    script = folder / "test.sh"
    script.write_text(script.read_text().replace("kind: KIND_GPU", "kind: KIND_CPU"))
