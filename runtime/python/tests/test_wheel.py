"""The wheels, installed into an empty environment from their files alone, and what they hold."""

import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import zipfile

import gpushm
import packaging.tags
import pytest

WHEELS = os.environ.get("GPUSHM_WHEELS")
pytestmark = pytest.mark.skipif(not WHEELS, reason="GPUSHM_WHEELS names no folder of wheels")


PROJECT = pathlib.Path(__file__).resolve().parents[1]


def wheels(name):
    """Those of that package in the folder: one for this Python, or all that are distributed."""
    found = sorted(pathlib.Path(WHEELS).glob(f"{name}-*.whl"))
    assert found
    return found


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Method: pip alone chooses the files, by their names."""
    folder = tmp_path_factory.mktemp("empty")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=120)
    subprocess.run([folder / "bin/pip", "install", "--quiet", "--disable-pip-version-check", "--no-index",
                    "--find-links", WHEELS, "gpushm[sim]"], check=True, timeout=120)
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


def test_the_commands(python):
    def output(*command):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    assert output(python.with_name("gpushm"), "--version") == f"{gpushm.__version__}\n"
    assert output(python, "-m", "gpushm", "--help").startswith("usage: ")


def test_what_is_inside():
    information = f"gpushm-{gpushm.__version__}.dist-info"
    for wheel in wheels("gpushm"):
        names = zipfile.ZipFile(wheel).namelist()
        for name in ("gpushm/__init__.py", "gpushm/_native.pyi", "gpushm/py.typed",
                     "gpushm/lib/libgpushm.so.0", f"{information}/licenses/LICENSE",
                     f"{information}/licenses/nanobind"):
            assert name in names
        assert not [name for name in names if "test" in name and name != "gpushm/testing.py"]
        python, abi, machine = re.fullmatch(
            rf"gpushm-{gpushm.__version__}-(cp3\d+)-(\w+)-\w*linux\w*_(x86_64|aarch64).whl", wheel.name).groups()
        # A debug build of Python also loads the module of the other build, not the reverse.
        suffix = "abi3" if abi == "abi3" else f"cpython-{abi.removeprefix('cp')}-{machine}-linux-gnu"
        assert f"gpushm/_native.{suffix}.so" in names
        assert python == "cp312" if abi == "abi3" else abi.startswith(python)


def test_every_program_runs_where_its_name_says(tmp_path):
    """Goal: a wheel starts on all systems that its name promises.

    Method: machine, versions of glibc's symbols and libraries, as readelf shows them.
    """
    for wheel in wheels("gpushm") + wheels("gpushm_sim"):
        zipfile.ZipFile(wheel).extractall(tmp_path / wheel.name)
        files = [path for path in (tmp_path / wheel.name).rglob("*")
                 if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"]
        assert len(files) == (3 if "sim" in wheel.name else 2)
        promised = re.search(r"manylinux_2_(\d+)_", wheel.name)
        for file in files:
            text = subprocess.run(["readelf", "--wide", "-hdV", file], check=True, capture_output=True,
                                  text=True, env={"PATH": os.environ["PATH"], "LC_ALL": "C"}).stdout
            machine = {"X86-64": "x86_64", "AArch64": "aarch64"}[re.search(r"Machine: .*?([\w-]+)$", text,
                                                                           re.MULTILINE)[1]]
            assert wheel.name.endswith(f"_{machine}.whl")
            if promised:
                assert max(map(int, re.findall(r"GLIBC_2\.(\d+)", text))) <= int(promised[1])
                for library in re.findall(r"NEEDED.*\[(.*)\]", text):
                    assert re.fullmatch(r"(lib(c|m|dl|pthread|rt)|ld-linux-.*)\.so\.\d", library)


def test_the_module_exports_nothing_of_its_runtime():
    """Goal: the C++ runtime in the module is not mixed with another one in the process."""
    from gpushm import _native

    symbols = subprocess.run(["nm", "-D", "--defined-only", _native.__file__], check=True,
                             capture_output=True, text=True).stdout
    assert sorted(line.split()[-1] for line in symbols.splitlines()) == [
        "PyInit__native", "gpushm_torch_allocate", "gpushm_torch_free"]


def test_the_stub_is_python():
    for wheel in wheels("gpushm"):
        text = zipfile.ZipFile(wheel).read("gpushm/_native.pyi").decode()
        compile(text, "_native.pyi", "exec")
        for name in ("class Client", "class Buffer", "def attach(self, name: str, *, write: bool = False"):
            assert name in text


# ---- free-threaded Python

def test_pip_takes_no_wheel_for_a_free_threaded_python():
    """Method: the names of the wheels, and the rules that pip has for them (packaging.tags)."""
    names = [wheel.stem for wheel in wheels("gpushm")]
    *_, abi, platform = names[-1].split("-")

    def accepted(version, *abis):
        tags = {str(tag) for tag in packaging.tags.cpython_tags(version, abis, [platform])}
        return [name for name in names if name.split("-", 2)[2] in tags]

    this = f"cp3{sys.version_info.minor}"
    assert len(accepted(sys.version_info[:2], this, this + sys.abiflags)) == 1
    assert bool(accepted((3, 14), "cp314")) == (abi == "abi3")
    assert not accepted((3, 14), "cp314t") and not accepted((3, 13), "cp313t")


def test_a_build_for_a_free_threaded_python_is_refused(tmp_path):
    """Method: this Python, which believes that it was built without the lock."""
    variables = {**sysconfig.get_config_vars(), "Py_GIL_DISABLED": 1}
    (tmp_path / "free_threaded.py").write_text(f"build_time_vars = {variables!r}")
    done = subprocess.run([sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check", "--no-deps",
                           "--no-build-isolation", "--wheel-dir", tmp_path, "--config-settings",
                           f"build-dir={tmp_path}/build", PROJECT],
                          capture_output=True, text=True, timeout=120, env={
                              **os.environ, "PYTHONPATH": str(tmp_path),
                              "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
                              "_PYTHON_SYSCONFIGDATA_NAME": "free_threaded"})
    assert done.returncode != 0 and not list(tmp_path.glob("*.whl"))
    said = " ".join((done.stdout + done.stderr).split())
    assert "gpushm does not support free-threaded Python" in said
    assert "with the global interpreter lock" in said
