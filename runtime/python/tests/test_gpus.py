"""A pod of several GPUs. Each case is a process of its own, because a process chooses its driver, and with it
the simulated GPUs, once."""

import os
import subprocess
import sys
import textwrap

HEAD = """
import numpy
import pytest
import gpushm
import gpushm.tensors
import gpushm.testing

EACH = {"weights": "{size: 8Mi, gpu: each, generations: 2}"}
with gpushm.testing.broker(EACH, gpus=2) as broker:
    app, other = broker.connect("app"), broker.connect("other")
"""


def run(body):
    environment = {key: value for key, value in os.environ.items() if key != "GPUSHM_SIM_DIR"}
    ended = subprocess.run([sys.executable, "-c", HEAD + textwrap.indent(textwrap.dedent(body), "    ")],
                           env=environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr


def test_each_buffer_is_on_its_gpu():
    run("""
        first, second = app.gpus()
        assert (first.number, second.number) == (0, 1)
        assert first.uuid != second.uuid and not second.lost
        assert first.used_nbytes == second.used_nbytes == 8 << 20
        assert app.broker().pool_nbytes == first.pool_nbytes + second.pool_nbytes
        assert app.lookup("weights-0").gpu_uuid == first.uuid
        assert app.lookup("weights-1").gpu_uuid == second.uuid
        with app.attach("weights-1", write=True) as buffer:
            assert buffer.device == 1
    """)


def test_frames_are_on_the_gpu_of_that_number():
    run("""
        for make in (app.ring, app.queue):
            name = make.__name__
            with make(name, write=True, frames=2, nbytes=4096, gpu=1) as frames:
                assert app.lookup(name).gpu_uuid == app.gpus()[1].uuid
                with frames.begin(timeout=0) as frame:
                    assert frame.__dlpack_device__() == (2, 1)
        # The memory of a successor is where the declared buffer is, whatever gpu says.
        for _ in range(2):
            with app.ring("weights-1", write=True, frames=2, nbytes=4096) as frames:
                with frames.begin(timeout=0) as frame:
                    assert frame.__dlpack_device__() == (2, 1)
        for make in (app.ring, app.queue):
            with pytest.raises(gpushm.InvalidArgument, match="gpu is 2|GPU 2"):
                make("more", write=True, frames=2, nbytes=4096, gpu=2)
        with pytest.raises(gpushm.InvalidArgument, match="reader"):
            app.ring("ring", gpu=1, timeout=0)
    """)


def test_a_buffer_is_made_on_the_gpu_of_that_number():
    run("""
        with app.create("kv", 2 << 20, gpu=1) as made:
            assert made.device == 1
            assert app.gpus()[1].used_nbytes == 10 << 20
        with pytest.raises(gpushm.InvalidArgument, match="2"):
            app.create("more", 2 << 20, gpu=2)
    """)
