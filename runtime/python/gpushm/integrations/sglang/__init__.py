"""gpushm for SGLang: a model loader.

    sglang serve --model-path MODEL --load-format gpushm

SGLang finds it by the entry point "gpushm" of the group sglang.srt.plugins: installing gpushm beside SGLang
is all. It is written for SGLang 0.5.23; another release may have moved what it uses, and then a warning in
the log says which name is missing.

SGLang's own list of load formats can be extended, and its loader factory takes a class in place of a format.
What lies between the two, LoadConfig, knows an enumeration only. So `register` puts a hook of SGLang's
HookRegistry around its check: it turns "gpushm" into the class. Nothing else is patched until a server
loads with it.
"""

import logging

BACKEND = "gpushm"
WRITTEN_FOR = "0.5.23"
_CHECK = "sglang.srt.configs.load_config.LoadConfig._verify_load_format"

logger = logging.getLogger(__name__)


def register():
    """The entry point. SGLang calls it in each of its processes, also if nobody uses gpushm there: so a
    failure is a warning, and "gpushm" is then no choice of --load-format.
    """
    try:
        from sglang.srt.arg_groups import choices
        from sglang.srt.configs.load_config import LoadConfig
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        known, add = choices.LOAD_FORMAT_CHOICES, choices.add_load_format_choices
        _ = LoadConfig._verify_load_format, HookRegistry.register
    except (ImportError, AttributeError) as error:
        logger.warning("gpushm: --load-format gpushm is not available: %s: %s. gpushm is written for "
                       "SGLang %s.", type(error).__name__, error, WRITTEN_FOR)
        return
    if BACKEND not in known:
        HookRegistry.register(_CHECK, _verify_load_format, HookType.AROUND)
        add([BACKEND])


def _verify_load_format(original, config):
    if not isinstance(config.load_format, str) or config.load_format.lower() != BACKEND:
        return original(config)
    try:
        from gpushm.integrations.sglang.loader import GpushmModelLoader
    except (ImportError, AttributeError) as error:
        from gpushm.errors import Status, from_status

        raise from_status(
            Status.UNSUPPORTED,
            f"--load-format gpushm does not fit this SGLang: {type(error).__name__}: {error}",
            f"use SGLang {WRITTEN_FOR}, or a newer gpushm") from error
    config.load_format = GpushmModelLoader
    return None
