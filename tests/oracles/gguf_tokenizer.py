#!/usr/bin/env python3
"""The tokenizer.json that eta-eval import makes of a GGUF file, under every name of a pre-tokenizer
that it knows: as PyPI's package tokenizers reads it, it gives the ids that llama.cpp gives.

  run.sh BUILD_DIR gguf_tokenizer

Vocabulary and merges are SmolLM2's; the rest of each model is small and empty. The texts are of this
repository and of Python's library, and random ones of many scripts, with a fixed seed. They have no
combining marks, which llama.cpp does not compose, as Qwen's tokenizers do, and no rare spaces, which
it takes for another character.
"""
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

import numpy
from gguf import GGUFReader, GGUFWriter
from tokenizers import Tokenizer

import smollm2
from llama_server import LlamaServer

ROOT = pathlib.Path(__file__).resolve().parents[2]
DIM = 32
PIECE = 500  # characters of a text that are tokenized together
SCRIPTS = ("Ünïcödé Straße ÉCOLE Привет, мир! Это ТЕСТ. 你好，世界。これはテストです。カタカナ 한국어 "
           "문장 1234567890 ٣٤٥ ½ ²³ a_b__c $x+y<=z^2~|` 'S 'T I'LL don't DON'T  \t tabs\t\n\n\n  "
           "lines\r\n\r\nfoo   \n bar...!!! ?! (x) [y] {z} «q» “w” ‘e’ … — – \u00a0nbsp \u3000wide ")
ALPHABET = ("aB zZ09'.,!\n\r\t  éÉжЖ你の한ʼ’٣²$+<=>^~|`_-/\\\"()[]{}sStTdDmMlLrRvVeE"
            "\u00a0\u05d0\u0627\U0001F600")


def texts():
    files = [ROOT / "README.md", ROOT / "engine/model/model.cc", pathlib.Path(json.__file__)]
    found = [path.read_text(encoding="utf-8")[:10_000] for path in files] + [SCRIPTS]
    draw = random.Random(31)
    found += ["".join(draw.choice(ALPHABET) for _ in range(2000)) for _ in range(4)]
    return [text[i:i + PIECE] for text in found for i in range(0, len(text), PIECE)]


def names():
    source = (ROOT / "engine/checkpoint/gguf/gguf_pre_tokenizers.cc").read_text(encoding="utf-8")
    table = source[source.index("kPreTokenizers[]"):]
    found = re.findall(r'^ *\{"([^"]+)",', table, re.MULTILINE)
    assert len(found) > 30, f"{len(found)} names"
    return found


def write_model(path, source, pre):
    file = GGUFWriter(path, "llama")
    file.add_block_count(1)
    file.add_context_length(512)
    file.add_embedding_length(DIM)
    file.add_feed_forward_length(DIM)
    file.add_head_count(2)
    file.add_layer_norm_rms_eps(1e-5)
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre(pre)
    tokens = source["tokenizer.ggml.tokens"].contents()
    file.add_token_list(tokens)
    file.add_token_types(source["tokenizer.ggml.token_type"].contents())
    file.add_token_merges(source["tokenizer.ggml.merges"].contents())
    file.add_bos_token_id(1)
    file.add_eos_token_id(2)
    file.add_add_bos_token(False)
    names_of_tensors = ["blk.0." + part for part in ("attn_q", "attn_k", "attn_v", "attn_output",
                                                     "ffn_gate", "ffn_up", "ffn_down")]
    file.add_tensor("token_embd.weight", numpy.zeros((len(tokens), DIM), dtype=numpy.float16))
    for name in names_of_tensors:
        file.add_tensor(name + ".weight", numpy.zeros((DIM, DIM), dtype=numpy.float16))
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        file.add_tensor(name + ".weight", numpy.ones(DIM, dtype=numpy.float32))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def compare(build, path, out):
    """The number of ids that are equal; exits at the first text that differs."""
    subprocess.run([os.path.join(build, "bin", "eta-eval"), "import", path, out], check=True,
                   stdout=subprocess.DEVNULL)
    ours = Tokenizer.from_file(os.path.join(out, "tokenizer.json"))
    llama = LlamaServer(path, context=256, threads=1)
    count = 0
    for text in texts():
        ids = ours.encode(text, add_special_tokens=False).ids
        theirs = llama.tokens(text)
        if ids != theirs:
            at = next((i for i, pair in enumerate(zip(ids, theirs)) if pair[0] != pair[1]), 0)
            sys.exit(f"gguf_tokenizer: {path}: {text!r} differs at token {at}: "
                     f"{[ours.id_to_token(i) for i in ids[at:at + 5]]}, llama.cpp "
                     f"{[ours.id_to_token(i) for i in theirs[at:at + 5]]}")
        count += len(ids)
    return count


def main():
    build = sys.argv[1]
    source = GGUFReader(smollm2.packaged()).fields
    for pre in names():
        with tempfile.TemporaryDirectory() as work:
            path = os.path.join(work, pre + ".gguf")
            write_model(path, source, pre)
            print(f"{pre}: {compare(build, path, os.path.join(work, 'out'))} ids equal", flush=True)


if __name__ == "__main__":
    main()
