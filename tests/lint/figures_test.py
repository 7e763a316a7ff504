#!/usr/bin/env python3
"""figures.py notices tables of another model or of other defaults, and those that do not say."""

import unittest

from figures import broken, code_in_braces, fingerprints, main

PRINTS = {"one": "00000001", "two": "00000002", "defaults": "0000000d"}
TABLE = "\n| a | b |\n|---|---|\n| 1 | 2 |\n"


class Figures(unittest.TestCase):
    def wrong(self, *parts):
        return [why for _, why in broken("\n".join(parts), PRINTS)]

    def test_this_tree(self):
        self.assertEqual(main(), 0)
        self.assertEqual({len(digits) for digits in fingerprints().values()}, {8})

    def test_present_tables(self):
        self.assertEqual(self.wrong(
            "# A", "", "Measured with: one @ 00000001, two @ 00000002, defaults @ 0000000d.", TABLE,
            "## Below it", TABLE), [])
        self.assertEqual(self.wrong(
            "# A", "Measured with: models whose reads these figures do not depend on.", TABLE), [])
        self.assertEqual(self.wrong("# A", "Measured with: an earlier one, which was another model;",
                                    "and two lines long.", TABLE), [])

    def test_tables_of_another_model_or_defaults(self):
        for line in ("one @ 00000009, defaults @ 0000000d.", "one @ 00000001, defaults @ 00000009."):
            self.assertRegex(self.wrong("# A", f"Measured with: {line}", TABLE)[0], "measure anew")
        self.assertRegex(self.wrong("# A", "Measured with: six @ 00000001, defaults @ 0000000d.")[0],
                         "there is no model six")

    def test_tables_that_do_not_say(self):
        self.assertRegex(self.wrong("# A", TABLE)[0], "a table under no line")
        self.assertEqual(len(self.wrong(
            "## A", "Measured with: one @ 00000001, defaults @ 0000000d.", TABLE, "## B", TABLE)), 1)
        for line in ("one @ 00000001.", "defaults @ 0000000d.", "an earlier one.", "a model.",
                     "one @ 00000001, defaults @ 0000000d"):
            self.assertEqual(len(self.wrong("# A", f"Measured with: {line}", TABLE)), 1, line)

    def test_settings_of_one_page(self):
        first = "Settings: model 0a; defaults c -3.9, index outlier; context 2048."
        for other, count in (("Settings: model 0a; defaults c -3.9, index outlier.", 0),
                             ("Settings: model 0b; defaults c -3.9, index outlier; seed 1.", 1),
                             ("Settings: model 0a; defaults c -4.3, index outlier; seed 1.", 1),
                             ("Settings: context 2048.", 1)):
            self.assertEqual(len(self.wrong("# A", first, other)), count, other)
        self.assertEqual(self.wrong("# A", "Settings: context 2048.", "Settings: seed 1."), [])

    def test_a_fingerprint_is_of_code_not_of_comments(self):
        one = code_in_braces("x {\n  float z = 1.5f;  // width\n  if (a) { b; }\n} rest", "x {")
        self.assertEqual(one, "floatz=1.5f;if(a){b;}")


if __name__ == "__main__":
    unittest.main()
