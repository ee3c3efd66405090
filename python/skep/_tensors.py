"""Tensors of NumPy and PyTorch to and from the library, by pointer where they are contiguous."""

import ctypes
import functools
import sys
import weakref
from typing import Any, List, Sequence, Tuple

import numpy as np

from . import _abi
from ._library import library

MAX_TENSORS = 64

_FLOAT, _INT, _UINT, _BFLOAT, _BOOL = 2, 0, 1, 4, 6  # DLPack's type codes; the last is Skep's

_NUMPY = {
    np.dtype("float64"): (_FLOAT, 64), np.dtype("float32"): (_FLOAT, 32),
    np.dtype("float16"): (_FLOAT, 16), np.dtype("int64"): (_INT, 64),
    np.dtype("int32"): (_INT, 32), np.dtype("int16"): (_INT, 16), np.dtype("int8"): (_INT, 8),
    np.dtype("uint8"): (_UINT, 8), np.dtype("bool"): (_BOOL, 8),
}
_NUMPY_OF = {value: key for key, value in _NUMPY.items()}
_NAMES = {(_FLOAT, 64): "float64", (_FLOAT, 32): "float32", (_FLOAT, 16): "float16",
          (_BFLOAT, 16): "bfloat16", (_INT, 64): "int64", (_INT, 32): "int32",
          (_INT, 16): "int16", (_INT, 8): "int8", (_UINT, 8): "uint8", (_BOOL, 8): "bool"}
_CPU = _abi.DLDevice(1, 0)


def dtype_name(dtype: Any) -> str:
    """The name of a DLPack type, such as ``"float32"``."""
    return _NAMES.get((dtype.code, dtype.bits), "unknown")


def is_torch(value: Any) -> bool:
    """Whether a value is a tensor of PyTorch; does not import it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _torch_types() -> Any:
    import torch
    return {torch.float64: (_FLOAT, 64), torch.float32: (_FLOAT, 32),
            torch.float16: (_FLOAT, 16), torch.bfloat16: (_BFLOAT, 16), torch.int64: (_INT, 64),
            torch.int32: (_INT, 32), torch.int16: (_INT, 16), torch.int8: (_INT, 8),
            torch.uint8: (_UINT, 8), torch.bool: (_BOOL, 8)}


_torch_table: Any = None


def _describe(value: Any) -> Tuple[Any, int, Tuple[int, ...], Tuple[int, int]]:
    """A contiguous owner of the elements, their address, the shape and the type."""
    global _torch_table
    if is_torch(value):
        if _torch_table is None:
            _torch_table = _torch_types()
        tensor = value
        if not value.is_contiguous() or value.device.type != "cpu" or value.is_conj():
            tensor = value.detach().cpu().resolve_conj().contiguous()
        if tensor.dtype not in _torch_table:
            raise TypeError("a tensor of %s, expected one of %s"
                            % (tensor.dtype, ", ".join(str(t) for t in _torch_table)))
        return tensor, tensor.data_ptr(), tuple(tensor.shape), _torch_table[tensor.dtype]
    if isinstance(value, Tensor):
        return value, value.address, value.shape, value.type
    if not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__"):
        value = np.from_dlpack(value)
    shape = np.shape(value)
    array = np.ascontiguousarray(value).reshape(shape)  # which would make a scalar a vector
    if array.dtype not in _NUMPY:
        raise TypeError("an array of %s, expected one of %s"
                        % (array.dtype, ", ".join(str(t) for t in _NUMPY)))
    return array, array.ctypes.data, shape, _NUMPY[array.dtype]


_Dims = ctypes.c_int64 * 8


@functools.lru_cache(maxsize=None)
def _dl_type(code: int, bits: int) -> Any:
    return _abi.DLDataType(code, bits, 1)


class Views:
    """DLTensor views of tensors, which they keep alive, as the library takes a list of them."""

    def __init__(self, values: Sequence[Any]) -> None:
        if len(values) > MAX_TENSORS:
            raise ValueError("%d tensors, expected at most %d" % (len(values), MAX_TENSORS))
        self.count = len(values)
        self.torch = any(is_torch(v) for v in values)
        self._keep: List[Any] = []
        self.tensors = (_abi.DLTensor * max(1, self.count))()
        self.pointers = (ctypes.POINTER(_abi.DLTensor) * max(1, self.count))()
        for i, value in enumerate(values):
            owner, address, shape, (code, bits) = _describe(value)
            if len(shape) > 8:
                raise ValueError("a tensor of %d dimensions, expected at most 8" % len(shape))
            dims = _Dims(*shape)
            view = self.tensors[i]
            view.data = address
            view.device = _CPU
            view.ndim = len(shape)
            view.dtype = _dl_type(code, bits)
            view.shape = dims
            self.pointers[i].contents = view
            self._keep.append((owner, dims))


class Tensor:
    """A result that owns its memory: for those who have neither NumPy's type for it nor PyTorch.

    ``torch.from_dlpack(tensor)`` takes it without a copy; ``numpy()`` gives an array, of bfloat16
    as the 16-bit integers that hold it.
    """

    def __init__(self, managed: Any) -> None:
        self._managed = managed
        view = managed.contents.dl_tensor
        self.shape = tuple(view.shape[i] for i in range(view.ndim))
        self.type = (view.dtype.code, view.dtype.bits)
        self.dtype = dtype_name(view.dtype)
        self.address = (view.data or 0) + view.byte_offset
        free = library().skep_tensor_free
        self._finalizer = weakref.finalize(self, free, managed)

    def __dlpack__(self, stream: Any = None) -> Any:
        if not self._finalizer.alive:
            raise BufferError("the tensor was handed over already")
        self._finalizer.detach()
        return _capsule(self._managed)

    def __dlpack_device__(self) -> Tuple[int, int]:
        return (1, 0)

    def numpy(self) -> np.ndarray:
        """An array that shares the memory."""
        kind = np.dtype("uint16") if self.type == (_BFLOAT, 16) else _NUMPY_OF[self.type]
        return _array(self.address, self.shape, kind, self)

    def __repr__(self) -> str:
        return "skep.Tensor(shape=%s, dtype=%s)" % (self.shape, self.dtype)


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_CAPSULE = ctypes.create_string_buffer(b"dltensor")  # which a capsule refers to for ever


_is_capsule = ctypes.pythonapi.PyCapsule_IsValid
_is_capsule.restype = ctypes.c_int
_is_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_in_capsule = ctypes.pythonapi.PyCapsule_GetPointer
_in_capsule.restype = ctypes.c_void_p
_in_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p]


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _drop_capsule(capsule: Any) -> None:
    """Frees what nobody took: who takes it renames the capsule."""
    if _is_capsule(capsule, _CAPSULE.value):
        managed = ctypes.cast(_in_capsule(capsule, _CAPSULE.value),
                              ctypes.POINTER(_abi.DLManagedTensor))
        library().skep_tensor_free(managed)


_CAPSULE_NAME = ctypes.cast(_CAPSULE, ctypes.c_char_p)
_CAPSULE_DROP = ctypes.cast(_drop_capsule, ctypes.c_void_p)


def _capsule(managed: Any) -> Any:
    return _new_capsule(ctypes.addressof(managed.contents), _CAPSULE_NAME, _CAPSULE_DROP)


def _array(address: int, shape: Tuple[int, ...], kind: Any, owner: Any) -> np.ndarray:
    count = 1
    for n in shape:
        count *= n
    if count == 0:
        return np.empty(shape, kind)
    memory = (ctypes.c_char * (count * kind.itemsize)).from_address(address)
    memory._owner = owner  # lives as long as any array of it
    return np.frombuffer(memory, dtype=kind).reshape(shape)


def take(managed: Any, torch_wanted: bool) -> Any:
    """Takes over a result: a tensor of PyTorch, an array, or a Tensor."""
    view = managed.contents.dl_tensor
    kind = (view.dtype.code, view.dtype.bits)
    if torch_wanted:
        import torch
        if kind == (_BOOL, 8):  # for which DLPack of that age has no code
            view.dtype.code = _UINT
            return torch.utils.dlpack.from_dlpack(_capsule(managed)).view(torch.bool)
        return torch.utils.dlpack.from_dlpack(_capsule(managed))
    tensor = Tensor(managed)
    return tensor.numpy() if kind in _NUMPY_OF else tensor


def take_all(results: Any, count: int, torch_wanted: bool) -> List[Any]:
    """Takes over `count` results."""
    return [take(results[i], torch_wanted) for i in range(count)]
