"""What the reference implementation of safetensors says about files.

rewrite IN OUT        writes OUT from the tensors of IN, with the metadata of IN
damage IN DIRECTORY   writes damaged copies of IN into DIRECTORY; prints a JSON object: file name to whether the
                      reference reads it
"""
import ctypes
import json
import pathlib
import struct
import sys

import safetensors

DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32"}


def split(data):
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def join(header, body):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def rewrite(source, target):
    data = pathlib.Path(source).read_bytes()
    metadata = split(data)[0].get("__metadata__")
    tensors = {}
    buffers = []  # alive until all is written: the reference takes addresses
    for name, tensor in safetensors.deserialize(data):
        buffers.append(ctypes.create_string_buffer(bytes(tensor["data"]), len(tensor["data"])))
        tensors[name] = safetensors.TensorSpec(
            dtype=DTYPES[tensor["dtype"]],
            shape=tensor["shape"],
            data_ptr=ctypes.addressof(buffers[-1]),
            data_len=len(tensor["data"]),
        )
    pathlib.Path(target).write_bytes(safetensors.serialize(tensors, metadata))


def damaged_copies(data):
    header, body = split(data)
    names = [name for name in header if name != "__metadata__"]
    first, last = names[0], names[-1]

    def changed(name, **values):
        copy = json.loads(json.dumps(header))
        copy[name].update(values)
        return join(copy, body)

    begin, end = header[last]["data_offsets"]
    return {
        "whole": data,
        "padded": join(json.dumps(header).encode() + b" " * 7, body),
        "empty": b"",
        "no_header": data[:8],
        "cut_header": data[:100],
        "cut_data": data[:-1],
        "appended": data + b"\0",
        "huge_header": struct.pack("<Q", 1 << 62) + data[8:],
        "not_json": join(b"{" * 40, body),
        "not_utf8": join(b'{"\xff":1}', body),
        "list": join(b"[]", b""),
        "overlap": changed(last, data_offsets=[begin - 4, end - 4]),
        "gap": changed(last, data_offsets=[begin + 4, end + 4]),
        "backwards": changed(last, data_offsets=[end, begin]),
        "beyond": changed(last, data_offsets=[begin, end + 4]),
        "shape": changed(last, shape=[1]),
        "negative": changed(last, shape=[-1]),
        "overflow": changed(last, shape=[1 << 40, 1 << 40]),
        "dtype": changed(first, dtype="F31"),
        "no_offsets": join({**header, first: {"dtype": "F32", "shape": [1]}}, body),
        "metadata": join({**header, "__metadata__": {"a": 1}}, body),
        "twice": join(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},' * 2 + b'"b":0}', b"\0"),
    }


def damage(source, directory):
    verdicts = {}
    for name, data in damaged_copies(pathlib.Path(source).read_bytes()).items():
        file = f"{name}.safetensors"
        (pathlib.Path(directory) / file).write_bytes(data)
        try:
            safetensors.deserialize(data)
            verdicts[file] = True
        except Exception:  # any refusal is one
            verdicts[file] = False
    print(json.dumps(verdicts))


if __name__ == "__main__":
    {"rewrite": rewrite, "damage": damage}[sys.argv[1]](*sys.argv[2:])
