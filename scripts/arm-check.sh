#!/usr/bin/env bash
# The arm64 check: the kernels' own tests, built for aarch64 Linux and executed by an emulator, on
# processors with and without the instructions that kernels are written for.
# It proves that the results are right; it says nothing of speed. All settings live in this script,
# so that other builds do not see them.
set -euo pipefail
# A library for this processor's architecture is of no use there, so none is expected.
unset HALIMEDE_EXPECT_CBLAS
# Tests leave out what takes minutes there, and say so; units are tried with the widest instructions around them
# alone, and packed weights are not read from files again.
export HALIMEDE_EMULATED=1
cd "$(dirname "$0")/.."

target=aarch64-unknown-linux-gnu
rustup target list --installed | grep -qx "$target" || rustup target add "$target"
# Another emulator than Debian's can be named.
qemu=${QEMU_AARCH64:-qemu-aarch64-static}
if ! command -v aarch64-linux-gnu-gcc >/dev/null || ! command -v "$qemu" >/dev/null; then
    scripts/install-packages.sh gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static
fi

export CARGO_TARGET_DIR="$PWD/target/arm"
mkdir -p "$CARGO_TARGET_DIR"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
# Definitions and kernels compute much under emulation, the libraries below them little.
fast=(--config profile.dev.opt-level=1 --config 'profile.dev.package."*".opt-level=0' --config profile.dev.debug=false)
failed=0

# check PROCESSOR UNITS FILTERS...: runs the tests of the platform, of tensors and of the kernels, or those that a
# filter matches. UNITS are the matrix units that must be found and tested, and no other may.
check() {
    local processor=$1 units=$2 log=$CARGO_TARGET_DIR/$1.log found
    shift 2
    echo "== $processor: ${units:-no matrix unit}"
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="$qemu -cpu $processor -L /usr/aarch64-linux-gnu" \
        cargo test --locked --target "$target" "${fast[@]}" --lib --no-fail-fast \
        -p halimede-platform -p halimede-tensor -p halimede-compute-cpu -- --show-output "$@" 2>&1 |
        tee "$log" || failed=1
    # Outer products of integers: QEMU 7.2, which is Debian 12's, computes half of them. The tests say so.
    ! grep -q '^skipped: sme-int8' "$log" || units=${units% sme-int8}
    found=$(sed -n 's/^matrix units here: \[\(.*\)\]/\1/p' "$log" | tr -d '",' | tr ' ' '\n' | sort -u | xargs)
    [ "$found" = "$units" ] || {
        echo "$processor: found the matrix units '$found', expected '$units'" >&2
        failed=1
    }
}

# outer BITS: the blocks of outer products, with streaming vectors of so many bits.
outer() {
    local processor="max,sme$1=on"
    check "$processor" "neon-bfdot neon-bfmmla neon-dotprod neon-fmlal neon-i8mm sme-bf16 sme-int8" \
        matrix::tests --skip peaks_are_measured
    grep -q "^streaming vectors here: $1 bits" "$CARGO_TARGET_DIR/$processor.log" || {
        echo "$processor: no streaming vectors of $1 bits" >&2
        failed=1
    }
}

# Left out: speed, which is the emulator's; every setting of the drivers; the longest of the kernels' tests.
skipped=(--skip peaks_are_measured --skip rows_are_measured --skip tuning_tests --skip winograd::tests::awkward_sizes
    --skip transposed_convolutions_with_the_channels_last)
check max,sme=off "neon-bfdot neon-bfmmla neon-dotprod neon-fmlal neon-i8mm" "${skipped[@]}"
# As long as Apple's M4 has them, and the shortest that there may be.
outer 512
outer 128
# Dot products of integers and nothing else, then what every arm64 machine has: NEON.
products=("${skipped[@]}" gemm:: matrix:: kernels::tests::products kernels::integer_tests::products
    kernels::halves_tests)
check cortex-a76 "neon-dotprod" "${products[@]}"
check cortex-a72 "" "${products[@]}"

exit "$failed"
