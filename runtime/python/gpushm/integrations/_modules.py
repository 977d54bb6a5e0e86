"""What the integrations share: a module's tensors as a set, and a module that takes them.

Parameters are shared, for reading. Buffers and tensors that are plain attributes are small, and a module
may write to them while it runs (a rotary embedding that grows, a scale that is measured), so who adopts a
module gets copies of those. A tensor keeps its strides: kernels rely on the layout that post-processing
gave it.
"""

import ast
import enum
import functools
import json

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from gpushm import tensors as _tensors, torch as _torch
from gpushm.errors import Status, from_status

_KEY = "gpushm.module"
_PARAMETER, _BUFFER, _ATTRIBUTE = "parameter", "buffer", "attribute"


def members(module):
    """Yields (name, kind, tensor) of all tensors that a module has, ties included: parameters, buffers
    (also those that are not in the state dict) and plain attributes."""
    for path, each in module.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        for kind, found in ((_PARAMETER, each._parameters), (_BUFFER, each._buffers),
                            (_ATTRIBUTE, vars(each))):
            for leaf, tensor in found.items():
                if isinstance(tensor, torch.Tensor):
                    yield prefix + leaf, kind, tensor


def publish(module, name, *, metadata=None, client=None, timeout=600.0, writers="creator"):
    """Publishes all tensors of a module, and returns the generation. `metadata`: str to str."""
    sent, entries, ties, seen = {}, {}, {}, {}
    on_gpu = any(tensor.is_cuda for _, _, tensor in members(module))
    for key, kind, tensor in members(module):
        if is_traceable_wrapper_subclass(tensor):
            raise from_status(
                Status.UNSUPPORTED, f"cannot publish \"{name}\": {key} is a {type(tensor).__name__}, which "
                "wraps other tensors", "publish a model with plain tensors, such as one rank's own")
        tensor = tensor.detach()
        if tensor.device.type == "meta":
            raise from_status(Status.INVALID_ARGUMENT, f"cannot publish \"{name}\": {key} is on the device meta",
                              "load the weights first")
        same = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), kind)
        if tensor.numel() and same in seen:
            ties[key] = seen[same]
            continue
        seen[same] = key
        entries[key] = {"kind": kind, "host": on_gpu and not tensor.is_cuda}
        if not tensor.is_contiguous():
            entries[key] |= {"shape": list(tensor.shape), "stride": list(tensor.stride())}
            tensor = _flat(tensor)
        sent[key] = tensor
    described = json.dumps({"entries": entries, "ties": ties})
    return _tensors.publish(name, sent, metadata={**(metadata or {}), _KEY: described}, client=client,
                            timeout=timeout, writers=writers)


def _flat(tensor):
    """All elements that a tensor spans, in the order of memory."""
    span = 1 + sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride()))
    return tensor.as_strided((span,), (1,))


def holds_module(opened):
    """Whether a set was published by `publish`, and has more than the tensors of a file."""
    return _KEY in opened.metadata


def adopt(module, opened, *, extend=False, types=True):
    """Gives a module the tensors of a set that `publish` published. Returns the names of tensors that
    the module has and the set lacks; they stay as they are.

    `extend`: the published module may have tensors that this one lacks, which post-processing made.
    `types`: whether the module's types must be those of the set already; else it gets them.

    Raises Incompatible if names, types or shapes differ.
    """
    described = json.loads(opened.metadata[_KEY])
    entries, ties = described["entries"], described["ties"]
    own = {key: tensor for key, _, tensor in members(module)}
    if not extend:
        _compare(own, opened, entries, ties, types)
    loaded = _torch.tensors_of(opened)
    done = {}
    for key, entry in entries.items():
        tensor = loaded.pop(key)
        if "stride" in entry:
            tensor = tensor.as_strided(entry["shape"], entry["stride"])
        if entry["kind"] == _PARAMETER:
            tensor = torch.nn.Parameter(tensor, requires_grad=False)
        else:
            tensor = tensor.cpu() if entry["host"] and tensor.is_cuda else tensor.clone()
        done[key] = tensor
        _place(module, key, entry["kind"], tensor, opened.name)
    for key, of in ties.items():
        _place(module, key, entries[of]["kind"], done[of], opened.name)
    return sorted(set(own) - set(entries) - set(ties))


def exchange(module, opened):
    """Replaces the memory of a module's parameters by that of the set which was published from it. The
    Parameter objects stay, so what refers to them goes on. Returns how many they are."""
    described = json.loads(opened.metadata[_KEY])
    entries = described["entries"]
    own = {key: tensor for key, _, tensor in members(module)}
    loaded = _torch.tensors_of(opened)
    shared = [key for key, entry in entries.items() if entry["kind"] == _PARAMETER]
    for key in shared:
        tensor, entry = loaded[key], entries[key]
        own[key].data = tensor.as_strided(entry["shape"], entry["stride"]) if "stride" in entry else tensor
    for key, of in described["ties"].items():
        if entries[of]["kind"] == _PARAMETER:
            own[key].data = own[of].data
    return len(shared)


def _compare(own, opened, entries, ties, types):
    published = set(entries) | set(ties)
    problems = [f"{key} is missing" for key in sorted(set(own) - published)]
    problems += [f"{key} is unknown here" for key in sorted(published - set(own))]
    for key in sorted(set(own) & published):
        of = ties.get(key, key)
        dtype, shape = opened.spec(of)[0], tuple(entries[of].get("shape", opened.spec(of)[1]))
        mine = _torch.spec(own[key])
        if shape != mine[1] or (types and dtype != mine[0]):
            problems.append(f"{key} is {dtype} {list(shape)}, here {mine[0]} {list(mine[1])}")
    if problems:
        more = f", and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise from_status(
            Status.INCOMPATIBLE, f"\"{opened.name}\" has the tensors of another module: "
            f"{'; '.join(problems[:3])}{more}", "make the module as its publisher does, with the same "
            "configuration, versions and types")


def _place(module, key, kind, tensor, name):
    path, _, leaf = key.rpartition(".")
    try:
        owner = module.get_submodule(path)
    except AttributeError:
        raise from_status(Status.INCOMPATIBLE, f"\"{name}\" has the tensor {key}, and this module has no "
                          f"submodule {path}", "make the module as its publisher does") from None
    if kind == _ATTRIBUTE:
        setattr(owner, leaf, tensor)
        return
    persistent = leaf not in owner._non_persistent_buffers_set
    if kind == _PARAMETER and owner._parameters.get(leaf) is not None:
        vars(tensor).update(vars(owner._parameters[leaf]))  # Kernels look at what engines note there.
    owner._parameters.pop(leaf, None)
    owner._buffers.pop(leaf, None)
    vars(owner).pop(leaf, None)
    if kind == _PARAMETER:
        owner.register_parameter(leaf, tensor)
    else:
        owner.register_buffer(leaf, tensor, persistent=persistent)


def on_meta(module):
    """Names of the tensors of a module that have no memory."""
    return [key for key, _, tensor in members(module) if tensor.device.type == "meta"]


# ---- what a module has besides tensors

# Attributes of every module, which are not its own.
_OF_MODULES = frozenset(vars(torch.nn.Module()))
_TEXTS = (type(None), bool, int, float, str, bytes, tuple, list, dict, set)


def state(module):
    """What a module has besides tensors, for `changes` in another process; JSON can carry it. Returns it, and
    what nobody could rebuild, as text: tensors out of sight of `members`."""
    texts, objects, cannot = {}, {}, []
    for name, value in _plain(module):
        text = _text(value)
        if _holds_tensor(value):
            cannot.append(f"{name} holds tensors")
        elif text is None:
            objects[name] = _kind(value)
        else:
            texts[name] = text
    return {"texts": texts, "objects": objects, "tensors": [key for key, _, _ in members(module)],
            "modules": {path: type(each).__qualname__ for path, each in module.named_modules()}}, cannot


def changes(made, loaded):
    """What loading changed in a module besides its tensors. `made`: the same module before that; `loaded`:
    its `state` after that.

    Returns names to values as text, for `apply`; names of attributes that are gone; and what differs but
    cannot be expressed so, as text: modules and objects that only loading makes.
    """
    before = dict(_plain(made))
    cannot = [f"{name} is a {kind}" for name, kind in loaded["objects"].items()
              if name not in before or _kind(before[name]) != kind]
    modules = dict(made.named_modules())
    cannot += [f"{path} is a {kind}" for path, kind in loaded["modules"].items()
               if kind != type(modules.get(path)).__qualname__]
    changed = {name: text for name, text in loaded["texts"].items()
               if name not in before or _text(before[name]) != text}
    gone = set(before) - set(loaded["texts"]) - set(loaded["objects"]) | {key for key, _, _ in members(made)}
    gone -= set(loaded["tensors"])
    return changed, sorted(name for name in gone if name.rpartition(".")[0] not in gone), cannot


def apply(module, changed, removed):
    """Gives a module that was made anew what `changes` found. After `adopt`."""
    for name in removed:
        path, _, leaf = name.rpartition(".")
        owner = _resolve(module, path)
        if hasattr(owner, leaf):
            delattr(owner, leaf)
    for name, text in changed.items():
        path, _, leaf = name.rpartition(".")
        setattr(_resolve(module, path), leaf, _value(text))


def _resolve(module, path):
    return functools.reduce(getattr, filter(None, path.split(".")), module)


def _plain(module):
    """Yields (name, value) of what modules, their parameters and their quantisation methods have besides
    tensors and modules."""
    for path, each in module.named_modules():
        prefix = f"{path}." if path else ""
        own = {name: value for name, value in vars(each).items() if name not in _OF_MODULES}
        own |= {name: None for kept in (each._parameters, each._buffers)
                for name, tensor in kept.items() if tensor is None}
        for name, value in own.items():
            if not isinstance(value, torch.Tensor):
                yield prefix + name, value
        owners = {name: tensor for name, tensor in each._parameters.items() if tensor is not None}
        if "quant_method" in vars(each):
            owners["quant_method"] = each.quant_method
        for leaf, owner in owners.items():
            for name, value in getattr(owner, "__dict__", {}).items():
                yield f"{prefix}{leaf}.{name}", value


def _kind(value):
    name = type(value).__qualname__
    return f"{name}.{value.name}" if isinstance(value, enum.Enum) else name


def _holds_tensor(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple, set)):
        return any(_holds_tensor(each) for each in value)
    return isinstance(value, torch.Tensor)


def _text(value):
    """A value as text; None if another process could not make it from that."""
    if isinstance(value, torch.dtype):
        return str(value)
    if not isinstance(value, _TEXTS):
        return None
    text = repr(tuple(value) if isinstance(value, torch.Size) else value)
    try:
        return text if ast.literal_eval(text) == value else None
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return None


def _value(text):
    if text.startswith("torch."):
        return getattr(torch, text.removeprefix("torch."))
    return ast.literal_eval(text)
