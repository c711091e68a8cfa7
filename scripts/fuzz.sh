#!/usr/bin/env bash
# Runs a fuzz target of fuzz/ from its seeds. Needs a nightly toolchain, a C++ compiler and cargo-fuzz
# (`cargo install cargo-fuzz`). See docs/testing.md.
#
#   scripts/fuzz.sh TARGET SECONDS     onnx, config, http, grpc or shared_memory
#
# TOOLCHAIN chooses the toolchain (nightly). What is found goes to fuzz/corpus/TARGET, what fails to
# fuzz/artifacts/TARGET.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# = 2 ] || {
    sed -n '2,8s/^# \{0,1\}//p' "$0"
    exit 2
}
target=$1 seconds=$2
mkdir -p "fuzz/corpus/$target" "fuzz/finds/$target" "fuzz/regressions/$target"
# The compiler's checks of arithmetic stay on: an overflow is a finding.
exec cargo "+${TOOLCHAIN:-nightly}" fuzz run "$target" \
    "fuzz/corpus/$target" "fuzz/seeds/$target" "fuzz/finds/$target" "fuzz/regressions/$target" -- \
    -max_total_time="$seconds" -timeout=20 -rss_limit_mb=3000 -print_funcs=0
