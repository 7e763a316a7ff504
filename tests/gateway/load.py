"""What a gateway costs: the same chats, at a number of streams, through it and without it. By hand:

  tests/oracles/run.sh build ../gateway/gateway load [--streams 1,8,64] [--requests 4] [--answer 64] [--words 150] ...

Two servers on this host answer; `--requests` are for each stream. With the gateway aiperf sends them (PyPI, at a pinned
version, into the cache of this user: over 1 GB), to OpenAI's API. Without it eta-bench serve does, half of them to each
server, to eta.v1. No chat is sent twice before caches are dropped. Prints a table for tests/RESULTS.md.

Clients, gateway and servers share the host's cores, and aiperf takes more of them than eta-bench. So times are also
measured inside the servers: what is between those and the clients' is the gateway's and the client's share. What the
gateway costs wherever it runs is its CPU time for an answer, over what it takes while others call past it."""

import argparse
import hashlib
import io
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import time
import urllib.request
import zipfile

import grpc
from eta_api import ROOT, data, pool_of
from fleet import Gateway, free_port
from google.protobuf import message_factory

AIPERF = "aiperf==0.13.0"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "eta-tests"
TEXT = ROOT / "deploy/samples/needle.txt"
WARM_UP = 2  # chats for each server, before a clock starts


def check(server, folder, arguments):
    options = parse(arguments)
    aiperf = installed()
    folder = pathlib.Path(folder)
    metrics = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    servers = [server(name, f"--metrics_listen={address}", f"--threads={options.threads}", "--max_running=64",
                      f"--kv_pool_bytes={options.kv_pool}", "--log_level=warning", "--log_format=json")
               for name, address in zip(("one", "two"), metrics, strict=True)]  # fmt: skip
    for one in servers:
        one.ready()
    tokenizer = tokenizer_of(servers[0], folder / "tokenizer")
    rows = []
    with Gateway(folder, servers, policy=options.policy) as gateway:
        for streams in options.streams:
            chats, asked = chats_of(options, streams), set()
            for way in ("eta.v1", "gateway"):
                assert gateway.call("/flush_cache", {}).status == 200
                warm(servers, gateway)
                before = figures(metrics, servers, gateway)
                if way == "eta.v1":
                    row = direct(options, streams, chats, servers, folder)
                else:
                    row = through(options, streams, chats, gateway, aiperf, tokenizer, folder)
                used = {name: value - before[name] for name, value in figures(metrics, servers, gateway).items()}
                assert used["requests"] == len(chats), f"{used['requests']} of {len(chats)} requests reached the servers"
                asked.add((used["prompts"], used["cached"]))
                rows.append(row | {
                    "streams": streams, "way": way, "first_inside": 1e3 * used["first_tokens"] / used["requests"],
                    "between_inside": 1e3 * used["between"] / used["gaps"],
                    "servers_cpu": 1e3 * used["servers_cpu"] / len(chats),
                    "gateway_cpu": used["gateway_cpu"], "clock": used["clock"], "answers": len(chats)})  # fmt: skip
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
            assert len(asked) == 1, f"prompts, and of these what was cached, differ: {asked}"
    show(rows, options)


def streams(text):
    """The type of --streams. Without a gateway half of them go to each server, and one goes to one."""
    found = [int(part) if part.isdecimal() else 0 for part in text.split(",")]
    if not all(count == 1 or (count > 0 and count % 2 == 0) for count in found):
        raise argparse.ArgumentTypeError(f"{text}: neither 1 nor even numbers above 0, with commas")
    return found


def within(least, most):
    """The type of a whole number."""

    def parse_number(text):
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text}: not a whole number from {least} to {most}")
        return int(text)

    return parse_number


def parse(arguments):
    parser = argparse.ArgumentParser(prog="load", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=streams, default=[1, 8, 64], help="1, or even numbers")
    parser.add_argument("--requests", type=within(1, 1000), default=4, help="for each stream, at least 16 in all")
    parser.add_argument("--answer", type=within(2, 1024), default=64, help="tokens of an answer")
    parser.add_argument("--words", type=within(1, len(TEXT.read_text().split()) - 1), default=150, help="of a question")
    parser.add_argument("--threads", type=within(1, 1024), default=1, help="of each server")
    parser.add_argument("--kv_pool", default="1GB", help="of each server")
    parser.add_argument("--policy", default="round_robin", help="of the gateway; cache_aware is what it has by itself")
    parser.add_argument("--bench", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def installed():
    """The program aiperf, in an environment that outlives this run."""
    environment = CACHE / AIPERF.replace("==", "-")
    program = environment / "bin/aiperf"
    if not program.exists():
        print(f"installing {AIPERF} into {environment}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        subprocess.run([environment / "bin/pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:",
                        AIPERF], check=True)  # fmt: skip
    return program


def tokenizer_of(server, folder):
    """The model's tokenizer as its server gives it to gateways; aiperf reaches no hub."""
    pool = pool_of("vllm/grpc/engine/vllm_engine.proto")
    chunk = message_factory.GetMessageClass(pool.FindMessageTypeByName("smg.grpc.common.GetTokenizerChunk"))
    with grpc.insecure_channel(server.vllm) as channel:
        call = channel.unary_stream("/vllm.grpc.engine.VllmEngine/GetTokenizer", response_deserializer=chunk.FromString)
        chunks = list(call(b"", timeout=60))
    archive = b"".join(part.data for part in chunks)
    assert chunks[-1].sha256 == hashlib.sha256(archive).hexdigest()
    zipfile.ZipFile(io.BytesIO(archive)).extractall(folder)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return folder


def chats_of(options, streams):
    """Questions about pieces of a text, no two with one beginning."""
    words = TEXT.read_text().split()
    count = max(16, options.requests * streams)
    step = max(1, (len(words) - options.words) // count)
    return [f"{number}. Go on: " + " ".join(words[number * step % (len(words) - options.words) :][: options.words])
            for number in range(count)]  # fmt: skip


def warm(servers, gateway):
    for number in range(WARM_UP):
        for server in servers:
            server.api.generate(text=data(f"Warm-up {number}"), stopping={"maxTokens": 4})
        gateway.chat(f"Warm-up {number} of the gateway", max_tokens=4)


def cpu_seconds(process):
    """Of a process, with all its threads."""
    fields = pathlib.Path(f"/proc/{process.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def figures(metrics, servers, gateway):
    """What has been counted so far: seconds, and of what."""
    pages = ""
    for address in metrics:
        with urllib.request.urlopen(f"http://{address}/metrics") as answer:
            pages += answer.read().decode()

    def total(series):
        return sum(float(value) for value in re.findall(rf"^{series}(?:{{[^}}]*}})? (\S+)$", pages, re.MULTILINE))

    return {"first_tokens": total("eta_time_to_first_token_seconds_sum"),
            "requests": total("eta_time_to_first_token_seconds_count"),
            "between": total("eta_inter_token_latency_seconds_sum"),
            "gaps": total("eta_inter_token_latency_seconds_count"),
            "prompts": total("eta_prompt_tokens_total"), "cached": total("eta_prompt_tokens_cached_total"),
            "servers_cpu": sum(map(cpu_seconds, servers)), "gateway_cpu": cpu_seconds(gateway),
            "clock": time.monotonic()}  # fmt: skip


def direct(options, streams, chats, servers, folder):
    """eta-bench serve at each server, at the same time; one stream has one of them."""
    running = []
    for index, server in enumerate(servers[: min(streams, len(servers))]):
        share = chats[index :: min(streams, len(servers))]
        file = folder / f"chats-{index}.txt"
        file.write_text("".join(f"{chat}\n" for chat in share))
        running.append(subprocess.Popen(
            [options.bench, "serve", "--json", f"--address={server.own}", f"--chats={file}", "--warm_up=0",
             f"--streams={-(-streams // len(servers))}", f"--requests={len(share)}", f"--max_tokens={options.answer}"],
            stdout=subprocess.PIPE, text=True))  # fmt: skip
    reports = []
    for process in running:
        output, _ = process.communicate(timeout=3600)
        assert process.returncode == 0, output
        reports.append(json.loads(output))

    def mean(what, figure):
        """Over both servers, which have as many requests; a median of all is not known."""
        return sum(report[what][figure] for report in reports) / len(reports)

    return {"p50": mean("first_token_milliseconds", "p50"), "p90": mean("first_token_milliseconds", "p90"),
            "mean": mean("first_token_milliseconds", "mean"), "between": mean("between_tokens_milliseconds", "mean"),
            "tokens": len(chats) * options.answer / max(report["seconds"] for report in reports)}  # fmt: skip


def through(options, streams, chats, gateway, aiperf, tokenizer, folder):
    asked = folder / "chats.jsonl"
    asked.write_text("".join(json.dumps({"text": chat}) + "\n" for chat in chats))
    results = folder / f"aiperf-{streams}"
    ran = subprocess.run(
        [aiperf, "profile", "--model", gateway.model, "--url", f"http://127.0.0.1:{gateway.port}", "--endpoint-type", "chat",
         "--streaming", "--use-server-token-count", "--tokenizer", tokenizer, "--input-file", asked,
         "--custom-dataset-type", "single-turn", "--dataset-sampling-strategy", "sequential",
         "--concurrency", str(streams), "--request-count", str(len(chats)), "--extra-inputs",
         json.dumps({"max_tokens": options.answer, "ignore_eos": True, "temperature": 0}), "--artifact-dir", results,
         "--export-level", "summary", "--ui", "none", "--no-gpu-telemetry", "--no-server-metrics"],
        capture_output=True, text=True, check=False)  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
    report = json.loads((results / "profile_export_aiperf.json").read_text())
    lengths = report["usage_completion_tokens"]
    assert (report["request_error_rate"]["avg"], lengths["min"], lengths["max"]) == (0, options.answer, options.answer), report
    first = report["time_to_first_token"]
    return {"p50": first["p50"], "p90": first["p90"], "mean": first["avg"], "between": report["inter_token_latency"]["avg"],
            "tokens": report["total_usage_completion_tokens"]["avg"] / report["benchmark_duration"]["avg"]}  # fmt: skip


def cpu():
    found = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.machine()


def show(rows, options):
    print(f"{cpu()}, {os.cpu_count()} CPUs; questions of {options.words} words, answers of {options.answer} tokens; gateway: "
          f"{options.policy}")  # fmt: skip
    print("| streams | way | first token p50 | p90 | mean | in the server | between tokens, mean | in the server | tokens/s | "
          "CPU of an answer: servers | gateway |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    times = ("p50", "p90", "mean", "first_inside", "between", "between_inside")
    for row in rows:
        print(f"| {row['streams']} | {row['way']} | " + " | ".join(f"{row[name]:.1f} ms" for name in times)
              + " | {tokens:.1f} | {servers_cpu:.0f} ms | |".format(**row))  # fmt: skip
        if row["way"] == "gateway":
            own = rows[rows.index(row) - 1]
            gateway_cpu = row["gateway_cpu"] - row["clock"] * own["gateway_cpu"] / own["clock"]
            print(f"| {row['streams']} | difference | " + " | ".join(f"{row[name] - own[name]:+.1f} ms" for name in times)
                  + f" | {100 * (row['tokens'] / own['tokens'] - 1):+.1f} % | "
                  + f"{row['servers_cpu'] - own['servers_cpu']:+.0f} ms | {1e3 * gateway_cpu / row['answers']:+.1f} ms |")  # fmt: skip
