"""Checks the architecture: which crate may depend on which, and which may contain unsafe code.

    python3 scripts/check_arrows.py

An arrow that is not listed is an error: add it here only together with the reason in
ARCHITECTURE.md. An arrow that is listed and unused is none; it is allowed, not demanded.
"""

import json
import subprocess
import sys
from pathlib import Path

PREFIX = "halimede-"

# crate -> workspace crates it may depend on, without the prefix
ARROWS = {
    "platform": [],
    "tensor": ["platform"],
    "graph": ["tensor", "platform"],  # maps model files and their external data
    "compute": ["graph", "tensor", "platform"],  # maps packed weights
    "compute-cpu": ["compute", "graph", "tensor", "platform"],
    "compute-gpu": ["compute", "graph", "tensor", "platform"],
    "compute-neural-engine": ["compute", "graph", "tensor", "platform", "coreml"],
    "conformance": ["compute", "graph", "tensor"],
    "coreml": ["graph", "tensor"],
    "transformer": ["compute", "graph", "tensor"],
    "serving": ["transformer", "compute", "graph", "tensor"],
    "python-backend": ["serving", "tensor", "platform"],
    "object-repository": ["serving"],
    "capi": ["serving", "tensor"],
    "server": [
        "serving", "transformer", "compute", "compute-cpu", "compute-gpu", "compute-neural-engine",
        "conformance", "coreml", "graph", "object-repository", "python-backend", "tensor", "platform",
    ],
}

# Further arrows for tests and benchmarks only: each unit runs the conformance suite on itself,
# and what owns no unit may borrow the CPU's to test with.
TEST_ARROWS = {
    "compute-cpu": ["conformance"],
    "compute-gpu": ["conformance", "compute-cpu"],
    "compute-neural-engine": ["conformance"],
    "serving": ["compute-cpu"],
    "transformer": ["compute-cpu"],
}

# Protocols and their runtimes stay in the server: crate -> packages it may not depend on.
FORBIDDEN = {
    "serving": ["tokio", "axum", "hyper", "tonic"],
    "transformer": ["tokio", "axum", "hyper", "tonic"],
    "compute": ["tokio", "rayon"],
    "graph": ["tokio"],
}

# Crates where memory or instructions live; every other one forbids unsafe code.
UNSAFE_ALLOWED = ["platform", "tensor", "compute-cpu", "compute-gpu", "compute-neural-engine", "capi"]
FORBID_UNSAFE = "#![forbid(unsafe_code)]"


def main() -> int:
    packages = workspace()
    errors = []
    for name, package in sorted(packages.items()):
        errors += wrong_arrows(name, package)
        errors += missing_forbid(name, package)
    for error in errors:
        print(f"error: {error}")
    print(f"arrows: {len(packages)} crates, {len(errors)} errors")
    return 1 if errors else 0


def workspace() -> dict:
    command = ["cargo", "metadata", "--locked", "--no-deps", "--format-version=1"]
    metadata = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return {package["name"].removeprefix(PREFIX): package for package in metadata["packages"]}


def wrong_arrows(name: str, package: dict) -> list[str]:
    if name not in ARROWS:
        return [f"crate `{name}` is not listed in {Path(__file__).name}: say what it may depend on"]
    errors = []
    for dependency in package["dependencies"]:
        target, kind = dependency["name"], dependency["kind"] or "normal"
        allowed = ARROWS[name] + (TEST_ARROWS.get(name, []) if kind == "dev" else [])
        if target.startswith(PREFIX) and target.removeprefix(PREFIX) not in allowed:
            errors.append(f"`{name}` may not depend on `{target.removeprefix(PREFIX)}` ({kind})")
        if kind == "normal" and target in FORBIDDEN.get(name, []):
            errors.append(f"`{name}` may not depend on the package `{target}`")
    return errors


def missing_forbid(name: str, package: dict) -> list[str]:
    if name in UNSAFE_ALLOWED:
        return []
    roots = [target["src_path"] for target in package["targets"] if {"lib", "bin"} & set(target["kind"])]
    return [
        f"`{name}` has to say {FORBID_UNSAFE} in {Path(root).relative_to(Path.cwd())}"
        for root in roots
        if FORBID_UNSAFE not in Path(root).read_text().splitlines()
    ]


if __name__ == "__main__":
    sys.exit(main())
