"""gpushm.torch.multiprocessing, with processes of torch.multiprocessing and a real broker. mp_standin.py
says what stands in for the GPU; gpu_check.py has the rest.
"""

import pickle
from multiprocessing.reduction import ForkingPickler

import mp_standin
import pytest
import torch
import torch.multiprocessing
from conftest import until

import gpushm
import gpushm.torch.multiprocessing as mp


@pytest.fixture
def installed(broker, monkeypatch):
    mp_standin.replace(monkeypatch.setattr)
    monkeypatch.setenv("GPUSHM_DIR", broker.folder())
    with broker.connect() as client:
        mp.install(client=client)
        yield client
        mp.uninstall()
        mp._retired.clear()


@pytest.fixture
def receiver(broker, installed):
    context = torch.multiprocessing.get_context("spawn")
    tensors, answers = context.SimpleQueue(), context.SimpleQueue()
    process = context.Process(target=mp_standin.receive, args=(broker.folder(), tensors, answers))
    process.start()
    yield process, tensors, answers
    process.kill()
    process.join()


def told(tensor):
    return (str(tensor.dtype), list(tensor.shape), list(tensor.stride()), tensor.requires_grad,
            type(tensor).__name__, tensor.detach().flatten().tolist())


def test_a_queue(installed, receiver):
    _, tensors, answers = receiver
    torch.manual_seed(1)
    whole = torch.randn(6, 8)
    sent = [whole, whole.T, whole[2:4, 1:7:2], whole.to(torch.bfloat16), torch.arange(5), torch.tensor([True]),
            torch.nn.Parameter(whole.clone()), torch.zeros(0), whole.to(torch.complex64).conj(), torch.tensor(2.5)]
    tensors.put(sent)
    assert answers.get() == [told(each) for each in sent]
    assert mp.held() >= 1  # The receiver has them still, or has just let go of them.
    for _ in range(2):  # The receiver's variable has the next ones now, and a later call unmaps.
        tensors.put([torch.ones(3)])
        answers.get()
    until(lambda: mp.collect() <= 2)
    assert not [info.name for info in installed.list()]  # The names went with the receipt.


def test_a_receiver_that_is_killed_lets_go(installed, receiver):
    process, tensors, answers = receiver
    tensors.put([torch.ones(1000)])
    answers.get()
    assert mp.collect() == 1
    process.kill()
    until(lambda: mp.collect() == 0)


def test_memory_is_held_until_somebody_takes_it(installed):
    ForkingPickler.dumps(torch.ones(1000))
    assert mp.collect() == 1 and mp.held() == 1
    name, = [info.name for info in installed.list()]
    assert name.startswith("torch-mp-")
    mp.uninstall()
    assert mp.collect() == 1
    installed.delete(name)
    until(lambda: mp.collect() == 0)


SENDER = """
    import mp_standin, torch
    from multiprocessing.reduction import ForkingPickler
    import gpushm.torch.multiprocessing as mp
    mp_standin.replace(setattr)
    mp.install()
    print(bytes(ForkingPickler.dumps(torch.ones(10))).hex(), flush=True)
    input()
"""


def test_what_nobody_takes_goes_with_the_sender(broker, peer, other):
    sender = peer(SENDER)
    message = bytes.fromhex(sender.hear())
    assert len(other.list()) == 1
    sender.say()
    sender.end()
    assert not other.list()
    with pytest.raises(gpushm.NotFound, match="keep the sender running"):
        _loads(message, broker)


def test_what_a_killed_sender_leaves_behind(broker, peer, other):
    killed, foreign = peer(SENDER), peer(SENDER, "app")
    killed.hear(), foreign.hear()
    killed.kill()
    foreign.kill()
    assert len(other.list()) == 2
    sender = peer(SENDER)
    sender.hear()
    creators = [info.creator for info in other.list()]
    assert sorted(creators) == ["app", "other"]  # Its own, and that of another container.


def _loads(message, broker):
    import gpushm._default

    gpushm._default._client = broker.connect()
    return pickle.loads(message)


def test_a_message_has_one_receiver(installed, broker, monkeypatch):
    monkeypatch.setattr(gpushm._default, "_client", None)
    message = ForkingPickler.dumps(torch.arange(4))
    assert _loads(message, broker).tolist() == [0, 1, 2, 3]
    with pytest.raises(gpushm.NotFound, match="unpickle each once"):
        _loads(message, broker)


def test_memory_that_cannot_be_shared(installed, broker, monkeypatch):
    monkeypatch.setattr(mp, "_bytes_of", lambda storage: mp_standin.OnGpu(storage, can_export=False))
    with pytest.raises(gpushm.Unsupported, match=r"install\(allow_copy=True\)"):
        ForkingPickler.dumps(torch.ones(4))
    mp.install(client=installed, allow_copy=True)
    message = ForkingPickler.dumps(torch.ones(4))
    assert mp.held() == 0  # The copy is the pool's.
    assert _loads(message, broker).tolist() == [1, 1, 1, 1]


def test_what_goes_on_as_before(installed, monkeypatch):
    non_leaf = torch.ones(3, requires_grad=True) * 2
    with pytest.raises(RuntimeError, match="non-leaf"):
        ForkingPickler.dumps(non_leaf)
    ForkingPickler.dumps(torch.eye(3).to_sparse())
    monkeypatch.undo()
    loaded = pickle.loads(ForkingPickler.dumps(torch.ones(3)))
    assert loaded.is_shared() and not mp._takes(loaded) and mp.held() == 0


def test_uninstall_gives_back_what_was_there():
    before = dict(ForkingPickler._extra_reducers)
    mp.uninstall()
    mp.install()
    assert ForkingPickler._extra_reducers[torch.Tensor] is mp._reduce
    mp.install(allow_copy=True)
    mp.uninstall()
    assert ForkingPickler._extra_reducers == before


def test_no_broker(monkeypatch, tmp_path):
    mp_standin.replace(monkeypatch.setattr)
    monkeypatch.setenv("GPUSHM_DIR", str(tmp_path))
    monkeypatch.setattr(gpushm._default, "_client", None)
    monkeypatch.setattr(gpushm._default, "client", lambda: gpushm.connect(timeout=0.01))
    mp.install()
    try:
        with pytest.raises((gpushm.Unavailable, gpushm.Timeout)):
            ForkingPickler.dumps(torch.ones(3))
    finally:
        mp.uninstall()
