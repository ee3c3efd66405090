"""Descriptions of a module's inputs and outputs, by hivemind's names."""

from typing import Any, Optional, Tuple

import torch

from .compression import CompressionType


class BatchTensorDescriptor:
    """Shape and type of a batch of tensors: all dimensions but the first.

    ``BatchTensorDescriptor(512)`` describes float32 tensors of shape [batch, 512]; None or -1 as a
    size is any size, the same for all inputs of a batch.
    """

    def __init__(self, *instance_size: Any, dtype: torch.dtype = torch.float32,
                 requires_grad: bool = False, device: Any = None, layout: Any = torch.strided,
                 pin_memory: bool = False,
                 compression: CompressionType = CompressionType.NONE) -> None:
        if len(instance_size) == 1 and not isinstance(instance_size[0], (int, type(None))):
            instance_size = tuple(instance_size[0])
        if layout is not torch.strided:
            raise NotImplementedError("layout %s, expected torch.strided" % layout)
        self.shape: Tuple[Optional[int], ...] = (None, *(None if n == -1 else n
                                                         for n in instance_size))
        self.dtype = dtype
        self.requires_grad = requires_grad
        self.device = device
        self.layout = layout
        self.pin_memory = pin_memory
        self.compression = compression

    @classmethod
    def from_tensor(cls, tensor: torch.Tensor,
                    compression: CompressionType = CompressionType.NONE
                    ) -> "BatchTensorDescriptor":
        """The descriptor of batches such as a tensor, whose first dimension is the batch."""
        return cls(*tensor.shape[1:], dtype=tensor.dtype, requires_grad=tensor.requires_grad,
                   compression=compression)

    def make_zeros(self, *batch_size: int, **options: Any) -> torch.Tensor:
        """A batch of zeros; sizes that are open are 1."""
        sizes = [1 if n is None else n for n in self.shape[1:]]
        return torch.zeros(*batch_size, *sizes, dtype=self.dtype, **options)

    def __eq__(self, other: object) -> bool:
        return (isinstance(other, BatchTensorDescriptor) and self.shape == other.shape
                and self.dtype == other.dtype)

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))

    def __repr__(self) -> str:
        return "BatchTensorDescriptor(shape=%s, dtype=%s)" % (self.shape, self.dtype)
