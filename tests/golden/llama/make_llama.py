"""Plain LLaMA checkpoints, small and random, and their logits by Hugging Face transformers.

    pip install torch transformers safetensors
    python tests/golden/llama/make_llama.py NEW_FOLDER

Each case becomes a folder of it: a checkpoint as transformers saves it, its config.json as files of that
age have it, and case.safetensors with the tokens and, for the prompt's last position and every
later one but the last, the logits in float32. Weights are numbers that their 16-bit type holds
exactly. Made with torch 2.11.0 and transformers 5.23.0.
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 257
TOKENS = 176  # of the case: two full blocks of 64 and a tail
PROMPT = 160

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

# What LlamaConfig takes; `stored`: the type of the weights; `shard`: the largest file; `older`:
# fields of config.json as files before transformers 5 have them, null: left out.
CASES = {
    "d64-tied-scaled": {
        "config": dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                       num_attention_heads=4, num_key_value_heads=2, head_dim=64,
                       tie_word_embeddings=True, rms_norm_eps=1e-5,
                       rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0, **LLAMA3}),
        "stored": torch.bfloat16,
        "older": {"rope_parameters": None, "rope_theta": 500000.0,
                  "rope_scaling": {"type": "llama3", **LLAMA3}},
    },
    "d96": {
        "config": dict(hidden_size=24, intermediate_size=40, num_hidden_layers=2,
                       num_attention_heads=3, num_key_value_heads=1, head_dim=96,
                       rms_norm_eps=1e-6,
                       rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        "stored": torch.float16,
        "older": {"rope_parameters": None, "rope_theta": 10000.0, "rope_scaling": None},
    },
    "d128-sharded-scaled": {
        "config": dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                       num_attention_heads=2, num_key_value_heads=1, head_dim=128,
                       rms_norm_eps=1e-5,
                       rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0, **LLAMA3}),
        "stored": torch.bfloat16,
        "shard": "40KB",
    },
    # As LLaMA 2: as many key-value heads as query heads, neither they nor head_dim named.
    "multi-head": {
        "config": dict(hidden_size=48, intermediate_size=56, num_hidden_layers=2,
                       num_attention_heads=3, rms_norm_eps=1e-5),
        "stored": torch.float16,
        "older": {"rope_parameters": None, "num_key_value_heads": None, "head_dim": None,
                  "attention_bias": None, "mlp_bias": None},
    },
}


def randomize(model, generator):
    """Projections keep the scale of their input; queries are raised so that scores spread."""
    for name, weight in model.named_parameters():
        if "norm" in name:
            values = 1.0 + 0.2 * torch.randn(weight.shape, generator=generator)
        else:
            scale = 2.5 if "q_proj" in name else 1.0
            values = torch.randn(weight.shape, generator=generator) * scale / weight.shape[-1] ** 0.5
        weight.data.copy_(values)


def logits_of(model, tokens):
    with torch.no_grad():
        return model(tokens[None]).logits[0, PROMPT - 1 : TOKENS - 1]


def byte_tokenizer():
    """One token a byte and an end of text, as files of Llama 3 have it: byte-level BPE."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"</s>": 0} | {letter: i + 1 for i, letter in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def make(folder, case, seed):
    generator = torch.Generator().manual_seed(seed)
    config = LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=512, bos_token_id=None,
                         eos_token_id=0, attn_implementation="eager", **case["config"])
    model = LlamaForCausalLM(config).eval()
    randomize(model, generator)
    model = model.to(case["stored"])
    model.save_pretrained(folder, max_shard_size=case.get("shard", "1GB"))
    (folder / "generation_config.json").unlink()
    byte_tokenizer().save(str(folder / "tokenizer.json"), pretty=False)

    path = folder / "config.json"
    fields = json.loads(path.read_text())
    for name, value in case.get("older", {}).items():
        fields.pop(name, None)
        if value is not None:
            fields[name] = value
    path.write_text(json.dumps(fields, indent=2) + "\n")

    # From the files, so that what is read back is what is measured.
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                             attn_implementation="eager").eval()
    tokens = torch.randint(0, VOCABULARY, (TOKENS,), generator=generator)
    logits = logits_of(model, tokens)
    if config.rope_parameters["rope_type"] == "llama3":
        # The numbers must tell a runtime that leaves the scaling out.
        config.rope_parameters = {"rope_type": "default", "rope_theta": 500000.0}
        unscaled = LlamaForCausalLM(config).eval()
        unscaled.load_state_dict(model.state_dict())
        assert (logits_of(unscaled, tokens) - logits).abs().max() > 0.1
    metadata = {"prompt_tokens": str(PROMPT), "mode": "full", "block_size": "64", "sub_block": "4",
                "z": "2.0", "floor": "none", "offset": "0.0", "pinned_blocks": "2",
                "rescue_chunk": "128", "beta": "1.0"}
    save_file({"tokens": tokens.int(), "logits": logits.contiguous()},
              folder / "case.safetensors", metadata)
    for file in folder.iterdir():
        file.chmod(0o644)


def main():
    root = pathlib.Path(sys.argv[1])
    for seed, (name, case) in enumerate(CASES.items()):
        (root / name).mkdir(parents=True)
        make(root / name, case, seed)


main()
