"""Gradient ascent on the sphere through the jet: how to reach growth that random directions miss.

A minimum over many coordinates is positive in one orthant only, so relu(min(x)) grows along a thin cone. Its
gradient vanishes outside, but that of the minimum itself does not: climb the leading coefficient of the last
node along the escape path that still grows, in random combinations of its entries, and look again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from farfield.growth._horizon import chunks
from farfield.growth._jet import Jet
from farfield.growth._leading import lead
from farfield.growth._rays import run_jets
from farfield.growth._search import Search, unit

__all__ = ["climb"]

ROUNDS, STEPS, STARTS = 3, 30, 16


def climb(search: Search, path: Sequence[str]) -> Iterator[Tensor]:
    """Batches of unit directions, each the result of one round of ascent.

    Parameters
    ----------
    search
        What moves and from where.
    path
        Nodes from the input to the output.
    """
    flat = unit(search.normal(STARTS))

    def jets(rows: Tensor, keep: Sequence[str]) -> dict[str, Jet]:
        chunk = chunks(search.program, search.split(rows), search.starts)[0]
        values, _ = run_jets(search.program, chunk, keep=keep)
        return {name: jet for name, jet in values.items() if isinstance(jet, Jet)}

    for _ in range(ROUNDS):
        with torch.no_grad():
            found = jets(flat, path)
        stalled = _last_growing(path, found)
        if stalled is None or stalled == path[-1]:
            return
        power = float(lead(found[stalled]).power.max())
        shape = found[stalled].shape[1:]
        aim = torch.randn(STARTS, *shape, generator=search.generator, dtype=torch.float64)
        if aim.numel() == STARTS:
            aim = torch.ones_like(aim)
            aim[STARTS // 2 :] = -1.0
        rows = flat.clone()
        for step in range(STEPS):
            rows = rows.detach().requires_grad_(True)
            with torch.enable_grad():  # a caller may have switched gradients off
                coefficient = jets(rows, (stalled,))[stalled].at(power)
                gain = (coefficient * aim).flatten(1).sum(1)
            if not gain.requires_grad:
                break
            (gradient,) = torch.autograd.grad(gain.sum(), rows, allow_unused=True)
            if gradient is None or not bool(torch.isfinite(gradient).all()):
                break
            size = 0.5 if step < STEPS // 2 else 0.15
            rows = unit(rows.detach() + size * unit(gradient))
        flat = rows.detach()
        yield flat


def _last_growing(path: Sequence[str], jets: dict[str, Jet]) -> str | None:
    for name in reversed(path):
        jet = jets.get(name)
        if jet is not None and bool((lead(jet).power > 0.0).any()):
            return name
    return None
