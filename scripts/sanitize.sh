#!/usr/bin/env bash
# Miri and the sanitizers, where memory and threads are at stake. Needs a nightly toolchain with the
# components miri and rust-src; CI runs none of this. See docs/testing.md.
#
#   scripts/sanitize.sh miri       parsers, tensors and the arena's arithmetic, interpreted
#   scripts/sanitize.sh thread     ThreadSanitizer: pool, arena, shared memory, the server under load
#   scripts/sanitize.sh address    AddressSanitizer: the same
#
# TOOLCHAIN chooses the toolchain (nightly), SECONDS_MAX how long the server is under load (10).
set -euo pipefail
cd "$(dirname "$0")/.."
toolchain=${TOOLCHAIN:-nightly}
host=$(rustc "+$toolchain" -vV | sed -n 's/^host: //p')
python=${PYTHON:-python3}
[ ! -x .venv/bin/python ] || python=.venv/bin/python # has what the load needs wherever the tests have run

# Runs what is given and shows what it prints; a filter that matches no test is an error, not a success.
tested() {
    local log
    log=$(mktemp)
    "$@" | tee "$log"
    grep -q '^running [1-9]' "$log" || {
        echo "no test was run by: $*" >&2
        exit 1
    }
    rm -f "$log"
}

run_miri() {
    # Files are read, and time passes; nothing else is asked of the machine. Without deterministic floats
    # Miri makes functions such as powi wrong by a random last bit, and tests of rounding fail.
    export MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-deterministic-floats ${MIRIFLAGS:-}" PROPTEST_CASES=4 PROPTEST_FAILURE_PERSISTENCE=off
    export CARGO_TARGET_DIR=target/miri
    miri() { tested cargo "+$toolchain" miri test --locked "$@"; }
    miri -p halimede-tensor --lib
    miri -p halimede-compute --lib
    # Mapping files, which Miri cannot, and sizes that would take it an hour stay out.
    miri -p halimede-graph --lib onnx::import -- \
        --skip external_data --skip order_is_kept --skip endless_functions --skip deep_nesting \
        --skip a_small_file_cannot
    miri -p halimede-serving --lib -- --skip long_nonsense --skip damaged_conf --skip printing_and_reading \
        config::text config::tests::text config::tests::json config::tests::roundtrip wire
    miri -p halimede-server --lib json:: -- --skip a_million_brackets
    miri -p halimede-server --lib codec::tests::broken
    miri -p halimede-server --lib shared_memory::tests::ranges
    miri -p halimede-compute-cpu --lib pool::
}

# run_sanitizer NAME: the tests of what shares memory, then the server.
run_sanitizer() {
    export RUSTFLAGS="-Zsanitizer=$1 ${RUSTFLAGS:-}" CARGO_TARGET_DIR="target/sanitize-$1"
    local build=(--locked --target "$host" --config profile.dev.opt-level=1)
    # The standard library is built with it too, or ThreadSanitizer would not see its locks.
    [ "$1" != thread ] || build+=(-Zbuild-std)
    # ThreadSanitizer keeps a signal back until its thread calls a function that it knows. The system may choose the
    # harness's main thread, which waits in none: the test of signals then waits for ever.
    # Sanitizers bring an allocator of their own: what the C library's does is tested without them.
    local left_out=(-- --skip memory::tests)
    [ "$1" != thread ] || left_out+=(--skip signals_arrive)
    tested cargo "+$toolchain" test "${build[@]}" --lib -p halimede-platform -p halimede-tensor -p halimede-compute \
        "${left_out[@]}"
    tested cargo "+$toolchain" test "${build[@]}" --lib -p halimede-compute-cpu pool
    cargo "+$toolchain" build "${build[@]}" -p halimede-server --bin halimede
    "$python" scripts/mixed_load.py --seconds "${SECONDS_MAX:-10}" "$CARGO_TARGET_DIR/$host/debug/halimede"
}

case "${1:-}" in
miri) run_miri ;;
thread)
    export TSAN_OPTIONS="halt_on_error=0 exitcode=66 suppressions=$PWD/scripts/thread-suppressions.txt"
    run_sanitizer thread
    ;;
address)
    export ASAN_OPTIONS="detect_leaks=1 exitcode=66 allocator_may_return_null=1"
    run_sanitizer address
    ;;
*)
    sed -n '2,10s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
echo "$1: clean"
