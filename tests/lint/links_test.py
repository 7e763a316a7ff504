#!/usr/bin/env python3
"""links.py notices pages, headings and pictures that are not there, wherever they are named."""

import tempfile
import unittest
from pathlib import Path

from links import Tree, anchors, main

PAGE = """# The `first` page

**Bold words** begin a paragraph.

## Twice, and more

```
# no heading, and [no link](nowhere.md)
```

## Twice, and more
"""


class Links(unittest.TestCase):
    def wrong(self, text, name="folder/notes.md"):
        """What is wrong with a file of that text beside two pages."""
        with tempfile.TemporaryDirectory() as folder:
            for path, words in (("folder/page.md", PAGE), ("README.md", "# Door\n"), (name, text)):
                (Path(folder) / path).parent.mkdir(exist_ok=True)
                (Path(folder) / path).write_text(words)
            return Tree(Path(folder)).broken()

    def test_this_tree(self):
        self.assertEqual(main(), 0)

    def test_anchors_are_those_of_a_browser(self):
        self.assertEqual(anchors(PAGE), {"the-first-page", "twice-and-more", "twice-and-more-1"})

    def test_links_of_a_page(self):
        self.assertEqual(self.wrong(
            "[a](page.md) [b](../README.md#door) [c](#own) [d](..) [e](https://f.org/g.md#h)\n# Own\n"
            "`[code](nowhere.md)`"), [])
        for link in ("nowhere.md", "page.md#third", "#own", "../../README.md", "page.md#no-heading",
                     "picture.png"):
            self.assertEqual(len(self.wrong(f"\n[words]({link})")), 1, link)
        self.assertRegex(self.wrong("\n\n[words](nowhere.md)")[0], "notes.md:3: there is no folder/nowhere.md")

    def test_what_other_files_name(self):
        for words in ("runbook: folder/page.md#twice-and-more-1", '// page.md, "Twice" and "The first".',
                      '// page.md,\n//   "Twice, and\n// more", "Bold words".', "page.md, the page",
                      "see folder/page.md.", "run/page.md", "https://a.org/folder/nowhere.md#b"):
            self.assertEqual(self.wrong(words, "source.cc"), [], words)
        for words in ("runbook: folder/page.md#third", '// page.md, "Third"',
                      '// page.md, "Twice" and\n// "Third".', '// page.md, "Bold and more"',
                      "see folder/nowhere.md"):
            self.assertEqual(len(self.wrong(words, "source.cc")), 1, words)
        self.assertRegex(self.wrong('\n\n// page.md,\n// "Third"', "source.cc")[0], "source.cc:3: ")


if __name__ == "__main__":
    unittest.main()
