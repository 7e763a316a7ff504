#!/usr/bin/env python3
"""Every table of a RESULTS file says which model and which defaults it was measured with, and none is
left of another model or of other defaults. A line of its own under a heading says it for the tables
of that heading and of those below it:

  Measured with: eta-27m @ 0123abcd, defaults @ 4567cdef.
  Measured with: models whose reads these figures do not depend on.
  Measured with: an earlier eta-27m, REASON.      where it cannot be measured anew

Settings that eta-eval printed below the tables of a file begin with a model's fingerprint and its
defaults: the tables of one page have the same ones.

A model's fingerprint is over its files; that of the defaults is over what a request's attention is
where it says nothing, and what a model's is where config.json says nothing.

  figures.py           checks; prints each line that breaks a rule
  figures.py --print   the fingerprints of this tree
"""

import hashlib
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DIGITS = 8
RESULTS = ("tests/RESULTS.md", "tests/bench/RESULTS.md", "training/RESULTS.md",
           "calibration/evaluation/RESULTS.md", "calibration/evaluation/results/eta-27m.md",
           "calibration/evaluation/results/smollm2.md", "calibration/evaluation/results/smollm2-eta.md",
           "calibration/evaluation/results/quality/eta-27m.md",
           "calibration/evaluation/results/quality/smollm2.md",
           "calibration/evaluation/results/quality/smollm2-eta.md")
# Of a model's folder, what says nothing about what it computes.
BESIDE = ("README.md", "LICENSE", "samples")
# Where the defaults stand: a file and the beginning of the braces that hold them.
DEFAULTS = (("kernels/batch.h", "struct AttentionOptions {"),
            ("engine/model/model_config.cc", "void ModelConfig::SetAttentionDefaults() {"))
LINE = "Measured with: "


def model_digest(folder):
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.name not in BESIDE:
            digest.update(f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def code_in_braces(text, beginning):
    """The code from `beginning` to its closing brace, without comments and white space."""
    start = text.index(beginning) + len(beginning)
    depth, end = 1, start
    while depth:
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
    return re.sub(r"//[^\n]*|\s+", "", text[start : end - 1])


def fingerprints():
    """Name to the fingerprint that a line must have: the models, and "defaults"."""
    prints = {folder.name: model_digest(folder) for folder in sorted((ROOT / "models").iterdir())
              if folder.is_dir() and folder.name != "smollm2"}
    # That one is fetched: its file is pinned by its digest.
    fetch = (ROOT / "deploy/fetch_model.sh").read_text()
    prints["smollm2"] = re.search(r"digest=([0-9a-f]{64})", fetch).group(1)
    defaults = "\n".join(code_in_braces((ROOT / file).read_text(), beginning)
                         for file, beginning in DEFAULTS)
    prints["defaults"] = hashlib.sha256(defaults.encode()).hexdigest()
    return {name: digest[:DIGITS] for name, digest in prints.items()}


def judge(said, prints):
    """What is wrong with the words after "Measured with: ", or None."""
    if said == "models whose reads these figures do not depend on.":
        return None
    if re.fullmatch(r"an earlier \S+, .{10,}\.", said):
        return None
    items = said.removesuffix(".").split(", ")
    pairs = [re.fullmatch(r"(\S+) @ (\S+)", item) for item in items]
    if not said.endswith(".") or not all(pairs):
        return "not in the form that figures.py has"
    named = {pair.group(1): pair.group(2) for pair in pairs}
    if "defaults" not in named or len(named) < 2:
        return "names no model, or no defaults"
    for name, digits in named.items():
        if name not in prints:
            return f"there is no model {name}"
        if digits != prints[name]:
            return f"{name} is {prints[name]} now: measure anew, or say that it is of an earlier one"
    return None


def mixed(lines):
    """(line, what is wrong) of settings that name another model or other defaults than the first."""
    settings = [(index + 1, re.match(r"Settings: model \w+; defaults [^;]*?(?=;|\.$)", line))
                for index, line in enumerate(lines) if line.startswith("Settings: ")]
    named = [match[0] for _, match in settings if match]
    return [(line, "settings of another model or other defaults than the page's first")
            for line, match in settings if named and (not match or match[0] != named[0])]


def broken(text, prints):
    """(line, what is wrong) of one RESULTS file."""
    found, scopes, in_code, in_table = mixed(text.splitlines()), [], False, False
    lines = text.splitlines()
    for index, line in enumerate(lines):
        if line.startswith("```"):
            in_code = not in_code
        heading = None if in_code else re.match(r"(#+) ", line)
        if heading:
            depth = len(heading.group(1))
            scopes = [scope for scope in scopes if scope[0] < depth] + [(depth, False)]
        elif line.startswith(LINE):
            # It may go on for a second line.
            said = " ".join(lines[index : index + 2]) if not line.endswith(".") else line
            wrong = judge(said[len(LINE):].strip(), prints)
            if wrong:
                found.append((index + 1, wrong))
            scopes = [*scopes[:-1], (scopes[-1][0] if scopes else 0, True)]
        table = line.startswith("|") and not in_code
        # A table of machines or flags measures nothing.
        if table and not in_table and re.search(r"\|[-: ]+\|", lines[min(index + 1, len(lines) - 1)]):
            measured = not re.match(r"\| (name|tables) \|", line)
            if measured and not any(said for _, said in scopes):
                found.append((index + 1, f"a table under no line '{LINE}...'"))
        in_table = table
    return found


def main():
    prints = fingerprints()
    if sys.argv[1:] == ["--print"]:
        for name, digits in prints.items():
            print(f"{name} @ {digits}")
        return 0
    failed = 0
    for name in RESULTS:
        for line, wrong in broken((ROOT / name).read_text(), prints):
            print(f"figures: {name}:{line}: {wrong}", file=sys.stderr)
            failed = 1
    # A RESULTS file that nobody listed.
    tracked = subprocess.run(["find", ".", "-name", "RESULTS.md", "-not", "-path", "./build*"],
                             cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in tracked:
        if name.removeprefix("./") not in RESULTS:
            print(f"figures: {name} is not in RESULTS (figures.py)", file=sys.stderr)
            failed = 1
    if not failed:
        print("figures: every table is of this tree's models and defaults, or says of which earlier one")
    return failed


if __name__ == "__main__":
    sys.exit(main())
