"""Next-token distributions of SmolLM2-135M against llama.cpp's, both in float32.

Beside quantized weights each of them rounds activations in its own way. So both get the weights of
the package's GGUF as float32.

usage: tests/oracles/run.sh BUILD_FOLDER llama_cpp [--environment]
  --environment: makes the Python environment, in which tests/bench/llama_cpp.py runs too
"""
import pathlib
import sys

import numpy

from distributions import ROWS, compare, normalised
from llama_server import LlamaServer
from smollm2 import written_as

VOCABULARY = 49152


def main():
    build = pathlib.Path(sys.argv[1])
    if "--environment" in sys.argv:
        return
    model = written_as("F32", build / "tests/oracles")
    llama = LlamaServer(model, context=1024, exact=True)

    def distribution(tokens):
        ((_, alternatives),) = llama.answer(tokens, 1, alternatives=VOCABULARY)
        assert len(alternatives) == VOCABULARY, f"{len(alternatives)} probabilities"
        # llama.cpp adds its probabilities up in float32, one by one: the sum is off by more than
        # they are.
        return normalised(numpy.array([alternatives[i] for i in range(VOCABULARY)]))

    compare("llama.cpp", build, model, llama.tokens, lambda tokens, prompt_tokens: [
        distribution(tokens[:prompt_tokens + row]) for row in range(ROWS)])


if __name__ == "__main__":
    main()
