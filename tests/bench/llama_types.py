"""GGUF files of one model with its weights as other types, which llama.cpp's llama-quantize makes."""
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile

TYPES = ("Q4_0", "Q4_1", "Q4_K_M", "Q8_0")


def type_of(path):
    """What the file says its weights mostly are, "Q4_1" say; "unknown" if it does not say it."""
    import gguf

    field = gguf.GGUFReader(path).fields.get("general.file_type")
    if field is None:
        return "unknown"
    return gguf.LlamaFileType(field.contents()).name.removeprefix("MOSTLY_")


def as_type(name, base, folder, quantize):
    """The path of `base` with weights of the type `name`: `base` itself if it has it, otherwise a
    file in `folder`, made once. `quantize`: the path of llama-quantize, None where there is none."""
    has = type_of(base)
    if has == name:
        return base
    if quantize is None:
        sys.exit(f"llama_cpp: --types: {base.name} is {has}; llama-quantize, which would make "
                 f"{name} of it, comes with --build=native only")
    digest = hashlib.sha256(base.read_bytes()).hexdigest()[:8]
    path = pathlib.Path(folder) / f"{base.stem.removesuffix(f'.{has}')}-{digest}.{name}.gguf"
    if path.exists():
        return path
    with tempfile.TemporaryDirectory(dir=folder) as work:
        made = pathlib.Path(work) / path.name
        ended = subprocess.run([quantize, "--allow-requantize", base, made, name],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               errors="replace", check=False)
        if ended.returncode != 0:
            sys.exit(f"llama_cpp: --types {name}: llama-quantize ended with {ended.returncode}:\n"
                     + "\n".join(ended.stdout.splitlines()[-5:]))
        os.replace(made, path)
    return path
