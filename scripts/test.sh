#!/usr/bin/env bash
# Every test: Rust's, then those of tests/ in Python against the built server.
# What the Python tests need is installed into .venv. Counts go to target/test-totals, one line
# per part: name, passed, failed, skipped.
#
#   PYTHON=python3.12 ./scripts/test.sh      choose the Python
#   ./scripts/test.sh -k shared_memory       arguments go to pytest
set -uo pipefail
cd "$(dirname "$0")/.."

totals=target/test-totals
mkdir -p target
: >"$totals"
failed=0

# With everything that a build may leave out.
features=(--features halimede-server/cloud-repositories)

# Makes .venv, and brings it up to date when a requirements file has changed.
python_environment() {
    local stamp=.venv/.requirements wanted
    wanted=$(cat tests/requirements.txt)
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && return
    if ! [ -x .venv/bin/pip ]; then
        "${PYTHON:-python3}" -m venv .venv || {
            echo "Python cannot make virtual environments: install it (Debian, Ubuntu: apt-get install python3-venv)" >&2
            return 1
        }
    fi
    .venv/bin/pip install --quiet --requirement tests/requirements.txt || return
    printf '%s\n' "$wanted" >"$stamp"
}

# Packages come while the compiler works.
python_environment >target/python-environment.log 2>&1 &
environment=$!

# One profile for everything: the libraries under the Rust tests and those inside the binary of
# the Python tests are then compiled once.
echo "== cargo test"
log=target/cargo-test.log
cargo test --locked --workspace "${features[@]}" --no-fail-fast 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
awk -v status="$status" '
    /^test result: / {
        for (i = 2; i <= NF; i++) {
            if ($i == "passed;") passed += $(i - 1)
            if ($i == "failed;") failed += $(i - 1)
            if ($i == "ignored;") ignored += $(i - 1)
        }
    }
    # A crate that does not compile, or a test program that crashed, has no line of its own.
    END { if (status != 0 && failed == 0) failed = 1; print "cargo", passed + 0, failed + 0, ignored + 0 }
' "$log" >>"$totals"
[ "$status" = 0 ] || failed=1

python_tests() {
    # With --tests the packages have the features that they had a moment ago, and only the binary
    # remains to be linked.
    cargo build --locked --workspace "${features[@]}" --tests --bin halimede || return
    if ! wait "$environment"; then
        cat target/python-environment.log >&2
        return 1
    fi
    HALIMEDE_BIN="${HALIMEDE_BIN:-${CARGO_TARGET_DIR:-$PWD/target}/debug/halimede}" \
        .venv/bin/python -m pytest --junitxml "$report" tests/ "$@"
}

echo "== pytest"
report=target/pytest.xml
rm -f "$report"
python_tests "$@" || failed=1
"${PYTHON:-python3}" - "$report" >>"$totals" <<'PYTHON'
import sys
import xml.etree.ElementTree as tree

try:
    suites = tree.parse(sys.argv[1]).getroot().iter("testsuite")
    count = {key: 0 for key in ("tests", "failures", "errors", "skipped")}
    for suite in suites:
        for key in count:
            count[key] += int(suite.get(key, 0))
    failed = count["failures"] + count["errors"]
    print("python", count["tests"] - failed - count["skipped"], failed, count["skipped"])
except (OSError, tree.ParseError):  # pytest did not come to its end
    print("python", 0, 1, 0)
PYTHON

echo "== totals"
awk '{ printf "%-8s %d passed, %d failed, %d skipped\n", $1, $2, $3, $4; if ($3) bad = 1 } END { exit bad }' "$totals" || failed=1
exit "$failed"
