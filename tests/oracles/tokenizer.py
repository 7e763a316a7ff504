#!/usr/bin/env python3
"""Compares eta-eval tokenize with Hugging Face's tokenizers on vocabularies of real models.

Not one id may differ, with special tokens read and with special tokens as text; and what the ids
read as, told one by one, must be the same text. Characters that a vocabulary has no tokens for are
left out of its texts: `tokenizers` drops them, and we refuse them.
  tokenizer.py BUILD_DIR
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import tokenizer_texts
import tokenizer_vocabularies
import tokenizers

ROOT = pathlib.Path(__file__).resolve().parents[2]
BYTES = 20_000_000 if os.environ.get("ETA_TEST_LONG") else 1_200_000
BATCH = 64


def ask(build, tokenizer, text, *flags):
    """What eta-eval prints, document by document."""
    command = [build / "bin/eta-eval", "tokenize", f"--tokenizer={tokenizer}", f"--text={text}"]
    with subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            yield json.loads(line)
    if process.returncode != 0:
        sys.exit("eta-eval tokenize has failed")


def ask_oracle(oracle, texts, special, read_back):
    """The same from the other program."""
    oracle.encode_special_tokens = not special
    for begin in range(0, len(texts), BATCH):
        for encoding in oracle.encode_batch(texts[begin : begin + BATCH]):
            yield oracle.decode(encoding.ids) if read_back else encoding.ids


def compare(name, texts, ours, theirs):
    """How many of the texts have another answer, and the sizes of the answers together."""
    wrong = size = 0
    for text, mine, other in zip(texts, ours, theirs, strict=True):
        size += len(other)
        if mine == other:
            continue
        wrong += 1
        if wrong <= 3:
            same = (i for i, pair in enumerate(zip(mine, other)) if pair[0] != pair[1])
            at = next(same, min(len(mine), len(other)))
            print(f"{name}: {text[:60]!r}...: {mine[at:at + 8]!r} at {at}, not {other[at:at + 8]!r}")
    return wrong, size


def spelled(vocabulary, texts):
    """The texts without what a vocabulary of bytes has no tokens for."""
    symbols = tokenizer_vocabularies.ALPHABET
    lacks = {byte for byte in symbols if symbols[byte] not in vocabulary["model"]["vocab"]}
    if not lacks or "ByteLevel" not in json.dumps(vocabulary["pre_tokenizer"]):
        return texts
    return ["".join(c for c in text if lacks.isdisjoint(c.encode())) for text in texts]


def compare_family(build, folder, name, texts):
    vocabulary = tokenizer_vocabularies.FAMILIES[name]()
    path, documents = folder / "tokenizer.json", folder / "documents.jsonl"
    path.write_text(json.dumps(vocabulary))
    texts = spelled(vocabulary, texts)
    documents.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    oracle = tokenizers.Tokenizer.from_file(str(path))
    wrong = ids = 0
    for special, read_back in ((True, False), (False, False), (False, True)):
        flags = ["--add_bos"] + ["--parse_special"] * special + ["--decode"] * read_back
        ours = ask(build, path, documents, *flags)
        theirs = ask_oracle(oracle, texts, special, read_back)
        differ, size = compare(f"{name} {flags}", texts, ours, theirs)
        wrong += differ
        ids += 0 if read_back else size
    print(f"{name}: {len(texts)} texts, {ids} ids, {wrong} answers differ", flush=True)
    return wrong


def main():
    build = pathlib.Path(sys.argv[1])
    texts = tokenizer_texts.documents(ROOT, BYTES)
    size = sum(len(text.encode()) for text in texts)
    print(f"tokenizers {tokenizers.__version__}, {size} bytes of text for each vocabulary")
    wrong = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for name in tokenizer_vocabularies.FAMILIES:
            wrong += compare_family(build, folder, name, texts)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
