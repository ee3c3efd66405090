"""Mixtures of remote experts as modules of PyTorch, by hivemind's names."""

import ctypes
import weakref
from copy import deepcopy
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from . import _abi, _tensors
from ._library import check, library, milliseconds
from .beam import MoEBeamSearcher, make_grid
from .client import Client, Handle, shared_client
from .compression import number_of
from .dht import DHT, client_of


class _Layer(Handle):
    """The library's layer: mixture or switch."""

    _what = "the mixture"

    def __init__(self, client: Client, settings: Dict[str, Any]) -> None:
        self.client, self.settings = client, settings
        self.is_switch: bool = settings["is_switch"]
        self._free = self.function("free")
        lib = library()
        options: Any
        if self.is_switch:
            options = _abi.skep_switch_moe_options()
            lib.skep_switch_moe_options_init(ctypes.byref(options))
            moe = options.moe
            options.utilization_alpha = settings["utilization_alpha"]
            options.grid_keep = settings["grid_keep"]
        else:
            options = moe = _abi.skep_moe_options()
            lib.skep_moe_options_init(ctypes.byref(options))
        moe.grid = make_grid(settings["prefix"], settings["sizes"])
        moe.k_best = settings["k_best"]
        moe.k_min = settings["k_min"]
        moe.backward_k_min = settings["backward_k_min"]
        moe.forward_timeout_ms = milliseconds(settings["forward_timeout"], "forward_timeout")
        moe.backward_timeout_ms = milliseconds(settings["backward_timeout"], "backward_timeout")
        if settings["timeout_after_k_min"] is not None:
            moe.timeout_after_k_min_ms = milliseconds(settings["timeout_after_k_min"],
                                                      "timeout_after_k_min")
        moe.detect_anomalies = settings["detect_anomalies"]
        moe.allow_missing = settings["allow_zero_outputs"]
        moe.compression = number_of(settings["compression"])
        moe.grad_compression = number_of(settings["grad_compression"])
        moe.max_rows = settings["max_rows"]
        if settings["out_shape"] is not None:
            moe.out_ndim = len(settings["out_shape"])
            for i, n in enumerate(settings["out_shape"]):
                moe.out_shape[i] = n
        handle, error = ctypes.c_void_p(), _abi.skep_error()
        check(getattr(lib, self.function("new"))(
            client._live(), ctypes.byref(options), ctypes.byref(handle), ctypes.byref(error)),
            error)
        self.passes: "weakref.WeakSet[_Pass]" = weakref.WeakSet()
        super().__init__(client, handle)

    def function(self, name: str) -> str:
        """The library's function of this kind of layer."""
        return ("skep_switch_moe_" if self.is_switch else "skep_moe_") + name

    def close(self) -> None:
        for p in list(self.passes):
            p.close()
        super().close()

    def __deepcopy__(self, memo: Any) -> "_Layer":
        return _Layer(self.client, self.settings)

    def __reduce__(self) -> Any:
        return _restore, (self.client._settings, self.settings)


def _restore(client_settings: Dict[str, Any], settings: Dict[str, Any]) -> _Layer:
    return _Layer(shared_client(client_settings), settings)


class _Pass(Handle):
    """One forward pass: what backward needs, and who answered. Freed before its layer."""

    _what = "the pass"

    def __init__(self, layer: _Layer, handle: Any) -> None:
        self.layer = layer
        self._free = layer.function("pass_free")
        super().__init__(layer.client, handle)
        layer.passes.add(self)


def _run_forward(layer: _Layer, x: torch.Tensor, scores: Sequence[torch.Tensor],
                 training: bool) -> Tuple[_Pass, torch.Tensor, float]:
    lib = library()
    views, score_views = _tensors.Views([x]), _tensors.Views(scores)
    handle = ctypes.c_void_p()
    y = ctypes.POINTER(_abi.DLManagedTensor)()
    loss = ctypes.c_double()

    handles = layer._live(), views.pointers[0], score_views.pointers
    results = ctypes.byref(handle), ctypes.byref(y)

    def forward(error: Any) -> int:
        if layer.is_switch:
            status: int = lib.skep_switch_moe_forward(*handles, training, *results,
                                                      ctypes.byref(loss), error)
        else:
            status = lib.skep_moe_forward(*handles, *results, error)
        return status

    def dispose() -> None:
        lib.skep_tensor_free(y)
        getattr(lib, layer.function("pass_free"))(handle)

    layer.client._run(forward, dispose)
    return _Pass(layer, handle), _tensors.take(y, True), loss.value


def _run_backward(pass_: _Pass, grad_y: torch.Tensor, grad_loss: float, dims: int,
                  ) -> Tuple[torch.Tensor, List[torch.Tensor]]:
    lib = library()
    views, grads = _tensors.Views([grad_y]), _abi.skep_moe_grads()
    arguments: List[Any] = [pass_._live(), views.pointers[0]]
    if pass_.layer.is_switch:
        arguments.append(grad_loss)
    backward = getattr(lib, pass_.layer.function("backward"))
    pass_.layer.client._run(lambda e: backward(*arguments, ctypes.byref(grads), e),
                            lambda: lib.skep_moe_grads_free(ctypes.byref(grads)))
    return (_tensors.take(grads.x, True),
            [_tensors.take(grads.scores[d], True) for d in range(dims)])


class _MixtureFunction(torch.autograd.Function):
    """A pass of a mixture, or of a switch layer, whose second output is the balancing loss."""

    @staticmethod
    def forward(  # type: ignore[override]
            ctx: Any, layer: _Layer, training: bool, keep: List[Any], x: torch.Tensor,
            *scores: torch.Tensor) -> Any:
        pass_, y, loss = _run_forward(layer, x, scores, training)
        keep[:] = [pass_]
        ctx.pass_, ctx.dims, ctx.dtypes = pass_, len(scores), [s.dtype for s in scores]
        ctx.device = x.device
        return y.to(x.device), torch.tensor(loss, dtype=x.dtype, device=x.device)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: torch.Tensor, grad_loss: torch.Tensor) -> Any:
        x, scores = _run_backward(ctx.pass_, grad_y, float(grad_loss), ctx.dims)
        ctx.pass_.close()
        return (None, None, None, x.to(ctx.device),
                *[g.to(dtype=t, device=ctx.device) for g, t in zip(scores, ctx.dtypes)])


class _Mixture(nn.Module):
    """What both layers share: a gating network `proj`, and a layer of the library."""

    def __init__(self, in_features: int, grid_size: Sequence[int], dht: Union[DHT, Client],
                 uid_prefix: str, settings: Dict[str, Any]) -> None:
        super().__init__()
        sizes = tuple(int(n) for n in grid_size)
        client = client_of(dht)
        self.grid_size = sizes
        self.beam_search = MoEBeamSearcher(client, uid_prefix, sizes)
        self.k_best = settings["k_best"]
        self._layer = _Layer(client, dict(settings, prefix=self.beam_search.uid_prefix,
                                          sizes=sizes))
        self.proj = nn.Linear(in_features, sum(sizes))
        self._last: List[Any] = []

    def __deepcopy__(self, memo: Any) -> "_Mixture":
        copy = self.__class__.__new__(self.__class__)
        nn.Module.__init__(copy)
        memo[id(self)] = copy
        for key, value in self.__dict__.items():
            if key == "_last":
                copy.__dict__[key] = []
            elif key == "beam_search":
                copy.__dict__[key] = value
            else:
                copy.__dict__[key] = deepcopy(value, memo)
        return copy

    def __getstate__(self) -> Dict[str, Any]:
        return dict(self.__dict__, _last=[])

    def _gate_input(self, x: torch.Tensor) -> torch.Tensor:
        if x.ndim < 2:
            raise ValueError("input of %d dimensions, expected [batch, ..., in_features]" % x.ndim)
        return x.mean(dim=tuple(range(1, x.ndim - 1))) if x.ndim > 2 else x

    def _check(self, x: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        if args or kwargs:
            raise NotImplementedError("experts of a mixture take one input here; call experts of "
                                      "several inputs by get_experts()")
        if not isinstance(x, torch.Tensor):
            raise TypeError("input is %s, expected a tensor" % type(x).__name__)

    def choices(self, sample: int) -> List[Dict[str, Any]]:
        """The experts asked for a sample in the last pass: uid, score, weight (0: it did not
        answer) and status of each, best first."""
        if not self._last or not self._last[0]._handle:
            return []
        lib, choice = library(), _abi.skep_moe_choice()
        out: List[Dict[str, Any]] = []
        handle = self._last[0]._live()
        if self._layer.is_switch:
            handle = lib.skep_switch_moe_pass_choices(handle)
        while lib.skep_moe_pass_choice(handle, sample, len(out), ctypes.byref(choice)):
            out.append({"uid": choice.uid.decode(), "score": choice.score,
                        "weight": choice.weight,
                        "status": lib.skep_status_name(choice.status).decode()})
        return out


class RemoteMixtureOfExperts(_Mixture):
    """A mixture of the experts of a grid, each sample by the k_best that the gating network
    prefers, weighted by the softmax of the scores of those that answered.

    in_features: last dimension of the input. grid_size: coordinates of each dimension. dht: a
    :class:`DHT` or :class:`Client`. uid_prefix: ``"ffn."``. k_min: answers with which a sample
    succeeds. Timeouts are in seconds; None: those of the client. allow_zero_outputs: samples with
    fewer answers than k_min give zeros instead of failing the pass. detect_anomalies: drop answers
    with NaN or infinity, and refuse such inputs. out_shape: of an output row, if it is not that of
    an input row.
    """

    def __init__(self, *, in_features: int, grid_size: Sequence[int], dht: Union[DHT, Client],
                 uid_prefix: str, k_best: int, k_min: int = 1,
                 forward_timeout: Optional[float] = None,
                 timeout_after_k_min: Optional[float] = None, backward_k_min: int = 1,
                 backward_timeout: Optional[float] = None, detect_anomalies: bool = False,
                 allow_zero_outputs: bool = False, compression: Any = None,
                 grad_compression: Any = None, out_shape: Optional[Sequence[int]] = None,
                 max_rows: int = 256) -> None:
        super().__init__(in_features, grid_size, dht, uid_prefix, dict(
            is_switch=False, k_best=k_best, k_min=k_min, backward_k_min=backward_k_min,
            forward_timeout=forward_timeout, backward_timeout=backward_timeout,
            timeout_after_k_min=timeout_after_k_min, detect_anomalies=detect_anomalies,
            allow_zero_outputs=allow_zero_outputs, compression=compression,
            grad_compression=grad_compression, max_rows=max_rows,
            out_shape=None if out_shape is None else tuple(out_shape)))

    def forward(self, input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """input: [batch, ..., in_features]. Returns [batch, ...], as the experts answer."""
        self._check(input, args, kwargs)
        scores = self.proj(self._gate_input(input)).split_with_sizes(self.grid_size, dim=-1)
        y: torch.Tensor = _MixtureFunction.apply(self._layer, self.training, self._last, input,
                                                 *scores)[0]
        return y


class RemoteSwitchMixtureOfExperts(_Mixture):
    """A switch layer: each sample goes to the one best expert, and its output is multiplied by the
    expert's probability. Returns the output and the load-balancing loss.

    utilization_alpha: weight of the past in the estimate of utilization. grid_dropout: chance of
    each coordinate to take part in a training pass. jitter_eps: in training the gate's input is
    multiplied by random factors of 1 +- this. The rest is as of :class:`RemoteMixtureOfExperts`.
    """

    def __init__(self, *, in_features: int, grid_size: Sequence[int], dht: Union[DHT, Client],
                 uid_prefix: str, utilization_alpha: float = 0.9, grid_dropout: float = 1.0,
                 jitter_eps: float = 1e-2, k_best: int = 1, k_min: int = 0,
                 forward_timeout: Optional[float] = None,
                 timeout_after_k_min: Optional[float] = None, backward_k_min: int = 0,
                 backward_timeout: Optional[float] = None, detect_anomalies: bool = False,
                 allow_zero_outputs: bool = True, compression: Any = None,
                 grad_compression: Any = None, out_shape: Optional[Sequence[int]] = None,
                 max_rows: int = 256) -> None:
        if k_best != 1:
            raise ValueError("k_best %d, expected 1: a switch layer asks the one best expert"
                             % k_best)
        super().__init__(in_features, grid_size, dht, uid_prefix, dict(
            is_switch=True, k_best=1, k_min=k_min, backward_k_min=backward_k_min,
            forward_timeout=forward_timeout, backward_timeout=backward_timeout,
            timeout_after_k_min=timeout_after_k_min, detect_anomalies=detect_anomalies,
            allow_zero_outputs=allow_zero_outputs, compression=compression,
            grad_compression=grad_compression, max_rows=max_rows,
            out_shape=None if out_shape is None else tuple(out_shape),
            utilization_alpha=utilization_alpha, grid_keep=grid_dropout))
        self.jitter_eps = jitter_eps

    def forward(self, input: torch.Tensor, *args: Any, **kwargs: Any) -> Tuple[torch.Tensor,
                                                                              torch.Tensor]:
        """input: [batch, ..., in_features]. Returns the output and the balancing loss."""
        self._check(input, args, kwargs)
        gate = self._gate_input(input)
        if self.training and self.jitter_eps:
            gate = gate * torch.empty_like(gate).uniform_(1 - self.jitter_eps, 1 + self.jitter_eps)
        scores = self.proj(gate).split_with_sizes(self.grid_size, dim=-1)
        y, loss = _MixtureFunction.apply(self._layer, self.training, self._last, input, *scores)
        return y, loss

    def utilization(self, dim: int) -> torch.Tensor:
        """The share of samples that went to each coordinate of a dimension, a moving average."""
        if not 0 <= dim < len(self.grid_size):
            raise IndexError("dimension %d, expected 0 to %d" % (dim, len(self.grid_size) - 1))
        out = (ctypes.c_double * self.grid_size[dim])()
        library().skep_switch_moe_utilization(self._layer._live(), dim, out)
        return torch.tensor(list(out), dtype=torch.float64)
