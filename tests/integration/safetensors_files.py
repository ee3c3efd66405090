"""Writes safetensors files of any type, for the tests of imported weights."""

import json
import struct


def bf16(value):
    return struct.unpack("<H", struct.pack("<f", value)[2:])[0]  # cut: exact for what is used here


def pack(dtype, values):
    if dtype == "F32":
        return struct.pack("<%df" % len(values), *values)
    if dtype == "F16":
        return struct.pack("<%de" % len(values), *values)
    return struct.pack("<%dH" % len(values), *map(bf16, values))


def write_shard(path, tensors):
    """tensors: name -> (dtype, shape, values), or raw bytes in place of the values."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (dtype, shape, values) in tensors.items():
        raw = values if isinstance(values, bytes) else pack(dtype, values)
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
