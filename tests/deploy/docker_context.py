"""What a container engine makes of .dockerignore and a Dockerfile: the files that a build is given, and its instructions.

The rules are those of moby/patternmatcher and of BuildKit's parser: https://docs.docker.com/reference/dockerfile"""

import os
import pathlib
import posixpath
import re
import shutil


def _regular(pattern):
    """One pattern as a regular expression: ** is any number of folders, * and ? stop at a slash."""
    out, at = "", 0
    while at < len(pattern):
        char = pattern[at]
        at += 1
        if char == "*" and pattern[at : at + 1] == "*":
            at += 1
            if pattern[at : at + 1] == "/":
                at += 1
            out += ".*" if at == len(pattern) else "(.*/)?"
        elif char == "*":
            out += "[^/]*"
        elif char == "?":
            out += "[^/]"
        elif char == "\\" and at < len(pattern):
            out += re.escape(pattern[at])
            at += 1
        else:  # [a-c] and [^a] mean the same in both
            out += "\\" + char if char in ".+()|{}$" else char
    return re.compile(out)


class Ignore:
    """A .dockerignore: the last pattern that fits a path, or a folder above it, decides."""

    def __init__(self, text):
        self.patterns = []  # (regular expression, pattern, whether it takes paths back in)
        for line in text.splitlines():
            pattern = "" if line.startswith("#") else line.strip()
            back = pattern.startswith("!")
            pattern = pattern[1:].strip() if back else pattern
            if not pattern:
                continue
            pattern = posixpath.normpath(pattern)
            pattern = re.sub("^/+(?=.)", "", pattern)
            if pattern != ".":  # as Docker has it, else a file would hold everything back
                self.patterns.append((_regular(pattern), pattern, back))

    def ignores(self, path):
        """`path`: relative to the context, with slashes."""
        parts = path.split("/")
        paths = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
        ignored = False
        for expression, _, back in self.patterns:
            if any(expression.fullmatch(each) for each in paths):
                ignored = not back
        return ignored

    def _may_hold(self, folder):
        """Whether a pattern that takes paths back in may fit something below `folder`."""
        def fits(pattern):
            for part, name in zip(pattern.split("/"), folder.split("/")):
                if "**" in part:
                    return True
                if not _regular(part).fullmatch(name):
                    return False
            return True

        return not self.ignores(folder) or any(back and fits(text) for _, text, back in self.patterns)

    def context(self, root):
        """Paths of the files, links included, that a build at `root` is given."""
        for place, folders, files in os.walk(root):
            below = pathlib.PurePath(place).relative_to(root).as_posix()
            prefix = "" if below == "." else below + "/"
            links = [name for name in folders if os.path.islink(os.path.join(place, name))]
            folders[:] = [name for name in sorted(folders) if name not in links and self._may_hold(prefix + name)]
            for name in sorted(files + links):
                if not self.ignores(prefix + name):
                    yield prefix + name


def copy(root, paths, folder):
    for path in paths:
        target = pathlib.Path(folder, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(pathlib.Path(root, path), target, follow_symlinks=False)


def taken(paths, source):
    """Which of `paths` COPY takes for `source`: a file, or all that a folder holds."""
    source = posixpath.normpath(source)
    return [path for path in paths if source == "." or path == source or path.startswith(source + "/")]


def stages(text):
    """Per FROM the (instruction, argument) after it, comments out and continued lines joined."""
    text = re.sub(r"(?m)^\s*#.*\n", "", text)
    text = re.sub(r"\\[ \t]*\n", " ", text)
    found = []
    for line in filter(str.strip, text.splitlines()):
        instruction, _, argument = line.strip().partition(" ")
        if instruction.upper() == "FROM":
            found.append([])
        elif found:
            found[-1].append((instruction.upper(), argument.strip()))
    return found


def commands(run):
    """The commands of a RUN line in shell form, one after the other."""
    return [re.sub(r"\s+", " ", part).strip() for part in run.split("&&")]
