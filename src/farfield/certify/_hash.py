"""Which model a certificate speaks of: a digest of everything its value depends on, and of nothing else."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from farfield.graph import Program, SymbolicSize

__all__ = ["model_hash"]

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_VERSION = b"farfield-program/1"


def model_hash(program: Program) -> str:
    """SHA-256 of a program: inputs, operations with their attributes and shapes, and every bit of every constant.

    Nodes are visited backwards from the outputs and numbered as they are met, so neither names, module paths, source
    lines and devices enter nor nodes that no output uses: the same model gives the same digest in every process and
    capture with the same example shapes. One unit in the last place of one weight gives another.

    Constants that the capture folded enter as folded, so a model with such constants (a norm over weights, say) has
    the same digest only where torch computes them alike.

    Parameters
    ----------
    program
        From :func:`farfield.graph.capture`.

    Returns
    -------
    str
        64 hexadecimal digits.

    Examples
    --------
    >>> from torch import nn
    >>> from farfield.graph import capture
    >>> model = nn.Linear(2, 1)
    >>> before = model_hash(capture(model, torch.zeros(1, 2)))
    >>> before == model_hash(capture(model, torch.zeros(1, 2)))
    True
    >>> with torch.no_grad():
    ...     _ = model.bias.copy_(torch.nextafter(model.bias, torch.tensor([9.0])))
    >>> before == model_hash(capture(model, torch.zeros(1, 2)))
    False
    """
    digest = hashlib.sha256(_VERSION)
    symbols: dict[str, str] = {}
    places: dict[str, int] = {}

    def put(value: Any) -> None:
        text = _canonical(value, symbols).encode()
        digest.update(len(text).to_bytes(8, "little") + text)

    for spec in program.inputs:
        places[spec.name] = len(places)
        put(("input", spec.shape, spec.dtype, spec.kind))
    for name in _order(program):
        node = program.node(name)
        if name in places:
            continue
        places[name] = len(places)
        if node.role == "constant":
            tensor = program.constants[name]
            put(("constant", tuple(tensor.shape), tensor.dtype))
            digest.update(_bytes(tensor))
            continue
        operands = tuple(None if used is None else places[used] for used in node.inputs)
        what = f"unknown {node.target}" if node.op == "unknown" else node.op
        put((node.role, what, operands, node.attributes, node.shape, node.dtype))
    put(tuple(places[name] for name in program.outputs))
    return digest.hexdigest()


def _order(program: Program) -> list[str]:
    """Names of the nodes the outputs depend on, operands before their users, whatever order the program lists."""
    order: list[str] = []
    seen: set[str] = set()
    stack = [(name, False) for name in reversed(program.outputs)]
    while stack:
        name, ready = stack.pop()
        if ready:
            order.append(name)
        elif name not in seen:
            seen.add(name)
            stack.append((name, True))
            stack += [(used, False) for used in reversed(program.node(name).operands) if used not in seen]
    return order


def _canonical(value: Any, symbols: dict[str, str]) -> str:
    """One text per value: floats in full, symbolic sizes renamed in the order they are met."""
    if isinstance(value, SymbolicSize):
        names = "|".join(sorted(map(re.escape, value.symbols), key=len, reverse=True))
        renamed = re.sub(
            rf"\b(?:{names})\b", lambda m: symbols.setdefault(m[0], f"n{len(symbols)}"), str(value)
        )
        return f"size:{renamed}"
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, float):
        return f"float:{value.hex()}"
    if isinstance(value, complex):
        return f"complex:{value.real.hex()},{value.imag.hex()}"
    if isinstance(value, int):
        return f"int:{value}"
    if isinstance(value, str):
        return f"text:{value!r}"
    if isinstance(value, Mapping):
        items = sorted((str(k), _canonical(v, symbols)) for k, v in value.items())
        return f"{{{','.join(f'{k!r}={v}' for k, v in items)}}}"
    if isinstance(value, tuple | list):
        return f"({','.join(_canonical(v, symbols) for v in value)})"
    if isinstance(value, torch.device):
        return "device"
    if isinstance(value, Tensor):
        content = hashlib.sha256(_bytes(value)).hexdigest()
        return f"tensor:{tuple(value.shape)}:{value.dtype}:{content}"
    return f"{type(value).__qualname__}:{_ADDRESS.sub('', str(value))}"


def _bytes(tensor: Tensor) -> memoryview:
    """The entries in row-major order, bit by bit."""
    plain = tensor.detach().cpu()
    if plain.layout != torch.strided:
        plain = plain.to_dense()
    if plain.is_complex():
        plain = torch.view_as_real(plain.resolve_conj())
    flat = plain.resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data
