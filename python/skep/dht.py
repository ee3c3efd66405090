"""Membership in a swarm, and lookups of experts, by hivemind's names."""

import concurrent.futures
import re
from typing import Any, Dict, Iterable, List, Optional, Sequence, Union

from ._library import check_process, is_forked
from ._status import FailedPrecondition
from .client import Client
from .node import Node, default_listen

_executor: Optional[concurrent.futures.ThreadPoolExecutor] = None


class DHT:
    """A DHT peer of a swarm, with a client that looks up and calls its experts.

    initial_peers: ``"host:port"`` strings as :meth:`get_visible_maddrs` gives them; none: this
    peer starts a swarm. swarm, swarm_key, identity, peers_file: as of ``skep node``.
    update_period: seconds between publications. listen, dht_listen: ``"host:port"``, ``*`` as port
    picks one. client_mode: join as a client only, through which others cannot join. Further
    arguments go to :class:`Client`.
    """

    def __init__(self, initial_peers: Union[str, Iterable[str], None] = None, *,
                 start: bool = True, swarm: str = "skep", swarm_key: Any = None,
                 identity: Any = None, peers_file: Any = None, update_period: float = 30,
                 listen: Optional[str] = None, dht_listen: Optional[str] = None,
                 client_mode: bool = False, join_timeout: float = 10.0,
                 **client_options: Any) -> None:
        peers = ([initial_peers] if isinstance(initial_peers, str)
                 else [str(p) for p in initial_peers or []])
        if client_mode and not peers:
            raise ValueError("initial_peers: none, expected at least one with client_mode=True")
        self._settings = dict(swarm=swarm, swarm_key=swarm_key)
        self.initial_peers = peers
        self._identity, self._peers_file = identity, peers_file
        self._update_period = update_period
        self._listen, self._dht_listen = listen, dht_listen
        self._client_mode = client_mode
        self._join_timeout = join_timeout
        self._client_options = client_options
        self._node: Any = None
        self._client: Optional[Client] = None
        if start:
            self.start()

    def start(self) -> None:
        """Joins the swarm, unless it has."""
        if self._client is not None:
            return
        if not self._client_mode:
            self._node = self._start_node()
        try:
            peers = self.get_visible_maddrs() + self.initial_peers
            options = dict(self._client_options)
            if self._client_mode and self._identity is not None:
                options.setdefault("identity", self._identity)
            self._client = Client(peers, **self._settings, **options)
            if self.initial_peers or self._node is not None:
                self._client.wait_joined(self._join_timeout)
        except BaseException:
            self.shutdown()
            raise

    def _start_node(self) -> Any:
        node = Node(self.initial_peers,
                    listen=self._listen or default_listen(self.initial_peers),
                    dht_listen=self._dht_listen, update_period_s=max(1, int(self._update_period)),
                    **self.node_options(), identity=self._identity, peers_file=self._peers_file)
        try:
            node.start()
        except BaseException:
            node.shutdown()
            raise
        return node

    def node_options(self) -> Dict[str, Any]:
        """What a further node of this process needs to be of the same swarm."""
        return dict(self._settings)

    @property
    def client(self) -> Client:
        """The client of this peer."""
        check_process()
        if self._client is None:
            raise FailedPrecondition("the DHT peer was not started, or was shut down")
        return self._client

    @property
    def peer_id(self) -> str:
        """Its peer id, 64 hex digits."""
        if self._node is None:
            return self.client.peer_id
        peer_id: str = self._node.peer_id
        return peer_id

    def get_visible_maddrs(self, latest: bool = False) -> List[str]:
        """The strings by which others join through this peer: ``initial_peers`` for them. Skep's
        addresses are ``host:port``, not multiaddrs."""
        if self._node is None:
            return []
        peer = self._node.initial_peer
        return [peer] if peer else []

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._client is not None and not is_forked()

    def shutdown(self) -> None:
        """Leaves the swarm. Experts of its client cannot be called any more."""
        client, self._client = self._client, None
        node, self._node = self._node, None
        if client is not None:
            client.close()
        if node is not None:
            node.shutdown()

    def __enter__(self) -> "DHT":
        self.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.shutdown()

    def __del__(self) -> None:
        if getattr(self, "_client", None) is not None or getattr(self, "_node", None) is not None:
            self.shutdown()

    def _no_values(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(
            "Skep's DHT holds signed records of nodes, not values of programs: use get_experts(), "
            "Client.find_prefix() and Client.peers() to read them")

    get = store = run_coroutine = add_validators = _no_values


def client_of(dht: Union[DHT, Client]) -> Client:
    """The client behind a DHT or a Client."""
    if isinstance(dht, Client):
        return dht
    if isinstance(dht, DHT):
        return dht.client
    raise TypeError("dht: %r, expected a skep.DHT or a skep.Client" % (dht,))


def submit(function: Any, *arguments: Any) -> Any:
    """Runs a function on a thread of a pool; returns its future."""
    global _executor
    if _executor is None:
        _executor = concurrent.futures.ThreadPoolExecutor(8, "skep-future")
    return _executor.submit(function, *arguments)


_COORDINATE = r"(?:0|[1-9][0-9]{0,18})"
_UID = re.compile(r"[^.\0]+(?:\.%s)+" % _COORDINATE)
_PREFIX = re.compile(r"[^.\0]+(?:\.%s)*\." % _COORDINATE)


def _is_valid(pattern: "re.Pattern[str]", text: str) -> bool:
    if not isinstance(text, str) or pattern.fullmatch(text) is None:
        return False
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return False
    return size <= 255 and all(int(c) < 1 << 63 for c in text.split(".")[1:] if c)


def is_valid_uid(maybe_uid: str) -> bool:
    """Whether a text is an expert UID: ``name.0.1``."""
    return _is_valid(_UID, maybe_uid)


def is_valid_prefix(maybe_prefix: str) -> bool:
    """Whether a text is a prefix of UIDs: ``name.0.``."""
    return _is_valid(_PREFIX, maybe_prefix)


def get_experts(dht: Union[DHT, Client], uids: Sequence[str], expiration_time: Any = None,
                return_future: bool = False) -> Any:
    """Looks experts up: a list of :class:`RemoteExpert`, None where nobody serves one.

    return_future: returns a concurrent.futures.Future of the list. expiration_time is accepted for
    hivemind's sake: records that have expired are never returned.
    """
    if isinstance(uids, str):
        raise TypeError("uids: a text, expected a list of UIDs")
    for uid in uids:
        if not is_valid_uid(uid):
            raise ValueError("%r: not an expert UID, expected a form such as \"ffn.0.1\"" % (uid,))
    if return_future:
        return submit(get_experts, dht, list(uids), expiration_time)
    from .expert import RemoteExpert
    found = client_of(dht).find_many(list(uids))
    return [RemoteExpert(e) if e is not None else None for e in found]


def declare_experts(*_: Any, **__: Any) -> Any:
    """Not here: a node publishes the experts that it hosts."""
    raise NotImplementedError("a node publishes its experts itself: host them by skep.Server or "
                              "`skep node --expert-uids ...`")
