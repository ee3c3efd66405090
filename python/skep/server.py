"""A server of PyTorch modules inside this process, by hivemind's names."""

import atexit
import contextlib
import inspect
import runpy
import weakref
from typing import (Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence,
                    Type, Union)

import torch
from torch import nn

from . import _host
from .backend import ModuleBackend
from .dht import DHT, is_valid_uid
from .node import Node
from .schema import BatchTensorDescriptor

# Classes of modules by name, as register_expert_class() fills them in: a function of the width that
# makes a module, and one of batch size and width that makes its inputs.
name_to_block: Dict[str, Callable[..., nn.Module]] = {}
name_to_input: Dict[str, Callable[..., Any]] = {}

_running: "weakref.WeakSet[Server]" = weakref.WeakSet()


def register_expert_class(name: str, sample_input: Callable[[int, int], Any]
                          ) -> Callable[[Type[nn.Module]], Type[nn.Module]]:
    """Decorates a class of modules, made from the width, so that a server hosts it by name.

    sample_input: from (batch size, width), a tensor or a tuple of tensors such as the module takes.
    """
    def register(custom_class: Type[nn.Module]) -> Type[nn.Module]:
        if name in name_to_block:
            raise ValueError("expert class %r was registered already" % name)
        if not issubclass(custom_class, nn.Module):
            raise TypeError("%r, expected a class derived from torch.nn.Module" % custom_class)
        if _host.class_name(name) != name:
            raise ValueError("expert class %r: expected 1 to 31 letters, digits, _ or -" % name)
        _host.register(name)
        name_to_block[name] = custom_class
        name_to_input[name] = sample_input
        return custom_class
    return register


def _args_schema(name: str, hidden_dim: int) -> List[BatchTensorDescriptor]:
    sample = name_to_input[name](3, hidden_dim)
    samples = [sample] if isinstance(sample, torch.Tensor) else list(sample)
    return [BatchTensorDescriptor.from_tensor(t) for t in samples]


def linear_schedule(optimizer: torch.optim.Optimizer, warmup: int, total: int) -> Any:
    """The learning rate rises from 0 over `warmup` steps, then falls to 0 at step `total`."""
    def factor(step: int) -> float:
        if step < warmup:
            return step / max(1, warmup)
        return max(0.0, (total - step) / max(1, total - warmup))
    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


class PeerInfo(NamedTuple):
    """A server as others reach it: its peer id, and ``initial_peers`` to join by."""

    peer_id: str
    addrs: List[str]


class Server:
    """A node in this process that hosts PyTorch modules as experts.

    dht: of the swarm to join. module_backends: by UID; more may be added while it runs.
    num_connection_handlers: threads of network I/O. update_period: seconds between publications.
    checkpoint_dir: where experts are saved and loaded. device: where modules compute; None: where
    they are. max_batch_size: rows of a batch; None: the smallest of the backends'. Further
    arguments are the fields of ``struct skep_node_options`` (skep/node.h), such as ``listen`` or
    ``announce``. expiration is accepted for hivemind's sake: records expire after two periods.

    The modules compute in threads of this process, holding the interpreter's lock only in Python
    code; batching, request ids, priorities, checkpoints and statistics are as for built-in classes.
    """

    def __init__(self, dht: DHT, module_backends: Optional[Dict[str, ModuleBackend]] = None, *,
                 num_connection_handlers: int = 1, update_period: float = 30,
                 expiration: Optional[float] = None, start: bool = False,
                 checkpoint_dir: Any = None, device: Any = None,
                 max_batch_size: Optional[int] = None, **node_options: Any) -> None:
        if not isinstance(dht, DHT):
            raise TypeError("dht: %r, expected a skep.DHT" % (dht,))
        for uid, backend in (module_backends or {}).items():
            _check_backend(uid, backend)
        self.dht = dht
        self.module_backends = dict(module_backends or {})
        self.device = device
        self._owns_dht = False
        self._keys: Dict[str, str] = {}  # of recipes, by UID
        self._expert_args: Dict[str, Any] = {}
        backends = self.module_backends.values()
        if max_batch_size is None and backends:
            max_batch_size = min(b.max_batch_size for b in backends)
        if max_batch_size is not None:
            node_options["max_batch_size"] = max_batch_size
        least = max((b.min_batch_size for b in backends), default=1)
        if least > 1:
            node_options.setdefault("min_batch_size", least)
        self.node = Node([*dht.get_visible_maddrs(), *dht.initial_peers],
                         num_handlers=num_connection_handlers,
                         update_period_s=max(1, int(update_period)),
                         checkpoint_dir=checkpoint_dir, **dht.node_options(), **node_options)
        self._is_started = False
        try:
            for uid, backend in self.module_backends.items():
                self._add(uid, backend)
            if start:
                self.run_in_background(await_ready=True)
        except BaseException:
            self.shutdown()
            raise

    @classmethod
    def create(cls, num_experts: Optional[int] = None, expert_uids: Optional[Sequence[str]] = None,
               expert_pattern: Optional[str] = None, expert_cls: str = "ffn",
               hidden_dim: int = 1024, optim_cls: Any = torch.optim.Adam,
               scheduler: str = "none", num_warmup_steps: Optional[int] = None,
               num_training_steps: Optional[int] = None, clip_grad_norm: Optional[float] = None,
               num_handlers: Optional[int] = None, min_batch_size: int = 1,
               max_batch_size: int = 4096, device: Any = None,
               initial_peers: Union[str, Iterable[str], None] = (), checkpoint_dir: Any = None,
               compression: Any = None, stats_report_interval: Optional[int] = None,
               custom_module_path: Any = None, update_period: float = 30,
               expiration: Optional[float] = None, start: bool = False, swarm: str = "skep",
               swarm_key: Any = None, seed: int = 0, **node_options: Any) -> "Server":
        """A server of experts of one class, on a DHT peer of its own.

        expert_uids, or num_experts with expert_pattern (random free UIDs). expert_cls: one that
        :func:`register_expert_class` knows, with optim_cls, which is called with the module's
        parameters (None: no optimizer), and scheduler ``"none"`` or ``"linear"``; or a built-in
        class of the library, with its own Adam. custom_module_path: a Python file that registers
        classes.
        """
        if custom_module_path is not None:
            runpy.run_path(str(custom_module_path))
        if (expert_uids is None) == (expert_pattern is None):
            raise ValueError("expected either expert_uids, or expert_pattern with num_experts")
        if expert_uids is not None and num_experts is not None and len(expert_uids) != num_experts:
            raise ValueError("%d expert_uids, and num_experts is %d"
                             % (len(expert_uids), num_experts))
        if expert_pattern is not None and num_experts is None:
            raise ValueError("expert_pattern needs num_experts")
        if scheduler not in ("none", "linear"):
            raise ValueError("scheduler %r, expected \"none\" or \"linear\"" % scheduler)
        if scheduler == "linear" and num_training_steps is None:
            raise ValueError("scheduler \"linear\" needs num_training_steps")
        where = node_options.get("listen")
        any_port = None if where is None else where.rpartition(":")[0] + ":*"
        dht = DHT(initial_peers, swarm=swarm, swarm_key=swarm_key, listen=any_port,
                  dht_listen=any_port)
        server = None
        try:
            server = cls(dht, None, num_connection_handlers=num_handlers or 1,
                         update_period=update_period, checkpoint_dir=checkpoint_dir,
                         device=device, max_batch_size=max_batch_size,
                         min_batch_size=min_batch_size,
                         stats_report_interval_s=stats_report_interval, **node_options)
            server._owns_dht = True
            if expert_cls in name_to_block:
                key = server._recipe(lambda dim, own_seed: _build(
                    expert_cls, dim, own_seed, optim_cls, scheduler, num_warmup_steps or 0,
                    num_training_steps or 0, clip_grad_norm, device))
                options: Dict[str, Any] = dict(argument=key)
            else:
                options = dict(clip_grad_norm=clip_grad_norm or 0.0)
                if scheduler == "linear":
                    options.update(schedule="linear", warmup_steps=num_warmup_steps or 0,
                                   training_steps=num_training_steps)
            for uid in expert_uids or ():
                server.node.add_expert(uid, expert_cls, hidden_dim=hidden_dim,
                                       seed=_seed(seed, uid), **options)
            if expert_pattern is not None:
                server.node.add_pattern(expert_pattern, num_experts or 0, expert_cls,
                                        hidden_dim=hidden_dim, seed=seed, **options)
            if start:
                server.run_in_background(await_ready=True)
        except BaseException:
            if server is not None:
                server.shutdown()
            dht.shutdown()
            raise
        return server

    def _recipe(self, recipe: _host.Recipe) -> str:
        key = _host.add_recipe(recipe)
        self._keys[key] = key
        return key

    def _add(self, uid: str, backend: ModuleBackend) -> None:
        _check_backend(uid, backend)
        if self.device is not None:
            backend.module.to(self.device)
            backend.device = torch.device(self.device)
        name = _host.class_name(type(backend.module).__name__)
        _host.register(name)
        key = _host.add_recipe(lambda hidden_dim, seed: backend)
        try:
            self.node.add_expert(uid, name, argument=key)
        except BaseException:
            _host.drop_recipe(key)
            raise
        self._keys[uid] = key

    def add_expert(self, uid: str, backend: ModuleBackend) -> None:
        """Hosts one more module; published at once if the server runs."""
        self._add(uid, backend)
        self.module_backends[uid] = backend

    def remove_expert(self, uid: str, timeout: float = 10.0) -> None:
        """Withdraws an expert, waits for its calls under way, saves it, and lets go of it."""
        self.node.remove_expert(uid, timeout)
        self.module_backends.pop(uid, None)
        key = self._keys.pop(uid, None)
        if key is not None:
            _host.drop_recipe(key)

    def run(self) -> None:
        """Starts, and waits until another thread calls :meth:`shutdown`, or for Ctrl-C."""
        import time
        self.run_in_background()
        try:
            while self.is_alive():
                time.sleep(0.2)
        finally:
            self.shutdown()

    def run_in_background(self, await_ready: bool = True, timeout: Optional[float] = None) -> None:
        """Starts; await_ready: waits until the experts were published."""
        if not self._is_started:
            self.node.start()
            self._is_started = True
            _running.add(self)
        if await_ready:
            self.node.wait_ready(timeout if timeout is not None else 30.0)

    start = run_in_background

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._is_started and bool(self.node._handle)

    @property
    def experts(self) -> List[str]:
        """The UIDs that it hosts."""
        return self.node.uids

    @property
    def peer_info(self) -> PeerInfo:
        """How others reach it."""
        peer = self.node.initial_peer
        return PeerInfo(self.node.peer_id, [peer] if peer else [])

    def shutdown(self, timeout: Optional[float] = None) -> None:
        """Withdraws its experts, finishes calls under way, saves, and ends."""
        node = getattr(self, "node", None)
        if node is not None:
            node.shutdown()
        keys, self._keys = self._keys, {}
        for key in keys.values():
            _host.drop_recipe(key)
        _running.discard(self)
        if self._owns_dht:
            self.dht.shutdown()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: Any) -> None:
        self.shutdown()


def _check_backend(uid: str, backend: Any) -> None:
    if not is_valid_uid(uid):
        raise ValueError("%r: not an expert UID, expected a form such as \"ffn.0.1\"" % (uid,))
    if not isinstance(backend, ModuleBackend):
        raise TypeError("expert %s: %r, expected a ModuleBackend" % (uid, backend))


def _seed(seed: int, uid: str) -> int:
    from ._library import library
    value: int = library().skep_expert_seed(seed, uid.encode())
    return value


def _build(name: str, hidden_dim: int, seed: int, optim_cls: Any, scheduler: str, warmup: int,
           total: int, clip_grad_norm: Optional[float], device: Any) -> ModuleBackend:
    """One expert of a registered class, its parameters drawn from the seed."""
    block = name_to_block[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % (1 << 63))
        takes_width = bool(inspect.signature(block).parameters)
        module = block(hidden_dim) if takes_width else block()
    if device is not None:
        module.to(device)
    learns = [p for p in module.parameters() if p.requires_grad]
    optimizer = optim_cls(learns) if optim_cls is not None and learns else None
    schedule = (linear_schedule(optimizer, warmup, total)
                if scheduler == "linear" and optimizer is not None else None)
    return ModuleBackend(name, module, optimizer=optimizer, scheduler=schedule,
                         args_schema=_args_schema(name, hidden_dim),
                         clip_grad_norm=clip_grad_norm, device=device)


@contextlib.contextmanager
def background_server(*args: Any, shutdown_timeout: float = 5, **kwargs: Any
                      ) -> Iterator[PeerInfo]:
    """Runs ``Server.create(*args, **kwargs)`` while the context lasts, in threads of this process
    (hivemind: in another process); gives its :class:`PeerInfo`, whose ``addrs`` others join by."""
    kwargs["start"] = True
    server = Server.create(*args, **kwargs)
    try:
        yield server.peer_info
    finally:
        server.shutdown(shutdown_timeout)


@atexit.register
def _shut_down_all() -> None:
    """Before the interpreter ends, as the nodes' threads call into it."""
    for server in list(_running):
        server.shutdown()
