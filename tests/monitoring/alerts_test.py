"""The cases of alerts_test.yml with promtool: as they are, and as Prometheus 3 stores the same page, where a histogram's
bound that is a whole number is spelled le="5.0". What is asked for by its bound must match both.

    alerts_test.py"""

import json
import pathlib
import re
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CASES = ROOT / "tests/monitoring/alerts_test.yml"
QUERIES = (*(ROOT / "deploy/prometheus").glob("*s.yml"), *(ROOT / "deploy/grafana/dashboards").glob("*.json"),
           *(ROOT / "deploy/helm/eta-server").glob("[it]*/*.yaml"))  # fmt: skip


def as_prometheus_3(text):
    return re.sub(r'(\ble=")(\d+)(")', r"\g<1>\g<2>.0\g<3>", text)


def instructions():
    """{alert: (the lines of its description after the first, its runbook)}"""
    rules = re.findall(r"- alert: (\w+)\n(?:.*\n)*? +description: \|-\n.*\n((?: {12}.*\n)+) +runbook: (.*)\n",
                       (ROOT / "deploy/prometheus/alerts.yml").read_text())
    return {alert: (re.sub("(?m)^ {12}", "", lines).rstrip("\n"), runbook) for alert, lines, runbook in rules}


def with_instructions(text):
    """Cases whose annotations are whole."""
    known, alert, lines = instructions(), None, []
    for line in text.splitlines():
        alert = (re.findall(r"alertname: (\w+)", line) or [alert])[0]
        lines.append(line)
        if found := re.fullmatch(r'( +description: )"(.*)"', line):
            rest, runbook = known[alert]
            lines[-1:] = [found[1] + json.dumps(f"{found[2]}\n{rest}"), " " * 14 + "runbook: " + runbook]
    return "\n".join(lines) + "\n"


class Alerts(unittest.TestCase):
    def promtool(self, text):
        folder = CASES.parent
        text = re.sub(r"(?m)^rule_files:.*$", lambda line: re.sub(r"[^\[\s,]+\.yml", lambda name: str(
            (folder / name[0]).resolve()), line[0]), with_instructions(text))
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
            file.write(text)
            file.flush()
            return subprocess.run(["promtool", "test", "rules", file.name], capture_output=True, text=True, check=False)

    def test_each_says_what_to_do(self):
        names = re.findall(r"- alert: (\w+)", (ROOT / "deploy/prometheus/alerts.yml").read_text())
        self.assertEqual(list(instructions()), names)
        for alert, said in instructions().items():
            self.assertNotIn("{{", "".join(said), alert)

    def test_as_prometheus_2_spells_bounds(self):
        ran = self.promtool(CASES.read_text())
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)

    def test_as_prometheus_3_spells_bounds(self):
        text = as_prometheus_3(CASES.read_text())
        self.assertIn('le="5.0"', text)
        self.assertNotIn('le="5"', text)
        ran = self.promtool(text)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)

    def test_every_bound_is_asked_for_in_both_spellings(self):
        asked = 0
        for path in QUERIES:
            text = re.sub(r"(?m)^\s*#.*$", "", path.read_text())
            for operator, pattern in re.findall(r'\ble(=~?|!~|!=)\\?"([^"\\]+)', text):
                self.assertEqual(operator, "=~", path.name)
                (bound,) = {part.removesuffix("[.]0") for part in pattern.split("|")}
                for spelling in (bound, bound + ".0"):
                    self.assertTrue(re.fullmatch(pattern, spelling), f"{path.name}: {pattern} and {spelling}")
                asked += 1
        self.assertGreater(asked, 10)

    def test_promtool_finds_nothing_to_complain_about(self):
        rules = [str(ROOT / f"deploy/prometheus/{name}.yml") for name in ("rules", "alerts")]
        ran = subprocess.run(["promtool", "check", "rules", *rules], capture_output=True, text=True, check=False)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
