"""Forged certificates: claims that evaluations refute, dressed in honest, altered, borrowed or no proofs.

Nothing here knows how proofs are written: they are plain data, and any number in them may be changed.
"""

from __future__ import annotations

import base64
import copy
import math
import random
import re
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from programs.generator import Source

__all__ = ["false_claims", "other_weights", "unbounded_twins"]

Certificate = dict[str, Any]


def false_claims(
    data: Certificate, low: Tensor, high: Tensor, rng: random.Random, count: int
) -> Iterator[tuple[str, Certificate, int, str, float]]:
    """(what was done, forged certificate, entry, side, claimed value): the claim lies below what was attained."""
    size = len(data["upper"])
    for number in range(count):
        forged = copy.deepcopy(data)
        entry, side = rng.randrange(size), rng.choice(["upper", "lower"])
        attained = float(high[entry] if side == "upper" else low[entry])
        if not math.isfinite(attained):
            continue
        width = max(float(high[entry] - low[entry]), 1e-3 * (1.0 + abs(attained)))
        sign = 1.0 if side == "upper" else -1.0
        claim = attained - sign * width * 10 ** rng.uniform(-4, 0.5)
        _publish(forged, entry, side, claim)
        done = ["claim"]
        kind = number % 5
        if kind == 1:
            for proof in _of(forged, entry, side):
                proof["kind"] = "interval"
            done.append("called an interval proof")
        elif kind == 2:
            forged["proofs"] = [p for p in forged["proofs"] if p not in _of(forged, entry, side)]
            done.append("its proof removed")
        elif kind > 2:
            done += [_change(_of(forged, entry, side), rng) for _ in range(rng.randint(1, 6))]
        yield ", ".join(done), forged, entry, side, claim


def _of(data: Certificate, entry: int, side: str) -> list[Certificate]:
    return [p for p in data["proofs"] if p.get("output") == entry and p.get("side") == side]


def _publish(data: Certificate, entry: int, side: str, claim: float) -> None:
    """State the claim everywhere it stands, and take back what contradicts it."""
    other = "lower" if side == "upper" else "upper"
    data[side][entry] = claim
    sign = 1.0 if side == "upper" else -1.0
    if sign * (claim - float(data[other][entry])) < 0:
        data[other][entry] = claim - sign * (1.0 + abs(claim))
    for proof in _of(data, entry, side):
        proof["bound"] = sign * claim - 1e-8 * (1.0 + abs(claim))
    middle = 0.5 * (float(data["lower"][entry]) + float(data["upper"][entry]))
    for name in ("attained_lower", "attained_upper"):
        data[name][entry] = middle
    data["witnesses"] = {"lower": [], "upper": []}


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in ("output", "side", "kind", "bound"):
                yield from _leaves(inner, (*path, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _leaves(inner, (*path, i))
    else:
        yield path


def _change(proofs: list[Certificate], rng: random.Random) -> str:
    """Alter one number, one text or one packed array somewhere in the proofs."""
    places = list(_leaves(proofs))
    if not places:
        return "nothing to change"
    *way, last = rng.choice(places)
    holder: Any = proofs
    for key in way:
        holder = holder[key]
    value = holder[last]
    if isinstance(value, bool) or value is None:
        holder[last] = not value
    elif isinstance(value, int | float):
        holder[last] = rng.choice(
            [-value, 0.0, value * 10 ** rng.uniform(-2, 2), value - 10 ** rng.uniform(-3, 3), math.nan]
        )
    elif isinstance(value, str):
        holder[last] = _repacked(value, rng)
    return "/".join(str(k) for k in (*way, last))


def _repacked(text: str, rng: random.Random) -> str:
    try:
        raw = zlib.decompress(base64.b64decode(text, validate=True))
        numbers = np.frombuffer(raw, dtype="<f8" if len(raw) % 8 == 0 else "<f4").copy()
    except (ValueError, zlib.error):
        cut = rng.randrange(len(text) + 1)
        return rng.choice([text[:cut], text[:cut] + "." + text[cut:], text[::-1], "."])
    if numbers.size:
        with np.errstate(all="ignore"):
            if rng.random() < 0.5:
                numbers *= 10 ** rng.uniform(-2, 2)
            else:
                numbers[rng.randrange(numbers.size)] = rng.choice([0.0, -1.0, 1e6, math.nan])
    return base64.b64encode(zlib.compress(numbers.tobytes())).decode()


def other_weights(source: Source, rng: random.Random) -> Source:
    """The same program with other weights."""
    seed = rng.randrange(10**6)
    return replace(
        source,
        parts=tuple(re.sub(r"\), (\d+), ", lambda m: f"), {int(m[1]) ^ seed}, ", p) for p in source.parts),
    )


def unbounded_twins(source: Source) -> Iterator[Source]:
    """Programs like this one with something that grows: in front of the output (``size="grows"``: no certificate
    can bound it), or as the gain of a norm (``size="open"``: something behind it may bound it again)."""
    *lines, last = source.lines
    text = last.removeprefix("return ")
    x = f"{source.names[0]}.flatten(1)"
    keep = "" if re.search(r"\.sum\(-1\)$", text) else ", keepdim=True"
    for made in (
        f"({text}) + 1e-3 * {x}.abs().mean(-1{keep})",
        f"({text}) * (1 + {x}.square().sum(-1{keep}))",
        f"torch.where({x}.sum(-1{keep}) > 5.0, {x}.sum(-1{keep}), {text})",
        f"({text}) + F.relu({x}.norm(dim=-1{keep}) - 1e3) // 2.0",
    ):
        yield replace(source, lines=(*lines, f"return {made}"), size="grows")
    gain = f", weight=torch.exp({x}.sum()).expand(W))"
    for i, line in enumerate(lines):
        changed = re.sub(
            r"F\.layer_norm\((\w+), \((\d+),\)\)",
            lambda m: f"F.layer_norm({m[1]}, ({m[2]},){gain.replace('W', m[2])}",
            line,
        )
        if changed != line:
            yield replace(
                source, lines=(*lines[:i], changed, *lines[i + 1 :], last), size="open", single_row=True
            )
