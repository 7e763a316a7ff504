"""The chart's gateway, run: SMG with the rendered arguments, from the files of its image, before two servers with the
arguments that the chart gives them. A cluster of this test's own says which pods there are. See pod.py and cluster.py.
    gateway_pod_test.py BINARY_DIR      exit code 77: cannot be tried here, and why"""

import concurrent.futures
import json
import os
import pathlib
import random
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import types
import unittest
import urllib.error
import urllib.request

from chart import ROOT, Rendered, example
from chart_gateway_test import NAME
from cluster import Cluster
from pod import Pod, stop_signal
from pod_clients import certificate, tls_secret
from pod_test import ISOLATE, becomes, merged

BINARIES = pathlib.Path(sys.argv[1]).resolve()
FOLDER = pathlib.Path(sys.argv[3]) if sys.argv[2:3] == ["--inside"] else None
MODEL = ROOT / "models/smollm2-eta/SmolLM2-135M-Instruct-ETA.Q8_0.gguf"
KEY = "a-key-of-acme-that-is-long"
LONG = {"max_tokens": 120, "ignore_eos": True, "temperature": 0, "stream": True}
VALUES = merged(example("openai-gateway"), {
    "replicaCount": 1, "gateway": {"replicaCount": 1}, "kvCache": {"bytes": "128MiB"}, "flags": {"weights": "int8"},
    "drain": {"delaySeconds": 1, "timeoutSeconds": 30}})


class Server:
    """The server's container of a pod with an address of its own."""

    def __init__(self, rendered, name, address, folder):
        self.rendered, self.name, self.address = rendered, name, address
        self.log = folder / f"{name}.log"
        arguments = [re.sub("^--model=.*", f"--model={MODEL}", a) for a in rendered.args]
        arguments = [a.replace("0.0.0.0:", f"{address}:").replace("/run/eta/", f"{folder}/{name}-") for a in arguments]
        arguments = [a for a in arguments if a != "--allow_network_metrics"
                     and not a.startswith(("--allow_unauth", "--allow_plaintext"))]  # all is loopback here
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([BINARIES / "eta-server", *arguments], env={"ETA_THREADS": "1"},
                                            stdout=log, stderr=log)
        self.wait_for("listening on ")

    def wait_for(self, text):
        becomes(lambda: text in self.log.read_text() or self.process.poll() is not None)
        assert text in self.log.read_text(), self.log.read_text()[-3000:]

    def tell(self, cluster, **state):
        described = self.rendered.workload["spec"]["template"]["metadata"]
        cluster.put(self.name, self.address, described["labels"], described["annotations"], **state)


class GatewayPodTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tls = certificate(FOLDER, "gateway")
        cls.cluster = Cluster(FOLDER, 6443)
        rendered = Rendered(VALUES)
        (FOLDER / "servers").mkdir()
        cls.servers = [Server(rendered, name, address, FOLDER / "servers")
                       for name, address in (("one", "127.0.0.1"), ("two", "127.0.0.2"))]
        pod = rendered.named("Deployment", NAME)["spec"]["template"]["spec"]
        view = types.SimpleNamespace(pod=pod, containers=pod["containers"], of=rendered.of)
        cls.pod = Pod(view, {"eta-gateway-keys": {"acme": f"{KEY}\n".encode()}, "eta-gateway-tls": tls_secret(cls.tls)},
                      {"gateway": FOLDER.parent / "image"}, FOLDER, cls.cluster)
        cls.pod.start("gateway")

    @classmethod
    def tearDownClass(cls):
        cls.pod.kill()
        for server in cls.servers:
            server.process.kill()
            server.process.wait()

    def open(self, path, fields=None, key=KEY):
        request = urllib.request.Request(f"https://127.0.0.1:8480{path}", fields and json.dumps(fields).encode(), {
            "content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})})
        return urllib.request.urlopen(request, timeout=60, context=ssl.create_default_context(cafile=self.tls[0]))

    def ask(self, path, fields=None, key=KEY):
        """(status, body, the server that answered)"""
        try:
            with self.open(path, fields, key) as answer:
                return answer.status, json.load(answer), answer.headers["x-smg-routed-worker-id"]
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(), None

    @staticmethod
    def chat(**more):
        return {"model": "smollm2", "messages": [{"role": "user", "content": "What is a fjord?"}], "max_tokens": 4, **more}

    def models(self):
        status, body, _ = self.ask("/v1/models")
        return {model["id"] for model in body["data"]} if status == 200 else set()

    def probe(self, path):
        self.assertIsNone(self.pod.processes["gateway"].poll(), self.pod.lines("gateway")[-20:])
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:8481{path}", timeout=2).status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None

    def answering(self, calls=8):
        """Addresses of the servers that answer new calls. These come at once, and have little in common: else one server
        has time for all, or the beginning of all."""
        def ask(_):
            question = [{"role": "user", "content": " ".join(str(random.randrange(10**6)) for _ in range(24))}]
            return self.ask("/v1/chat/completions", self.chat(messages=question, max_tokens=8, ignore_eos=True))

        with concurrent.futures.ThreadPoolExecutor(calls) as pool:
            answers = list(pool.map(ask, range(calls)))
        self.assertEqual([status for status, _, _ in answers], [200] * calls, answers)
        return {re.search(r"127\.0\.0\.\d", server)[0] for _, _, server in answers}

    # In this order: pods come, serve and go.
    def test_1_is_ready_with_its_first_server(self):
        becomes(lambda: self.probe("/liveness") == 200)
        one, two = self.servers
        one.tell(self.cluster, ready=False)
        self.cluster.put("other", "127.0.0.3", {"app.kubernetes.io/name": "other"}, {})
        time.sleep(2)
        self.assertEqual(self.probe("/readiness"), 503)
        one.tell(self.cluster)
        becomes(lambda: self.probe("/readiness") == 200)
        becomes(lambda: self.models() == {"smollm2", "smollm2-full"})
        self.assertEqual(self.answering(), {one.address})
        two.tell(self.cluster)
        becomes(lambda: self.answering() == {one.address, two.address})

    def test_2_names_stand_for_ways_to_attend(self):
        for model in ("smollm2", "smollm2-full"):
            status, body, _ = self.ask("/v1/chat/completions", self.chat(model=model))
            self.assertEqual((status, body["usage"]["completion_tokens"]), (200, 4), body)

    def test_3_callers_show_keys_and_change_nothing(self):
        for key in (None, "another-key-that-is-long"):
            self.assertEqual(self.ask("/v1/chat/completions", self.chat(), key)[0], 401)
        for path, fields in (("/workers", None), ("/workers", {"url": "grpc://127.0.0.9:1"}), ("/flush_cache", {}),
                             ("/get_loads", None)):
            self.assertEqual(self.ask(path, fields)[0], 401, path)
        self.assertNotIn(KEY, pathlib.Path(f"/proc/{self.pod.processes['gateway'].pid}/cmdline").read_text())
        self.assertEqual(self.cluster.refused, [], "its role has all that it asks for")

    def test_4_runs_without_rights(self):
        status = pathlib.Path(f"/proc/{self.pod.processes['gateway'].pid}/status").read_text()
        for wanted in ("Uid:\t65532\t65532", "CapEff:\t0000000000000000", "NoNewPrivs:\t1"):
            self.assertIn(wanted, status)

    def test_5_a_pod_that_leaves_finishes_its_answers(self):
        one, two = self.servers
        stream = self.open("/v1/chat/completions", self.chat(**LONG))
        while b"content" not in stream.readline():
            pass
        address = re.search(r"127\.0\.0\.\d", stream.headers["x-smg-routed-worker-id"])[0]
        leaving = one if address == one.address else two
        staying = two if leaving is one else one
        leaving.tell(self.cluster, leaving=True)
        leaving.process.send_signal(signal.SIGTERM)
        becomes(lambda: self.answering() == {staying.address})
        self.assertEqual(self.answering(), {staying.address})
        events = [json.loads(line[6:]) for line in stream.read().decode().splitlines() if line.startswith("data: {")]
        self.assertEqual(events[-1]["choices"][0]["finish_reason"], "length", events[-1])
        self.assertEqual(leaving.process.wait(60), 0)

    def test_6_told_to_stop_it_finishes_its_answers(self):
        stream = self.open("/v1/chat/completions", self.chat(**LONG))
        while b"content" not in stream.readline():
            pass
        process = self.pod.processes["gateway"]
        process.send_signal(stop_signal("gateway"))
        becomes(lambda: self.probe("/readiness") == 503)
        self.assertEqual(self.ask("/v1/chat/completions", self.chat())[0], 200, "callers have not seen yet that it leaves")
        events = [json.loads(line[6:]) for line in stream.read().decode().splitlines() if line.startswith("data: {")]
        self.assertEqual(events[-1]["choices"][0]["finish_reason"], "length", events[-1])
        self.assertEqual(process.wait(self.pod.rendered.pod["terminationGracePeriodSeconds"]), 0)


if __name__ == "__main__":
    if FOLDER is None:
        if os.geteuid() != 0:
            print("SKIPPED: needs root")
            sys.exit(77)
        if subprocess.run([*ISOLATE, "true"], capture_output=True, check=False).returncode != 0:
            print("SKIPPED: mount and process namespaces cannot be made here")
            sys.exit(77)
        # Removed once the namespaces have ended, and with them whatever is mounted below it.
        with tempfile.TemporaryDirectory() as work:
            image = pathlib.Path(work, "image")
            made = subprocess.run([ROOT / "deploy/gateway/root.sh", image], capture_output=True, text=True, check=False)
            if "No matching distribution found" in made.stderr:  # as pip says also of a registry that it does not reach
                print("SKIPPED: no Python environment with deploy/gateway/requirements.txt")
                sys.exit(77)
            if made.returncode != 0:
                sys.exit(f"deploy/gateway/root.sh: {made.stderr}")
            inside = pathlib.Path(work, "pod")
            inside.mkdir()
            sys.exit(subprocess.run([*ISOLATE, sys.executable, "-B", __file__, BINARIES,
                                     "--inside", inside], check=False).returncode)
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
