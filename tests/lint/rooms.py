#!/usr/bin/env python3
"""Functions of unnamed namespaces whose names stand in two sources of one room, with as many arguments.
ETA_UNITY compiles a room as one source (eta_rooms in CMakeLists.txt), where they would be one set of
overloads: a call could silently mean the other one. Numbers of arguments that differ keep them apart.

  rooms.py [FOLDER...]     default: the product's folders; prints each such name, and ends with 1
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("kernels", "engine", "calibration", "training", "service")
# What begins at the margin and is no function.
OTHER = re.compile(r"(struct|class|enum|using|namespace|static_assert|extern|return|union|TEST|TYPED|INSTANTIATE|MATCHER)")


def counts(arguments):
    """As many arguments as a call may have."""
    arguments = re.sub(r"/\*.*?\*/", "", arguments)
    while (inner := re.sub(r"<[^<>]*>|\{[^{}]*\}|\([^()]*\)", "", arguments)) != arguments:
        arguments = inner
    parts = [part for part in arguments.split(",") if part.strip()]
    return set(range(sum("=" not in part for part in parts), len(parts) + 1))


def functions(text):
    """The name and the arguments of each function of an unnamed namespace."""
    text = re.sub(r"//[^\n]*", "", text)
    for block in re.findall(r"\nnamespace \{\n(.*?)\n\} +\n", text, re.DOTALL):
        for part in re.split(r"\n(?=[A-Za-z\[])", block):
            part = re.sub(r"^template <.*?>\n", "", part, flags=re.DOTALL)
            head = re.match(r"[\w:<>,&*\s\[\]]+?[\s&*](\w+)\(", part)
            if OTHER.match(part) or not head:
                continue
            depth, end = 1, head.end()
            while depth and end < len(part):
                depth += {"(": 1, ")": -1}.get(part[end], 0)
                end += 1
            if re.match(r"\s*[{;]", part[end:]):
                yield head[1], part[head.end() : end - 1]


def room(path):
    return "/".join(path.parent.parts[:3])


def main(folders):
    found = defaultdict(list)
    for folder in folders:
        for file in sorted((ROOT / folder).rglob("*.cc")):
            path, text = file.relative_to(ROOT), file.read_text()
            # Those stay alone.
            if "HWY_TARGET_INCLUDE" in text or path.parts[1] == "cuda":
                continue
            for name, arguments in functions(text):
                found[room(path), name].append((path, counts(arguments)))
    broken = 0
    for (_, name), places in found.items():
        files = {str(path) for path, most in places if any(
            other != path and most & theirs for other, theirs in places)}  # fmt: skip
        if files:
            print(f"{name}: {' '.join(sorted(files))}")
            broken = 1
    return broken


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or FOLDERS))
