#!/usr/bin/env python3
"""Writes the cases of this folder: attention of every position of a short sequence in one layer, by
plain loops in float64, from kernels/eta-semantics.md, "Gate", "Windows" and "Learned sinks".

  python3 -m venv V && V/bin/pip install numpy==2.4.6
  V/bin/python tests/golden/windows/make_windows.py

Queries are bfloat16 numbers, keys and values float16 numbers, so that no backend rounds them. Of a
case in a layer with full attention every row reads all keys, with the case's gate.
"""
import json
import math
import pathlib
import struct

import numpy as np

FOLDER = pathlib.Path(__file__).parent
TYPES = {np.dtype(np.float64): "F64", np.dtype(np.float32): "F32"}
CASES = [
    dict(name="window", window=7, block_size=16, tokens=45, gate="none"),
    dict(name="window_of_blocks", window=32, block_size=16, tokens=71, gate="none"),
    dict(name="window_sinks", window=19, block_size=16, tokens=66, gate="none", sinks=True),
    dict(name="full_sinks", window=0, block_size=16, tokens=50, gate="none", sinks=True),
    dict(name="gated_sinks", window=0, block_size=16, tokens=50, gate="silu", sinks=True),
]
COMMON = dict(num_query_heads=6, num_kv_heads=2, head_dim=16, beta=5.0)


def to_bfloat16(x):
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def attend(case, q, k, v, tau, sinks):
    """Of the row at the last position of `k`, the head's output; and what the row sums to."""
    t = len(k) - 1
    first = max(0, t - case["window"] + 1) if case["window"] > 0 else 0
    logits = []
    for s in range(first, t + 1):
        score = float(np.dot(q, k[s])) / math.sqrt(case["head_dim"])
        if case["gate"] == "silu" and s != t:
            score /= 1.0 + math.exp(-case["beta"] * (score - tau))
        logits.append(score)
    top = max(logits + [sinks]) if sinks is not None else max(logits)
    weights = [math.exp(logit - top) for logit in logits]
    total = sum(weights) + (math.exp(sinks - top) if sinks is not None else 0.0)
    out = sum(w * v[first + i] for i, w in enumerate(weights)) / total
    return out, sum(weights) / total


def write(path, tensors, metadata):
    header, at = {"__metadata__": {key: str(value) for key, value in metadata.items()}}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": TYPES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text +
                     b"".join(tensor.tobytes() for tensor in tensors.values()))


def main():
    for number, of in enumerate(CASES):
        case = COMMON | of
        random = np.random.default_rng(530 + number)
        tokens, heads, d = case["tokens"], case["num_query_heads"], case["head_dim"]
        kv_heads = case["num_kv_heads"]
        q = to_bfloat16(1.5 * random.standard_normal((tokens, heads, d)))
        k = random.standard_normal((tokens, kv_heads, d)).astype(np.float16).astype(np.float32)
        v = random.standard_normal((tokens, kv_heads, d)).astype(np.float16).astype(np.float32)
        tau = (0.5 * random.standard_normal(heads)).astype(np.float32)
        sinks = (1.5 * random.standard_normal(heads)).astype(np.float32)
        sinks[0] = 9.0  # it takes most of the softmax
        out = np.zeros((tokens, heads, d))
        kept = []
        for t in range(tokens):
            for h in range(heads):
                kv = h // (heads // kv_heads)
                sink = float(sinks[h]) if case.get("sinks") else None
                out[t, h], share = attend(case, q[t, h].astype(float),
                                          k[: t + 1, kv].astype(float),
                                          v[: t + 1, kv].astype(float), float(tau[h]), sink)
                kept.append(share)
        # What a case is for matters.
        assert not case.get("sinks") or min(kept) < 0.1 < 0.7 < max(kept), case["name"]
        assert case["window"] < tokens
        tensors = {"q": q, "k": k, "v": v, "tau": tau, "out": out}
        if case.pop("sinks", False):
            tensors["sinks"] = sinks
        write(FOLDER / f"{case['name']}.safetensors", tensors, case)


if __name__ == "__main__":
    main()
