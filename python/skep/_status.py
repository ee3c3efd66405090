"""The results of calls, by gRPC's names, as exceptions."""

from typing import Dict, Optional, Type


class Error(Exception):
    """What a function of Skep failed with.

    ``status``: the name of the status, such as ``"NOT_FOUND"``. ``retry_after``: seconds after
    which a call refused for want of room may be tried again, or None. ``outcome_unknown``: a
    backward call that may or may not have trained the expert, as its node was lost meanwhile.
    """

    status = "INTERNAL"

    def __init__(self, message: str = "", retry_after: Optional[float] = None,
                 outcome_unknown: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after
        self.outcome_unknown = outcome_unknown

    def __str__(self) -> str:
        return self.message


class Cancelled(Error):
    """The call was cancelled, or its client was closed."""
    status = "CANCELLED"


class InvalidArgument(Error, ValueError):
    """An argument is wrong; the message says which, and what is expected."""
    status = "INVALID_ARGUMENT"


class DeadlineExceeded(Error, TimeoutError):
    """Time was up."""
    status = "DEADLINE_EXCEEDED"


class NotFound(Error, KeyError):
    """Nobody serves it."""
    status = "NOT_FOUND"


class PermissionDenied(Error, PermissionError):
    """The other side, or the system, does not allow it."""
    status = "PERMISSION_DENIED"


class ResourceExhausted(Error):
    """No room: a queue is full, or memory is short. See ``retry_after``."""
    status = "RESOURCE_EXHAUSTED"


class FailedPrecondition(Error, RuntimeError):
    """It cannot be done in this state."""
    status = "FAILED_PRECONDITION"


class Unimplemented(Error, NotImplementedError):
    """The other side does not know the method."""
    status = "UNIMPLEMENTED"


class Internal(Error):
    """A fault of the other side, or of Skep."""
    status = "INTERNAL"


class Unavailable(Error, ConnectionError):
    """Nobody could be reached."""
    status = "UNAVAILABLE"


class DataLoss(Error):
    """Bytes that make no sense, in a file or an answer."""
    status = "DATA_LOSS"


class Unauthenticated(Error, PermissionError):
    """The other side is not who it should be."""
    status = "UNAUTHENTICATED"


BY_NUMBER: Dict[int, Type[Error]] = {
    1: Cancelled, 3: InvalidArgument, 4: DeadlineExceeded, 5: NotFound, 7: PermissionDenied,
    8: ResourceExhausted, 9: FailedPrecondition, 12: Unimplemented, 13: Internal, 14: Unavailable,
    15: DataLoss, 16: Unauthenticated,
}
