"""What .dockerignore lets through is enough for every image: copied to an empty folder as COPY does it, and the commands
of RUN tried there.

    image_build_test.py BUILD_DIR

A usual run configures there, lets Ninja look for every source that the two binaries are made of, follows the includes, and
runs the checks that need no binaries of this build; image_root.sh gets those of BUILD_DIR. It compiles nothing: what ships
is built without failpoints, so no object of BUILD_DIR serves it, and without a compiler's cache it would take as long as
the first build. The long run (ETA_TEST_LONG) builds, and checks what it built.

Other than in an image: packages are here already, nothing is removed, xgrammar is the one that this build has (without
it there are no formats of answers), a machine without CUDA's toolkit configures Dockerfile.cuda without it, and an older package is a notice (lock.py --ships_nothing), since nothing is shipped from here."""

import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import docker_context

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 else ROOT / "build"
LONG = "ETA_TEST_LONG" in os.environ
DOCKERFILES = ("Dockerfile", "Dockerfile.cuda", "front/Dockerfile", "gateway/Dockerfile")
TOOLKIT = shutil.which("nvcc") is not None
GRAMMAR = ROOT / "build/xgrammar"
OURS = re.compile(r"(calibration|deploy|engine|kernels|proto|service|tests|training)/(?!.*\.pb\.h$)")


@functools.cache
def given():
    """Paths of all that a build at the root of the repository gets."""
    return tuple(docker_context.Ignore((ROOT / ".dockerignore").read_text()).context(ROOT))


@functools.cache
def instructions(name):
    """Of the stage in which things are built."""
    return next(stage for stage in docker_context.stages((ROOT / "deploy" / name).read_text())
                if any(what == "RUN" for what, _ in stage))


def copies(name):
    """(sources, target) of each COPY from the context."""
    for what, argument in instructions(name):
        words = argument.split()
        if what in ("COPY", "ADD") and not words[0].startswith("--from"):
            yield words[:-1], words[-1]


def variables(name):
    """What ARG and ENV say, before any build argument."""
    text = (ROOT / "deploy" / name).read_text()
    return {"CUDA": "", **dict(re.findall(r"(?m)^ARG (\w+)=(.*)$", text))}


class Rules(unittest.TestCase):
    """Docker's own: the cases are of moby/patternmatcher's tests, and of its documentation."""

    CASES = (
        ("**", "file", True), ("**/", "dir/file", True), ("dir/**", "dir/file", True), ("dir/**", "file", False),
        ("dir/**", "dir", False), ("**/dir2/*", "dir/dir2/file", True), ("**/dir2/*", "dir/file", False),
        ("**/file", "file", True), ("**/file", "dir/dir/file", True), ("**/file*", "dir/file.txt", True),
        ("**file", "dir/file", True), ("**/*.txt", "dir/file.txt", True), ("*", "dir/file", True),
        ("*.go", "a.go", True), ("*.go", "dir/a.go", False), ("a?c", "abc", True), ("a?c", "a/c", False),
        ("[a-c].x", "b.x", True), ("[a-c].x", "d.x", False), ("a[^a]", "ab", True), ("a[^a]", "aa", False),
        ("a.b", "axb", False), (r"a\*b", "a*b", True), (r"a\*b", "axb", False), ("/a", "a", True),
        ("a/", "a/file", True), ("./a/../b", "b", True), ("a", "a/b/c", True), ("a", "b/a", False),
        ("# a\n", "# a", False), ("\n  a  \n", "a", True),
        ("*\n!a", "a/b", False), ("*\n!a\na/b", "a/b", True), ("!a\n*", "a", True), ("*\n!a/*.md", "a/x.md", False),
        ("*\n!a/*.md", "a/x", True), ("**/*.md\n!*/a.md", "x/a.md", False), ("**/*.md\n!*/a.md", "x/y/a.md", True),
        ("*\n! a", "a", False), ("*\n!**/x", "a/b/x", False),
    )  # fmt: skip

    def test_what_is_ignored(self):
        for text, path, expected in self.CASES:
            with self.subTest(pattern=text, path=path):
                self.assertEqual(docker_context.Ignore(text).ignores(path), expected)

    def test_a_context_is_what_is_not_ignored(self):
        files = ("a/x.md", "a/b/y", "b/x.md", "c", "d/e/f", "d/e/z/f")
        with tempfile.TemporaryDirectory() as folder:
            for file in files:
                pathlib.Path(folder, file).parent.mkdir(parents=True, exist_ok=True)
                pathlib.Path(folder, file).touch()
            pathlib.Path(folder, "link").symlink_to("a")
            for text in ("", "*", "*\n!a", "*\n!a/*.md", "*\n!d/*/f", "*\n!**/f", "d\n!d/e/z", "**/x.md\n!b", "link"):
                ignore = docker_context.Ignore(text)
                self.assertEqual(sorted(ignore.context(folder)),
                                 sorted(file for file in (*files, "link") if not ignore.ignores(file)), text)

    def test_lines_of_a_dockerfile(self):
        stage, last = docker_context.stages("ARG X=1\nFROM a AS b\n# x\nRUN one \\\n# inside\n  && two  \\\n  --y\nFROM c\n")
        self.assertEqual(docker_context.commands(stage[0][1]), ["one", "two --y"])
        self.assertEqual(last, [])


class Given(unittest.TestCase):
    """Without running anything."""

    def test_nothing_that_no_build_needs(self):
        self.assertEqual([path for path in given() if re.match(r"(tests|training|build|shared|\.git)/|deploy/helm", path)], [])

    def test_what_is_copied_and_run_is_there(self):
        for name in DOCKERFILES:
            there = []
            for what, argument in instructions(name):
                if what == "COPY" and not argument.startswith("--from"):
                    for source in argument.split()[:-1]:
                        self.assertTrue(docker_context.taken(given(), source), f"{name}: COPY {source}")
                        there += docker_context.taken(given(), source)
                if what == "RUN":
                    checked = subprocess.run(["sh", "-n", "-c", argument], capture_output=True, text=True, check=False)
                    self.assertEqual(checked.returncode, 0, f"{name}: {checked.stderr}")
                    for path in re.findall(r"(?<![\w/.])(?:deploy|models)/[\w./-]*\w", argument):
                        self.assertTrue(docker_context.taken(there, path), f"{name}: RUN names {path}")
            for script in [path for path in there if path.endswith(".sh")]:
                text = re.sub("(?m)^ *#.*$", "", (ROOT / script).read_text())
                if script not in ("deploy/image_parts.sh",) and any(script in argument for _, argument in instructions(name)):
                    for path in re.findall(r"(?<![\w/])deploy/[\w./]+\w", text):
                        self.assertTrue(docker_context.taken(there, path), f"{name}: {script} names {path}")

    def test_both_servers_are_built_alike(self):
        built = [next(a for what, a in instructions(name) if "cmake --preset" in a) for name in DOCKERFILES[:2]]
        self.assertEqual(built[0].replace("ETA_CUDA=OFF", "ETA_CUDA=ON"), built[1])
        for option in ("--preset release", "-DETA_TESTS=OFF", "-DETA_TRAINING=OFF"):
            self.assertIn(option, built[0])

    def test_includes_are_there(self):
        """Those of the project, which name files from its root."""
        here = set(given())
        sources = [path for path in here if re.search(r"\.(h|cc|cu|cuh|inc)$", path)]
        self.assertGreater(len(sources), 500)
        missing = []
        for path in sources:
            for found in re.findall(r'(?m)^\s*#\s*include\s+"([^"]+)"', (ROOT / path).read_text()):
                if OURS.match(found) and found not in here:
                    missing.append(f"{path}: {found}")
        self.assertEqual(missing, [])


class Runs(unittest.TestCase):
    """The commands of RUN, in a folder that holds what COPY put there."""

    def run_here(self, folder, name, command, environment):
        settings = ". {}/deploy/compiler_cache.sh \"$PWD\" && {}".format(ROOT, command)
        ran = subprocess.run(["bash", "-c", settings], cwd=folder, env={**os.environ, **environment},
                             capture_output=True, text=True, check=False)
        self.assertEqual(ran.returncode, 0, f"{name}: {command}\n{ran.stdout[-4000:]}\n{ran.stderr[-4000:]}")
        return ran.stdout

    def adapted(self, command, image):
        """The command as it can be run here; None: left out, see above."""
        program = command.split()[0]
        if not GRAMMAR.is_dir():
            command = command.replace("-DETA_GRAMMAR=ON", "-DETA_GRAMMAR=OFF").replace(" --xgrammar build/xgrammar", "")
        if program == "deploy/fetch_xgrammar.sh":
            return f"mkdir -p build && cp -r {GRAMMAR} build/" if GRAMMAR.is_dir() else None
        if program in ("deploy/install_packages.sh", "rm"):
            return None
        if program == "deploy/front/root.sh" or "--front" in command:
            if not shutil.which("nginx"):
                return None
        if program == "cmake" and "--preset" in command:
            return command if TOOLKIT else command.replace("-DETA_CUDA=ON", "-DETA_CUDA=OFF")
        if program == "cmake" and not LONG:
            return command.replace("cmake --build build --target", "ninja -C build -n")
        if program in ("deploy/check_binaries.sh", "deploy/supply_chain/lock.py") and "build/bin" in command:
            if not LONG:
                return None
        command = command.replace("lock.py --check", "lock.py --check --ships_nothing")
        command = re.sub(r"(?<=\s)/image\b", image, command)
        if not LONG:
            command = re.sub(r"(?<=\s)build/bin(?=\s)", str(BUILD / "bin"), command)
        if not TOOLKIT:
            command = re.sub(r'\s+--library "/usr/local/cuda/[^"]*"', "", command)
        return command

    def build(self, name):
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder, "src")
            source.mkdir()
            said = ""
            for what, argument in instructions(name):
                words = argument.split()
                if what == "COPY" and not words[0].startswith("--from"):
                    for path in words[:-1]:
                        docker_context.copy(ROOT, docker_context.taken(given(), path), source)
                elif what == "RUN":
                    for command in docker_context.commands(argument):
                        known = re.match(r"(cmake|rm|deploy/\S+)\b", command)
                        self.assertTrue(known, f"{name}: this test does not know how to try: {command}")
                        command = self.adapted(command, str(pathlib.Path(folder, "image")))
                        if command:
                            said += self.run_here(source, name, command, variables(name))
            image = pathlib.Path(folder, "image")
            return said, sorted(str(path.relative_to(image)) for path in image.rglob("*") if path.is_file())

    def test_server(self):
        said, files = self.build("Dockerfile")
        self.assertGreater(int(re.search(r"flags: (\d+) sources in order", said)[1]), 150)
        self.assertLessEqual({"usr/bin/eta-server", "usr/bin/etactl", "models/eta-27m/config.json",
                              "usr/share/doc/eta-server/sbom.spdx.json"}, set(files))
        if LONG:
            self.assertIn("check_binaries: 2 in order", said)

    def test_server_for_gpus(self):
        said, files = self.build("Dockerfile.cuda")
        self.assertRegex(said, r"flags: \d+ sources in order")
        self.assertIn("usr/bin/eta-server", files)

    def test_front(self):
        _, files = self.build("front/Dockerfile")
        if shutil.which("nginx"):
            self.assertIn("usr/sbin/nginx", files)

    def test_gateway(self):
        try:
            _, files = self.build("gateway/Dockerfile")
        except AssertionError as error:
            if "No matching distribution found" not in str(error):  # as pip says also of a registry that it does not reach
                raise
            print("not tried: no Python environment with deploy/gateway/requirements.txt")
            return
        self.assertLessEqual({"usr/bin/python3.11", "usr/lib/gateway/start.py", "usr/lib/smg/smg/smg_rs.abi3.so",
                              "usr/share/doc/smg/LICENSE", "usr/share/doc/libssl3/copyright"}, set(files))
        self.assertEqual([file for file in files if re.match(r"usr/(s?bin/.*sh|lib/python3/)", file)], [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
