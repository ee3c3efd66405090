"""Skep for Python: remote experts and mixtures of a swarm, for PyTorch and NumPy.

``import skep`` imports neither PyTorch nor the library: :class:`Client` needs NumPy only, and what
needs PyTorch imports it at first use. docs/python.md lists what is as in hivemind, and what is not.
"""

import importlib
from typing import TYPE_CHECKING, Any, List

_HOME = {
    "Client": "client", "Expert": "client", "ExpertInfo": "client", "Lease": "client",
    "Peer": "client", "Provider": "client", "Resource": "client", "TensorSpec": "client",
    "Watch": "client", "Tensor": "_tensors",
    "CompressionType": "compression",
    "DHT": "dht", "get_experts": "dht", "declare_experts": "dht", "is_valid_uid": "dht",
    "is_valid_prefix": "dht",
    "MoEBeamSearcher": "beam",
    "RemoteExpert": "expert", "Node": "node",
    "BatchTensorDescriptor": "schema", "ModuleBackend": "backend",
    "Server": "server", "background_server": "server", "PeerInfo": "server",
    "register_expert_class": "server", "name_to_block": "server", "name_to_input": "server",
    "RemoteMixtureOfExperts": "moe", "RemoteSwitchMixtureOfExperts": "moe",
    "Error": "_status", "Cancelled": "_status", "InvalidArgument": "_status",
    "DeadlineExceeded": "_status", "NotFound": "_status", "PermissionDenied": "_status",
    "ResourceExhausted": "_status", "FailedPrecondition": "_status", "Unimplemented": "_status",
    "Internal": "_status", "Unavailable": "_status", "DataLoss": "_status",
    "Unauthenticated": "_status",
    "set_log_level": "_library", "version": "_library",
}

# hivemind's names that Skep does not have, and what to use instead.
_ELSEWHERE = {
    "Optimizer": "experts are trained at their nodes (ModuleBackend, `skep node --optimizer`); Skep "
                 "averages no parameters among peers",
    "GradScaler": "use torch.cuda.amp.GradScaler",
    "P2P": "connections are the library's; give DHT or Client their addresses",
    "PeerID": "a peer id is a text of 64 hex digits",
    "Multiaddr": "addresses are \"host:port\"",
    "TaskPool": "the library batches: see ModuleBackend and Server",
    "Runtime": "the library's own: see Server",
    "ConnectionHandler": "the library's own: see Server",
    "get_dht_time": "use time.time(); records carry times of their own",
    **dict.fromkeys(("DecentralizedAverager", "TrainingAverager", "TrainingStateAverager",
                     "GradientAverager"), "Skep averages no parameters among peers"),
    **dict.fromkeys(("MPFuture", "TimedStorage", "nested_flatten", "nested_pack", "nested_map",
                     "get_logger", "use_hivemind_log_handler"), "a tool of hivemind itself"),
}

__all__: List[str] = sorted(_HOME)

if TYPE_CHECKING:
    from ._library import set_log_level as set_log_level
    from ._library import version as version
    from ._status import Cancelled as Cancelled
    from ._status import DataLoss as DataLoss
    from ._status import DeadlineExceeded as DeadlineExceeded
    from ._status import Error as Error
    from ._status import FailedPrecondition as FailedPrecondition
    from ._status import Internal as Internal
    from ._status import InvalidArgument as InvalidArgument
    from ._status import NotFound as NotFound
    from ._status import PermissionDenied as PermissionDenied
    from ._status import ResourceExhausted as ResourceExhausted
    from ._status import Unauthenticated as Unauthenticated
    from ._status import Unavailable as Unavailable
    from ._status import Unimplemented as Unimplemented
    from ._tensors import Tensor as Tensor
    from .backend import ModuleBackend as ModuleBackend
    from .beam import MoEBeamSearcher as MoEBeamSearcher
    from .client import Client as Client
    from .client import Expert as Expert
    from .client import ExpertInfo as ExpertInfo
    from .client import Lease as Lease
    from .client import Peer as Peer
    from .client import Provider as Provider
    from .client import Resource as Resource
    from .client import TensorSpec as TensorSpec
    from .client import Watch as Watch
    from .compression import CompressionType as CompressionType
    from .dht import DHT as DHT
    from .dht import declare_experts as declare_experts
    from .dht import get_experts as get_experts
    from .dht import is_valid_prefix as is_valid_prefix
    from .dht import is_valid_uid as is_valid_uid
    from .expert import RemoteExpert as RemoteExpert
    from .moe import RemoteMixtureOfExperts as RemoteMixtureOfExperts
    from .moe import RemoteSwitchMixtureOfExperts as RemoteSwitchMixtureOfExperts
    from .node import Node as Node
    from .schema import BatchTensorDescriptor as BatchTensorDescriptor
    from .server import PeerInfo as PeerInfo
    from .server import Server as Server
    from .server import background_server as background_server
    from .server import name_to_block as name_to_block
    from .server import name_to_input as name_to_input
    from .server import register_expert_class as register_expert_class


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module("." + _HOME[name], __name__), name)
        globals()[name] = value
        return value
    if name in _ELSEWHERE:
        raise NotImplementedError("skep.%s: not here: %s" % (name, _ELSEWHERE[name]))
    raise AttributeError("module %r has no attribute %r" % (__name__, name))


def __dir__() -> List[str]:
    return __all__
