#!/usr/bin/env python3
"""Writes plain.safetensors and gated.safetensors: which blocks or keys the rivals of the product's
selection admit in a random sequence, by plain loops in float64.

  python3 -m venv V && V/bin/pip install numpy==2.4.6 safetensors==0.8.0
  V/bin/python tests/golden/rivals/make_rivals.py

Given: q [T, HQ, d], k, v [T, HKV, d], tau [T, HQ], float32; keys at the positions of `tempered` have
the gated logit 0. The first `prompt_rows` rows attend to all keys; the others choose. Expected, by
the name of the way of attending: uint8 [T - prompt_rows, HQ, T / b], 1 where the head of the row
admits the block. Of ways that choose by key, bigbird and h2o, it is the output, float32 [T -
prompt_rows, HQ, d], with the uniform floor where there is a gate; "WAY attended" [rows, HQ] and "WAY
read" [rows, HKV], int32, count the keys of heads and groups. Ways other than those of locality read
`sink_blocks` first and `pinned_blocks` last blocks always; streaming and h2o_blocks one sink block,
bigbird and h2o 4 sink keys.
"""
import math
import pathlib

import numpy as np
from safetensors.numpy import save_file

# A choice that lies nearer than this would depend on rounding.
CLEAR = 3e-5

CASES = {
    "plain": dict(seed=3, tokens=157, prompt=61, heads=4, kv_heads=2, dim=32, block=8, gate="none",
                  beta=1.0, tempered=[],
                  ways=["window:24", "window:0.3", "streaming:20", "streaming:0.25",
                        "bigbird:24:5", "h2o:24:0.25", "h2o:0.1:0.1", "h2o_blocks:24:0.25",
                        "h2o_blocks:0.1:0.1", "quest:0.3:0", "oracle:-3.0"]),
    "gated": dict(seed=5, tokens=122, prompt=50, heads=3, kv_heads=1, dim=16, block=4, gate="silu",
                  beta=5.0, tempered=[0, 33, 97],
                  ways=["window:16", "streaming:16", "bigbird:12:7", "h2o:16:0.2", "h2o:0.15:0.3",
                        "h2o_blocks:16:0.2", "h2o_blocks:0.15:0.3", "quest:0.25:0"]),
}
SINKS, PINNED = 1, 2
SINK_KEYS = 4
BY_KEY = ("bigbird", "h2o")


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
        self.v = draw.normal(0, 1, self.k.shape).astype(np.float32)
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
        gated[[t for t in self.spec["tempered"] if t <= row]] = 0.0
        gated[row] = s[row]
        return gated

    def output(self, row, head, admitted):
        """Over the keys that are admitted; pruned ones weigh exp(0) where there is a gate."""
        weights = np.where(admitted, np.exp(self.logits(row, head)),
                           0.0 if self.spec["gate"] == "none" else 1.0)
        group = self.spec["heads"] // self.spec["kv_heads"]
        return weights @ self.v[:row + 1, head // group].astype(np.float64) / weights.sum()

    def always(self, row, sinks, pinned):
        full = (row + 1) // self.spec["block"]
        return [j < sinks or j >= full - pinned for j in range(full)]

    def in_window(self, row, length):
        """Of each key of the row."""
        keys = row + 1
        reach = math.ceil(length * keys) if length < 1 else int(length)
        return [t >= keys - max(1, reach) for t in range(keys)]


def largest(values, open_blocks, count):
    order = sorted(open_blocks, key=lambda j: (-values[j], j))
    if 0 < count < len(order):
        gap = values[order[count - 1]] - values[order[count]]
        assert gap > CLEAR, f"a near tie: {gap}"
    return order[:count]


def window(sequence, row, length, sinks):
    b = sequence.spec["block"]
    keys = sequence.in_window(row, length)
    return [a or any(keys[j * b:(j + 1) * b])
            for j, a in enumerate(sequence.always(row, sinks, 0))]


def last_keys(sequence, row, length):
    return [t < SINK_KEYS or w for t, w in enumerate(sequence.in_window(row, length))]


def big_bird(sequence, row, length, stride):
    return [a or t % int(stride) == 0 for t, a in enumerate(last_keys(sequence, row, length))]


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
    """One head, which keeps units of one key or of a block. Sums are by key; a unit's are added when
    units are compared."""

    def __init__(self, sequence, head, by_key, length, share):
        self.sequence, self.head, self.length, self.share = sequence, head, length, share
        self.by_key = by_key
        self.unit = 1 if by_key else sequence.spec["block"]
        self.mass = np.zeros(sequence.spec["tokens"])
        self.evicted = set()

    def attend(self, row, keys):
        weights = np.exp(self.sequence.logits(row, self.head)[keys])
        self.mass[keys] += weights / weights.sum()

    def prompt(self, row):
        self.attend(row, np.arange(row + 1))

    def choose(self, row):
        b = self.unit
        admitted = (last_keys(self.sequence, row, self.length) if self.by_key
                    else window(self.sequence, row, self.length, 1))
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
    rows, by_key = spec["tokens"] - spec["prompt"], name in BY_KEY
    out = np.zeros((rows, spec["heads"], spec["tokens"] if by_key else sequence.blocks), np.uint8)
    for head in range(spec["heads"]):
        if name in ("h2o", "h2o_blocks"):
            state = H2o(sequence, head, by_key, *numbers)
            for row in range(spec["prompt"]):
                state.prompt(row)
            choose = state.choose
        else:
            rule = {"window": lambda r, n: window(sequence, r, n, 0),
                    "streaming": lambda r, n: window(sequence, r, n, 1),
                    "bigbird": lambda r, n, m: big_bird(sequence, r, n, m),
                    "quest": lambda r, n, dense: quest(sequence, r, head, n),
                    "oracle": lambda r, n: oracle(sequence, r, head, n)}[name]
            choose = lambda row: rule(row, *numbers)
        for row in range(spec["prompt"], spec["tokens"]):
            admitted = choose(row)
            out[row - spec["prompt"], head, :len(admitted)] = admitted
    if not by_key:
        return {way: out}
    outputs = np.zeros((rows, spec["heads"], spec["dim"]), np.float32)
    for i in range(rows):
        row = i + spec["prompt"]
        for head in range(spec["heads"]):
            outputs[i, head] = sequence.output(row, head, out[i, head, :row + 1] == 1)
    groups = out.reshape(rows, spec["kv_heads"], -1, spec["tokens"])
    return {way: outputs, f"{way} attended": out.sum(-1, dtype=np.int32),
            f"{way} read": groups.any(2).sum(-1, dtype=np.int32)}


def main():
    for name, spec in CASES.items():
        sequence = Sequence(spec)
        tensors = {"q": sequence.q, "k": sequence.k, "v": sequence.v, "tau": sequence.tau}
        for way in spec["ways"]:
            tensors |= expected(sequence, way)
            print(f"{name} {way}: {tensors.get(f'{way} attended', tensors[way]).mean():.3f}")
        metadata = {"block_size": str(spec["block"]), "prompt_rows": str(spec["prompt"]),
                    "gate": spec["gate"], "beta": str(spec["beta"]),
                    "tempered": " ".join(str(t) for t in spec["tempered"]),
                    "sink_blocks": str(SINKS), "pinned_blocks": str(PINNED)}
        save_file(tensors, pathlib.Path(__file__).with_name(f"{name}.safetensors"), metadata)


if __name__ == "__main__":
    main()
