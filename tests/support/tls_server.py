"""A TLS server with its own certificate authority that misbehaves on command."""

import ssl
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from socket import create_server, socket

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

Behavior = Callable[[socket, threading.Event], None]
Issued = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]


def issue(name: str, issuer: Issued | None = None) -> Issued:
    """A certificate for a host name; without an issuer, the certificate of an authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    by, signer = (issuer[0].subject, issuer[1]) if issuer else (subject, key)
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(by, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(hours=1))
    builder = builder.add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    return builder.sign(signer, hashes.SHA256()), key


def pem(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey | None = None) -> bytes:
    chain = certificate.public_bytes(serialization.Encoding.PEM)
    if key is not None:
        form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        chain += key.private_bytes(serialization.Encoding.PEM, form, plain)
    return chain


class TlsServer:
    """Serves each connection as the test defines; counts connections and records requests."""

    def __init__(self, context: ssl.SSLContext, behavior: Behavior | bytes) -> None:
        self.context = context
        self.behavior = partial(send_bytes, behavior) if isinstance(behavior, bytes) else behavior
        self.connections = 0
        self.requests: list[bytes] = []
        self.stopping = threading.Event()
        self.listener = create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self.listener.getsockname()
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        while not self.stopping.is_set():
            connection, _ = self.listener.accept()
            with connection:
                if self.stopping.is_set():
                    return
                self.connections += 1
                self._answer(connection)

    def _answer(self, connection: socket) -> None:
        try:
            if self.behavior is silent:
                self.stopping.wait(30)
                return
            with self.context.wrap_socket(connection, server_side=True) as secure:
                self.requests.append(secure.recv(65536))
                self.behavior(secure, self.stopping)
        except OSError:
            pass  # the client gave up, as most of these tests expect

    def stop(self) -> None:
        self.stopping.set()
        with socket() as last:
            last.connect(self.address)
        self.thread.join()
        self.listener.close()


# -- how a server may behave ----------------------------------------------------------------------------------------


def send_bytes(answer: bytes, connection: socket, stopping: threading.Event) -> None:
    connection.sendall(answer)


def ok(content: bytes, *headers: bytes) -> bytes:
    lines = [b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(content), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + content


def silent(connection: socket, stopping: threading.Event) -> None:
    """Accepts the connection and never starts the TLS handshake."""


def dripping(start: bytes, connection: socket, stopping: threading.Event) -> None:
    """Sends one byte at a time, each well within the timeout of a socket."""
    connection.sendall(start)
    while not stopping.wait(0.01):
        connection.sendall(b"x")


def endless(connection: socket, stopping: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while not stopping.is_set():
        connection.sendall(b"x" * 65536)


class Canary:
    """A listener that must not get any connection."""

    def __enter__(self) -> "Canary":
        self.listener = create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.connections = 0
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.setblocking(False)
        try:
            while True:
                self.listener.accept()[0].close()
                self.connections += 1
        except BlockingIOError:
            self.listener.close()
