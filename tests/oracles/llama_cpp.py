"""Next-token distributions against llama.cpp's, both in float32: of SmolLM2-135M, and of small
random models of families that llama.cpp has in code of its own.

Beside quantized weights each of them rounds activations in its own way. So both get the weights of
the package's GGUF as float32. A family is a folder of tests/golden/families to this engine, and to
llama.cpp the file that `eta-eval export-gguf` makes of it; gpt-oss is one file to both, which
gpt_oss_gguf.py makes.

usage: tests/oracles/run.sh BUILD_FOLDER llama_cpp [--environment]
  --environment: makes the Python environment, in which tests/bench/llama_cpp.py runs too
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy

import gpt_oss_gguf
from distributions import PROMPTS, ROOT, ROWS, compare, normalised
from llama_server import LlamaServer
from smollm2 import written_as

CONTEXT = 1024
FAMILIES = ("smollm3", "gemma3", "qwen3-moe")


def compare_with_llama(name, build, model, file, vocabulary):
    """`model` is what this engine reads, `file` what llama.cpp does."""
    llama = LlamaServer(file, context=CONTEXT, exact=True)
    # Half a character would be answered without probabilities. They are those from before the bias.
    drawn = [[llama.tokens("a")[0], 1000.0]]

    def distribution(tokens):
        ((_, alternatives),) = llama.answer(tokens, 1, alternatives=vocabulary, logit_bias=drawn)
        assert len(alternatives) == vocabulary, f"{len(alternatives)} probabilities"
        # llama.cpp adds its probabilities up in float32, one by one: the sum is off by more than
        # they are.
        return normalised(numpy.array([alternatives[i] for i in range(vocabulary)]))

    compare(name, build, model, llama.tokens, lambda tokens, prompt_tokens: [
        distribution(tokens[:prompt_tokens + row]) for row in range(ROWS)])
    llama.close()


def compare_family(name, build):
    with tempfile.TemporaryDirectory() as work:
        folder = pathlib.Path(work) / name
        shutil.copytree(ROOT / "tests/golden/families" / name, folder)
        # So long that no prompt is beyond it.
        config = json.loads((folder / "config.json").read_text())
        config["max_position_embeddings"] = CONTEXT
        config.pop("dtype")  # llama.cpp rounds no scale of embeddings to it
        assert max(PROMPTS) + ROWS < CONTEXT
        (folder / "config.json").write_text(json.dumps(config))
        file = pathlib.Path(work) / f"{name}.gguf"
        subprocess.run([build / "bin/eta-eval", "export-gguf", folder, file, "--dtype=float32"],
                       check=True)
        compare_with_llama(f"llama.cpp, {name}", build, folder, file, config["vocab_size"])


def compare_gpt_oss(build):
    with tempfile.TemporaryDirectory() as work:
        file = pathlib.Path(work) / "gpt-oss.gguf"
        vocabulary = gpt_oss_gguf.write(ROOT / "tests/golden/families/gpt-oss", file, CONTEXT)
        compare_with_llama("llama.cpp, gpt-oss", build, file, file, vocabulary)


def main():
    build = pathlib.Path(sys.argv[1])
    if "--environment" in sys.argv:
        return
    for family in FAMILIES:
        compare_family(family, build)
    compare_gpt_oss(build)
    model = written_as("F32", build / "tests/oracles")
    compare_with_llama("llama.cpp", build, model, model, 49152)


if __name__ == "__main__":
    main()
