#!/usr/bin/env python3
"""Says which tests of a run were skipped and why, by the names in skips.txt; exit code 1 where one has a
reason that is not there.

usage: tests/skips.py RESULTS      RESULTS: of ctest --output-junit, with the output of all tests
"""
import collections
import pathlib
import re
import sys
import xml.etree.ElementTree

HERE = pathlib.Path(__file__).parent
SHOWN = 4  # names of one reason

GOOGLE_TEST = re.compile(r": Skipped\n(?P<reason>(?:(?!\[).*\n)*)\[  SKIPPED \] (?P<name>\S+)")
PYTHON = re.compile(r"^(?P<name>\w+) \(.*\.\.\. skipped ['\"](?P<reason>.*)['\"]$", re.MULTILINE)
SCRIPT = re.compile(r"^(?:\w+: )?(?:SKIPPED|skipped): (?P<reason>.*)$", re.MULTILINE)
# How many were skipped, said by GoogleTest or by Python in the end.
COUNT = re.compile(r"^\[  SKIPPED \] (\d+) tests?, listed below|^OK \(.*skipped=(\d+)", re.MULTILINE)


def allowed():
    """Name of a reason -> what such a test says."""
    for line in (HERE / "skips.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, patterns = line.partition("|")
            yield name.strip(), [re.compile(pattern.strip()) for pattern in patterns.split("||")]


def skipped(results):
    """(test, what it says) of each that was skipped, also within a binary that is one test of ctest."""
    for case in xml.etree.ElementTree.parse(results).getroot().iter("testcase"):
        test, output = case.get("name"), case.findtext("system-out") or ""
        whole = case.find("skipped") is not None
        told = [*GOOGLE_TEST.finditer(output), *PYTHON.finditer(output)] or (whole and [*SCRIPT.finditer(output)])
        for match in told or []:
            name = test if whole else f"{test}: {match['name']}"
            yield name, " ".join(match["reason"].split())
        count = sum(int(match[1] or match[2]) for match in COUNT.finditer(output))
        if len(told or []) < max(count, int(whole)):
            yield test, "(no reason given)"


def main():
    reasons = dict(allowed())
    found, unknown = collections.defaultdict(list), []
    for test, said in skipped(sys.argv[1]):
        name = next((name for name, patterns in reasons.items() if any(p.fullmatch(said) for p in patterns)), None)
        if name is None:
            unknown.append(f"{test}: {said}")
        else:
            found[name].append(test)
    for name, tests in found.items():
        more = f" and {len(tests) - SHOWN} more" if len(tests) > SHOWN else ""
        print(f"skipped, {name}: {', '.join(tests[:SHOWN])}{more}")
    for line in unknown:
        print(f"skipped, and tests/skips.txt has no such reason: {line}", file=sys.stderr)
    sys.exit(1 if unknown else 0)


if __name__ == "__main__":
    main()
