#!/usr/bin/env python3
"""Checks bad_inputs.md: every row is there, the tests that it names exist, and one of them at least
tries the server, etactl, eta-train or eta-eval as it is built, in a process of its own.

usage: tests/bad_inputs.py BUILD_FOLDER
"""
import pathlib
import re
import subprocess
import sys

ROWS = 194
HERE = pathlib.Path(__file__).parent
STARTS_A_PROGRAM = re.compile(
    r"\b(?:ServerProcess|CtlProcess|Replica|FailpointServer|TrainProcess|EvaluationTest)\b")
FIXTURE = re.compile(r'^#include "tests/(testing/\w+/\w+_fixture\.h)"', re.MULTILINE)


def table():
    """Row number -> (input, answer, tests), in order."""
    for line in (HERE / "bad_inputs.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0].isdigit():
            yield int(cells[0]), cells[1:]


def built_tests(build):
    """Names of all tests, without their instantiations; with and without their parameters."""
    names = set()
    for binary in sorted((build / "tests").iterdir()):
        if not binary.is_file() or not binary.stat().st_mode & 0o100 or ".so" in binary.name:
            continue
        listed = subprocess.run([binary, "--gtest_list_tests"], capture_output=True, text=True,
                                timeout=120, check=True).stdout
        suite = ""
        for line in listed.splitlines():
            name = line.split("#")[0].rstrip()
            if line.startswith(" "):
                test = name.strip()
                names |= {f"{suite}.{test}", f"{suite}.{test.split('/')[0]}"}
            elif name.endswith("."):
                parts = name[:-1].split("/")  # Instantiation/Suite or Suite/0, if not Suite alone
                suite = parts[1] if len(parts) > 1 and not parts[1].isdigit() else parts[0]
    return names


def process_suites():
    """Suites that start one of the built programs, by their sources and fixtures."""
    suites = set()
    for source in (HERE / "integration").rglob("*.cc"):
        text = source.read_text()
        parts = [text] + [(HERE / header).read_text() for header in FIXTURE.findall(text)]
        if any(STARTS_A_PROGRAM.search(part) for part in parts):
            suites |= set(re.findall(r"^TEST(?:_F|_P)?\((\w+),", text, re.MULTILINE))
    return suites


def main():
    build = pathlib.Path(sys.argv[1])
    built, served = built_tests(build), process_suites()
    problems = []
    rows = dict(table())
    if list(rows) != list(range(1, ROWS + 1)):
        problems.append(f"the rows are not 1 to {ROWS}, in order and once each")
    for row, cells in rows.items():
        if len(cells) != 3 or not all(cells):
            problems.append(f"row {row}: needs input, answer and tests")
            continue
        tests = [test.strip() for test in cells[2].split(",")]
        problems += [f"row {row}: there is no test {test}" for test in tests if test not in built]
        if not any(test.split(".")[0] in served for test in tests):
            problems.append(f"row {row}: no test starts a built program")
    print("\n".join(problems) or f"{len(rows)} rows, each with its tests")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
