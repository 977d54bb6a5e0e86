"""python -m gpushm."""

import json
import subprocess
import sys

import numpy

import gpushm.tensors
from gpushm.__main__ import size_text
from test_tensors import write_safetensors


def command(broker, *words, status=0):
    done = subprocess.run([sys.executable, "-X", "dev", "-m", "gpushm", "--folder", broker.folder("app"),
                           *map(str, words)], capture_output=True, text=True, timeout=60)
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


def test_publish_and_list(broker, app, tmp_path):
    write_safetensors(tmp_path / "model.safetensors", {"w": numpy.ones((2, 3), numpy.float32)})
    assert command(broker, "publish", f"{tmp_path}/", "m").startswith(f"published {tmp_path}/ as m: ")
    assert gpushm.tensors.open("m", client=app)["w"].numpy().sum() == 6
    lines = command(broker, "list").splitlines()
    assert lines[0].split() == ["NAME", "GENERATION", "SIZE", "STATE", "CREATOR"]
    assert lines[1].split()[0] == "m" and lines[1].split()[3:] == ["ready", "app"]
    assert command(broker, "list", "m").splitlines()[1].split()[:2] == ["w", "float32"]
    assert json.loads(command(broker, "about"))["broker"]["container"] == "app"


def test_watch(broker, app):
    watching = subprocess.Popen([sys.executable, "-m", "gpushm", "--folder", broker.folder("other"),
                                 "watch", "m", "--timeout", "20"], stdout=subprocess.PIPE, text=True)
    try:
        for step in range(3):
            generation = gpushm.tensors.publish("m", {"x": numpy.zeros(4)}, client=app)
            assert f"generation {generation} " in watching.stdout.readline()
    finally:
        watching.kill()
        watching.communicate(timeout=20)


def test_errors(broker):
    text = command(broker, "list", "none", status=1)
    assert text.startswith("gpushm: ") and "remedy: " in text
    assert "remedy" in command(broker, "watch", "none", "--timeout", "0.01", status=1)
    assert "usage" in command(broker, "unknown", status=2)


def test_sizes():
    assert [size_text(n) for n in (0, 1023, 1536, 5 << 20, 3 << 30, 1 << 42)] == [
        "0", "1023", "1.5Ki", "5Mi", "3Gi", "4096Gi"]
