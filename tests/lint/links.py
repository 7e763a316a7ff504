#!/usr/bin/env python3
"""Every page and every heading that this repository links or names is there; prints those that are
not. In Markdown, outside of code: links and pictures, relative to their page. In every file:

  PAGE.md#heading      as alerts name their runbooks
  PAGE.md, "Heading"   as comments do, over several lines too; further headings may follow, as in
                       "A", "B" and "C". The beginning of a heading is enough, or of a paragraph
                       in bold
  folder/PAGE.md       where the folder is one of this repository's

PAGE.md is looked for beside its file, at the root, and by its name where only one page has it.
"""

import os
import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# What is not in the repository, and what names pages that are not.
OUTSIDE = re.compile(r"build.*|\.git|\.cache|shared|(.*/)?__pycache__|models/smollm2|tests/fuzz/corpus"
                     r"|tests/lint/links(_test)?\.py")
LINK = re.compile(r"\]\(([^()\s]+)\)")
PAGE = r"(?<![\w./:-])([\w.-][\w./-]*\.md)"
ANCHOR = re.compile(PAGE + r"#([\w-]+)")
QUOTED = re.compile(PAGE + r',\s+("[^"]{1,99}"(?:(?:,| and|, and)\s+"[^"]{1,99}")*)')
MENTION = re.compile(PAGE + r"\b")
# Between the lines of a comment.
LINE_END = re.compile(r"\n[ \t]*(?://+|#)?")


def blanked(pattern, text):
    """The text with blanks in place of each match; lines keep their numbers."""
    return re.sub(pattern, lambda match: re.sub(r"[^\n]", " ", match.group()), text)


def without_blocks(text):
    return blanked(r"(?ms)^ *```.*?^ *```[ \t]*$", text)


def headings(text):
    """Of a page, in plain letters."""
    return [re.sub(r"\[([^]]*)\]\([^)]*\)|`", r"\1", line.strip())
            for line in re.findall(r"(?m)^#+ (.*)$", without_blocks(text))]


def anchors(text):
    """What a browser finds on a page, by GitHub's rule for headings."""
    found, count = set(), defaultdict(int)
    for heading in headings(text):
        slug = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        found.add(f"{slug}-{count[slug]}" if count[slug] else slug)
        count[slug] += 1
    return found


class Tree:
    """The files below a root, and the pages among them."""

    def __init__(self, root):
        self.root, self.files = root, []
        for folder, folders, names in os.walk(root):
            inside = Path(folder).relative_to(root)
            folders[:] = [name for name in folders if not OUTSIDE.fullmatch(str(inside / name))]
            self.files += [inside / name for name in names
                           if not OUTSIDE.fullmatch(str(inside / name))]
        self.pages = {file: (root / file).read_text() for file in self.files if file.suffix == ".md"}
        self.anchors = {page: anchors(text) for page, text in self.pages.items()}
        self.headings = {page: headings(text) + re.findall(r"(?m)^[\s\d.-]*\*\*(.*?)\*\*", text)
                         for page, text in self.pages.items()}
        self.folders = {file.parts[0] for file in self.files if len(file.parts) > 1}

    def page(self, name, file):
        """The page that `file` names so, or None."""
        for place in (file.parent / name, Path(name)):
            place = Path(os.path.normpath(place))
            if place in self.pages:
                return place
        alike = [page for page in self.pages if page.name == name]
        return alike[0] if len(alike) == 1 else None

    def broken_links(self, file):
        """(offset, what is wrong) of the links of a page."""
        text = blanked(r"(`+)(?!`).*?(?<!`)\1(?!`)", without_blocks(self.pages[file]))
        for match in LINK.finditer(text):
            path, _, anchor = match.group(1).partition("#")
            if re.match(r"[a-z]+:", path):
                continue
            target = Path(os.path.normpath(file.parent / path)) if path else file
            if target.parts[:1] == ("..",) or not (self.root / target).exists():
                yield match.start(), f"there is no {target}"
            elif anchor and anchor not in self.anchors.get(target, ()):
                yield match.start(), f"{target} has no heading for #{anchor}"

    def broken_names(self, file, text):
        """(offset, what is wrong) of the pages and headings that a file names."""
        for match in ANCHOR.finditer(text):
            name, anchor = match.groups()
            page = self.page(name, file)
            if anchor not in self.anchors.get(page, ()):
                yield match.start(), f"{page or name} has no heading for #{anchor}"
        for match in QUOTED.finditer(blanked(LINE_END, text).replace("\n", " ")):
            name, quoted = match.groups()
            known = self.headings.get(self.page(name, file), ())
            for words in re.findall(r'"([^"]*)"', quoted):
                if not any(heading.startswith(" ".join(words.split())) for heading in known):
                    yield match.start(), f'{name} has no heading "{words}"'
        for match in MENTION.finditer(text):
            name = match.group(1)
            if name.partition("/")[0] in self.folders and not self.page(name, file):
                yield match.start(), f"there is no {name}"

    def broken(self):
        """FILE:LINE: what is wrong, of all files."""
        found = []
        for file in sorted(self.files):
            data = (self.root / file).read_bytes()
            if b".md" not in data and file not in self.pages or b"\0" in data[:1000]:
                continue
            text = data.decode(errors="replace")
            wrong = [*(self.broken_links(file) if file in self.pages else ()),
                     *self.broken_names(file, text)]
            found += [f"{file}:{text.count(chr(10), 0, offset) + 1}: {why}" for offset, why in wrong]
        return list(dict.fromkeys(found))


def main():
    broken = Tree(ROOT).broken()
    for line in broken:
        print(f"links: {line}", file=sys.stderr)
    if not broken:
        print("links: every page and heading that is named is there")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
