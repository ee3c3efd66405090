"""libskep: found, loaded, and called without stopping Ctrl-C."""

import ctypes
import os
import queue
import threading
from typing import Any, Callable, List, Optional

from . import _abi
from ._status import BY_NUMBER, Error, FailedPrecondition

ABI = _abi.SKEP_ABI
NAME = "libskep.so.0"
SLICE_MS = 50  # how long the main thread waits at once, so that Ctrl-C gets through

_NO_LOG = _abi.FUNCTIONS["skep_log_set"][1][1]()  # NULL: standard error

_lock = threading.Lock()
_library: Optional[ctypes.CDLL] = None
_forked = False


def _mark_forked() -> None:
    global _forked
    _forked = True


os.register_at_fork(after_in_child=lambda: _mark_forked() if _library is not None else None)


def is_forked() -> bool:
    """Whether this process is a child forked after the library was loaded."""
    return _forked


def check_process() -> None:
    """Refuses in a forked child, where the threads behind every handle are missing."""
    if _forked:
        raise FailedPrecondition(
            "skep was used before this process was forked, and its threads did not come along: "
            "use it first in the child, or start workers by \"spawn\" "
            "(DataLoader(multiprocessing_context=\"spawn\"))")


def _candidates() -> List[str]:
    given = os.environ.get("SKEP_LIBRARY")
    if given:
        return [given]
    return [os.path.join(os.path.dirname(os.path.abspath(__file__)), NAME), NAME]


def _load() -> ctypes.CDLL:
    failures = []
    for path in _candidates():
        if os.sep in path and not os.path.exists(path):
            failures.append("%s: no such file" % path)
            continue
        try:
            library = ctypes.CDLL(path)
        except OSError as e:
            failures.append(str(e))
            continue
        if not hasattr(library, "skep_abi"):
            raise ImportError("%s: not a libskep with a binary interface number, expected %d"
                              % (path, ABI))
        library.skep_abi.restype = ctypes.c_uint
        if library.skep_abi() != ABI:
            raise ImportError("%s: binary interface %d, expected %d: install the skep package of "
                              "the same version as the library" % (path, library.skep_abi(), ABI))
        for name, (result, arguments) in _abi.FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        return library
    raise ImportError("cannot load %s: %s. Install Skep, or name the library in SKEP_LIBRARY"
                      % (NAME, "; ".join(failures)))


def library() -> Any:
    """The library, loaded at the first call."""
    global _library
    if _library is None:
        with _lock:
            if _library is None:
                loaded = _load()
                loaded.skep_log_set(_abi.SKEP_LOG_WARNING, _NO_LOG, None)
                _library = loaded
    check_process()
    return _library


def version() -> str:
    """The version of the library, such as ``"0.1.0"``."""
    text: bytes = library().skep_version()
    return text.decode()


LOG_LEVELS = {"error": _abi.SKEP_LOG_ERROR, "warning": _abi.SKEP_LOG_WARNING,
              "info": _abi.SKEP_LOG_INFO, "debug": _abi.SKEP_LOG_DEBUG}


def set_log_level(level: str) -> None:
    """Sets the minimum severity that the library writes to standard error: ``"error"``,
    ``"warning"`` (the default here), ``"info"`` or ``"debug"``."""
    if level not in LOG_LEVELS:
        raise ValueError("log level %r, expected one of %s" % (level, ", ".join(LOG_LEVELS)))
    library().skep_log_set(LOG_LEVELS[level], _NO_LOG, None)


def exception(status: int, error: Any = None) -> Error:
    """The exception of a status."""
    kind = BY_NUMBER.get(status, Error)
    if error is None or error.status != status:
        text: bytes = library().skep_status_text(status)
        return kind(text.decode())
    return kind(error.message.decode(errors="replace"),
                error.retry_after_ms / 1000 if error.retry_after_ms else None,
                bool(error.outcome_unknown))


def check(status: int, error: Any = None) -> None:
    """Raises unless the status is OK."""
    if status != 0:
        raise exception(status, error)


class _Job:
    """One function that blocks in C, and what came of it."""

    def __init__(self, function: Callable[[], Any],
                 dispose: Optional[Callable[[Any], None]]) -> None:
        self.function, self.dispose = function, dispose
        self.value: Any = None
        self.failure: Optional[BaseException] = None
        self.ended = threading.Lock()  # held until it has ended
        self.ended.acquire()
        self.handover = threading.Lock()  # guards the two below
        self.is_done = self.is_abandoned = False

    def work(self) -> None:
        try:
            self.value = self.function()
        except BaseException as e:  # handed to the waiting thread
            self.failure = e
        with self.handover:
            self.is_done = True
            if self.is_abandoned:
                self._drop()
        self.ended.release()

    def abandon(self) -> None:
        """Nobody waits any more: the result goes to `dispose`."""
        with self.handover:
            self.is_abandoned = True
            if self.is_done:
                self._drop()

    def _drop(self) -> None:
        if self.failure is None and self.dispose is not None:
            self.dispose(self.value)
        self.value = None


class _Worker:
    """A thread that works on one job after the other, for the main thread."""

    def __init__(self) -> None:
        self.jobs: "queue.SimpleQueue[_Job]" = queue.SimpleQueue()
        threading.Thread(target=self._main, name="skep-wait", daemon=True).start()

    def _main(self) -> None:
        while True:
            self.jobs.get().work()


_idle_workers: List[_Worker] = []  # of the main thread alone


def run(function: Callable[[], Any], dispose: Optional[Callable[[Any], None]] = None) -> Any:
    """Runs a function that blocks in C, so that Ctrl-C ends the wait for it.

    In the main thread, which alone receives signals, a worker thread runs the function. If the wait
    is interrupted, the function goes on, `dispose` gets its result, and the worker is not used
    again.
    """
    if threading.current_thread() is not threading.main_thread():
        return function()
    worker = _idle_workers.pop() if _idle_workers else _Worker()
    job = _Job(function, dispose)
    worker.jobs.put(job)
    try:
        while not job.ended.acquire(timeout=SLICE_MS / 1000):
            pass
    except BaseException:
        job.abandon()
        raise
    _idle_workers.append(worker)
    if job.failure is not None:
        raise job.failure
    return job.value


def milliseconds(seconds: Optional[float], name: str = "timeout") -> int:
    """Seconds as the library counts them; None is 0, its default."""
    if seconds is None:
        return 0
    if not 0 < seconds <= 4000000:
        raise ValueError("%s: %r seconds, expected more than 0 and at most 4000000"
                         % (name, seconds))
    return max(1, int(seconds * 1000))


def text_or_none(value: Any) -> Optional[bytes]:
    """A text or path as the library takes it."""
    return None if value is None else os.fsencode(value)
