#!/usr/bin/env bash
# Installs Azurite, a server of Azure Storage's protocol, into target/azurite, where the tests look for it.
set -euo pipefail
cd "$(dirname "$0")/.."
wanted=tests/azurite/package.json
cmp -s "$wanted" target/azurite/installed && exit
mkdir -p target/azurite
cp "$wanted" target/azurite
# None of its packages has anything to compile.
npm install --silent --no-audit --no-fund --ignore-scripts --omit=dev --omit=optional --prefix target/azurite
cp "$wanted" target/azurite/installed
