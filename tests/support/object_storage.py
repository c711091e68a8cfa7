"""Servers of the protocols of S3, Azure Storage and Google Cloud Storage, from the package registries."""

import base64
import hashlib
import hmac
import http.client
import json
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.parse
from email.utils import formatdate
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.server import ROOT, binary, free_ports

START_SECONDS_MAX = 60


def check_build():
    """Skips where the binary under test was built without the feature, and fails where it has to have it."""
    command = [str(binary()), "serve", "--model-repository", "s3://bucket", "--model-repository", "none://"]
    text = subprocess.run(command, capture_output=True, text=True, timeout=60).stderr
    if "s3:// file-system not supported" in text:
        missing("the feature cloud-repositories is not part of this build")


def missing(what):
    assert not os.environ.get("HALIMEDE_EXPECT_OBJECT_STORAGE"), what
    pytest.skip(what)


class Storage:
    """A server process on a port of its own; what it prints goes to a log."""

    def __init__(self, command, env=None, is_encrypted=False):
        (self.port,) = free_ports(1)
        self.is_encrypted = is_encrypted
        self.folder = Path(tempfile.mkdtemp(prefix="storage-"))
        self.log = self.folder / "log"
        self.command, self.env = command, {**os.environ, **(env or {})}
        self.start()

    def start(self):
        with open(self.log, "a") as log:
            command = [part.format(port=self.port, folder=self.folder) for part in self.command]
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=self.env, cwd=self.folder)
        end = time.monotonic() + START_SECONDS_MAX
        while True:
            assert self.process.poll() is None, f"{self.command[0]} ended:\n{self.log.read_text()[-2000:]}"
            assert time.monotonic() < end, f"{self.command[0]} does not answer:\n{self.log.read_text()[-2000:]}"
            try:
                return self.request("GET", "/")
            except OSError:
                time.sleep(0.05)

    def request(self, method, path, body=b"", headers=None):
        """Status and body of an answer; the path is sent as it is."""
        if self.is_encrypted:
            trusting = ssl._create_unverified_context()
            connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=30, context=trusting)
        else:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def stop(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        self.stop()
        shutil.rmtree(self.folder)


class Bucket:
    """A bucket, with what the tests do to it."""

    def __init__(self, storage, name):
        self.storage, self.name = storage, name
        assert self.make() in (200, 201, 409)

    def upload(self, path, prefix="", only=""):
        """All files below a folder, or those whose path begins so."""
        for file in sorted(Path(path).rglob("*")):
            name = str(file.relative_to(path))
            if file.is_file() and name.startswith(only):
                self.put(f"{prefix}{name}", file.read_bytes())
            elif file.is_dir() and not any(file.iterdir()):
                self.mark(f"{prefix}{name}/")

    def mark(self, folder):
        """A folder with nothing in it."""
        self.put(folder, b"")

    def quoted(self, name):
        return urllib.parse.quote(name, safe="/")


class S3Bucket(Bucket):
    # Anybody but nobody may do everything.
    someone = {"Authorization": "AWS4-HMAC-SHA256 Credential=a/b/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=c"}

    def make(self):
        return self.storage.request("PUT", f"/{self.name}", headers=self.someone)[0]

    def put(self, name, content, **headers):
        headers = {key.replace("_", "-"): value for key, value in headers.items()}
        path = f"/{self.name}/{self.quoted(name)}"
        status, body = self.storage.request("PUT", path, content, {**headers, **self.someone})
        assert status == 200, body

    def delete(self, name):
        path = f"/{self.name}/{self.quoted(name)}"
        status, body = self.storage.request("DELETE", path, headers=self.someone)
        assert status == 204, body

    @property
    def address(self):
        return f"s3://127.0.0.1:{self.storage.port}/{self.name}"

    env = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


def moto(env=None, tls=()):
    """A server of S3's protocol, with a certificate and its key where connections are to be encrypted."""
    if find_spec("moto") is None or find_spec("flask") is None:
        missing("moto is missing: pip install 'moto[s3,server]'")
    encrypted = ["-s", "-c", str(tls[0]), "-k", str(tls[1])] if tls else []
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "{port}", *encrypted]
    return Storage(command, env, is_encrypted=bool(tls))


def guarded_moto(user, password):
    """The same, which lets in one user alone."""
    program = ROOT / "scripts" / "qa" / "minio.py"
    env = {"MINIO_ACCESS_KEY": user, "MINIO_SECRET_KEY": password}
    return Storage([sys.executable, str(program), "--address", "127.0.0.1:{port}"], env)


def fetched(storage):
    """The objects that were read from a server of S3's protocol, as its log names them, in their order."""
    found = []
    for line in storage.log.read_text().splitlines():
        if '"GET /' in line and "list-type=" not in line:
            found.append(line.split('"GET /', 1)[1].split(" ")[0])
    return found


AZURITE_ACCOUNT = "devstoreaccount1"
# The key that every emulator has.
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class AzureContainer(Bucket):
    def ask(self, method, name="", content=b"", query="", **headers):
        """A request with Azure's signature by a shared key."""
        path = f"/{AZURITE_ACCOUNT}/{self.name}" + (f"/{self.quoted(name)}" if name else "")
        date = formatdate(usegmt=True)
        headers = {**headers, "x-ms-date": date, "x-ms-version": "2023-11-03"}
        known = "".join(f"{key}:{headers[key]}\n" for key in sorted(headers))
        length = len(content) or ""
        parameters = "".join(f"\n{part.replace('=', ':')}" for part in query.split("&") if part)
        signed = f"{method}\n\n\n{length}\n\n\n\n\n\n\n\n\n{known}/{AZURITE_ACCOUNT}{path}{parameters}"
        digest = hmac.new(base64.b64decode(AZURITE_KEY), signed.encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {AZURITE_ACCOUNT}:{base64.b64encode(digest).decode()}"
        return self.storage.request(method, path + (f"?{query}" if query else ""), content, headers)

    def make(self):
        return self.ask("PUT", query="restype=container")[0]

    def put(self, name, content):
        status, body = self.ask("PUT", name, content, **{"x-ms-blob-type": "BlockBlob"})
        assert status == 201, body

    def delete(self, name):
        assert self.ask("DELETE", name)[0] == 202

    @property
    def address(self):
        return f"as://{AZURITE_ACCOUNT}/{self.name}"

    @property
    def env(self):
        return {
            "AZURE_STORAGE_ACCOUNT": AZURITE_ACCOUNT,
            "AZURE_STORAGE_KEY": AZURITE_KEY,
            "AZURITE_BLOB_STORAGE_URL": f"http://127.0.0.1:{self.storage.port}",
        }


def azurite():
    """A server of Azure Storage's protocol: the package `azurite` of npm."""
    usual = ROOT / "target" / "azurite" / "node_modules" / ".bin" / "azurite-blob"
    program = shutil.which("azurite-blob") or (str(usual) if usual.exists() else None)
    if program is None:
        missing("azurite-blob is missing: scripts/install-npm-package.sh azurite")
    options = ["--blobPort", "{port}", "--inMemoryPersistence", "--skipApiVersionCheck"]
    return Storage([program, *options, "--disableTelemetry"])


class GcsBucket(Bucket):
    def make(self):
        body = json.dumps({"name": self.name}).encode()
        return self.storage.request("POST", "/storage/v1/b", body, {"Content-Type": "application/json"})[0]

    def put(self, name, content):
        path = f"/upload/storage/v1/b/{self.name}/o?uploadType=media&name={urllib.parse.quote(name, safe='')}"
        status, body = self.storage.request("POST", path, content, {"Content-Type": "application/octet-stream"})
        assert status == 200, body

    def mark(self, folder):
        # The emulator takes no empty objects.
        self.put(f"{folder}keep", b"-")

    def delete(self, name):
        path = f"/storage/v1/b/{self.name}/o/{urllib.parse.quote(name, safe='')}"
        assert self.storage.request("DELETE", path)[0] in (200, 204)

    @property
    def address(self):
        return f"gs://{self.name}"

    @property
    def env(self):
        return {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{self.storage.port}"}


def gcs_emulator():
    """A server of Google Cloud Storage's protocol."""
    if find_spec("gcp_storage_emulator") is None:
        missing("gcp-storage-emulator is missing: pip install gcp-storage-emulator")
    command = [sys.executable, "-m", "gcp_storage_emulator", "start", "--host", "127.0.0.1", "--port", "{port}", "-M"]
    return Storage(command)
