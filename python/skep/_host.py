"""PyTorch modules as expert classes of the library: what a node calls."""

import ctypes
import itertools
import logging
import math
import re
import threading
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from . import _abi
from ._library import check, library
from ._tensors import _torch_types
from .backend import ModuleBackend, NonFiniteGradients

logger = logging.getLogger("skep")

# How a backend comes into being: from the width and the seed of the expert. Called once for each
# expert, at its first use, and for the description of a class.
Recipe = Callable[[int, int], ModuleBackend]

_OK, _INVALID_ARGUMENT, _INTERNAL = 0, 3, 13
_FIELDS: Dict[str, Any] = {f[0]: f[1] for f in _abi.skep_expert_class._fields_}
_TYPES = {kind: dtype for dtype, kind in _torch_types().items()}

_numbers = itertools.count(1)
_recipes: Dict[str, Recipe] = {}  # by the argument of an expert's options
_holders: Dict[int, "_Holder"] = {}  # by the state of an expert
_classes: Dict[str, Tuple[Any, ...]] = {}  # of the library, by name: kept for ever
_lock = threading.Lock()  # guards _classes


class _Holder:
    """One expert: its backend, made at its first use, and the copy that is being saved."""

    def __init__(self, recipe: Recipe, hidden_dim: int, seed: int) -> None:
        self._make = lambda: recipe(hidden_dim, seed)
        self._backend: Optional[ModuleBackend] = None
        self._lock = threading.Lock()  # guards _backend: a save may come beside a pass
        self.saved: List[Any] = []

    @property
    def backend(self) -> ModuleBackend:
        with self._lock:
            if self._backend is None:
                self._backend = self._make()
            return self._backend


def _say(error: Any, status: int, message: str) -> int:
    if error:
        error.contents.status = status
        error.contents.message = message.encode(errors="replace")[:_MESSAGE_BYTES - 1]
    return status


_MESSAGE_BYTES = _abi.SKEP_ERROR_MESSAGE_BYTES


def _guarded(function: Callable[..., None]) -> Callable[..., int]:
    """Turns exceptions into statuses. The error is always the last argument."""
    def call(*arguments: Any) -> int:
        try:
            function(*arguments[:-1])
        except NonFiniteGradients as e:
            return _say(arguments[-1], _INVALID_ARGUMENT, str(e))
        except BaseException as e:  # nothing may pass through C
            logger.debug("an expert's %s failed", function.__name__.strip("_"), exc_info=True)
            return _say(arguments[-1], _INTERNAL, "%s: %s" % (type(e).__name__, e))
        return _OK
    return call


def _view(t: Any) -> torch.Tensor:
    """A tensor over memory of the library, valid during the call. A module gets a copy: it may keep
    what it is called with."""
    shape = [t.shape[d] for d in range(t.ndim)]
    dtype = _TYPES[(t.dtype.code, t.dtype.bits)]
    count = math.prod(shape)
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    size = count * t.dtype.bits // 8
    memory = (ctypes.c_char * size).from_address(t.data + t.byte_offset)
    return torch.frombuffer(memory, dtype=dtype, count=count).view(shape)


def _write(results: Any, tensors: Tuple[torch.Tensor, ...], expected: int, what: str) -> None:
    if len(tensors) != expected:
        raise ValueError("%d %ss, expected %d" % (len(tensors), what, expected))
    for i, tensor in enumerate(tensors):
        target = _view(results[i])
        if tensor.shape != target.shape:
            raise ValueError("%s %d has shape %s, expected %s"
                             % (what, i, tuple(tensor.shape), tuple(target.shape)))
        target.copy_(tensor.detach())


@_guarded
def _create(options: Any, state: Any) -> None:
    o = options.contents
    key = (o.argument or b"").decode()
    if key not in _recipes:
        raise RuntimeError("this class of experts is made by skep.Server")
    number = next(_numbers)
    _holders[number] = _Holder(_recipes[key], o.hidden_dim, o.seed)
    state[0] = number


def _destroy(state: int) -> None:
    _holders.pop(state, None)


def _describe_all(specs: Any, names: List[str], descriptors: Any) -> int:
    for i, (name, d) in enumerate(zip(names, descriptors)):
        spec = specs[i]
        spec.name = name.encode()[:31]
        spec.ndim = len(d.shape)
        for k, n in enumerate(d.shape):
            spec.shape[k] = -1 if n is None else n
        code, bits = _torch_types()[d.dtype]
        spec.dtype.code, spec.dtype.bits, spec.dtype.lanes = code, bits, 1
    return len(names)


@_guarded
def _describe(state: int, schema: Any) -> None:
    backend, s = _holders[state].backend, schema.contents
    outputs = ["output%d" % i for i in range(len(backend.outputs))]
    for names, what in ((backend.input_names, "input"), (outputs, "output")):
        if len(names) > len(s.inputs):
            raise ValueError("%d %ss, expected at most %d" % (len(names), what, len(s.inputs)))
    s.input_count = _describe_all(s.inputs, backend.input_names, backend.inputs)
    s.output_count = _describe_all(s.outputs, outputs if len(outputs) > 1 else ["output"],
                                   backend.outputs)


@_guarded
def _forward(state: int, _params: Any, inputs: Any, outputs: Any) -> None:
    backend = _holders[state].backend
    copies = [_view(inputs[i]).clone() for i in range(len(backend.inputs))]
    _write(outputs, tuple(backend.forward(*copies)), len(backend.outputs), "output")


@_guarded
def _backward(state: int, _params: Any, inputs: Any, grad_outputs: Any, grad_inputs: Any,
              _grads: Any) -> None:
    backend = _holders[state].backend
    copies = [_view(inputs[i]).clone() for i in range(len(backend.inputs))]
    copies += [_view(grad_outputs[i]).clone() for i in range(len(backend.outputs))]
    _write(grad_inputs, tuple(backend.backward(*copies)), len(backend.inputs), "gradient")


def _parameter_count(state: int) -> int:
    try:
        return _holders[state].backend.parameter_count()
    except Exception:  # describe() has reported it
        return 0


@_guarded
def _save(state: int, tensors: Any, count: Any) -> None:
    from ._tensors import Views
    holder = _holders[state]
    named = holder.backend.named_state()
    views = [Views([value]) for value in named.values()]
    names = [ctypes.c_char_p(name.encode()) for name in named]
    array = (_abi.skep_named_tensor * max(1, len(names)))()
    for i, view in enumerate(views):
        array[i].name = names[i]
        array[i].tensor = view.pointers[0]
    holder.saved = [array, names, views]
    tensors[0] = ctypes.cast(array, ctypes.POINTER(_abi.skep_named_tensor))
    count[0] = len(names)


@_guarded
def _load(state: int, tensors: Any, count: int) -> None:
    named = {tensors[i].name.decode(): _view(tensors[i].tensor.contents).clone()
             for i in range(count)}
    _holders[state].backend.load_named_state(named)


_CALLBACKS = {name: _FIELDS[name](function) for name, function in (
    ("create", _create), ("destroy", _destroy), ("describe", _describe), ("forward", _forward),
    ("backward", _backward), ("parameter_count", _parameter_count), ("save", _save),
    ("load", _load))}


def class_name(text: str) -> str:
    """A name as the library takes it, such as that of a module's class."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", text)[:31] or "module"


def register(name: str) -> None:
    """Makes a class of experts known to the library, once."""
    with _lock:
        if name in _classes:
            return
        cls = _abi.skep_expert_class(name=name.encode(), is_bounded=False, owns_state=True,
                                     **_CALLBACKS)
        plugin = _abi.skep_plugin(abi=_abi.SKEP_PLUGIN_ABI, class_count=1,
                                  classes=ctypes.pointer(cls))
        error = _abi.skep_error()
        check(library().skep_plugin_register(ctypes.byref(plugin), ctypes.byref(error)), error)
        _classes[name] = (cls, plugin)


def add_recipe(recipe: Recipe) -> str:
    """Keeps a recipe under the text that an expert's options give; :func:`drop_recipe` ends it."""
    key = "python-%d" % next(_numbers)
    _recipes[key] = recipe
    return key


def drop_recipe(key: str) -> None:
    """No expert is made by it any more."""
    _recipes.pop(key, None)
