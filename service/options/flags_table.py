#!/usr/bin/env python3
"""The page of all flags, flags.md, out of what the server's --help says.

  flags_table.py build/bin/eta-server > service/options/flags.md    writes it
  flags_table.py build/bin/eta-server --check    exit code 1 where it says something else
"""

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).with_name("flags.md")
INTRODUCTION = """# Flags

Every flag of `eta-server`. This page is what `eta-server --help` says (`flags_table.py`); a test
keeps it so. How flags, files and the environment go together, and more about some of the flags:
[Configuration](../README.md#configuration).
"""


def size(count):
    """Bytes with a unit, where they are whole ones."""
    for unit, bytes_of_it in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count and count % bytes_of_it == 0:
            return f"{count // bytes_of_it} {unit}"
    return str(count)


def row(head, says):
    """A flag as the help has it: its first line, and its description."""
    head = re.sub(r"\(Env:\w+\)| Excludes:.*| \.\.\.(?= |$)", "", head).strip()
    names, _, kind = head.partition(" ")
    value = re.search(r"=([^=\s]+)$", head)
    default = value.group(1) if value else "required" if "REQUIRED" in kind else "none"
    if value and kind.startswith("BYTES"):
        default = size(int(default))
    if not kind:
        default = "on" if value else "off"
        names = names.replace("{false}=true", "")
    stated = re.search(r"\. Default: (.*)$", says)
    if stated and not value:
        default, says = stated.group(1), says[: stated.start()]
    choices = re.search(r":\{(.*?)\}", kind)
    # Those that the description does not tell apart. A build has more backends than another.
    if choices and not all(re.search(rf"\b{name}\b", says) for name in choices.group(1).split(",")):
        says += f" ({choices.group(1).replace(',', ', ')})"
    limits = re.search(r"in \[(\d+) - (\d+)\]", kind)
    if limits and int(limits.group(2)) < 2**31 - 1:
        says += f" ({limits.group(1)} to {limits.group(2)})"
    cells = [", ".join(names.split(",")), default, says]
    return "| " + " | ".join(re.sub(r"(?<![`\w-])(--?[a-z][\w-]*)", r"`\1`", cell) for cell in cells) + " |"


def page(text):
    lines = text.splitlines()
    lines = lines[lines.index("Options:") :]
    parts, head = [INTRODUCTION], None
    for line in lines:
        group = re.fullmatch(r"(\w.*):", line)
        option = re.match(r"  (-\S.*?)(?:\s{2,}(\S.*))?$", line)
        if group:
            name = "The program" if group.group(1) == "Options" else group.group(1)
            parts.append(f"\n## {name}\n\n| flag | default | meaning |\n|---|---|---|\n")
        elif option and not option.group(2):
            head = option.group(1)
        elif option:
            parts.append(row(*option.groups()) + "\n")
        elif line.strip():
            parts.append(row(head, line.strip()) + "\n")
    return "".join(parts)


def main(arguments):
    if len(arguments) not in (1, 2) or arguments[1:] not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    help_text = subprocess.run([arguments[0], "--help"], capture_output=True, text=True, check=True)
    made = page(help_text.stdout)
    if len(arguments) == 1:
        sys.stdout.write(made)
        return 0
    if PAGE.read_text() == made:
        return 0
    print(f"flags.md is not what --help says. Write it anew: service/options/flags_table.py {arguments[0]} "
          "> service/options/flags.md", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
