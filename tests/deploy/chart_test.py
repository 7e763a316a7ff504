"""What the chart makes of values: checked as Kubernetes would read it, and against eta-server."""

import functools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import helm_python
import kubernetes_validate
import yaml
from chart import CHART, MANIFESTS, OPERATOR_KINDS, ROOT, Rendered, example, is_gateways, manifest, package
from chart_cases import CASES, REFUSED

SERVER = os.environ.get("ETA_SERVER", str(ROOT / "build/bin/eta-server"))
KUBERNETES = ("1.29", "1.32", kubernetes_validate.latest_version())

@functools.cache
def server_help():
    return subprocess.run([SERVER, "--help"], capture_output=True, text=True, check=True).stdout


def settings(arguments):
    """What eta-server makes of a command line. The model's folder is that of the repository, and a
    build without CUDA takes its other backend."""
    arguments = [re.sub("^--model=.*", f"--model={ROOT}/models/eta-27m", a) for a in arguments]
    if not re.search(r"--backend TEXT:\{[^}]*cuda", server_help()):
        arguments = [a.replace("--backend=cuda", "--backend=cpu") for a in arguments]
    ran = subprocess.run([SERVER, *arguments, "--print_config"], capture_output=True, text=True)
    if ran.returncode != 0:
        raise AssertionError(f"eta-server refuses {arguments}: {ran.stderr}")
    return dict(line.split("=", 1) for line in ran.stdout.splitlines() if "=" in line)


def metric_names():
    """Every family in eta-server's catalogue."""
    ran = subprocess.run([SERVER, "--print_metrics"], capture_output=True, text=True, check=True)
    return set(re.findall(r"\b(?:eta_|process_|vllm:)[a-z0-9_]+", ran.stdout))


def pods(rendered):
    """Specifications of all pods."""
    workloads = rendered.of("Deployment") + rendered.of("StatefulSet")
    return [item["spec"]["template"]["spec"] for item in workloads] + [item["spec"] for item in rendered.of("Pod")]


def each_case(check):
    """A test of one case's objects, for every case."""
    @functools.wraps(check)
    def test(self):
        for name, rendered in self.rendered.items():
            with self.subTest(case=name):
                check(self, rendered)
    return test


class EveryCase(unittest.TestCase):
    """Holds for whatever the values are."""

    @classmethod
    def setUpClass(cls):
        cls.rendered = {name: Rendered(values) for name, values in CASES.items()}

    def test_lint(self):
        for name, values in CASES.items():
            with self.subTest(case=name):
                report = helm_python.lint(package(), values)
                self.assertEqual(report["errors"], [])
                self.assertEqual([m for m in report["messages"] if m["severity"] > 1], [])

    @each_case
    def test_valid_for_kubernetes(self, rendered):
        for item in rendered.objects:
            if item["kind"] in OPERATOR_KINDS:
                continue
            for version in KUBERNETES:
                kubernetes_validate.validate(item, version, strict=True)

    @each_case
    def test_server_knows_the_flags(self, rendered):
        taken = settings(rendered.args)
        self.assertEqual(taken["drain_delay"].strip('"'), rendered.flag("drain_delay"))

    @each_case
    def test_server_knows_the_environment(self, rendered):
        for variable in rendered.container["env"]:
            if variable["name"].startswith("ETA_"):
                self.assertIn(f"Env:{variable['name']})", server_help())

    @each_case
    def test_grace_period_covers_the_drain(self, rendered):
        seconds = [int(rendered.flag(f"drain_{part}").removesuffix("s"))
                   for part in ("delay", "timeout")]
        self.assertGreaterEqual(rendered.pod["terminationGracePeriodSeconds"], sum(seconds) + 5)

    @each_case
    def test_probes_are_grpc(self, rendered):
        plain = "health_listen" if rendered.flag("health_listen") else "listen"
        port = int(rendered.flag(plain).rsplit(":", 1)[1])
        for probe, service in (("startupProbe", "readiness"), ("readinessProbe", "readiness"),
                               ("livenessProbe", "liveness")):
            self.assertEqual(rendered.container[probe]["grpc"],
                             {"port": port, "service": service})

    @each_case
    def test_restricted(self, rendered):
        for pod in pods(rendered):
            self.assertIs(pod["automountServiceAccountToken"], False)
            self.assertIs(pod["enableServiceLinks"], False)
            self.assertIs(pod["securityContext"]["runAsNonRoot"], True)
            self.assertEqual(pod["securityContext"]["seccompProfile"],
                             {"type": "RuntimeDefault"})
            for container in [*pod.get("initContainers", []), *pod["containers"]]:
                self.assertEqual(container["securityContext"],
                                 {"allowPrivilegeEscalation": False,
                                  "readOnlyRootFilesystem": True,
                                  "capabilities": {"drop": ["ALL"]}})
                self.assertIn("memory", container["resources"]["limits"])

    @each_case
    def test_selectors_meet_pods_and_ports(self, rendered):
        labels = rendered.workload["spec"]["template"]["metadata"]["labels"]
        self.assertLessEqual(
            rendered.workload["spec"]["selector"]["matchLabels"].items(), labels.items())
        ports = rendered.ports
        self.assertEqual(len(set(ports.values())),
                         sum(len(container.get("ports", [])) for container in rendered.containers))
        for service in rendered.of("Service"):
            if is_gateways(service):  # chart_gateway_test.py
                self.assertFalse(service["spec"]["selector"].items() <= labels.items())
                continue
            self.assertLessEqual(service["spec"]["selector"].items(), labels.items())
            for port in service["spec"]["ports"]:
                self.assertEqual(ports[port["targetPort"]], port["port"])
        for monitor in rendered.of("ServiceMonitor"):
            wanted = monitor["spec"]["selector"]["matchLabels"].items()
            found = [s for s in rendered.of("Service")
                     if wanted <= s["metadata"]["labels"].items()]
            self.assertEqual(len(found), 1)
            self.assertEqual({p["name"] for p in found[0]["spec"]["ports"]},
                             {e["port"] for e in monitor["spec"]["endpoints"]})
            jobs = [e["relabelings"][0]["replacement"] for e in monitor["spec"]["endpoints"]]
            self.assertEqual(len(set(jobs)), len(jobs), "a front is no server")
        for other in rendered.of("Pod"):
            self.assertFalse(rendered.workload["spec"]["selector"]["matchLabels"].items()
                             <= other["metadata"]["labels"].items(), "the test takes calls")

    @each_case
    def test_network_policy(self, rendered):
        policy = rendered.policy
        self.assertEqual(policy["policyTypes"], ["Ingress", "Egress"])
        # All but where the node's probes ask a server that has a front.
        ports = {port for name, port in rendered.ports.items() if name != "server-health"}
        self.assertEqual({p["port"] for rule in policy["ingress"] for p in rule["ports"]}, ports)
        for rule in policy["ingress"]:
            self.assertTrue(rule["from"])
        labels = rendered.only("Pod")["metadata"]["labels"]
        clients = policy["ingress"][0]["from"][0]["podSelector"]["matchLabels"]
        self.assertLessEqual(clients.items(), labels.items())
        self.assertEqual([p["port"] for p in policy["ingress"][0]["ports"]],
                         [rendered.ports["grpc"]])
        probed = rendered.ports.get("health", rendered.ports["grpc"])
        for rule in policy["ingress"][1:]:
            if probed in [p["port"] for p in rule["ports"]]:  # without TLS: helm test's alone
                (test,) = [source["podSelector"]["matchLabels"] for source in rule["from"]]
                self.assertEqual(test, {k: labels[k] for k in ("app.kubernetes.io/name",
                                                               "app.kubernetes.io/instance")})

    @each_case
    def test_only_the_front_reaches_the_server(self, rendered):
        listen = rendered.flag("listen")
        if rendered.front is None:
            self.assertEqual(int(listen.rsplit(":", 1)[1]), rendered.ports["grpc"])
            return
        # Of what the gateway's pods reach (chart_gateway_test.py), and of nothing else.
        opened = ["--allow_plaintext_network", "--allow_unauthenticated_network"] if rendered.flag("vllm_listen") else []
        self.assertEqual([name for name in rendered.args if "allow_unauth" in name
                          or "allow_plain" in name or "--tls_" in name], opened)
        socket = pathlib.PurePosixPath(listen.removeprefix("unix:"))
        for container in rendered.containers:
            mounts = [m for m in container["volumeMounts"] if m["name"] == "socket"]
            self.assertEqual(mounts, [] if container["name"] == "front-metrics" else [
                {"name": "socket", "mountPath": str(socket.parent)}])
        self.assertIn(f"server unix:{socket} ",
                      (ROOT / "deploy/front/upstream.conf").read_text())
        # The first to start and the last to end, as Kubernetes does with such a container.
        self.assertEqual(rendered.front["restartPolicy"], "Always")
        for hook in ("lifecycle", "startupProbe", "livenessProbe"):
            self.assertNotIn(hook, rendered.front)
        self.assertEqual(rendered.front["readinessProbe"]["grpc"],
                         {"port": rendered.ports["health"], "service": "readiness"})

    @each_case
    def test_no_secret_in_the_pod(self, rendered):
        self.assertNotIn("secret@", str(rendered.workload))

    @each_case
    def test_notes_name_the_address(self, rendered):
        notes = rendered.texts["eta-server/templates/NOTES.txt"]
        port = rendered.ports["grpc"]
        self.assertIn(f"dns:///eta-server.llm.svc.cluster.local:{port} ", notes)


class Values(unittest.TestCase):
    """What single values do."""

    def test_refused(self):
        for values, named in REFUSED:
            with self.subTest(values=values):
                with self.assertRaisesRegex(helm_python.HelmError, re.escape(named)):
                    Rendered(values)

    def test_drain(self):
        rendered = Rendered({"drain": {"delaySeconds": 7, "timeoutSeconds": 600,
                                       "marginSeconds": 20}})
        self.assertEqual(rendered.pod["terminationGracePeriodSeconds"], 627)
        taken = settings(rendered.args)
        self.assertEqual(taken["drain_delay"].strip('"'), "7s")
        self.assertEqual(taken["drain_timeout"].strip('"'), "600s")
        # A stalled server has nothing to wait for.
        self.assertEqual(rendered.container["livenessProbe"]["terminationGracePeriodSeconds"], 20)

    def test_flags_keep_their_numbers(self):
        taken = settings(Rendered(CASES["flags"]).args)
        self.assertEqual(taken["max_running"], "1048576")
        self.assertEqual(taken["reflection"], "true")
        self.assertEqual(taken["prefix_cache"], "false")

    def test_replicas(self):
        self.assertEqual(Rendered({}).of("PodDisruptionBudget"), [])
        rendered = Rendered({"replicaCount": 3})
        self.assertEqual(rendered.workload["spec"]["replicas"], 3)
        self.assertEqual(rendered.only("PodDisruptionBudget")["spec"]["maxUnavailable"], 1)
        self.assertEqual(rendered.workload["spec"]["strategy"]["rollingUpdate"],
                         {"maxSurge": 1, "maxUnavailable": 0})

    def test_service_is_headless_unless_told_otherwise(self):
        service = {s["metadata"]["name"]: s["spec"] for s in Rendered({}).of("Service")}
        self.assertEqual(service["eta-server"]["clusterIP"], "None")
        service = {s["metadata"]["name"]: s["spec"]
                   for s in Rendered({"service": {"headless": False}}).of("Service")}
        self.assertNotIn("clusterIP", service["eta-server"])

    def test_hpa(self):
        rendered = Rendered(example("autoscaling-hpa"))
        self.assertNotIn("replicas", rendered.workload["spec"])
        spec = rendered.only("HorizontalPodAutoscaler")["spec"]
        self.assertEqual(spec["scaleTargetRef"]["name"], rendered.workload["metadata"]["name"])
        self.assertEqual(
            {m["pods"]["metric"]["name"]: m["pods"]["target"]["averageValue"]
             for m in spec["metrics"]},
            {"eta_requests_waiting": "5", "eta_predicted_wait_seconds": "5000m",
             "eta_kv_cache_usage_ratio": "800m"})
        adapter = yaml.safe_load((CHART / "integrations/prometheus-adapter.yaml").read_text())
        self.assertEqual({re.match(r"\w+", r["seriesQuery"])[0] for r in adapter["rules"]["custom"]},
                         {m["pods"]["metric"]["name"] for m in spec["metrics"]})
        self.assertGreaterEqual(spec["behavior"]["scaleDown"]["stabilizationWindowSeconds"], 300)
        self.assertEqual(len(rendered.of("PodDisruptionBudget")), 1)

    def test_keda(self):
        rendered = Rendered(example("autoscaling-keda"))
        self.assertNotIn("replicas", rendered.workload["spec"])
        self.assertEqual(rendered.of("HorizontalPodAutoscaler"), [])
        spec = rendered.only("ScaledObject")["spec"]
        self.assertEqual(spec["scaleTargetRef"]["name"], rendered.workload["metadata"]["name"])
        service = 'namespace="llm",service="eta-server-metrics"'
        self.assertIn("eta-server-metrics", rendered.names("Service"))
        self.assertEqual([(t["metadata"]["query"], t["metadata"]["threshold"])
                          for t in spec["triggers"]],
                         [("sum(eta_requests_waiting{%s})" % service, "5"),
                          ("sum(max by (pod) (eta_predicted_wait_seconds{%s}))" % service, "5"),
                          ("sum(eta_kv_cache_usage_ratio{%s})" % service, "0.8")])

    def test_gpu(self):
        rendered = Rendered(CASES["gpus"])
        for kind in ("requests", "limits"):
            self.assertEqual(rendered.container["resources"][kind]["nvidia.com/gpu"], 2)
        self.assertEqual(rendered.flag("device"), "0,1")
        self.assertEqual(rendered.flag("backend"), "cuda")
        self.assertIn({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
                      rendered.pod["tolerations"])
        # No pod waits for a GPU that the one it replaces still holds.
        self.assertEqual(rendered.workload["spec"]["strategy"]["rollingUpdate"]["maxSurge"], 0)
        self.assertEqual(Rendered(example("gpu")).pod["runtimeClassName"], "nvidia")

    def test_the_driver_may_keep_what_it_compiles(self):
        self.assertNotIn("CUDA_", str(Rendered({}).container["env"]))
        environment = {e["name"]: e.get("value") for e in Rendered(CASES["gpus"]).container["env"]}
        shipped = (ROOT / "deploy/Dockerfile.cuda").read_text()
        self.assertIn(f"CUDA_CACHE_PATH={environment['CUDA_CACHE_PATH']} ", shipped)
        claim = {"persistentVolumeClaim": {"claimName": "kernels"}}
        for values, source in ((CASES["gpus"], {"emptyDir": {"sizeLimit": "160Mi"}}),
                               ({"gpu": {"enabled": True, "cudaCache": {"emptyDir": None, **claim}}},
                                claim)):
            rendered = Rendered(values)
            (mount,) = [m for m in rendered.container["volumeMounts"] if m["name"] == "cuda-cache"]
            self.assertEqual(mount, {"name": "cuda-cache",
                                     "mountPath": environment["CUDA_CACHE_PATH"]})
            (volume,) = [v for v in rendered.pod["volumes"] if v["name"] == "cuda-cache"]
            self.assertEqual(volume, {"name": "cuda-cache", **source})
        # Neither the volume nor the container's own limit ends a pod over it.
        self.assertLess(int(environment["CUDA_CACHE_MAXSIZE"]), 160 << 20)

    def test_who_may_scrape(self):
        def scrapers(values):
            rendered = Rendered(values)
            (rule,) = [rule for rule in rendered.only("NetworkPolicy")["spec"]["ingress"]
                       if rendered.ports["metrics"] in [p["port"] for p in rule["ports"]]]
            self.assertEqual({p["port"] for p in rule["ports"]},
                             {port for name, port in rendered.ports.items() if "metrics" in name})
            return rule["from"]

        monitoring = {"namespaceSelector": {
            "matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
        picker = {"podSelector": {"matchLabels": {"app": "eta-epp"}}}
        self.assertEqual(scrapers({}), [monitoring])
        self.assertEqual(scrapers({"inferenceGateway": {"enabled": True}, "front": {"enabled": False},
                                   "networkPolicy": {"metricsPeers": [monitoring, picker]}}),
                         [monitoring, picker])

    def test_a_model_is_called_as_the_server_calls_it(self):
        for path, name in (("/m/folder.x", "folder.x"), ("/m/a.Q8_0.gguf", "a.Q8_0"),
                           ("/m/a-00001-of-00003.gguf", "a"), ("/m/a-00002-of-00003.gguf", "a-00002-of-00003")):
            rendered = Rendered({"front": {"enabled": False}, "model": {"path": path}, "inferenceGateway": {
                "enabled": True, "eventPeers": [{"podSelector": {}}]}})
            self.assertEqual(rendered.flag("kv_events_topic").rpartition("@")[2], name)
            self.assertIsNone(rendered.flag("model_name"))

    def test_who_may_read_the_events_of_the_cache(self):
        gateway = {"front": {"enabled": False}, "model": {"path": "/models/m"}}
        rendered = Rendered({**gateway, "inferenceGateway": {"enabled": True}})
        self.assertEqual(rendered.flag("metrics_names"), "vllm")
        self.assertEqual(rendered.flag("vllm_listen"), "0.0.0.0:8477")
        self.assertIsNone(rendered.flag("kv_events"))
        self.assertNotIn("kv-events", rendered.ports)
        picker = {"podSelector": {"matchLabels": {"app": "eta-epp"}}}
        rendered = Rendered({**gateway, "inferenceGateway": {"enabled": True, "port": 9001, "eventPeers": [picker],
                                                             "eventsPort": 9002, "replayPort": 9003}})
        self.assertEqual(rendered.flag("kv_events"), "tcp://0.0.0.0:9002")
        self.assertEqual(rendered.flag("kv_events_replay"), "tcp://0.0.0.0:9003")
        self.assertEqual(rendered.flag("kv_events_topic"), "kv@$(POD_IP):9001@m")
        self.assertIn("--allow_network_kv_events", rendered.args)
        self.assertIn("POD_IP", [variable["name"] for variable in rendered.container["env"]])
        (rule,) = [rule for rule in rendered.only("NetworkPolicy")["spec"]["ingress"]
                   if 9002 in [p["port"] for p in rule["ports"]]]
        self.assertEqual(rule["from"], [picker])
        self.assertEqual([p["port"] for p in rule["ports"]], [9002, 9003])
        self.assertIsNone(Rendered(gateway).flag("metrics_names"))

    def test_profiles_from_config_maps(self):
        rendered = Rendered(CASES["files"])
        self.assertEqual(rendered.flag("profile_store"), "dir:/profiles")
        mounts = {m["name"]: m for m in rendered.container["volumeMounts"]}
        found = {mounts[v["name"]]["mountPath"]: v["configMap"]["name"]
                 for v in rendered.pod["volumes"] if "configMap" in v and v["name"] in mounts}
        self.assertEqual(found, {"/profiles/acme": "acme-profiles",
                                 "/profiles/default": "eta-server-profiles-1"})
        (made,) = [item for item in rendered.of("ConfigMap")
                   if item["metadata"]["name"] == "eta-server-profiles-1"]
        self.assertIn('"eta-profile"', made["data"]["legal.json"])

    def test_profiles_in_postgresql(self):
        rendered = Rendered(CASES["url"])
        # As a file: it may hold a password, which environments and command lines show.
        self.assertIsNone(rendered.flag("profile_store"))
        self.assertNotIn("postgresql://", str(rendered.pod))
        (mount,) = [m for m in rendered.container["volumeMounts"] if m["name"] == "profile-store"]
        (volume,) = [v["secret"] for v in rendered.pod["volumes"] if v["name"] == "profile-store"]
        secret = rendered.only("Secret")
        self.assertEqual(volume["secretName"], secret["metadata"]["name"])
        self.assertEqual(volume["defaultMode"], 0o440)
        (key,) = secret["stringData"]
        self.assertEqual(rendered.flag("profile_store_file"), f"{mount['mountPath']}/{key}")
        # It is read once: another URL must restart pods.
        checksums = [Rendered({"profiles": {"store": "postgresql", "postgresql": {"url": url}}})
                     .workload["spec"]["template"]["metadata"]["annotations"]
                     ["checksum/profile-store"] for url in ("postgresql://a", "postgresql://b")]
        self.assertNotEqual(*checksums)

    def test_lets_out_to_the_store_alone(self):
        def egress(values):
            return Rendered(values).only("NetworkPolicy")["spec"]["egress"]

        self.assertEqual(egress({}), [])
        dns, store = egress(CASES["url"])
        self.assertEqual([p["port"] for p in dns["ports"]], [53, 53])
        self.assertEqual(dns["to"], [{"namespaceSelector": {
            "matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}])
        self.assertEqual([p["port"] for p in store["ports"]], [5432])
        self.assertNotIn("to", store)
        dns, store = egress(CASES["store"])
        self.assertNotIn("to", dns)
        self.assertEqual([p["port"] for p in store["ports"]], [6432])
        self.assertEqual(store["to"], CASES["store"]["networkPolicy"]["store"])

    def test_profiles_in_sqlite(self):
        rendered = Rendered(example("profiles-sqlite"))
        self.assertEqual(rendered.workload["kind"], "StatefulSet")
        (claim,) = rendered.workload["spec"]["volumeClaimTemplates"]
        (mount,) = [m for m in rendered.container["volumeMounts"] if m["name"] != "socket"]
        self.assertEqual(mount["name"], claim["metadata"]["name"])
        self.assertTrue(rendered.flag("profile_store").startswith(f"sqlite:{mount['mountPath']}/"))

    def test_identity(self):
        rendered = Rendered(example("identity"))
        self.assertEqual(settings(rendered.args)["identity"].strip('"'),
                         "/etc/eta/identity/identity.json")
        (volume,) = [v["secret"] for v in rendered.pod["volumes"] if v["name"] == "identity"]
        self.assertEqual(volume, {"secretName": "eta-identity", "defaultMode": 0o440})

    def test_peers(self):
        rendered = Rendered(example("peers"))
        taken = settings(rendered.args)
        for flag, path in (("tls_cert", "tls/tls.crt"), ("tls_key", "tls/tls.key"),
                           ("tls_client_ca", "tls/ca.crt"), ("identity", "identity/identity.json")):
            self.assertEqual(taken[flag].strip('"'), f"/etc/eta/{path}")
        for flag in ("allow_unauthenticated_network", "allow_plaintext_network"):
            self.assertNotIn(f"--{flag}", rendered.args)
        self.assertEqual({m["name"]: m["mountPath"] for m in rendered.container["volumeMounts"]},
                         {"tls": "/etc/eta/tls", "identity": "/etc/eta/identity"})
        for volume in rendered.pod["volumes"]:
            self.assertEqual(volume["secret"]["defaultMode"], 0o440)
        # Keys alone: somebody else encrypts.
        keys = Rendered({"front": {"enabled": False}, "identity": {"existingSecret": "keys"}})
        self.assertIn("--allow_plaintext_network", keys.args)
        self.assertNotIn("--allow_unauthenticated_network", keys.args)
        self.assertIn("--allow_unauthenticated_network", Rendered(example("mesh")).args)

    def test_tenants(self):
        rendered = Rendered(example("tenants"))
        taken = settings(rendered.args)
        self.assertEqual(taken["tenant_header"].strip('"'), "x-eta-tenant")
        self.assertIn("ops", taken["admin_tenants"])
        (limits,) = [item for item in rendered.of("ConfigMap") if "tenants.json" in item["data"]]
        (mount,) = [m for m in rendered.container["volumeMounts"] if m["name"] == "limits"]
        self.assertEqual(taken["tenants"].strip('"'), f"{mount['mountPath']}/tenants.json")
        (volume,) = [v for v in rendered.pod["volumes"] if v["name"] == "limits"]
        self.assertEqual(volume["configMap"]["name"], limits["metadata"]["name"])
        self.assertEqual(json.loads(limits["data"]["tenants.json"])["tenants"]["acme"]["weight"], 4)
        # A call without a tenant would be refused.
        self.assertEqual([c["name"] for c in rendered.only("Pod")["spec"]["containers"]],
                         ["health"])


class Files(unittest.TestCase):
    """What is kept beside the chart."""

    def rules(self, **prometheus_rule):
        """{name of a file of deploy/prometheus: its groups as the chart renders them}"""
        rendered = Rendered({"metrics": {"prometheusRule": {"enabled": True, **prometheus_rule}}})
        return {rule["metadata"]["name"].removeprefix("eta-server-"): rule["spec"]
                for rule in rendered.of("PrometheusRule")}

    def test_rules_are_those_that_are_shipped(self):
        found = self.rules()
        self.assertEqual(set(found), {"rules", "alerts"})
        for name, spec in found.items():
            source = yaml.safe_load((ROOT / f"deploy/prometheus/{name}.yml").read_text())
            for group in source["groups"]:
                for rule in group["rules"]:
                    rule["expr"] = rule["expr"].replace('{job=~".*eta-server.*"}', "").strip()
            for group in spec["groups"]:
                for rule in group["rules"]:
                    rule["expr"] = re.sub(r'\{job="[^"]*"\}|(?<=\{)job="[^"]*",', "",
                                          rule["expr"]).strip()
                    rule.get("labels", {}).pop("job", None)
            self.assertEqual(spec, source)

    def test_rules_are_of_one_release(self):
        for options, server, front in (
                ({}, "eta-server/llm/eta-server", "eta-front/llm/eta-server"),
                ({"job": "mine"}, "mine", "eta-front/llm/eta-server"),
                ({"job": "mine", "frontJob": "its"}, "mine", "its")):
            asked = 0
            for name, spec in self.rules(**options).items():
                with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
                    yaml.safe_dump(spec, file)
                    file.flush()
                    ran = subprocess.run(["promtool", "check", "rules", file.name],
                                         capture_output=True, text=True, check=False)
                self.assertEqual(ran.returncode, 0, ran.stderr)
                for rule in (rule for group in spec["groups"] for rule in group["rules"]):
                    bare = re.sub("#.*", "", rule["expr"])
                    series = r"(?<![\w:])(up|process_\w+|(?:job\w*:)?eta_[\w:]+)(?:\{(job=\"[^\"]*\")?)?"
                    for metric, job in re.findall(series, bare):
                        wanted = front if "eta_front_" in metric else server
                        self.assertEqual(job, f'job="{wanted}"', f"{name}: {rule['expr']}")
                        asked += 1
                    # An absent server has no labels of its own.
                    if "alert" in rule and "eta_front_" not in bare:
                        self.assertEqual(rule["labels"]["job"], server)
            self.assertGreater(asked, 60)

    def test_severities_have_the_names_of_values(self):
        def severities(**options):
            return {rule["alert"]: rule["labels"]["severity"]
                    for group in self.rules(**options)["alerts"]["groups"] for rule in group["rules"]}

        names = {"page": "critical", "ticket": "warning"}
        self.assertEqual(severities(severities=names),
                         {alert: names[severity] for alert, severity in severities().items()})

    def test_dashboards_arrive_unchanged(self):
        rendered = Rendered({"metrics": {"dashboards": {"enabled": True}}})
        sources = {p.name: p.read_text().strip()
                   for p in (ROOT / "deploy/grafana/dashboards").glob("*.json")}
        found = {name: text.strip() for item in rendered.of("ConfigMap")
                 for name, text in item["data"].items() if name.endswith(".json")}
        self.assertTrue(found)
        self.assertEqual(found, sources)

    def test_plain_manifests(self):
        for name, values in MANIFESTS.items():
            self.assertEqual((ROOT / "deploy/kubernetes" / name).read_text(), manifest(values),
                             "tests/deploy/chart_test.sh build --write")
        listed = yaml.safe_load((ROOT / "deploy/kubernetes/kustomization.yaml").read_text())
        for resource in listed["resources"]:
            self.assertIn(resource, MANIFESTS)

    def test_metrics_that_others_ask_for_exist(self):
        texts = [path.read_text() for path in (CHART / "integrations").glob("*.yaml")]
        texts += [str(item) for name in ("autoscaling-hpa", "autoscaling-keda")
                  for item in Rendered(example(name)).objects if item["kind"] != "ConfigMap"]
        asked = {name for text in texts for name in re.findall(r"\b(?:eta_|vllm:)[a-z0-9_]+", text)}
        self.assertGreaterEqual(len(asked), 4)
        self.assertLessEqual(asked, metric_names())

    def test_compose(self):
        compose = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())
        servers = [name for name, service in compose["services"].items() if service["image"].startswith("eta-server:")]
        self.assertEqual(servers, ["eta-server", "smollm2-one", "smollm2-two"])
        for name in servers:
            command = compose["services"][name]["command"]
            settings(command if command[0].startswith("--model=") else ["--model=/models/eta-27m", *command])
        for service in compose["services"].values():
            for volume in service.get("volumes", []):
                source = volume.split(":")[0]
                if source.startswith("."):
                    self.assertTrue((ROOT / "deploy" / source).exists(), source)
                else:
                    self.assertIn(source, compose["volumes"])

    def test_compose_and_chart_take_the_images_that_are_built(self):
        services = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"]
        values = yaml.safe_load((CHART / "values.yaml").read_text())
        version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
        for name, dockerfile, image in (("eta-server", "Dockerfile", values["image"]),
                                        ("smollm2-two", "Dockerfile", values["image"]),
                                        ("gateway", "gateway/Dockerfile", values["gateway"]["image"])):
            build = services[name]["build"]
            self.assertEqual((ROOT / "deploy" / build["context"]).resolve(), ROOT)
            self.assertEqual(build["dockerfile"], f"deploy/{dockerfile}")
            self.assertEqual(services[name]["image"], f"{image['repository']}:{version}")
        for name in ("front", "gateway"):
            self.assertIn(f"\nARG VERSION={version}\n", (ROOT / "deploy" / name / "Dockerfile").read_text())
        for name in ("Dockerfile", "Dockerfile.cuda"):  # the model that the chart serves is in them
            text = (ROOT / "deploy" / name).read_text()
            self.assertIn(f"\nARG MODEL={values['model']['path'][1:]}\n", text)
            self.assertIn(f"\nARG VERSION={version}\n", text)

    def test_every_alert_stands_in_the_part_of_the_manual_that_it_names(self):
        text = (ROOT / "deploy/README.md").read_text()
        parts = {re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-"): set(re.findall(r"\bEta[A-Z]\w+", part))
                 for title, part in re.findall(r"^### (.*)\n((?:(?!##).*\n)*)", text, re.MULTILINE)}
        alerts = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())
        named = {}
        for rule in (rule for group in alerts["groups"] for rule in group["rules"]):
            document, anchor = rule["annotations"]["runbook"].split("#")
            self.assertEqual(document, "deploy/README.md")
            named.setdefault(anchor, set()).add(rule["alert"])
        self.assertTrue(named)
        self.assertEqual(named, {anchor: found for anchor, found in parts.items() if found})


def write_manifests():
    for name, values in MANIFESTS.items():
        (ROOT / "deploy/kubernetes" / name).write_text(manifest(values))


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        write_manifests()
    else:
        unittest.main()
