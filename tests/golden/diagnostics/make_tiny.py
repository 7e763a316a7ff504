#!/usr/bin/env python3
"""Writes tiny/: a small random checkpoint with a gate, and in expected.safetensors what diagnostics
must make of it over a text: a forward pass in float64 by eta-semantics.md, with full attention and
with the block-sparse attention of a gated model's defaults, and the measures of make_diagnostics.py.

  V/bin/python tests/golden/diagnostics/make_tiny.py
"""
import json
import os

import numpy as np

import make_diagnostics as md

LAYERS, MODEL, FFN, HQ, HKV, D, VOCAB = 2, 32, 48, 4, 2, 16, 96
BLOCK, BETA, THETA, EPS = 16, 5.0, 10000.0, 1e-5
TOKENS, FIRST, STRIDE = 180, 40, 20  # rows from FIRST on are decode rows; one in STRIDE is recorded
Z, PINNED = 1.5, 2
SPEC = ("envelope", BLOCK)
# What float32 may move: scores, and bounds, whose records are rounded to float16.
SCORE_MARGIN, BOUND_MARGIN = 5e-5, 4e-4


def weights(draw):
    def matrix(rows, cols, scale=1.0):
        return draw.normal(0, scale / np.sqrt(cols), (rows, cols)).astype(np.float32)
    out = {"model.embed_tokens.weight": draw.normal(0, 1, (VOCAB, MODEL)).astype(np.float32),
           "model.norm.weight": draw.uniform(0.8, 1.2, MODEL).astype(np.float32)}
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        out[p + "input_layernorm.weight"] = draw.uniform(0.8, 1.2, MODEL).astype(np.float32)
        out[p + "post_attention_layernorm.weight"] = draw.uniform(0.8, 1.2, MODEL).astype(np.float32)
        out[p + "self_attn.q_proj.weight"] = matrix(HQ * D, MODEL, 1.6)
        out[p + "self_attn.k_proj.weight"] = matrix(HKV * D, MODEL, 1.6)
        out[p + "self_attn.v_proj.weight"] = matrix(HKV * D, MODEL)
        out[p + "self_attn.o_proj.weight"] = matrix(MODEL, HQ * D)
        out[p + "self_attn.tau_proj.weight"] = matrix(HQ, HQ * D, 0.4)
        out[p + "self_attn.tau_proj.bias"] = draw.normal(4.0, 0.5, HQ).astype(np.float32)
        out[p + "mlp.gate_proj.weight"] = matrix(FFN, MODEL)
        out[p + "mlp.up_proj.weight"] = matrix(FFN, MODEL)
        out[p + "mlp.down_proj.weight"] = matrix(MODEL, FFN)
    return out


def norm(x, weight):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPS) * weight


def rope(x):  # [T, heads, D]
    half = D // 2
    angle = np.arange(len(x))[:, None] * THETA ** (-2 * np.arange(half) / D)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


class Tie(Exception):
    pass


def attend(layer, t, h, sparse):
    """Output [D], tokens attended, and the blocks that the head admits."""
    logits = layer.gated(t, h)
    v = layer.v[:t + 1, h // layer.group].astype(np.float64)
    full = (t + 1) // BLOCK
    seen = np.ones(t + 1, bool)
    admitted = np.ones(full, bool)
    if sparse:
        bounds, tau = layer.bounds(SPEC, t, h), float(layer.tau[t, h])
        if full and np.abs(bounds - tau).min() < BOUND_MARGIN:
            raise Tie
        admitted = bounds >= tau
        admitted[max(0, full - PINNED):] = True
        seen = np.append(np.repeat(admitted, BLOCK), np.ones(t + 1 - full * BLOCK, bool))
    w = np.where(seen, np.exp(logits), 1.0)  # the uniform floor
    return w @ v / w.sum(), int(seen.sum()), admitted


def forward(w, tokens, sparse):
    """Layers as Attention with all rows, residuals behind each, logits, tokens attended and read."""
    x = w["model.embed_tokens.weight"].astype(np.float64)[tokens]
    layers, residuals = [], []
    attended = np.zeros((LAYERS, HQ))
    read = np.zeros((LAYERS, HKV))
    for i in range(LAYERS):
        weight = lambda name: w[f"model.layers.{i}.{name}.weight"].astype(np.float64)
        hidden = norm(x, weight("input_layernorm"))
        heads = lambda name: (hidden @ weight("self_attn." + name).T).reshape(len(tokens), -1, D)
        q, k, v = rope(heads("q_proj")), rope(heads("k_proj")), heads("v_proj")
        tau = (q.reshape(len(tokens), -1) @ weight("self_attn.tau_proj").T
               + w[f"model.layers.{i}.self_attn.tau_proj.bias"])
        layer = md.Attention(True, BETA, list(range(len(tokens))), q, k.astype(np.float32),
                             v.astype(np.float32), tau, np.linalg.norm(x, axis=1),
                             np.zeros(0, np.uint8), None, None, [SPEC])
        layer.z = Z
        out = np.zeros((len(tokens), HQ, D))
        for t in range(len(tokens)):
            groups = [[] for _ in range(HKV)]
            for h in range(HQ):
                prunes = sparse and t >= FIRST
                out[t, h], count, blocks = attend(layer, t, h, prunes)
                groups[h // layer.group].append(blocks)
                if t >= FIRST:
                    attended[i, h] += count / (t + 1)
            for g, blocks in enumerate(groups):
                union = np.any(blocks, axis=0).sum() * BLOCK + (t + 1) % BLOCK
                if t >= FIRST:
                    read[i, g] += union / (t + 1)
        x = x + out.reshape(len(tokens), -1) @ weight("self_attn.o_proj").T
        hidden = norm(x, weight("post_attention_layernorm"))
        gate = hidden @ weight("mlp.gate_proj").T
        x = x + (gate * md.sigma(gate) * (hidden @ weight("mlp.up_proj").T)) @ weight("mlp.down_proj").T
        layers.append(layer)
        residuals.append(x)
    logits = norm(x, w["model.norm.weight"].astype(np.float64)) @ w["model.embed_tokens.weight"].T
    return layers, residuals, logits, attended, read


def recorded(layer, positions):
    rows = md.Attention(True, BETA, positions, layer.q[positions], layer.k, layer.v,
                        layer.tau[positions], layer.x_norm[positions], layer.tempered, None, None,
                        [SPEC])
    rows.z = Z
    for r, h in rows.each():
        if np.abs(rows.scores(r, h) - rows.tau[r, h]).min() < SCORE_MARGIN:
            raise Tie
        if np.abs(rows.bounds(SPEC, r, h) - rows.tau[r, h]).min(initial=1) < BOUND_MARGIN:
            raise Tie
    return rows


def aligned(full, sparse, positions):
    """Sums of cosine, shift, KL, the same best token, and rows: by layer, then of logits."""
    sums = np.zeros((LAYERS + 1, 5))
    for i in range(LAYERS):
        for t in positions:
            a, b = full[1][i][t], sparse[1][i][t]
            sums[i] += [a @ b / np.linalg.norm(a) / np.linalg.norm(b),
                        np.linalg.norm(a - b) / np.linalg.norm(a), 0, 0, 1]
    for t in positions:
        a, b = full[2][t], sparse[2][t]
        p = md.softmax(a)
        sums[LAYERS] += [a @ b / np.linalg.norm(a) / np.linalg.norm(b), 0,
                         (p * (np.log(p) - (b - md.lse(b)))).sum(), a.argmax() == b.argmax(), 1]
    return sums


def make(seed):
    draw = np.random.default_rng(seed)
    w = weights(draw)
    tokens = draw.integers(0, VOCAB, TOKENS).astype(np.int32)
    full, sparse = forward(w, tokens, False), forward(w, tokens, True)
    positions = list(range(FIRST, TOKENS, STRIDE))
    tensors = {"tokens": tokens, "alignment": aligned(full, sparse, positions),
               "attended": sparse[3], "read": sparse[4]}
    for i in range(LAYERS):
        rows = recorded(full[0][i], positions)
        for name, values in {**rows.expected(), "index": rows.index(SPEC)}.items():
            tensors[f"{name}.{i}"] = values
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
    os.makedirs(folder, exist_ok=True)
    md.write("tiny/model", {"format": "pt"}, w)
    md.write("tiny/expected", {"z": Z, "first": FIRST, "stride": STRIDE}, tensors)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump({"model_type": "eta", "vocab_size": VOCAB, "hidden_size": MODEL,
                   "intermediate_size": FFN, "num_hidden_layers": LAYERS,
                   "num_attention_heads": HQ, "num_key_value_heads": HKV, "head_dim": D,
                   "rms_norm_eps": EPS, "rope_theta": THETA, "max_position_embeddings": 1024,
                   "tie_word_embeddings": True, "hidden_act": "silu", "torch_dtype": "float32",
                   "eta_beta": BETA, "eta_gate": "silu", "eta_block_size": BLOCK}, file, indent=1)
        file.write("\n")
    return tensors


def main():
    for seed in range(1000):
        try:
            tensors = make(seed)
        except Tie:
            continue
        print("seed", seed, "alignment", tensors["alignment"].round(3).tolist(), "attended",
              (tensors["attended"] / (TOKENS - FIRST)).round(2).tolist(), "index",
              tensors["index.0"].round(2).tolist())
        return


if __name__ == "__main__":
    main()
