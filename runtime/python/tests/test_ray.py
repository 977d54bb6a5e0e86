"""gpushm.integrations.ray, with the real Ray's registry and interface. The transport's two sides are two
processes; mp_standin.py says what stands in for the GPU. No actor of Ray runs here: Ray asks for CUDA."""

import pickle

import mp_standin
import pytest
import torch
from conftest import until
from ray.experimental.rdt import util

import gpushm
import gpushm._default
from gpushm.integrations import ray as ours


@pytest.fixture
def sender(broker, monkeypatch):
    mp_standin.replace(monkeypatch.setattr)
    with broker.connect("app") as client:
        monkeypatch.setattr(gpushm._default, "_client", client)
        ours.register()
        ours.register()
        util.transport_managers.pop(ours.NAME, None)
        yield util.get_tensor_transport_manager(ours.NAME)


RECEIVER = """
    import pickle
    import mp_standin, torch
    import gpushm._native
    from gpushm.integrations import ray as ours
    mp_standin.replace(setattr)
    transport = ours.GpushmTransport()
    while line := input():
        metadata = pickle.loads(bytes.fromhex(line))
        try:
            got = transport.recv_multiple_tensors("1", metadata, transport.get_communicator_metadata(None, None))
            print([each.tolist() for each in got], [each.stride() for each in got], flush=True)
        except Exception as error:
            print(type(error).__name__, error, flush=True)
    got = None
    gpushm._native.collect()
    print("dropped", flush=True)
    input()
"""


def test_two_receivers_and_the_end_of_an_object(sender, app, peer):
    whole = torch.arange(6.0).reshape(2, 3)
    metadata = sender.extract_tensor_transport_metadata("1", [whole, whole.T, whole[1], torch.zeros(0)])
    assert metadata.tensor_meta[1] == (torch.Size([3, 2]), torch.float32)
    assert len(app.list()) == 1  # One storage.
    receivers = [peer(RECEIVER), peer(RECEIVER, "app")]
    message = pickle.dumps(metadata).hex()
    receivers[1].say(message)
    expected = (f"{[whole.tolist(), whole.T.tolist(), whole[1].tolist(), []]} [(3, 1), (1, 3), (1,), (1,)]")
    assert receivers[1].hear() == expected
    receivers[0].say(message)
    assert receivers[0].hear().startswith("Denied")  # Another container may not write.
    sender.garbage_collect("1", metadata, [])
    assert not app.list() and sender._sender.collect() == 1
    receivers[1].say()
    assert receivers[1].hear() == "dropped"
    until(lambda: sender._sender.collect() == 0)
    receivers[0].say(message)
    assert "keep the sending actor alive" in receivers[0].hear()


def test_into_given_tensors(sender):
    metadata = sender.extract_tensor_transport_metadata("1", [torch.ones(3)])
    target = [torch.zeros(3)]
    communicator = sender.get_communicator_metadata(None, None)
    assert sender.recv_multiple_tensors("1", metadata, communicator, target) is target
    assert target[0].tolist() == [1, 1, 1]
    assert sender.recv_multiple_tensors("1", sender.extract_tensor_transport_metadata("2", []), communicator) == []
    metadata.gpu = "GPU-other"
    with pytest.raises(gpushm.Unsupported, match="one pod"):
        sender.recv_multiple_tensors("1", metadata, communicator)


def test_what_is_refused(sender, monkeypatch):
    with pytest.raises(gpushm.Unsupported, match="dense"):
        sender.extract_tensor_transport_metadata("1", [torch.eye(2).to_sparse()])
    with pytest.raises(NotImplementedError):
        sender.send_multiple_tensors([], None, None)
    assert sender.is_one_sided() and sender.can_abort_transport() and sender.actor_has_tensor_transport(None)
    sender.abort_transport("1", None)
    monkeypatch.undo()
    with pytest.raises(gpushm.Unsupported, match="on cpu"):
        sender.extract_tensor_transport_metadata("1", [torch.ones(2)])


def test_rays_registry(sender):
    assert sender.tensor_transport_backend() == "GPUSHM"
    assert util.device_match_transport("cuda", "GPUSHM") and not util.device_match_transport("cpu", "GPUSHM")
