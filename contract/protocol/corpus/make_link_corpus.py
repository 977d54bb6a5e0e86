#!/usr/bin/env python3
"""Makes the seeds of link_fuzz in link/ beside this file: one valid message of each kind, and one
that is too short. The bytes are those of link.h; run it again when they change.
"""

import pathlib
import struct

HERE = pathlib.Path(__file__).parent
MAGIC, GREETING, VERSION = 0x4B4C5347, 1, 11
VMM, CUIPC = 1, 2


def message(kind, body, version=VERSION):
    return struct.pack("<IHHII", MAGIC, version, kind, 16 + len(body), 0) + body


def generation(transport, pooled, pid, offerer):
    return struct.pack("<64sQQQIIiIQQqQ64s", b"weights", 7, 100, 2 << 20, transport, pooled, pid, 0,
                       0, offerer, 1, 0, b"h")


def main():
    seeds = {
        "hello": message(1, struct.pack("<HHIQ64s", 11, 11, 1, 5, b"gpushm-broker 1.2.3"), GREETING),
        "welcome": message(2, struct.pack("<HHI16sQ64sIIII", 11, 0, 0, b"g" * 16, 1 << 30, b"m0000",
                                          1, 2, 3, 4), GREETING),
        "registry": message(3, struct.pack("<Q", 5)),
        "client": message(4, struct.pack("<Q16s64s64s64s", 1, b"t" * 16, b"app", b"", b"")),
        "foreign_client": message(4, struct.pack("<Q16s64s64s64s", 1, b"t" * 16, b"other-pods",
                                                 b"servers-1", b"server")),
        "broker_pod": message(17, struct.pack("<64s", b"weights-0")),
        "buffer": message(5, struct.pack("<64s64sIIIIQQQ", b"weights", b"app", 0, 4, 2, 2, 7, 8,
                                         100)),
        "generation_vmm": message(6, generation(VMM, 1, 0, 0)),
        "generation_cuipc": message(6, generation(CUIPC, 0, 1, 1)),
        "lease": message(7, struct.pack("<QQQqII", 1, 1, 7, 1, 2, 0)),
        "drop_lease": message(8, struct.pack("<IIQ64s", 4, 0, 1, b"")),
        "drop_buffer": message(8, struct.pack("<IIQ64s", 2, 0, 0, b"weights")),
        "end": message(9, struct.pack("<Q", 0)),
        "device": message(10, struct.pack("<II256s", 1, 0, b"XID 79")),
        "counters": message(11, struct.pack("<II", 1, 0)),
        "content": message(12, struct.pack("<4Q", 7, 100, 5, 6)),
        "description": message(13, struct.pack("<QQ", 7, 100)),
        "block": message(14, struct.pack("<QQII", 7, 2 << 20, 1, 0)),
        "short": message(9, b"")[:12],
    }
    for name, content in seeds.items():
        path = HERE / "link" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)


if __name__ == "__main__":
    main()
