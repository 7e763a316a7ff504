#!/usr/bin/env python3
"""Counts the house, and prints one table.

  house.py            the working tree: what git tracks, as it is on the disk
  house.py COMMIT     a commit, read from git without a checkout

lines        newlines of sources (.h .cc .cu .cuh) in the product's folders; of sources and scripts
             (.py .sh) in tests
files        what git tracks
Markdown     bytes of .md, but for pages of results and for what programs write: the pages of flags and
             of metrics, and the table of bad inputs
sink_blocks  files of the product outside kernels, .proto among them, that name this setting: how far
             a setting of attention spreads
rooms        of engine, and of calibration: a folder with all below it, and each unit (.h and .cc of one
             name) that stands in the folder itself. calibration/evaluation is opened likewise
arrows       pairs of rooms of which a source of one includes a header of the other
back arrows  the fewest without which no room reaches itself; of equal sets the first by name
floors       rooms on the longest chain of the other arrows
circles      sets of folders of the whole product, each by itself, that include one another
"""

import functools
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("kernels", "engine", "calibration", "training", "service", "proto")
SOURCES = (".h", ".cc", ".cu", ".cuh")
TABLES = ("deploy/metrics.md", "service/options/flags.md", "tests/bad_inputs.md")
OPENED = ("engine", "calibration", "calibration/evaluation")
INCLUDE = re.compile(rb'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def git(*arguments, **options):
    return subprocess.run(["git", "-C", ROOT, *arguments], check=True, capture_output=True, **options).stdout


def of_tree():
    """{path: contents}; of links the text that git keeps."""
    paths = [ROOT / path for path in git("ls-files", "-z").decode().split("\0") if path]
    return {str(path.relative_to(ROOT)): os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
            for path in paths if path.is_symlink() or path.is_file()}  # fmt: skip


def of_commit(commit):
    """The same of a commit."""
    entries = [entry.split(None, 3) for entry in git("ls-tree", "-r", "-z", commit).decode().split("\0") if entry]
    blobs = {path: name for _, kind, name, path in (entry for entry in entries) if kind == "blob"}
    answer, found, at = git("cat-file", "--batch", input="\n".join(blobs.values()).encode() + b"\n"), {}, 0
    for path in blobs:
        head = answer.index(b"\n", at)
        size = int(answer[at:head].split()[2])
        found[path], at = answer[head + 1 : head + 1 + size], head + size + 2
    return found


def below(files, folders, endings):
    return {path: text for path, text in files.items() if path.split("/")[0] in folders and path.endswith(endings)}


def lines(files):
    return sum(text.count(b"\n") for text in files.values())


def is_manual(path):
    results = path.endswith("RESULTS.md") or path.startswith("calibration/evaluation/results/")
    return path.endswith(".md") and not results and path not in TABLES


def folder_of(path):
    return path.rpartition("/")[0]


def room_of(path):
    area = max((folder for folder in OPENED if path.startswith(folder + "/")), key=len)
    return area + "/" + path.removeprefix(area + "/").split("/")[0].split(".")[0]


def arrows_of(sources, home):
    """{room: the others that it includes}"""
    rooms = {home(path): set() for path in sources}
    for path, text in sources.items():
        rooms[home(path)] |= {home(header) for header in map(bytes.decode, INCLUDE.findall(text)) if header in sources}
    return {room: seen - {room} for room, seen in rooms.items()}


def reached(rooms, begin):
    found, left = set(), [begin]
    while left:
        more = rooms[left.pop()] - found
        found |= more
        left += more
    return found


def circles_of(rooms):
    reach = {room: reached(rooms, room) for room in rooms}
    return {frozenset(other for other in reach[room] if room in reach[other]) for room in rooms if room in reach[room]}


def without(rooms, arrows):
    return {room: {other for other in seen if (room, other) not in arrows} for room, seen in rooms.items()}


def back_arrows(rooms):
    """By trying: circles are small."""
    back = set()
    for circle in circles_of(rooms):
        inner = {room: rooms[room] & circle for room in circle}
        arrows = [(room, other) for room in sorted(inner) for other in sorted(inner[room])]
        cuts = itertools.chain.from_iterable(itertools.combinations(arrows, count) for count in range(len(arrows) + 1))
        back |= set(next(cut for cut in cuts if not circles_of(without(inner, cut))))
    return back


def floors(rooms):
    @functools.cache
    def floor(room):
        return 1 + max(map(floor, rooms[room]), default=0)

    return max(map(floor, rooms))


def main(arguments):
    if len(arguments) > 1 or any(argument.startswith("-") for argument in arguments):
        print(__doc__, file=sys.stderr)
        return 2
    files = of_commit(arguments[0]) if arguments else of_tree()
    product, tests = below(files, PRODUCT, SOURCES), below(files, ("tests",), (*SOURCES, ".py", ".sh"))
    named = below(files, PRODUCT[1:], (*SOURCES, ".proto"))
    rows = [
        ("product lines", lines(product)),
        *((f"  {folder}", lines(below(product, (folder,), SOURCES))) for folder in PRODUCT[:-1]),
        ("product files", len(product)),
        ("test lines", lines(tests)),
        ("files of the repository", len(files)),
        ("Markdown bytes", sum(len(text) for path, text in files.items() if is_manual(path))),
        ("files that name sink_blocks", sum(bool(re.search(rb"\bsink_blocks\b", text)) for text in named.values())),
    ]
    for area in ("engine", "calibration"):
        rooms = arrows_of(below(product, (area,), SOURCES), room_of)
        back = back_arrows(rooms)
        rows += [(f"{area}: rooms", len(rooms)), (f"{area}: floors", floors(without(rooms, back))),
                 (f"{area}: arrows", sum(map(len, rooms.values()))), (f"{area}: back arrows", len(back))]  # fmt: skip
    rows.append(("circles of folders", len(circles_of(arrows_of(product, folder_of)))))
    for name, count in rows:
        print(f"{name:30}{count:>10,}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
