"""gpushm for vLLM: a model loader and a backend for weight transfer.

    vllm serve MODEL --load-format gpushm
    vllm serve MODEL --weight-transfer-config '{"backend": "gpushm"}'

vLLM finds both by the entry point "gpushm" of the group vllm.general_plugins: installing gpushm beside
vLLM is all. They are written for vLLM 0.33; another release may have moved what they use, and then a
warning in the log says which name is missing.
"""

import logging

BACKEND = "gpushm"
WRITTEN_FOR = "0.33"


def register():
    """The entry point. vLLM calls it in each of its processes, more than once, also if nobody uses
    gpushm there: so a failure is a warning, and never an end.
    """
    for part, add in (("--load-format gpushm", _register_loader),
                      ("the weight transfer backend gpushm", _register_transfer)):
        try:
            add()
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            logging.getLogger("vllm.gpushm").warning(
                "gpushm: %s is not available: %s: %s. gpushm is written for vLLM %s.", part,
                type(error).__name__, error, WRITTEN_FOR)


def _register_loader():
    from vllm.model_executor import model_loader

    if BACKEND not in model_loader._LOAD_FORMAT_TO_MODEL_LOADER:
        from gpushm.integrations.vllm.loader import GpushmModelLoader

        model_loader.register_model_loader(BACKEND)(GpushmModelLoader)


def _register_transfer():
    from vllm.distributed.weight_transfer import factory

    module = "gpushm.integrations.vllm.transfer"
    for registry, engine in ((factory.WeightTransferEngineFactory, "GpushmWeightTransferEngine"),
                             (factory.WeightTransferTrainerFactory, "GpushmTrainerWeightTransferEngine")):
        if BACKEND not in registry._registry:
            registry.register_engine(BACKEND, module, engine)
