"""Jinja itself: small templates, listed and made by chance, against Jinja2. What is not known here must
say so by name.

usage: jinja_expressions.py BUILD_FOLDER
"""
import json
import pathlib
import random
import sys
import unicodedata
import warnings

import chat_reference
import jinja_cases

RANDOM = 6000
NOT_KNOWN = 51  # of the listed ones: statements, filters and tests that Jinja has, or nobody
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def every_character():
    """Texts that together hold each character that this Python's Unicode has assigned; but for those
    whose upper, lower or title case is several characters or depends on their neighbours."""
    characters = [chr(c) for c in range(1, 0x110000)
                  if not 0xD800 <= c < 0xE000 and unicodedata.category(chr(c)) not in ("Cn", "Co")]
    characters = [c for c in characters
                  if len(c.upper()) == len(c.lower()) == len(c.title()) == 1 and c != "Σ"]
    return ["".join(characters[at:at + 4000]) for at in range(0, len(characters), 4000)]


def compare(eta_eval, name, lines):
    """Prints what differs; returns (lines, equal texts, refused by both, not known here, different)."""
    environment = chat_reference.environment()
    answers = chat_reference.rendered(eta_eval, lines, TOKENS)
    equal = refused = unknown = 0
    different, names = [], []
    for line, answer in zip(lines, answers):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                template = environment.from_string(line["template"])
            want = chat_reference.expected(template, line, TOKENS)
        except Exception as error:
            want = error
        by_address = isinstance(want, str) and " object at 0x" in want
        if answer.get("code") == "UNIMPLEMENTED" or by_address:
            unknown += 1
            names.append((line["template"], answer.get("error", "")))
        elif isinstance(want, Exception):
            if "error" in answer:
                refused += 1
            else:
                different.append((line, f"{want!r}", answer["text"]))
        elif answer.get("text") == want:
            equal += 1
        else:
            different.append((line, want, answer.get("text", answer.get("error"))))
    for line, want, got in different[:15]:
        at = next((i for i, (a, b) in enumerate(zip(str(want), got)) if a != b), 0)
        want, got = str(want)[max(0, at - 60):], got[max(0, at - 60):]
        print(f"{name}\n  template: {line['template']!r}\n  Jinja2: {want[:500]!r}\n  here: {got[:500]!r}")
    print(f"{name}: {len(lines)} templates: {equal} texts equal to Jinja2's, {refused} refused by both, "
          f"{unknown} not known here, {len(different)} differences")
    return names, different


def main():
    eta_eval = pathlib.Path(sys.argv[1]) / "bin" / "eta-eval"
    variables = json.dumps(jinja_cases.VARIABLES, ensure_ascii=False)

    def line(template, content="hi"):
        return {"template": template, "messages": [{"role": "user", "content": content}],
                "add_generation_prompt": True, "variables_json": variables}
    unknown, different = compare(eta_eval, "listed", [line(case) for case in jinja_cases.listed()])
    if len(unknown) != NOT_KNOWN:
        different.append(f"{len(unknown)} listed templates are not known here, not {NOT_KNOWN}")
        print(different[-1])
        for template, error in unknown:
            print(f"{template!r}: {error}")
    chance = random.Random(31)
    _, more = compare(eta_eval, "by chance (seed 31)",
                      [line(jinja_cases.made(chance)) for _ in range(RANDOM)])
    # utf8proc 2.8 is of Unicode 14 with later additions; a newer Python knows more characters.
    if tuple(map(int, unicodedata.unidata_version.split("."))) > (15, 0, 0):
        print(f"characters: not compared, this Python's Unicode is {unicodedata.unidata_version}")
        return 1 if different or more else 0
    cases = ["upper", "lower", "capitalize", "trim|length", "indent"]
    methods = ["title()", "split()|length"]
    template = "{% set x = messages[0].content %}"
    template += "\n".join("{{ x|%s }}" % case for case in cases)
    template += "\n".join("{%% for c in x %%}{{ c.%s }}{%% endfor %%}" % method for method in methods)
    template += "{{ [x] }}{{ {'a': x}|tojson }}{{ x|tojson(ensure_ascii=true) }}"
    _, most = compare(eta_eval, f"every character of Unicode {unicodedata.unidata_version}",
                      [line(template, text) for text in every_character()])
    return 1 if different or more or most else 0


if __name__ == "__main__":
    sys.exit(main())
