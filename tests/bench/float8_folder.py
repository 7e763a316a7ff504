#!/usr/bin/env python3
"""Writes a folder of a model in 16 or 32 bits anew with its projections in float8.

As compressed-tensors has it: e4m3, one scale for each output channel. `eta-eval table weights
--against=OUT` compares the two. Needs numpy.

usage: tests/bench/float8_folder.py MODEL OUT
"""
import argparse
import json
import pathlib
import shutil
import struct
import sys

import numpy

LARGEST = 448.0  # of e4m3
TYPES = {"F32": numpy.dtype("<f4"), "F16": numpy.dtype("<f2"), "BF16": numpy.dtype("<u2")}
QUANTIZATION = {
    "quant_method": "compressed-tensors", "format": "float-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
        "num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}}}}


def codes():
    """The numbers of the codes 0 to 126 of e4m3, ascending."""
    code = numpy.arange(127)
    exponent, mantissa = code >> 3, code & 7
    return numpy.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0**(exponent - 7))


NUMBERS = codes().astype(numpy.float32)
BETWEEN = (NUMBERS[1:] + NUMBERS[:-1]) / 2


def numbers_of(data, kind):
    values = numpy.frombuffer(data, TYPES[kind])
    if kind == "BF16":
        return (values.astype(numpy.uint32) << 16).view(numpy.float32)
    return values.astype(numpy.float32)


def rounded(weight):
    """Codes [rows, cols] and scales [rows, 1] of a matrix."""
    scale = numpy.maximum(numpy.abs(weight).max(axis=1, keepdims=True), 1e-12) / LARGEST
    scaled = weight / scale
    code = numpy.searchsorted(BETWEEN, numpy.abs(scaled)).astype(numpy.uint8)
    return code | (numpy.signbit(scaled).astype(numpy.uint8) << 7), scale.astype(numpy.float32)


def tensors_of(path):
    """Name, type, shape and bytes of each tensor of a safetensors file."""
    data = path.read_bytes()
    length = struct.unpack_from("<Q", data)[0]
    for name, entry in json.loads(data[8:8 + length]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            yield name, entry["dtype"], entry["shape"], data[8 + length + begin:8 + length + end]


def converted(path):
    for name, kind, shape, data in tensors_of(path):
        if not name.endswith("_proj.weight") or "tau_proj" in name:
            yield name, kind, shape, data
            continue
        code, scale = rounded(numbers_of(data, kind).reshape(shape))
        yield name, "F8_E4M3", shape, code.tobytes()
        yield name + "_scale", "F32", list(scale.shape), scale.tobytes()


def write(path, tensors):
    tensors = list(tensors)
    header, offset = {}, 0
    for name, kind, shape, data in tensors:
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _, _, _, data in tensors:
            out.write(data)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path, metavar="MODEL")
    parser.add_argument("out", type=pathlib.Path, metavar="OUT")
    flags = parser.parse_args()
    config = json.loads((flags.model / "config.json").read_text())
    if "quantization_config" in config:
        sys.exit(f"float8_folder: {flags.model}: its weights are quantised already")
    flags.out.mkdir()
    for path in flags.model.iterdir():
        if path.suffix == ".safetensors":
            write(flags.out / path.name, converted(path))
        elif path.is_file() and path.name != "config.json":
            shutil.copy(path, flags.out)
    config["quantization_config"] = QUANTIZATION
    (flags.out / "config.json").write_text(json.dumps(config, indent=1))


if __name__ == "__main__":
    main()
