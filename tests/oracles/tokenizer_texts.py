"""Texts to compare tokenizers on: prose, code, many scripts, and what nobody would write."""

import pathlib
import random
import sysconfig
import unicodedata

SCRIPTS = [
    (0x41, 0x5B), (0x61, 0x7B), (0xC0, 0x250), (0x370, 0x400), (0x400, 0x530), (0x531, 0x590),
    (0x5D0, 0x5F3), (0x620, 0x700), (0x904, 0x980), (0x985, 0xA00), (0xB85, 0xC00), (0xE01, 0xE60),
    (0x10A0, 0x1100), (0x1100, 0x1200), (0x1200, 0x1380), (0x1780, 0x1800), (0x1E00, 0x2000),
    (0x2000, 0x2070), (0x20A0, 0x20D0), (0x2100, 0x2400), (0x2460, 0x2600), (0x2600, 0x2800),
    (0x3000, 0x3100), (0x3130, 0x3190), (0x4E00, 0x9FA6), (0xAC00, 0xD7A4), (0xF900, 0xFB00),
    (0xFB00, 0xFB50), (0xFE00, 0xFE70), (0xFF00, 0xFFF0), (0x10330, 0x10350), (0x1D400, 0x1D800),
    (0x1F130, 0x1F190), (0x1F300, 0x1F700), (0x1F900, 0x1FA00), (0x20000, 0x20400),
]  # fmt: skip
MARKS = [*range(0x300, 0x370), 0x3099, 0x309A, 0x64B, 0x651, 0x93C, 0xE31, 0x1161, 0x11A8, 0x20DD]
BLANKS = " \t\n\r\f\v\x85\xa0\u1680\u180e\u2003\u2028\u2029\u202f\u205f\u3000\u200b\u200d\ufeff"
BITS = [
    "'s", "'S", "'\u017f", "'re", "'VE", "'ll", "'lL", "'d", "\u2019s", " ", "  ", "   ", "\n", "\n\n",
    "\r\n", " \n", "\n ", "\t", "1", "12", "1234567", "\u0661\u0662", "\u00bd", "\u2160", "a", "A", "aB",
    "Ab", "ABC", "dot.", ".", "...", "//", "/\n", "()", "{}", "_", "-", "\u2014", "$", "+=", "<s>",
    "</s>", "<|im_start|>", "<|begin_of_text|>", "<0x41>", "\u2581", "\u2581\u2581", "\x00", "\x1b",
]  # fmt: skip

# Texts that begin so already get no second one, unlike the oracle's.
BEGINNINGS = ("<|begin_of_text|>", "<s>")


def known(code):
    """Whether all versions of Unicode in use agree: the oracle's normal forms know an old one."""
    character = chr(code)
    old = unicodedata.ucd_3_2_0
    return unicodedata.category(character) not in ("Cn", "Cs") and (
        unicodedata.combining(character) == old.combining(character)
    )


def of_scripts(random_source, words):
    text = []
    for _ in range(words):
        low, high = random_source.choice(SCRIPTS)
        codes = [random_source.randrange(low, high) for _ in range(random_source.randint(1, 9))]
        text.append("".join(chr(code) for code in codes if known(code)))
        if random_source.random() < 0.2:
            text.append(chr(random_source.choice(MARKS)))
        text.append(random_source.choice(BLANKS) if random_source.random() < 0.1 else " ")
    return "".join(text)


def of_bits(random_source, count):
    return "".join(random_source.choice(BITS) for _ in range(count))


def of_anything(random_source, count):
    codes = (random_source.randrange(0x30000) for _ in range(count))
    return "".join(chr(code) for code in codes if known(code))


def runs(random_source):
    """One character or a pair of them, many times."""
    unit = random_source.choice(["a", " ", "\n", "=", "1", "\u00e9", "\u4e00", "\u0301", "ab", " \n", "A"])
    return unit * random_source.randint(100, 3000) + random_source.choice(["", "x", " ", "\n"])


def files(root):
    standard = pathlib.Path(sysconfig.get_paths()["stdlib"])
    for folder, patterns in (
        (root / "models/eta-27m/samples", ["**/*.txt"]),
        (root / "deploy/samples", ["**/*.txt", "**/*.jsonl"]),
        (root, ["*.md", "*/*.md", "engine/**/*.cc", "kernels/**/*.cu", "service/**/*.h"]),
        (standard, ["*.py", "json/*.py", "test/test_[a-u]*.py", "encodings/*.py"]),
    ):
        for pattern in patterns:
            for path in sorted(folder.glob(pattern)):
                yield path.read_text(encoding="utf-8", errors="ignore").replace("\r\n", "\n")


def generated(seed):
    random_source = random.Random(seed)
    makers = (
        lambda: of_scripts(random_source, 400),
        lambda: of_bits(random_source, 1500),
        lambda: of_anything(random_source, 1500),
        lambda: runs(random_source),
    )
    while True:
        yield random_source.choice(makers)()


def documents(root, size):
    """About `size` bytes: half of them written by people, half made up."""
    texts = ["", " ", "\n", "a", " a", "\u00e9"]
    written = 0
    pieces = []
    for text in files(root):
        pieces += [text[i : i + 20000] for i in range(0, len(text), 20000)]
    random.Random(7).shuffle(pieces)
    for text in pieces:
        if written > size / 2:
            break
        texts.append(text)
        written += len(text.encode())
    for text in generated(seed=11):
        if written > size:
            break
        if text.startswith(BEGINNINGS):
            continue
        texts.append(text)
        written += len(text.encode())
    return texts
