"""How float32 tensors may travel, by Skep's names and by those of hivemind's CompressionType."""

import enum
from typing import Any

from . import _abi


class CompressionType(enum.Enum):
    """hivemind's names. The formulas are in Skep's docs/protocol.md, "Encodings"."""

    NONE = "none"
    FLOAT16 = "float16"
    MEANSTD_16BIT = "meanstd16"
    QUANTILE_8BIT = "quantile8"
    UNIFORM_8BIT = "uniform8"
    BLOCKWISE_8BIT = "blockwise8"
    BFLOAT16 = "bfloat16"  # Skep's own


_NUMBERS = {None: _abi.SKEP_COMPRESSION_DEFAULT, "none": _abi.SKEP_COMPRESSION_NONE,
            "float16": _abi.SKEP_COMPRESSION_FLOAT16,
            "bfloat16": _abi.SKEP_COMPRESSION_BFLOAT16,
            "meanstd16": _abi.SKEP_COMPRESSION_MEANSTD16,
            "uniform8": _abi.SKEP_COMPRESSION_UNIFORM8,
            "quantile8": _abi.SKEP_COMPRESSION_QUANTILE8,
            "blockwise8": _abi.SKEP_COMPRESSION_BLOCKWISE8}
NAMES = {number: name for name, number in _NUMBERS.items() if name is not None}


def number_of(compression: Any) -> int:
    """The library's number of a name, a CompressionType, or None for the default."""
    if isinstance(compression, CompressionType):
        compression = compression.value
    elif isinstance(compression, str):
        compression = getattr(CompressionType, compression, compression)
        if isinstance(compression, CompressionType):
            compression = compression.value
    if compression not in _NUMBERS:
        raise ValueError("compression %r, expected one of %s or a CompressionType"
                         % (compression, ", ".join(NAMES.values())))
    return _NUMBERS[compression]
