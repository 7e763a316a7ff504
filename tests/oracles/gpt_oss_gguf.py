"""The small gpt-oss of tests/golden/families as a GGUF file, by the names and layouts of llama.cpp's
converter.

YaRN's ramp ends at whole pairs, or all but: llama.cpp takes whole ones, whatever the model's are.
"""
import json
import math
import pathlib
import struct

import gguf
import numpy

ARCHITECTURE = "gpt-oss"
RAMP = (2.00001, 11.99999)  # in pairs
ATTENTION = {"attn_q": "q_proj", "attn_k": "k_proj", "attn_v": "v_proj", "attn_output": "o_proj"}


def read_bfloat16(path):
    """Tensors of a safetensors file as float32."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] == "BF16", name
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        halves = numpy.frombuffer(data[begin:end], dtype="<u2").astype(numpy.uint32)
        tensors[name] = (halves << 16).view(numpy.float32).reshape(entry["shape"])
    return tensors


def write(folder, path, context):
    """Returns the size of the vocabulary, which has one token more than the folder's: llama.cpp wants
    a merge."""
    folder = pathlib.Path(folder)
    config = json.loads((folder / "config.json").read_text())
    tensors = read_bfloat16(folder / "model.safetensors")
    scaling, theta, head_dim = config["rope_scaling"], config["rope_theta"], config["head_dim"]
    original = scaling["original_max_position_embeddings"]
    turns = [original / (2.0 * math.pi * theta ** (2.0 * pair / head_dim)) for pair in RAMP]
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.get) + ["ab"]
    chance = numpy.random.default_rng(3)

    file = gguf.GGUFWriter(path, ARCHITECTURE)
    file.add_block_count(config["num_hidden_layers"])
    file.add_context_length(context)
    file.add_embedding_length(config["hidden_size"])
    file.add_feed_forward_length(config["intermediate_size"])
    file.add_expert_feed_forward_length(config["intermediate_size"])
    file.add_expert_count(config["num_local_experts"])
    file.add_expert_used_count(config["num_experts_per_tok"])
    file.add_head_count(config["num_attention_heads"])
    file.add_head_count_kv(config["num_key_value_heads"])
    file.add_key_length(head_dim)
    file.add_value_length(head_dim)
    file.add_layer_norm_rms_eps(config["rms_norm_eps"])
    file.add_sliding_window(config["sliding_window"])
    file.add_rope_freq_base(theta)
    file.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    file.add_rope_scaling_factor(scaling["factor"])
    file.add_rope_scaling_orig_ctx_len(original)
    file.add_float32(f"{ARCHITECTURE}.rope.scaling.yarn_beta_fast", turns[0])
    file.add_float32(f"{ARCHITECTURE}.rope.scaling.yarn_beta_slow", turns[1])
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("gpt-4o")
    file.add_token_list(tokens)
    file.add_token_types([3] + [1] * (len(tokens) - 1))
    file.add_token_merges(["a b"])
    file.add_eos_token_id(0)

    def add(name, values):
        file.add_tensor(name, numpy.ascontiguousarray(values, dtype=numpy.float32))
    for name, of in (("token_embd", "model.embed_tokens"), ("output", "lm_head")):
        rows = tensors[of + ".weight"]
        one = chance.normal(0, 0.2, (1, rows.shape[1]))
        add(name + ".weight", numpy.concatenate([rows, one]))
    add("output_norm.weight", tensors["model.norm.weight"])
    for layer in range(config["num_hidden_layers"]):
        block, of = f"blk.{layer}.", f"model.layers.{layer}."
        add(block + "attn_norm.weight", tensors[of + "input_layernorm.weight"])
        add(block + "post_attention_norm.weight", tensors[of + "post_attention_layernorm.weight"])
        add(block + "attn_sinks.weight", tensors[of + "self_attn.sinks"])
        for kind in ("weight", "bias"):
            for name, part in ATTENTION.items():
                add(f"{block}{name}.{kind}", tensors[f"{of}self_attn.{part}.{kind}"])
            add(f"{block}ffn_gate_inp.{kind}", tensors[f"{of}mlp.router.{kind}"])
        experts = of + "mlp.experts."
        both = tensors[experts + "gate_up_proj"].swapaxes(1, 2)
        biases = tensors[experts + "gate_up_proj_bias"]
        for first, name in enumerate(("gate", "up")):
            add(f"{block}ffn_{name}_exps.weight", both[:, first::2])
            add(f"{block}ffn_{name}_exps.bias", biases[:, first::2])
        add(block + "ffn_down_exps.weight", tensors[experts + "down_proj"].swapaxes(1, 2))
        add(block + "ffn_down_exps.bias", tensors[experts + "down_proj_bias"])
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return len(tokens)
