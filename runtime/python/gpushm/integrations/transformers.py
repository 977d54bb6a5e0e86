"""gpushm for transformers: several processes serve a model from one copy of its weights.

    from gpushm.integrations import transformers as shared

    model = AutoModelForCausalLM.from_pretrained("models/llama", device_map="cuda")
    shared.publish(model, "weights")                           # one process

    model = shared.from_shared(AutoModelForCausalLM, "weights")    # the others: no file is read

Parameters are shared, for reading. Buffers, such as the frequencies of rotary embeddings, are copied: a
model may replace them while it runs, and they are small. Ties stay ties.
"""

import copy
import json

import torch
import transformers

from gpushm import tensors as _tensors, torch as _torch
from gpushm.errors import Status, from_status
from gpushm.integrations import _modules

__all__ = ["from_shared", "publish"]

if int(transformers.__version__.split(".")[0]) < 5:
    raise ImportError(f"gpushm.integrations.transformers needs transformers 5 or newer, and {transformers.__version__} "
                      "is installed: install a newer one, or use gpushm.torch.publish_module and adopt_module")

_CLASS, _CONFIG, _GENERATION = "transformers.class", "transformers.config", "transformers.generation"


def publish(model, name, *, metadata=None, client=None, timeout=600.0, writers="creator"):
    """Publishes a model of transformers with its configuration, so that from_shared makes the same one
    without a file. Returns the generation.

    The pool needs room for the weights; the model keeps its own copy until it is dropped. A process that
    also serves takes the shared one: `model = from_shared(type(model), name)`.

    `metadata`: str to str, for your own use. `writers`: as in gpushm.tensors.publish.

    Raises InvalidArgument (not a model of transformers, or tensors on the device meta), Unsupported (a
    quantised model, or sharded tensors), and the errors of gpushm.tensors.publish.
    """
    if not isinstance(model, transformers.PreTrainedModel):
        raise from_status(Status.INVALID_ARGUMENT, f"cannot publish \"{name}\": {type(model).__name__} is not a "
                          "transformers.PreTrainedModel", "use gpushm.torch.publish_module for other modules, "
                          "and merge the adapters of PEFT first")
    if getattr(model.config, "quantization_config", None) is not None:
        raise from_status(
            Status.UNSUPPORTED, f"cannot publish \"{name}\": the model is quantised, and its layers keep state "
            "outside of tensors", "publish the model without quantisation, or serve it with vLLM's loader "
            "(--load-format gpushm), which shares the quantisations that vLLM allows")
    config = copy.deepcopy(model.config)
    config.dtype = model.dtype
    own = {_CLASS: type(model).__name__, _CONFIG: config.to_json_string(use_diff=False)}
    if getattr(model, "generation_config", None) is not None:
        own[_GENERATION] = model.generation_config.to_json_string(use_diff=False)
    return _modules.publish(model, name, metadata={**(metadata or {}), **own}, client=client, timeout=timeout,
                            writers=writers)


def from_shared(model_class_or_config, name, *, attn_implementation=None, generation=0, timeout=60.0,
                client=None):
    """A model whose parameters are the shared tensors of `name`, in evaluation mode. Nothing is loaded.

    `model_class_or_config`: a class, such as AutoModelForCausalLM or LlamaForCausalLM, for what `publish`
    published; or a configuration. A configuration also takes a set that was made from the files of a
    checkpoint (`python -m gpushm publish models/llama weights`). transformers converts such tensors where
    the model's differ, and a tensor that it converts is a copy.

    `attn_implementation`: as in from_pretrained. `generation`: exactly that one; 0: the current one.
    `timeout`: seconds to wait until it exists.

    Do not train the model, and do not write to its parameters: they are mapped for reading, see
    gpushm.torch.guard.

    Raises Incompatible (another class, configuration or structure), InvalidArgument, Timeout, NotFound,
    Denied, Stale.
    """
    opened = _tensors.open(name, generation=generation, timeout=timeout, client=client)
    config = None if isinstance(model_class_or_config, type) else model_class_or_config
    if config is not None and not isinstance(config, transformers.PreTrainedConfig):
        raise from_status(Status.INVALID_ARGUMENT, f"{config!r} is neither a class nor a configuration of "
                          "transformers", "pass AutoModelForCausalLM, or AutoConfig.from_pretrained(folder)")
    if not _modules.holds_module(opened):
        return _from_checkpoint(config, opened, attn_implementation)
    metadata = opened.metadata
    if _CLASS not in metadata:
        raise from_status(Status.INCOMPATIBLE, f"\"{name}\" has tensors of a module that is not of transformers",
                          "publish it by gpushm.integrations.transformers.publish")
    model_class = _class_of(model_class_or_config, metadata[_CLASS], name)
    published = _config_of(model_class, metadata)
    if config is None:
        config = published
    elif config.dtype is not None and _name_of(config.dtype) != _name_of(published.dtype):
        raise from_status(Status.INCOMPATIBLE, f"\"{name}\" has weights of {_name_of(published.dtype)}, and the "
                          f"configuration says {_name_of(config.dtype)}", "publish the model in that type")
    return _build(model_class, copy.deepcopy(config), opened, metadata, attn_implementation)


def _build(model_class, config, opened, metadata, attn_implementation):
    options = {} if attn_implementation is None else {"attn_implementation": attn_implementation}
    with torch.device("meta"):
        model = model_class._from_config(config, **options)
    missing = _modules.adopt(model, opened, types=False) or _modules.on_meta(model)
    if missing:
        raise from_status(Status.INCOMPATIBLE, f"\"{opened.name}\" lacks {missing[0]} and {len(missing) - 1} more",
                          "publish the model again, with the same version of transformers")
    if _GENERATION in metadata:
        model.generation_config = transformers.GenerationConfig.from_dict(json.loads(metadata[_GENERATION]))
    return model.eval()


def _class_of(wanted, published, name):
    """The class to make. Only classes of transformers are found by name: metadata is another process's."""
    if isinstance(wanted, type) and wanted.__name__ == published:
        return wanted
    found = getattr(transformers, published, None)
    if not isinstance(found, type) or not issubclass(found, transformers.PreTrainedModel):
        raise from_status(Status.INVALID_ARGUMENT, f"\"{name}\" has a {published}, which transformers does not have",
                          "pass that class")
    if isinstance(wanted, type) and issubclass(wanted, transformers.PreTrainedModel):
        raise from_status(Status.INCOMPATIBLE, f"\"{name}\" has a {published}, not a {wanted.__name__}",
                          f"pass {published}, or an auto class")
    mapping = getattr(wanted, "_model_mapping", None)
    if mapping is not None and mapping.get(found.config_class, None) is not found:
        raise from_status(Status.INCOMPATIBLE, f"\"{name}\" has a {published}, which {wanted.__name__} does not make",
                          f"pass {published}")
    if not isinstance(wanted, transformers.PreTrainedConfig) and mapping is None:
        raise from_status(Status.INVALID_ARGUMENT, f"{wanted!r} is not a class of transformers",
                          f"pass {published}, or an auto class")
    return found


def _config_of(model_class, metadata):
    return model_class.config_class.from_dict(json.loads(metadata[_CONFIG]))


def _name_of(dtype):
    return str(dtype).removeprefix("torch.")


def _from_checkpoint(config, opened, attn_implementation):
    """For tensors as a checkpoint has them: transformers' own loading, on tensors instead of files."""
    architectures = getattr(config, "architectures", None) or []
    model_class = getattr(transformers, architectures[0], None) if architectures else None
    if model_class is None:
        raise from_status(
            Status.INVALID_ARGUMENT, f"\"{opened.name}\" has the tensors of a checkpoint, and "
            + ("no configuration is given" if config is None else
               f"transformers has none of the architectures {architectures}"),
            "pass AutoConfig.from_pretrained(folder of the model)")
    if not transformers.utils.is_accelerate_available():
        raise from_status(Status.UNSUPPORTED, f"\"{opened.name}\" has the tensors of a checkpoint, and transformers "
                          "places those on a GPU only with the package accelerate",
                          "install accelerate, or publish by gpushm.integrations.transformers.publish")
    loaded = _torch.tensors_of(opened)
    dtype = next((each.dtype for each in loaded.values() if each.is_floating_point()), None)
    options = {} if attn_implementation is None else {"attn_implementation": attn_implementation}
    device = next(iter(loaded.values())).device
    model, report = model_class.from_pretrained(
        None, config=copy.deepcopy(config), state_dict=loaded, dtype=dtype, device_map={"": device},
        output_loading_info=True, **options)
    wrong = [*report["missing_keys"], *report["unexpected_keys"], *report["mismatched_keys"]]
    if wrong:
        raise from_status(
            Status.INCOMPATIBLE, f"\"{opened.name}\" does not fit {model_class.__name__}: {wrong[0]} and "
            f"{len(wrong) - 1} more are missing, unknown, or of another shape", "pass the configuration of this "
            "checkpoint")
    return model.requires_grad_(False).eval()
