"""A PyTorch module that a node hosts as an expert."""

import inspect
import logging
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch import nn

from .schema import BatchTensorDescriptor

logger = logging.getLogger("skep")

DUMMY_BATCH_SIZE = 3  # rows of the forward pass that finds out the outputs' shapes
DUMMY_OPEN_SIZE = 5  # its size where a dimension may have any
_PREFIX = "optimizer."


class NonFiniteGradients(ValueError):
    """A backward pass gave gradients with NaN or infinity: no step was taken."""


class ModuleBackend:
    """A module with its optimizer, as a node hosts it.

    name: the expert's UID. module: called with the inputs by position, those of kwargs_schema by
    name; returns a tensor, or a tuple of them. args_schema, kwargs_schema, outputs_schema:
    :class:`BatchTensorDescriptor`; outputs_schema is found by a forward pass if it is left out.
    optimizer, scheduler: PyTorch's own, for the module's parameters; each backward call takes one
    step of both, unless a gradient is not finite. No optimizer: the module does not learn.
    clip_grad_norm: as :func:`torch.nn.utils.clip_grad_norm_`. max_batch_size: rows that a node
    joins at most. device: where the module computes; None: where its parameters are.

    Passes of one module run one at a time, in threads of the node.
    """

    def __init__(self, name: str, module: nn.Module, *,
                 optimizer: Optional[torch.optim.Optimizer] = None, scheduler: Any = None,
                 args_schema: Optional[Sequence[BatchTensorDescriptor]] = None,
                 kwargs_schema: Optional[Dict[str, BatchTensorDescriptor]] = None,
                 outputs_schema: Any = None, min_batch_size: int = 1, max_batch_size: int = 4096,
                 clip_grad_norm: Optional[float] = None, device: Any = None) -> None:
        if not args_schema and not kwargs_schema:
            raise ValueError("expert %s: neither args_schema nor kwargs_schema, expected the "
                             "descriptors of at least one input" % name)
        if not isinstance(module, nn.Module):
            raise TypeError("expert %s: module is %s, expected a torch.nn.Module"
                            % (name, type(module).__name__))
        for d in [*(args_schema or ()), *(kwargs_schema or {}).values()]:
            if not isinstance(d, BatchTensorDescriptor):
                raise TypeError("expert %s: %r in a schema, expected a BatchTensorDescriptor"
                                % (name, d))
        self.name = name
        self.module = module
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.args_schema = tuple(args_schema or ())
        self.kwargs_schema = dict(kwargs_schema or {})
        self.min_batch_size = min_batch_size
        self.max_batch_size = max_batch_size
        self.clip_grad_norm = clip_grad_norm
        if device is not None:
            module.to(device)
        first = next(iter(module.parameters()), None)
        self.device = torch.device(device) if device is not None else (
            first.device if first is not None else torch.device("cpu"))
        self.input_names = self._names()
        self.inputs: Tuple[BatchTensorDescriptor, ...] = (
            *self.args_schema, *self.kwargs_schema.values())
        if outputs_schema is None:
            self.outputs: Tuple[BatchTensorDescriptor, ...] = self._find_outputs()
        elif isinstance(outputs_schema, BatchTensorDescriptor):
            self.outputs = (outputs_schema,)
        else:
            self.outputs = tuple(outputs_schema)

    @property
    def outputs_schema(self) -> Tuple[BatchTensorDescriptor, ...]:
        """The descriptors of the outputs."""
        return self.outputs

    def _names(self) -> List[str]:
        try:
            known = [p.name for p in inspect.signature(self.module.forward).parameters.values()
                     if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        except (TypeError, ValueError):
            known = []
        count = len(self.args_schema)
        names = known[:count] + ["input%d" % i for i in range(len(known), count)]
        return names + list(self.kwargs_schema)

    def _find_outputs(self) -> Tuple[BatchTensorDescriptor, ...]:
        was_training = self.module.training
        zeros = [torch.zeros(DUMMY_BATCH_SIZE, *[DUMMY_OPEN_SIZE if n is None else n
                                                 for n in d.shape[1:]],
                             dtype=d.dtype, device=self.device) for d in self.inputs]
        try:
            self.module.eval()
            with torch.no_grad():
                outputs = self._run(zeros)
        except Exception as e:
            raise ValueError("expert %s: a forward pass of zeros failed, to find out the outputs' "
                             "shapes (%s: %s): give outputs_schema"
                             % (self.name, type(e).__name__, e)) from e
        finally:
            self.module.train(was_training)
        found = []
        for i, output in enumerate(outputs):
            if output.ndim < 1 or output.shape[0] != DUMMY_BATCH_SIZE:
                raise ValueError("expert %s: output %d has shape %s for a batch of %d, expected "
                                 "the batch as dimension 0"
                                 % (self.name, i, tuple(output.shape), DUMMY_BATCH_SIZE))
            sizes: List[Optional[int]] = list(output.shape[1:])
            for d in range(len(sizes)):  # what is open in the first input is open here
                open_in = (d + 1 < len(self.inputs[0].shape)
                           and self.inputs[0].shape[d + 1] is None)
                if open_in and sizes[d] == DUMMY_OPEN_SIZE:
                    sizes[d] = None
            found.append(BatchTensorDescriptor(*sizes, dtype=output.dtype))
        return tuple(found)

    def _run(self, tensors: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        count = len(self.args_schema)
        result = self.module(*tensors[:count], **dict(zip(self.kwargs_schema, tensors[count:])))
        if not isinstance(result, (torch.Tensor, list, tuple)):
            raise TypeError("forward returned %s, expected a tensor or a tuple of tensors"
                            % type(result).__name__)
        outputs = [result] if isinstance(result, torch.Tensor) else list(result)
        for i, output in enumerate(outputs):
            if not isinstance(output, torch.Tensor):
                raise TypeError("output %d is %s, expected a tensor" % (i, type(output).__name__))
        return outputs

    def forward(self, *inputs: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        """The outputs of a batch, without gradients."""
        with torch.no_grad():
            return tuple(self._run([x.to(self.device) for x in inputs]))

    def backward(self, *tensors: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        """Inputs, then one gradient for each output: runs forward again, takes one step, and
        returns one gradient for each input (zeros for those that are no floats)."""
        count = len(self.inputs)
        inputs, grads = tensors[:count], tensors[count:]
        if len(grads) != len(self.outputs):
            raise ValueError("expert %s: %d gradients of outputs, expected %d"
                             % (self.name, len(grads), len(self.outputs)))
        with torch.enable_grad():
            leaves = [x.to(self.device).detach().requires_grad_(x.is_floating_point())
                      for x in inputs]
            outputs = self._run(leaves)
            pairs = [(o, g.to(o.device)) for o, g in zip(outputs, grads) if o.requires_grad]
            if pairs:
                torch.autograd.backward([o for o, _ in pairs], [g for _, g in pairs])
        self.on_backward(int(inputs[0].shape[0]))
        return tuple(torch.zeros_like(x) if x.grad is None else x.grad for x in leaves)

    def on_backward(self, batch_size: int) -> None:
        """Takes the optimizer's and the scheduler's step; override it for another one."""
        if self.optimizer is None:
            self.module.zero_grad(set_to_none=True)
            return
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]
                      if p.grad is not None]
        try:
            self._check_gradients(parameters)
            self.optimizer.step()
        finally:
            self.optimizer.zero_grad(set_to_none=True)
        if self.scheduler is not None:
            self.scheduler.step()

    def _check_gradients(self, parameters: List[torch.Tensor]) -> None:
        if not parameters:
            return
        if self.clip_grad_norm is not None:
            norm = nn.utils.clip_grad_norm_(parameters, self.clip_grad_norm)
        else:
            norms = [torch.linalg.vector_norm(p.grad) for p in parameters if p.grad is not None]
            norm = torch.linalg.vector_norm(torch.stack([n.float().cpu() for n in norms]))
        if not bool(torch.isfinite(norm)):
            raise NonFiniteGradients("gradients: norm %g, expected a finite number; no step was "
                                     "done" % float(norm))

    def parameter_count(self) -> int:
        """How many numbers are trained."""
        return sum(p.numel() for p in self.module.parameters() if p.requires_grad)

    def get_info(self) -> Dict[str, Any]:
        """The schemas, by hivemind's names."""
        return dict(forward_schema=(self.args_schema, self.kwargs_schema),
                    outputs_schema=self.outputs)

    # ---- state

    def _parameter_names(self) -> Dict[int, str]:
        return {id(p): name for name, p in self.module.named_parameters()}

    def named_state(self) -> Dict[str, torch.Tensor]:
        """A copy of all state, as tensors: those of the module's state_dict under their names; under
        ``optimizer.exp_avg.<parameter>`` and so on what the optimizer keeps of each parameter; and
        the numbers of parameter groups and scheduler as float64."""
        out = {name: value.detach().to("cpu", copy=True).contiguous()
               for name, value in self.module.state_dict().items()}
        if self.optimizer is not None:
            names = self._parameter_names()
            for i, group in enumerate(self.optimizer.param_groups):
                for key, value in group.items():
                    if isinstance(value, (int, float)) and not isinstance(value, bool):
                        out["%sgroup.%d.%s" % (_PREFIX, i, key)] = _number(value)
                for p in group["params"]:
                    for key, value in self.optimizer.state.get(p, {}).items():
                        at = "%s%s.%s" % (_PREFIX, key, names.get(id(p), "unnamed"))
                        if isinstance(value, torch.Tensor):
                            out[at] = value.detach().to("cpu", copy=True).contiguous()
                        elif isinstance(value, (int, float)):
                            out[at] = _number(value)
        for key, value in (self.scheduler.state_dict() if self.scheduler else {}).items():
            at = "%sscheduler.%s" % (_PREFIX, key)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                out[at] = _number(value)
            elif isinstance(value, (list, tuple)) and value and all(
                    isinstance(v, (int, float)) for v in value):
                out[at] = torch.tensor([float(v) for v in value], dtype=torch.float64)
        return out

    def load_named_state(self, given: Dict[str, torch.Tensor]) -> None:
        """Takes over what :meth:`named_state` gave; nothing is changed if something does not
        fit."""
        own = self.module.state_dict()
        saved = {k: v for k, v in given.items() if not k.startswith(_PREFIX)}
        missing = [k for k in own if k not in saved]
        extra = [k for k in saved if k not in own]
        if missing or extra:
            raise ValueError("the module's state: %s" % "; ".join(
                (["missing: " + ", ".join(missing)] if missing else [])
                + (["unknown: " + ", ".join(extra)] if extra else [])))
        for name, value in saved.items():
            if value.shape != own[name].shape or value.dtype != own[name].dtype:
                raise ValueError("%s is %s of shape %s, the module's is %s of shape %s"
                                 % (name, value.dtype, tuple(value.shape), own[name].dtype,
                                    tuple(own[name].shape)))
        self.module.load_state_dict(saved)
        rest = {k[len(_PREFIX):]: v for k, v in given.items() if k.startswith(_PREFIX)}
        if self.optimizer is not None and rest:
            self._load_optimizer(rest)

    def _load_optimizer(self, given: Dict[str, torch.Tensor]) -> None:
        assert self.optimizer is not None
        names = self._parameter_names()
        state = self.optimizer.state_dict()
        index = 0
        for i, group in enumerate(self.optimizer.param_groups):
            for key, value in group.items():
                saved = given.get("group.%d.%s" % (i, key))
                if saved is not None and isinstance(value, (int, float)):
                    state["param_groups"][i][key] = type(value)(saved.item())
            for p in group["params"]:
                suffix = "." + names.get(id(p), "unnamed")
                kept = {k[:-len(suffix)]: v.clone() for k, v in given.items()
                        if k.endswith(suffix) and "." not in k[:-len(suffix)]}
                if any(v.ndim > 0 and v.shape != p.shape for v in kept.values()):
                    logger.warning("expert %s: the optimizer's state of %s has another shape: it "
                                   "starts anew", self.name, suffix[1:])
                elif kept:
                    state["state"][index] = kept
                index += 1
        self.optimizer.load_state_dict(state)
        if self.scheduler is None:
            return
        numbers = self.scheduler.state_dict()
        for key, value in numbers.items():
            saved = given.get("scheduler." + key)
            if saved is None:
                continue
            if isinstance(value, (int, float)):
                numbers[key] = type(value)(saved.item())
            elif isinstance(value, (list, tuple)):
                numbers[key] = type(value)(saved.tolist())
        self.scheduler.load_state_dict(numbers)

    def state_dict(self) -> Dict[str, Any]:
        """Module, optimizer and scheduler, by hivemind's names."""
        out: Dict[str, Any] = dict(module=self.module.state_dict())
        if self.optimizer is not None:
            out["optimizer"] = self.optimizer.state_dict()
        if self.scheduler is not None:
            out["scheduler"] = self.scheduler.state_dict()
        return out

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Takes over what :meth:`state_dict` gave."""
        if self.scheduler is not None and "scheduler" in state:
            self.scheduler.load_state_dict(state["scheduler"])
        if self.optimizer is not None and "optimizer" in state:
            self.optimizer.load_state_dict(state["optimizer"])
        self.module.load_state_dict(state["module"])


def _number(value: float) -> torch.Tensor:
    return torch.tensor(float(value), dtype=torch.float64)
