"""What the model gives on the rows it was audited with, and how far it goes ten of their standard deviations away."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from farfield.audit._rays import LARGEST_BATCH, is_batched, numbers_per_sample, takes_long
from farfield.audit._sample import one_sample
from farfield.graph import Program
from farfield.growth import GrowthReport

__all__ = ["DEVIATIONS", "FEWEST", "data_units"]

DEVIATIONS = 10.0
FEWEST = 8
"""Fewer rows than this are an example of what the model takes, not data: they show no spread."""
ROWS, FEW_ROWS = 1024, 16
"""Rows that are evaluated; few of them for a program that takes long."""
DIRECTIONS = 32


def data_units(report: GrowthReport, inputs: Sequence[Tensor]) -> Mapping[str, Any] | None:
    """Outputs on the rows, and with features up to ten standard deviations from their mean; ``None`` without data.

    Evaluations in float64, not a bound. The directions are the witness, if there is one, scaled until the first
    feature is ten deviations from its mean, and 32 random choices of a sign for every feature, all ten deviations
    away; each both ways. A feature that has one value on all rows stays there.

    Parameters
    ----------
    report
        From :func:`farfield.growth.analyze`.
    inputs
        The inputs of the audit, flattened. They are data from eight rows on that are samples and not all equal.

    Returns
    -------
    Mapping or None
        ``rows``, ``norms`` (smallest and largest ‖x‖ of a row), ``output`` (its name), ``on_rows`` and ``far``
        (smallest and largest entry), ``deviations``, ``directions`` (how many were tried); or a ``note`` alone that
        says why there are no numbers.
    """
    program = report.program
    try:
        return _measured(report, program, inputs)
    except Exception as error:  # numbers beside a verdict, which stands without them
        return {"note": f"the model could not be run on the rows: {type(error).__name__}: {str(error)[:200]}"}


def _measured(report: GrowthReport, program: Program, inputs: Sequence[Tensor]) -> Mapping[str, Any] | None:
    real = [k for k, spec in enumerate(program.inputs) if spec.kind == "real"]
    sample = one_sample(program, inputs)
    if sample is None or not real or program.capture == "modules":
        return None
    count = len(inputs[real[0]])
    if (
        count < FEWEST
        or any(t.ndim == 0 or len(t) != count for t in inputs)
        or any(len(t) != 1 for t in sample)
    ):
        return None
    if any(inputs[k].is_complex() for k in real):
        return None
    wide = {k: inputs[k].detach().double() for k in real}
    if not all(bool(torch.isfinite(t).all()) for t in wide.values()):
        return None
    spread = {k: t.std(0) for k, t in wide.items()}
    if not any(bool(d.any()) for d in spread.values()):
        return None
    norms = torch.stack([t.reshape(count, -1).square().sum(-1) for t in wide.values()]).sum(0).sqrt()
    away = _away(report, program, wide, spread)
    work = numbers_per_sample(program, sample)
    few = takes_long(program, work)
    rows = range(min(count, FEW_ROWS if few else ROWS))
    near = [[t[i : i + 1] for t in inputs] for i in rows]
    far = [
        [point[k] if k in point else inputs[k][:1] for k in range(len(inputs))]
        for point in (away[:4] if few else away)
    ]
    together = max(1, LARGEST_BATCH // max(work, 1)) if is_batched(program, sample) else 1
    return {
        "rows": count,
        "norms": [float(norms.min()), float(norms.max())],
        "output": program.outputs[0],
        "on_rows": _range(program, near, together),
        "far": _range(program, far, together),
        "deviations": DEVIATIONS,
        "directions": len(far),
    }


def _away(
    report: GrowthReport, program: Program, rows: Mapping[int, Tensor], spread: Mapping[int, Tensor]
) -> list[dict[int, Tensor]]:
    """Points ten deviations from the mean of the rows, one sample each."""
    source = torch.Generator().manual_seed(1)
    signs = [
        {k: torch.randint(0, 2, d.shape, generator=source).double() * 2 - 1 for k, d in spread.items()}
        for _ in range(DIRECTIONS)
    ]
    steps = [{k: DEVIATIONS * sign[k] * spread[k] for k in spread} for sign in signs]
    witness = report.witness
    if witness is not None:
        along = {
            k: witness.directions[program.inputs[k].name].detach().double().reshape(d.shape)
            if program.inputs[k].name in witness.directions
            else torch.zeros_like(d)
            for k, d in spread.items()
        }
        along = {k: torch.where(spread[k] > 0, u, 0.0) for k, u in along.items()}
        first = max(
            float((u.abs() / spread[k].where(spread[k] > 0, torch.inf)).max()) for k, u in along.items()
        )
        if first > 0:
            steps.insert(0, {k: DEVIATIONS / first * u for k, u in along.items()})
    return [
        {k: (t.mean(0) + side * step[k]).unsqueeze(0) for k, t in rows.items()}
        for step in steps
        for side in (1.0, -1.0)
    ]


def _range(program: Program, points: Sequence[Sequence[Tensor]], together: int) -> list[float]:
    """Smallest and largest entry of the first output over the points."""
    name = program.outputs[0]
    low, high = math.inf, -math.inf
    for begin in range(0, len(points), together):
        some = points[begin : begin + together]
        joined = [torch.cat([point[k] for point in some]) for k in range(len(some[0]))]
        value = program.evaluate(*joined, keep=[name])[name].double()
        low = min(low, float(value.nan_to_num(-math.inf, math.inf, -math.inf).min()))
        high = max(high, float(value.nan_to_num(math.inf, math.inf, -math.inf).max()))
    return [low, high]
