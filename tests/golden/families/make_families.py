"""Checkpoints of every family, small and random, and their logits by Hugging Face transformers.

    pip install torch transformers accelerate safetensors
    python tests/golden/families/make_families.py NEW_FOLDER

Each case becomes a folder of it: a checkpoint as transformers saves it, and case.safetensors with
the tokens and, for the prompt's last position and every later one but the last, the logits in
float32. Some config.json use the words of older files. Weights are numbers that
their 16-bit type holds exactly. Made with torch 2.15.0 and transformers 5.24.0.
"""

import copy
import json
import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM

VOCABULARY = 257
ROWS = 16  # of logits
TOKENS = 176  # of a case that says nothing else: two full blocks of 64 and a tail

PLAIN = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=64, rms_norm_eps=1e-5, max_position_embeddings=512,
             rope_parameters={"rope_type": "default", "rope_theta": 10000.0})

GPT_OSS = dict(num_local_experts=6, num_experts_per_tok=3, sliding_window=40,
               num_attention_heads=8, max_position_embeddings=4096,
               rope_parameters={"rope_type": "yarn", "rope_theta": 150000.0, "factor": 8.0,
                                "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                                "original_max_position_embeddings": 512})
# As the published files have it.
GPT_OSS_OLDER = {"rope_parameters": None, "rope_theta": 150000.0, "swiglu_alpha": None,
                 "layer_types": None, "initial_context_length": 512, "experts_per_token": 3,
                 "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "beta_fast": 32.0,
                                  "beta_slow": 1.0, "truncate": False,
                                  "original_max_position_embeddings": 512}}

EXPERTS = dict(num_experts=8, num_experts_per_tok=3, moe_intermediate_size=24)


def rope(kind, theta=10000.0, **fields):
    return {"rope_type": kind, "rope_theta": theta, **fields}


def gemma_rope(local=10000.0, **full):
    return {"full_attention": full, "sliding_attention": rope("default", local)}


# `type`: the family; `config`: what differs from PLAIN; `tokens`: of the case; `older`: fields of
# config.json as older files have them, null: left out; `names`: those that say null; `without`: what
# of the config must change the logits; `head`: lm_head.weight is shipped, the embedding or its own;
# `with_vision`: the model is the text part of one that also sees, as Gemma's files have it; `seed`:
# of its numbers, by default its place here.
CASES = {
    "mistral": {
        "type": "mistral",
        "config": dict(sliding_window=None, head_dim=128, rope_parameters=rope("default", 1e6)),
        "stored": torch.bfloat16,
        "nulls": ["sliding_window"],
    },
    # The window holds the whole case, and not a token more.
    "mistral-window": {
        "type": "mistral",
        "config": dict(sliding_window=TOKENS),
        "older": {"rope_parameters": None, "rope_theta": 10000.0},
    },
    "qwen2": {
        "type": "qwen2",
        "config": dict(num_attention_heads=7, num_key_value_heads=1,
                       rope_parameters=rope("default", 1e6)),
    },
    # With a window that is not used.
    "qwen2-tied": {
        "type": "qwen2",
        "config": dict(tie_word_embeddings=True, hidden_size=64, head_dim=None,
                       num_attention_heads=4, num_key_value_heads=4),
        "stored": torch.bfloat16,
        "older": {"use_sliding_window": False, "sliding_window": 32, "max_window_layers": 2,
                  "layer_types": None, "head_dim": None},
    },
    # The last two of five layers see a part of the case, which does not end where a block does.
    "qwen2-window": {
        "type": "qwen2",
        "config": dict(num_hidden_layers=5, use_sliding_window=True, sliding_window=70,
                       max_window_layers=3),
        "stored": torch.bfloat16,
        "older": {"layer_types": None},
        "without": dict(layer_types=["full_attention"] * 5),
    },
    "qwen3-tied": {
        "type": "qwen3",
        "config": dict(tie_word_embeddings=True, head_dim=128, rms_norm_eps=1e-6,
                       rope_parameters=rope("default", 1e6)),
        "stored": torch.bfloat16,
    },
    "qwen3-bias": {
        "type": "qwen3",
        "config": dict(attention_bias=True, num_attention_heads=3, num_key_value_heads=1),
        "without": dict(attention_bias=False),
    },
    "llama-bias": {
        "type": "llama",
        "config": dict(attention_bias=True),
        "without": dict(attention_bias=False),
    },
    "llama-d96-g1": {
        "type": "llama",
        "config": dict(num_attention_heads=2, head_dim=96),
    },
    "llama-g16": {
        "type": "llama",
        "config": dict(hidden_size=16, num_attention_heads=16, num_key_value_heads=1),
    },
    # Longer than max_position_embeddings, which older files give for the length before scaling.
    "linear": {
        "type": "llama",
        "config": dict(max_position_embeddings=64, rope_parameters=rope("linear", factor=4.0)),
        "older": {"rope_parameters": None, "rope_theta": 10000.0,
                  "rope_scaling": {"type": "linear", "factor": 4.0}},
        "without": dict(rope_parameters=rope("default")),
    },
    # One and a half times as long as the trained length.
    "dynamic": {
        "type": "llama",
        "config": dict(max_position_embeddings=128, rope_parameters=rope("dynamic", factor=2.0)),
        "tokens": 192,
        "older": {"rope_parameters": None, "rope_theta": 10000.0,
                  "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
        "without": dict(rope_parameters=rope("default")),
    },
    "yarn": {
        "type": "qwen2",
        "config": dict(max_position_embeddings=64, head_dim=None, hidden_size=64,
                       num_attention_heads=1, num_key_value_heads=1,
                       rope_parameters=rope("yarn", 1e6, factor=4.0,
                                            original_max_position_embeddings=64)),
        "older": {"rope_parameters": None, "rope_theta": 1e6, "head_dim": None,
                  "rope_scaling": {"type": "yarn", "factor": 4.0,
                                   "original_max_position_embeddings": 64}},
        "without": dict(rope_parameters=rope("default", 1e6)),
    },
    "yarn-mscale": {
        "type": "qwen3",
        "config": dict(max_position_embeddings=256, head_dim=96,
                       rope_parameters=rope("yarn", factor=8.0, beta_fast=24.0, beta_slow=2.0,
                                            mscale=1.0, mscale_all_dim=0.5, truncate=False,
                                            original_max_position_embeddings=32)),
        "without": dict(rope_parameters=rope("default")),
    },
    "yarn-attention-factor": {
        "type": "llama",
        "config": dict(max_position_embeddings=256,
                       rope_parameters=rope("yarn", 5e5, factor=2.0, attention_factor=0.75,
                                            original_max_position_embeddings=128)),
        "without": dict(rope_parameters=rope("default", 5e5)),
    },
    "tied-head-shipped": {
        "type": "llama",
        "config": dict(tie_word_embeddings=True, num_attention_heads=2, num_key_value_heads=1),
        "head": "embedding",
    },
    # Both are there and differ: transformers then takes the head.
    "tied-head-differs": {
        "type": "llama",
        "config": dict(tie_word_embeddings=True, num_attention_heads=2, num_key_value_heads=1),
        "head": "own",
    },
    "qwen3-moe": {
        "type": "qwen3_moe",
        "config": dict(EXPERTS, norm_topk_prob=True),
        "stored": torch.bfloat16,
        "older": {"num_local_experts": None, "num_experts": 8},
        "without": dict(norm_topk_prob=False),
    },
    # Of four layers the second alone has experts; their weights are left as the softmax gives them.
    "qwen3-moe-mixed": {
        "type": "qwen3_moe",
        "config": dict(EXPERTS, num_hidden_layers=4, decoder_sparse_step=2, mlp_only_layers=[3],
                       attention_bias=True),
        "without": dict(norm_topk_prob=True),
    },
    # The fourth of five layers has no RoPE, the head is the embedding and the base is 2e6, none of
    # which config.json says.
    "smollm3": {
        "type": "smollm3",
        "config": dict(num_hidden_layers=5, num_key_value_heads=1, pad_token_id=0,
                       rope_parameters=rope("default", 2e6)),
        "stored": torch.bfloat16,
        "older": {"rope_parameters": None, "no_rope_layers": None, "no_rope_layer_interval": None,
                  "layer_types": None, "tie_word_embeddings": None},
        "without": dict(no_rope_layers=[1] * 5),
    },
    # With biases, and RoPE in the second layer alone, which is stretched.
    "smollm3-list": {
        "type": "smollm3",
        "config": dict(num_hidden_layers=3, no_rope_layers=[0, 1, 0], attention_bias=True,
                       tie_word_embeddings=False, max_position_embeddings=128, pad_token_id=0,
                       rope_parameters=rope("yarn", 1e6, factor=2.0,
                                            original_max_position_embeddings=128)),
        "without": dict(no_rope_layers=[0, 0, 0]),
    },
    # The second layer has no RoPE and a window, which holds the whole case.
    "smollm3-window": {
        "type": "smollm3",
        "config": dict(no_rope_layer_interval=2, use_sliding_window=True, sliding_window=TOKENS,
                       pad_token_id=0),
        "older": {"no_rope_layers": None, "layer_types": None},
        "without": dict(no_rope_layers=[1, 1]),
    },
    # Every layer sees a part of the case.
    "mistral-sliding": {
        "type": "mistral",
        "config": dict(sliding_window=50),
        "without": dict(sliding_window=None),
    },
    # A window of one block before a full layer, as they are listed.
    "qwen3-sliding": {
        "type": "qwen3",
        "config": dict(use_sliding_window=True, sliding_window=64,
                       layer_types=["sliding_attention", "full_attention"]),
        "without": dict(layer_types=["full_attention"] * 2),
    },
    # Two layers with a window, a full one and a window again. Only the full layer's RoPE is
    # stretched; max_position_embeddings is its length behind that. The embedding's scale is no
    # number of the stored type.
    "gemma3": {
        "type": "gemma3_text",
        "config": dict(hidden_size=40, num_hidden_layers=4, num_attention_heads=2,
                       num_key_value_heads=1, head_dim=256, query_pre_attn_scalar=256,
                       sliding_window=70, tie_word_embeddings=True, rms_norm_eps=1e-6,
                       layer_types=["sliding_attention"] * 2 + ["full_attention",
                                                                "sliding_attention"],
                       rope_parameters=gemma_rope(**rope("linear", 1e6, factor=8.0))),
        "stored": torch.bfloat16,
        "older": {"layer_types": None, "sliding_window_pattern": 3, "rope_parameters": None,
                  "rope_theta": 1e6, "rope_local_base_freq": 10000.0, "head_dim": None,
                  "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "rms_norm_eps": None,
                  "tie_word_embeddings": None, "hidden_activation": None,
                  "query_pre_attn_scalar": None},
        "without": dict(layer_types=["full_attention"] * 4),
    },
    # As transformers 5 writes it, with a head of its own.
    "gemma3-kinds": {
        "type": "gemma3_text",
        "config": dict(hidden_size=40, num_hidden_layers=3, sliding_window=33,
                       tie_word_embeddings=False, query_pre_attn_scalar=168,
                       layer_types=["full_attention"] + ["sliding_attention"] * 2,
                       rope_parameters=gemma_rope(5000.0, **rope("default", 2e5))),
        "without": dict(rope_parameters=gemma_rope(2e5, **rope("default", 2e5))),
    },
    "gemma3-vision": {
        "type": "gemma3_text",
        "config": dict(hidden_size=40, num_hidden_layers=2, sliding_window=64,
                       tie_word_embeddings=True, query_pre_attn_scalar=64,
                       layer_types=["sliding_attention", "full_attention"],
                       rope_parameters=gemma_rope(**rope("default", 1e6))),
        "stored": torch.bfloat16,
        "with_vision": True,
        "without": dict(query_pre_attn_scalar=16),
    },
    # Every second layer has a window, heads have sinks, experts biases, and RoPE is stretched by
    # parts of pairs.
    "gpt-oss": {
        "type": "gpt_oss",
        "seed": 24,
        "config": dict(GPT_OSS, num_hidden_layers=3),
        "stored": torch.bfloat16,
        "older": GPT_OSS_OLDER,
        "without": dict(sliding_window=TOKENS),
    },
    # The experts in blocks of 4 bits.
    "gpt-oss-mxfp4": {
        "type": "gpt_oss",
        "seed": 25,
        "config": dict(GPT_OSS, hidden_size=64, intermediate_size=96, num_key_value_heads=1),
        "stored": torch.bfloat16,
        "older": GPT_OSS_OLDER | {
            "quantization_config": {"quant_method": "mxfp4",
                                    "modules_to_not_convert": ["model.layers.*.self_attn"]}},
        "packed": True,
        "without": dict(swiglu_limit=100.0),
    },
}


def randomize(model, generator):
    """Projections keep the scale of their input; queries are raised so that scores spread, and
    routers so that choices are clear."""
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        raised = 1.5 if "q_proj" in name or "q_norm" in name or "mlp.gate." in name else 1.0
        if name.endswith("norm.weight"):
            values = raised * (1.0 + 0.2 * noise) - (1.0 if model.config.model_type ==
                                                     "gemma3_text" else 0.0)
        elif name.endswith("bias"):
            values = 0.5 * noise
        elif name.endswith("sinks"):
            values = 2.0 * noise
        elif name.endswith("router.weight"):
            values = noise * 1.5 / weight.shape[-1] ** 0.5
        elif "experts" in name and model.config.model_type == "gpt_oss":  # they are transposed
            raised = 3.0 if "gate_up" in name else 1.0  # some numbers reach the clamps
            values = noise * raised / weight.shape[-2] ** 0.5
        else:
            values = noise * raised / weight.shape[-1] ** 0.5
        weight.data.copy_(values)


def byte_tokenizer():
    """One token a byte and an end of text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"</s>": 0} | {letter: i + 1 for i, letter in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def logits_of(model, tokens):
    with torch.no_grad():
        return model(tokens[None], use_cache=False).logits[0, -ROWS - 1 : -1]


def ship_head(folder, kind, generator):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    head = tensors["model.embed_tokens.weight"].clone()
    if kind == "own":
        head = (torch.randn(head.shape, generator=generator) / head.shape[-1] ** 0.5).to(head.dtype)
    save_file(tensors | {"lm_head.weight": head}, path, {"format": "pt"})


def pack_experts(folder):
    """The experts' numbers as blocks of 32 with a power of two for each, which begins with the
    greatest magnitude as 4 or 6."""
    path = folder / "model.safetensors"
    tensors = {}
    steps = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    for name, tensor in load_file(path).items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            tensors[name] = tensor
            continue
        rows = tensor.float().transpose(1, 2)
        blocks = rows.reshape(*rows.shape[:2], -1, 32)
        exponents = blocks.abs().amax(-1).log2().floor() - 2.0
        scaled = blocks / exponents.exp2()[..., None]
        codes = (scaled.abs()[..., None] - steps).abs().argmin(-1) + 8 * (scaled < 0)
        tensors[name + "_blocks"] = (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8)
        tensors[name + "_scales"] = (exponents + 127.0).to(torch.uint8)
    save_file(tensors, path, {"format": "pt"})


def rewrite_config(folder, case):
    path = folder / "config.json"
    fields = json.loads(path.read_text())
    for name, value in case.get("older", {}).items():
        fields.pop(name, None)
        if value is not None:
            fields[name] = value
    for name in case.get("nulls", []):
        fields[name] = None
    path.write_text(json.dumps(fields, indent=2) + "\n")


def load(folder, stored, config=None):
    model = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32,
                                                 attn_implementation="eager").eval()
    embedding = model.get_input_embeddings()
    if hasattr(embedding, "embed_scale"):  # as it is where the weights keep their type
        embedding.embed_scale = embedding.embed_scale.to(stored).float()
    return model


def add_vision(folder):
    """Makes the checkpoint one of a model that also sees: other names, and tensors of a tower."""
    path = folder / "model.safetensors"
    tensors = {"language_model." + name: tensor for name, tensor in load_file(path).items()}
    some = torch.zeros(4, 4, dtype=next(iter(tensors.values())).dtype)
    tensors["vision_tower.vision_model.post_layernorm.weight"] = some
    tensors["multi_modal_projector.mm_input_projection_weight"] = some.clone()
    save_file(tensors, path, {"format": "pt"})
    text = json.loads((folder / "config.json").read_text())
    whole = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
             "eos_token_id": text.pop("eos_token_id"), "dtype": text.pop("dtype"),
             "text_config": text, "vision_config": {"model_type": "siglip_vision_model"}}
    (folder / "config.json").write_text(json.dumps(whole, indent=2) + "\n")


def make(folder, case, seed):
    generator = torch.Generator().manual_seed(seed)
    fields = {name: value for name, value in (PLAIN | case["config"]).items()
              if value is not None or name in case.get("nulls", [])}
    config = AutoConfig.for_model(case["type"], vocab_size=VOCABULARY, bos_token_id=None,
                                  eos_token_id=0, **copy.deepcopy(fields))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    randomize(model, generator)
    stored = case.get("stored", torch.float16)
    model.to(stored).save_pretrained(folder)
    (folder / "generation_config.json").unlink()
    byte_tokenizer().save(str(folder / "tokenizer.json"), pretty=False)
    if "head" in case:
        ship_head(folder, case["head"], generator)
    if case.get("packed"):
        pack_experts(folder)
    rewrite_config(folder, case)

    # From the files, so that what is read back is what is measured.
    model = load(folder, stored)
    count = case.get("tokens", TOKENS)
    tokens = torch.randint(0, VOCABULARY, (count,), generator=generator)
    logits = logits_of(model, tokens)
    if "without" in case:  # the numbers must tell a runtime that leaves it out
        config = AutoConfig.from_pretrained(folder)
        for name, value in case["without"].items():
            setattr(config, name, copy.deepcopy(value))
        changed = logits_of(load(folder, stored, config), tokens)
        assert (changed - logits).abs().max() > 0.1
    if case.get("with_vision"):
        add_vision(folder)
    metadata = {"prompt_tokens": str(count - ROWS), "mode": "full", "block_size": "64",
                "sub_block": "4", "z": "2.0", "floor": "none", "offset": "0.0",
                "pinned_blocks": "2", "rescue_chunk": "128", "beta": "1.0"}
    save_file({"tokens": tokens.int(), "logits": logits.contiguous()},
              folder / "case.safetensors", metadata)
    for file in folder.iterdir():
        file.chmod(0o644)


def main():
    root = pathlib.Path(sys.argv[1])
    for seed, (name, case) in enumerate(CASES.items()):
        (root / name).mkdir(parents=True)
        make(root / name, case, case.get("seed", seed))
        print(name)


if __name__ == "__main__":
    main()
