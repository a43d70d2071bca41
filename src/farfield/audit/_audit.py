"""The audit: capture, analyze, run every rule."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from farfield._provenance import provenance
from farfield.audit._context import Context
from farfield.audit._data_units import data_units
from farfield.audit._result import Audit
from farfield.audit._sample import as_sized
from farfield.audit.rules import run_rules
from farfield.engine import Progress
from farfield.errors import InvalidValueError
from farfield.graph import Program, capture, open_model, with_fixed_sizes
from farfield.graph import example_inputs as as_example
from farfield.graph._node import InputKind
from farfield.growth import analyze
from farfield.growth._horizon import leaves, with_rows

__all__ = ["audit"]


def audit(
    model: nn.Module | ExportedProgram | Program | str | Path,
    example_inputs: Any = (),
    *,
    generator: torch.Generator | None = None,
    name: str | None = None,
    rays: int = 6,
    codes: Sequence[str] | None = None,
    kinds: Mapping[str, InputKind] | None = None,
    progress: Progress | None = None,
) -> Audit:
    """Is this model bounded on all of Rⁿ, and if not, where does it escape?

    One pass over the exported graph, linear in its size; the model is not changed. A verdict of BOUNDED is a proof in
    real arithmetic, UNBOUNDED comes with a direction and a slope confirmed by evaluation, everything else is UNKNOWN
    with the node and the reason.

    Parameters
    ----------
    model
        A module, an exported program, a ``.pt2`` or ``.onnx`` file, or a captured program.
    example_inputs
        A tuple of inputs (or one tensor), as the model is called; or rows in any form that
        :func:`farfield.repair` takes: an array, a table (whose columns' names are kept), a file, a DataLoader. The
        first axis is taken as the batch. Eight rows or more are also taken as data: the audit then says what the
        model gives on them and ten of their standard deviations away.
    generator
        Source of the random directions; one of its own with seed 0 by default.
    name
        What to call the model in the report.
    rays
        How many rays ``.rays`` evaluates for the plot, when it is asked for; 0 for none.
    codes
        Only these rules; all by default.
    kinds
        Input name → ``"bounded"``, ``"boolean"`` (a mask of zeros and ones), ``"integer"`` (ids) or ``"real"``: what
        you know of its values. The verdict then holds for such values, and says that it is your word. None for a
        program that was captured already.
    progress
        Called with steps done and steps in all, once the model is captured; ``with farfield.engine.bar("audit") as
        progress`` draws them after two seconds.

    Returns
    -------
    Audit
        ``.verdict``, ``.findings`` (what fired), ``.results`` (every rule), ``.witness``; ``print`` shows what the
        command line does, ``.to_html()`` is a page, ``.plot()`` a picture, ``.to_dict()`` plain data.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> result = audit(model, (torch.zeros(1, 4),))
    >>> result.verdict.name, [f.code for f in result.findings]
    ('UNBOUNDED', ['FF001'])
    """
    example_inputs, columns = as_example(model, example_inputs)
    if isinstance(example_inputs, Tensor):
        example_inputs = (example_inputs,)
    source = model
    model, example_inputs = open_model(model, with_rows(example_inputs))
    if isinstance(model, Program) and kinds:
        raise InvalidValueError("A program was captured already: give kinds to farfield.graph.capture.")
    program = model if isinstance(model, Program) else capture(model, example_inputs, kinds=kinds)
    sized = as_sized(program, example_inputs)
    report = analyze(model, sized, program=program, generator=generator, progress=progress)
    module = model if isinstance(model, nn.Module) else None
    tensors = tuple(leaves(example_inputs))
    context = Context(report, module, tensors)
    return Audit(
        verdict=report.status,
        results=run_rules(context, codes),
        report=report,
        inputs=tensors or _origin(program),
        ray_count=rays,
        subject={
            **_subject(model, program, name or (str(source) if isinstance(source, str | Path) else None)),
            "file": str(source) if isinstance(source, str | Path) else _source_file(model),
            "columns": {argument: list(names) for argument, names in columns.items()},
        },
        provenance=provenance(
            {"rays": rays, "codes": None if codes is None else list(codes), "kinds": dict(kinds or {})},
            seed=None,
        ),
        data=data_units(report, tensors),
    )


def _origin(program: Program) -> tuple[Tensor, ...]:
    """One row of zeros for every input of a program that came without an example: rays start there."""
    try:
        specs = with_fixed_sizes(program).inputs
        return tuple(torch.zeros([int(d) for d in spec.shape], dtype=spec.dtype) for spec in specs)
    except (InvalidValueError, ValueError):  # an open length that nothing says
        return ()


def _source_file(model: Any) -> str | None:
    """The file that the module's class is written in; ``None`` for torch's own classes and for programs."""
    kind = type(model)
    if not isinstance(model, nn.Module) or kind.__module__.partition(".")[0] in ("torch", "farfield"):
        return None
    try:
        return inspect.getsourcefile(kind)
    except (OSError, TypeError):  # made in a session
        return None


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
