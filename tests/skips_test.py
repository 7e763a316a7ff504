#!/usr/bin/env python3
"""What skips.py makes of the results of a run."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).parent


def google_test(name, reason):
    """What GoogleTest prints for one test of which it says that it is skipped."""
    return (f"[ RUN      ] {name}\n/src/x.cc:3: Skipped\n{reason}\n[  SKIPPED ] {name} (0 ms)\n"
            f"[  SKIPPED ] 1 test, listed below:\n[  SKIPPED ] {name}\n")


class Skips(unittest.TestCase):
    def judge(self, *cases):
        """Exit code and lines for cases of (name, whether ctest skipped it, output)."""
        with tempfile.NamedTemporaryFile("w", suffix=".xml") as results:
            results.write("<testsuite>" + "".join(
                f'<testcase name="{name}">{"<skipped/>" if skipped else ""}<system-out>{output}</system-out></testcase>'
                for name, skipped, output in cases) + "</testsuite>")
            results.flush()
            ended = subprocess.run([sys.executable, HERE / "skips.py", results.name], capture_output=True, text=True,
                                   check=False)
        return ended.returncode, (ended.stdout + ended.stderr).splitlines()

    def test_without_any_nothing_is_said(self):
        self.assertEqual(self.judge(("A.B", False, "[  PASSED  ] 1 test.")), (0, []))

    def test_known_reasons_are_named_with_their_tests(self):
        device = google_test("A.B", "backend: cuda: no device")
        code, lines = self.judge(("A.B", True, device), ("C.D", True, device),
                                 ("network_loss", True, "network_loss: skipped: needs root\n"),
                                 ("supply_chain_test", False,
                                  "test_a (__main__.Lock) ... skipped 'not Debian 12'\nOK (skipped=1)\n"))
        self.assertEqual(code, 0, lines)
        self.assertEqual(lines, ["skipped, no CUDA device: A.B, C.D", "skipped, not root: network_loss",
                                 "skipped, not Debian 12: supply_chain_test: test_a"])

    def test_others_fail_also_within_a_binary_and_without_a_reason(self):
        for case in [("A.B", True, google_test("A.B", "PostgreSQL is not installed")),
                     ("store_test", False, google_test("A.B", "PostgreSQL is not installed")),
                     ("A.B", True, google_test("A.B", "")),
                     ("script", True, ""),
                     ("python", False, "s.\nOK (skipped=1)\n")]:
            code, lines = self.judge(case)
            self.assertEqual((code, len(lines)), (1, 1), lines)
            self.assertIn(case[0], lines[0])


if __name__ == "__main__":
    unittest.main()
