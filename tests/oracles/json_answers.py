"""How many answers of a served model are valid, with a format and without: the adapted SmolLM2, by etactl.

  tests/oracles/run.sh build json_schema answers [--prompts 200] [--streams 8] [--seed 1]

Each prompt shows the schema, so both ways are asked for the same. An answer that reached max_tokens is not judged, but
counted. Validity is PyPI's jsonschema's word. Prints a table for tests/RESULTS.md, and what masks cost: by the server's
own metrics, over the steps that decode while all answers have a format. 1 if an answer with a format is not valid."""
import argparse
import collections
import concurrent.futures
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

import jsonschema

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "models/smollm2-eta/SmolLM2-135M-Instruct-ETA.Q8_0.gguf"
MAX_TOKENS = 256
COSTS = {"masks": "eta_step_mask_duration_seconds_sum", "waits": "eta_step_mask_wait_seconds_sum",
         "decode": 'eta_step_duration_seconds_sum{[^}]*phase="(?:decode|mixed)"[^}]*}'}  # fmt: skip

SUBJECTS = ["Oslo", "a lighthouse", "Marie Curie", "the violin", "a red bicycle", "the Amazon river", "a wolf",
            "the printing press", "a cup of coffee", "Mount Fuji", "an old library", "the steam engine", "Isaac Newton",
            "a thunderstorm", "the city of Rome", "a wooden chair", "the honey bee", "a chess game", "the North Sea",
            "a night train", "the telescope", "a loaf of bread", "Ada Lovelace", "a desert", "the piano", "a football",
            "a glacier", "the compass", "a village market", "the moon", "a sailing boat", "the olive tree", "a museum",
            "the radio", "a blue whale", "a mountain hut", "the bicycle wheel", "a birthday party", "the dictionary",
            "a garden in spring"]  # fmt: skip
WAYS_TO_ASK = ["Describe {} as JSON.", "Give me a JSON record about {}.", "I need facts about {}. Answer with JSON.",
               "Fill in this form for {}.", "Write JSON about {} for a children's book."]  # fmt: skip


def text(least=1, most=40):
    return {"type": "string", "minLength": least, "maxLength": most}


def record(properties, *optional):
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


SCHEMAS = {
    "flat": record({"name": text(), "kind": {"enum": ["person", "place", "thing", "event"]},
                    "age_in_years": {"type": "integer", "minimum": 0, "maximum": 5000},
                    "is_famous": {"type": "boolean"}}),
    "patterns": record({"code": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
                        "date": {"type": "string", "pattern": "^20[0-9]{2}-(0[1-9]|1[0-2])-[0-3][0-9]$"},
                        "email": {"type": "string", "pattern": "^[a-z]{2,12}@[a-z]{2,12}\\.(org|com)$"}}),
    "lists": record({"title": text(), "tags": {"type": "array", "items": text(1, 16), "minItems": 2, "maxItems": 4},
                     "scores": {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 1},
                                "maxItems": 3}}, "scores"),
    "nested": record({"item": record({"name": text(), "price": {"type": ["number", "null"]}}),
                      "maker": {"anyOf": [record({"company": text()}), record({"person": text(), "born": {
                          "type": "integer", "minimum": 1000, "maximum": 2026}})]}}),
    "recursive": {**record({"root": {"$ref": "#/$defs/node"}}),
                  "$defs": {"node": record({"label": text(1, 20), "parts": {
                      "type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}}, "parts")}},
}  # fmt: skip


class Server:
    def __init__(self, build, folder, streams):
        self.address = f"unix:{folder}/s"
        self.log = open(folder / "log", "w+")
        self.process = subprocess.Popen(
            [build / "bin/eta-server", "--model", MODEL, f"--listen={self.address}", "--max_context=2048",
             f"--max_running={streams}", "--kv_pool_bytes=1GB", "--metrics_listen=127.0.0.1:0"],
            stdout=self.log, stderr=self.log)  # fmt: skip
        for _ in range(300):
            said = pathlib.Path(self.log.name).read_text()
            if "listening on" in said:
                self.metrics = re.search(r"metrics on (http://[^\s\"]+)", said)[1]
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        sys.exit("the server did not start:\n" + pathlib.Path(self.log.name).read_text())

    def costs(self):
        """Seconds so far."""
        with urllib.request.urlopen(self.metrics) as page:
            text = page.read().decode()
        return collections.Counter({
            name: sum(map(float, re.findall(rf"^{series}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)))
            for name, series in COSTS.items()})  # fmt: skip

    def stop(self):
        self.process.terminate()
        self.process.wait()


def answer(build, address, prompt, seed, flags):
    """The answer's text, and whether it was cut off."""
    told = subprocess.run(
        [build / "bin/etactl", "chat", "--server", address, "--json", f"--max_tokens={MAX_TOKENS}", f"--seed={seed}",
         "--temperature=0.7", *flags, "--", prompt], check=True, capture_output=True, text=True).stdout  # fmt: skip
    events = [json.loads(line) for line in told.splitlines()]
    said = "".join(event["delta"].get("text", "") for event in events if "delta" in event)
    reason = next(event["finished"]["finish_reason"] for event in events if "finished" in event)
    return said, reason in ("FINISH_REASON_LENGTH", "FINISH_REASON_CUT_OFF")


def judged(validator, said, cut):
    if cut:
        return "cut off"
    try:
        value = json.loads(said)
    except ValueError:
        return "no JSON"
    return "valid" if validator.is_valid(value) else "another JSON"


def check(build, arguments):
    parser = argparse.ArgumentParser(prog="json_schema.py BUILD_FOLDER answers")
    parser.add_argument("--prompts", type=int, default=len(SUBJECTS) * len(WAYS_TO_ASK))
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    asked = [way.format(subject) for way in WAYS_TO_ASK for subject in SUBJECTS][: options.prompts]
    wrong, costs = 0, collections.Counter()
    print("| schema | attention | format | valid | JSON of another form | no JSON | cut off |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name, concurrent.futures.ThreadPoolExecutor(options.streams) as pool:
        folder = pathlib.Path(name)
        server = Server(build, folder, options.streams)
        try:
            for schema_name, schema in SCHEMAS.items():
                file = folder / f"{schema_name}.json"
                file.write_text(json.dumps(schema))
                validator = jsonschema.Draft202012Validator(schema)
                for attention, bound in (("full", True), ("dynamic", True), ("dynamic", False)):
                    flags = [f"--attention={attention}"] + ([f"--json_schema={file}"] if bound else [])

                    def one(i):
                        prompt = f"{asked[i]} Use this JSON schema, and write nothing else: {json.dumps(schema)}"
                        said, cut = answer(build, server.address, prompt, options.seed + i, flags)
                        return judged(validator, said, cut)

                    before = server.costs()
                    counts = collections.Counter(pool.map(one, range(len(asked))))
                    if bound:
                        costs.update(server.costs())
                        costs.subtract(before)
                        wrong += counts["another JSON"] + counts["no JSON"]
                    print(f"| {schema_name} | {attention} | {'yes' if bound else 'no'} | {counts['valid']} | "
                          f"{counts['another JSON']} | {counts['no JSON']} | {counts['cut off']} |", flush=True)
        finally:
            server.stop()
    print(f"\nStreams: {options.streams}. Steps that decode took {costs['decode']:.2f} s, of which they waited "
          f"{costs['waits']:.3f} s for masks ({costs['waits'] / costs['decode']:.2%}); filling these took "
          f"{costs['masks']:.3f} s of all threads")
    return 1 if wrong else 0
