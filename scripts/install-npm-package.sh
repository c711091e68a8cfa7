#!/usr/bin/env bash
# Installs an npm package that tests need into target/NAME, where they look for it: the version that
# tests/NAME/package.json says.
#
#   scripts/install-npm-package.sh axe|azurite
set -euo pipefail
cd "$(dirname "$0")/.."
name=${1:?the name of a folder in tests/ with a package.json}
wanted=tests/$name/package.json
cmp -s "$wanted" "target/$name/installed" && exit
mkdir -p "target/$name"
cp "$wanted" "target/$name"
# None of the packages has anything to compile.
npm install --silent --no-audit --no-fund --ignore-scripts --omit=dev --omit=optional --prefix "target/$name"
cp "$wanted" "target/$name/installed"
