"""The frame of an ONNX file: where its large tensors lie, read without loading them.

An ONNX file is a protobuf message. Here only its frame is walked: the model, its graph, the graph's initializers. The
bytes of large tensors stay in the file and are mapped; what is left, a few hundred bytes a node, goes to ``onnx`` to
be parsed. So the size of a file is bounded by the disk, not by protobuf's limit of 2 GB, and weights cost memory
only as they are used.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass

from farfield._regular_file import UnsafeFileError

__all__ = ["Field", "Frame", "fields", "length_delimited", "read_frame", "varint"]

GRAPH, INITIALIZER, RAW_DATA = 7, 5, 9
"""Field numbers: ModelProto.graph, GraphProto.initializer, TensorProto.raw_data."""
SMALL = 1024
"""Tensors of fewer bytes stay in the message."""
LONGEST = 1 << 30
"""Bytes of the message without its large tensors."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message: its number and wire type, where it begins, where its content lies."""

    number: int
    kind: int
    begin: int
    start: int
    end: int


@dataclass(frozen=True)
class Frame:
    """A message without its large tensors, and (offset, length) of each of them by the initializer's position."""

    message: bytes
    payloads: dict[int, tuple[int, int]]


def varint(value: int) -> bytes:
    """An unsigned number as protobuf writes it."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def length_delimited(number: int, content: bytes) -> bytes:
    """A field that holds bytes, with its number and length."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def _number(data: mmap.mmap | bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= end or shift > 63:
            raise UnsafeFileError("The file ends inside a number, or is not an ONNX file.")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def fields(data: mmap.mmap | bytes, start: int, end: int) -> Iterator[Field]:
    """The fields of the message in ``data[start:end]``, one after the other."""
    at = start
    while at < end:
        begin = at
        tag, at = _number(data, at, end)
        kind = tag & 7
        if kind == 0:
            content = at
            _, at = _number(data, at, end)
        elif kind == 2:
            length, content = _number(data, at, end)
            at = content + length
        elif kind in (1, 5):
            content = at
            at += 8 if kind == 1 else 4
        else:
            raise UnsafeFileError(f"The file has a field of wire type {kind}, which ONNX does not use.")
        if at > end or tag >> 3 == 0:
            raise UnsafeFileError(
                "A field reaches beyond the message that holds it: the file is cut off or damaged."
            )
        yield Field(tag >> 3, kind, begin, content, at)


def read_frame(data: mmap.mmap | bytes) -> Frame:
    """The model's message without the raw bytes of the graph's large initializers."""
    payloads: dict[int, tuple[int, int]] = {}
    parts: list[bytes] = []
    graphs = 0
    for field in fields(data, 0, len(data)):
        if field.number == GRAPH and field.kind == 2:
            graphs += 1
            parts.append(length_delimited(GRAPH, _graph(data, field, payloads)))
        else:
            parts.append(bytes(data[field.begin : field.end]))
        if sum(map(len, parts[-1:])) > LONGEST:
            raise UnsafeFileError(f"The graph without its weights has more than {LONGEST:,} bytes.")
    if graphs != 1:
        raise UnsafeFileError(f"An ONNX file holds one graph; this one holds {graphs}.")
    return Frame(b"".join(parts), payloads)


def _graph(data: mmap.mmap | bytes, graph: Field, payloads: dict[int, tuple[int, int]]) -> bytes:
    parts: list[bytes] = []
    count = total = 0
    for field in fields(data, graph.start, graph.end):
        if field.number == INITIALIZER and field.kind == 2:
            parts.append(length_delimited(INITIALIZER, _tensor(data, field, count, payloads)))
            count += 1
        else:
            parts.append(bytes(data[field.begin : field.end]))
        total += len(parts[-1])
        if total > LONGEST:
            raise UnsafeFileError(f"The graph without its weights has more than {LONGEST:,} bytes.")
    return b"".join(parts)


def _tensor(
    data: mmap.mmap | bytes, tensor: Field, position: int, payloads: dict[int, tuple[int, int]]
) -> bytes:
    parts: list[bytes] = []
    for field in fields(data, tensor.start, tensor.end):
        if field.number == RAW_DATA and field.kind == 2 and field.end - field.start >= SMALL:
            if position in payloads:
                raise UnsafeFileError(f"Initializer {position} holds its bytes twice.")
            payloads[position] = (field.start, field.end - field.start)
        else:
            parts.append(bytes(data[field.begin : field.end]))
    return b"".join(parts)
