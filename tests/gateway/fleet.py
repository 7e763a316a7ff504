"""Servers and a gateway in front of them, as processes of this host."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

from eta_api import ROOT, EtaApi

MODEL = ROOT / "models/smollm2-eta/SmolLM2-135M-Instruct-ETA.Q8_0.gguf"
CONTEXT = 4096
SECONDS = 60


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def wait_for(what, condition, seconds=SECONDS, every=0.05):
    """What `condition` gives, once that is true."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {seconds} s")
        time.sleep(every)
    return found


class Process:
    """A program that is stopped at the end, with its output in a file."""

    def __init__(self, name, folder):
        self.log = pathlib.Path(folder) / f"{name}.log"
        self.process = None

    def run(self, command, **more):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([str(word) for word in command], stdout=log, stderr=log, **more)

    def says(self, text):
        if self.process.poll() is not None:
            raise AssertionError(f"{self.log.name}: ended with {self.process.returncode}:\n{self.tail()}")
        return text in self.log.read_text(errors="replace")

    def tail(self):
        return self.log.read_text(errors="replace")[-3000:]

    def stop(self, number=signal.SIGTERM):
        """The exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(SECONDS)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            print(f"--- {self.log.name} ends with:\n{self.tail()}")
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()


class Server(Process):
    """One eta-server, with a listener for gateways; `start` starts it, also again."""

    def __init__(self, build, name, folder, classes):
        super().__init__(name, folder)
        self.build = pathlib.Path(build)
        self.classes = classes
        self.own, self.vllm = (f"127.0.0.1:{free_port()}" for _ in range(2))

    def start(self, *flags):
        """`flags` go before those that are here."""
        self.log.write_bytes(b"")
        usual = ("--threads=1", "--kv_pool_bytes=256MB", f"--max_context={CONTEXT}",
                 f"--listen={self.own}", f"--vllm_listen={self.vllm}")  # fmt: skip
        named = {flag.split("=")[0] for flag in flags}
        self.run([self.build / "bin/eta-server", "--model", MODEL,
                  *(flag for flag in usual if flag.split("=")[0] not in named), *flags])  # fmt: skip
        return self

    def ready(self):
        wait_for(self.log.name, lambda: self.says("listening on "))
        self.api = EtaApi(self.own, self.classes)
        return self

    @property
    def url(self):
        return f"grpc://{self.vllm}"


class Reply:
    """An answer over HTTP; of a stream, its events."""

    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def events(self):
        lines = [line[6:] for line in self.body.decode().splitlines() if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]

    @property
    def trace(self):
        """Why the gateway chose the server."""
        return json.loads(self.headers["x-smg-cache-trace"])

    @property
    def error(self):
        return self.json["error"]["message"]


class Gateway(Process):
    def __init__(self, folder, servers, policy="cache_aware"):
        super().__init__("gateway", folder)
        self.port = free_port()
        trace = {"SMG_CACHE_TRACE": "1", "SMG_CACHE_TRACE_HEADER": "1"}
        self.run([sys.executable, "-m", "smg", "launch", "--host", "127.0.0.1", "--port", self.port,
                  "--prometheus-host", "127.0.0.1", "--prometheus-port", free_port(),
                  "--worker-urls", *(server.url for server in servers), "--policy", policy,
                  "--health-check-interval-secs", 1, "--health-failure-threshold", 2,
                  "--worker-startup-check-interval", 1], env=os.environ | trace)  # fmt: skip
        self.wait_for_workers(len(servers))
        self.model = self.call("/v1/models").json["data"][0]["id"]

    def wait_for_workers(self, count):
        wait_for(f"{count} servers at the gateway", lambda: self.ready_workers() == count)

    def ready_workers(self):
        try:
            if self.call("/readiness").status != 200:
                return 0
            return sum(worker["is_healthy"] for worker in self.call("/workers").json["workers"])
        except OSError:
            return 0

    def open(self, path, fields=None, headers=None):
        """The answer as it comes, to be read and closed by the caller."""
        body = None if fields is None else json.dumps(fields).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", body, {"Content-Type": "application/json"} | (headers or {}))
        return urllib.request.urlopen(request, timeout=SECONDS)

    def call(self, path, fields=None, headers=None):
        try:
            with self.open(path, fields, headers) as answer:
                return Reply(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as error:
            return Reply(error.code, error.headers, error.read())

    def chat_fields(self, prompt, more):
        return {"model": self.model, "messages": [{"role": "user", "content": prompt}]} | more

    def chat(self, prompt, **more):
        return self.call("/v1/chat/completions", self.chat_fields(prompt, more))

    def open_chat(self, prompt, **more):
        return self.open("/v1/chat/completions", self.chat_fields(prompt, more))

    def complete(self, prompt, **more):
        return self.call("/v1/completions", {"model": self.model, "prompt": prompt} | more)
