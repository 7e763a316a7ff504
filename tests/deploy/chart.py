"""The chart as Helm renders it: values in, Kubernetes objects out."""

import atexit
import functools
import pathlib
import tempfile

import helm_python
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/helm/eta-server"
RELEASE = {"name": "eta-server", "namespace": "llm"}
# Objects of operators, of which kubernetes-validate has no schemas.
OPERATOR_KINDS = {"ServiceMonitor", "PrometheusRule", "ScaledObject"}


@functools.cache
def package():
    """The chart as an archive, with the files that it has as links."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    return helm_python.package(str(CHART), destination=folder.name)


@functools.cache
def load():
    return helm_python.Chart.load(package())


def render_text(values):
    """Path of template -> text; raises helm_python.HelmError."""
    return load().render(values, **RELEASE)


def is_gateways(item):
    return item["metadata"]["labels"]["app.kubernetes.io/name"].endswith("-gateway")


class Rendered:
    """Objects of one set of values."""

    def __init__(self, values):
        self.texts = render_text(values)
        self.objects = []
        for path, text in sorted(self.texts.items()):
            if path.endswith(".yaml"):
                self.objects += [item for item in yaml.safe_load_all(text) if item]

    def of(self, kind):
        return [item for item in self.objects if item["kind"] == kind]

    def only(self, kind):
        (item,) = self.of(kind)
        return item

    def names(self, kind):
        return [item["metadata"]["name"] for item in self.of(kind)]

    def named(self, kind, name):
        (item,) = [item for item in self.of(kind) if item["metadata"]["name"] == name]
        return item

    @property
    def workload(self):
        """Of the servers."""
        (item,) = [item for item in self.of("Deployment") + self.of("StatefulSet") if not is_gateways(item)]
        return item

    @property
    def policy(self):
        """Of the servers' pods."""
        (item,) = [item for item in self.of("NetworkPolicy") if not is_gateways(item)]
        return item["spec"]

    @property
    def pod(self):
        return self.workload["spec"]["template"]["spec"]

    @property
    def container(self):
        (item,) = self.pod["containers"]
        return item

    @property
    def front(self):
        """nginx's container, None without the front."""
        return next(iter(self.pod.get("initContainers", [])), None)

    @property
    def containers(self):
        """All of the pod, the first that starts and the last that ends before the others."""
        return [*self.pod.get("initContainers", []), *self.pod["containers"]]

    @property
    def ports(self):
        """Name -> number, of all containers."""
        return {port["name"]: port["containerPort"]
                for container in self.containers for port in container.get("ports", [])}

    @property
    def args(self):
        return self.container["args"]

    def flag(self, name):
        """The value of --name, None where it is not given."""
        for argument in self.args:
            flag, _, value = argument.partition("=")
            if flag == f"--{name}":
                return value
        return None


def example(name):
    return yaml.safe_load((CHART / "examples" / f"{name}.yaml").read_text())


def examples():
    return sorted(path.stem for path in (CHART / "examples").glob("*.yaml"))


# Plain manifests in deploy/kubernetes: file -> values.
MANIFESTS = {
    "eta-server.yaml": {},
    "eta-server-gpu.yaml": {
        "image": {"tag": "0.1.0-cuda"},
        "gpu": {"enabled": True},
        "resources": {
            "requests": {"cpu": "4", "memory": "8Gi"},
            "limits": {"memory": "8Gi"},
        },
    },
}


def manifest(values):
    """One file for kubectl apply: without hooks, and without what says that Helm manages it."""
    parts = [
        "# Rendered from deploy/helm/eta-server, release eta-server; do not edit. Anew:\n"
        "# tests/deploy/chart_test.sh build --write\n"
    ]
    for path, text in sorted(render_text(values).items()):
        if not path.endswith(".yaml") or "/templates/tests/" in path:
            continue
        for document in text.split("\n---\n"):
            lines = [
                line
                for line in document.strip().splitlines()
                if not line.strip().startswith(("helm.sh/chart:", "app.kubernetes.io/managed-by:"))
                and line != "---"
            ]
            if yaml.safe_load("\n".join(lines)):
                parts.append("\n".join(lines) + "\n")
    return "---\n".join(parts)
