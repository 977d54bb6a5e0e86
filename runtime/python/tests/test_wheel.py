"""The wheels, installed into an empty environment from their files alone."""

import os
import pathlib
import subprocess
import sys
import zipfile

import pytest

WHEELS = os.environ.get("GPUSHM_WHEELS")
pytestmark = pytest.mark.skipif(not WHEELS, reason="GPUSHM_WHEELS names no folder of wheels")


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    folder = tmp_path_factory.mktemp("empty")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=120)
    subprocess.run([folder / "bin/pip", "install", "--quiet", "--disable-pip-version-check", "--no-index",
                    *pathlib.Path(WHEELS).glob("*.whl")], check=True, timeout=120)
    return folder / "bin/python"


def test_three_lines(python):
    done = subprocess.run([python, "-X", "dev", "-c", """
import gpushm, gpushm.tensors, gpushm.testing
with gpushm.testing.broker() as broker:
    client = broker.connect()
    gpushm.tensors.publish("weights", {"w": b"bytes, without numpy"}, client=client)
    weights = gpushm.tensors.open("weights", client=broker.connect("other"))
    print(weights.buffer.read(0, 5).decode(), weights["w"].shape, gpushm.about()["library_origin"])
"""], capture_output=True, text=True, timeout=120, env={"PATH": os.environ["PATH"]})
    assert (done.stdout, done.stderr) == ("bytes (20,) wheel\n", "")


def test_what_is_inside():
    wheel, = pathlib.Path(WHEELS).glob("gpushm-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("gpushm/__init__.py", "gpushm/_native.pyi", "gpushm/py.typed",
                 "gpushm/lib/libgpushm.so.0"):
        assert name in names
    assert not [name for name in names if "test" in name and name != "gpushm/testing.py"]
    if sys.version_info >= (3, 12):
        assert "cp312-abi3" in wheel.name
    else:
        assert f"cp3{sys.version_info.minor}-" in wheel.name


def test_the_command(python):
    done = subprocess.run([python.with_name("gpushm"), "--version"], capture_output=True, text=True,
                          timeout=60)
    assert done.stdout.strip() == "0.1.0"


def test_the_stub_is_python():
    wheel, = pathlib.Path(WHEELS).glob("gpushm-*.whl")
    text = zipfile.ZipFile(wheel).read("gpushm/_native.pyi").decode()
    compile(text, "_native.pyi", "exec")
    for name in ("class Client", "class Buffer", "def attach(self, name: str, *, write: bool = False"):
        assert name in text
