#!/usr/bin/env bash
# The Apple check: what can be known of the macOS side without a Mac.
#   1. clippy of the whole workspace for aarch64-apple-darwin: everything behind
#      cfg(target_os = "macos") is type-checked;
#   2. a linked Mach-O `halimede`, against lists of the symbols that macOS exports: every Apple
#      function that the program declares exists.
# It proves that the code compiles and links, not that it runs. All settings live in this script,
# so that other builds do not see them.
set -euo pipefail
cd "$(dirname "$0")/.."

target=aarch64-apple-darwin
rustup target list --installed | grep -qx "$target" || rustup target add "$target"

export CARGO_TARGET_DIR="$PWD/target/apple"
python="${PYTHON:-python3}"
[ ! -x .venv/bin/python ] || python=.venv/bin/python # has pip wherever the tests have run
failed=0 # the link is tried even when clippy complains

echo "== clippy for $target"
cargo clippy --locked --target "$target" --workspace --features halimede-server/cloud-repositories --all-targets --keep-going -- -D warnings || failed=1

echo "== link for $target"
sdk="$CARGO_TARGET_DIR/sdk"
"$python" scripts/apple_stub_sdk.py "$sdk"

host=$(rustc -vV | sed -n 's/^host: //p')
export SDKROOT="$sdk"
export MACOSX_DEPLOYMENT_TARGET=14.0
export CARGO_TARGET_AARCH64_APPLE_DARWIN_LINKER="$(rustc --print sysroot)/lib/rustlib/$host/bin/rust-lld"
export CARGO_TARGET_AARCH64_APPLE_DARWIN_RUSTFLAGS="-Clinker-flavor=ld64.lld"
# Nobody runs these: build them fast.
fast=(--config 'profile.dev.opt-level=0' --config 'profile.dev.debug=false'
    --config 'profile.dev.package."*".opt-level=0')
# The tests of the platform crate call every Apple function; the program may leave some out.
cargo test --locked --target "$target" --package halimede-platform --no-run "${fast[@]}"
cargo build --locked --target "$target" --package halimede-server --bin halimede "${fast[@]}"

"$python" - "$CARGO_TARGET_DIR/$target/debug/halimede" <<'PYTHON'
import struct
import sys

# Mach-O header: magic, processor, subtype, file type, ... (mach-o/loader.h)
MAGIC_64, ARM_64, EXECUTABLE = 0xFEEDFACF, 0x0100000C, 2
with open(sys.argv[1], "rb") as file:
    magic, processor, _, kind = struct.unpack("<4I", file.read(16))
if (magic, processor, kind) != (MAGIC_64, ARM_64, EXECUTABLE):
    sys.exit(f"{sys.argv[1]} is no arm64 Mach-O executable: {magic:#x} {processor:#x} {kind}")
print(f"{sys.argv[1]}: Mach-O 64-bit arm64 executable")
PYTHON

exit "$failed"
