"""A broker on the simulated driver, and gpushmctl."""

import json
import os
import pathlib
import subprocess

import pytest

BUILD = pathlib.Path(os.environ["GPUSHM_BUILD"])


class Pod:
    def __init__(self, folder):
        self.folder = folder
        self.environment = {**os.environ, "GPUSHM_DRIVER": str(BUILD / "driver-sim"),
                            "GPUSHM_SIM_DIR": str(folder / "sim"), "GPUSHM_DIR": str(folder / "run/app")}
        (folder / "sim").mkdir()
        (folder / "run/app").mkdir(parents=True)
        self.broker = subprocess.Popen(
            [BUILD / "bin/gpushm-broker", "--folder", folder / "run", "--container", "app", "--pool", "64Mi"],
            env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.ctl("wait", "--broker")

    def run(self, *words):
        return subprocess.run([BUILD / "bin/gpushmctl", *map(str, words)], env=self.environment,
                              capture_output=True, text=True, timeout=60, check=False)

    def ctl(self, *words):
        done = self.run(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def load(self, path):
        """What the buffer has after the load: {name: (dtype, shape, bytes)}."""
        self.ctl("create", "w", "--from", path)
        try:
            self.ctl("load", path, "w")
            table = json.loads(self.ctl("ls", "--tensors", "w", "-o", "json"))
            raw = self.folder / "raw"
            self.ctl("save", "w", raw, "--format", "raw")
            content = raw.read_bytes()
            saved = self.folder / "saved.safetensors"
            self.ctl("save", "w", saved)
            return {each["name"]: (each["dtype"], tuple(int(side) for side in each["shape"]),
                                   content[int(each["offset"]):int(each["offset"]) + int(each["size_bytes"])])
                    for each in table["tensors"]}, saved
        finally:
            self.ctl("rm", "w")


@pytest.fixture(scope="session")
def pod(tmp_path_factory):
    made = Pod(tmp_path_factory.mktemp("pod"))
    yield made
    made.broker.terminate()
    made.broker.wait(timeout=20)
