"""Next-token distributions of this engine, held against those of another program: float32 weights,
keys and values, full attention. The bound is on the Kullback-Leibler divergence of each prompt.
"""
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

import numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "models/eta-27m/samples"
TEXTS = [min((SAMPLES / folder).glob("*.txt")) for folder in ("books", "legal", "wiki", "code")] + [
    ROOT / "engine/front/engine.h", ROOT / "proto/README.md", ROOT / "LICENSE", ROOT / "kernels/eta-semantics.md"]
PROMPTS = [8, 16, 32, 64, 96, 128, 256, 512]  # tokens; each text has one of them
# Prompts of a text, each a token longer than the one before. Some programs take seconds to tell a
# distribution.
ROWS = 8 if os.environ.get("ETA_TEST_LONG") else 2
MOST_DIVERGENCE = 1e-5


def write_case(path, tokens, prompt_tokens):
    data = numpy.array(tokens, dtype="<i4").tobytes()
    header = json.dumps({
        "__metadata__": {"prompt_tokens": str(prompt_tokens), "mode": "full", "block_size": "64",
                         "sub_block": "64", "z": "2", "offset": "0", "beta": "1",
                         "pinned_blocks": "2", "rescue_chunk": "128", "floor": "none"},
        "tokens": {"dtype": "I32", "shape": [len(tokens)], "data_offsets": [0, len(data)]}}).encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


def read_logits(path):
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    tensor = json.loads(data[8:8 + size])["logits"]
    begin, end = (8 + size + offset for offset in tensor["data_offsets"])
    return numpy.frombuffer(data[begin:end], dtype="<f4").reshape(tensor["shape"])


def normalised(logits):
    """Log-probabilities: along the last axis their exponentials add up to 1."""
    logits = logits - logits.max(axis=-1, keepdims=True)
    return logits - numpy.log(numpy.exp(logits).sum(axis=-1, keepdims=True))


def ours(build, model, tokens, prompt_tokens, folder):
    """Log-probabilities [ROWS, V]."""
    case, result = folder / "case.safetensors", folder / "result.safetensors"
    write_case(case, tokens, prompt_tokens)
    subprocess.run([build / "bin/eta-eval", "score", f"--model={model}", "--backend=cpu",
                    "--threads=2", "--kv_dtype=float32", f"--case={case}", f"--out={result}"],
                   check=True)
    return normalised(read_logits(result).astype(numpy.float64))


def compare(name, build, model, tokens_of, theirs):
    """tokens_of(text): ids. theirs(tokens, prompt_tokens): log-probabilities [ROWS, V] of what
    follows the first prompt_tokens, and one more for each row."""
    divergences, agreed = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for text, prompt_tokens in zip(TEXTS, PROMPTS, strict=True):
            # A row is what follows one more token; the last token is predicted, not fed.
            tokens = tokens_of(text.read_text()[:20000])[:prompt_tokens + ROWS]
            assert len(tokens) == prompt_tokens + ROWS, f"{text}: too short"
            rows = ours(build, model, tokens, prompt_tokens, pathlib.Path(folder))
            wanted = theirs(tokens, prompt_tokens)
            assert len(rows) == len(wanted) == ROWS
            for q, p in zip(rows, wanted):
                divergences.append(float((numpy.exp(p) * (p - q)).sum()))
                agreed += int(p.argmax() == q.argmax())
            print(f"{text.relative_to(ROOT)}, {prompt_tokens} tokens: "
                  f"KL at most {max(divergences[-ROWS:]):.2e}", flush=True)
    print(f"{len(divergences)} prompts against {name}: KL at most {max(divergences):.2e}, "
          f"mean {sum(divergences) / len(divergences):.2e}; the most probable token is the same "
          f"for {agreed}")
    if len(divergences) != len(TEXTS) * ROWS or max(divergences) > MOST_DIVERGENCE:
        sys.exit(f"more than {MOST_DIVERGENCE} away from {name}")
