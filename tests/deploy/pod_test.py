"""The chart's pod, run: nginx with the rendered configuration and eta-server with the rendered
arguments, each from the files of its image, in namespaces of their own. See pod.py.
    pod_test.py BINARY_DIR      exit code 77: cannot be tried here, and why"""

import collections
import json
import os
import pathlib
import re
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

import grpc
from chart import ROOT, Rendered, example
from pod import Pod
from pod_clients import balancer, call, certificate, healthy, tls_secret

ADDRESS = "127.0.0.1:8443"
ISOLATE = ["unshare", "--net", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child"]
BINARIES = pathlib.Path(sys.argv[1]).resolve()
FOLDER = pathlib.Path(sys.argv[3]) if sys.argv[2:3] == ["--inside"] else None
# What costs less here, and changes nothing that is tried.
SMALL = {"kvCache": {"bytes": "64MiB"}, "resources": {"requests": {"cpu": "1"}},
         "drain": {"delaySeconds": 1}, "front": {"workers": 1}}


def merged(first, second):
    both = {**first, **second}
    for key in first.keys() & second.keys():
        if isinstance(first[key], dict):
            both[key] = merged(first[key], second[key])
    return both


def becomes(condition):
    for _ in range(1200):
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError("not after a minute")


class PodTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = FOLDER
        cls.images = {"eta-server": cls.folder / "eta-server", "front": cls.folder / "front",
                      "front-metrics": cls.folder / "front"}
        for command in (["image_root.sh", cls.images["eta-server"], BINARIES, "--model",
                         ROOT / "models/eta-27m"], ["front/root.sh", cls.images["front"]]):
            command[0] = ROOT / "deploy" / command[0]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        cls.tls = certificate(cls.folder, "front")
        cls.client = certificate(cls.folder, "client")
        cls.key = cls.folder / "acme-1.key"
        entry = subprocess.run([BINARIES / "etactl", "new-key", "acme-1", "--tenant", "acme",
                                "--key_file", cls.key], check=True, capture_output=True).stdout
        cls.identity = json.dumps({"api_keys": [json.loads(entry)]}).encode()

    def run_pod(self, values, tls=None):
        """A pod that is ready, its probes being asked as the kubelet would."""
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        secrets = {"eta-tls": tls or tls_secret(self.tls), "eta-identity":
                   {"identity.json": self.identity}}
        pod = Pod(Rendered(merged(merged(example("identity"), SMALL), values)), secrets,
                  self.images, folder)
        self.addCleanup(pod.kill)
        pod.start("front")
        becomes(lambda: "8474" in self.listening() or pod.processes["front"].poll() is not None)
        self.assertIsNone(pod.processes["front"].poll(), pod.lines("front"))
        self.assertFalse(self.ready(pod), "through the front, and there is no server yet")
        pod.start("front-metrics")
        pod.start("eta-server")
        becomes(lambda: pod.processes["eta-server"].poll() is not None or self.ready(pod))
        self.assertTrue(self.ready(pod), pod.lines("eta-server"))
        return pod

    @staticmethod
    def ready(pod):
        return all(healthy(**container["readinessProbe"]["grpc"])
                   for container in pod.rendered.containers if "readinessProbe" in container)

    @staticmethod
    def refused():
        """The front's page: reason -> calls."""
        with urllib.request.urlopen("http://127.0.0.1:8475/metrics") as page:
            return {reason: int(calls) for reason, calls in re.findall(
                r'^eta_front_refused_total\{reason="(\w+)"\} (\d+)$', page.read().decode(), re.MULTILINE)}

    @staticmethod
    def listening():
        """The ports of TCP on which somebody listens."""
        lines = [line.split() for file in ("tcp", "tcp6")
                 for line in pathlib.Path("/proc/net", file).read_text().splitlines()[1:]]
        return {str(int(line[1].split(":")[-1], 16)) for line in lines if line[3] == "0A"}

    def generate(self, *arguments, address=ADDRESS, key=True):
        arguments = ["generate", "--server", address, "--tls_ca", self.tls[0], "--temperature", "0",
                     *(["--api_key_file", self.key] if key else []), *arguments, "Once upon a time"]
        return subprocess.Popen([BINARIES / "etactl", *arguments], text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def answer(self, *arguments, **options):
        return self.generate("--max_tokens", "8", *arguments, **options).communicate()

    def denied(self, pod):
        return [json.loads(line) for line in pod.lines("front") if '"front_denied"' in line]

    def deny(self, pod, address=ADDRESS, metadata=()):
        """The front's line of a call without a credential."""
        before = len(self.denied(pod))
        code, _ = call(address, "/eta.v1.EtaService/Stats", roots=self.tls[0], metadata=metadata)
        self.assertEqual(code, grpc.StatusCode.UNAUTHENTICATED)
        return becomes(lambda: self.denied(pod)[before:])[0]

    def test_callers_reach_the_server_through_the_front_alone(self):
        pod = self.run_pod({})
        self.assertEqual(self.listening(), {"8443", "8475", "8476", "8474", "8473", "8472"})
        text, errors = self.answer()
        self.assertTrue(text.strip(), errors)
        # Where probes ask, nothing else is answered, and no other service's health.
        for method in ("/eta.v1.EtaService/Stats", "/grpc.health.v1.Health/Watch"):
            self.assertEqual(call("127.0.0.1:8474", method)[0], grpc.StatusCode.UNIMPLEMENTED)
        self.assertTrue(healthy(8473, "liveness"))
        # Both lines of a call that was denied: by whom, and from where.
        line = self.deny(pod)
        self.assertEqual((line["client"], line["method"], line["grpc_status"]),
                         ("127.0.0.1", "/eta.v1.EtaService/Stats", "16"))
        (server,) = becomes(lambda: [json.loads(text) for text in pod.lines("eta-server")
                                     if '"denied"' in text])
        self.assertRegex(line["traceparent"], f"^00-{server['trace_id']}-0+1-00$")
        given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        self.assertEqual(self.deny(pod, metadata=[("traceparent", given)])["traceparent"], given)
        self.assertNotIn('"insecure","flag":"--listen"', "".join(pod.lines("eta-server")))
        for process in pod.processes.values():
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
            for wanted in ("Uid:\t65532\t65532", "CapEff:\t0000000000000000", "NoNewPrivs:\t1"):
                self.assertIn(wanted, status)

    def test_a_renewed_certificate_needs_no_restart(self):
        pod = self.run_pod({})

        def shown():
            return ssl.get_server_certificate(("127.0.0.1", 8443)).strip()

        self.assertEqual(shown(), self.tls[0].read_text().strip())
        renewed = certificate(self.folder, "renewed")
        pod.put_secret("eta-tls", tls_secret(renewed))
        self.assertEqual(shown(), renewed[0].read_text().strip())

    def test_a_pod_that_is_told_to_stop_finishes_its_answers(self):
        pod = self.run_pod({})
        running = self.generate("--max_tokens", "1500", "--ignore_eos", "--json")
        running.stdout.readline()  # it has begun
        ended = []
        stop = threading.Thread(target=lambda: ended.extend(pod.stop()))
        stop.start()
        becomes(lambda: not healthy(8474, "readiness"))
        while '"closed"' not in "".join(pod.lines("eta-server")):
            process = self.generate("--max_tokens", "1")
            _, errors = process.communicate()
            if process.returncode != 0:
                break
        self.assertIn("UNAVAILABLE", self.answer()[1], "it leaves, and clients go elsewhere")
        text, errors = running.communicate()
        stop.join()
        self.assertEqual(running.returncode, 0, errors)
        last = json.loads(text.splitlines()[-1])
        self.assertEqual(last["finished"]["usage"]["output_tokens"], 1500)
        self.assertEqual(ended, [("eta-server", 0), ("front-metrics", 2), ("front", 0)],
                         "mtail's code after SIGQUIT, which the front's image asks for, is Go's")

    def test_the_front_outlives_a_server_that_starts_again(self):
        pod = self.run_pod({})
        pod.processes["eta-server"].kill()
        pod.processes["eta-server"].wait()
        self.assertIn("UNAVAILABLE", self.answer()[1])
        pod.start("eta-server")
        becomes(lambda: self.ready(pod))
        self.assertTrue(self.answer()[0].strip())

    def test_what_the_front_refuses_is_logged_and_counted(self):
        pod = self.run_pod({"front": {"limits": {"callsPerSecond": 1, "burst": 2}}})
        stats = "/eta.v1.EtaService/Stats"
        for method, message in (("/else", b""), (stats, b"x" * (1100 << 10))):
            self.assertNotEqual(call(ADDRESS, method, message, roots=self.tls[0])[0],
                                grpc.StatusCode.OK)
        codes = [call(ADDRESS, stats, roots=self.tls[0])[0] for _ in range(6)]
        self.assertIn(grpc.StatusCode.RESOURCE_EXHAUSTED, codes)
        pod.processes["eta-server"].kill()
        pod.processes["eta-server"].wait()
        time.sleep(3)  # the rate's
        self.assertEqual(call(ADDRESS, stats, roots=self.tls[0])[0], grpc.StatusCode.UNAVAILABLE)

        def logged():
            lines = [json.loads(line) for line in pod.lines("front") if '"front_refused"' in line]
            self.assertLessEqual({line["client"] for line in lines}, {"127.0.0.1"})
            return collections.Counter(line["reason"] for line in lines)

        becomes(lambda: set(logged()) == {"unimplemented", "too_large", "too_many", "unavailable"})
        becomes(lambda: self.refused() == logged())
        # A scraper gets the page, and nothing else that mtail can do.
        for path in ("/", "/quitquitquit", "/debug/pprof/", "/json"):
            with self.assertRaises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(f"http://127.0.0.1:8475{path}", data=b"")
            self.assertEqual(refused.exception.code, 404)

    def test_clients_may_have_to_show_a_certificate(self):
        pod = self.run_pod({"front": {"tls": {"clientCaKey": "ca.crt"}}},
                           tls_secret(self.tls, roots=self.client[0]))
        self.assertEqual(self.answer()[0], "")
        shown = ["--tls_cert", self.client[0], "--tls_key", self.client[1]]
        text, errors = self.answer(*shown)
        self.assertTrue(text.strip(), errors)
        self.assertEqual(self.answer(*shown, key=False)[0], "")
        self.assertEqual(becomes(lambda: self.denied(pod))[-1]["certificate"], "CN=client")

    def test_the_address_of_a_client_is_what_its_proxy_says(self):
        forwarded = [("x-forwarded-for", "198.51.100.1, 203.0.113.7")]
        pod = self.run_pod({"front": {"clientAddress": {"proxies": ["127.0.0.1"]}}})
        self.assertEqual(self.deny(pod, metadata=forwarded)["client"], "203.0.113.7")
        pod.kill()
        pod = self.run_pod({"front": {"clientAddress": {"proxies": ["127.0.0.2"]}}})
        self.assertEqual(self.deny(pod, metadata=forwarded)["client"], "127.0.0.1")

    def test_on_both_families_of_addresses(self):
        self.run_pod({"server": {"listenHost": "[::]"}})
        families = ["127.0.0.1", *(["[::1]"] if pathlib.Path("/proc/net/if_inet6").exists() else [])]
        for host in families:
            text, errors = self.answer(address=f"{host}:8443")
            self.assertTrue(text.strip(), errors)

    def test_behind_a_load_balancer(self):
        values = merged(example("load-balancer"),
                        {"front": {"clientAddress": {"proxies": ["127.0.0.0/8"]}}})
        pod = self.run_pod(values)
        with balancer(b"PROXY TCP4 203.0.113.9 127.0.0.1 4000 8443\r\n") as address:
            self.assertEqual(self.deny(pod, address=address)["client"], "203.0.113.9")
            self.assertTrue(self.answer(address=address)[0].strip())


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
            sys.exit(subprocess.run([*ISOLATE, sys.executable, "-B", __file__, BINARIES,
                                     "--inside", work], check=False).returncode)
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
