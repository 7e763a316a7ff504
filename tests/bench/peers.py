#!/usr/bin/env python3
"""Dense peers of eta-bench attention: PyTorch's SDPA (flash, cuDNN), FlashInfer, FlashAttention-3.

Takes the cases from a report of `eta-bench attention --json`, so that both run on the same shapes in
the same shell command, and prints JSON with the same fields:

  eta-bench attention --backend=cuda --json > ours.json && tests/bench/peers.py --like ours.json

A peer that is not installed, or refuses a shape, is listed under "skipped" with the reason. Every
peer is compared with a float32 computation of one row before it is timed. Without --like, shapes
come from flags. Without a GPU it says so and exits with 2.
"""

import argparse
import json
import math
import sys

L2_FLUSH_BYTES = 256 << 20


def parse_flags():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--like", help="report of eta-bench attention whose cases are run")
    parser.add_argument("--batch", default="32")
    parser.add_argument("--context", default="131072")
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv_heads", type=int, default=4)
    parser.add_argument("--head_dim", type=int, default=64)
    parser.add_argument("--block", type=int, default=64)
    parser.add_argument("--kv_dtype", default="float16", choices=["float16", "bfloat16"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    return parser.parse_args()


def cases_of(flags, ours):
    """Shapes to run, each once, in the order of the report."""
    if ours is None:
        batches = [int(x) for x in flags.batch.split(",")]
        contexts = [int(x) for x in flags.context.split(",")]
        count = max(len(batches), len(contexts))
        batches = batches * count if len(batches) == 1 else batches
        contexts = contexts * count if len(contexts) == 1 else contexts
        if len(batches) != len(contexts):
            sys.exit("peers: --batch and --context: lists of different lengths")
        common = {k: getattr(flags, k) for k in ("heads", "kv_heads", "head_dim", "block", "kv_dtype")}
        return [{"batch": b, "context": c, **common} for b, c in zip(batches, contexts)]
    keys = ("batch", "context", "heads", "kv_heads", "head_dim", "block", "kv_dtype")
    cases = []
    for row in ours["rows"]:
        case = {key: row[key] for key in keys}
        if case not in cases:
            cases.append(case)
    return cases


class Data:
    """One case's tensors. q [B, HQ, d]; k and v [B, T, HKV, d], contiguous, as FlashAttention takes
    them; SDPA gets transposed views of the same memory."""

    def __init__(self, torch, case, seed):
        self.case = case
        dtype = getattr(torch, case["kv_dtype"])
        generator = torch.Generator(device="cuda").manual_seed(seed)

        def normal(*shape):
            tensor = torch.empty(shape, device="cuda", dtype=dtype)
            return tensor.normal_(generator=generator)

        self.q = normal(case["batch"], case["heads"], case["head_dim"])
        shape = (case["batch"], case["context"], case["kv_heads"], case["head_dim"])
        self.k = normal(*shape)
        self.v = normal(*shape)

    def expected(self, torch, row):
        group = self.case["heads"] // self.case["kv_heads"]
        k = self.k[row].float().repeat_interleave(group, dim=1)
        v = self.v[row].float().repeat_interleave(group, dim=1)
        scores = torch.einsum("hd,thd->ht", self.q[row].float(), k)
        weights = torch.softmax(scores / math.sqrt(self.case["head_dim"]), dim=-1)
        return torch.einsum("ht,thd->hd", weights, v)


def sdpa(torch, data, backend):
    """q's heads of a group become rows of one head: the only form in which these kernels read a KV
    head once for its group."""
    from torch.nn.attention import sdpa_kernel

    case = data.case
    group = case["heads"] // case["kv_heads"]
    q = data.q.view(case["batch"], case["kv_heads"], group, case["head_dim"])
    k = data.k.transpose(1, 2)
    v = data.v.transpose(1, 2)

    def run():
        with sdpa_kernel(backend):
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return out.reshape(data.q.shape)

    return run


def flash_infer(torch, data):
    import flashinfer

    case = data.case
    batch, context, block = case["batch"], case["context"], case["block"]
    pages = -(-context // block)
    if context % block:
        raise ValueError("context is not a multiple of the page")
    # Pages in the order of the rows: views of the same memory as the others read.
    shape = (batch * pages, block, case["kv_heads"], case["head_dim"])
    cache = (data.k.view(shape), data.v.view(shape))
    workspace = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        workspace, "NHD", use_tensor_cores=True)
    wrapper.plan(
        torch.arange(0, batch + 1, dtype=torch.int32, device="cuda") * pages,
        torch.arange(batch * pages, dtype=torch.int32, device="cuda"),
        torch.full((batch,), block, dtype=torch.int32, device="cuda"),
        case["heads"], case["kv_heads"], case["head_dim"], block,
        q_data_type=data.q.dtype, kv_data_type=data.k.dtype)
    return lambda: wrapper.run(data.q, cache)


def flash_attention_3(torch, data):
    import flash_attn_interface

    lengths = torch.full((data.case["batch"],), data.case["context"], dtype=torch.int32,
                         device="cuda")

    def run():
        out = flash_attn_interface.flash_attn_with_kvcache(
            data.q.unsqueeze(1), data.k, data.v, cache_seqlens=lengths)
        return (out[0] if isinstance(out, tuple) else out).squeeze(1)

    return run


def peers(torch):
    from torch.nn.attention import SDPBackend

    return {
        "torch flash": lambda data: sdpa(torch, data, SDPBackend.FLASH_ATTENTION),
        "torch cudnn": lambda data: sdpa(torch, data, SDPBackend.CUDNN_ATTENTION),
        "flashinfer": lambda data: flash_infer(torch, data),
        "flash attention 3": lambda data: flash_attention_3(torch, data),
    }


def measure(torch, run, samples):
    """Median and best seconds of one call on the device, replayed as a CUDA graph where it can be
    captured, so that the host's part is not in it. The L2 cache is overwritten before each call,
    outside the time."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    replay = run
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        replay = graph.replay
    except RuntimeError:
        torch.cuda.synchronize()
    flush = torch.empty(L2_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    times = []
    for sample in range(samples + 3):
        flush.fill_(sample % 256)
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        begin.record()
        replay()
        end.record()
        end.synchronize()
        if sample >= 3:
            times.append(begin.elapsed_time(end) * 1e-3)
    times.sort()
    return times[len(times) // 2], times[0]


def read_bandwidth(torch):
    """Bytes per second of a sum over 4 GB: the scale where no report of ours gives one."""
    data = torch.ones(1 << 30, dtype=torch.float32, device="cuda")
    seconds, _ = measure(torch, data.sum, 10)
    return data.numel() * 4 / seconds


def main():
    flags = parse_flags()
    ours = None
    if flags.like:
        with open(flags.like, encoding="utf-8") as file:
            ours = json.load(file)
    try:
        import torch
    except ImportError as error:
        print(f"peers: {error}", file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        print("peers: no CUDA device", file=sys.stderr)
        return 2

    seed = ours["seed"] if ours else flags.seed
    bandwidth = ours["read_tb_per_s"] * 1e12 if ours else read_bandwidth(torch)
    report = {
        "bench": "attention peers",
        "description": f"{torch.cuda.get_device_name()}, torch {torch.__version__}",
        "seed": seed,
        "samples": flags.samples,
        "read_tb_per_s": bandwidth * 1e-12,
        "rows": [],
        "skipped": [],
    }
    for case in cases_of(flags, ours):
        if case["kv_dtype"] == "float32":
            report["skipped"].append({**case, "peer": "all", "reason": "float32 KV"})
            continue
        data = Data(torch, case, seed)
        kv_bytes = 2 * data.k.numel() * data.k.element_size()
        for name, make in peers(torch).items():
            try:
                run = make(data)
                row = case["batch"] - 1
                error = (run()[row].float() - data.expected(torch, row)).abs().max().item()
                if not error < 2e-3:
                    raise ValueError(f"wrong by {error}")
                median, best = measure(torch, run, flags.samples)
            except Exception as error:  # a peer may refuse in any way: it is reported
                reason = str(error).strip().splitlines()
                report["skipped"].append(
                    {**case, "peer": name, "reason": reason[0] if reason else repr(error)})
                torch.cuda.empty_cache()
                continue
            report["rows"].append({
                "kind": "full",
                "peer": name,
                **case,
                "kv_bytes": kv_bytes,
                "density": 1.0,
                "union_density": 1.0,
                "head_density": 1.0,
                "microseconds": median * 1e6,
                "best_microseconds": best * 1e6,
                "device_time": True,
                "bytes": kv_bytes,
                "tb_per_s": kv_bytes / median * 1e-12,
                "percent_of_read": 100.0 * kv_bytes / bandwidth / median,
                "limit_microseconds": kv_bytes / bandwidth * 1e6,
            })
        del data
        torch.cuda.empty_cache()

    if ours:
        report["comparison"] = compare(ours["rows"], report["rows"])
    if flags.json:
        print(json.dumps(report, indent=2))
    else:
        print_tables(report)
    return 0


def compare(ours, theirs):
    """Each of our rows next to the best dense peer of its shape."""
    rows = []
    for row in ours:
        key = (row["batch"], row["context"])
        same = [peer for peer in theirs if (peer["batch"], peer["context"]) == key]
        if not same:
            continue
        best = min(same, key=lambda peer: peer["microseconds"])
        rows.append({
            "batch": row["batch"],
            "context": row["context"],
            "union_density": row["union_density"],
            "microseconds": row["microseconds"],
            "best_peer": best["peer"],
            "peer_microseconds": best["microseconds"],
            "speedup_over_peer": best["microseconds"] / row["microseconds"],
        })
    return rows


def print_tables(report):
    print(f"{report['description']}; read {report['read_tb_per_s']:.3f} TB/s\n")
    for row in report["rows"]:
        print(f"{row['batch']:4d} x {row['context']:7d}  {row['peer']:18s} "
              f"{row['microseconds']:9.1f} us  {row['tb_per_s']:6.3f} TB/s  "
              f"{row['percent_of_read']:5.1f} % of read")
    for row in report["skipped"]:
        print(f"{row['batch']:4d} x {row['context']:7d}  {row['peer']:18s} skipped: {row['reason']}")
    for row in report.get("comparison", []):
        print(f"{row['batch']:4d} x {row['context']:7d}  union {row['union_density']:.3f}: "
              f"{row['microseconds']:9.1f} us, {row['speedup_over_peer']:5.2f}x {row['best_peer']}")


if __name__ == "__main__":
    sys.exit(main())
