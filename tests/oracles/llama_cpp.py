"""Next-token distributions of SmolLM2-135M against llama.cpp's, both in float32.

llama.cpp rounds activations beside quantized weights, and this engine does not. So both get the
weights of the package's GGUF as float32, float32 keys and values, and full attention. The bound is
on the Kullback-Leibler divergence of each of 64 prompts.

usage: tests/oracles/run.sh BUILD_FOLDER llama_cpp [--environment]
  --environment: makes the Python environment, in which tests/bench/llama_cpp.py runs too
"""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

import numpy

from llama_server import LlamaServer
from smollm2 import written_as

ROOT = pathlib.Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "models/eta-27m/samples"
TEXTS = [min((SAMPLES / folder).glob("*.txt")) for folder in ("books", "legal", "wiki", "code")] + [
    ROOT / "engine/engine.h", ROOT / "proto/README.md", ROOT / "LICENSE", pathlib.Path(__file__)]
PROMPTS = [8, 16, 32, 64, 96, 128, 256, 512]  # tokens; each text has one of them
ROWS = 8  # prompts of a text, each a token longer than the one before
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


def theirs(llama, tokens, vocabulary):
    """Log-probabilities [V] of what follows the tokens."""
    ((_, alternatives),) = llama.answer(tokens, 1, alternatives=vocabulary)
    assert len(alternatives) == vocabulary, f"{len(alternatives)} of {vocabulary} probabilities"
    # llama.cpp adds its probabilities up in float32, one by one: the sum is off by more than they.
    return normalised(numpy.array([alternatives[i] for i in range(vocabulary)]))


def main():
    build = pathlib.Path(sys.argv[1])
    if "--environment" in sys.argv:
        return
    model = written_as("F32", build / "tests/oracles")
    llama = LlamaServer(model, context=1024, exact=True)
    divergences, agreed = [], 0
    with tempfile.TemporaryDirectory() as name:
        for text, prompt_tokens in zip(TEXTS, PROMPTS, strict=True):
            # A row is what follows one more token; the last token is predicted, not fed.
            tokens = llama.tokens(text.read_text()[:20000])[:prompt_tokens + ROWS]
            assert len(tokens) == prompt_tokens + ROWS, f"{text}: too short"
            rows = ours(build, model, tokens, prompt_tokens, pathlib.Path(name))
            assert len(rows) == ROWS
            for row, q in enumerate(rows):
                p = theirs(llama, tokens[:prompt_tokens + row], len(q))
                divergences.append(float((numpy.exp(p) * (p - q)).sum()))
                agreed += int(p.argmax() == q.argmax())
            print(f"{text.relative_to(ROOT)}, {prompt_tokens} tokens: "
                  f"KL at most {max(divergences[-ROWS:]):.2e}", flush=True)
    print(f"{len(divergences)} prompts against llama.cpp: KL at most {max(divergences):.2e}, "
          f"mean {sum(divergences) / len(divergences):.2e}; the most probable token is the same "
          f"for {agreed}")
    if len(divergences) != 64 or max(divergences) > MOST_DIVERGENCE:
        sys.exit(f"more than {MOST_DIVERGENCE} away from llama.cpp")


if __name__ == "__main__":
    main()
