#!/usr/bin/env python3
"""Tokenizers of GGUF files against llama.cpp's, id by id.

  run.sh BUILD_DIR gguf_tokenizer

The tokenizer.json that eta-eval import makes, under every name of a pre-tokenizer that it knows, is
read by PyPI's package tokenizers. Vocabulary and merges are SmolLM2's. The tokenizer.model that it
makes is read by this engine. Its pieces are eta-27m's: as a LLaMA has its own, and in Gemma's form,
where no space comes in front and the user defined pieces for runs of spaces and of newlines. Gemma's
own vocabulary is compared nowhere.

The rest of each model is small and empty. The texts are of this repository and of Python's library,
and random ones of many scripts, with a fixed seed. They have no combining marks, which llama.cpp
does not compose, as Qwen's tokenizers do, and no rare spaces, which it takes for another character.
"""
import json
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile

import numpy
from gguf import GGUFReader, GGUFWriter
from tokenizers import Tokenizer

import smollm2
from llama_server import LlamaServer
from tokenizer_vocabularies import fields_of

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


def pieces_of(path, gemma):
    """Texts, scores and types of a SentencePiece model's pieces."""
    user_defined = 4
    runs = ["\n" * n for n in range(1, 32)] + [" " * n for n in range(2, 32)]
    pieces = {}
    for number, value in fields_of(path.read_bytes()):
        if number == 1:
            piece = dict(fields_of(value))
            score = struct.unpack("<f", piece[2])[0] if 2 in piece else 0.0
            # llama.cpp puts a space in front of what follows a piece that the user defined, too.
            kind = piece.get(3, 1)
            pieces[piece[1].decode()] = score, 1 if kind == user_defined else kind
    if gemma:
        pieces = {spaced if (spaced := text.replace("\u2581", " ")) in runs else text: of
                  for text, of in pieces.items()}
        pieces |= {run: (0.0, user_defined) for run in runs}
    return list(pieces), *zip(*pieces.values())


def write_model(path, add_tokenizer):
    file = GGUFWriter(path, "llama")
    file.add_block_count(1)
    file.add_context_length(512)
    file.add_embedding_length(DIM)
    file.add_feed_forward_length(DIM)
    file.add_head_count(2)
    file.add_layer_norm_rms_eps(1e-5)
    tokens = add_tokenizer(file)
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


def byte_level(source, pre):
    """Adds SmolLM2's tokens to a file under the name of a pre-tokenizer."""
    def add(file):
        file.add_tokenizer_model("gpt2")
        file.add_tokenizer_pre(pre)
        tokens = source["tokenizer.ggml.tokens"].contents()
        file.add_token_list(tokens)
        file.add_token_types(source["tokenizer.ggml.token_type"].contents())
        file.add_token_merges(source["tokenizer.ggml.merges"].contents())
        return tokens
    return add


def of_pieces(gemma):
    def add(file):
        tokens, scores, types = pieces_of(ROOT / "models/eta-27m/tokenizer.model", gemma)
        file.add_tokenizer_model("llama")
        file.add_token_list(tokens)
        file.add_token_scores(scores)
        file.add_token_types(types)
        file.add_add_space_prefix(not gemma)
        return tokens
    return add


def ids_by_tokenizers(build, folder):
    ours = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    return [ours.encode(text, add_special_tokens=False).ids for text in texts()], ours.id_to_token


def ids_by_engine(build, folder):
    documents = os.path.join(folder, "documents.jsonl")
    with open(documents, "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts())
    told = subprocess.run(
        [os.path.join(build, "bin", "eta-eval"), "tokenize", "--text=" + documents,
         "--tokenizer=" + os.path.join(folder, "tokenizer.model")],
        check=True, stdout=subprocess.PIPE, text=True)
    return [json.loads(line) for line in told.stdout.splitlines()], str


def compare(build, path, out, encode):
    """The number of ids that are equal; exits at the first text that differs."""
    subprocess.run([os.path.join(build, "bin", "eta-eval"), "import", path, out], check=True,
                   stdout=subprocess.DEVNULL)
    ours, name_of = encode(build, out)
    llama = LlamaServer(path, context=256, threads=1)
    count = 0
    for text, ids in zip(texts(), ours, strict=True):
        theirs = llama.tokens(text)
        if ids != theirs:
            at = next((i for i, pair in enumerate(zip(ids, theirs)) if pair[0] != pair[1]), 0)
            sys.exit(f"gguf_tokenizer: {path}: {text!r} differs at token {at}: "
                     f"{[name_of(i) for i in ids[at:at + 5]]}, llama.cpp "
                     f"{[name_of(i) for i in theirs[at:at + 5]]}")
        count += len(ids)
    return count


def main():
    build = sys.argv[1]
    source = GGUFReader(smollm2.packaged()).fields
    models = [(pre, byte_level(source, pre), ids_by_tokenizers) for pre in names()]
    models += [("pieces", of_pieces(gemma=False), ids_by_engine),
               ("pieces in Gemma's form", of_pieces(gemma=True), ids_by_engine)]
    for name, add_tokenizer, encode in models:
        with tempfile.TemporaryDirectory() as work:
            path = os.path.join(work, "model.gguf")
            write_model(path, add_tokenizer)
            count = compare(build, path, os.path.join(work, "out"), encode)
            print(f"{name}: {count} ids equal", flush=True)


if __name__ == "__main__":
    main()
