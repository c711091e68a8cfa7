"""What the log looks like, where it goes, and changing that while the server runs."""

import json
import re

import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from support import models

DEFAULT = re.compile(r"[IWE]\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ \w+\.rs:\d+\] (.*)")
ISO8601 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ [IWE] \d+ \w+\.rs:\d+\] (.*)")
# What a line of the log looks like, sent by a client that wants to write one.
FORGED = 'x"\nI0205 18:34:18.707423 1 file.rs:123] "forged\u001b[31m'


@pytest.fixture
def small(repository):
    return repository.add("add_sub", models.add_sub(1, [4]))


def records(text, form):
    """The messages of all lines, each of which has to be a record."""
    found = [form.fullmatch(line) for line in text.splitlines()]
    assert found and all(found), text
    return [match[1] for match in found]


@pytest.mark.parametrize("name, form", [("default", DEFAULT), ("ISO8601", ISO8601)])
def test_formats_and_file(small, serve, tmp_path, name, form):
    file = tmp_path / "server.log"
    server = serve(small, f"--log-file={file}", f"--log-format={name}")
    messages = [json.loads(message) for message in records(file.read_text(), form)]
    assert any("add_sub" in message and "READY" in message for message in messages)
    assert "READY" not in server.log_text()
    assert server.http.get("/v2/logging").json["log_file"] == str(file)


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
    assert server.wait_log(r"\] model add_sub version 1 is READY\n")


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
