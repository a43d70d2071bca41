"""The numbers of an ONNX file: inside it or in files beside it, mapped and checked against what they declare."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from farfield._regular_file import UnsafeFileError, open_regular
from farfield.graph.onnx.operators.create import TYPES

__all__ = ["TensorReader", "external_files"]

_NARROW = {21: (4, False), 22: (4, True)}
"""uint4 and int4: bits, and whether signed."""
_FIELDS = {
    1: "float_data", 2: "int32_data", 3: "int32_data", 4: "int32_data", 5: "int32_data", 6: "int32_data",
    7: "int64_data", 9: "int32_data", 10: "int32_data", 11: "double_data", 12: "uint64_data", 13: "uint64_data",
    14: "float_data", 15: "double_data", 16: "int32_data", 17: "int32_data", 18: "int32_data", 19: "int32_data",
    20: "int32_data", 21: "int32_data", 22: "int32_data",
}  # fmt: skip
MOST_AXES = 64


@dataclass
class TensorReader:
    """Reads the tensors of one file; every file beside it is mapped once."""

    folder: Path
    data: mmap.mmap | bytes
    _mapped: dict[str, mmap.mmap | bytes] = field(default_factory=dict)

    def tensor(self, proto: Any, payload: tuple[int, int] | None = None) -> Tensor:
        """A ``TensorProto`` as a tensor; ``payload`` says where its raw bytes lie in the file, if they do.

        Raises
        ------
        UnsafeFileError
            If its size and its bytes disagree, or its file is not one beside the model.
        """
        if not isinstance(proto.name, str):  # protobuf hands on the bytes
            raise UnsafeFileError(f"The name {proto.name[:40]!r} is not UTF-8.")
        what = f"The tensor {proto.name[:80]!r}"
        sizes, code = [int(d) for d in proto.dims], int(proto.data_type)
        if len(sizes) > MOST_AXES or any(d < 0 for d in sizes):
            raise UnsafeFileError(f"{what} has a shape that no tensor has.")
        if code not in TYPES and code not in _NARROW:
            raise UnsafeFileError(f"{what} has the element type {code}, which is not read.")
        count = math.prod(sizes)
        source: mmap.mmap | bytes = self.data
        if int(proto.data_location) == 1:
            source, place = self._external(proto, what)
        elif payload is not None:
            place = payload
        elif proto.HasField("raw_data"):
            source, place = proto.raw_data, (0, len(proto.raw_data))
        else:
            return _listed(proto, code, sizes, count, what)
        need = (count * _NARROW[code][0] + 7) // 8 if code in _NARROW else count * TYPES[code].itemsize
        if place[1] != need:
            raise UnsafeFileError(f"{what} declares {need:,} bytes and holds {place[1]:,}.")
        if code in _NARROW:
            return _unpacked(bytes(source[place[0] : place[0] + place[1]]), *_NARROW[code], sizes)
        return _mapped_tensor(source, place[0], count, TYPES[code]).reshape(sizes)

    def _external(self, proto: Any, what: str) -> tuple[mmap.mmap | bytes, tuple[int, int]]:
        entries = {e.key: e.value for e in proto.external_data}
        if not all(isinstance(text, str) for pair in entries.items() for text in pair):
            raise UnsafeFileError(f"{what} lies in a file whose name is not UTF-8.")
        name = entries.get("location", "")
        source = self._file(name, what)
        try:
            offset, length = int(entries.get("offset", 0)), int(entries.get("length", len(source)))
        except ValueError as error:
            raise UnsafeFileError(f"{what} has an offset or a length that is no number.") from error
        if "length" not in entries:
            length = len(source) - offset
        if offset < 0 or length < 0 or offset + length > len(source):
            raise UnsafeFileError(
                f"{what} reaches beyond the end of {name!r}, which has {len(source):,} bytes."
            )
        return source, (offset, length)

    def _file(self, name: str, what: str) -> mmap.mmap | bytes:
        if name not in self._mapped:
            self._mapped[name] = _open_beside(self.folder, name, what)
        return self._mapped[name]


def _open_beside(folder: Path, name: str, what: str) -> mmap.mmap | bytes:
    """A file in the model's folder or below it, mapped; anything that leads elsewhere is refused."""
    parts = PurePosixPath(name.replace("\\", "/"))
    if (
        not name
        or "\0" in name
        or parts.is_absolute()
        or Path(name).is_absolute()
        or ".." in parts.parts
        or ":" in name
    ):
        raise UnsafeFileError(f"{what} lies in {name[:80]!r}; only files beside the model are read.")
    place = folder
    for part in parts.parts:
        place = place / part
        if place.is_symlink():
            raise UnsafeFileError(f"{what} lies in {name[:80]!r}, which is or goes through a link.")
    with open_regular(place) as file:
        size = os.fstat(file.fileno()).st_size
        return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) if size else b""


def external_files(protos: Sequence[Any]) -> list[str]:
    """Names of the files that tensors lie in, each once."""
    found = {
        e.value: None
        for p in protos
        if int(p.data_location) == 1
        for e in p.external_data
        if e.key == "location"
    }
    return list(found)


def _mapped_tensor(source: mmap.mmap | bytes, start: int, count: int, dtype: torch.dtype) -> Tensor:
    if count == 0:
        return torch.empty(0, dtype=dtype)
    if isinstance(source, bytes) or start % dtype.itemsize:
        # Copied where it doesn't lie on a boundary of its type, as most tensors inside a protobuf don't.
        with memoryview(source) as whole:
            piece = bytearray(whole[start : start + count * dtype.itemsize])
        _release(source, start, len(piece))
        return torch.frombuffer(piece, dtype=dtype, count=count)
    return torch.frombuffer(source, dtype=dtype, count=count, offset=start)


def _release(source: mmap.mmap | bytes, start: int, length: int) -> None:
    """Give back the pages of a stretch that was copied; nothing has been written into them."""
    if isinstance(source, mmap.mmap) and hasattr(source, "madvise") and hasattr(mmap, "MADV_DONTNEED"):
        first = start - start % mmap.PAGESIZE
        source.madvise(mmap.MADV_DONTNEED, first, start + length - first)


def _unpacked(data: bytes, bits: int, signed: bool, sizes: list[int]) -> Tensor:
    """Two numbers a byte, the lower half first."""
    flat = np.frombuffer(data, dtype=np.uint8)
    both = np.stack([flat & 0xF, flat >> 4], -1).reshape(-1)[: math.prod(sizes)].astype(np.int8)
    if signed:
        both = np.where(both > 7, both - 16, both).astype(np.int8)
    return torch.from_numpy(both if signed else both.astype(np.uint8)).reshape(sizes)


def _listed(proto: Any, code: int, sizes: list[int], count: int, what: str) -> Tensor:
    """Entries written one by one in the field of their type."""
    values = getattr(proto, _FIELDS[code])
    if code in _NARROW:
        return _unpacked(bytes(v & 0xFF for v in values), *_NARROW[code], sizes)
    dtype = TYPES[code]
    if len(values) != count * (2 if dtype.is_complex else 1):
        raise UnsafeFileError(f"{what} declares {count:,} entries and holds {len(values):,}.")
    if dtype.is_complex:
        pairs = np.array(values, dtype=np.float64).reshape(-1, 2)
        return torch.from_numpy(pairs[:, 0] + 1j * pairs[:, 1]).to(dtype).reshape(sizes)
    if code in (10, 16):
        bits = torch.from_numpy(np.array(values, dtype=np.int64).astype(np.uint16).view(np.int16))
        return bits.view(dtype).reshape(sizes)
    if code in (17, 18, 19, 20):
        return torch.from_numpy(np.array(values, dtype=np.int64).astype(np.uint8)).view(dtype).reshape(sizes)
    kind = np.float64 if dtype.is_floating_point else np.uint64 if code in (12, 13) else np.int64
    flat = np.array(values, dtype=kind)
    if code == 13:
        return torch.from_numpy(flat.view(np.int64)).view(torch.uint64).reshape(sizes)
    return torch.from_numpy(flat.astype(np.int64) if kind is np.uint64 else flat).to(dtype).reshape(sizes)
