"""What the reference implementation opens, opens, and what it refuses is refused; but for STRICTER, which
docs/design/descriptions.md explains."""

import json

import pytest
import safetensors

ENTRY = '{"dtype":"U8","shape":[4],"data_offsets":[0,4]}'
HERE = '"a":' + ENTRY
EMPTY = '{"dtype":"U8","shape":[0],"data_offsets":[4,4]}'


def entry(**fields):
    return '"a":' + json.dumps({"dtype": "U8", "shape": [4], "data_offsets": [0, 4], **fields})


SAME = {
    "plain": "{" + HERE + "}",
    "null metadata": '{"__metadata__":null,' + HERE + "}",
    "null metadata last": "{" + HERE + ',"__metadata__":null}',
    "empty metadata": '{"__metadata__":{},' + HERE + "}",
    "metadata of a number": '{"__metadata__":{"x":1},' + HERE + "}",
    "metadata of null": '{"__metadata__":{"x":null},' + HERE + "}",
    "metadata as text": '{"__metadata__":"x",' + HERE + "}",
    "metadata as list": '{"__metadata__":[],' + HERE + "}",
    "metadata twice": '{"__metadata__":{},"__metadata__":{},' + HERE + "}",
    "space before": " \t\r\n{" + HERE + "}",
    "space after": "{" + HERE + "} \t\r\n",
    "space within": "{ " + HERE.replace(",", " ,\n") + " }",
    "byte order mark": "\ufeff{" + HERE + "}",
    "another object after": "{" + HERE + "}{}",
    "comma at the end": "{" + HERE + ",}",
    "comment": "{/* */" + HERE + "}",
    "list": "[" + ENTRY + "]",
    "unknown key": "{" + entry(strides=[1, [2, {"x": None}]]) + "}",
    "unknown keys of each kind": "{" + entry(a=None, b=True, c=-1, d=1.5, e="x", f={}, g=[]) + "}",
    "empty key": "{" + entry(**{"": 1}) + "}",
    "dtype twice": '{"a":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}}',
    "unknown dtype": "{" + entry(dtype="F128") + "}",
    "dtype in lower case": "{" + entry(dtype="u8") + "}",
    "dtype of null": "{" + entry(dtype=None) + "}",
    "no dtype": '{"a":{"shape":[4],"data_offsets":[0,4]}}',
    "no shape": '{"a":{"dtype":"U8","data_offsets":[0,4]}}',
    "shape of floats": '{"a":{"dtype":"U8","shape":[4.0],"data_offsets":[0,4]}}',
    "negative shape": "{" + entry(shape=[-4]) + "}",
    "shape of text": "{" + entry(shape=["4"]) + "}",
    "shape too large": "{" + entry(shape=[2**64]) + "}",
    "shape that overflows": "{" + entry(shape=[2**63, 2, 0]) + "}",
    "32 dimensions": "{" + entry(shape=[1] * 31 + [4]) + "}",
    "shape of another size": "{" + entry(shape=[5]) + "}",
    "one offset": "{" + entry(data_offsets=[0]) + "}",
    "three offsets": "{" + entry(data_offsets=[0, 4, 4]) + "}",
    "offsets turned": "{" + entry(data_offsets=[4, 0]) + "}",
    "a gap": "{" + entry(shape=[3], data_offsets=[1, 4]) + "}",
    "overlap": "{" + HERE + ',"b":' + ENTRY + "}",
    "bytes behind": "{" + entry(shape=[3], data_offsets=[0, 3]) + "}",
    "an empty tensor at the end": "{" + HERE + ',"b":' + EMPTY + "}",
    "empty name": '{"":' + ENTRY + "}",
    "tab in a name": '{"a\\tb\\n\\u0001\\u007f":' + ENTRY + "}",
    "raw tab in a name": '{"a\tb":' + ENTRY + "}",
    "lone surrogate": '{"\\ud800":' + ENTRY + "}",
    "pair of surrogates": '{"\\ud83d\\ude00":' + ENTRY + "}",
    "NUL behind": "{" + HERE + "}\0",
}

# Accepted by the reference implementation, and refused here.
STRICTER = {
    "a tensor's name twice": "{" + HERE + "," + HERE + "}",
    "a key of metadata twice": '{"__metadata__":{"x":"1","x":"2"},' + HERE + "}",
    "NUL in a name": '{"a\\u0000b":' + ENTRY + "}",
    "NUL in metadata": '{"__metadata__":{"x":"\\u0000"},' + HERE + "}",
    "33 dimensions": "{" + entry(shape=[1] * 32 + [4]) + "}",
    "an entry as a list": '{"a":["U8",[4],[0,4]]}',
    "no tensor": "{}",
}


def opens(data):
    try:
        safetensors.deserialize(data)
        return True
    except (safetensors.SafetensorError, ValueError):
        return False


def outcome(pod, tmp_path, header, data=b"data"):
    text = header.encode()
    file = len(text).to_bytes(8, "little") + text + data
    path = tmp_path / "m.safetensors"
    path.write_bytes(file)
    tried = pod.run("create", "w", "--from", path)
    if tried.returncode == 0:
        pod.ctl("rm", "w")
    assert tried.returncode in (0, 2), tried.stderr
    return opens(file), tried.returncode == 0


@pytest.mark.parametrize("case", SAME)
def test_as_the_reference(pod, tmp_path, case):
    by_reference, here = outcome(pod, tmp_path, SAME[case])
    assert here == by_reference


@pytest.mark.parametrize("case", STRICTER)
def test_stricter_than_the_reference(pod, tmp_path, case):
    data = b"" if case == "no tensor" else b"data"
    assert outcome(pod, tmp_path, STRICTER[case], data) == (True, False)
