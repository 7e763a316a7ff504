"""The two sides of llama_cpp.py: this server and llama.cpp's, which answer the same prompts."""
import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import time


class Ours:
    """The built server, and etactl as its client."""

    def __init__(self, flags, model, threads, context, streams):
        self.folder_of_build = flags.folder
        self.attention = flags.attention
        self.folder = tempfile.TemporaryDirectory()
        log = pathlib.Path(self.folder.name) / "server.log"
        with open(log, "w", encoding="utf-8") as errors:
            self.process = subprocess.Popen(
                ["taskset", "-c", flags.cpus, flags.folder / "bin/eta-server", "--model", model,
                 "--weights", flags.weights, "--speculation", flags.speculation,
                 "--threads", str(threads), "--listen", "127.0.0.1:0",
                 "--max_running", str(streams), "--kv_pool_bytes", "2GiB",
                 "--max_context", str(context), "--default_deadline", "3600s"],
                stdout=subprocess.PIPE, stderr=errors, text=True)
        for line in self.process.stdout:
            if line.startswith("listening on "):
                self.address = line.split()[-1]
                return
        sys.exit("llama_cpp: eta-server does not start with this model:\n"
                 + "\n".join(log.read_text(errors="replace").splitlines()[-5:]))

    def answer(self, tokens, count):
        """Ids of the greedy answer; seconds to its first token and to its end."""
        file = pathlib.Path(self.folder.name) / f"{threading.get_ident()}.ids"
        file.write_text(" ".join(map(str, tokens)))
        run = subprocess.run(
            [self.folder_of_build / "bin/etactl", "generate", "--server", self.address,
             "--token_ids", file, "--temperature", "0", "--attention", self.attention,
             "--ignore_eos", "--quiet", "--json", "--output_ids", "--max_tokens", str(count),
             "--deadline", "3600"],
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
    """A server of llama.cpp: llama_server.py has those."""

    def __init__(self, name, server):
        self.name = name
        self.server = server

    def answer(self, tokens, count):
        return [i for i, _ in self.server.answer(tokens, count)]

    def measure(self, prompts, count):
        """As Ours.measure does. The sampler that only takes the first token costs them least."""
        slots = list(enumerate(prompts))
        greedy = {"samplers": ["top_k"], "top_k": 1}
        begin = time.monotonic()
        together(lambda slot: self.server.complete(slot[1], 1, id_slot=slot[0], **greedy), slots)
        prefill = time.monotonic() - begin
        answers = together(lambda slot: self.server.complete(
            slot[1], count, id_slot=slot[0], cache_prompt=True, **greedy), slots)
        for (_, prompt), answer in zip(slots, answers):
            if answer["timings"]["cache_n"] < len(prompt) - 1:
                sys.exit(f"llama_cpp: llama.cpp computed a prompt again: {answer['timings']}")
        return prefill, max(answer["timings"]["predicted_ms"] for answer in answers) / 1000

    def close(self):
        self.server.close()


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
