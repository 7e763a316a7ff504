"""A pod as Kubernetes runs it: containers from the files of their images with a root that is
read-only, volumes, a user without rights, and the order of starting and stopping."""

import json
import os
import pathlib
import re
import signal
import subprocess
import time

USER = 65532
DEPLOY = pathlib.Path(__file__).resolve().parents[2] / "deploy"
DOCKERFILES = {"eta-server": "Dockerfile", "front": "front/Dockerfile",  # of front-metrics too
               "gateway": "gateway/Dockerfile"}


def image_says(container, instruction, default=None):
    """Of the container's Dockerfile."""
    found = re.search(f"^{instruction} (.*)$", (DEPLOY / DOCKERFILES[container.removesuffix("-metrics")]).read_text(),
                      re.MULTILINE)
    return found[1] if found else default


def stop_signal(container):
    return signal.Signals[image_says(container, "STOPSIGNAL", "SIGTERM")]


def mount(*arguments):
    subprocess.run(["mount", *map(str, arguments)], check=True)


def owned(path, mode):
    os.chown(path, 0, USER)  # fsGroup
    path.chmod(mode)


class Folder:
    """A volume that holds files: a new state is put in its place as one, by a link, as the kubelet
    does."""

    def __init__(self, path, files):
        self.path, self.states = path, 0
        path.mkdir()
        self.put(files)

    def put(self, files):
        self.states += 1
        state = self.path / f"..{self.states}"
        for name, (data, mode) in files.items():
            file = state / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            owned(file, mode)
        link = self.path / "..data_tmp"
        link.symlink_to(state.name)
        link.rename(self.path / "..data")
        for name in {pathlib.PurePath(name).parts[0] for name in files}:
            if not (self.path / name).is_symlink():
                (self.path / name).symlink_to(f"..data/{name}")


class Pod:
    """`rendered` with `secrets` (name -> key -> bytes); `images`: container -> folder of its files;
    `cluster`: the cluster.Cluster that it may ask. Lays it out below `folder`, in a mount namespace of
    this process's own."""

    def __init__(self, rendered, secrets, images, folder, cluster=None):
        self.cluster = cluster
        self.rendered, self.secrets, self.folder = rendered, secrets, folder
        self.processes, self.ended = {}, []
        self.volumes = {volume["name"]: self._volume(volume) for volume in rendered.pod["volumes"]}
        self.roots = {container["name"]: self._root(container, images[container["name"]])
                      for container in rendered.containers}

    def _files(self, source):
        """File -> (bytes, mode) of a volume's source."""
        if "projected" in source:
            mode = source["projected"]["defaultMode"]
            return {name: (data, mode) for part in source["projected"]["sources"]
                    for name, (data, _) in self._files(part).items()}
        if "serviceAccountToken" in source:
            return {source["serviceAccountToken"]["path"]: (self.cluster.token.encode(), 0o440)}
        if "downwardAPI" in source:
            return {item["path"]: (self.cluster.namespace.encode(), 0o440) for item in source["downwardAPI"]["items"]}
        if source.get("configMap", {}).get("name") == "kube-root-ca.crt":
            return {"ca.crt": (self.cluster.roots.read_bytes(), 0o440)}
        if "secret" in source:
            named = source["secret"]
            data = self.secrets[named.get("secretName") or named["name"]]
        else:
            named = source["configMap"]
            (made,) = [item for item in self.rendered.of("ConfigMap")
                       if item["metadata"]["name"] == named["name"]]
            data = {key: text.encode() for key, text in made["data"].items()}
        paths = {item["key"]: item["path"] for item in named.get("items", [])}
        return {paths.get(key, key): (data[key], named.get("defaultMode", 0o644))
                for key in paths or data}

    def _volume(self, volume):
        path = self.folder / "volumes" / volume["name"]
        path.parent.mkdir(parents=True, exist_ok=True)
        if "emptyDir" not in volume:
            return Folder(path, self._files(volume))
        path.mkdir()
        owned(path, 0o2777)
        return path

    def put_secret(self, name, data):
        """What a new state of a Secret brings to its volumes."""
        self.secrets[name] = data
        for volume in self.rendered.pod["volumes"]:
            if name in str(volume):
                self.volumes[volume["name"]].put(self._files(volume))

    def _root(self, container, image):
        root = self.folder / "roots" / container["name"]
        root.mkdir(parents=True)
        mounts = sorted(container["volumeMounts"], key=lambda found: found["mountPath"])
        mount("--bind", image, root)
        for found in mounts:
            volume = self.volumes[found["name"]]
            place = root / found["mountPath"][1:]
            place.mkdir(parents=True, exist_ok=True)
            source = volume.path if isinstance(volume, Folder) else volume
            mount("--bind", source, place)
            if found.get("readOnly"):
                mount("-o", "remount,bind,ro", place)
        mount("-t", "proc", "proc", root / "proc")
        self._devices(root / "dev")
        mount("-o", "remount,bind,ro", root)
        return root

    @staticmethod
    def _devices(folder):
        """Those that containers have, one by one: the host's own folder is nowhere in a root."""
        mount("-t", "tmpfs", "-o", "size=64k,mode=0755", "tmpfs", folder)
        for name in ("null", "zero", "full", "random", "urandom"):
            (folder / name).touch()
            mount("--bind", f"/dev/{name}", folder / name)
        for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
            (folder / name).symlink_to(f"/proc/self/fd{target}")

    def _environment(self, container):
        environment = {"PATH": "/usr/sbin:/usr/bin"}
        for setting in image_says(container["name"], "ENV", "").split():
            name, _, value = setting.partition("=")
            environment[name] = value
        if self.cluster:
            environment |= {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self.cluster.port)}
        for variable in container.get("env", []):
            value = variable.get("value") or container["resources"]["requests"]["cpu"]
            environment[variable["name"]] = value
        return environment

    def start(self, name):
        (container,) = [c for c in self.rendered.containers if c["name"] == name]
        output = self.output(name)
        with output.open("ab") as file:
            os.chown(output, USER, USER)  # as container runtimes give standard output away
            self.processes[name] = subprocess.Popen(
                ["setpriv", "--no-new-privs", "chroot", f"--userspec={USER}:{USER}", "--groups=",
                 self.roots[name], *container.get("command", json.loads(image_says(name, "ENTRYPOINT"))),
                 *container.get("args", [])],
                env=self._environment(container), stdin=subprocess.DEVNULL,
                stdout=file, stderr=file)

    def output(self, name):
        return self.folder / f"{name}.log"

    def lines(self, name):
        return self.output(name).read_text().splitlines()

    def stop(self):
        """As a pod is deleted: what ends with which code, in order, after at most its grace."""
        deadline = time.monotonic() + self.rendered.pod["terminationGracePeriodSeconds"]
        ended = []
        sidecars = [c["name"] for c in self.rendered.pod.get("initContainers", [])]
        for names in ([c["name"] for c in self.rendered.pod["containers"]], *([n] for n in reversed(sidecars))):
            for name in names:
                self.processes[name].send_signal(stop_signal(name))
            for name in names:
                left = max(2, deadline - time.monotonic())
                ended.append((name, self.processes.pop(name).wait(timeout=left)))
        return ended

    def kill(self):
        for name, process in self.processes.items():
            process.send_signal(signal.SIGTERM if name == "front" else signal.SIGKILL)
            process.wait()
        self.processes.clear()
