#!/usr/bin/env python3
"""Where binaries come from: an in-toto statement with a SLSA 1.0 provenance of the commit, the options, the compiler's
flags and the packages that they were built with. It is not signed: whoever publishes an image signs that.

    deploy/supply_chain/provenance.py --build DIR --output FILE [--revision COMMIT] BINARY..."""

import argparse
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

import debian
import flags as hardening
import lock

ROOT = pathlib.Path(__file__).resolve().parents[2]


def revision(given):
    """The commit; "-modified" behind it where the tree differs. None without a repository."""
    if given:
        return given
    try:
        commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        status = subprocess.run(["git", "-C", ROOT, "status", "--porcelain"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + ("-modified" if status else "")


def options(build):
    """The options that make a difference, from CMake's cache."""
    kept = r"(CMAKE_BUILD_TYPE|CMAKE_CXX_COMPILER|CMAKE_CXX_FLAGS|CMAKE_CUDA_COMPILER|ETA_(?!XGRAMMAR)[A-Z_]+):[A-Z]+=(.*)"
    return {match[1]: match[2] for line in cache(build) if (match := re.fullmatch(kept, line))}


def cache(build):
    return (pathlib.Path(build) / "CMakeCache.txt").read_text().splitlines()


def fetched(build):
    """xgrammar, where it is in the binaries."""
    lines = cache(build)
    if "ETA_GRAMMAR:BOOL=ON" not in lines:
        return []
    folder = next(pathlib.Path(line.partition("=")[2]) for line in lines if line.startswith("ETA_XGRAMMAR_DIR:"))
    version, digest = ((folder / name).read_text().strip() for name in ("VERSION", "SHA256"))
    return [{"uri": f"pkg:pypi/xgrammar@{version}", "digest": {"sha256": digest}}]


def flags(build):
    """How the server's main file is compiled, without folders."""
    for entry in json.loads((pathlib.Path(build) / "compile_commands.json").read_text()):
        if any(path.match("service/main.cc") for path in hardening.sources_of(entry)):
            words = entry["command"].split()
            return [word for word in words if word.startswith("-") and "/" not in word and word not in ("-c", "-o")]
    return []


def statement(binaries, build, given):
    packages = [
        {"uri": f"pkg:deb/debian/{name.replace('+', '%2B')}@{version.replace('+', '%2B').replace(':', '%3A')}"}
        for name, (version, _, _) in lock.present(binaries).items()
    ]
    commit = revision(given)
    source = [{"uri": "git+repository", "digest": {"gitCommit": commit}}] if commit else []
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": os.path.basename(binary), "digest": {"sha256": hashlib.sha256(pathlib.Path(binary).read_bytes()).hexdigest()}}
            for binary in binaries
        ],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "deploy/Dockerfile",
                "externalParameters": {"options": options(build), "flags": flags(build)},
                "internalParameters": {"source_date_epoch": os.environ.get("SOURCE_DATE_EPOCH", "")},
                "resolvedDependencies": source + fetched(build) + packages,
            },
            "runDetails": {"builder": {"id": f"debian-{debian.release()}"}},
        },
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", nargs="+", metavar="BINARY")
    parser.add_argument("--build", required=True)
    parser.add_argument("--revision", default="")
    parser.add_argument("--output", required=True)
    arguments = parser.parse_args()
    try:
        made = statement(arguments.binaries, arguments.build, arguments.revision)
    except (debian.Unknown, OSError) as error:
        sys.exit(f"provenance: {error}")
    pathlib.Path(arguments.output).write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
