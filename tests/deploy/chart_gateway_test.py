"""The gateway that the chart puts before the servers: SMG in pods of its own, and what a server opens to it."""

import contextlib
import importlib.util
import io
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import unittest

import yaml
from chart import ROOT, Rendered, example, package
from chart_cases import CASES, gateway
from chart_test import each_case, settings
from smg.launch_router import parse_router_args

NAME = "eta-server-gateway"
SPEC = importlib.util.spec_from_file_location("start", ROOT / "deploy/gateway/start.py")
START = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(START)
ITS_PODS = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": NAME, "app.kubernetes.io/instance": "eta-server"}}}


class Gateway:
    """What is rendered of it."""

    def __init__(self, values):
        self.rendered = Rendered(values)
        self.workload = self.rendered.named("Deployment", NAME)
        self.labels = self.workload["spec"]["template"]["metadata"]["labels"]
        self.pod = self.workload["spec"]["template"]["spec"]
        (self.container,) = self.pod["containers"]
        self.ports = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        self.policy = self.rendered.named("NetworkPolicy", NAME)["spec"]

    @property
    def settings(self):
        """What SMG makes of its command line, less what start.py takes."""
        keys, *rest = self.container["args"]
        assert keys.startswith("--keys=/"), keys
        errors = io.StringIO()
        try:
            with contextlib.redirect_stderr(errors):
                return parse_router_args(rest)
        except SystemExit as end:
            raise AssertionError(errors.getvalue()) from end


class EveryGateway(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.rendered = {name: Gateway(values) for name, values in CASES.items()
                        if values.get("gateway", {}).get("enabled")}

    def test_cases(self):
        self.assertGreater(len(self.rendered), 4)

    @each_case
    def test_smg_knows_the_flags(self, gateway):
        taken = gateway.settings
        self.assertEqual((taken.port, taken.health_check_port), (gateway.ports["http"], gateway.ports["health"]))
        self.assertEqual(taken.selected_discovery_provider(), "kubernetes")
        self.assertEqual(taken.service_discovery_namespace, "llm")
        self.assertEqual(taken.worker_urls, [])
        taken._validate_router_args()

    @each_case
    def test_it_finds_the_servers_alone(self, gateway):
        labels = gateway.rendered.workload["spec"]["template"]["metadata"]
        self.assertLessEqual(gateway.settings.selector.items(), labels["labels"].items())
        self.assertFalse(gateway.settings.selector.items() <= gateway.labels.items())
        asked = [int(port) for port in labels["annotations"]["smg.ai/worker-ports"].split(",")]
        self.assertEqual(asked, [port for name, port in gateway.rendered.ports.items() if name.startswith("vllm-")])
        self.assertEqual(gateway.settings.service_discovery_port, asked[0])
        listens = settings(gateway.rendered.args)["vllm_listen"]
        for port in asked:
            self.assertIn(f":{port}", listens)

    @each_case
    def test_ports_of_services_and_probes(self, gateway):
        services = [s for s in gateway.rendered.of("Service") if s["spec"]["selector"].items() <= gateway.labels.items()]
        self.assertEqual({s["metadata"]["name"] for s in services},
                         {NAME, *([f"{NAME}-metrics"] if "metrics" in gateway.ports else [])})
        for service in services:
            for port in service["spec"]["ports"]:
                self.assertEqual(gateway.ports[port["targetPort"]], port["port"])
        for probe, path in (("readinessProbe", "/readiness"), ("livenessProbe", "/liveness")):
            self.assertEqual(gateway.container[probe]["httpGet"], {"path": path, "port": "health"})
        self.assertEqual(gateway.settings.prometheus_host == "127.0.0.1", "metrics" not in gateway.ports)

    @each_case
    def test_who_reaches_whom(self, gateway):
        policy, server = gateway.policy, gateway.rendered.policy
        self.assertEqual(policy["podSelector"]["matchLabels"], ITS_PODS["podSelector"]["matchLabels"])
        self.assertEqual({p["port"] for rule in policy["ingress"] for p in rule["ports"]}, set(gateway.ports.values()))
        opened = {port for name, port in gateway.rendered.ports.items() if name.startswith("vllm-")}
        rules = [rule for rule in server["ingress"] if opened & {p["port"] for p in rule["ports"]}]
        self.assertEqual([rule["from"] for rule in rules], [[ITS_PODS]], "nobody but the gateway reaches what asks for no key")
        self.assertEqual({p["port"] for p in rules[0]["ports"]}, opened)
        pods, api = policy["egress"][:2]
        self.assertEqual(pods["to"], [{"podSelector": server["podSelector"]}])
        self.assertEqual({p["port"] for p in pods["ports"]}, opened)
        self.assertEqual([p["port"] for p in api["ports"]], [443, 6443])
        helm_test = gateway.rendered.only("Pod")
        self.assertEqual([c["name"] for c in helm_test["spec"]["containers"]][-1], "gateway")
        self.assertIn(f"http://{NAME}:{gateway.ports['health']}/readiness", str(helm_test))

    @each_case
    def test_it_may_read_pods_of_its_namespace_and_nothing_else(self, gateway):
        self.assertEqual(gateway.rendered.only("Role")["rules"],
                         [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}])
        binding = gateway.rendered.only("RoleBinding")
        self.assertEqual([(s["kind"], s["name"], s["namespace"]) for s in binding["subjects"]],
                         [("ServiceAccount", NAME, "llm")])
        self.assertEqual(gateway.pod["serviceAccountName"], NAME)
        self.assertEqual(gateway.rendered.pod["serviceAccountName"], "eta-server", "servers ask the cluster nothing")
        (volume,) = [v["projected"] for v in gateway.pod["volumes"] if "projected" in v]
        self.assertEqual([next(iter(source)) for source in volume["sources"]],
                         ["serviceAccountToken", "configMap", "downwardAPI"])

    @each_case
    def test_keys_are_files(self, gateway):
        mounts = {m["name"]: m["mountPath"] for m in gateway.container["volumeMounts"]}
        self.assertIn(f"--keys={mounts['keys']}", gateway.container["args"])
        self.assertNotIn("env", gateway.container)
        for volume in gateway.pod["volumes"]:
            if "secret" in volume:
                self.assertEqual(volume["secret"]["defaultMode"], 0o440)

    @each_case
    def test_its_grace_covers_its_drain(self, gateway):
        # SMG takes calls for five seconds more, and the rest of its parts end within seconds.
        self.assertGreaterEqual(gateway.pod["terminationGracePeriodSeconds"],
                                5 + gateway.settings.shutdown_grace_period_secs + 5)


class Values(unittest.TestCase):
    def test_is_off_unless_told_otherwise(self):
        rendered = Rendered({})
        self.assertNotIn("gateway", str(rendered.objects))
        self.assertIsNone(rendered.flag("vllm_listen"))

    def test_names_stand_for_ways_to_attend(self):
        found = Gateway(example("openai-gateway"))
        self.assertEqual(found.rendered.flag("vllm_listen"), "0.0.0.0:8477,0.0.0.0:8478=smollm2-full:full")
        unnamed = Rendered(gateway(models=[{"port": 8477, "attention": "profile:legal"}]))
        self.assertEqual(unnamed.flag("vllm_listen"), "0.0.0.0:8477=eta-27m:profile:legal")
        settings(unnamed.args)

    def test_it_is_told_what_is_cached(self):
        """With a file of callers that takes a role; without one all have all."""
        identity = {"identity": {"existingSecret": "keys"}}
        self.assertNotIn("--vllm_route", Rendered(gateway()).args)
        self.assertIn("--vllm_route", Rendered({**gateway(), **identity}).args)
        self.assertNotIn("--vllm_route", Rendered({**gateway(policy="round_robin"), **identity}).args)
        off = Rendered({**gateway(), **identity, "flags": {"vllm_route": False, "vllm_tenant": "edge"}})
        taken = settings(off.args)
        self.assertEqual((taken["vllm_route"], taken["vllm_tenant"].strip('"')), ("false", "edge"))
        self.assertEqual(settings(Rendered({**gateway(), **identity}).args)["vllm_route"], "true")

    def test_replicas(self):
        self.assertEqual(Rendered(gateway()).of("PodDisruptionBudget"), [])
        found = Gateway(gateway(replicaCount=3))
        budget = found.rendered.only("PodDisruptionBudget")["spec"]
        self.assertLessEqual(budget["selector"]["matchLabels"].items(), found.labels.items())
        for spread in found.pod["topologySpreadConstraints"]:
            self.assertLessEqual(spread["labelSelector"]["matchLabels"].items(), found.labels.items())

    def test_tls(self):
        found = Gateway(gateway(tls={"existingSecret": "t", "certKey": "a", "keyKey": "b"}))
        self.assertEqual((found.settings.server_cert_path, found.settings.server_key_path),
                         ("/etc/gateway/tls/a", "/etc/gateway/tls/b"))
        service = found.rendered.named("Service", NAME)
        self.assertEqual(service["spec"]["ports"][0]["appProtocol"], "https")
        notes = found.rendered.texts["eta-server/templates/NOTES.txt"]
        self.assertIn("https://eta-server-gateway.llm.svc.cluster.local:8480/v1", notes)
        self.assertNotIn("plaintext", notes)
        notes = Rendered(gateway()).texts["eta-server/templates/NOTES.txt"]
        self.assertIn("http://eta-server-gateway.llm.svc.cluster.local:8480/v1", notes)
        self.assertIn("WARNING:   keys, prompts and answers reach the gateway in plaintext", notes)

    def test_without_a_policy_the_notes_warn(self):
        notes = Rendered({**gateway(), "networkPolicy": {"enabled": False}}).texts["eta-server/templates/NOTES.txt"]
        self.assertIn("calls past the gateway", notes)

    def test_flags_of_smg(self):
        args = Gateway(CASES["gateway, no front, keys"]).container["args"]
        self.assertIn("--tool-call-parser=qwen", args)
        self.assertIn("--disable-retries", args)
        self.assertNotIn("enable-trace", str(args))
        self.assertIn("--max-payload-size=1048576", args)

    def test_compose(self):
        """A profile of two servers, and SMG before all that they listen on."""
        services = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"]
        profile = {name for name, service in services.items() if service.get("profiles") == ["gateway"]}
        self.assertEqual(profile, {"gateway", "smollm2-one", "smollm2-two"})
        gateway = services["gateway"]
        self.assertEqual({*gateway["depends_on"], "gateway"}, profile)
        taken = parse_router_args(gateway["command"])
        taken._validate_router_args()
        listens = next(a for a in services["smollm2-one"]["command"] if a.startswith("--vllm_listen="))
        ports = re.findall(r"0\.0\.0\.0:(\d+)", listens)
        self.assertEqual(sorted(taken.worker_urls),
                         sorted(f"grpc://{name}:{port}" for name in gateway["depends_on"] for port in ports))
        for name in gateway["depends_on"]:
            self.assertNotIn("ports", services[name], "the gateway alone calls them")
        self.assertEqual(gateway["ports"], [f"127.0.0.1:{taken.port}:{taken.port}"])
        self.assertIn(f"http://localhost:{taken.health_check_port}/readiness", str(gateway["healthcheck"]))

    def test_the_image_is_what_the_tests_run(self):
        """The gateway of tests/gateway, and of the image, is one."""
        def pinned(path):
            lines = [line for line in (ROOT / path).read_text().splitlines() if line and not line.startswith("#")]
            return {line for line in lines if line.startswith(("smg==", "setproctitle=="))}

        self.assertEqual(len(pinned("deploy/gateway/requirements.txt")), 2)
        self.assertEqual(pinned("deploy/gateway/requirements.txt"), pinned("tests/gateway/gateway.txt"))

    def test_archive_has_no_files_of_images(self):
        with tarfile.open(package()) as archive:
            self.assertEqual([name for name in archive.getnames() if name.endswith(("Dockerfile", "root.sh"))], [])


class Keys(unittest.TestCase):
    """The image's entry: keys of callers are files."""

    def keys_of(self, files):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                pathlib.Path(folder, name).write_text(text)
            return START.keys_of(folder)

    def test_an_entry_is_a_caller(self):
        self.assertEqual(self.keys_of({"b-2": "0123456789abcdef\n", "acme": "x" * 64, "..data": "of a volume"}),
                         ["acme:" + "x" * 64, "b-2:0123456789abcdef"])

    def test_keys_that_are_none(self):
        for files, named in (({}, "no key"), ({"acme": "short"}, "acme: "), ({"acme": "0123456789 abcdef"}, "acme: "),
                             ({"acme": "0123456789abcd\N{EURO SIGN}f"}, "acme: "), ({"a:b": "x" * 16}, "'a:b'")):
            with self.subTest(files=files), self.assertRaisesRegex(ValueError, named):
                self.keys_of(files)

    def test_the_refusal_names_the_flag(self):
        ran = subprocess.run([sys.executable, "-B", START.__file__, "--keys", "/nonexistent", "--port", "1"],
                             capture_output=True, text=True, check=False)
        self.assertEqual(ran.returncode, 1)
        self.assertRegex(ran.stderr, "^--keys /nonexistent: ")


if __name__ == "__main__":
    unittest.main()
