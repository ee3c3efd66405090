"""Beam search over a grid of experts, by hivemind's names."""

import ctypes
from typing import Any, Dict, List, Sequence, Tuple, Union

import numpy as np

from . import _abi, _tensors
from ._library import library, milliseconds
from .client import Client, Expert, Handle, Provider
from .dht import DHT, client_of, is_valid_prefix, submit


class _Search(Handle):
    """A search's result, which owns the handles of its experts."""

    _what = "the search"
    _free = "skep_beam_search_free"


def make_grid(prefix: str, sizes: Sequence[int]) -> Any:
    """The library's description of a grid. `prefix` may lack its dot, as in hivemind."""
    prefix = prefix if prefix.endswith(".") else prefix + "."
    if not is_valid_prefix(prefix):
        raise ValueError("uid_prefix %r: expected a name, coordinates and a dot, such as \"ffn.\""
                         % prefix)
    if not 1 <= len(sizes) <= 8:
        raise ValueError("grid_size: %d dimensions, expected 1 to 8" % len(sizes))
    grid = _abi.skep_grid()
    grid.prefix = prefix.encode()
    grid.dims = len(sizes)
    for i, size in enumerate(sizes):
        grid.sizes[i] = size
    return grid


class MoEBeamSearcher:
    """Finds the experts of a grid with the highest sums of scores, one score for each coordinate.

    dht: a :class:`DHT` or a :class:`Client`. uid_prefix: ``"ffn."``. grid_size: coordinates of
    each dimension. timeout: seconds of a search. Further arguments of hivemind's class set up its
    caches and workers, which Skep has of its own; they are accepted and not used.
    """

    def __init__(self, dht: Union[DHT, Client], uid_prefix: str, grid_size: Sequence[int],
                 num_workers: Any = None, negative_caching: bool = True,
                 cache_expiration: float = 300, timeout: float = 30.0, **_: Any) -> None:
        self.client = client_of(dht)
        self.uid_prefix = uid_prefix if uid_prefix.endswith(".") else uid_prefix + "."
        self.grid_size = tuple(int(n) for n in grid_size)
        self.timeout = timeout
        make_grid(self.uid_prefix, self.grid_size)

    def _search(self, scores: Sequence[Any], k: int) -> List[List[Tuple[Expert, float]]]:
        lib = library()
        grid = make_grid(self.uid_prefix, self.grid_size)
        if len(scores) != len(self.grid_size):
            raise ValueError("scores of %d dimensions, expected %d"
                             % (len(scores), len(self.grid_size)))
        arrays = [s if _tensors.is_torch(s) else np.asarray(s) for s in scores]
        arrays = [a.astype("float64") if isinstance(a, np.ndarray) and a.dtype.kind not in "f"
                  else a for a in arrays]
        views = _tensors.Views(arrays)
        options = _abi.skep_beam_options()
        lib.skep_beam_options_init(ctypes.byref(options))
        options.k = k
        options.timeout_ms = milliseconds(self.timeout)
        out = ctypes.c_void_p()

        self.client._run(lambda e: lib.skep_beam_search_run(
            self.client._live(), ctypes.byref(grid), views.pointers, ctypes.byref(options),
            ctypes.byref(out), e), lambda: lib.skep_beam_search_free(out))
        owner = _Search(self.client, out)
        found: List[List[Tuple[Expert, float]]] = []
        hit = _abi.skep_beam_hit()
        experts: Dict[str, Expert] = {}
        for sample in range(lib.skep_beam_search_samples(out)):
            row: List[Tuple[Expert, float]] = []
            for rank in range(lib.skep_beam_search_count(out, sample)):
                lib.skep_beam_search_hit(out, sample, rank, ctypes.byref(hit))
                uid = hit.uid.decode()
                if uid not in experts:
                    experts[uid] = Expert(self.client, ctypes.c_void_p(hit.expert), uid, owner)
                row.append((experts[uid], hit.score))
            found.append(row)
        return found

    def find_best_experts(self, grid_scores: Sequence[Any], beam_size: int,
                          return_future: bool = False) -> Any:
        """The best experts of one sample, best first: at most beam_size :class:`RemoteExpert`.

        grid_scores: for each dimension one score for each coordinate.
        """
        if return_future:
            return submit(self.find_best_experts, grid_scores, beam_size)
        from .expert import RemoteExpert
        rows = self._search(grid_scores, beam_size)
        return [RemoteExpert(e) for e, _ in rows[0]] if rows else []

    def batch_find_best_experts(self, batch_grid_scores: Sequence[Any], beam_size: int,
                                return_future: bool = False) -> Any:
        """The same for a batch: a list for each sample.

        batch_grid_scores: for each dimension an array of shape [samples, coordinates].
        """
        if return_future:
            return submit(self.batch_find_best_experts, batch_grid_scores, beam_size)
        from .expert import RemoteExpert
        made: Dict[str, RemoteExpert] = {}
        return [[made.setdefault(e.uid, RemoteExpert(e)) for e, _ in row]
                for row in self._search(batch_grid_scores, beam_size)]

    def get_active_successors(self, prefixes: Sequence[str], grid_size: Any = None,
                              num_workers: Any = None, return_future: bool = False) -> Any:
        """For each prefix the coordinates under which an expert is served, and who serves the
        first one found there: a dict of dicts."""
        if return_future:
            return submit(self.get_active_successors, prefixes, grid_size)
        successors: Dict[str, Dict[int, List[Provider]]] = {}
        for prefix in prefixes:
            found: Dict[int, List[Provider]] = {}
            experts = self.client.find_prefix(prefix, self.timeout)
            for uid in sorted(experts):
                coordinate = int(uid[len(prefix):].split(".")[0])
                if grid_size is None or coordinate < grid_size:
                    found.setdefault(coordinate, experts[uid])
            successors[prefix] = found
        return successors
