"""What stands around a pod in its test: certificates, calls, a load balancer."""

import contextlib
import socket
import subprocess
import threading

import grpc


def certificate(folder, name):
    """(certificate, key) as files; it is its own root."""
    files = folder / f"{name}.crt", folder / f"{name}.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                    "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,IP:::1", "-keyout",
                    files[1], "-out", files[0]], check=True, capture_output=True)
    return files


def tls_secret(files, roots=None):
    secret = {"tls.crt": files[0].read_bytes(), "tls.key": files[1].read_bytes()}
    return secret if roots is None else {**secret, "ca.crt": roots.read_bytes()}


def call(address, method, message=b"", roots=None, metadata=()):
    """The status code of a call; what it is answered is in the second place."""
    if roots is None:
        channel = grpc.insecure_channel(address)
    else:
        channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(roots.read_bytes()))
    with channel:
        try:
            return grpc.StatusCode.OK, channel.unary_unary(method)(
                message, timeout=20, metadata=metadata)
        except grpc.RpcError as error:
            return error.code(), error.details()


def healthy(port, service):
    request = b"\x0a" + bytes([len(service)]) + service.encode()
    return call(f"127.0.0.1:{port}", "/grpc.health.v1.Health/Check", request) == (
        grpc.StatusCode.OK, b"\x08\x01")


@contextlib.contextmanager
def balancer(header):
    """The address of what passes connections on to the front, each with `header` before it."""
    def copy(source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def carry(client):
        with client, socket.create_connection(("127.0.0.1", 8443)) as server:
            server.sendall(header)
            back = threading.Thread(target=copy, args=(server, client))
            back.start()
            copy(client, server)
            back.join()

    def serve():
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=carry, args=listener.accept()[:1], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=serve)
        accepting.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join()
