"""A node inside this process: `skep node` as an object."""

import ctypes
import os
import re
from typing import Any, Callable, Dict, Iterable, List, Optional

from . import _abi
from ._library import check, check_process, is_forked, library, milliseconds, run
from ._status import FailedPrecondition

_TEXTS = (ctypes.c_char_p,)


def is_loopback(peer: str) -> bool:
    """Whether a peer's address is one of this machine alone."""
    host = peer.rsplit("://", 1)[-1].rsplit(":", 1)[0].strip("[]")
    return host == "localhost" or host == "::1" or re.fullmatch(r"127(\.\d+){3}", host) is not None


def default_listen(initial_peers: Iterable[str]) -> str:
    """Where a node listens that was not told: on loopback if its whole swarm is there."""
    peers = list(initial_peers)
    return "127.0.0.1:*" if peers and all(is_loopback(p) for p in peers) else "0.0.0.0:*"


def _set_options(target: Any, given: Dict[str, Any], what: str) -> None:
    """Fills in fields of a structure of options by their names."""
    kinds = dict(target._fields_)
    for name, value in given.items():
        if name not in kinds or name == "size":
            raise TypeError("%s: unknown option %r, expected one of %s"
                            % (what, name, ", ".join(sorted(k for k in kinds if k != "size"))))
        if value is None:
            continue
        if kinds[name] in _TEXTS:
            value = os.fsencode(value)
        try:
            setattr(target, name, value)
        except TypeError as e:
            raise TypeError("%s: option %s=%r: %s" % (what, name, value, e)) from None


def expert_options(cls: str, given: Dict[str, Any]) -> Any:
    """struct skep_expert_options for a class, with what differs from the defaults."""
    options = _abi.skep_expert_options()
    library().skep_expert_options_init(ctypes.byref(options))
    _set_options(options, dict(given, cls=cls), "expert class %s" % cls)
    return options


class Node:
    """A node that hosts experts, in threads of the library.

    initial_peers: ``"host:port"`` strings, none starts a swarm. Further arguments are the fields of
    ``struct skep_node_options`` (skep/node.h) by name: ``listen``, ``swarm``, ``checkpoint_dir``,
    ``max_batch_size`` and so on. Experts are added before or after :meth:`start`. May be used from
    any thread after it.
    """

    def __init__(self, initial_peers: Iterable[str] = (), **options: Any) -> None:
        lib = library()
        peers = [str(p) for p in initial_peers]
        given = _abi.skep_node_options()
        lib.skep_node_options_init(ctypes.byref(given))
        texts = (ctypes.c_char_p * max(1, len(peers)))(*[p.encode() for p in peers])
        given.initial_peers = texts
        given.initial_peer_count = len(peers)
        given.no_tracker = True
        options.setdefault("listen", default_listen(peers))
        _set_options(given, options, "node")
        self._handle: Any = ctypes.c_void_p()
        error = _abi.skep_error()
        check(lib.skep_node_new(ctypes.byref(given), ctypes.byref(self._handle),
                                ctypes.byref(error)), error)

    def _call(self, function: str, *arguments: Any) -> Any:
        error = _abi.skep_error()
        status = getattr(library(), function)(self._live(), *arguments, ctypes.byref(error))
        check(status, error)

    def _live(self) -> Any:
        check_process()
        if not self._handle:
            raise FailedPrecondition("the node was shut down")
        return self._handle

    def start(self) -> None:
        """Joins, makes the experts, listens and serves. Ctrl-C ends the wait."""
        run(lambda: self._call("skep_node_start"))

    def wait_ready(self, timeout: float = 10.0) -> None:
        """Waits until the first publication has ended."""
        run(lambda: self._call("skep_node_wait_ready", milliseconds(timeout)))

    def add_expert(self, uid: str, cls: str = "ffn", **options: Any) -> None:
        """Adds an expert of a class, served at once if the node runs. options: the fields of
        ``struct skep_expert_options`` (skep/expert.h)."""
        given = expert_options(cls, options)
        run(lambda: self._call("skep_node_add_expert", uid.encode(), ctypes.byref(given)))

    def add_pattern(self, pattern: str, count: int, cls: str = "ffn", **options: Any) -> None:
        """Adds experts with random free UIDs of a pattern such as ``ffn.[0:32].[0:256]``, before
        the start."""
        given = expert_options(cls, options)
        self._call("skep_node_add_pattern", pattern.encode(), count, ctypes.byref(given))

    def remove_expert(self, uid: str, timeout: float = 10.0) -> None:
        """Withdraws an expert, waits for its calls under way, saves it, and frees it."""
        run(lambda: self._call("skep_node_remove_expert", uid.encode(), milliseconds(timeout)))

    @property
    def uids(self) -> List[str]:
        """The UIDs of its experts."""
        lib, node = library(), self._live()
        texts = [lib.skep_node_expert_uid(node, i) for i in range(lib.skep_node_expert_count(node))]
        return [t.decode() for t in texts if t is not None]

    @property
    def peer_id(self) -> str:
        """Its peer id, 64 hex digits."""
        text: bytes = library().skep_node_peer_id(self._live())
        return text.decode()

    @property
    def endpoint(self) -> str:
        """Where it serves, ``host:port``."""
        text: bytes = library().skep_node_endpoint(self._live())
        return text.decode()

    @property
    def initial_peer(self) -> Optional[str]:
        """The string by which others join through it."""
        text: Optional[bytes] = library().skep_node_initial_peer(self._live())
        return text.decode() if text else None

    def shutdown(self, before_free: Optional[Callable[[], None]] = None) -> None:
        """Withdraws, finishes calls under way, saves, and frees the node."""
        handle, self._handle = self._handle, None
        if handle and not is_forked():
            library().skep_node_stop(handle)
            if before_free is not None:
                before_free()
            library().skep_node_free(handle)

    def __enter__(self) -> "Node":
        return self

    def __exit__(self, *_: Any) -> None:
        self.shutdown()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.shutdown()
