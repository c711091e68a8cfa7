"""A plain HTTP client: what goes over the wire is what the test wrote."""

import http.client
import json
from dataclasses import dataclass


@dataclass
class Response:
    status: int
    headers: dict
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        """The text of an error reply."""
        return self.json["error"]

    def split(self):
        """The JSON part and the binary part of an inference reply."""
        size = int(self.headers["inference-header-content-length"])
        return json.loads(self.body[:size]), self.body[size:]


class Http:
    """One connection per request."""

    def __init__(self, address):
        self.address = address

    def request(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection(self.address, timeout=60)
        try:
            if isinstance(body, (dict, list)):
                body = json.dumps(body)
            if isinstance(body, str):
                body = body.encode()
            connection.request(method, path, body, headers or {})
            reply = connection.getresponse()
            names = {name.lower(): value for name, value in reply.getheaders()}
            return Response(reply.status, names, reply.read())
        finally:
            connection.close()

    def get(self, path, headers=None):
        return self.request("GET", path, None, headers)

    def post(self, path, body=b"", headers=None):
        return self.request("POST", path, body, headers)

    def infer(self, model, request, headers=None):
        return self.post(f"/v2/models/{model}/infer", request, headers)

    def infer_binary(self, model, request, blobs, headers=None):
        """JSON and the bytes of the tensors behind it."""
        head = (request if isinstance(request, str) else json.dumps(request)).encode()
        headers = {"Inference-Header-Content-Length": str(len(head)), **(headers or {})}
        return self.post(f"/v2/models/{model}/infer", head + blobs, headers)
