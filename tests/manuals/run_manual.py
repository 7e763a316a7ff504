#!/usr/bin/env python3
"""Runs the commands of a manual as a reader types them: in order, in a fresh folder that has the tree
and the programs of this build, with no server but those that the manual starts.

  run_manual.py MANUAL BUILD     runs it (ETA_TEST_LONG=1: its long commands too)
  run_manual.py --check          every manual's blocks have marks that fit (blocks.py has their form)
"""

import contextlib
import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from blocks import BadManual, Entry, Step, read_manual
from session import Failed, Session

ROOT = Path(__file__).resolve().parents[2]
MANUALS = (
    "README.md", "proto/README.md", "service/README.md", "engine/README.md", "calibration/README.md",
    "calibration/evaluation/README.md", "training/README.md", "deploy/README.md", "tests/README.md",
    "tests/golden/README.md", "models/eta-27m/samples/README.md", "models/smollm2-eta/README.md",
    "CONTRIBUTING.md")
PORTS = (8471, 8481)  # of servers in the manuals
INSIDE = "--own-network"


def check():
    bad = 0
    for name in MANUALS:
        try:
            read_manual((ROOT / name).read_text())
        except BadManual as error:
            print(f"manuals: {name}: {error}", file=sys.stderr)
            bad = 1
    # A manual that nobody listed.
    listed = subprocess.run(
        ["grep", "-rlE", "^ *```", "--include=*.md", "--exclude-dir=build*", "."], cwd=ROOT,
        capture_output=True, text=True).stdout.split()
    for name in sorted(name[2:] for name in listed):
        if name not in MANUALS and not name.endswith("RESULTS.md") and not name.startswith("shared/"):
            print(f"manuals: {name} has blocks and is not in MANUALS (run_manual.py)", file=sys.stderr)
            bad = 1
    if not bad:
        print("manuals: every block has its mark")
    return bad


def own_network(arguments):
    """The command line again, where only this manual's servers listen, and where none of them outlives
    this process, however that ends; None where that cannot be."""
    own = ["--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    for flags in (own, ["--map-root-user", *own]):
        if subprocess.run(["unshare", *flags, "true"], capture_output=True).returncode == 0:
            return ["unshare", *flags, sys.executable, "-B", __file__, INSIDE, *arguments]
    return None


def raise_loopback():
    up_and_running = struct.pack("16sh14x", b"lo", 0x1 | 0x40)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, 0x8914, up_and_running)  # SIOCSIFFLAGS


@contextlib.contextmanager
def shared_port():
    """The manuals' ports, where there is no network of our own: one manual at a time."""
    with open(Path(tempfile.gettempdir()) / f"eta-manuals-{os.getuid()}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for port in PORTS:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    print(f"no network namespaces here, and something listens on port {port}")
                    sys.exit(77)
        yield


def lay_out(folder, build):
    """The tree as links, and of the build its programs alone."""
    for entry in ROOT.iterdir():
        if not entry.name.startswith(("build", ".git")):
            (folder / entry.name).symlink_to(entry)
    (folder / "build").mkdir()
    (folder / "build" / "bin").symlink_to(build / "bin")


def environment(tools):
    """A reader's, with a small program in grpcurl's place where that is not installed."""
    if not shutil.which("grpcurl"):
        (tools / "grpcurl").symlink_to(Path(__file__).with_name("grpcurl.py"))
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
    return {**kept, "PATH": f"{tools}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


def planned(step, long_run):
    """The step that is to be run in this run, or None."""
    kind = step.entry.kind
    if kind in ("run", "server", "python") or (kind == "long" and long_run):
        return step
    if kind in ("skip", "long") and "instead" in step.entry.options:
        source = step.entry.options["instead"]
        return Step(step.line, source, Entry("run"))
    return None


def run_steps(name, steps, session, long_run):
    """Runs what is to be run; the number of steps that failed."""
    failed = 0
    for step in steps:
        here = f"{name}:{step.line}"
        todo = planned(step, long_run)
        first_line = (todo or step).source.splitlines()[0]
        if not todo:
            if step.entry.kind in ("skip", "long"):
                why = step.entry.text if step.entry.kind == "skip" else "part of the long run"
                print(f"{here}: not run ({why}): {first_line}", flush=True)
            continue
        start = time.monotonic()
        try:
            printed = session.run(todo)
            if os.environ.get("MANUALS_SHOW"):
                print(printed)
            print(f"{here}: {time.monotonic() - start:5.1f} s  {first_line}", flush=True)
        except Failed as error:
            failed += 1
            print(f"{here}: FAILED: {first_line}\n  {error}", flush=True)
    return failed


def for_build(name, steps, build):
    """The steps that this build can run."""
    if "ETA_GRAMMAR:BOOL=ON" in (build / "CMakeCache.txt").read_text():
        return steps
    for step in steps:
        if "formats" in step.entry.words:
            print(f"{name}:{step.line}: not run (built without formats of answers): {step.source.splitlines()[0]}")
    return [step for step in steps if "formats" not in step.entry.words]


def run(name, build):
    long_run = bool(os.environ.get("ETA_TEST_LONG"))
    steps = for_build(name, read_manual((ROOT / name).read_text()), build)
    with tempfile.TemporaryDirectory(prefix="eta-manual-") as scratch:
        folder, work, tools = (Path(scratch) / part for part in ("tree", "work", "tools"))
        for part in (folder, work, tools):
            part.mkdir()
        lay_out(folder, build)
        session = Session(folder, work, environment(tools), 1500 if long_run else 300)
        try:
            failed = run_steps(name, steps, session, long_run)
        finally:
            session.close()
    print(f"{name}: {failed} failed")
    return 1 if failed else 0


def main(arguments):
    if arguments == ["--check"]:
        return check()
    if arguments[:1] == [INSIDE]:
        raise_loopback()
        return run(arguments[1], Path(arguments[2]).resolve())
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    again = own_network(arguments)
    if again:
        os.execvp(again[0], again)
    with shared_port():
        return run(arguments[0], Path(arguments[1]).resolve())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
