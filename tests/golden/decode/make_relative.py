#!/usr/bin/env python3
"""Writes relative_wave_own.safetensors and relative_wave_shared.safetensors: decode steps with
relative thresholds whose keys swing inside their blocks, as biases turned by RoPE make them, so that
the deviations of many blocks lie beyond g. By plain loops in float64, from kernels/eta-semantics.md,
"Relative thresholds".

  python3 -m venv V && V/bin/pip install numpy==2.4.6
  V/bin/python tests/golden/decode/make_relative.py

A case keeps every estimated mass clear of its threshold, and admits the same blocks with unrounded
records as with 8-bit ones. Queries are bfloat16 numbers, so that no backend rounds them. The other
relative_*.safetensors come from elsewhere; what they expect is checked here.
"""
import itertools
import json
import math
import pathlib
import struct

import numpy as np

FOLDER = pathlib.Path(__file__).parent
CLEAR = 0.03  # of masses from thresholds
RATIO = 2.68
TYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16,
         "I64": np.int64, "U8": np.uint8}
CASES = [
    dict(name="relative_wave_own", block_size=32, sub_block=4, relative_c=-2.0, offset=0.0,
         reads="own", num_query_heads=8, num_kv_heads=2, tokens=619),
    dict(name="relative_wave_shared", block_size=64, sub_block=4, relative_c=-2.6, offset=0.4,
         reads="shared", num_query_heads=7, num_kv_heads=1, tokens=1300),
]
COMMON = dict(z=1.5, beta=5.0, pinned_blocks=2, sink_blocks=1, rescue_chunk=128, gate="none",
              floor="none", kv_dtype="float16", head_dim=64, index="outlier", record="int8",
              thresholds="relative")


def lse(values):
    values = np.asarray(values)
    return values.max() + math.log(np.exp(values - values.max()).sum())


def uncapped(sd, g):
    return sd * sd / 2


def kept_factor(sd, g):
    """n exp(m + g sd): what counts one key n times."""
    return sd * sd / 2 if sd < g else g * sd


def lift(sd, g):
    t = min(sd, g)
    return t * (sd - t / 2)


def half_up(x):
    half = np.float16(x)
    return float(half if float(half) >= x else np.nextafter(half, np.float16(np.inf)))


def distances(keys, metric):
    away = keys - keys.mean(axis=0)
    return np.einsum("ti,ij,tj->t", away, metric, away)


def record(keys, metric, sub_block, rounded):
    """mu, sigma and k_out of one block; keys [b, d]."""
    out = int(np.argmax(distances(keys, metric)))
    mu = np.delete(keys, out, axis=0).mean(axis=0)
    squares = (keys - mu) ** 2
    squares[out] = 0
    parts = sub_block or len(keys)
    sigma = np.sqrt(squares.reshape(-1, parts, keys.shape[1]).mean(axis=1).max(axis=0))
    if not rounded:
        return mu, sigma, keys[out]
    a = half_up(max(np.abs(mu).max() / 127, sigma.max() / 255))
    b = half_up(np.abs(keys[out]).max() / 127)
    return a * np.rint(mu / a), a * np.ceil(sigma / a), b * np.rint(keys[out] / b)


class Step:
    """One decode step. q [HQ, d], k and v [T, HKV, d], metric [HKV, d, d]."""

    def __init__(self, spec, q, k, v, metric):
        self.spec, self.q, self.k, self.v, self.metric = spec, q, k, v, metric
        self.heads, self.dim = q.shape
        self.tokens, self.kv_heads = k.shape[:2]
        self.group = self.heads // self.kv_heads
        self.b = spec["block_size"]
        self.blocks = self.tokens // self.b
        self.g = math.sqrt(2 * math.log(self.b - 1))
        pinned = self.blocks - spec["pinned_blocks"]
        self.always = [j < spec["sink_blocks"] or j >= pinned for j in range(self.blocks)]

    def scores(self, head):
        keys = self.k[:, head // self.group].astype(np.float64)
        return keys @ self.q[head].astype(np.float64) / math.sqrt(self.dim)

    def of_block(self, kv_head, j):
        """The keys of one block, and the metric."""
        keys = self.k[j * self.b:(j + 1) * self.b, kv_head]
        return keys.astype(np.float64), self.metric[kv_head].astype(np.float64)

    def block_scores(self, head, rounded):
        """m, sd and o of every block."""
        q = self.q[head].astype(np.float64) / math.sqrt(self.dim)
        result = []
        for j in range(self.blocks):
            mu, sigma, out = record(*self.of_block(head // self.group, j), self.spec["sub_block"],
                                    rounded)
            result.append((q @ mu, math.sqrt((q * q) @ (sigma * sigma) / RATIO), q @ out))
        return result

    def least_lead(self):
        """Of an outlier over the second of its block: the ratio of their distances."""
        lead = math.inf
        for kv_head, j in itertools.product(range(self.kv_heads), range(self.blocks)):
            second, first = np.sort(distances(*self.of_block(kv_head, j)))[-2:]
            lead = min(lead, first / second)
        return lead

    def margins(self, head, rounded=False, rule=lift):
        """l_j - tau_eff of every block, and sd."""
        of_blocks = self.block_scores(head, rounded)
        n = self.b - 1
        s = self.scores(head)
        parts = [s[self.blocks * self.b:]]
        for j, (m, _, o) in enumerate(of_blocks):
            mine = s[j * self.b:(j + 1) * self.b]
            parts.append(mine if self.always[j] else [math.log(n) + m, o])
        tau = lse(np.concatenate(parts)) + self.spec["relative_c"] - self.spec["offset"]
        masses = [lse([math.log(n) + m + rule(sd, self.g), o]) for m, sd, o in of_blocks]
        return np.array(masses) - tau, np.array([sd for _, sd, _ in of_blocks])

    def admitted(self, **how):
        result = np.zeros((self.heads, self.blocks), np.uint8)
        chunk = min(self.spec["rescue_chunk"], self.blocks)
        for head in range(self.heads):
            margins, _ = self.margins(head, **how)
            result[head] = (margins >= 0) | self.always
            if chunk and not result[head, :chunk].any():
                result[head, np.argmax(margins[:chunk])] = 1
        return result

    def expected(self):
        admitted = self.admitted()
        used = admitted.copy()
        read = admitted.reshape(self.kv_heads, self.group, -1).max(axis=1)
        if self.spec["reads"] == "shared":
            used = np.repeat(read, self.group, axis=0)
        tail = self.tokens - self.blocks * self.b
        out = np.zeros((self.heads, self.dim))
        for head in range(self.heads):
            seen = np.concatenate([np.repeat(used[head], self.b), np.ones(tail, np.uint8)]) == 1
            s = self.scores(head)[seen]
            weights = np.exp(s - lse(s))
            out[head] = weights @ self.v[seen, head // self.group].astype(np.float64)
        count = lambda blocks: blocks.sum(axis=1, dtype=np.int64) * self.b + tail
        return dict(out=out, admitted=admitted, used=used, tokens_per_head=count(admitted),
                    tokens_per_kv_head=count(read))

    def why_unfit(self):
        """What a case must have: every margin clear, blocks beyond g on both sides of the threshold,
        some near g, and blocks that other lifts would choose otherwise."""
        exact, rounded = self.admitted(), self.admitted(rounded=True)
        free = ~np.array(self.always)
        margins, deviations = (np.array(x) for x in
                               zip(*(self.margins(h) for h in range(self.heads))))
        of_rounded = np.array([self.margins(h, rounded=True)[0] for h in range(self.heads)])
        self.margin = min(np.abs(margins[:, free]).min(), np.abs(of_rounded[:, free]).min())
        beyond = (deviations > 1.2 * self.g) & free
        near = (np.abs(deviations - self.g) < 0.1) & free
        needs = {"clear margins": self.margin > CLEAR,
                 "clear outliers": self.least_lead() > 1.001,
                 "records alike": (exact == rounded).all(),
                 "blocks beyond g": min((beyond & (exact == 1)).sum(),
                                        (beyond & (exact == 0)).sum()) >= 10,
                 "blocks near g": min((near & (exact == 1)).sum(),
                                      (near & (exact == 0)).sum()) >= 1,
                 "one key counted n times": (self.admitted(rule=kept_factor) != exact).sum() >= 8,
                 "no reach": (self.admitted(rule=uncapped) != exact).sum() >= 8}
        return [what for what, there in needs.items() if not there]


def bfloat16(x):
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0x8000) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def turned(bias, position, dim):
    """A bias [d] after RoPE (half-split) at `position`."""
    half = dim // 2
    angles = position * 10000.0 ** (-np.arange(half) / half)
    first, second = bias[:half], bias[half:]
    return np.concatenate([first * np.cos(angles) - second * np.sin(angles),
                           first * np.sin(angles) + second * np.cos(angles)])


def draw(spec, seed):
    random = np.random.default_rng(seed)
    t, kv_heads, heads, d = (spec[key] for key in
                             ("tokens", "num_kv_heads", "num_query_heads", "head_dim"))
    b = spec["block_size"]
    fast = np.concatenate([np.arange(d // 2) < 6] * 2)  # pairs that turn within a block
    bias = random.normal(0, 2.8, (kv_heads, d)) * fast
    k = random.normal(0, 0.6, (t, kv_heads, d))
    for begin in range(0, t, b):
        k[begin:begin + b] += random.normal(0, 1.0, (kv_heads, d))
        swing = random.uniform(0.3, 1.3, kv_heads)  # of this block's keys
        for position in range(begin, min(begin + b, t)):
            for h in range(kv_heads):
                k[position, h] += swing[h] * turned(bias[h], position, d)
    q = random.normal(0, 1.3, (heads, d))
    for h in range(heads):
        own = bias[h // (heads // kv_heads)] + random.normal(0, 0.6, d) * fast
        q[h] += random.uniform(0.6, 1.6) * turned(own, t - 1, d)
    factor = random.normal(0, 1, (kv_heads, 5, d))
    metric = np.einsum("hri,hrj->hij", factor, factor) + 0.25 * np.eye(d)
    return Step(spec, bfloat16(q), k.astype(np.float16),
                random.normal(0, 1, (t, kv_heads, d)).astype(np.float16),
                metric.astype(np.float32))


def make(spec):
    for seed in itertools.count():
        step = draw(spec, seed)
        why = step.why_unfit()
        if not why:
            break
    expected = step.expected()
    tensors = dict(q=step.q, k=step.k, v=step.v, tau=np.full(step.heads, 0.5, np.float32),
                   metric=step.metric, special=np.zeros(step.tokens, np.uint8), **expected)
    write(FOLDER / f"{spec['name']}.safetensors", dict(spec, margin=step.margin), tensors)
    print(f"{spec['name']}: seed {seed}, margin {step.margin:.3f}, "
          f"admitted {expected['admitted'].mean():.3f}")


def write(path, metadata, tensors):
    header, data = {"__metadata__": {key: str(value) for key, value in metadata.items()}}, b""
    names = {np.dtype(kind): name for name, kind in TYPES.items()}
    for key, value in sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0])):
        header[key] = {"dtype": names[value.dtype], "shape": value.shape,
                       "data_offsets": [len(data), len(data) + value.nbytes]}
        data += value.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def read(path):
    """Metadata and tensors of a file; NumPy has no bfloat16."""
    data = path.read_bytes()
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:begin])
    metadata = header.pop("__metadata__")
    tensors = {}
    for key, entry in header.items():
        first, last = (begin + offset for offset in entry["data_offsets"])
        tensor = np.frombuffer(data[first:last], TYPES[entry["dtype"]]).reshape(entry["shape"])
        if entry["dtype"] == "BF16":
            tensor = (tensor.astype(np.uint32) << 16).view(np.float32)
        tensors[key] = tensor
    return metadata, tensors


def check(path):
    """That a file made elsewhere holds what the rule gives."""
    spec, tensors = read(path)
    for key in ("block_size", "sub_block", "pinned_blocks", "sink_blocks", "rescue_chunk"):
        spec[key] = int(spec[key])
    for key in ("relative_c", "offset"):
        spec[key] = float(spec[key])
    for key, value in Step(spec, *(tensors[key] for key in "qkv"),
                           tensors["metric"]).expected().items():
        assert np.allclose(value, tensors[key], rtol=0, atol=1e-9), (path, key)
    print(f"{path.stem}: as it should be")


def main():
    for spec in CASES:
        make({**COMMON, **spec})
    made = {spec["name"] for spec in CASES}
    for path in sorted(FOLDER.glob("relative_*.safetensors")):
        if path.stem not in made:
            check(path)


if __name__ == "__main__":
    main()
