"""The front that the chart puts beside each server: nginx with the configuration of deploy/front."""

import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from chart import ROOT, Rendered
from chart_cases import CASES


class Front(unittest.TestCase):
    """What a pod decides differs from deploy/front, and nothing else."""

    def config(self, values):
        (item,) = [c for c in Rendered(values).of("ConfigMap") if "nginx.conf" in c["data"]]
        return item["data"]

    def changes(self, values):
        """{file: (lines of deploy/front that are not in it, lines that are only in it)}"""
        changes = {}
        for name, text in self.config(values).items():
            here = [line.strip() for line in text.splitlines() if line.strip()]
            shipped = [line.strip() for line in (ROOT / "deploy/front" / name).read_text()
                       .splitlines() if line.strip()]
            changes[name] = ([line for line in shipped if line not in here],
                             [line for line in here if line not in shipped])
        return changes

    def test_is_the_shipped_one(self):
        changes = self.changes({})
        self.assertEqual(set(changes), {"nginx.conf", "listen.conf", "upstream.conf", "pod.conf",
                                       "front.mtail"})
        self.assertEqual(changes["upstream.conf"], ([], []))
        self.assertEqual(changes["front.mtail"], ([], []))
        self.assertEqual(changes["nginx.conf"], (["worker_processes auto;"],
                                                 ["worker_processes 2;"]))
        self.assertEqual(changes["pod.conf"],
                         (["listen 8475;", "listen 8474 http2 backlog=64;"],
                          ["listen 0.0.0.0:8475;", "listen 0.0.0.0:8474 http2 backlog=64;"]))
        gone, added = changes["listen.conf"]
        self.assertEqual(len(gone), 4)
        rest = "http2 backlog=1024 so_keepalive=30s:10s:3;"
        self.assertEqual(added, [f"listen 0.0.0.0:8443 ssl {rest}",
                                 "ssl_certificate $tls_folder/tls.crt;",
                                 "ssl_certificate_key $tls_folder/tls.key;",
                                 "access_log /dev/stdout refused if=$refused;",
                                 "keepalive_time 5m; # then clients look up pods again",
                                 "grpc_set_header traceparent $trace;",
                                 "access_log /dev/stdout denied if=$denied;",
                                 "access_log syslog:server=127.0.0.1:8476,nohostname counted "
                                 "if=$refused;"])

    def test_what_values_change(self):
        changes = self.changes({**CASES["front"], "server": {"listenHost": "[::]",
                                                             "maxConnectionAge": "90s"}})
        listen = "\n".join(changes["listen.conf"][1])
        for wanted in ("listen [::]:9443 ipv6only=off proxy_protocol ssl http2 ",
                       "ssl_client_certificate tls/ca.crt;", "ssl_verify_client on;",
                       "set_real_ip_from 10.0.0.0/8;", "set_real_ip_from fd00::/8;",
                       "real_ip_header proxy_protocol;", "keepalive_time 90s;"):
            self.assertIn(wanted, listen)
        self.assertEqual(changes["nginx.conf"][1], ["worker_processes 8;"])
        self.assertEqual(changes["pod.conf"][1],
                         ["listen [::]:9475 ipv6only=off;",
                          "listen [::]:9474 ipv6only=off http2 backlog=64;"])

    def test_limits_are_values(self):
        gone, added = self.changes({"front": {"limits": {
            "callsAtATime": 1000, "uploadsAtATime": 9, "callsPerSecond": 2000000 // 2, "burst": 5000,
            "streamsPerConnection": 250}}})["nginx.conf"]
        self.assertEqual(len(gone), len(added))
        self.assertEqual(set(added), {
            "worker_processes 2;", "limit_conn calls_of_peer 1000;", "limit_conn uploads_of_peer 9;",
            "limit_req_zone $binary_remote_addr zone=calls_per_second:10m rate=1000000r/s;",
            "limit_req zone=calls_per_second burst=5000 nodelay;", "http2_max_concurrent_streams 250;"})

    def test_what_it_refuses_is_counted_where_metrics_are(self):
        rendered = Rendered({})
        counter = rendered.containers[1]
        self.assertEqual(counter["name"], "front-metrics")
        self.assertEqual(counter["image"], rendered.front["image"])
        self.assertIn("--address=127.0.0.1", counter["command"])
        (mount,) = counter["volumeMounts"]
        self.assertIn(f"--progs={mount['mountPath']}", counter["command"])
        self.assertEqual(rendered.ports["front-metrics"], 8475)
        off = Rendered({"metrics": {"enabled": False}})
        self.assertEqual([c["name"] for c in off.containers], ["front", "eta-server"])
        self.assertNotIn("syslog:", self.config({"metrics": {"enabled": False}})["listen.conf"])

    def test_its_files_and_the_certificate_are_one_folder(self):
        def sources(values):
            (volume,) = [v["projected"] for v in Rendered(values).pod["volumes"]
                         if v["name"] == "front"]
            self.assertEqual(volume["defaultMode"], 0o440)
            config, secret = volume["sources"]
            return (config["configMap"]["name"], secret["secret"]["name"],
                    {i["key"]: i["path"] for s in (config["configMap"], secret["secret"])
                     for i in s["items"]})

        paths = {name: name for name in ("nginx.conf", "listen.conf", "upstream.conf")}
        paths["pod.conf"] = "also/pod.conf"
        self.assertEqual(sources({}), ("eta-server-front", "eta-server-tls", {
            **paths, "tls.crt": "tls/tls.crt", "tls.key": "tls/tls.key"}))
        self.assertEqual(sources(CASES["front"]), ("eta-server-front", "t", {
            **paths, "a": "tls/tls.crt", "b": "tls/tls.key", "c": "tls/ca.crt"}))
        self.assertEqual(sources(CASES["own front"])[0], "mine")
        self.assertEqual(Rendered(CASES["own front"]).of("ConfigMap"), [])

    @unittest.skipUnless(shutil.which("mtail"), "mtail is not installed")
    def test_lines_of_either_log_are_counted(self):
        lines = ["<190>Nov 26 22:00:34 nginx: refused too_many",
                 '{"time":"t","event":"front_refused","reason":"too_large","client":"::1","method":"/"}',
                 '{"time":"t","event":"front_denied","client":"::1","method":"/","grpc_status":"16"}',
                 '{"time":"t","event":"front_refused","reason":"too_slow","client":"::1","method":'
                 '"/a\\",\\"event\\":\\"front_refused\\",\\"reason\\":\\"unavailable\\","}']
        with tempfile.TemporaryDirectory() as folder:
            log = pathlib.Path(folder, "log")
            log.write_text("".join(line + "\n" for line in lines))
            ran = subprocess.run(
                ["mtail", "--one_shot", "--one_shot_format=prometheus", "--logs", log, "--progs",
                 ROOT / "deploy/front/front.mtail", "--emit_prog_label=false", "--logtostderr"],
                capture_output=True, text=True, check=True)
        self.assertEqual(dict(re.findall(r'eta_front_refused_total\{reason="(\w+)"\} (\d+)',
                                         ran.stdout)),
                         {"too_many": "1", "too_large": "1", "too_slow": "1"}, ran.stderr)

    def test_another_configuration_restarts_pods(self):
        def checksum(values):
            return Rendered(values).workload["spec"]["template"]["metadata"]["annotations"][
                "checksum/front"]

        self.assertNotEqual(checksum({}), checksum({"front": {"workers": 3}}))

    def test_one_value_takes_it_away(self):
        rendered = Rendered({"front": {"enabled": False}})
        self.assertNotIn("initContainers", rendered.pod)
        self.assertEqual(rendered.of("ConfigMap"), [])
        self.assertEqual(rendered.ports, {"grpc": 8471, "metrics": 8472})
        self.assertEqual(rendered.flag("listen"), "0.0.0.0:8471")
        self.assertIn("WARNING:   no front", rendered.texts["eta-server/templates/NOTES.txt"])


if __name__ == "__main__":
    unittest.main()
