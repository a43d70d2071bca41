"""Values on their way to another process: tensors as the bytes they are, which a worker reads in place."""

from __future__ import annotations

import io
import pickle
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from farfield.errors import InvalidValueError

__all__ = ["Packed", "pack", "unpack"]

_ALIGNMENT = 64


@dataclass(frozen=True)
class Packed:
    """A pickle, and beside it the buffers of its tensors and arrays; made by :func:`pack`."""

    content: NDArray[np.uint8]
    buffers: tuple[NDArray[np.uint8], ...]


def pack(value: object, pickler: type[Any] = pickle.Pickler) -> Packed:
    """The value without a copy of its tensors, where they are in main memory.

    Strides and alignment are kept with the entries, since the rounding of a product may depend on them.

    Parameters
    ----------
    value
        Picklable. A tensor may be a leaf that requires a gradient, not one with a history.
    pickler
        ``pickle.Pickler``, or a class derived from it that takes functions by value.

    Examples
    --------
    >>> packed = pack({"x": torch.arange(3.0)})
    >>> len(packed.buffers), unpack(packed, copy=True)
    (1, {'x': tensor([0., 1., 2.])})
    """
    buffers: list[NDArray[np.uint8]] = []

    def keep(buffer: pickle.PickleBuffer) -> None:
        buffers.append(np.frombuffer(buffer.raw(), np.uint8))

    file = io.BytesIO()
    _with_tensors(pickler)(file, protocol=5, buffer_callback=keep).dump(value)
    return Packed(np.frombuffer(file.getbuffer(), np.uint8), tuple(buffers))


def unpack(packed: Packed, *, copy: bool) -> Any:
    """The value; its tensors may be written to only if they are copies."""
    buffers = [_writable(buffer) if copy else buffer for buffer in packed.buffers]
    return pickle.loads(packed.content.data, buffers=buffers)


def _writable(buffer: NDArray[np.uint8]) -> NDArray[np.uint8]:
    # torch's memory, which is aligned as it would be had the task run here
    own: NDArray[np.uint8] = torch.empty(buffer.size, dtype=torch.uint8).numpy()
    own[:] = buffer
    return own


def _with_tensors(base: type[Any]) -> type[Any]:
    """The pickler, with plain tensors in main memory put beside the pickle."""

    class TensorPickler(base):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            if type(value) is Tensor:
                if value.grad_fn is not None:
                    raise InvalidValueError(
                        "A gradient does not pass from one process to another, and a tensor of shape "
                        f"{tuple(value.shape)} on its way there has one. Run under torch.no_grad(), pass "
                        "tensor.detach(), or use engine='local'."
                    )
                if _is_plain(value):
                    return _reduce(value)
            above = getattr(super(), "reducer_override", None)
            return NotImplemented if above is None else above(value)

    return TensorPickler


def _is_plain(tensor: Tensor) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized)
    )


def _reduce(tensor: Tensor) -> tuple[Any, ...]:
    """How to make the tensor again from the part of its storage that it covers."""
    shape, strides, size = tuple(tensor.shape), tensor.stride(), tensor.element_size()
    if tensor.numel() == 0:
        return _empty, (tensor.dtype, shape, strides, tensor.requires_grad)
    first = tensor.storage_offset() * size
    start = first - first % _ALIGNMENT
    last = sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
    covered = torch.empty(0, dtype=torch.uint8).set_(
        tensor.untyped_storage(), start, (first + (last + 1) * size - start,), (1,)
    )
    offset = (first - start) // size
    buffer = pickle.PickleBuffer(covered.numpy().data)
    return _rebuild, (buffer, tensor.dtype, shape, strides, offset, tensor.requires_grad)


def _rebuild(
    buffer: Any,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
    gradient: bool,
) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given .* is not writable", category=UserWarning)
        entries = torch.frombuffer(buffer, dtype=torch.uint8).view(dtype)
    return entries.as_strided(shape, strides, offset).requires_grad_(gradient)


def _empty(dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...], gradient: bool) -> Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype).requires_grad_(gradient)
