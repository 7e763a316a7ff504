"""The API of a cluster, as far as a gateway asks it: the pods of one namespace, listed and watched, over TLS."""

import http.server
import json
import ssl
import subprocess
import threading
import urllib.parse


def _openssl(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def _certificates(folder):
    """(roots, certificate, key) of a server at 127.0.0.1; clients of clusters want the two to differ."""
    roots, leaf, request = folder / "cluster-ca.crt", folder / "cluster.crt", folder / "cluster.csr"
    keys = folder / "cluster-ca.key", folder / "cluster.key"
    _openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", 2, "-subj", "/CN=ca", "-keyout", keys[0], "-out", roots)
    _openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=cluster", "-keyout", keys[1], "-out", request)
    names = folder / "cluster.names"
    names.write_text("subjectAltName=IP:127.0.0.1")
    _openssl("x509", "-req", "-in", request, "-CA", roots, "-CAkey", keys[0], "-CAcreateserial", "-days", 2,
             "-extfile", names, "-out", leaf)
    return roots, leaf, keys[1]


class Cluster:
    namespace, token = "llm", "a-token-of-the-service-account"

    def __init__(self, folder, port):
        self.port = port
        self.roots, certificate, key = _certificates(folder)
        self.pods, self.version, self.events = {}, 1, []
        self.changed = threading.Condition()
        self.refused = []  # what was asked and is not in the role
        cluster = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                cluster.answer(self)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def put(self, name, address, labels, annotations, ready=True, leaving=False):
        """A pod as the kubelet would tell of it."""
        metadata = {"name": name, "namespace": self.namespace, "uid": f"uid-{name}", "labels": labels,
                    "annotations": annotations, **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if leaving else {})}
        status = {"phase": "Running", "podIP": address,
                  "conditions": [{"type": "Ready", "status": "True" if ready else "False"}]}
        with self.changed:
            kind = "MODIFIED" if name in self.pods else "ADDED"
            self.version += 1
            metadata["resourceVersion"] = str(self.version)
            self.pods[name] = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": []},
                               "status": status}
            self.events.append((self.version, {"type": kind, "object": self.pods[name]}))
            self.changed.notify_all()

    def answer(self, request):
        asked = urllib.parse.urlparse(request.path)
        query = dict(urllib.parse.parse_qsl(asked.query))
        if (asked.path != f"/api/v1/namespaces/{self.namespace}/pods"
                or request.headers.get("authorization") != f"Bearer {self.token}"):
            self.refused.append(request.path)
            request.send_error(403)
        elif "watch" in query:
            self._watch(request, query)
        else:
            with self.changed:
                body = json.dumps({"apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": str(self.version)},
                                   "items": self._selected(query, self.pods.values())}).encode()
            request.send_response(200)
            request.send_header("content-type", "application/json")
            request.send_header("content-length", str(len(body)))
            request.end_headers()
            request.wfile.write(body)

    @staticmethod
    def _selected(query, pods):
        wanted = dict(pair.split("=", 1) for pair in query["labelSelector"].split(","))
        return [pod for pod in pods if wanted.items() <= pod["metadata"]["labels"].items()]

    def _watch(self, request, query):
        request.send_response(200)
        request.send_header("content-type", "application/json")
        request.send_header("connection", "close")  # the body is all that comes
        request.end_headers()
        request.close_connection = True
        seen = int(query["resourceVersion"])
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.version > seen)
                new = [event for version, event in self.events if version > seen]
                seen = self.version
            for event in new:
                if self._selected(query, [event["object"]]):
                    request.wfile.write(json.dumps(event).encode() + b"\n")
            request.wfile.flush()
