"""gpushm.torch.multiprocessing, with processes of torch.multiprocessing and a real broker. mp_standin.py
says what stands in for the GPU; gpu_check.py has the rest.
"""

import pathlib
import pickle
import tempfile
from multiprocessing.reduction import ForkingPickler

import mp_standin
import pytest
import torch
import torch.multiprocessing
from conftest import until

import gpushm
import gpushm._default
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


def test_memory_is_held_until_somebody_takes_it(installed, broker):
    message = ForkingPickler.dumps(torch.ones(1000))
    assert mp.collect() == 1 and mp.held() == 1
    name, = [info.name for info in installed.list()]
    assert name.startswith("torch-mp-")
    mp.uninstall()
    assert mp.collect() == 1
    assert _loads(message, broker).sum() == 1000
    until(lambda: mp.collect() == 0)


def test_the_same_memory_again(installed, broker, monkeypatch):
    """A storage that the program holds keeps its name: only the first message costs an offer. Views of it are
    the same storage."""
    offers = []
    monkeypatch.setattr(mp, "_bytes_of", lambda storage: offers.append(storage) or mp_standin.OnGpu(storage))
    tensor = torch.arange(8)
    for _ in range(3):
        messages = [ForkingPickler.dumps(tensor), ForkingPickler.dumps(tensor[2:4])]
        assert [_loads(message, broker).tolist() for message in messages] == [list(range(8)), [2, 3]]
    assert len(offers) == 1 and len(installed.list()) == 1
    waiting = ForkingPickler.dumps(tensor)
    assert mp.collect() == 1 and len(installed.list()) == 1  # It is on its way.
    del tensor, messages
    assert _loads(waiting, broker).tolist() == list(range(8))
    ForkingPickler.dumps(torch.ones(3))  # The program has dropped it: now the name goes.
    assert len(installed.list()) == 1
    until(lambda: mp.collect() == 1)


def test_a_receiver_keeps_the_last_memory_mapped(installed, broker, monkeypatch):
    with broker.connect() as client:
        monkeypatch.setattr(gpushm._default, "_client", client)
        tensors = [torch.ones(3), torch.ones(3)]
        for tensor in (tensors[0], tensors[0], tensors[1]):
            pickle.loads(ForkingPickler.dumps(tensor))
            gpushm._native.collect()
            assert len(client.holders()) == 1
        mp.collect()
        assert not client.holders()


def test_many_storages_keep_no_names(installed, broker, monkeypatch):
    monkeypatch.setattr(mp, "_NAMED", 3)
    held = [torch.full((3,), i) for i in range(12)]
    for tensor in held:
        _loads(ForkingPickler.dumps(tensor), broker)
    assert len(installed.list()) <= 5


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
    folder = pathlib.Path(mp._folder() or tempfile.gettempdir())
    assert not list(folder.glob(f"gpushm-other-torch-mp-{killed.pid}-*"))
    assert len(list(folder.glob(f"gpushm-app-torch-mp-{foreign.pid}-*"))) == 1


def _loads(message, broker):
    """As another process would, with a client of its own."""
    former, gpushm._default._client = gpushm._default._client, broker.connect()
    try:
        return pickle.loads(message)
    finally:
        gpushm._default._client = former


def test_a_message_has_one_receiver(installed, broker):
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
