"""A remote expert as a module of PyTorch."""

from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from .client import Expert, ExpertInfo

_DUMMY = torch.empty(0, requires_grad=True)  # makes backward run where no input needs a gradient


class _RemoteFunction(torch.autograd.Function):
    """Forward and backward of one expert, the backward at the node that answered the forward."""

    @staticmethod
    def forward(  # type: ignore[override]
            ctx: Any, dummy: torch.Tensor, expert: Expert, options: Dict[str, Any],
            *inputs: torch.Tensor) -> Any:
        call = expert._start(inputs, None, expert._options(
            options.get("forward_timeout"), options.get("compression"), None, None, None,
            options.get("hedge_after")))
        outputs, ctx.peer_id = expert._finish(call)
        ctx.expert, ctx.options, ctx.outputs = expert, options, [o.shape for o in outputs]
        ctx.save_for_backward(*inputs)
        ctx.dtypes = [o.dtype for o in outputs]
        whole = [o for o in outputs if not o.dtype.is_floating_point]
        ctx.mark_non_differentiable(*whole)
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Optional[torch.Tensor]) -> Any:
        inputs = ctx.saved_tensors
        filled = [torch.zeros(shape, dtype=dtype) if g is None else g.to(dtype)
                  for g, shape, dtype in zip(grads, ctx.outputs, ctx.dtypes)]
        o = ctx.options
        back = ctx.expert.backward(inputs, filled, timeout=o.get("backward_timeout"),
                                   compression=o.get("compression"),
                                   grad_compression=o.get("grad_compression"),
                                   peer_id=ctx.peer_id)
        wanted = [g.to(i.device) if need and i.dtype.is_floating_point else None
                  for g, i, need in zip(back, inputs, ctx.needs_input_grad[3:])]
        return (None, None, None, *wanted)


class RemoteExpert(nn.Module):
    """An expert that a node of the swarm serves, as a module.

    Its parameters live at the node and are trained there by each backward pass: this module has
    none. Made by :func:`get_experts`, or from an :class:`Expert`. forward_timeout,
    backward_timeout: seconds; None: those of the client.
    """

    def __init__(self, expert: Expert, forward_timeout: Optional[float] = None,
                 backward_timeout: Optional[float] = None, compression: Any = None,
                 grad_compression: Any = None) -> None:
        super().__init__()
        self.expert = expert
        self.options: Dict[str, Any] = dict(
            forward_timeout=forward_timeout, backward_timeout=backward_timeout,
            compression=compression, grad_compression=grad_compression)

    @property
    def uid(self) -> str:
        """Its UID."""
        return self.expert.uid

    @property
    def peer_id(self) -> Optional[str]:
        """The peer id of the freshest node that serves it."""
        return self.expert.peer_id

    @property
    def info(self) -> ExpertInfo:
        """Schema, class, updates and load, asked for once."""
        return self.expert.info

    def _in_order(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> List[Any]:
        if not kwargs:
            return list(args)
        names = [s.name for s in self.info.inputs]
        rest = names[len(args):]
        unknown = [k for k in kwargs if k not in rest]
        missing = [n for n in rest if n not in kwargs]
        if unknown or missing:
            raise TypeError("expert %s takes (%s): %s" % (self.uid, ", ".join(names), ", ".join(
                ["%s is unexpected" % k for k in unknown] + ["%s is missing" % n
                                                            for n in missing])))
        return list(args) + [kwargs[n] for n in rest]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Inputs as the schema says, by position or by name; one output, or a tuple of them."""
        inputs = self._in_order(args, kwargs)
        for i, value in enumerate(inputs):
            if not isinstance(value, torch.Tensor):
                raise TypeError("input %d is %s, expected a tensor" % (i, type(value).__name__))
        outputs = _RemoteFunction.apply(_DUMMY, self.expert, self.options, *inputs)
        return outputs[0] if len(outputs) == 1 else outputs

    async def aforward(self, *args: Any, **kwargs: Any) -> Any:
        """As the call, for asyncio, without gradients."""
        inputs = [t.detach() for t in self._in_order(args, kwargs)]
        outputs = await self.expert.aforward(
            *inputs, timeout=self.options["forward_timeout"],
            compression=self.options["compression"])
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def extra_repr(self) -> str:
        return "uid=%s" % self.uid
