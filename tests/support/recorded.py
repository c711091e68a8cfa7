"""Requests with the answers that a real tritonserver 2.51.0 gave (`recorded/*.json`).

One case per line: `name`, `request` (method and path), `headers`, `body` (text)
and `blob` (base64, sent behind the body); the answer is `status`, `type` (the
content type), `json_size` (Inference-Header-Content-Length), `reply` (text) or
`reply_blob` (base64). `tests/record.py` writes the answers.
"""

import base64
import json
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "recorded"
ANSWER = ("status", "type", "json_size", "reply", "reply_blob")


def load(path):
    return json.loads(path.read_text())


def save(path, cases):
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    path.write_text(f"[\n{lines}\n]\n")


def send(http, case):
    """The answer of the server behind `http`, in the form of the file."""
    method, path = case["request"].split(" ", 1)
    body = None
    if "body" in case or "blob" in case:
        body = case.get("body", "").encode() + base64.b64decode(case.get("blob", ""))
    response = http.request(method, path, body, case.get("headers"))
    answer = {"status": response.status, "type": response.headers.get("content-type")}
    if "inference-header-content-length" in response.headers:
        answer["json_size"] = int(response.headers["inference-header-content-length"])
    try:
        answer["reply"] = response.body.decode()
    except UnicodeDecodeError:
        answer["reply_blob"] = base64.b64encode(response.body).decode()
    return answer


def expected(case):
    return {key: case[key] for key in ANSWER if key in case}
