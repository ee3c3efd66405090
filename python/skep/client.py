"""A client of a swarm: finds experts by UID and calls them. Needs NumPy only."""

import asyncio
import ctypes
import itertools
import threading
import weakref
from dataclasses import dataclass
from typing import (Any, Callable, Dict, Iterable, List, Optional, Sequence, Set, Tuple,
                    Union)

from . import _abi, _tensors
from ._library import (SLICE_MS, check, check_process, is_forked, library,
                       milliseconds, run, text_or_none)
from ._status import Cancelled, DeadlineExceeded, Error, FailedPrecondition, InvalidArgument
from .compression import NAMES, number_of



@dataclass(frozen=True)
class Provider:
    """One node that serves an expert."""

    peer_id: str
    endpoint: str
    cls: str
    expires_at: int  # Unix seconds of the record; 0: no record


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of an expert. Dimension 0 is the batch; -1 is any size."""

    name: str
    dtype: str
    shape: Tuple[int, ...]


@dataclass(frozen=True)
class ExpertInfo:
    """What a node says of one of its experts."""

    uid: str
    peer_id: str
    cls: str
    precision: str
    inputs: Tuple[TensorSpec, ...]
    outputs: Tuple[TensorSpec, ...]
    parameters: int
    updates: int
    max_batch_size: int
    queued_tasks: int
    examples_per_second: float
    stalled: bool
    compression: str
    grad_compression: str


@dataclass(frozen=True)
class Peer:
    """What a node says of itself, and whether it can be reached from here."""

    peer_id: str
    endpoint: str
    state: str
    version: str
    experts: int
    examples_per_second: float
    queued_tasks: int
    expires_at: int
    status: str  # "OK", or why a ping failed; "CANCELLED": not tried
    round_trip: Optional[float]  # seconds
    experts_stalled: Optional[int]
    dht_peers: Optional[int]
    reachability: Optional[str]


@dataclass(frozen=True)
class Resource:
    """A resource that a tracker of the swarm publishes."""

    host: str
    port: int
    tracker: str
    tracker_peer_id: str
    tracker_endpoint: str
    free: int
    pending: int
    expires_at: int


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


def _provider(p: Any) -> Provider:
    return Provider(_text(p.peer_id), _text(p.endpoint), _text(p.cls), p.expires_at)


def _uid(uid: str) -> bytes:
    raw = uid.encode()
    if b"\0" in raw:
        raise InvalidArgument("expert UID %r: holds NUL" % uid)
    return raw


# Calls whose end somebody awaits, by the number that is their callback's argument.
_waiters: Dict[int, Callable[[], None]] = {}
_numbers = itertools.count(1)


def _on_call_done(call: Any, number: int) -> None:
    waiter = _waiters.pop(number, None)
    if waiter is not None:
        waiter()


_CALL_DONE = _abi.FUNCTIONS["skep_remote_expert_forward_start"][1][4](_on_call_done)
_NO_CALLBACK = type(_CALL_DONE)()


_Outputs = ctypes.POINTER(_abi.DLManagedTensor) * _tensors.MAX_TENSORS


class _Call:
    """A forward or backward call under way. Freed by result(), or by end()."""

    def __init__(self, client: "Client", views: Sequence[_tensors.Views], torch: bool) -> None:
        self.handle = ctypes.c_void_p()
        self.client = client
        self.views = views  # whose memory the library reads until the call has ended
        self.torch = torch
        self.peer_id = ""
        client._enter(self)

    def wait(self) -> None:
        wait = library().skep_call_wait
        while not wait(self.handle, SLICE_MS):
            pass

    def cancel(self) -> None:
        if self.handle:
            library().skep_call_cancel(self.handle)

    def result(self) -> List[Any]:
        lib = library()
        outputs = _Outputs()
        count = ctypes.c_size_t()
        error = _abi.skep_error()
        status = lib.skep_call_result(self.handle, outputs, _tensors.MAX_TENSORS,
                                      ctypes.byref(count), ctypes.byref(error))
        self.peer_id = _text(lib.skep_call_peer_id(self.handle))
        self.end()
        check(status, error)
        return _tensors.take_all(outputs, count.value, self.torch)

    def end(self) -> None:
        handle, self.handle = self.handle, ctypes.c_void_p()
        if handle and not is_forked():
            library().skep_call_free(handle)
        self.client._leave(self)


class Handle:
    """A handle of the library: freed once, at close() or with its object, and refused afterwards."""

    _what = "the handle"
    _free = ""  # the function that frees it

    def __init__(self, client: "Client", handle: Any, is_owned: bool = True) -> None:
        self._client = client
        self._handle = handle
        self._is_owned = is_owned
        if is_owned:
            client._adopt(self)

    def _live(self) -> Any:
        check_process()
        if not self._handle or self._client._closed:
            raise FailedPrecondition("%s: it, or its client, was closed" % self._what)
        return self._handle

    def close(self) -> None:
        """Frees it."""
        handle, self._handle = self._handle, None
        if handle and self._is_owned and not is_forked():
            getattr(library(), self._free)(handle)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()


class Expert(Handle):
    """A remote expert, called with arrays of NumPy or tensors of PyTorch.

    Made by :meth:`Client.find` and its relatives. May be used from any thread.
    """

    _free = "skep_remote_expert_free"

    def __init__(self, client: "Client", handle: Any, uid: str, owner: Any = None) -> None:
        self.uid = uid
        self._what = "expert " + uid
        self._info: Optional[ExpertInfo] = None
        self._owner = owner  # of a handle that is somebody else's
        super().__init__(client, handle, owner is None)

    @property
    def client(self) -> "Client":
        """The client that it belongs to."""
        return self._client

    def __repr__(self) -> str:
        return "%s(%r)" % (type(self).__name__, self.uid)

    def __reduce__(self) -> Any:
        address = self.providers()
        return _restore, (self._client._settings, self.uid,
                          address[0].endpoint if address else None,
                          (address[0].peer_id or None) if address else None)

    def __deepcopy__(self, memo: Any) -> "Expert":
        return self

    def providers(self) -> List[Provider]:
        """The nodes that serve it, freshest first, as last looked up."""
        list_ = (_abi.skep_provider * 16)()
        n = library().skep_remote_expert_providers(self._live(), list_, 16)
        return [_provider(list_[i]) for i in range(min(n, 16))]

    @property
    def peer_id(self) -> Optional[str]:
        """The peer id of the freshest node that serves it; None if unknown."""
        providers = self.providers()
        return providers[0].peer_id or None if providers else None

    @property
    def info(self) -> ExpertInfo:
        """What the node says of it; asked for once. See :meth:`fetch_info`."""
        if self._info is None:
            self._info = self.fetch_info()
        return self._info

    def fetch_info(self, timeout: Optional[float] = None) -> ExpertInfo:
        """Asks a node for schema, class, updates and load."""
        lib, handle, ms = library(), self._live(), milliseconds(timeout)
        out = _abi.skep_expert_info()
        self._client._run(lambda e: lib.skep_remote_expert_info(handle, ms, ctypes.byref(out), e))

        def specs(list_: Any, count: int) -> Tuple[TensorSpec, ...]:
            return tuple(TensorSpec(_text(s.name), _tensors.dtype_name(s.dtype),
                                    tuple(s.shape[:s.ndim])) for s in list_[:count])

        schema = out.schema
        return ExpertInfo(
            _text(out.uid), _text(out.peer_id), _text(out.cls), _text(out.precision),
            specs(schema.inputs, schema.input_count), specs(schema.outputs, schema.output_count),
            out.parameter_count, out.update_count, out.max_batch_size, out.queued_tasks,
            out.examples_per_second, out.stalled, NAMES[out.compression],
            NAMES[out.grad_compression])

    # -- calls

    def _options(self, timeout: Optional[float], compression: Any, grad_compression: Any,
                 peer_id: Optional[str], request_id: Optional[bytes],
                 hedge_after: Optional[float]) -> Any:
        if (timeout is None and compression is None and grad_compression is None
                and peer_id is None and request_id is None and hedge_after is None):
            return None  # the defaults
        options = _abi.skep_call_options()
        options.timeout_ms = milliseconds(timeout)
        options.hedge_after_ms = milliseconds(hedge_after, "hedge_after")
        options.compression = number_of(compression)
        options.grad_compression = number_of(grad_compression)
        options.peer_id = peer_id.encode() if peer_id else None
        if request_id is not None:
            if len(request_id) != 16:
                raise ValueError("request_id of %d bytes, expected 16" % len(request_id))
            options.request_id = (ctypes.c_uint8 * 16)(*request_id)
        return options

    def _start(self, inputs: Sequence[Any], grads: Optional[Sequence[Any]], options: Any,
               done: Optional[Callable[[], None]] = None) -> _Call:
        lib, handle = library(), self._live()
        views = [_tensors.Views(inputs)] + ([] if grads is None else [_tensors.Views(grads)])
        call = _Call(self._client, views, any(v.torch for v in views))
        error = _abi.skep_error()
        number = 0
        callback = _NO_CALLBACK
        if done is not None:
            number = next(_numbers)
            _waiters[number] = done
            callback = _CALL_DONE
        arguments: List[Any] = [handle]
        for v in views:
            arguments += [v.pointers, v.count]
        start = (lib.skep_remote_expert_forward_start if grads is None
                 else lib.skep_remote_expert_backward_start)
        status = start(*arguments, options, callback, number,
                       ctypes.byref(call.handle), ctypes.byref(error))
        if status != 0:
            _waiters.pop(number, None)
            call.end()
            check(status, error)
        return call

    def _finish(self, call: _Call) -> Tuple[List[Any], str]:
        try:
            call.wait()
            return call.result(), call.peer_id
        except BaseException:
            call.end()
            raise

    def forward(self, *inputs: Any, timeout: Optional[float] = None, compression: Any = None,
                hedge_after: Optional[float] = None, peer_id: Optional[str] = None) -> List[Any]:
        """Forward pass: a list of outputs, arrays or tensors as the inputs are.

        inputs: as the schema says, dimension 0 being the batch. timeout: seconds for the whole
        call, lookups and fail-over included. peer_id: the node to ask first.
        """
        options = self._options(timeout, compression, None, peer_id, None, hedge_after)
        return self._finish(self._start(inputs, None, options))[0]

    def backward(self, inputs: Sequence[Any], grad_outputs: Sequence[Any], *,
                 timeout: Optional[float] = None, compression: Any = None,
                 grad_compression: Any = None, peer_id: Optional[str] = None,
                 request_id: Optional[bytes] = None) -> List[Any]:
        """Backward pass, which trains the expert: a list of the gradients of the inputs.

        request_id: 16 bytes; the same id at the same node is carried out once only.
        """
        options = self._options(timeout, compression, grad_compression, peer_id,
                                request_id, None)
        return self._finish(self._start(inputs, grad_outputs, options))[0]

    async def _await(self, inputs: Sequence[Any], grads: Optional[Sequence[Any]],
                     options: Any) -> List[Any]:
        loop = asyncio.get_running_loop()
        ended: "asyncio.Future[None]" = loop.create_future()

        def set_ended() -> None:
            if not ended.done():
                ended.set_result(None)

        def done() -> None:
            try:
                loop.call_soon_threadsafe(set_ended)
            except RuntimeError:  # the loop was closed meanwhile
                pass

        call = self._start(inputs, grads, options, done)
        try:
            await ended
            return call.result()
        except BaseException:
            call.end()
            raise

    async def aforward(self, *inputs: Any, timeout: Optional[float] = None,
                       compression: Any = None, hedge_after: Optional[float] = None,
                       peer_id: Optional[str] = None) -> List[Any]:
        """As :meth:`forward`, for asyncio. Cancelling the task cancels the call."""
        options = self._options(timeout, compression, None, peer_id, None, hedge_after)
        return await self._await(inputs, None, options)

    async def abackward(self, inputs: Sequence[Any], grad_outputs: Sequence[Any], *,
                        timeout: Optional[float] = None, compression: Any = None,
                        grad_compression: Any = None, peer_id: Optional[str] = None,
                        request_id: Optional[bytes] = None) -> List[Any]:
        """As :meth:`backward`, for asyncio."""
        options = self._options(timeout, compression, grad_compression, peer_id,
                                request_id, None)
        return await self._await(inputs, grad_outputs, options)


def _restore(settings: Dict[str, Any], uid: str, endpoint: Optional[str],
             peer_id: Optional[str]) -> Expert:
    client = shared_client(settings)
    if endpoint is None:
        return client.find(uid)
    return client.expert_at(uid, endpoint, peer_id)


_shared: Dict[Tuple[Any, ...], "Client"] = {}
_shared_lock = threading.Lock()


def shared_client(settings: Dict[str, Any]) -> "Client":
    """The client of this process for these settings, made if there is none: for handles that come
    from another process."""
    key = tuple(sorted((k, tuple(v) if isinstance(v, list) else v) for k, v in settings.items()))
    with _shared_lock:
        client = _shared.get(key)
        if client is None or client._closed:
            client = _shared[key] = Client(**settings)
    return client


class Watch(Handle):
    """A live view of the experts under a prefix. See :meth:`Client.watch`."""

    _what = "the watch"
    _free = "skep_watch_free"

    def __init__(self, client: "Client", prefix: str,
                 changed: Optional[Callable[[str, str, List[Provider]], None]]) -> None:
        handle = ctypes.c_void_p()
        kind = _abi.FUNCTIONS["skep_watch_new"][1][2]
        names = {_abi.SKEP_WATCH_APPEARED: "appeared", _abi.SKEP_WATCH_CHANGED: "changed",
                 _abi.SKEP_WATCH_GONE: "gone"}

        def on_event(arg: Any, event: int, uid: bytes, providers: Any, count: int) -> None:
            if changed is not None:
                changed(names[event], uid.decode(), [_provider(providers[i])
                                                     for i in range(count)])

        self._callback = kind(on_event) if changed is not None else kind()
        error = _abi.skep_error()
        check(library().skep_watch_new(client._live(), prefix.encode(), self._callback, None,
                                       ctypes.byref(handle), ctypes.byref(error)), error)
        super().__init__(client, handle)

    def wait_ready(self, timeout: Optional[float] = None) -> None:
        """Waits until everything under the prefix was read once."""
        lib, handle, ms = library(), self._live(), milliseconds(timeout)
        self._client._run(lambda e: lib.skep_watch_wait_ready(handle, ms, e))

    @property
    def in_step(self) -> bool:
        """Whether lookups are answered from it now."""
        return bool(library().skep_watch_in_step(self._live()))

    def __len__(self) -> int:
        return int(library().skep_watch_count(self._live()))

    def experts(self) -> Dict[str, List[Provider]]:
        """The experts under the prefix, and who serves each."""
        found: Dict[str, List[Provider]] = {}
        kind = _abi.FUNCTIONS["skep_watch_each"][1][1]

        def each(arg: Any, uid: bytes, providers: Any, count: int) -> None:
            found[uid.decode()] = [_provider(providers[i]) for i in range(count)]

        library().skep_watch_each(self._live(), kind(each), None)
        return found


class Lease(Handle):
    """The lease of a node that a tracker has handed out. See :meth:`Client.lease`."""

    _what = "the lease"
    _free = "skep_client_lease_free"

    @property
    def duration(self) -> float:
        """Seconds from the last granting that the lease lasts."""
        return float(library().skep_client_lease_duration_ms(self._live())) / 1000

    def expert(self, uid: str) -> Expert:
        """An expert of the leased node."""
        out, error = ctypes.c_void_p(), _abi.skep_error()
        check(library().skep_client_lease_expert(self._live(), _uid(uid), ctypes.byref(out),
                                                 ctypes.byref(error)), error)
        return Expert(self._client, out, uid)

    def renew(self, duration: Optional[float] = None, timeout: Optional[float] = None) -> None:
        """Makes the lease last so many seconds from now; None: as long as the node allows."""
        lib, handle = library(), self._live()
        ms, limit = milliseconds(duration, "duration"), milliseconds(timeout)
        self._client._run(lambda e: lib.skep_client_lease_renew(handle, ms, limit, e))

    @property
    def ended(self) -> bool:
        """Whether the lease has ended, by whatever cause."""
        return bool(library().skep_client_lease_wait_ended(self._live(), 0))


class _Using:
    """One who uses a client's handle: closing the client waits for it."""

    def __init__(self, client: "Client") -> None:
        self.client = client

    def __enter__(self) -> None:
        self.client._enter(self)

    def __exit__(self, *_: Any) -> None:
        self.client._leave(self)

    def cancel(self) -> None:
        pass


class Client:
    """A client of a swarm.

    initial_peers: ``"host:port"`` of DHT peers, or ``"tracker://host:port"``; a text or a list.
    swarm: its name. swarm_key, identity: key files. timeout: seconds of a call that gives none.
    compression, grad_compression: how activations and gradients travel. hedge_after: seconds
    after which a forward call is sent to a second node too. no_dht: only :meth:`expert_at`.

    May be used from any thread, as a context manager, and not in a forked child.
    """

    def __init__(self, initial_peers: Union[str, Iterable[str]] = (), *, swarm: str = "skep",
                 swarm_key: Any = None, identity: Any = None, dht_listen: Optional[str] = None,
                 timeout: float = 30.0, max_in_flight: int = 4096,
                 max_message_bytes: int = 1 << 30, compression: Any = None,
                 grad_compression: Any = None, hedge_after: Optional[float] = None,
                 no_dht: bool = False, insecure_plaintext: bool = False) -> None:
        self._closed = True  # until it is open
        lib = library()
        peers = [initial_peers] if isinstance(initial_peers, str) else list(initial_peers)
        self._settings: Dict[str, Any] = dict(
            initial_peers=peers, swarm=swarm, swarm_key=swarm_key, dht_listen=dht_listen,
            timeout=timeout, compression=compression, grad_compression=grad_compression,
            hedge_after=hedge_after, no_dht=no_dht, insecure_plaintext=insecure_plaintext)
        options = _abi.skep_client_options()
        lib.skep_client_options_init(ctypes.byref(options))
        encoded = (ctypes.c_char_p * max(1, len(peers)))(*[p.encode() for p in peers])
        options.swarm = swarm.encode()
        options.swarm_key_path = text_or_none(swarm_key)
        options.identity_path = text_or_none(identity)
        options.initial_peers = encoded
        options.initial_peer_count = len(peers)
        if dht_listen is not None:
            options.dht_listen = dht_listen.encode()
        options.no_dht = no_dht
        options.insecure_plaintext = insecure_plaintext
        options.timeout_ms = milliseconds(timeout)
        options.max_in_flight = max_in_flight
        options.max_message_bytes = max_message_bytes
        options.compression = number_of(compression)
        options.grad_compression = number_of(grad_compression)
        options.hedge_after_ms = milliseconds(hedge_after, "hedge_after")
        self._handle = ctypes.c_void_p()
        self._children: "weakref.WeakSet[Any]" = weakref.WeakSet()
        self._changed = threading.Condition()  # guards _users and _closed
        self._users: Set[Any] = set()
        error = _abi.skep_error()
        check(lib.skep_client_new(ctypes.byref(options), ctypes.byref(self._handle),
                                  ctypes.byref(error)), error)
        self._closed = False

    # -- who uses it

    def _live(self) -> Any:
        check_process()
        if self._closed:
            raise FailedPrecondition("the client was closed")
        return self._handle

    def _adopt(self, child: Any) -> None:
        self._children.add(child)

    def _enter(self, user: Any) -> None:
        with self._changed:
            if self._closed:
                raise FailedPrecondition("the client was closed")
            self._users.add(user)

    def _leave(self, user: Any) -> None:
        with self._changed:
            self._users.discard(user)
            if self._closed:
                self._changed.notify_all()

    def _using(self) -> _Using:
        return _Using(self)

    def close(self) -> None:
        """Cancels all calls, leaves the swarm and frees. Blocks for a few seconds at most, and
        for lookups that another thread waits for."""
        if is_forked():
            self._closed = True
            return
        with self._changed:
            if self._closed:
                return
            self._closed = True
            users = list(self._users)
        for user in users:
            user.cancel()
        with self._changed:
            while self._users:
                self._changed.wait(SLICE_MS / 1000)
        for child in list(self._children):
            child.close()
        handle, self._handle = self._handle, ctypes.c_void_p()
        library().skep_client_free(handle)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.close()

    def __reduce__(self) -> Any:
        return shared_client, (self._settings,)

    def _run(self, function: Callable[[Any], int],
             dispose: Optional[Callable[[], None]] = None) -> None:
        """Runs a C function that blocks; `function` gets the error structure."""
        self._live()

        def work() -> None:
            error = _abi.skep_error()
            with self._using():
                check(function(ctypes.byref(error)), error)

        def drop(_: Any) -> None:
            if dispose is not None:
                dispose()

        run(work, drop)

    # -- the swarm

    @property
    def peer_id(self) -> str:
        """This client's own peer id, 64 hex digits."""
        return _text(library().skep_client_peer_id(self._live()))

    @property
    def peer_count(self) -> int:
        """How many DHT peers are known to answer."""
        return int(library().skep_client_peer_count(self._live()))

    @property
    def stats(self) -> Dict[str, int]:
        """What it has done so far: calls, requests, hedges, hedge_wins, not_compressed."""
        out = _abi.skep_client_stats()
        library().skep_client_stats(self._live(), ctypes.byref(out))
        return {name: getattr(out, name) for name, *_ in out._fields_}

    def wait_joined(self, timeout: float = 10.0) -> None:
        """Waits until a DHT peer has answered."""
        lib, ms = library(), milliseconds(timeout)
        self._run(lambda e: lib.skep_client_wait_joined(self._handle, ms, e))

    def find(self, uid: str, timeout: Optional[float] = None) -> Expert:
        """Looks an expert up. Raises NotFound if nobody serves it."""
        lib, ms, raw = library(), milliseconds(timeout), _uid(uid)
        out = ctypes.c_void_p()
        self._run(lambda e: lib.skep_client_find(self._handle, raw, ms, ctypes.byref(out), e),
                  lambda: lib.skep_remote_expert_free(out))
        return Expert(self, out, uid)

    def find_many(self, uids: Sequence[str],
                  timeout: Optional[float] = None) -> List[Optional[Expert]]:
        """Looks many experts up at once; None where nobody serves one."""
        lib, ms, n = library(), milliseconds(timeout), len(uids)
        raw = (ctypes.c_char_p * max(1, n))(*[_uid(u) for u in uids])
        out = (ctypes.c_void_p * max(1, n))()
        statuses = (ctypes.c_int * max(1, n))()

        def find(e: Any) -> int:
            status: int = lib.skep_client_find_many(self._handle, raw, n, ms, out, statuses, e)
            if status != 0:
                free()
            return status

        def free() -> None:
            for handle in out:
                lib.skep_remote_expert_free(handle)

        if n == 0:
            return []
        self._run(find, free)
        return [Expert(self, ctypes.c_void_p(out[i]), uids[i]) if out[i] else None
                for i in range(n)]

    async def afind(self, uid: str, timeout: Optional[float] = None) -> Expert:
        """As :meth:`find`, for asyncio."""
        return await asyncio.get_running_loop().run_in_executor(None, self.find, uid, timeout)

    def expert_at(self, uid: str, endpoint: str, peer_id: Optional[str] = None) -> Expert:
        """An expert at a known endpoint, without the DHT. peer_id: who must answer there."""
        out, error = ctypes.c_void_p(), _abi.skep_error()
        check(library().skep_client_expert_at(
            self._live(), _uid(uid), endpoint.encode(), peer_id.encode() if peer_id else None,
            ctypes.byref(out), ctypes.byref(error)), error)
        return Expert(self, out, uid)

    def find_prefix(self, prefix: str, timeout: Optional[float] = None) -> Dict[
            str, List[Provider]]:
        """The experts under a prefix, which ends with a dot, and who serves each."""
        with Watch(self, prefix, None) as watch:
            watch.wait_ready(timeout)
            return watch.experts()

    def watch(self, prefix: str,
              changed: Optional[Callable[[str, str, List[Provider]], None]] = None) -> Watch:
        """Watches a prefix: lookups and searches under it are answered from the live view.

        changed: gets ``"appeared"``, ``"changed"`` or ``"gone"``, the UID, and who serves it now,
        on a thread of the watch's own.
        """
        return Watch(self, prefix, changed)

    def peers(self, ping: bool = True, timeout: Optional[float] = None) -> List[Peer]:
        """The nodes of the swarm. ping: connect to each, for round trip and health."""
        lib, ms = library(), milliseconds(timeout)
        out, count = ctypes.POINTER(_abi.skep_peer)(), ctypes.c_size_t()
        self._run(lambda e: lib.skep_client_peers(self._handle, ping, ms, ctypes.byref(out),
                                                  ctypes.byref(count), e),
                  lambda: lib.skep_peers_free(out))
        try:
            return [self._peer(out[i]) for i in range(count.value)]
        finally:
            lib.skep_peers_free(out)

    def peer_at(self, endpoint: str, timeout: Optional[float] = None) -> Peer:
        """Asks one node for its health, without the DHT."""
        lib, ms, out = library(), milliseconds(timeout), _abi.skep_peer()
        self._run(lambda e: lib.skep_client_peer_at(self._handle, endpoint.encode(), ms,
                                                    ctypes.byref(out), e))
        return self._peer(out)

    @staticmethod
    def _peer(p: Any) -> Peer:
        reached = p.reached == 0
        return Peer(_text(p.peer_id), _text(p.endpoint), _text(p.state), _text(p.version),
                    p.experts, p.examples_per_second, p.queued_tasks, p.expires_at,
                    _text(library().skep_status_name(p.reached)),
                    p.round_trip_ms / 1000 if reached else None,
                    p.experts_stalled if p.has_health else None,
                    p.dht_peers if p.has_health else None,
                    _text(p.reachability) if p.has_health else None)

    def resources(self, key: str, timeout: Optional[float] = None) -> List[Resource]:
        """What the trackers of the swarm hold under a key."""
        lib, ms, raw = library(), milliseconds(timeout), key.encode()
        out, count = ctypes.POINTER(_abi.skep_tracked_resource)(), ctypes.c_size_t()
        self._run(lambda e: lib.skep_client_find_resources(
            self._handle, raw, ms, ctypes.byref(out), ctypes.byref(count), e),
            lambda: lib.skep_tracked_resources_free(out))
        try:
            return [Resource(_text(r.host), r.port, _text(r.tracker), _text(r.tracker_peer_id),
                             _text(r.tracker_endpoint), r.free, r.pending, r.expires_at)
                    for r in out[:count.value]]
        finally:
            lib.skep_tracked_resources_free(out)

    def lease(self, endpoint: str, match_key: str, *, peer_id: Optional[str] = None,
              duration: Optional[float] = None, timeout: Optional[float] = None) -> Lease:
        """Leases a node with the match key that a tracker has issued for it."""
        lib, out = library(), ctypes.c_void_p()
        ms, limit = milliseconds(duration, "duration"), milliseconds(timeout)
        self._run(lambda e: lib.skep_client_lease_begin(
            self._handle, endpoint.encode(), peer_id.encode() if peer_id else None,
            match_key.encode(), ms, limit, ctypes.byref(out), e),
            lambda: lib.skep_client_lease_free(out))
        return Lease(self, out)

    def call(self, uid: str, *inputs: Any, timeout: Optional[float] = None) -> List[Any]:
        """Looks an expert up and runs a forward pass."""
        return self.find(uid, timeout).forward(*inputs, timeout=timeout)


__all__ = ["Cancelled", "Client", "DeadlineExceeded", "Error", "Expert", "ExpertInfo", "Lease",
           "Peer", "Provider", "Resource", "TensorSpec", "Watch"]
