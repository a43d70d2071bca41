"""Where a certificate holds: every real input, a box of them, or a half-space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from farfield.certify.intervals import Interval
from farfield.errors import InvalidValueError
from farfield.graph import Program

__all__ = ["domain_boxes", "plain_domain"]


def plain_domain(domain: Any, program: Program) -> dict[str, Any]:
    """A domain as plain data.

    Parameters
    ----------
    domain
        ``None`` for every input; a pair (lower, upper) of numbers or tensors for a box; a mapping as certificates
        hold it.
    program
        Whose real inputs, flattened and joined, the domain speaks of.
    """
    if domain is None:
        return {"kind": "all"}
    if isinstance(domain, Mapping):
        return dict(domain)
    size = sum(_count(spec.shape) for spec in program.inputs if spec.kind == "real")
    try:
        low, high = (torch.as_tensor(side, dtype=torch.float64).reshape(-1) for side in domain)
        low, high = low.expand(size), high.expand(size)
    except (RuntimeError, TypeError, ValueError) as error:
        raise InvalidValueError(
            f"A box is a pair (lower, upper), each one number or {size} numbers, one for every real input entry; "
            f"received {domain!r}. A half-space is {{'kind': 'halfspace', 'normal': [...], 'offset': c}}."
        ) from error
    return {"kind": "box", "lower": low.tolist(), "upper": high.tolist()}


def domain_boxes(domain: Mapping[str, Any], program: Program) -> dict[str, Interval]:
    """The box of every real input; empty where the domain is no box."""
    if domain["kind"] != "box":
        return {}
    boxes, begin = {}, 0
    low = torch.tensor(domain["lower"], dtype=torch.float64)
    high = torch.tensor(domain["upper"], dtype=torch.float64)
    for spec in program.inputs:
        if spec.kind == "real":
            shape = tuple(int(d) for d in spec.shape)
            end = begin + _count(spec.shape)
            boxes[spec.name] = Interval(low[begin:end].reshape(shape), high[begin:end].reshape(shape))
            begin = end
    return boxes


def _count(shape: tuple[Any, ...]) -> int:
    return int(torch.Size([int(d) for d in shape]).numel())
