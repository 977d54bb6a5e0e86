#!/usr/bin/env python3
"""Makes the fuzzers' seeds beside this file: small tables, headers and indexes of shards.

Run it again when layout.h changes.
"""

import pathlib
import struct

HERE = pathlib.Path(__file__).parent
F32, U8 = 15, 2


def table(tensors, pairs, buffer_bytes):
    """tensors: (name, dtype, shape, offset, bytes), sorted; pairs: (key, value), sorted."""
    tensors_at = 48
    pairs_at = tensors_at + 32 * len(tensors)
    shapes_at = pairs_at + 16 * len(pairs)
    texts_at = shapes_at + 8 * sum(len(shape) for _, _, shape, _, _ in tensors)
    entries = pair_entries = shapes = texts = b""

    def add(text):
        nonlocal texts
        at = texts_at + len(texts)
        texts += text + b"\0"
        return at, len(text)

    for name, dtype, shape, offset, size in tensors:
        entries += struct.pack("<QQIIIHH", offset, size, *add(name), shapes_at + len(shapes),
                               len(shape), dtype)
        shapes += b"".join(struct.pack("<Q", dimension) for dimension in shape)
    for key, value in pairs:
        pair_entries += struct.pack("<IIII", *add(key), *add(value))
    header = struct.pack("<8sIIIIIIIIII", b"GSHTENS\0", 1, 0, 48, 32, 16, texts_at + len(texts),
                         len(tensors), tensors_at, len(pairs), pairs_at)
    return struct.pack("<Q", buffer_bytes) + header + entries + pair_entries + shapes + texts


def entry(dtype, shape, begin, end):
    return f'{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}'


def header(text, data_bytes):
    return struct.pack("<Q", data_bytes) + text.encode()


SEEDS = {
    "table/empty": table([], [], 0),
    "table/two": table([(b"bias", U8, [3], 0, 3), (b"weight", F32, [2, 3], 256, 24)],
                       [(b"format", b"pt")], 4096),
    "table/scalar": table([(b"a", F32, [], 8, 4)], [], 12),
    "table/outside": table([(b"a", U8, [9], 8, 9)], [], 16),
    "safetensors/empty": header("{}", 0),
    "safetensors/two": header('{"__metadata__":{"format":"pt"},"b":' + entry("F32", [2, 3], 2, 26)
                              + ',"a":' + entry("BF16", [], 0, 2) + "}  ", 26),
    "safetensors/narrow": header('{"q":' + entry("F4", [2], 0, 1) + ',"e":'
                                 + entry("F6_E2M3", [0], 1, 1) + "}", 1),
    "safetensors/escapes": header('{"\\u00e4\\"":' + entry("U8", [1], 0, 1) + "}", 1),
    "safetensors/gap": header('{"a":' + entry("U8", [1], 1, 2) + "}", 2),
    "safetensors/overflow": header('{"a":' + entry("I64", [2**63, 4], 0, 8) + "}", 8),
    "shards/two": b'{"metadata":{"total_size":12},"weight_map":{"b":"m-2","a":"m-1"}}',
    "shards/outside": b'{"weight_map":{"a":"../m"}}',
    "shards/other": b'{"x":[{"weight_map":{}},null,-1,1.5],"weight_map":{"a":"m"}}',
}


def main():
    for name, seed in SEEDS.items():
        path = HERE / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(seed)


if __name__ == "__main__":
    main()
