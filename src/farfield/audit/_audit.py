"""The audit: capture, analyse, run every rule, evaluate along a few rays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from farfield._provenance import provenance
from farfield.audit._context import Context, one_row
from farfield.audit._result import Audit
from farfield.audit.rules import run_rules
from farfield.graph import OpaqueNodeError, Program, capture
from farfield.growth import GrowthReport, analyse

__all__ = ["audit"]


def audit(
    model: nn.Module | ExportedProgram | Program | str | Path,
    example_inputs: Any = (),
    *,
    generator: torch.Generator | None = None,
    name: str | None = None,
    rays: int = 6,
    codes: Sequence[str] | None = None,
) -> Audit:
    """Is this model bounded on all of Rⁿ, and if not, where does it escape?

    One pass over the exported graph, linear in its size; the model is not changed. A verdict of BOUNDED is a proof in
    real arithmetic, UNBOUNDED comes with a direction and a slope confirmed by evaluation, everything else is UNKNOWN
    with the node and the reason.

    Parameters
    ----------
    model
        A module, an exported program, a ``.pt2`` file or a captured program.
    example_inputs
        A tuple of inputs (or one tensor), as the model is called. The first axis is taken as the batch.
    generator
        Source of the random directions; one of its own with seed 0 by default.
    name
        What to call the model in the report.
    rays
        How many rays to evaluate for the plot; 0 for none.
    codes
        Only these rules; all by default.

    Returns
    -------
    Audit
        ``.verdict``, ``.findings`` (what fired), ``.results`` (every rule), ``.witness``, ``.to_dict()``.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> result = audit(model, (torch.zeros(1, 4),))
    >>> result.verdict.name, [f.code for f in result.findings]
    ('UNBOUNDED', ['FF001'])
    """
    if isinstance(example_inputs, Tensor):
        example_inputs = (example_inputs,)
    program = model if isinstance(model, Program) else capture(model, example_inputs)
    report = analyse(model, example_inputs, program=program, generator=generator)
    module = model if isinstance(model, nn.Module) else None
    leaves = tuple(t for t in torch.utils._pytree.tree_leaves(example_inputs) if isinstance(t, Tensor))
    context = Context(report, module, leaves)
    return Audit(
        verdict=report.status,
        results=run_rules(context, codes),
        report=report,
        rays=_rays(report, leaves, rays, generator),
        subject=_subject(model, program, name),
        provenance=provenance({"rays": rays, "codes": None if codes is None else list(codes)}, seed=None),
    )


def _subject(model: Any, program: Program, name: str | None) -> dict[str, Any]:
    kind = type(model).__name__ if isinstance(model, nn.Module) else "Program"
    shared: dict[int, int] = {}
    for key, tensor in program.constants.items():
        if key in program.constant_names:
            shared[tensor.data_ptr()] = max(shared.get(tensor.data_ptr(), 0), tensor.numel())
    parameters = (
        sum(p.numel() for p in model.parameters()) if isinstance(model, nn.Module) else sum(shared.values())
    )
    return {
        "name": name or (str(model) if isinstance(model, (str, Path)) else kind),
        "class": kind,
        "parameters": parameters,
        "nodes": sum(n.role == "operation" for n in program.nodes),
        "inputs": [
            {
                "name": s.name,
                "shape": [str(d) for d in s.shape],
                "dtype": str(s.dtype).removeprefix("torch."),
                "kind": s.kind,
            }
            for s in program.inputs
        ],
        "outputs": list(program.outputs),
        "capture": program.capture,
        "unseen": list(program.unseen),
    }


def _rays(
    report: GrowthReport, inputs: tuple[Tensor, ...], count: int, generator: torch.Generator | None
) -> dict[str, Any]:
    """Max |f(λu)| over the entries of the first output, for a few directions and λ from 0.1 to 10⁶."""
    program = report.program
    empty: dict[str, Any] = {"output": "", "radii": [], "series": []}
    radii = [10.0 ** (k / 4.0) for k in range(-4, 25)]
    moving = [s.kind == "real" for s in program.inputs]
    first = one_row(program, inputs)
    if count == 0 or not any(moving) or first is None or program.capture == "modules":
        return empty
    source = torch.Generator().manual_seed(1) if generator is None else generator
    witness = report.witness
    series: list[dict[str, Any]] = []
    for k in range(count + (witness is not None)):
        direction = [
            torch.randn(t.shape, generator=source, dtype=torch.float64) if move else None
            for t, move in zip(first, moving, strict=True)
        ]
        label = "random direction"
        if witness is not None and k == count:
            label = "witness"
            direction = [
                witness.directions[s.name].double().expand(t.shape) if s.name in witness.directions else None
                for s, t in zip(program.inputs, first, strict=True)
            ]
        length = math.sqrt(sum(float(d.square().sum()) for d in direction if d is not None)) or 1.0
        values: list[float] = []
        for radius in radii:
            point = [t if d is None else radius * d / length for t, d in zip(first, direction, strict=True)]
            with torch.no_grad():
                try:
                    result = program.evaluate(*point, keep=[program.outputs[0]])[program.outputs[0]]
                except OpaqueNodeError:
                    return empty
            values.append(float(result.double().abs().max()) if result.numel() else 0.0)
        series.append({"label": label, "values": values})
    return {"output": program.outputs[0], "radii": radii, "series": series}
