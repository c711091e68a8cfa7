"""A stand-in for MinIO: moto behind a check of signatures, for one user.

    python3 minio.py [anything MinIO takes] --address HOST:PORT

User and password come from MINIO_ACCESS_KEY and MINIO_SECRET_KEY, as MinIO reads them. Ends with status 0.
"""

import hashlib
import hmac
import os
import signal
import sys
import urllib.parse

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

USER, PASSWORD = os.environ["MINIO_ACCESS_KEY"], os.environ["MINIO_SECRET_KEY"]


def signature(environ):
    """The signature of a request, and the one that it should have (Signature Version 4)."""
    path, _, query = environ["RAW_URI"].partition("?")
    parameters = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
    if "X-Amz-Signature" in parameters:
        given = parameters.pop("X-Amz-Signature")
        credential, names = parameters["X-Amz-Credential"], parameters["X-Amz-SignedHeaders"]
        date, payload = parameters["X-Amz-Date"], "UNSIGNED-PAYLOAD"
    else:
        fields = environ["HTTP_AUTHORIZATION"].removeprefix("AWS4-HMAC-SHA256 ").split(",")
        fields = dict(field.strip().split("=", 1) for field in fields)
        given, credential, names = fields["Signature"], fields["Credential"], fields["SignedHeaders"]
        date, payload = environ["HTTP_X_AMZ_DATE"], environ["HTTP_X_AMZ_CONTENT_SHA256"]
    quote = urllib.parse.quote
    canonical_query = "&".join(f"{quote(key, safe='')}={quote(parameters[key], safe='')}" for key in sorted(parameters))
    headers = ""
    for name in names.split(";"):
        key = name.upper().replace("-", "_")
        value = environ.get(key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{key}", "")
        headers += f"{name}:{' '.join(value.split())}\n"
    request = "\n".join([environ["REQUEST_METHOD"], path, canonical_query, headers, names, payload])
    user, *scope = credential.split("/")
    text = "\n".join(["AWS4-HMAC-SHA256", date, "/".join(scope), hashlib.sha256(request.encode()).hexdigest()])
    key = b"AWS4" + PASSWORD.encode()
    for part in scope:
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    right = hmac.new(key, text.encode(), hashlib.sha256).hexdigest() if user == USER else None
    return given, right


def guarded(app):
    def check(environ, start_response):
        try:
            given, right = signature(environ)
        except KeyError:
            given, right = None, ""
        if given != right:
            start_response("403 Forbidden", [("Content-Type", "application/xml")])
            return [b"<Error><Code>SignatureDoesNotMatch</Code><Message>no</Message></Error>"]
        return app(environ, start_response)

    return check


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    host, port = sys.argv[sys.argv.index("--address") + 1].split(":")
    run_simple(host, int(port), guarded(DomainDispatcherApplication(create_backend_app)), threaded=True)
