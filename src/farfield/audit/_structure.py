"""The key of an architecture, from its configuration and the header of its weights: equal keys, one verdict.

What a verdict about structure depends on is kept: the class, every setting that is no width (numbers of layers, ε,
activations, flags), the names of all tensors, and of every size whether it is 0, 1 or more. A width of 1 is kept
because a norm over one entry is constant, 0 because a layer may then be missing. Which widths of a configuration
are equal is kept too, because code asks for that (a projection where two widths differ, keys shared where heads are
fewer). The widths themselves are left out: that a verdict does not depend on them beyond this is an assumption,
which :func:`farfield.audit.audit_all` tests on rows that it draws.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farfield._regular_file import UnsafeFileError, open_regular
from farfield._weights import CheckpointError
from farfield.audit._sizes import is_width
from farfield.errors import InvalidValueError

__all__ = ["Structure", "kinds_of_sizes", "parse_config", "parse_header", "read_header", "structure_of"]

_LONGEST_HEADER = 100_000_000
"""Bytes, as the format has it."""
_SILENT = frozenset(
    {
        "_name_or_path",
        "name_or_path",
        "transformers_version",
        "torch_dtype",
        "dtype",
        "id2label",
        "label2id",
        "task_specific_params",
        "_commit_hash",
        "license",
    }
)
"""Settings that no operator depends on, in real arithmetic."""
_RULES = 1
"""Of this file: another number, other keys."""


@dataclass(frozen=True, slots=True)
class Structure:
    """One model without its weights.

    Parameters
    ----------
    key
        Of its architecture, 32 hexadecimal digits.
    name
        Its class.
    parameters
        How many numbers its file holds, by the header; None without one.
    """

    key: str
    name: str
    parameters: int | None


def read_header(path: Path) -> str:
    """The header of a safetensors file, as text; nothing behind it is read.

    Raises
    ------
    CheckpointError
        If the file can't be read or is none.
    """
    try:
        with open_regular(path) as file:
            head = file.read(8)
            size = struct.unpack("<Q", head)[0] if len(head) == 8 else _LONGEST_HEADER + 1
            if size > _LONGEST_HEADER:
                raise CheckpointError(
                    f"{str(path)!r} is no safetensors file: its first bytes are no header's size."
                )
            text = file.read(size)
    except UnsafeFileError as error:
        raise CheckpointError(str(error)) from error
    if len(text) != size:
        raise CheckpointError(f"{str(path)!r} ends within its header: {len(text)} of {size} bytes.")
    return text.decode("utf-8", "replace")


def parse_header(text: str) -> dict[str, tuple[int, ...]]:
    """Name → shape of every tensor.

    Raises
    ------
    CheckpointError
        If it is not what a safetensors file has.
    """
    try:
        found = json.loads(text)
        found.pop("__metadata__", None)
        shapes = {name: tuple(fields["shape"]) for name, fields in found.items()}
        for shape in shapes.values():
            _facts(shape)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"Not the header of a safetensors file: {type(error).__name__}: {error}"
        ) from error
    return shapes


def parse_config(text: str) -> dict[str, Any]:
    """The settings of a ``config.json``.

    Raises
    ------
    InvalidValueError
        If it is no JSON object.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(f"config.json is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise InvalidValueError(f"config.json is a JSON object; got {type(found).__name__}.")
    return found


def structure_of(
    config: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]] | None,
    builder: str | None = None,
    inputs: tuple[str, ...] = (),
) -> Structure:
    """The key of an architecture.

    Parameters
    ----------
    config
        Its settings: ``config.json``, or the builder's arguments.
    shapes
        From :func:`parse_header`; None where there is no file.
    builder, inputs
        As a registry has them.

    Examples
    --------
    >>> small, large = ({"model_type": "bert", "hidden_size": n, "num_hidden_layers": 2} for n in (128, 768))
    >>> structure_of(small, None).key == structure_of(large, None).key
    True
    >>> structure_of({**small, "hidden_size": 1}, None).key == structure_of(large, None).key
    False
    """
    equal: dict[int, int] = {}
    settings = _settings(config, equal)
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps([_RULES, builder, list(inputs), settings], sort_keys=True).encode())
    parameters = None
    if shapes is not None:
        known = {name: _facts(shape) for name, shape in shapes.items()}
        parameters = sum(count for _, count in known.values())
        # Names are written as JSON has them, so no name can hold what stands between two.
        digest.update(json.dumps(sorted([name, word] for name, (word, _) in known.items())).encode())
    return Structure(digest.hexdigest(), _name(config, builder), parameters)


def _name(config: Mapping[str, Any], builder: str | None) -> str:
    names = config.get("architectures")
    if builder is None and isinstance(names, list) and names and isinstance(names[0], str):
        return names[0]
    return builder or str(config.get("model_type", "?"))


def kinds_of_sizes(shape: tuple[int, ...]) -> str:
    """Of every size whether it is 0, 1 or more: what a key keeps of a shape."""
    return _facts(tuple(shape))[0]


@functools.lru_cache(maxsize=100_000)
def _facts(shape: tuple[int, ...]) -> tuple[str, int]:
    """Of every size whether it is 0, 1 or more; and how many entries there are."""
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"there is a tensor of the shape {list(shape)}")
    return "".join(str(size) if size < 2 else "n" for size in shape), math.prod(shape)


@functools.lru_cache(maxsize=100_000)
def _role(name: str) -> str:
    if name in _SILENT:
        return "silent"
    if name.endswith(("_token_id", "_token_index")):
        return "id"
    return ("w" if is_width(name) else "") + ("l" if is_width(name, True) else "")


def _settings(value: Mapping[str, Any], equal: dict[int, int]) -> dict[str, Any]:
    """Settings with the widths among them as letters: equal ones the same, 0 and 1 as they are."""
    found: dict[str, Any] = {}
    for name in sorted(value):
        inner, role = value[name], _role(name)
        kind = type(inner)
        if role == "silent":
            if name == "id2label" and kind is dict:
                found["labels"] = _width(len(inner), equal)
        elif kind is dict:
            found[name] = _settings(inner, equal)
        elif kind is int and role == "id":
            found[name] = "id"
        elif kind is int and "w" in role:
            found[name] = _width(inner, equal)
        elif kind is list and "l" in role and inner and all(type(v) is int for v in inner):
            found[name] = [_width(v, equal) for v in inner]
        else:
            found[name] = inner
    return found


def _width(size: int, equal: dict[int, int]) -> Any:
    return size if size < 2 else f"w{equal.setdefault(size, len(equal))}"
