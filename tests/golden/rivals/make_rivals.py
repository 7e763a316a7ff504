#!/usr/bin/env python3
"""Writes plain.safetensors and gated.safetensors: which blocks the rivals of the product's selection
admit in a random sequence, by plain loops in float64.

  python3 -m venv V && V/bin/pip install numpy==2.4.6 safetensors==0.8.0
  V/bin/python tests/golden/rivals/make_rivals.py

Given: q [T, HQ, d], k [T, HKV, d], tau [T, HQ], float32. The first `prompt_rows` rows attend to all
keys; the others choose. Expected, by the name of the way of attending: uint8 [T - prompt_rows, HQ,
T / b], 1 where the head of the row admits the block. Ways other than those of locality read
`sink_blocks` first and `pinned_blocks` last blocks always; streaming, bigbird and h2o one sink.
"""
import math
import pathlib

import numpy as np
from safetensors.numpy import save_file

# A choice that lies nearer than this would depend on rounding.
CLEAR = 3e-5

CASES = {
    "plain": dict(seed=3, tokens=157, prompt=61, heads=4, kv_heads=2, dim=32, block=8, gate="none",
                  beta=1.0, ways=["window:24", "window:0.3", "streaming:20", "streaming:0.25",
                                  "bigbird:24:5", "h2o:24:0.25", "h2o:0.1:0.1", "quest:0.3",
                                  "oracle:-3.0"]),
    "gated": dict(seed=5, tokens=122, prompt=50, heads=3, kv_heads=1, dim=16, block=4, gate="silu",
                  beta=5.0, ways=["window:16", "streaming:16", "bigbird:12:4", "h2o:16:0.2",
                                  "h2o:0.15:0.3", "quest:0.25"]),
}
SINKS, PINNED = 1, 2


class Sequence:
    def __init__(self, spec):
        draw = np.random.default_rng(spec["seed"])
        self.spec = spec
        t, b = spec["tokens"], spec["block"]
        self.q = draw.normal(0, 1.5, (t, spec["heads"], spec["dim"])).astype(np.float32)
        self.k = draw.normal(0, 1, (t, spec["kv_heads"], spec["dim"])).astype(np.float32)
        # Some keys that many rows want.
        self.k[draw.choice(t, t // 12, replace=False)] *= 2.0
        self.tau = draw.normal(0.5, 0.5, (t, spec["heads"])).astype(np.float32)
        self.blocks = t // b

    def scores(self, row, head):
        """[row + 1]: of the keys that the row sees."""
        group = self.spec["heads"] // self.spec["kv_heads"]
        keys = self.k[:row + 1, head // group].astype(np.float64)
        return keys @ self.q[row, head].astype(np.float64) / math.sqrt(self.spec["dim"])

    def logits(self, row, head):
        s = self.scores(row, head)
        if self.spec["gate"] == "none":
            return s
        gated = s / (1 + np.exp(-self.spec["beta"] * (s - self.tau[row, head])))
        gated[row] = s[row]
        return gated

    def always(self, row, sinks, pinned):
        full = (row + 1) // self.spec["block"]
        return [j < sinks or j >= full - pinned for j in range(full)]

    def in_window(self, row, length):
        keys = row + 1
        reach = math.ceil(length * keys) if length < 1 else int(length)
        b = self.spec["block"]
        return [(j + 1) * b - 1 >= keys - max(1, reach) for j in range(keys // b)]


def largest(values, open_blocks, count):
    order = sorted(open_blocks, key=lambda j: (-values[j], j))
    if 0 < count < len(order):
        gap = values[order[count - 1]] - values[order[count]]
        assert gap > CLEAR, f"a near tie: {gap}"
    return order[:count]


def window(sequence, row, head, length, sinks):
    return [a or w for a, w in zip(sequence.always(row, sinks, 0),
                                   sequence.in_window(row, length))]


def big_bird(sequence, row, head, length, stride):
    return [a or j % int(stride) == 0
            for j, a in enumerate(window(sequence, row, head, length, 1))]


def quest(sequence, row, head, share):
    admitted = sequence.always(row, SINKS, PINNED)
    b, d = sequence.spec["block"], sequence.spec["dim"]
    group = sequence.spec["heads"] // sequence.spec["kv_heads"]
    q = sequence.q[row, head].astype(np.float64)
    bounds = []
    for j in range(len(admitted)):
        keys = sequence.k[j * b:(j + 1) * b, head // group].astype(np.float64)
        bounds.append(sum(max(q[i] * keys[:, i].min(), q[i] * keys[:, i].max())
                          for i in range(d)))
    rest = [j for j, a in enumerate(admitted) if not a]
    for j in largest(bounds, rest, math.ceil(share * len(rest))):
        admitted[j] = True
    return admitted


def oracle(sequence, row, head, constant):
    admitted = sequence.always(row, SINKS, PINNED)
    weights = np.exp(sequence.logits(row, head))
    b = sequence.spec["block"]
    for j in range(len(admitted)):
        mass = math.log(weights[j * b:(j + 1) * b].sum() / weights.sum())
        assert abs(mass - constant) > CLEAR
        admitted[j] = admitted[j] or mass >= constant
    return admitted


class H2o:
    """One head. Sums are by key; a block's are added when blocks are compared."""

    def __init__(self, sequence, head, length, share):
        self.sequence, self.head, self.length, self.share = sequence, head, length, share
        self.mass = np.zeros(sequence.spec["tokens"])
        self.evicted = set()

    def attend(self, row, keys):
        weights = np.exp(self.sequence.logits(row, self.head)[keys])
        self.mass[keys] += weights / weights.sum()

    def prompt(self, row):
        self.attend(row, np.arange(row + 1))

    def choose(self, row):
        b = self.sequence.spec["block"]
        admitted = window(self.sequence, row, self.head, self.length, 1)
        outside = [j for j, a in enumerate(admitted) if not a]
        rest = [j for j in outside if j not in self.evicted]
        sums = [self.mass[j * b:(j + 1) * b].sum() for j in range(len(admitted))]
        for j in largest(sums, rest, min(len(rest), math.ceil(self.share * len(outside)))):
            admitted[j] = True
        self.evicted |= {j for j in rest if not admitted[j]}
        tail = range(len(admitted) * b, row + 1)
        self.attend(row, np.array([t for t in range(row + 1)
                                   if t in tail or admitted[t // b]]))
        return admitted


def expected(sequence, way):
    name, *numbers = way.split(":")
    # As the product reads them: float32.
    numbers = [float(np.float32(number)) for number in numbers]
    spec = sequence.spec
    out = np.zeros((spec["tokens"] - spec["prompt"], spec["heads"], sequence.blocks), np.uint8)
    for head in range(spec["heads"]):
        if name == "h2o":
            state = H2o(sequence, head, *numbers)
            for row in range(spec["prompt"]):
                state.prompt(row)
            choose = state.choose
        else:
            rule = {"window": lambda r, n: window(sequence, r, head, n, 0),
                    "streaming": lambda r, n: window(sequence, r, head, n, 1),
                    "bigbird": lambda r, n, m: big_bird(sequence, r, head, n, m),
                    "quest": lambda r, n: quest(sequence, r, head, n),
                    "oracle": lambda r, n: oracle(sequence, r, head, n)}[name]
            choose = lambda row: rule(row, *numbers)
        for row in range(spec["prompt"], spec["tokens"]):
            admitted = choose(row)
            out[row - spec["prompt"], head, :len(admitted)] = admitted
    return out


def main():
    for name, spec in CASES.items():
        sequence = Sequence(spec)
        tensors = {"q": sequence.q, "k": sequence.k, "tau": sequence.tau}
        for way in spec["ways"]:
            tensors[way] = expected(sequence, way)
            print(f"{name} {way}: {tensors[way].mean():.3f}")
        metadata = {"block_size": str(spec["block"]), "prompt_rows": str(spec["prompt"]),
                    "gate": spec["gate"], "beta": str(spec["beta"]),
                    "sink_blocks": str(SINKS), "pinned_blocks": str(PINNED)}
        save_file(tensors, pathlib.Path(__file__).with_name(f"{name}.safetensors"), metadata)


if __name__ == "__main__":
    main()
