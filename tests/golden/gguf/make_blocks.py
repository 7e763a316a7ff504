#!/usr/bin/env python3
"""Writes blocks.safetensors: random blocks of each quantised type of GGUF, and the numbers that the
PyPI package gguf makes of them.

  python3 -m venv V && V/bin/pip install numpy==2.4.6 gguf==0.19.0
  V/bin/python tests/golden/gguf/make_blocks.py

Tensors: TYPE.blocks, uint8 [blocks, bytes], and TYPE.numbers, float32 [blocks, numbers].
"""
import json
import os
import struct

import numpy
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

# Where the float16 numbers of a block begin: they must be finite.
HALVES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
# Its scale is a byte, of which 255 is not a number.
HALVES |= {"MXFP4": []}
NUMBERS_PER_TYPE = 1024


def finite_half(draw):
    half = numpy.float16(draw.normal(0, 0.02))
    return numpy.frombuffer(half.tobytes(), dtype=numpy.uint8)


def blocks_of(name, draw):
    numbers, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    blocks = draw.integers(0, 256, (NUMBERS_PER_TYPE // numbers, size), dtype=numpy.uint8)
    if name == "MXFP4":
        blocks[:, 0] = draw.integers(96, 160, len(blocks))
        blocks[:3, 0] = 2, 250, 128
    for block in blocks:
        for at in HALVES[name]:
            block[at:at + 2] = finite_half(draw)
    # The smallest number above zero, the largest, and zero with a sign.
    for block, bits in zip(blocks, (0x0001, 0x7BFF, 0x8000)):
        for at in HALVES[name]:
            block[at:at + 2] = numpy.frombuffer(struct.pack("<H", bits), dtype=numpy.uint8)
    return blocks


def write(path, tensors):
    header, data = {}, b""
    for name, array in sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0])):
        end = len(data) + array.nbytes
        header[name] = {"dtype": "F32" if array.dtype == numpy.float32 else "U8",
                        "shape": list(array.shape), "data_offsets": [len(data), end]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def main():
    draw = numpy.random.default_rng(31)
    tensors = {}
    for name in HALVES:
        blocks = blocks_of(name, draw)
        numbers = dequantize(blocks, GGMLQuantizationType[name])
        tensors[name + ".blocks"] = blocks
        tensors[name + ".numbers"] = numbers.astype(numpy.float32)
    write(os.path.join(os.path.dirname(os.path.abspath(__file__)), "blocks.safetensors"), tensors)


if __name__ == "__main__":
    main()
