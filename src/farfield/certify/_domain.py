"""Where a certificate holds: every real input, a box, a ball, an ellipsoid along the axes, or a half-space."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from farfield.certify.intervals import Interval
from farfield.errors import InvalidValueError, UnknownNameError
from farfield.graph import Program, over_ellipsoid, real_size

__all__ = [
    "KINDS",
    "around",
    "bounding_boxes",
    "box_around",
    "contains",
    "domain_boxes",
    "domain_words",
    "ellipsoid_of",
    "plain_domain",
    "restricted",
]

KINDS: Mapping[str, tuple[str, ...]] = {
    "all": (),
    "box": ("lower", "upper"),
    "ball": ("center", "radius"),
    "ellipsoid": ("center", "axes"),
    "halfspace": ("normal", "offset"),
}
"""What a domain of each kind names, over the real inputs flattened and joined."""
LARGEST = 1e140
"""Of a domain's finite numbers: norms square what is made of them, and float64 ends at 1.8e308."""
_WORDS = {
    "all": "every real input",
    "box": "every input of a box",
    "ball": "every input of a ball",
    "ellipsoid": "every input of an ellipsoid",
    "halfspace": "every input of a half-space",
}


def plain_domain(domain: Any, program: Program) -> dict[str, Any]:
    """A domain as plain data.

    Parameters
    ----------
    domain
        ``None`` for every input; a pair (lower, upper) of numbers or tensors for a box; a mapping as certificates
        hold it, in which a number may stand for a vector of equal entries.
    program
        Whose real inputs, flattened and joined, the domain speaks of.
    """
    size = real_size(program)
    if domain is None:
        return {"kind": "all"}
    if not isinstance(domain, Mapping):
        try:
            lower, upper = domain
        except (TypeError, ValueError) as error:
            raise InvalidValueError(
                f"A domain is a pair (lower, upper) for a box, or a dictionary such as "
                f'{{"kind": "ball", "center": 0.0, "radius": 2.0}}; received {domain!r}.'
            ) from error
        domain = {"kind": "box", "lower": lower, "upper": upper}
    kind = str(domain.get("kind"))
    if kind not in KINDS:
        raise UnknownNameError("kind of domain", kind, KINDS)
    missing = [name for name in KINDS[kind] if name not in domain]
    if missing:
        raise InvalidValueError(f"A domain of kind {kind!r} needs {' and '.join(missing)}.")
    made: dict[str, Any] = {"kind": kind}
    for name in KINDS[kind]:
        single = name in ("radius", "offset")
        made[name] = _number(domain[name], name) if single else _vector(domain[name], size, name).tolist()
    _check(made)
    return made


def around(
    rows: Any, deviations: float = 5.0, *, shape: Literal["box", "ellipsoid"] = "box"
) -> dict[str, Any]:
    r"""The inputs within so many standard deviations of some rows, as a domain for ``certify``.

    Parameters
    ----------
    rows
        (rows, …): what is usual, a tensor or an array. Every entry of a row has its own mean and deviation.
    deviations
        k: how far.
    shape
        ``"box"`` for |x_i − mean_i| ≤ k·deviation_i; ``"ellipsoid"`` for Σ ((x_i − mean_i)/deviation_i)² ≤ n k², the
        same in the root of the mean square over the n entries: smaller, and its corners are cut off.

    Returns
    -------
    dict
        Plain data: ``{"kind": "box", …}`` or ``{"kind": "ellipsoid", …}``.

    Examples
    --------
    >>> around([[0.0, 1.0], [2.0, 1.0]], 2.0)
    {'kind': 'box', 'lower': [-1.0, 1.0], 'upper': [3.0, 1.0]}
    """
    table = torch.as_tensor(rows, dtype=torch.float64)
    if table.ndim < 1 or not len(table) or not bool(torch.isfinite(table).all()) or not deviations >= 0:
        raise InvalidValueError(
            "around takes at least one row, finite numbers, and a number of deviations that is not negative."
        )
    table = table.reshape(len(table), -1)
    mean, spread = table.mean(0), table.std(0, correction=0)
    if shape == "box":
        lower, upper = mean - deviations * spread, mean + deviations * spread
        return {"kind": "box", "lower": lower.tolist(), "upper": upper.tolist()}
    if shape != "ellipsoid":
        raise UnknownNameError("shape of a region", shape, ("box", "ellipsoid"))
    axes = deviations * spread * table.shape[1] ** 0.5
    return {"kind": "ellipsoid", "center": mean.tolist(), "axes": axes.tolist()}


def _check(domain: Mapping[str, Any]) -> None:
    numbers = [v for name in KINDS[domain["kind"]] for v in np.ravel(domain[name])]
    largest = max((abs(v) for v in numbers if math.isfinite(v)), default=0.0)
    if largest > LARGEST:
        raise InvalidValueError(
            f"The numbers of a domain are at most {LARGEST:g} in size, because float64 holds no squares of much "
            f"larger ones; received {largest:g}. Leave out domain= for bounds over every input."
        )
    if domain["kind"] == "box" and not all(
        low <= high for low, high in zip(domain["lower"], domain["upper"], strict=True)
    ):
        raise InvalidValueError("Every lower end of a box is at most its upper end.")
    if domain["kind"] in ("ball", "ellipsoid"):
        lengths = [domain["radius"]] if domain["kind"] == "ball" else domain["axes"]
        if not all(0 <= length < float("inf") for length in lengths):
            raise InvalidValueError(
                "The radius of a ball and the axes of an ellipsoid are finite and not negative."
            )


def _number(value: Any, name: str) -> float:
    try:
        made = float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidValueError(f"A domain's {name} is one number; received {value!r}.") from error
    if not made == made or abs(made) == float("inf"):
        raise InvalidValueError(f"A domain's {name} is a finite number; received {made}.")
    return made


def _vector(value: Any, size: int, name: str) -> Tensor:
    try:
        flat = torch.as_tensor(value, dtype=torch.float64).reshape(-1)
        made = flat.expand(size) if flat.numel() == 1 else flat
    except (RuntimeError, TypeError, ValueError) as error:
        raise InvalidValueError(f"A domain's {name} is made of numbers; received {value!r}.") from error
    if made.numel() != size or bool(torch.isnan(made).any()):
        raise InvalidValueError(
            f"A domain's {name} is one number, or {size} numbers: one for each real input entry; received "
            f"{made.numel()}{' with NaN among them' if made.numel() == size else ''}."
        )
    return made


def ellipsoid_of(domain: Mapping[str, Any]) -> tuple[Tensor, Tensor] | None:
    """(center, axes) of a ball or an ellipsoid; ``None`` for the other kinds."""
    if domain["kind"] not in ("ball", "ellipsoid"):
        return None
    center = torch.tensor(domain["center"], dtype=torch.float64).reshape(-1)
    axes = domain["axes"] if domain["kind"] == "ellipsoid" else [domain["radius"]] * center.numel()
    return center, torch.tensor(axes, dtype=torch.float64).reshape(-1)


def restricted(program: Program, domain: Mapping[str, Any]) -> Program:
    """A program whose values over every input are those of this one over a ball or an ellipsoid.

    The program itself for the other kinds: a box's ends go along as they are (:func:`domain_boxes`), and a half-space
    is used in homogeneous coordinates.
    """
    ellipsoid = ellipsoid_of(domain)
    return program if ellipsoid is None else over_ellipsoid(program, *ellipsoid)


def domain_boxes(domain: Mapping[str, Any], program: Program) -> dict[str, Interval]:
    """The box of every real input; empty where the domain is no box."""
    if domain["kind"] != "box":
        return {}
    boxes, begin = {}, 0
    low = torch.tensor(domain["lower"], dtype=torch.float64)
    high = torch.tensor(domain["upper"], dtype=torch.float64)
    for spec in program.inputs:
        if spec.kind == "real":
            shape = torch.Size(int(d) for d in spec.shape)
            end = begin + shape.numel()
            boxes[spec.name] = Interval(low[begin:end].reshape(shape), high[begin:end].reshape(shape))
            begin = end
    return boxes


def box_around(domain: Mapping[str, Any]) -> Mapping[str, Any]:
    """The box around a ball or an ellipsoid, rounded outwards; other domains as they are."""
    ellipsoid = ellipsoid_of(domain)
    if ellipsoid is None:
        return domain
    center, axes = ellipsoid
    far = torch.full_like(center, float("inf"))
    lower, upper = torch.nextafter(center - axes, -far), torch.nextafter(center + axes, far)
    return {"kind": "box", "lower": lower.tolist(), "upper": upper.tolist()}


def bounding_boxes(domain: Mapping[str, Any], program: Program) -> dict[str, Interval]:
    """A box around a bounded domain, for every real input; empty for the others."""
    boxes = domain_boxes(box_around(domain), program)
    return boxes if all(box.bounded for box in boxes.values()) else {}


def contains(domain: Mapping[str, Any], point: Tensor) -> bool:
    """Whether a point lies in a ball or an ellipsoid, computed in float64; other kinds have their own tests."""
    ellipsoid = ellipsoid_of(domain)
    assert ellipsoid is not None
    center, axes = ellipsoid
    away = (point - center).abs()
    if bool((away[axes == 0] > 0).any()):
        return False
    share: Tensor = torch.linalg.vector_norm(away[axes > 0] / axes[axes > 0])
    return bool(share <= 1.0)


def domain_words(domain: Mapping[str, Any]) -> str:
    """Which inputs, for a sentence."""
    return _WORDS[domain["kind"]]
