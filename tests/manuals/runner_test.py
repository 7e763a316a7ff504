#!/usr/bin/env python3
"""The runner of manuals notices what is wrong with a manual. Needs no build."""

import os
import tempfile
import unittest
from pathlib import Path

from blocks import BadManual, read_manual
from run_manual import check, planned, run_steps
from session import Session


def manual(*parts):
    return "\n".join(parts) + "\n"


def block(mark, *lines, language=""):
    return manual(f"<!-- manual: {mark} -->", f"```{language}", *lines, "```")


class Marks(unittest.TestCase):
    def refused(self, text, what):
        with self.assertRaisesRegex(BadManual, what):
            read_manual(text)

    def test_all_manuals_are_marked(self):
        self.assertEqual(check(), 0)

    def test_a_block_without_a_mark(self):
        self.refused(manual("```", "true", "```"), "line 1: a block without a mark")
        self.refused(block("run x", "a") + manual("", "```", "b", "```"), "line 6: a block without")

    def test_a_mark_that_is_not_right_above(self):
        self.refused("<!-- manual: run x -->\nprose\n```\ntrue\n```\n", "without a mark")

    def test_as_many_entries_as_commands(self):
        self.refused(block("run x; run y", "one"), "1 commands under a mark of 2")
        self.refused(block("run x", "one", "two"), "2 commands under a mark of 1")
        steps = read_manual(block("run x\nrun y", "# said", "one \\", "  more", "", "two | ", " three"))
        self.assertEqual([(step.line, step.source) for step in steps],
                         [(5, "one \\\n  more"), (8, "two | \n three")])

    def test_entries_say_what_is_expected(self):
        self.refused(block("run", "one"), "0 texts")
        self.refused(block("skip", "one"), "0 texts")
        self.refused(block('run ""', "one"), "1 texts")
        self.refused(block("runs x", "one"), "no kind of mark: runs")
        self.refused(block("run 'x", "one"), "No closing quotation")
        self.refused(block("", "one"), "an empty mark")
        self.refused(block("run x; text", "one", "two"), "whole block beside others")

    def test_what_prints_nothing(self):
        self.refused(block("run quiet x", "true"), "1 texts")
        read_manual(block("run quiet", "true"))

    def test_what_is_not_bash_or_json(self):
        self.refused(block("run x", "echo 'one"), "bash cannot read")
        self.refused(block("json", "{one}"), "no JSON")
        read_manual(block("json", '{"one": [1, "..."]}') + block("text", "'anything"))


class Runs(unittest.TestCase):
    """What the runner makes of a manual: the lines that it prints, and how many steps failed."""

    def failures(self, text, long_run=False, limit=10):
        with tempfile.TemporaryDirectory() as scratch:
            work, folder = Path(scratch) / "work", Path(scratch) / "tree"
            work.mkdir()
            folder.mkdir()
            session = Session(folder, work, dict(os.environ), limit)
            try:
                return run_steps("manual", read_manual(text), session, long_run)
            finally:
                session.close()

    def test_a_right_manual(self):
        self.assertEqual(self.failures(block(
            "run one; run exit=3 failed; run file=a.txt kept; run input=said said",
            "word=one; echo $word", "(echo failed >&2; exit 3)", "echo kept >a.txt", "cat")), 0)

    def test_commands_share_a_shell_and_a_folder(self):
        self.assertEqual(self.failures(
            block("run 1; run 2", "a=1; echo $a", "a=2; echo $a") + block("run 2", "echo $a")), 0)

    def test_a_command_that_fails(self):
        self.assertEqual(self.failures(block("run one", "echo one; false")), 1)
        self.assertEqual(self.failures(block("run exit=1 one", "echo one")), 1)
        self.assertEqual(self.failures(block("run one; run two", "no-such-program", "echo two")), 1)

    def test_an_expectation_that_is_missing(self):
        self.assertEqual(self.failures(block("run two", "echo one")), 1)
        self.assertEqual(self.failures(block("run quiet; run quiet", "true", "echo one")), 1)
        self.assertEqual(self.failures(block("run file=a.txt two", "echo two; echo one >a.txt")), 1)

    def test_a_command_that_does_not_end(self):
        self.assertEqual(self.failures(block("run one", "echo one; sleep 60"), limit=0.5), 1)

    def test_servers(self):
        server = "trap 'rm up; exit' TERM; touch up; echo ready; while :; do sleep 0.1; done"
        self.assertEqual(self.failures(block("server ready; run up", server, "ls")), 0)
        self.assertEqual(self.failures(
            block("server ready; server stop other; run none", server, "echo other; sleep 60",
                  "[ -e up ] || echo none")), 0)
        self.assertEqual(self.failures(block("server ready", "echo bad; false")), 1)
        self.assertEqual(self.failures(block("server ready", "sleep 60"), limit=0.5), 1)

    def test_what_runs_until_it_is_interrupted(self):
        self.assertEqual(self.failures(block("run until 3", "seq 5; sleep 60")), 0)
        self.assertEqual(self.failures(block("run until 3", "trap 'exit 7' INT; seq 5; sleep 60")), 1)
        self.assertEqual(self.failures(block("run until 6", "seq 5")), 1)

    def test_python_blocks_see_one_another(self):
        self.assertEqual(self.failures(
            block("python 4", "a = 4", "print(a)") + block("python 5", "print(a + 1)")), 0)
        self.assertEqual(self.failures(block("python 4", "print(4)", "raise ValueError")), 1)
        self.assertEqual(self.failures(block("python 5", "print(4)")), 1)

    def test_long_commands_and_what_stands_in_for_them(self):
        text = block("long instead='echo short >a' x; run short", "false", "cat a")
        self.assertEqual(self.failures(text), 0)
        self.assertEqual(self.failures(text, long_run=True), 2)
        self.assertEqual(self.failures(block("skip why; long x", "false", "false")), 0)
        self.assertIsNone(planned(read_manual(block("skip why", "false"))[0], True))


if __name__ == "__main__":
    unittest.main()
