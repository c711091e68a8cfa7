"""TLS and mutual TLS, over HTTP and gRPC, with certificates made here."""

import datetime
import http.client
import socket
import ssl
import subprocess
import time
import urllib.request

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from tritonclient.utils import InferenceServerException

from support import models
from support.server import Server, peer_command

pytestmark = pytest.mark.skipif(peer_command() is not None, reason="the port of HTTP has no TLS there")


class Authority:
    """Signs certificates; every file it writes is PEM."""

    def __init__(self, folder, name, make_key=lambda: ec.generate_private_key(ec.SECP256R1())):
        self.folder, self.name, self.make_key = folder, name, make_key
        self.key = make_key()
        self.certificate = self.sign(self.key, name, None)
        self.file = self.write(f"{name}.crt", self.certificate.public_bytes(serialization.Encoding.PEM))

    def write(self, name, pem):
        path = self.folder / name
        path.write_bytes(pem)
        return path

    def sign(self, key, name, address):
        now = datetime.datetime.now(datetime.UTC)
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        issuer = subject if address is None else self.certificate.subject
        builder = (
            x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=address is None, path_length=None), critical=True)
        )  # fmt: skip
        if address is not None:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(address)]), critical=False)
        return builder.sign(self.key, hashes.SHA256())

    def issue(self, name, form=serialization.PrivateFormat.PKCS8):
        """Files with a certificate for localhost and its key."""
        key = self.make_key()
        pem = serialization.Encoding.PEM
        certificate = self.write(f"{name}.crt", self.sign(key, name, "localhost").public_bytes(pem))
        private = self.write(f"{name}.key", key.private_bytes(pem, form, serialization.NoEncryption()))
        return certificate, private


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def authority(folder):
    return Authority(folder, "authority")


@pytest.fixture(scope="module")
def stranger(folder):
    return Authority(folder, "stranger")


@pytest.fixture
def small(repository):
    return repository.add("add_sub", models.add_sub(1, [4]))


def flags(certificate, key, *more):
    both = [f"--{protocol}-{name}" for protocol in ("http", "grpc") for name in (f"server-cert={certificate}", f"server-key={key}", *more)]
    return both


def start(serve, small, *given):
    """A server whose port of HTTP may not be asked without TLS; the log says when it is ready."""
    server = serve(small, *given, wait=False)
    server.wait_log("Started HTTPService")
    return server


def inputs(module):
    tensors = [module.InferInput(name, [4], "FP32") for name in ("INPUT0", "INPUT1")]
    for tensor in tensors:
        tensor.set_data_from_numpy(np.ones(4, np.float32))
    return tensors


def http_infer(server, root, certificate=None, key=None):
    options = {"ca_certs": str(root)}
    if certificate:
        options |= {"certfile": str(certificate), "keyfile": str(key)}
    client = tritonclient.http.InferenceServerClient(f"localhost:{server.http_port}", ssl=True, ssl_options=options)
    try:
        return client.infer("add_sub", inputs(tritonclient.http)).as_numpy("OUTPUT0").tolist()
    finally:
        client.close()


def grpc_infer(server, root, certificate=None, key=None):
    client = tritonclient.grpc.InferenceServerClient(
        f"localhost:{server.grpc_port}", ssl=True, root_certificates=str(root),
        private_key=key and str(key), certificate_chain=certificate and str(certificate),
    )  # fmt: skip
    try:
        return client.infer("add_sub", inputs(tritonclient.grpc), client_timeout=20).as_numpy("OUTPUT0").tolist()
    finally:
        client.close()


INFER = {"http": http_infer, "grpc": grpc_infer}
KEYS = {
    "P-256": (lambda: ec.generate_private_key(ec.SECP256R1()), serialization.PrivateFormat.PKCS8),
    "P-384": (lambda: ec.generate_private_key(ec.SECP384R1()), serialization.PrivateFormat.TraditionalOpenSSL),
    "RSA": (lambda: rsa.generate_private_key(65537, 2048), serialization.PrivateFormat.PKCS8),
    "RSA, as OpenSSL writes it": (lambda: rsa.generate_private_key(65537, 2048), serialization.PrivateFormat.TraditionalOpenSSL),
}


@pytest.mark.parametrize("make_key, form", KEYS.values(), ids=KEYS.keys())
def test_clients_that_trust_the_server(small, serve, tmp_path, stranger, make_key, form):
    own = Authority(tmp_path, "own", make_key)
    server = start(serve, small, *flags(*own.issue("server", form), "use-ssl=true"))
    for infer in INFER.values():
        assert infer(server, own.file) == [2, 2, 2, 2]
    with pytest.raises(Exception, match="CERTIFICATE_VERIFY_FAILED|certificate"):
        http_infer(server, stranger.file)
    with pytest.raises(InferenceServerException):
        grpc_infer(server, stranger.file)


def test_without_tls_nothing_is_answered(small, serve, authority):
    server = start(serve, small, *flags(*authority.issue("server"), "use-ssl=true"))
    with pytest.raises((OSError, http.client.HTTPException)):
        server.http.get("/v2/health/live")
    client = tritonclient.grpc.InferenceServerClient(server.grpc_address)
    with pytest.raises(InferenceServerException):
        client.is_server_live(client_timeout=20)
    client.close()
    # Metrics have no TLS.
    assert "nv_inference_count" in server.metrics_text()


@pytest.mark.parametrize("protocol", INFER)
@pytest.mark.parametrize("extra", ["use-ssl-mutual=1", "use-ssl=1 use-ssl-mutual=1"])
def test_clients_show_a_certificate(small, serve, authority, stranger, protocol, extra):
    infer = INFER[protocol]
    server = start(
        serve, small, *flags(*authority.issue("server"), *extra.split(), f"root-cert={authority.file}")
    )
    assert infer(server, authority.file, *authority.issue("client")) == [2, 2, 2, 2]
    for identity in ((), stranger.issue("someone")):
        with pytest.raises(Exception) as refused:
            infer(server, authority.file, *identity)
        assert not isinstance(refused.value, AssertionError)


class OpenSsl:
    """Certificates as the program `openssl` makes them unless it is told of extensions: those of clients have version 1."""

    KEYS = {"P-256": ("ec", "-pkeyopt", "ec_paramgen_curve:P-256"), "P-384": ("ec", "-pkeyopt", "ec_paramgen_curve:P-384"), "RSA": ("rsa:2048",)}

    def __init__(self, folder, kind):
        self.folder, self.new = folder, ("-newkey", *self.KEYS[kind], "-nodes")

    def run(self, *arguments):
        subprocess.run(["openssl", *map(str, arguments)], cwd=self.folder, check=True, capture_output=True)

    def authority(self, file, name="authority"):
        """Of version 3, as `openssl req -x509` makes it."""
        self.run("req", "-x509", *self.new, "-days", 1, "-subj", f"/O=Test/CN={name}", "-keyout", f"{file}.key", "-out", f"{file}.crt")
        return self.folder / f"{file}.crt"

    def client(self, file, issuer, days=1):
        """A certificate and its key."""
        certificate, key = self.folder / f"{file}.crt", self.folder / f"{file}.key"
        self.run("req", *self.new, "-subj", f"/O=Test/CN={file}", "-keyout", key, "-out", f"{file}.csr")
        self.run("x509", "-req", "-in", f"{file}.csr", "-CA", f"{issuer}.crt", "-CAkey", f"{issuer}.key", "-set_serial", 1,
                 "-days", days, "-out", certificate)  # fmt: skip
        assert x509.load_pem_x509_certificate(certificate.read_bytes()).version == x509.Version.v1
        return certificate, key


def answer(server, protocol, root, certificate, key, version):
    """What the server first sends a client with this certificate; an error or nothing if it does not let it in."""
    context = ssl.create_default_context(cafile=root)
    context.minimum_version = context.maximum_version = version
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["h2" if protocol == "grpc" else "http/1.1"])
    port, first = {
        "http": (server.http_port, b"GET /v2 HTTP/1.1\r\nhost: localhost\r\n\r\n"),
        # The preface of HTTP/2 and empty settings.
        "grpc": (server.grpc_port, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))),
    }[protocol]
    with socket.create_connection(("localhost", port), 20) as plain:
        with context.wrap_socket(plain, server_hostname="localhost") as secured:
            secured.sendall(first)
            return secured.recv(9)


VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
ANSWERS = {"http": b"HTTP/1.1 ", "grpc": b"\x00"}


@pytest.mark.parametrize("kind", OpenSsl.KEYS)
def test_certificates_of_clients_of_version_1(small, serve, authority, tmp_path, kind):
    openssl = OpenSsl(tmp_path, kind)
    root = openssl.authority("own")
    good = openssl.client("client", "own")
    # Of an authority with the same name; of one with another; of a client, with its certificate behind.
    openssl.authority("twin")
    openssl.authority("stranger", name="stranger")
    guest, guest_key = openssl.client("guest", "client")
    guest.write_bytes(guest.read_bytes() + good[0].read_bytes())
    expired, expired_key = openssl.client("expired", "own", days=-1)
    forged = tmp_path / "forged.crt"
    der = ssl.PEM_cert_to_DER_cert(good[0].read_text())
    forged.write_text(ssl.DER_cert_to_PEM_cert(der.replace(b"client", b"Client")))
    refused = {
        "an authority with the same name": openssl.client("of-twin", "twin"),
        "another authority": openssl.client("of-stranger", "stranger"),
        "a client": (guest, guest_key),
        "a period that is over": (expired, expired_key),
        "a name that was not signed": (forged, good[1]),
    }
    server = start(serve, small, *flags(*authority.issue("server"), "use-ssl-mutual=1", f"root-cert={root}"))
    for protocol, infer in INFER.items():
        assert infer(server, authority.file, *good) == [2, 2, 2, 2]
        for name, version in VERSIONS.items():
            first = answer(server, protocol, authority.file, *good, version)
            assert first.startswith(ANSWERS[protocol]), f"{protocol}, TLS {name}: {first}"
            for why, identity in refused.items():
                try:
                    first = answer(server, protocol, authority.file, *identity, version)
                except OSError:
                    first = b""
                assert first == b"", f"{protocol}, TLS {name}, a certificate with {why}: {first}"


def test_http_over_tls_speaks_no_old_version_and_http_1_1(small, serve, authority):
    server = start(serve, small, *flags(*authority.issue("server"), "use-ssl=true"))
    context = ssl.create_default_context(cafile=authority.file)
    context.set_alpn_protocols(["h2", "http/1.1"])
    address = ("localhost", server.http_port)
    with socket.create_connection(address) as plain, context.wrap_socket(plain, server_hostname="localhost") as secured:
        assert secured.version() == "TLSv1.3"
        assert secured.selected_alpn_protocol() == "http/1.1"
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection(address) as plain, context.wrap_socket(plain, server_hostname="localhost") as secured:
        assert secured.version() == "TLSv1.2"
    url = f"https://localhost:{server.http_port}/v2/health/live"
    assert urllib.request.urlopen(url, context=ssl.create_default_context(cafile=authority.file)).status == 200


def test_a_client_that_says_nothing_does_not_hold_the_end_up(small, serve, authority):
    server = start(serve, small, *flags(*authority.issue("server"), "use-ssl=true"))
    with socket.create_connection(("localhost", server.grpc_port)), socket.create_connection(("localhost", server.http_port)):
        assert http_infer(server, authority.file) == [2, 2, 2, 2]
        start_of_end = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - start_of_end < 15, "it waited for handshakes that never come"


WRONG = {
    "no certificate": (["use-ssl=1"], "TLS needs --{}-server-cert, a file in PEM format"),
    "no file": (["use-ssl=1", "server-cert=/nowhere.crt"], "--{}-server-cert '/nowhere.crt' cannot be read"),
    "no key": (["use-ssl=1", "server-cert=CERT"], "TLS needs --{}-server-key, a file in PEM format"),
    "a key instead": (["use-ssl=1", "server-cert=KEY", "server-key=KEY"], "holds no certificate in PEM format"),
    "a certificate instead": (["use-ssl=1", "server-cert=CERT", "server-key=CERT"], "holds no private key in PEM format"),
    "another key": (["use-ssl=1", "server-cert=CERT", "server-key=OTHER"], "is not the one of the certificate"),
    "no root": (["use-ssl-mutual=1", "server-cert=CERT", "server-key=KEY"], "TLS needs --{}-root-cert, a file in PEM format"),
}


@pytest.mark.parametrize("protocol", INFER)
@pytest.mark.parametrize("given, expected", WRONG.values(), ids=WRONG.keys())
def test_wrong_files_end_the_server(small, authority, protocol, given, expected):
    certificate, key = authority.issue("server")
    files = {"CERT": certificate, "KEY": key, "OTHER": authority.issue("other")[1]}
    named = [f"--{protocol}-{name}={files.get(value, value)}" for name, value in (one.split("=") for one in given)]
    server = Server([small.path], *named, wait=False)
    assert server.wait_exit() == 1
    assert expected.format(protocol) in server.log_text()
