"""The fenced blocks of a manual, their marks, and the commands in them.

A mark is an HTML comment right above a block. It has an entry for each command of the block, in
order, or a single one for a block that is no list of commands. Entries stand on lines of their own,
or ";" divides them:

  <!-- manual: server "listening on"; run "union density" -->

  run "TEXT"       runs the command; what it prints (both streams) holds TEXT
  long "TEXT"      the same, in the long run alone (ETA_TEST_LONG): it takes more than 20 s
  server "TEXT"    starts it in a terminal of its own, and waits until it prints TEXT
  python "TEXT"    the block is Python, run after the manual's blocks before it
  skip "REASON"    not run, and why
  json, text       the block holds no commands: JSON, which is parsed, or anything else

Options stand before the text: exit=N (the exit code, 0 without), input=LINE (standard input),
file=NAME (TEXT is looked for in that file), until (the command runs until it printed TEXT, then gets
Ctrl-C), quiet (it prints nothing, and there is no text), stop (what the manual started before is
stopped first), formats (not run where the build has no formats of answers), instead=COMMAND (runs
where this command does not).
"""

import json
import re
import shlex
import subprocess
from dataclasses import dataclass, field

FENCE = re.compile(r"^( *)```(.*)$")
MARK = re.compile(r"<!-- manual:(.*?)-->\s*$", re.DOTALL)
KINDS = ("run", "long", "server", "python", "skip", "json", "text")
WORDS = ("until", "stop", "quiet", "formats")
OPTIONS = ("exit", "input", "file", "instead")


class BadManual(Exception):
    """A block, mark or command that cannot be understood; says where."""


@dataclass
class Entry:
    """One line of a mark: what is to be done with a command, or with a block."""

    kind: str
    text: str = ""
    words: set = field(default_factory=set)
    options: dict = field(default_factory=dict)


@dataclass
class Step:
    """A command, or a whole block, and its entry. line counts from 1."""

    line: int
    source: str
    entry: Entry


def parse_entries(mark, where):
    lexer = shlex.shlex(mark.replace("\n", " ; "), posix=True, punctuation_chars=";")
    lexer.whitespace_split = True
    lexer.commenters = ""
    entries, words = [], []
    try:
        for word in [*lexer, ";"]:
            if word != ";":
                words.append(word)
            elif words:
                entries.append(parse_entry(words, where))
                words = []
    except ValueError as error:
        raise BadManual(f"{where}: {error}") from error
    if not entries:
        raise BadManual(f"{where}: an empty mark")
    return entries


def parse_entry(words, where):
    kind, rest = words[0], words[1:]
    if kind not in KINDS:
        raise BadManual(f"{where}: no kind of mark: {kind}")
    entry = Entry(kind)
    texts = []
    for word in rest:
        name, equals, value = word.partition("=")
        if word in WORDS and not texts:
            entry.words.add(word)
        elif equals and name in OPTIONS and not texts:
            entry.options[name] = value
        else:
            texts.append(word)
    silent = kind in ("json", "text") or "quiet" in entry.words
    if len(texts) != (0 if silent else 1) or texts == [""]:
        raise BadManual(f"{where}: a mark with {len(texts)} texts: {' '.join(words)}")
    entry.text = "".join(texts)
    return entry


def split_commands(source, where):
    """The commands of a block and the index of each one's first line, comments left out."""
    commands, pending, first = [], [], 0
    for index, line in enumerate(source.splitlines()):
        if not pending:
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            first = index
        pending.append(line)
        text = "\n".join(pending)
        if line.endswith("\\"):
            continue
        if subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True).returncode == 0:
            commands.append((first, text))
            pending = []
    if pending:
        raise BadManual(f"{where}: bash cannot read: {pending[0]}")
    return commands


def steps_of_block(line, source, mark):
    """The steps of the block whose first line has this number, under the text of its mark."""
    where = f"line {line}"
    entries = parse_entries(mark, where)
    if len(entries) == 1 and entries[0].kind in ("skip", "python", "json", "text"):
        if entries[0].kind == "json":
            try:
                json.loads(source)
            except ValueError as error:
                raise BadManual(f"{where}: no JSON: {error}") from error
        return [Step(line, source, entries[0])]
    commands = split_commands(source, where)
    if len(commands) != len(entries):
        raise BadManual(f"{where}: {len(commands)} commands under a mark of {len(entries)} lines")
    if any(entry.kind in ("python", "json", "text") for entry in entries):
        raise BadManual(f"{where}: a mark for a whole block beside others")
    return [Step(line + first, text, entry) for (first, text), entry in zip(commands, entries)]


def read_manual(text):
    """All steps of a manual, in order. Raises BadManual at the first block without a right mark."""
    steps, lines, index, above = [], text.splitlines(), 0, 0
    while index < len(lines):
        fence = FENCE.match(lines[index])
        if not fence:
            index += 1
            continue
        end = index + 1
        while end < len(lines) and lines[end].strip() != "```":
            end += 1
        mark = MARK.search("\n".join(lines[above:index]))
        if not mark:
            raise BadManual(f"line {index + 1}: a block without a mark right above it")
        indent = len(fence.group(1))
        source = "\n".join(line[indent:] for line in lines[index + 1 : end])
        steps += steps_of_block(index + 2, source, mark.group(1))
        index = above = end + 1
    return steps
