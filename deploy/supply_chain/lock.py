#!/usr/bin/env python3
"""deploy/packages.lock: the version of every Debian package that goes into a build, by name and source.

    deploy/supply_chain/lock.py --write BINARY...   # from this machine, which must be Debian 12
    deploy/supply_chain/lock.py --check BINARY...   # exit code 1: differs in a way that matters; 77: not Debian 12
    deploy/supply_chain/lock.py --check --ships_nothing BINARY...   # of a machine for tests
    deploy/supply_chain/lock.py --check --front       # of a machine that has the front alone, for its image

What matters: another upstream version (other behaviour, other defects: cves.md and the tests speak of the one that is
locked), a package that the lock does not know, and an older revision, which lacks a fix that cves.md counts on: what is
shipped may not be built there. On a machine that ships nothing that one is a notice. A newer revision is a notice
everywhere: it is a security update of Debian 12, which has to be taken and which cves.md and the lock follow."""

import argparse
import pathlib
import re
import subprocess
import sys

import debian

ROOT = pathlib.Path(__file__).resolve().parents[2]
LOCK = ROOT / "deploy/packages.lock"
SECTIONS = ("runtime", "build")
COMPILER = ("g++-12", "binutils", "libstdc++-12-dev", "libgcc-12-dev", "libc6-dev")
# Stands before a server, in an image of its own: held against a machine that has it.
FRONT = ("mtail", "nginx")
# Debian 12 takes these projects' own maintenance releases as its security updates.
FOLLOWS_UPSTREAM = {"openssl": 2, "postgresql-15": 1, "ca-certificates": 0}  # numbers that stay
HEAD = """# Versions of the Debian 12 packages that eta-server is built from and runs with: those that packages.txt names, the
# compiler with what it links into every program, those of all libraries that are loaded, and the front's (nginx, mtail).
# What else compilers and tools bring along (cpp-12, libprotoc32, python3.11) is not in it.
# Written by deploy/supply_chain/lock.py --write, held against a machine by --check. What is known of each: cves.md.
# package version source source-version
"""


def named():
    """Packages of packages.txt, of the sections that go into a build."""
    section = None
    for line in (ROOT / "deploy/packages.txt").read_text().splitlines():
        if match := re.match(r"\[(.+)\]$", line):
            section = match[1]
        elif line and not line.startswith("#") and section in SECTIONS:
            yield line.split()[0]


def present(binaries):
    """What of this machine goes into a build."""
    loaded = debian.owners(debian.loaded_libraries(binaries).values()).values()
    return versions({*named(), *COMPILER, *loaded} - {None})


def versions(names):
    """{package: (version, source, source version)} of this machine."""
    found = {}
    for name in sorted(names):
        package = debian.package(name)
        found[name] = (package["Version"], package["source:Package"], package["source:Version"])
    return found


def locked():
    lines = [line.split() for line in LOCK.read_text().splitlines() if line and not line.startswith("#")]
    return {line[0]: tuple(line[1:]) for line in lines}


def upstream(version, source):
    """1:2.3.4+dfsg-5+deb12u1 -> 2.3.4; of a source in FOLLOWS_UPSTREAM only the numbers that stay."""
    bare = re.sub(r"^\d+:", "", version).rpartition("-")[0] or version
    bare = re.sub(r"[+~.](dfsg|ds|deb\d+u).*$", "", bare)
    if source in FOLLOWS_UPSTREAM:
        return ".".join(bare.split(".")[: FOLLOWS_UPSTREAM[source]])
    return bare


def newer(a, b):
    return subprocess.run(["dpkg", "--compare-versions", a, "gt", b], check=False).returncode == 0


def compare(here, lock, ships=True):
    """(failures, notices), each a sentence; `ships`: of a machine that builds what is shipped."""
    failures, notices = [], []
    for name, (version, source, source_version) in here.items():
        if name not in lock:
            failures.append(f"{name} {version} is not in the lock")
            continue
        was, _, source_was = lock[name]
        if version == was:
            continue
        change = f"{name} is {version}, locked {was}"
        if upstream(source_version, source) != upstream(source_was, source):
            failures.append(change + ": another upstream version")
        elif newer(source_was, source_version):
            (failures if ships else notices).append(change + ": older, it lacks security updates: upgrade this machine")
        else:
            notices.append(change + ": a newer revision; see cves.md, then --write")
    failures += [f"{name} is in the lock and not here any more" for name in lock if name not in here and name not in FRONT]
    return failures, notices


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", action="store_true")
    mode.add_argument("--check", action="store_true")
    parser.add_argument("--ships_nothing", action="store_true")
    parser.add_argument("--front", action="store_true")
    parser.add_argument("binaries", nargs="*", metavar="BINARY")
    arguments = parser.parse_args()
    if arguments.front == bool(arguments.binaries) or (arguments.front and arguments.write):
        parser.error("names either BINARY..., or --check --front")
    try:
        if not debian.release().startswith("12"):
            print("SKIPPED: the lock is of Debian 12, this is another system")
            sys.exit(77)
        front = FRONT if arguments.write or arguments.front else filter(debian.installed, FRONT)
        here = versions(front) | ({} if arguments.front else present(arguments.binaries))
    except (debian.Unknown, OSError) as error:
        sys.exit(f"lock: {error}")
    if arguments.write:
        LOCK.write_text(HEAD + "".join(f"{name} {' '.join(rest)}\n" for name, rest in sorted(here.items())))
        return
    lock = {name: was for name, was in locked().items() if name in FRONT or not arguments.front}
    failures, notices = compare(here, lock, ships=not arguments.ships_nothing)
    for notice in notices:
        print(f"lock: notice: {notice}")
    for failure in failures:
        print(f"lock: {failure}", file=sys.stderr)
    if failures:
        sys.exit(1)
    print(f"lock: {len(here)} packages, {len(notices)} of them of another revision")


if __name__ == "__main__":
    main()
