"""JSON schemas that pass the check of keywords: their answers against PyPI's jsonschema.

usage: json_schema.py BUILD_FOLDER         schemas and answers made by chance
       json_schema.py BUILD_FOLDER suite   JSON Schema's own test suite, which jsonschema's sources ship
       json_schema.py BUILD_FOLDER answers [...]   answers of a served model (json_answers.py)
"""
import collections
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tarfile
import tempfile

import json_answers
import jsonschema

SCHEMAS = 3000 if os.environ.get("ETA_TEST_LONG") else 1000  # that pass; each with ANSWERS answers
ANSWERS = 25
# The suite, which the wheel does not have.
SUITE = "jsonschema==4.26.0 --hash=sha256:0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326"
SUITE_FOLDER = "/json/tests/draft2020-12/"
# Cases that pass the check of keywords, of those that the suite has: fewer are a change that refuses
# more than it should.
SUITE_PASSES = 75

NAMES = ["a", "b", "c", "title", "default", "a b", "x/y", "~", "é", "quo\"te"]
TEXTS = ["", "a", "b", "ab", "abc", "red", "x1", "2026-11-26", "12", "é", "a\"b", "line\n", "aaaaaaaa",
         "\U0001f600"]
PATTERNS = ["^a+$", "b", "^[a-z]{2,4}$", "^(red|green)$", "\\d", "^x", "[^a]", "^(a|b)*$", "\\S", "^.{2}$",
            "a$", "^[\\w-]+$"]
NUMBERS = [0, 1, -1, 2, 3, 7, 10, 100, -50, 0.5, 1.5, -0.25, 0.1, 1e3]


def subset(chance, items, most):
    return chance.sample(items, chance.randint(0, min(most, len(items))))


class Maker:
    """Schemas by chance, and answers that are near to what they ask for."""

    def __init__(self, chance):
        self.chance = chance
        self.defs = {}

    def root(self):
        for name in subset(self.chance, ["A", "B", "C"], 2):
            self.defs[name] = {}
        for name in self.defs:
            self.defs[name] = self.schema(2)
        root = self.schema(0)
        if self.defs and isinstance(root, dict):
            root["$defs"] = self.defs
        if self.chance.random() < 0.1:
            root = self.spoilt(root)
        return root

    def spoilt(self, schema):
        """With a keyword more, as likely as not one that stands where it is not enforced."""
        if not isinstance(schema, dict):
            return schema
        more = self.typed(2, self.chance.choice(["string", "integer", "array", "object"]))
        key = self.chance.choice(list(more))
        return {**schema, key: more[key]}

    def schema(self, depth):
        chance = self.chance
        roll = chance.random()
        if roll < 0.02:
            return chance.choice([True, False, {}])
        if roll < 0.08 and self.defs:
            return {"$ref": "#/$defs/" + chance.choice(list(self.defs))}
        if roll < 0.10:
            return {"$ref": "#"} if depth > 0 else {"type": "null"}
        if roll < 0.20 and depth < 3:
            word = chance.choice(["anyOf", "anyOf", "oneOf", "allOf"])
            count = 1 if word == "allOf" else chance.randint(1, 3)
            return {word: [self.schema(depth + 1) for _ in range(count)]}
        if roll < 0.30:
            values = [self.value(2) for _ in range(chance.randint(1, 4))]
            made = {"enum": values} if chance.random() < 0.7 else {"const": values[0]}
            if chance.random() < 0.3:
                made.update(self.typed(3, chance.choice(["string", "integer", "object"])))
            return made
        types = ["string", "integer", "number", "boolean", "null"] + ["array", "object", "object"] * (depth < 3)
        if roll < 0.37:
            several = chance.sample(types[:6], 2)
            made = {}
            for one in several:
                made.update(self.typed(depth, one))
            return {**made, "type": several}
        return self.typed(depth, chance.choice(types))

    def typed(self, depth, kind):
        chance = self.chance
        made = {"type": kind}
        if kind == "string":
            roll = chance.random()
            if roll < 0.3:
                made["pattern"] = chance.choice(PATTERNS)
            if roll > 0.2 and chance.random() < 0.4:
                made["minLength"] = chance.randint(0, 3)
            if roll > 0.2 and chance.random() < 0.4:
                made["maxLength"] = made.get("minLength", 0) + chance.randint(0, 4)
        elif kind in ("integer", "number"):
            bounds = sorted(chance.sample(NUMBERS, 2))
            for word, bound in (("inimum", bounds[0]), ("aximum", bounds[1])):
                if chance.random() < 0.4:
                    made[chance.choice(["m", "exclusiveM"]) + word] = bound
            if kind == "integer" and chance.random() < 0.3:
                made["multipleOf"] = chance.choice([1, 2, 3, 7])
        elif kind == "array":
            if chance.random() < 0.3:
                made["prefixItems"] = [self.schema(depth + 1) for _ in range(chance.randint(1, 3))]
            if chance.random() < 0.7:
                made["items"] = self.schema(depth + 1) if chance.random() < 0.8 else False
            for word in ("minItems", "maxItems"):
                if chance.random() < 0.25:
                    made[word] = chance.randint(0, 4)
        elif kind == "object":
            self.object(made, depth)
        return made

    def object(self, made, depth):
        chance = self.chance
        roll = chance.random()
        if roll < 0.75:
            names = chance.sample(NAMES[:4] if chance.random() < 0.7 else NAMES, chance.randint(1, 4))
            made["properties"] = {name: self.schema(depth + 1) for name in names}
            if chance.random() < 0.6:
                made["required"] = subset(chance, names + ["d"] * (chance.random() < 0.1), 3)
            if chance.random() < 0.5:
                made["additionalProperties"] = False if chance.random() < 0.5 else self.schema(depth + 1)
        elif roll < 0.9:
            if chance.random() < 0.8:
                made["additionalProperties"] = self.schema(depth + 1)
            if chance.random() < 0.4:
                made["propertyNames"] = chance.choice(
                    [{"pattern": "^x"}, {"enum": ["a", "b"]}, {"maxLength": 2}, {"type": "string"}, True])
        elif chance.random() < 0.5:
            made["patternProperties"] = {chance.choice(PATTERNS): self.schema(depth + 1)}
            made["additionalProperties"] = False
        for word in ("minProperties", "maxProperties"):
            if chance.random() < 0.1:
                made[word] = chance.randint(0, 3)

    def value(self, depth=0):
        chance = self.chance
        roll = chance.random()
        if roll < 0.3:
            return chance.choice(TEXTS)
        if roll < 0.6:
            return chance.choice(NUMBERS + [4, -7, 12345678901234567890, 1.0, 2.0])
        if roll < 0.75 or depth >= 3:
            return chance.choice([None, True, False])
        if roll < 0.87:
            return [self.value(depth + 1) for _ in range(chance.randint(0, 3))]
        return {name: self.value(depth + 1) for name in subset(chance, NAMES, 3)}

    def answer(self, schema, root, depth=0):
        """Mostly what the schema asks for, now and then something else."""
        chance = self.chance
        if chance.random() < 0.08 or depth > 8 or not isinstance(schema, dict):
            return self.value()
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            return self.answer(root if name == "#" else self.defs.get(name, {}), root, depth + 1)
        for word in ("anyOf", "oneOf", "allOf"):
            if word in schema:
                return self.answer(chance.choice(schema[word]), root, depth + 1)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return chance.choice(schema["enum"])
        kind = schema.get("type")
        kind = chance.choice(kind) if isinstance(kind, list) else kind
        if kind == "string":
            return chance.choice(TEXTS)
        if kind in ("integer", "number"):
            return chance.choice(NUMBERS + [schema.get("minimum", 4), schema.get("maximum", 6), 5, 14, 21])
        if kind == "array":
            items = [self.answer(item, root, depth + 1)
                     for item in schema.get("prefixItems", [])[:chance.randint(0, 4)]]
            rest = schema.get("items", {})
            items += [self.answer(rest, root, depth + 1) for _ in range(chance.choice([0, 0, 1, 2, 3]))]
            return items
        if kind == "object":
            return self.object_answer(schema, root, depth)
        return {"null": None, "boolean": True}.get(kind, self.value())

    def object_answer(self, schema, root, depth):
        chance = self.chance
        made = {}
        for name, member in schema.get("properties", {}).items():
            if name in schema.get("required", []) or chance.random() < 0.6:
                made[name] = self.answer(member, root, depth + 1)
        for name in schema.get("required", []):
            if chance.random() < 0.9:
                made.setdefault(name, self.value())
        if chance.random() < 0.5 and "properties" not in schema or chance.random() < 0.1:
            rest = schema.get("additionalProperties", next(iter(schema.get("patternProperties", {}).values()), {}))
            for name in subset(chance, ["x1", "a", "b", "red", "zz"], 3):
                made[name] = self.answer(rest, root, depth + 1)
        return made

    def text(self, value):
        """An answer as some model might write it; seldom no JSON at all."""
        chance = self.chance
        text = json.dumps(value, ensure_ascii=chance.random() < 0.3,
                          separators=chance.choice([(",", ":"), (", ", ": ")]))
        roll = chance.random()
        if roll < 0.02:
            return text[:-1]
        if roll < 0.04:
            return text + chance.choice([" ", "}", ",", "\n"])
        return text


def ecma(pattern):
    """A pattern as JSON Schema means it, in Python's words; of patterns without an escaped $."""
    return re.compile(pattern.replace("$", r"\Z"), re.ASCII)


def pattern_keyword(_, pattern, instance, __):
    if isinstance(instance, str) and not ecma(pattern).search(instance):
        yield jsonschema.ValidationError("pattern")


def pattern_properties_keyword(validator, schemas, instance, _):
    for pattern, schema in schemas.items() if isinstance(instance, dict) else ():
        for name in instance:
            if ecma(pattern).search(name):
                yield from validator.descend(instance[name], schema, path=name)


def additional_keyword(validator, schema, instance, parent):
    for name in instance if isinstance(instance, dict) else ():
        if name not in parent.get("properties", {}) and not any(
                ecma(pattern).search(name) for pattern in parent.get("patternProperties", {})):
            yield from validator.descend(instance[name], schema, path=name)


Validator = jsonschema.validators.extend(jsonschema.Draft202012Validator, {
    "pattern": pattern_keyword, "patternProperties": pattern_properties_keyword,
    "additionalProperties": additional_keyword})


def probed(build, cases):
    """For each (schema text, answers): what the probe says."""
    lines = "".join(json.dumps({"schema": schema, "answers": answers}) + "\n" for schema, answers in cases)
    done = subprocess.run([build / "tests" / "schema_probe"], input=lines, stdout=subprocess.PIPE, text=True,
                          check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def expected(validator, answer):
    try:
        value = json.loads(answer, parse_constant=lambda name: 1 / 0)
    except (ValueError, ZeroDivisionError):
        return False
    return validator.is_valid(value)


def compare(build, cases):
    """Prints what differs. Returns (schemas that pass, answers, how many of them valid, differences,
    reasons). Where the grammar is built, no answer that is not valid may be led to."""
    passed = answers = valid = wrong = 0
    reasons = collections.Counter()
    led_to = collections.Counter()
    for (schema, texts), said in zip(cases, probed(build, cases)):
        if "error" in said:
            reasons[said["error"].split(": ")[1]] += 1
            continue
        passed += 1
        validator = Validator(json.loads(schema))
        for text, is_valid in zip(texts, said["valid"]):
            want = expected(validator, text)
            answers += 1
            valid += want
            if want != is_valid:
                wrong += 1
                if wrong <= 15:
                    print(f"schema {schema}\n  answer {text}\n  jsonschema: {want}, here: {is_valid}")
        for text, is_valid, led in zip(texts, said["valid"], said.get("led", [])):
            led_to[(is_valid, led)] += 1
            if led and not is_valid:
                wrong += 1
                print(f"schema {schema}\n  answer {text}\n  the grammar leads to it, and it is not valid")
    if led_to:
        print(f"the grammar leads to {led_to[(True, True)]} answers and refuses {led_to[(True, False)]} valid ones")
        if led_to[(True, False)] > led_to[(True, True)] // 10:
            wrong += 1
    return passed, answers, valid, wrong, reasons


def by_chance(count, seed):
    chance = random.Random(seed)
    cases = []
    for _ in range(count):
        maker = Maker(chance)
        root = maker.root()
        texts = [maker.text(maker.answer(root, root)) for _ in range(ANSWERS)]
        cases.append((json.dumps(root, ensure_ascii=chance.random() < 0.5), texts))
    return cases


def suite_cases():
    """The cases of the suite, or None where it cannot be had."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "asked.txt").write_text(SUITE + "\n")
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--timeout", "30",
             "--retries", "2", "--no-deps", "--no-binary", "jsonschema", "--require-hashes", "--dest", folder,
             "-r", folder / "asked.txt"], stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            print("SKIPPED: the sources of jsonschema could not be had:\n" + done.stderr[-600:])
            return None
        cases = []
        with tarfile.open(next(folder.glob("jsonschema-*.tar.gz"))) as package:
            for member in package:
                if SUITE_FOLDER in member.name and member.name.endswith(".json") and "/format/" not in member.name:
                    for case in json.load(package.extractfile(member)):
                        texts = [json.dumps(test["data"]) for test in case["tests"]]
                        cases.append((json.dumps(case["schema"]), texts, [test["valid"] for test in case["tests"]],
                                      member.name.partition(SUITE_FOLDER)[2] + ": " + case["description"]))
        return cases


def suite(build):
    cases = suite_cases()
    if cases is None:
        return 77
    passed = answers = wrong = 0
    for case, said in zip(cases, probed(build, [case[:2] for case in cases])):
        if "error" in said:
            continue
        passed += 1
        for text, want, is_valid, led in zip(case[1], case[2], said["valid"], said.get("led", case[2])):
            answers += 1
            if want != is_valid or led and not want:
                wrong += 1
                print(f"{case[3]}\n  schema {case[0]}\n  answer {text}\n"
                      f"  the suite: {want}, here: {is_valid}, led to: {led}")
    print(f"the suite of draft 2020-12: {passed} of {len(cases)} schemas pass the check of keywords, {answers} "
          f"answers, {wrong} differences")
    return 1 if wrong or passed < SUITE_PASSES else 0


def main():
    build = pathlib.Path(sys.argv[1])
    if sys.argv[2:] == ["suite"]:
        return suite(build)
    if sys.argv[2:3] == ["answers"]:
        return json_answers.check(build, sys.argv[3:])
    passed, answers, valid, wrong, reasons = compare(build, by_chance(2 * SCHEMAS, 52))
    for reason, count in reasons.most_common():
        print(f"{count:6} refused: {reason}")
    print(f"by chance (seed 52): {passed} schemas pass the check of keywords, {answers} answers, {valid} of them "
          f"valid, {wrong} differences")
    return 1 if wrong or passed < SCHEMAS or valid < answers // 4 else 0


if __name__ == "__main__":
    sys.exit(main())
