#!/usr/bin/env python3
"""Writes bad_inputs.md from the marks at the tests.

  bad_inputs.py            writes the page, if all marks make sense
  bad_inputs.py --check    fails if the page is another, or a mark makes no sense

A mark stands above its test; further lines of it are indented by three:

  // bad input: AREA | WHAT IS SENT | THE ANSWER
  // bad input: AREA | WHAT IS SENT | THE ANSWER | Suite.TestOfABuiltProgram

It stands at the unit test. The fourth part names the one test of a built program that tries it too,
where the exit code or the wire is the point.
"""

import re
import sys
from itertools import groupby
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PAGE = TESTS / "bad_inputs.md"
HEAD = """<!-- Written by bad_inputs.py from the marks at the tests. -->
# Bad inputs, and the exact answer to each

Each is tried where it is judged, by the first test. A second test tries it on a built program, where
the exit code or the wire is the point. Where the server is meant to live on, a good call follows.
What the answers mean for clients: [Errors](../proto/README.md#errors).
"""
MARK = re.compile(r"^\s*// bad input: (.*)")
MORE = re.compile(r"^\s*//   (.*)")
TEST = re.compile(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", re.MULTILINE)
SOURCE = re.compile(r"[\w./-]+\.cc\b")


def built_sources():
    """Sources that some CMakeLists.txt names, each from its own folder."""
    sources = set()
    for path in TESTS.rglob("CMakeLists.txt"):
        text = re.sub(r"#.*", "", path.read_text())
        sources |= {(path.parent / name).resolve() for name in SOURCE.findall(text)}
    return sources


def marks_above(lines, number):
    """Texts of the marks in the comment that ends above a line."""
    begin = number
    while begin > 0 and re.match(r"\s*//", lines[begin - 1]):
        begin -= 1
    marks = []
    for line in lines[begin:number]:
        if mark := MARK.match(line):
            marks.append(mark[1])
        elif marks and (more := MORE.match(line)):
            marks[-1] += " " + more[1]
    return marks


def read(problems):
    """Rows (area, input, answer, tests) of all marks."""
    built, rows, names = built_sources(), [], set()
    for path in sorted(TESTS.rglob("*_test.cc")):
        text, place = path.read_text(), path.relative_to(TESTS)
        lines, found = text.split("\n"), 0
        for test in TEST.finditer(text):
            name = ".".join(test.groups())
            if path in built:
                names.add(name)
            for mark in marks_above(lines, text.count("\n", 0, test.start())):
                found += 1
                parts = [part.strip() for part in mark.split("|")]
                if len(parts) not in (3, 4) or not all(parts):
                    problems.append(f"{place}: {name}: a mark has three or four parts: {mark}")
                else:
                    rows.append((*parts[:3], [name, *parts[3:]]))
        if found != sum(bool(MARK.match(line)) for line in lines):
            problems.append(f"{place}: a mark stands above no test")
        if found and path not in built:
            problems.append(f"{place}: has marks, and no target")
    for area, sent, _, tests in rows:
        if tests[-1] not in names:
            problems.append(f"{tests[0]}: no target has a test {tests[-1]}")
        if sum((area, sent) == row[:2] for row in rows) > 1:
            problems.append(f"{tests[0]}: {area}, {sent}: has another mark")
    return sorted(rows)


def page_of(rows):
    page = HEAD
    for area, some in groupby(rows, key=lambda row: row[0]):
        page += f"\n## {area}\n\n| input or event | answer | tests |\n|---|---|---|\n"
        page += "".join(f"| {sent} | {answer} | {', '.join(tests)} |\n" for _, sent, answer, tests in some)
    return page


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    problems = []
    rows = read(problems)
    page = page_of(rows)
    if not problems and not sys.argv[1:]:
        PAGE.write_text(page)
    elif not problems and PAGE.read_text() != page:
        problems.append("bad_inputs.md is not what the marks say: run tests/bad_inputs.py")
    print("\n".join(problems) or f"{len(rows)} bad inputs, {sum(len(row[3]) for row in rows)} tests")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
