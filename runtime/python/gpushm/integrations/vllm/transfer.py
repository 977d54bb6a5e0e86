"""vLLM's weight transfer from a trainer to rollouts: each round is a new generation of one buffer.

The trainer's side publishes, and tells vLLM's workers the generation. Each worker opens exactly that one,
and copies from it into its model, in vLLM's layerwise reload. A trainer that does not use this class
publishes by gpushm.tensors.publish, and calls vLLM's update_weights with {"generation": N}, or {} for the
newest.
"""

from dataclasses import dataclass
from typing import ClassVar

from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo, TrainerWeightTransferEngine, WeightTransferEngine, WeightTransferInitInfo,
    WeightTransferUpdateInfo)

from gpushm import tensors as _tensors, torch as _torch
from gpushm.errors import Status, from_status

DEFAULT_NAME = "vllm-policy"


@dataclass
class GpushmInitInfo(WeightTransferInitInfo):
    """What a worker is told once: the buffer's name."""

    name: str = DEFAULT_NAME
    timeout: float = 60.0


@dataclass
class GpushmUpdateInfo(WeightTransferUpdateInfo):
    """What a worker is told in each round: the generation; 0: the newest."""

    generation: int = 0


@dataclass
class GpushmTrainerInitInfo(TrainerInitInfo):
    """The trainer's side: the name of the buffer, who may write it, and seconds for each wait. The rank
    is keyword-only: GpushmTrainerInitInfo("policy", rank=0)."""

    backend: ClassVar[str] = "gpushm"
    name: str = DEFAULT_NAME
    writers: str = "creator"
    timeout: float = 600.0


class GpushmWeightTransferEngine(WeightTransferEngine[GpushmInitInfo, GpushmUpdateInfo]):
    """A worker's side."""

    init_info_cls = GpushmInitInfo
    update_info_cls = GpushmUpdateInfo

    def __init__(self, config, vllm_config, device, model):
        super().__init__(config, vllm_config, device, model)
        self._init_info = GpushmInitInfo()

    def init_transfer_engine(self, init_info):
        """Remembers the buffer's name. Nothing else is set up, and the buffer need not exist yet."""
        self._init_info = init_info

    def start_weight_update(self):
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info):
        """Copies one generation into the model.

        Raises Stale (the trainer has published a newer generation), Timeout, NotFound, Unsupported.
        """
        from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check

        opened = _tensors.open(self._init_info.name, generation=update_info.generation,
                               timeout=self._init_info.timeout)
        if self.device.index not in (None, opened.buffer.device):
            raise from_status(
                Status.UNSUPPORTED, f"\"{opened.name}\" is on GPU {opened.buffer.device}, and this worker on "
                f"{self.device}", "run the trainer's buffer and the worker on one GPU, or use vLLM's backend "
                "\"nccl\"")
        with disable_mtp_completeness_check():
            self.model.load_weights(iter(_torch.tensors_of(opened).items()))

    def finish_weight_update(self):
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self):
        """Nothing is held between rounds."""


class GpushmTrainerWeightTransferEngine(TrainerWeightTransferEngine[GpushmTrainerInitInfo]):
    """The trainer's side. Every rank calls send_weights, as a source may gather shards from all of them;
    rank 0 publishes."""

    init_info_cls = GpushmTrainerInitInfo

    def __init__(self, *, client, source, init_info):
        super().__init__(client=client, source=source, is_sender=init_info.is_sender, rank=init_info.rank)
        self._init_info = init_info

    @classmethod
    def trainer_init(cls, init_info, *, client, source=None):
        if source is None or not source.implements_iter_full():
            raise from_status(Status.INVALID_ARGUMENT, "gpushm sends full tensors, and the source has no iter_full",
                              "pass a WeightSource that has it, such as ModuleSource(model)")
        if len(source.owned_names(init_info.rank)) != len(source.metadata):
            raise from_status(Status.UNSUPPORTED, f"rank {init_info.rank} does not own every parameter",
                              "use a source whose ranks own every parameter, or vLLM's backend \"nccl_m2n\"")
        engine = cls(client=client, source=source, init_info=init_info)
        if engine.is_sender:
            client.init_weight_transfer_engine({"name": init_info.name})
        return engine

    def send_weights(self):
        """Publishes the weights, and has the workers take them. Returns when they have.

        The pool holds the generation before until its last worker is done with it. Raises the errors of
        gpushm.tensors.publish_each, and those of the client.
        """
        generation = self._publish() if self.is_sender else self._gather()
        if self.is_sender:
            self.client.start_weight_update()
            self.client.update_weights({"generation": generation})
            self.client.finish_weight_update()

    def _gather(self):
        for _ in self.source.iter_full():
            pass  # The collectives of this rank.

    def _publish(self):
        specs = {each.name: (str(each.dtype).removeprefix("torch."), tuple(each.shape))
                 for each in self.source.metadata}
        info = self._init_info
        return _tensors.publish_each(info.name, specs, self.source.iter_full(), writers=info.writers,
                                     timeout=info.timeout)
