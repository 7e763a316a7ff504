#!/usr/bin/env python3
"""Dense peers of eta-bench attention: PyTorch's SDPA (flash, cuDNN), FlashInfer, FlashAttention-3.

Takes the cases from a report of `eta-bench attention --json`, so that both run on the same shapes
in the same shell command, and prints JSON with the same fields:

  eta-bench attention --backend=cuda --json > ours.json && tests/bench/peers.py --like ours.json

A peer that is not installed, or refuses a shape, is listed under "skipped" with the reason. Every
peer is compared with a float32 computation of its last row before it is timed. Without --like,
shapes come from flags. Without a GPU it says so and exits with 2.

"flashinfer selected" (kind "selected", one row for each sparse row of --like or each --selected) is
what remains of block-sparse attention if selecting cost nothing: FlashInfer's paged decode with one
request per row and KV head, whose page table names the share "union_density" of that head's blocks,
drawn at random, equally many for every head, read by all query heads of the group. A step that also
has to choose its blocks is no peer of it.
"""

import argparse
import functools
import json
import math
import sys

L2_FLUSH_BYTES = 256 << 20
WORKSPACE_BYTES = 256 << 20
CASE_KEYS = ("batch", "context", "heads", "kv_heads", "head_dim", "block", "kv_dtype")
# Largest ||out - expected|| / ||expected||. Beside an 8-bit cache some peers round queries and
# softmax weights to 8 bits too.
TOLERANCE = {"float16": 1e-2, "bfloat16": 2e-2, "float8_e4m3": 1e-1}


def parse_flags():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--like", help="report of eta-bench attention whose cases are run")
    parser.add_argument("--batch", default="32")
    parser.add_argument("--context", default="131072")
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv_heads", type=int, default=4)
    parser.add_argument("--head_dim", type=int, default=64)
    parser.add_argument("--block", type=int, default=64)
    parser.add_argument("--kv_dtype", default="float16", choices=list(TOLERANCE))
    parser.add_argument("--selected", default="", help="shares of blocks for flashinfer selected")
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
        common = {key: getattr(flags, key) for key in CASE_KEYS[2:]}
        return [{"batch": b, "context": c, **common} for b, c in zip(batches, contexts)]
    cases = []
    for row in ours["rows"]:
        if case_of(row) not in cases:
            cases.append(case_of(row))
    return cases


def case_of(row):
    return {key: row[key] for key in CASE_KEYS}


def shares_of(flags, ours, case):
    """Union densities at which the selected pages of a case are timed."""
    if ours is None:
        return [float(x) for x in flags.selected.split(",") if x]
    return sorted({row["union_density"] for row in ours["rows"]
                   if case_of(row) == case and row["kind"] == "sparse"}, reverse=True)


class Data:
    """One case's tensors. q [B, HQ, d]; k and v [B, T, HKV, d], contiguous, as FlashAttention takes
    them; SDPA gets transposed views of the same memory. q is float16 beside an 8-bit cache."""

    def __init__(self, torch, case, seed):
        self.torch = torch
        self.case = case
        eight_bit = case["kv_dtype"] == "float8_e4m3"
        dtype = torch.float16 if eight_bit else getattr(torch, case["kv_dtype"])
        generator = torch.Generator(device="cuda").manual_seed(seed)

        def normal(*shape):
            tensor = torch.empty(shape, device="cuda", dtype=dtype)
            return tensor.normal_(generator=generator)

        self.q = normal(case["batch"], case["heads"], case["head_dim"])
        shape = (case["batch"], case["context"], case["kv_heads"], case["head_dim"])
        self.k = normal(*shape)
        self.v = normal(*shape)
        if eight_bit:
            self.k = self.k.to(torch.float8_e4m3fn)
            self.v = self.v.to(torch.float8_e4m3fn)

    def pages(self, tensor):
        """k or v as [pages, block, HKV, d], pages in the order of the rows: the same memory."""
        if self.case["context"] % self.case["block"]:
            raise ValueError("context is not a multiple of the page")
        return tensor.view(-1, self.case["block"], *tensor.shape[2:])

    @functools.cached_property
    def head_pages(self):
        """Copies of k and v as [pages, HKV, block, d]: one head's tokens of a page are together."""
        return tuple(self.pages(x).transpose(1, 2).contiguous() for x in (self.k, self.v))

    @functools.cached_property
    def page_table(self):
        pages = self.case["context"] // self.case["block"]
        table = self.torch.arange(self.case["batch"] * pages, dtype=self.torch.int32, device="cuda")
        return table.view(self.case["batch"], pages)

    @functools.cached_property
    def lengths(self):
        return self.torch.full((self.case["batch"],), self.case["context"],
                               dtype=self.torch.int32, device="cuda")

    def expected(self, row, blocks=None):
        """Float32 attention [HQ, d] of a row; blocks [HKV, n]: over these of each head only."""
        torch = self.torch
        group = self.case["heads"] // self.case["kv_heads"]
        outs = []
        for head in range(self.case["kv_heads"]):
            k, v = self.k[row, :, head].float(), self.v[row, :, head].float()
            if blocks is not None:
                k, v = (x.view(-1, self.case["block"], x.shape[-1])[blocks[head]].flatten(0, 1)
                        for x in (k, v))
            q = self.q[row, head * group:(head + 1) * group].float()
            scores = q @ k.T / math.sqrt(self.case["head_dim"])
            outs.append(torch.softmax(scores, dim=-1) @ v)
        return torch.cat(outs)


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


def paged_decode(torch, layout, table, block, q, cache):
    """FlashInfer's batch decode on tensor cores, planned here. table [requests, pages of each]; q
    [requests, heads, d]; cache: (k, v) of `layout`; all pages full."""
    import flashinfer

    workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        workspace, layout, use_tensor_cores=True)
    requests, pages = table.shape
    kv_heads = cache[0].shape[2 if layout == "NHD" else 1]
    wrapper.plan(
        torch.arange(requests + 1, dtype=torch.int32, device="cuda") * pages,
        table.flatten(),
        torch.full((requests,), block, dtype=torch.int32, device="cuda"),
        q.shape[1], kv_heads, q.shape[2], block,
        q_data_type=q.dtype, kv_data_type=cache[0].dtype)
    return lambda: wrapper.run(q, cache)


def flash_infer(torch, data, layout):
    cache = data.head_pages if layout == "HND" else (data.pages(data.k), data.pages(data.v))
    return paged_decode(torch, layout, data.page_table, data.case["block"], data.q, cache)


def flash_infer_selected(torch, data, share, seed):
    """Returns the call, and the blocks [B, HKV, n] that it reads."""
    case = data.case
    batch, heads, block = case["batch"], case["kv_heads"], case["block"]
    cache = tuple(x.view(-1, 1, block, case["head_dim"]) for x in data.head_pages)
    pages = case["context"] // block
    count = max(1, round(share * pages))
    generator = torch.Generator(device="cuda").manual_seed(seed)
    order = torch.rand(batch, heads, pages, device="cuda", generator=generator).argsort(dim=-1)
    blocks = order[..., :count].sort(dim=-1).values
    rows = torch.arange(batch, device="cuda").view(-1, 1, 1)
    head = torch.arange(heads, device="cuda").view(1, -1, 1)
    table = ((rows * pages + blocks) * heads + head).to(torch.int32).flatten(0, 1)
    q = data.q.view(batch * heads, -1, case["head_dim"])
    run = paged_decode(torch, "HND", table, block, q, cache)
    return lambda: run().view(data.q.shape), blocks


def flash_infer_xqa(torch, data):
    """The kernel that FlashInfer's trtllm_batch_decode_with_kv_cache takes on Hopper."""
    from flashinfer.decode import xqa_batch_decode_with_kv_cache

    workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
    cache = data.head_pages
    scale = 1.0 / math.sqrt(data.case["head_dim"])
    out = torch.empty_like(data.q)
    return lambda: xqa_batch_decode_with_kv_cache(
        data.q, cache, workspace, data.page_table, data.lengths, data.case["context"],
        bmm1_scale=scale, bmm2_scale=1.0, out=out, kv_layout="HND")


def flash_attention_3(torch, data, paged):
    """flash_attn_interface, or the build of the same kernels that vLLM carries."""
    try:
        from flash_attn_interface import flash_attn_with_kvcache
    except ImportError:
        from vllm.vllm_flash_attn.flash_attn_interface import flash_attn_varlen_func
        flash_attn_with_kvcache = None

    k, v, table = data.k, data.v, None
    if paged:
        k, v, table = data.pages(k), data.pages(v), data.page_table
    q = data.q.to(k.dtype)
    if flash_attn_with_kvcache is None:
        starts = torch.arange(data.case["batch"] + 1, dtype=torch.int32, device="cuda")
        return lambda: flash_attn_varlen_func(
            q, k, v, max_seqlen_q=1, cu_seqlens_q=starts, max_seqlen_k=data.case["context"],
            seqused_k=data.lengths, block_table=table, num_splits=0, fa_version=3)

    def run():
        out = flash_attn_with_kvcache(q.unsqueeze(1), k, v, cache_seqlens=data.lengths,
                                      page_table=table, num_splits=0)
        return (out[0] if isinstance(out, tuple) else out).squeeze(1)

    return run


def peers(torch):
    from torch.nn.attention import SDPBackend

    return {
        "torch flash": lambda data: sdpa(torch, data, SDPBackend.FLASH_ATTENTION),
        "torch cudnn": lambda data: sdpa(torch, data, SDPBackend.CUDNN_ATTENTION),
        "flash attention 3": lambda data: flash_attention_3(torch, data, paged=False),
        "flash attention 3 paged": lambda data: flash_attention_3(torch, data, paged=True),
        "flashinfer NHD": lambda data: flash_infer(torch, data, "NHD"),
        "flashinfer HND": lambda data: flash_infer(torch, data, "HND"),
        "flashinfer xqa": lambda data: flash_infer_xqa(torch, data),
    }


def versions():
    """Of the peers' packages that are installed."""
    from importlib import metadata

    found = []
    for name in ("flashinfer-python", "flash-attn-3", "vllm"):
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            pass
    return found


def check(out, expected, case):
    error = ((out.float() - expected).norm() / expected.norm()).item()
    if not error < TOLERANCE[case["kv_dtype"]]:
        raise ValueError(f"wrong by {error:.3g} of the norm")


def measure(torch, run, samples):
    """Median and best seconds of one call on the device, and whether it was replayed as a CUDA
    graph, so that the host's part is not in it: so it is where it can be captured. The L2 cache is
    overwritten before each call, outside the time."""
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
    return times[len(times) // 2], times[0], replay is not run


def read_bandwidth(torch):
    """Bytes per second of a sum over 4 GB: the scale where no report of ours gives one."""
    data = torch.ones(1 << 30, dtype=torch.float32, device="cuda")
    return data.numel() * 4 / measure(torch, data.sum, 10)[0]


def run_case(torch, case, shares, report):
    data = Data(torch, case, report["seed"])
    for name, make in peers(torch).items():
        attempt(torch, name, data, 1.0, lambda: (make(data), None), report)
    for share in shares:
        attempt(torch, "flashinfer selected", data, share,
                lambda: flash_infer_selected(torch, data, share, report["seed"]), report)


def attempt(torch, name, data, share, make, report):
    """Adds a peer's row to the report, or why there is none. make() returns the call and the blocks
    [B, HKV, n] that it reads, None if all."""
    last = data.case["batch"] - 1
    try:
        run, blocks = make()
        check(run()[last], data.expected(last, None if blocks is None else blocks[last]),
              data.case)
        median, best, captured = measure(torch, run, report["samples"])
    except Exception as error:  # a peer may refuse in any way: it is reported
        reason = str(error).strip().splitlines()
        report["skipped"].append({**data.case, "peer": name, "union_density": share,
                                  "reason": reason[0] if reason else repr(error)})
        torch.cuda.empty_cache()
        return
    kv_bytes = 2 * data.k.numel() * data.k.element_size()
    moved = share * kv_bytes
    bandwidth = report["read_tb_per_s"] * 1e12
    report["rows"].append({
        "kind": "full" if blocks is None else "selected",
        "peer": name,
        **data.case,
        "kv_bytes": kv_bytes,
        "density": share,
        "union_density": share,
        "head_density": share,
        "microseconds": median * 1e6,
        "best_microseconds": best * 1e6,
        "device_time": True,
        "cuda_graph": captured,
        "bytes": moved,
        "tb_per_s": moved / median * 1e-12,
        "percent_of_read": 100.0 * moved / bandwidth / median,
        "limit_microseconds": moved / bandwidth * 1e6,
    })


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
        "description": ", ".join(
            [torch.cuda.get_device_name(), f"torch {torch.__version__}", *versions()]),
        "seed": seed,
        "samples": flags.samples,
        "read_tb_per_s": bandwidth * 1e-12,
        "rows": [],
        "skipped": [],
    }
    for case in cases_of(flags, ours):
        if case["kv_dtype"] in TOLERANCE:
            run_case(torch, case, shares_of(flags, ours, case), report)
        else:
            report["skipped"].append(
                {**case, "peer": "all", "reason": f"{case['kv_dtype']} KV"})
        torch.cuda.empty_cache()

    if ours:
        report["comparison"] = compare(ours["rows"], report["rows"])
    if flags.json:
        print(json.dumps(report, indent=2))
    else:
        print_tables(report)
    return 0


def compare(ours, theirs):
    """Each of our rows next to the best dense peer of its case and, for a sparse one, to the peer
    that reads as many blocks already selected."""
    rows = []
    for row in ours:
        case = case_of(row)
        same = [peer for peer in theirs if case_of(peer) == case]
        dense = [peer for peer in same if peer["kind"] == "full"]
        if not dense:
            continue
        best = min(dense, key=lambda peer: peer["microseconds"])
        selected = [peer["microseconds"] for peer in same if peer["kind"] == "selected"
                    and peer["union_density"] == row["union_density"]]
        rows.append({
            "batch": row["batch"],
            "context": row["context"],
            "union_density": row["union_density"],
            "microseconds": row["microseconds"],
            "best_peer": best["peer"],
            "peer_microseconds": best["microseconds"],
            "speedup_over_peer": best["microseconds"] / row["microseconds"],
            "selected_peer_microseconds": selected[0] if selected else None,
        })
    return rows


def print_tables(report):
    print(f"{report['description']}; read {report['read_tb_per_s']:.3f} TB/s\n")
    for row in report["rows"]:
        print(f"{row['batch']:4d} x {row['context']:7d}  {row['peer']:23s} "
              f"{row['union_density']:5.3f} {row['microseconds']:9.1f} us  "
              f"{row['tb_per_s']:6.3f} TB/s  {row['percent_of_read']:5.1f} % of read")
    for row in report["skipped"]:
        print(f"{row['batch']:4d} x {row['context']:7d}  {row['peer']:23s} "
              f"skipped: {row['reason']}")
    for row in report.get("comparison", []):
        selected = row["selected_peer_microseconds"]
        print(f"{row['batch']:4d} x {row['context']:7d}  union {row['union_density']:.3f}: "
              f"{row['microseconds']:9.1f} us, {row['speedup_over_peer']:5.2f}x {row['best_peer']}"
              + (f"; already selected {selected:.1f} us" if selected else ""))


if __name__ == "__main__":
    sys.exit(main())
