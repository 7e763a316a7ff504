#!/usr/bin/env python3
"""Whether every source of the product is compiled with what protects it against intruders. check_binaries.sh looks at
the result, where one good source hides that another lacks a flag, and where some flags leave no trace.

    deploy/supply_chain/flags.py [--failpoints] BUILD_FOLDER      # --failpoints: built for tests

Reads the compiler's commands that CMake writes (CMAKE_EXPORT_COMPILE_COMMANDS). Exit code 1: some source lacks one."""

import argparse
import json
import pathlib
import platform
import re
import shlex
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PRODUCT = ("kernels", "engine", "calibration", "service", "proto")
REQUIRED = ("-fstack-protector-strong", "-fstack-clash-protection", "-ftrivial-auto-var-init=zero",
            "-D_FORTIFY_SOURCE=3", "-D_GLIBCXX_ASSERTIONS")  # fmt: skip
MACHINES = {"x86_64": ("-fcf-protection=full",), "aarch64": ("-mbranch-protection=standard",)}
OPTIMISED = ("-O2", "-O3")
HANDED_ON = "-Xcompiler="
POSITION_INDEPENDENT = ("-fPIE", "-fPIC", "-fpie", "-fpic")


def subject(flag):
    """What a flag sets or undoes: of two with one subject the last counts."""
    if flag[:2] in ("-D", "-U"):
        return "-D" + flag[2:].partition("=")[0]
    if flag.startswith("-O"):
        return "-O"
    name = flag.partition("=")[0].replace("-fno-", "-f", 1)
    if name.lower() in ("-fpie", "-fpic"):
        return "-fPIE"
    return "-fstack-protector" if name.startswith("-fstack-protector") else name


def flags_of(command):
    """The host compiler's: nvcc hands on what stands in -Xcompiler, several with commas."""
    for word in shlex.split(command):
        yield from word[len(HANDED_ON) :].split(",") if word.startswith(HANDED_ON) else (word,)


def wrong(command, machine, failpoints=False):
    """What a compiler's command lacks, a sentence each."""
    holds = {subject(flag): flag for flag in flags_of(command)}
    found = [f"lacks {flag}" for flag in (*REQUIRED, *MACHINES.get(machine, ())) if holds.get(subject(flag)) != flag]
    if holds.get("-O") not in OPTIMISED:
        found.append("is not optimised")
    if holds.get("-fPIE") not in POSITION_INDEPENDENT:
        found.append("is not position-independent")
    if holds.get("-DETA_FAILPOINTS", "").startswith("-D") and not failpoints:
        found.append("has failpoints")
    return found


def sources_of(entry):
    """What a command compiles: one file, or those of a room (ETA_UNITY), which a generated file includes."""
    path = pathlib.Path(entry["directory"], entry["file"])
    if path.parent.name != "Unity":
        return [path]
    return [pathlib.Path(name) for name in re.findall(r'(?m)^#include "(.*)"$', path.read_text())]


def of_product(path, build):
    """Whether it is a source of ours, generated ones included."""
    path = path.resolve()
    for root in (ROOT, build.resolve()):
        if path.is_relative_to(root) and path.relative_to(root).parts[0] in PRODUCT:
            return path.suffix in (".cc", ".cpp", ".c", ".cu")
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--failpoints", action="store_true")
    parser.add_argument("build", type=pathlib.Path)
    arguments = parser.parse_args()
    try:
        entries = json.loads((arguments.build / "compile_commands.json").read_text())
    except (OSError, ValueError) as error:
        sys.exit(f"flags: {error}")
    sources, problems = [], []
    for entry in entries:
        ours = [path for path in sources_of(entry) if of_product(path, pathlib.Path(entry["directory"]))]
        sources += ours
        for what in wrong(entry["command"], platform.machine(), arguments.failpoints) if ours else ():
            problems += [f"flags: {path} {what}" for path in ours]
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems or not sources:
        sys.exit(1)
    print(f"flags: {len(sources)} sources in order")


if __name__ == "__main__":
    main()
