"""A digest of values: the same in every process, different as soon as one bit is."""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import types
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from farfield.errors import InvalidValueError

__all__ = ["fingerprint"]

_VERSION = b"farfield-fingerprint/1"


def fingerprint(*parts: object) -> str:
    """SHA-256 of values: what a result depends on, as one text.

    Tensors and arrays enter with shape, dtype and every bit of every entry, but without their device; numbers, texts,
    bytes, None, dtypes, enumerations, tuples, lists, sets and dicts by value (dicts and sets in any order); frozen
    dataclasses by their type's name and their fields; classes, functions of a module and ``functools.partial`` of
    them by name, so a change in a function's *code* is not seen. One pass over the entries, without a copy where they
    are contiguous in main memory.

    Returns
    -------
    str
        64 hexadecimal digits.

    Raises
    ------
    InvalidValueError
        For a value without a stable content: a mutable object, a lambda, an open file.

    Examples
    --------
    >>> x = torch.arange(3.0)
    >>> fingerprint("ntk", x, 0.5) == fingerprint("ntk", x.clone(), 0.5)
    True
    >>> fingerprint("ntk", x, 0.5) == fingerprint("ntk", x.double(), 0.5)
    False
    """
    digest = hashlib.sha256(_VERSION)
    _feed(digest, parts)
    return digest.hexdigest()


def _put(digest: Any, kind: str, content: bytes | memoryview) -> None:
    # Kind and length first: no two different sequences of values write the same bytes.
    digest.update(f"{kind} {len(content)} ".encode())
    digest.update(content)


def _feed(digest: Any, value: Any) -> None:
    put = functools.partial(_put, digest)
    match value:
        case enum.Enum():
            put("enum", f"{_name(type(value))} {value.name}".encode())
        case None | bool() | torch.dtype() | torch.device():
            put("plain", str(value).encode())
        case np.generic() | np.ndarray():
            _feed_array(digest, np.asarray(value))
        case int():
            put("int", str(int(value)).encode())
        case float():
            put("float", float(value).hex().encode())
        case complex():
            put("complex", f"{value.real.hex()} {value.imag.hex()}".encode())
        case str():
            put("text", value.encode())
        case bytes():
            put("bytes", value)
        case Tensor():
            _feed_tensor(digest, value)
        case tuple() | list():
            put(_name(type(value)), str(len(value)).encode())
            for item in value:
                _feed(digest, item)
        case set() | frozenset():
            put("set", "".join(sorted(fingerprint(item) for item in value)).encode())
        case dict():
            pairs = sorted((fingerprint(key), item) for key, item in value.items())
            put("dict", "".join(key for key, _ in pairs).encode())
            for _, item in pairs:
                _feed(digest, item)
        case functools.partial():
            put("partial", b"")
            _feed(digest, (value.func, value.args, value.keywords))
        case type() | types.FunctionType() | types.BuiltinFunctionType():
            put("named", _name(value).encode())
        case _ if _is_frozen(value):
            put("dataclass", _name(type(value)).encode())
            for field in dataclasses.fields(value):
                _feed(digest, (field.name, getattr(value, field.name)))
        case _:
            raise _no_content(value)


def _is_frozen(value: Any) -> bool:
    params: Any = getattr(value, "__dataclass_params__", None)
    return params is not None and bool(params.frozen)


def _name(value: Any) -> str:
    if value.__module__ is None or "<" in value.__qualname__:  # <lambda>, <locals>
        raise _no_content(value)
    return f"{value.__module__}.{value.__qualname__}"


def _feed_array(digest: Any, array: NDArray[Any]) -> None:
    if array.dtype.hasobject:
        raise _no_content(array)
    _put(digest, "array", f"{array.dtype.str} {array.shape}".encode())
    _put(digest, "entries", np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _feed_tensor(digest: Any, tensor: Tensor) -> None:
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        raise _no_content(tensor)
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    _put(digest, "tensor", f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    _put(digest, "entries", plain.view(torch.uint8).numpy().data)


def _no_content(value: Any) -> InvalidValueError:
    return InvalidValueError(
        "A fingerprint is made of values that are the same in every process: tensors, arrays, numbers, texts, "
        "containers of those, frozen dataclasses and named functions; got "
        f"{type(value).__qualname__}. Pass what it holds (a state_dict, its settings) or a text that identifies it."
    )
