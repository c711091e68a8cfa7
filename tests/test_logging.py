"""What the log looks like, where it goes, and changing that while the server runs."""

import json
import os
import re
import sys

import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from support import models
from support.python_models import INTERPRETER, add, ask, config
from support.server import Server

DEFAULT = re.compile(r"[IWE]\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ \w+\.rs:\d+\] (.*)")
ISO8601 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ [IWE] \d+ \w+\.rs:\d+\] (.*)")
# What a line of the log looks like, sent by a client that wants to write one.
FORGED = 'x"\nI0205 18:34:18.707423 1 file.rs:123] "forged\u001b[31m'


@pytest.fixture
def small(repository):
    return repository.add("add_sub", models.add_sub(1, [4]))


# A table is a record without a message, and lines of its own.
TABLE = re.compile(r"\] \n(\+[-+]+\+\n)(?:\|.*\|\n)+\1(?:\|.*\|\n)*\1\n?")


def records(text, form):
    """The messages of all lines, each of which has to be a record; without tables."""
    found = [form.fullmatch(line) for line in TABLE.sub('] \n', text).splitlines()]
    assert found and all(found), text
    return [match[1] for match in found if match[1]]


@pytest.mark.parametrize("name, form", [("default", DEFAULT), ("ISO8601", ISO8601)])
def test_formats_and_file(small, serve, tmp_path, name, form):
    file = tmp_path / "server.log"
    server = serve(small, f"--log-file={file}", f"--log-format={name}")
    messages = [json.loads(message) for message in records(file.read_text(), form)]
    assert "successfully loaded 'add_sub'" in messages
    assert re.search(r"^\| add_sub \| 1       \| READY  \|$", file.read_text(), re.MULTILINE)
    assert "add_sub" not in server.log_text()
    assert server.http.get("/v2/logging").json["log_file"] == str(file)


LOGS = """
import sys

sys.path.append(os.path.dirname(__file__))
import helper


class TritonPythonModel:
    def initialize(self, args):
        pb_utils.Logger.log_info("of initialize")

    def execute(self, requests):
        log = pb_utils.Logger
        log.log_info("of execute"); log.log_warn("of execute"); log.log_error("of execute"); log.log_verbose("of execute")
        log.log("of log", log.ERROR)
        helper.tell(log)
        exec(compile("log.log_info('of a strange file')", 'a\\nE1126 00:00:00.000000 1 forged:1] "', "exec"))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", one.inputs()[0].as_numpy())]) for one in requests]
"""


@pytest.mark.parametrize("name, form", [("default", DEFAULT), ("ISO8601", ISO8601)])
def test_lines_of_python_models_name_their_code(repository, serve, tmp_path, name, form):
    add(repository, "logs", LOGS, config({"IN": "STRING"}, {"OUT": "STRING"}))
    (repository.path / "logs" / "1" / "helper.py").write_text("\n\ndef tell(log):\n    log.log_info('of a helper')\n")
    code = (repository.path / "logs" / "1" / "model.py").read_text().splitlines()
    line = {what: next(number for number, text in enumerate(code, 1) if f'("{what}"' in text)
            for what in ("of initialize", "of execute", "of log")}  # fmt: skip
    file = tmp_path / "server.log"
    server = serve(repository, INTERPRETER, f"--log-file={file}", f"--log-format={name}", "--log-verbose=1")
    with tritonclient.http.InferenceServerClient(server.http_address) as http:
        assert ask(http, "logs", "x") == b"x"
    found = re.findall(r'([IWE])\S* .*?(\S+:\d+)\] "(of .*)"', re.sub(r"\S*Z ([IWE])", r"\1", file.read_text()))
    execute = f"model.py:{line['of execute']}"
    assert [one for one in found if "strange" not in one[2]] == [
        ("I", f"model.py:{line['of initialize']}", "of initialize"), ("I", execute, "of execute"),
        ("W", execute, "of execute"), ("E", execute, "of execute"), ("I", execute, "of execute"),
        ("E", f"model.py:{line['of log']}", "of log"), ("I", "helper.py:4", "of a helper"),
    ]  # fmt: skip
    # A name of a file makes no line of its own.
    assert "forged" in file.read_text() and not re.search("^E1126 00:00:00", file.read_text(), re.M)


def test_nothing_that_a_client_sends_forges_a_line(small, serve, tmp_path):
    file = tmp_path / "server.log"
    server = serve(small, f"--log-file={file}", "--log-verbose=2", "--model-control-mode=explicit", "--load-model=add_sub")
    config = json.dumps({"backend": FORGED})
    assert server.http.post("/v2/repository/models/add_sub/load", {"parameters": {"config": config}}).status == 400
    messages = [json.loads(message) for message in records(file.read_text(), DEFAULT)]
    assert any("forged" in message for message in messages), "nothing of it was logged"


def test_messages_as_they_are(small, serve):
    """Triton's variable switches the escapes off."""
    server = serve(small, env={"TRITON_SERVER_ESCAPE_LOG_MESSAGES": "0"})
    assert server.wait_log(r"\] successfully loaded 'add_sub'\n")


def test_tables_tell_what_was_started(small, serve):
    """Names, states and options, without quotes around them, as programs know them from Triton."""
    repository = small
    repository.add("broken", config='backend: "onnxruntime"\nmax_batch_size: 1\n')
    server = serve(repository, "--exit-on-error=false", "--strict-readiness=false", "--id=the server", "--exit-timeout-secs=7")
    text = server.log_text()
    head, rows = re.search(r"\] \n\+[-+]+\n(\| Model .*\n)\+[-+]+\n((?:\|.*\n)+)\+[-+]+\n", text).groups()
    assert re.fullmatch(r"\| Model +\| Version \| Status +\|\n", head)
    found = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows.splitlines()]
    assert found[0] == ["add_sub", "1", "READY"]
    assert found[1][:2] == ["broken", "1"] and found[1][2].startswith("UNAVAILABLE: ")
    options = dict(re.findall(r"^\| (\w[\w\[\]]*) +\| (.*?) +\|$", text[text.index("| Option") :], re.MULTILINE))
    assert options["server_id"] == "the server" and options["exit_timeout"] == "7" and options["strict_readiness"] == "0"
    assert options["model_repository_path[0]"] == str(repository.path) and options["model_control_mode"] == "MODE_NONE"


def test_a_server_that_does_not_start_tells_why(small):
    """With the table of models, and with protobuf's words about a configuration that is none."""
    small.add("broken", config='backend: "onnxruntime"\nmax_batch_size: 1\n')
    server = Server([small.path], wait=False)
    assert server.process.wait(60) == 1
    assert re.search(r"^\| broken +\| 1 +\| UNAVAILABLE: .*\|$", server.log_text(), re.MULTILINE)
    small.add("wrong", config='backend: "identity"\nmax_batch_size: "eight"\n')
    server = Server([small.path], wait=False)
    assert server.process.wait(60) == 1
    said = 'Error parsing text-format inference.ModelConfig: 2:17: Expected integer, got: "eight"; field "max_batch_size" takes'
    assert said in server.log_text()


def test_settings_change_while_the_server_runs(small, serve, tmp_path):
    file = tmp_path / "server.log"
    server = serve(small, f"--log-file={file}")
    http = tritonclient.http.InferenceServerClient(server.http_address)
    grpc = tritonclient.grpc.InferenceServerClient(server.grpc_address)

    def added(work):
        """The lines that the log gets from `work`."""
        before = file.read_text()
        work()
        return file.read_text()[len(before) :]

    def look():
        server.http.get("/v2/models/add_sub")

    assert added(look) == ""
    # What is logged of a request is written before the answer is sent.
    http.update_log_settings({"log_verbose_level": 1, "log_format": "ISO8601"})
    assert records(added(look), ISO8601) == ['"HTTP request: GET /v2/models/add_sub"']
    grpc.update_log_settings({"log_format": "default"})
    assert records(added(look), DEFAULT) == ['"HTTP request: GET /v2/models/add_sub"']
    changed = grpc.update_log_settings({"log_verbose_level": 0, "log_info": False}, as_json=True)
    assert "boolParam" not in changed["settings"]["log_info"] or not changed["settings"]["log_info"]["boolParam"]
    assert added(look) == ""
    settings = {"log_file": str(file), "log_info": False, "log_warning": True, "log_error": True,
                "log_verbose_level": 0, "log_format": "default"}  # fmt: skip
    assert http.get_log_settings() == settings
    for client in (http, grpc):
        with pytest.raises(InferenceServerException, match="log file location can not be updated through network"):
            client.update_log_settings({"log_file": "other.log", "log_info": True})
    assert http.get_log_settings() == settings
    http.close()
    grpc.close()


@pytest.mark.skipif(sys.platform != "linux", reason="sets the limit of another process")
@pytest.mark.skipif(os.environ.get("TRITONSERVER") is not None, reason="asks this server")
def test_a_log_that_may_not_grow_does_not_end_the_server(small, tmp_path):
    import resource

    log = tmp_path / "log"
    with Server([small.path], f"--log-file={log}", "--log-verbose=1") as server:
        assert log.stat().st_size > 100
        # More is there than may be written; what the server prints at its end goes to a file, too.
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        for _ in range(20):
            assert server.http.get("/v2/health/ready").status == 200
        assert server.process.poll() is None


RAISES = """
class TritonPythonModel:
    def execute(self, requests):
        raise ValueError("no such thing")
"""


def test_an_exception_of_a_python_model_is_logged(repository, serve, tmp_path):
    add(repository, "raises", RAISES, config({"IN": "STRING"}, {"OUT": "STRING"}))
    file = tmp_path / "server.log"
    server = serve(repository, INTERPRETER, f"--log-file={file}")
    with tritonclient.http.InferenceServerClient(server.http_address) as http:
        with pytest.raises(InferenceServerException, match="ValueError: no such thing"):
            ask(http, "raises", "x")
    lines = [line for line in file.read_text().splitlines() if "no such thing" in line and line.startswith("E")]
    assert len(lines) == 1 and "Failed to process the request(s) for model 'raises_0_0'" in lines[0]
