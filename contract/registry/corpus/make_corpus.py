#!/usr/bin/env python3
"""Makes the fuzzers' seeds beside this file: small segments and lists of today's layout.

The bytes are those of layout.h and host_list.cc; checksums are left 0, because the fuzzers make
them fit. Run it again when the layout changes.
"""

import pathlib
import struct

HERE = pathlib.Path(__file__).parent
RECORD_WORDS = 32
STRIDE = 576


def record(name, generation, words=RECORD_WORDS, flags=0):
    body = struct.pack("<64sQQQ16sIIIIQQ64s", name, generation, 1000, 2 << 20, b"g" * 16, 1, 2,
                       flags, 0, 5, 0, b"decoder")
    return body[:8 * (words - 1)].ljust(8 * words, b"\0")


def slot(version, body, words=RECORD_WORDS, stride=STRIDE):
    copies = [b"\0" * 8 * words, b"\0" * 8 * words]
    copies[version // 2 % 2] = body
    return (struct.pack("<Q", version).ljust(64, b"\0") + copies[0] + copies[1]).ljust(stride, b"\0")


def reasons(text):
    """Both copies of a slot's."""
    return 2 * text.ljust(256, b"\0")


def segment(slots, words=RECORD_WORDS, stride=STRIDE, log=512, behind=()):
    constants = struct.pack("<QIIIIIIIIQQQQQ", 0x3147455248535047, 1, 4096, stride, words,
                            len(slots), 1 if behind else 0, 0, log, 1, 2, 3, 4, 0)
    header = bytearray(constants.ljust(4096, b"\0"))
    struct.pack_into("<II", header, 128, 1, 0)
    struct.pack_into("<QI", header, 192, len(slots), len(slots))
    return bytes(header) + b"".join(slots) + b"".join(behind)


def host_list(records):
    return struct.pack("<QIIIIII64sQQQQQ", 0x315453494c535047, 1, 17, RECORD_WORDS, len(records), 0,
                       0, b"pod-0", 1, 2, 3, 4, 0) + b"".join(records)


def main():
    mend = bytes([7 + 8])
    a, b = record(b"weights", 1), record(b"kv-cache", 2)
    small = record(b"weights", 1, 18)
    seeds = {
        "registry/empty_slots": mend + segment([bytes(STRIDE)] * 2),
        "registry/two_live_one_withdrawn": mend + segment([slot(2, a), slot(4, b), slot(3, a)]),
        "registry/reason": mend + segment([slot(2, record(b"weights", 1, flags=2 << 8))],
                                          behind=[reasons(b"no file d.bin")]),
        "registry/smallest_record": mend + segment([slot(2, small, 18, 384)], 18, 384, 0),
        "registry/bad_checksums": bytes([0]) + segment([slot(2, a)]),
        "host_list/empty": host_list([]),
        "host_list/two": host_list([a, b]),
    }
    for path, content in seeds.items():
        (HERE / path).write_bytes(content)


if __name__ == "__main__":
    main()
