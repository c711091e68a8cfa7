"""Every command of the README and the documentation runs as printed.

A fenced block of the language `console` is a transcript: its lines that begin
with `$ ` run with bash in the root of the project. A block may be preceded by
a comment that says how the test treats it:

    <!-- test: server -->   a server of the example repository runs meanwhile on
                            the standard ports 8000 to 8002
    <!-- test: object storage -->   the binary has to be built with it
    <!-- test: skip REASON -->

A block of the language `python` runs only behind such a comment; `<!-- test: run -->`
where there is nothing else to say. Servers that a block starts take ports other than
the standard ones, and it ends them: who tries a block out has none left behind.
"""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from support import object_storage
from support.http import Http
from support.server import ROOT, binary

BLOCK = re.compile(r"(?:<!-- test: (?P<note>[^\n]*?) -->\n+)?```(?P<language>console|python)\n(?P<text>.*?)^```", re.S | re.M)
# Some blocks compile a program first, where nobody has.
LIMIT_S = 900
# An example that `cargo test` has built is run as it is: for itself, cargo would compile all libraries again with other features.
CARGO = """
cargo() {
    if [ "${1-} ${2-} ${4-} ${6-}" = "run -p --example --" ] && [ -x "$EXAMPLES/$5" ]; then
        "$EXAMPLES/$5" "${@:7}"
    else
        command cargo "$@"
    fi
}
"""
FILES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def blocks():
    for path in FILES:
        if not path.exists():
            continue
        text = path.read_text()
        for found in BLOCK.finditer(text):
            line = text.count("\n", 0, found.start("text"))
            note = found["note"] or ""
            if found["language"] == "python" and not note:
                continue
            yield pytest.param(found["language"], found["text"], note, id=f"{path.relative_to(ROOT)}:{line}")


@pytest.fixture(scope="module")
def standard_ports():
    """A server on 8000, 8001 and 8002, as the documentation assumes."""
    for port in (8000, 8001, 8002):
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) == 0:
                pytest.fail(f"port {port} is taken; the commands of the documentation need it")
    command = [str(binary()), "serve", "--model-repository", str(ROOT / "examples" / "repository")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    health = Http("localhost:8000")
    for _ in range(500):
        try:
            if health.get("/v2/health/ready").status == 200:
                break
        except OSError:
            time.sleep(0.02)
        assert process.poll() is None, "the server ended"
    yield
    process.terminate()
    assert process.wait(40) == 0


def commands(text):
    """The lines behind `$ `, each with its continuations: those behind `> `, and those after a backslash."""
    found, goes_on = [], False
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append(line[2:])
            goes_on = line.endswith("\\")
        elif line.startswith("> ") and found:
            found[-1] += "\n" + line[2:]
            goes_on = line.endswith("\\")
        elif goes_on:
            found[-1] += "\n" + line
            goes_on = line.endswith("\\")
    return found


@pytest.mark.halimede_only
@pytest.mark.parametrize("language, text, note", list(blocks()))
def test_block(request, language, text, note):
    if note.startswith("skip"):
        pytest.skip(note.removeprefix("skip").strip())
    if note == "object storage":
        object_storage.check_build()
    if note == "server":
        request.getfixturevalue("standard_ports")
    if language == "python":
        script = [sys.executable, "-c", text]
    else:
        assert commands(text), "a console block without a line that begins with `$ `"
        script = ["bash", "-euo", "pipefail", "-c", CARGO + "\n".join(commands(text))]
    # `python` has the packages of the tests, too.
    path = f"{Path(binary()).parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        examples = Path(binary()).parent / "examples"
        environment = {**os.environ, "PATH": path, "TMPDIR": folder, "EXAMPLES": str(examples)}
        status, output, left = run_in_group(script, environment)
    assert status == 0, output
    assert not left, f"processes that the block does not end: {left}"


def run_in_group(script, environment, patience_s=10):
    """Status and output of a script, and the processes that it left behind, which end here."""
    left = []
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            script, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status = process.wait(LIMIT_S)
            # Those that were told to end may take a moment.
            end = time.monotonic() + patience_s
            while (left := processes(process.pid)) and status == 0 and time.monotonic() < end:
                time.sleep(0.05)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        output.seek(0)
        return status, output.read().decode(errors="replace"), left


def processes(group):
    """The commands of a group's processes."""
    listed = subprocess.run(["ps", "-A", "-o", "pgid=,stat=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    # One that has ended stays in the list until somebody hears of it.
    return [row[2] for row in rows if len(row) == 3 and row[0] == str(group) and not row[1].startswith("Z")]


@pytest.mark.halimede_only
def test_the_readme_has_commands():
    assert any(p.id.startswith("README.md") for p in blocks())


@pytest.mark.parametrize("script, expected", [("sleep 60 & true", ["sleep 60"]), ("sleep 60 & kill $!; wait", [])])
def test_what_a_block_leaves_behind_is_found(script, expected):
    status, _, left = run_in_group(["bash", "-c", script], dict(os.environ), patience_s=1)
    assert (status, left) == (0, expected)


def test_transcripts_are_split_into_commands():
    transcript = "$ one\nits output\n$ two \\\n    more\nmore output\n$ three '{\n> }'\n"
    assert commands(transcript) == ["one", "two \\\n    more", "three '{\n}'"]
