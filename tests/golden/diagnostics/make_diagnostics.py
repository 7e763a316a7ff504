#!/usr/bin/env python3
"""Writes gated.safetensors and plain.safetensors: recorded attention of one layer, random, and what
the diagnostics of eta-eval's tables must make of it, computed in float64 from the definitions in
kernels/eta-semantics.md and the paper; and vectors.safetensors: pairs of vectors and of logits, and
documents.

  python3 -m venv V && V/bin/pip install numpy==2.4.6
  V/bin/python tests/golden/diagnostics/make_diagnostics.py
"""
import json
import os
import struct

import numpy as np

HQ, HKV, D, T = 4, 2, 16, 203
GROUP = HQ // HKV
POSITIONS = [0, 3, 5, 40, 63, 64, 100, 131, 160, 199, 202]
SIZES = [16, 32, 64, 128, 256, 384, 512, 1024, 2048]  # of pruned sets
SPECS = [(kind, b) for b in (4, 16, 32) for kind in ("flat", "envelope", "outlier", "box")]
Z = 1.75
MARGIN = 2e-4  # of bounds and scores from thresholds: float32 decides the same
TYPES = {"float64": "F64", "float32": "F32", "int32": "I32", "uint8": "U8"}


def write(name, metadata, tensors):
    header, data = {"__metadata__": {k: str(v) for k, v in metadata.items()}}, b""
    for key, array in sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0])):
        array = np.ascontiguousarray(array)
        header[key] = {"dtype": TYPES[str(array.dtype)], "shape": list(array.shape),
                       "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    folder = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(folder, name + ".safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def lse(x):
    return x.max() + np.log(np.exp(x - x.max()).sum())


def softmax(x):
    return np.exp(x - lse(x))


def sigma(x):
    return 1 / (1 + np.exp(-x))


class Attention:
    """What one layer's attention was given, and what measures make of it. q [R, HQ, D], tau [R, HQ],
    x_norm [R] of the rows at `positions`; k, v [T, HKV, D]."""

    def __init__(self, gate, beta, positions, q, k, v, tau, x_norm, tempered, metric, centre, specs):
        self.gate, self.beta, self.positions = gate, np.float32(beta), positions
        self.q, self.k, self.v, self.tau, self.x_norm = q, k, v, tau, x_norm
        self.tempered, self.metric, self.centre = tempered, metric, centre
        self.heads, self.dim = q.shape[1:]
        self.length, self.kv_heads = k.shape[:2]
        self.group = self.heads // self.kv_heads
        self.scale = float(np.float32(1 / np.sqrt(self.dim)))
        self.z = Z
        self.records = {spec: self.make_records(*spec) for spec in specs}

    def clear(self, r, h, tau):
        numbers = [self.scores(r, h)] + [self.bounds(spec, r, h) for spec in self.records]
        return all(np.abs(x - tau).min(initial=1) > MARGIN for x in numbers)

    def scores(self, r, h):
        return self.scale * (self.k[:self.positions[r] + 1, h // self.group].astype(np.float64)
                               @ self.q[r, h].astype(np.float64))

    def gated(self, r, h):
        s = self.scores(r, h)
        if not self.gate:
            return s
        out = s * sigma(float(self.beta) * (s - float(self.tau[r, h])))
        out[self.tempered[:len(s)] == 1] = 0
        out[-1] = s[-1]
        return out

    # Block records and bounds.
    def make_records(self, kind, b):
        records = []
        for h in range(self.kv_heads):
            for j in range(self.length // b):
                keys = self.k[j * b:(j + 1) * b, h].astype(np.float64)
                if kind == "box":
                    records.append((keys.min(axis=0), keys.max(axis=0)))
                elif kind == "outlier":
                    records.append(self.outlier_record(keys, h))
                else:
                    part = b if kind == "flat" else 4
                    mean = keys.mean(axis=0)
                    spread = np.sqrt(((keys - mean) ** 2).reshape(b // part, part, self.dim).mean(axis=1))
                    half = [x.astype(np.float32).astype(np.float16).astype(np.float64)
                            for x in (mean, spread.max(axis=0))]
                    records.append((*half, np.linalg.norm(keys, axis=1).max()))
        return records

    def outlier_record(self, keys, h):
        away = keys - keys.mean(axis=0)
        out = int(np.argmax(np.einsum("ti,ij,tj->t", away, self.metric[h].astype(np.float64), away)))
        others = np.delete(keys, out, axis=0)
        mean = others.mean(axis=0)
        squares = (keys - mean) ** 2
        squares[out] = 0
        spread = np.sqrt(squares.reshape(-1, 4, self.dim).mean(axis=1)).max(axis=0)
        f32 = lambda x: x.astype(np.float32)
        mu, dev, key = f32(mean) - self.centre[h], f32(spread), f32(keys[out]) - self.centre[h]

        def half_up(x):
            half = np.float16(x)
            return half if float(half) >= float(x) else np.nextafter(half, np.float16(np.inf))
        a = float(half_up(max(np.abs(mu).max() / np.float32(127), dev.max() / np.float32(255))))
        bb = float(half_up(np.abs(key).max() / np.float32(127)))
        centre = self.centre[h].astype(np.float64)
        return (centre + a * np.rint(mu.astype(np.float64) / a), a * np.ceil(dev / a),
                centre + bb * np.rint(key.astype(np.float64) / bb), a, bb)

    def bounds(self, spec, r, h):
        kind, b = spec
        q = self.q[r, h].astype(np.float64)
        blocks = (self.positions[r] + 1) // b
        first = h // self.group * (self.length // b)
        out = []
        for record in self.records[spec][first:first + blocks]:
            if kind == "box":
                out.append(np.maximum(q * record[0], q * record[1]).sum())
            elif kind == "outlier":
                mu, dev, key, a, bb = record
                size = np.abs(q).sum()
                out.append(max(q @ mu + a / 2 * size + self.z * np.sqrt((q * q) @ (dev * dev)),
                               q @ key + bb / 2 * size))
            else:
                mu, dev, norm = record
                out.append(min(q @ mu + self.z * np.sqrt((q * q) @ (dev * dev)),
                               np.linalg.norm(q) * norm))
        return self.scale * np.array(out)

    # Expected sums over rows and heads.
    def each(self):
        return [(r, h) for r in range(len(self.positions)) for h in range(self.heads)]

    def tail_shape(self):
        sums = np.zeros((3, 3))
        rows = tails = 0
        for r, h in self.each():
            s, tau = self.scores(r, h), float(self.tau[r, h])
            gate = sigma(float(self.beta) * (s - tau))
            strict = s + 100 * (gate - 1)
            strict[-1] = s[-1]
            tail = np.flatnonzero(s[:-1] < tau)
            rows += 1
            tails += len(tail) >= 2
            if len(tail) == 0:
                continue
            for form, logits in enumerate((s, self.gated(r, h), strict)):
                sums[form, 0] += softmax(logits)[tail].sum()
                if len(tail) < 2:
                    continue
                p = softmax(logits[tail])
                p = p[p > 0]
                sums[form, 1] += -(p * np.log(p)).sum() / np.log(len(tail))
                sums[form, 2] += p.max() * len(tail)
        return np.concatenate([sums.ravel(), [rows, tails]])

    def tail_norm(self):
        sums = np.zeros(len(SIZES) * 6 + 2)
        for r, h in self.each():
            s, tau = self.scores(r, h), float(self.tau[r, h])
            w = softmax(self.gated(r, h))
            v = self.v[:len(s), h // self.group].astype(np.float64)
            pruned = np.flatnonzero(s[:-1] < tau)
            sums[-2] += 1 - w[pruned].sum()
            sums[-1] += 1
            mean = v.mean(axis=0)
            trace = np.trace(np.atleast_2d(np.cov(v.T, bias=True))) if len(v) > 1 else 0
            if len(pruned) == 0 or trace == 0:
                continue
            mine = v[pruned]
            for i, m in enumerate(SIZES):
                n = len(pruned)
                if n >= m:
                    sums[6 * i] += np.sqrt(self.mean_square(mine - mean, m) / trace)
                    sums[6 * i + 1] += np.sqrt((len(v) - m) / (m * (len(v) - 1)))
                    sums[6 * i + 4] += 1
                if m / np.sqrt(2) <= n < m * np.sqrt(2):
                    sums[6 * i + 2] += np.linalg.norm(mine.mean(axis=0) - mean) / np.sqrt(trace)
                    weighted = (w[pruned, None] * mine).sum(axis=0) / w[pruned].sum()
                    sums[6 * i + 3] += np.linalg.norm(weighted - mean) / np.sqrt(trace)
                    sums[6 * i + 5] += 1
        return sums

    @staticmethod
    def mean_square(x, m):
        """E |mean of a random subset of m of the n rows|^2 by pairs: each row is in with m/n, each
        pair with m(m-1)/(n(n-1))."""
        n = len(x)
        gram = x @ x.T
        own = np.trace(gram)
        pairs = gram.sum() - own
        both = m * (m - 1) / (n * (n - 1)) if n > 1 else 0
        return (m / n * own + both * pairs) / m ** 2

    def sinks(self):
        sums = np.zeros(4)
        for r, h in self.each():
            s = self.scores(r, h)
            if len(s) < 5:
                continue
            sums += [softmax(s)[:4].sum(), softmax(self.gated(r, h))[:4].sum(), 4 / len(s), 1]
        return sums

    def density(self):
        return np.array([[(self.scores(r, h) >= float(self.tau[r, h])).mean()
                          for r in range(len(self.positions))] for h in range(self.heads)])

    def statistics(self):
        out = np.zeros((self.heads, len(self.positions), 8))
        for r, h in self.each():
            s = self.scores(r, h)
            p = softmax(s)
            out[h, r] = [np.linalg.norm(self.q[r, h].astype(np.float64)), lse(s), s.max(), s.std(),
                         -(p * np.log(p)).sum(), np.log(len(s)), s.mean(), self.x_norm[r]]
        return out

    def explained(self):
        out = np.zeros((self.heads, 9))
        statistics = self.statistics()
        for h in range(self.heads):
            y = self.tau[:, h].astype(np.float64)
            for i in range(9):
                x = statistics[h] if i == 8 else statistics[h][:, i:i + 1]
                x = np.column_stack([np.ones(len(y)), x])
                left = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
                out[h, i] = 1 - (left @ left) / ((y - y.mean()) @ (y - y.mean()))
        return out

    def index(self, spec):
        b = spec[1]
        sums = np.zeros(9)
        for r, h in self.each():
            s, tau = self.scores(r, h), float(self.tau[r, h])
            w = softmax(self.gated(r, h))
            blocks = len(s) // b
            admitted = self.bounds(spec, r, h) >= tau if blocks else np.zeros(0, bool)
            above = s >= tau
            needed = above[:blocks * b].reshape(blocks, b).any(axis=1)
            read = np.append(np.repeat(admitted, b), np.ones(len(s) - blocks * b, bool))
            sums += [needed.sum(), (needed & ~admitted).sum(), (~needed).sum(),
                     (~needed & admitted).sum(), above.sum(), (above & read).sum(), w[~read].sum(),
                     read.mean(), 1]
        return sums

    def expected(self):
        return {"tail_shape": self.tail_shape(), "tail_norm": self.tail_norm(),
                "sinks": self.sinks(), "density": self.density(),
                "statistics": self.statistics(), "explained": self.explained()}


def random_case(name, seed, gate, c):
    draw = np.random.default_rng(seed)
    drift = np.cumsum(draw.normal(0, 0.15, (T, HKV, D)), axis=0)
    k = drift + draw.normal(0, 0.8, (T, HKV, D))
    for t in draw.choice(T, 12, replace=False):  # keys that stand out
        k[t] += draw.normal(0, 2.5, (HKV, D))
    k = k.astype(np.float32)
    v = (draw.normal(0, 1, (T, HKV, D)) + draw.normal(0, 0.4, (HKV, D))).astype(np.float32)
    q = draw.normal(0, 1, (len(POSITIONS), HQ, D)).astype(np.float32)
    x_norm = draw.uniform(5, 40, len(POSITIONS)).astype(np.float32)
    tempered = np.zeros(T, np.uint8)
    if gate:
        tempered[[0, 77]] = 1
    root = draw.normal(0, 1, (HKV, D, D))
    metric = (root @ root.transpose(0, 2, 1) / D).astype(np.float32)
    tau = draw.normal(0.8, 0.8, (len(POSITIONS), HQ)).astype(np.float32)
    case = Attention(gate, 5.0, POSITIONS, q, k, v, tau, x_norm, tempered, metric,
                     k.mean(axis=0).astype(np.float32), SPECS)
    for r, h in case.each():
        if c is not None:
            tau[r, h] = np.float32(lse(case.scores(r, h)) + c)
        while not case.clear(r, h, tau[r, h]):
            assert c is None, "another seed"
            tau[r, h] += np.float32(1.3e-3)
    tensors = {"q": q, "k": k, "v": v, "tau": tau, "hidden_norm": x_norm,
               "positions": np.array(POSITIONS, np.int32), "tempered": tempered, "metric": metric,
               "centre": case.centre, **case.expected()}
    for spec in SPECS:
        tensors["index.%s.%d" % spec] = case.index(spec)
        tensors["bounds.%s.%d" % spec] = np.array([case.bounds(spec, len(POSITIONS) - 1, h)
                                                   for h in range(HQ)])
    write(name, {"gate": "silu" if gate else "none", "beta": case.beta, "z": Z,
                 "c": "" if c is None else c}, tensors)


def vectors():
    draw = np.random.default_rng(77)
    full = draw.normal(0, 2, (6, 50)).astype(np.float32)
    sparse = (full + draw.normal(0, 0.3, full.shape)).astype(np.float32)
    sparse[1] = full[1]
    expected = []
    for a, b in zip(full.astype(np.float64), sparse.astype(np.float64)):
        p, log_q = softmax(a), b - lse(b)
        expected.append([a @ b / np.linalg.norm(a) / np.linalg.norm(b),
                         np.linalg.norm(a - b) / np.linalg.norm(a),
                         (p * (np.log(p) - log_q)).sum(), float(a.argmax() == b.argmax())])
    documents = draw.normal(0, 1, (7, 30)) + draw.normal(0, 0.6, (7, 1)) + np.linspace(3, 0, 30)
    shares = []
    for left_out in [None, *range(len(documents))]:
        kept = documents if left_out is None else np.delete(documents, left_out, axis=0)
        flat = kept - kept.mean(axis=0)
        grand = flat.mean()
        total = ((flat - grand) ** 2).sum()
        within = ((flat - flat.mean(axis=1, keepdims=True)) ** 2).sum()
        shares.append(1 - within / total)
    write("vectors", {}, {"full": full, "sparse": sparse, "alignment": np.array(expected),
                          "documents": documents, "between": np.array(shares)})


def main():
    random_case("gated", 5, True, None)
    random_case("plain", 11, False, -3.0)
    vectors()


if __name__ == "__main__":
    main()
