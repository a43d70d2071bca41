"""``certify``: from a bounded model to numbers that hold for every input.

program → claims (intervals) → network → provers → proofs → certificate.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils._pytree import tree_map

from farfield._budget import Budget, Clock, running
from farfield._provenance import provenance
from farfield.certify._certificate import Certificate, Method
from farfield.certify._domain import bounding_boxes, plain_domain
from farfield.certify._float_limit import float_limit
from farfield.certify._hash import model_hash
from farfield.certify._proofs import Proof
from farfield.certify._provers import CELL_DIMENSIONS, Key
from farfield.certify._search import Attained, attained
from farfield.certify._solve import published, read_proofs, solve_domain
from farfield.certify._task import Solution, Task, UnboundedError, draws
from farfield.certify.arithmetic import FORMATS, Rounding, rounding_error
from farfield.errors import InvalidValueError, UnknownNameError
from farfield.graph import Program, capture, differs, example_inputs, open_model, real_size

__all__ = ["Task", "UnboundedError", "captured_row", "certify", "first_row", "make_task", "prove_task"]

SEARCH_SHARE = 0.15
Progress: TypeAlias = Callable[[float, str], None]


@torch.enable_grad()  # the search climbs; a caller may have switched gradients off
def certify(
    model: nn.Module | ExportedProgram | str | Path,
    inputs: Any = (),
    *,
    time_budget: float | Budget | Clock = 60.0,
    domain: Any = None,
    within: Any = None,
    arithmetic: str = "real",
    magnitude: float | None = None,
    output: str | None = None,
    resume: Certificate | None = None,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
) -> Certificate:
    """Bounds on a model's output that hold for every input, with proofs that someone else can re-check.

    Three methods, the best one per entry and side: interval propagation from the images of the norms (any model);
    branch and bound over the compactified input, t·(x, 1) on a cube's surface (up to five inputs: tight to a few
    thousandths in dimension 1–3); a Lagrangian dual with quadratic multipliers from the last norms onwards (any size
    that fits). What the model attains is searched by gradients, near and far: the certificate knows how tight it is.

    The bounds speak of real arithmetic, of the model as captured in eval mode, and of every draw where it draws
    random numbers. A bound is not a claim of accuracy.

    Parameters
    ----------
    model
        A module, an exported program, or the path of a ``.pt2`` or ``.onnx`` file.
    inputs
        An example input, a tuple of them, or a dictionary; or rows in any form that :func:`farfield.repair` takes.
        Shapes matter, the first row is taken.
    time_budget
        Seconds for all but capturing the model, or a :class:`~farfield._budget.Budget`, whose steps are batches
        of cells, gradient steps of the dual and gradient steps of the search for attained values. The best answer
        found by then is returned, and it is sound whenever it comes. Of a clock that runs already, ``stop()`` ends
        the search.
    domain
        Every real input by default; (lower, upper) for a box;
        ``{"kind": "ball", "center": c, "radius": r}``, ``{"kind": "ellipsoid", "center": c, "axes": a}`` (with
        half-lengths along the axes) or ``{"kind": "halfspace", "normal": n, "offset": c}``, with numbers up to 10¹⁴⁰;
        see :class:`~farfield.certify.Certificate`. Over a bounded domain any network has a range, also one that is
        unbounded.
    within
        A second domain: its bounds stand beside those of the first, as the certificate's ``within``.
    arithmetic
        ``"float32"``, ``"bfloat16"`` or ``"float64"``: bounds of the output as the model computes it in that format,
        with a bound of its rounding added on either side. By default bounds in real arithmetic.
    magnitude
        Largest size of an input's entries for which the rounding is bounded, where the domain does not say. By
        default the largest power of ten up to 10¹⁵ that has a bound (up to 10³⁸ behind a cap at the input).
    output
        Name of the output, where the model has several.
    resume
        An earlier certificate of the same model: its searches go on, and no bound gets worse.
    generator
        Source of random starts; one of its own with seed 0 by default.
    progress
        Called with the share of the time used and what is going on.

    Raises
    ------
    UnboundedError
        If the model is unbounded (with the direction and the rate), or could not be proved bounded.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(2, 8), nn.LayerNorm(8), nn.Linear(8, 1)).double()
    >>> certificate = certify(model, torch.zeros(1, 2, dtype=torch.float64), time_budget=1)
    >>> bool((certificate.upper <= 8**0.5 * model[2].weight.norm() + model[2].bias).all())
    True
    """
    begun = time.monotonic()
    _check_arithmetic(arithmetic, magnitude)
    model, example = open_model(model, first_row(example_inputs(model, inputs)[0]), rows=1)
    task = make_task(captured_row(model, example), output, domain)
    if resume is not None:
        _same(resume, task)
    clock = running(time_budget)
    inner = None if within is None else make_task(task.model, task.output, within)
    roundings = _roundings(task.model, arithmetic, magnitude, task, *(() if inner is None else (inner,)))
    random = bool(draws(task.model))
    limit = None if random else float_limit(model, example, task.model)
    options: dict[str, Any] = {"start": _leaves(example), "generator": generator, "progress": progress}
    made = prove_task(task, clock if inner is None else clock.share(0.5), resume=resume, **options)
    if inner is not None:
        second = _inner(inner, made, clock, resume, options)
        made = replace(made, within=second.computed_in(roundings[1]) if roundings else second)
    if roundings:
        made = made.computed_in(roundings[0])
    record = provenance({"time_budget": _limit(time_budget).seconds, "steps": _limit(time_budget).steps})
    return replace(made, float_limit=limit, seconds=time.monotonic() - begun, provenance=record)


def _check_arithmetic(name: str, magnitude: float | None) -> None:
    """Before anything is searched."""
    if name not in ("real", *FORMATS):
        raise UnknownNameError("arithmetic", name, ("real", *FORMATS))
    if magnitude is None:
        return
    if name == "real":
        raise InvalidValueError("magnitude= says how large inputs are for arithmetic=…, which is not given.")
    if not isinstance(magnitude, int | float) or not 0 < magnitude < math.inf:
        raise InvalidValueError(f"magnitude is a finite number above 0; received {magnitude!r}.")


def _roundings(program: Program, name: str, magnitude: float | None, *tasks: Task) -> tuple[Rounding, ...]:
    """The rounding of every task, before anything is searched; empty for real arithmetic."""
    if name == "real":
        return ()
    types = {n.dtype for n in program.nodes if n.dtype is not None and n.dtype.is_floating_point}
    found = {str(dtype).removeprefix("torch.") for dtype in types}
    if found - {name}:
        raise InvalidValueError(
            f"arithmetic={name!r} speaks of a model that computes in {name}; this one has numbers in "
            f"{', '.join(sorted(found))}. Convert it first, with model.to(torch.{name}), and certify what you ship."
        )
    real = FORMATS[name]
    return tuple(
        rounding_error(program, task.output, real, bounding_boxes(task.domain, program), magnitude)
        for task in tasks
    )


def _inner(
    inner: Task, outer: Certificate, clock: Clock, resume: Certificate | None, options: Mapping[str, Any]
) -> Certificate:
    """The certificate over a second domain, which uses what holds everywhere."""
    earlier = None if resume is None or resume.within is None else resume.within
    if earlier is not None and dict(earlier.domain) != dict(inner.domain):
        earlier = None
    known = read_proofs(outer.proofs).get("domain", {}) if outer.domain["kind"] == "all" else {}
    return prove_task(inner, clock, resume=earlier, everywhere=known, **options)


def prove_task(
    task: Task,
    time_budget: float | Budget | Clock,
    *,
    start: list[Tensor] | None = None,
    resume: Certificate | None = None,
    everywhere: Mapping[Key, Proof] | None = None,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
) -> Certificate:
    """The certificate of a program that is captured already; without a limit of floating point.

    ``everywhere`` are proofs about every input that exist already.
    """
    begun = time.monotonic()
    whole = running(time_budget)
    # Cells take as long to check again as to search: where there may be some, time is kept for it.
    few = real_size(task.model) <= CELL_DIMENSIONS and math.isfinite(whole.seconds_left)
    clock = whole.share(0.8 if few else 0.95)

    def say(words: str) -> None:
        if progress is not None:
            progress(1.0 - whole.left, words)

    say("intervals")
    (task if task.usable else task.outer).require_bounded()
    found = attained(
        task.model,
        task.output,
        time_budget=_search_clock(clock),
        generator=generator or torch.Generator().manual_seed(0),
        domain=task.domain,
        start=start,
    )
    earlier = {} if resume is None else read_proofs(resume.proofs)
    if everywhere:
        earlier["everywhere"] = dict(everywhere)
    solution = solve_domain(task, found, clock, whole, say, earlier)
    return _certificate(task, found, solution, time.monotonic() - begun, time_budget)


def captured_row(model: nn.Module | ExportedProgram | str | Path, example: Any) -> Program:
    """The program, held against the module it was captured from."""
    program = capture(model, example, dynamic_batch=False)
    found = differs(model, program, example) if isinstance(model, nn.Module) else None
    if found is not None:
        raise UnboundedError(f"There is no certificate: the captured program is not the model. {found}")
    return program


def make_task(program: Program, output: str | None, domain: Any) -> Task:
    """The task of an output by name, over a domain as people write it."""
    if output is None and len(program.outputs) > 1:
        raise InvalidValueError(
            f"The model returns {len(program.outputs)} tensors ({', '.join(program.outputs)}): say which one, such "
            f"as output={program.outputs[0]!r}."
        )
    name = program.outputs[0] if output is None else output
    if name not in program.outputs:
        raise UnknownNameError("output", name, program.outputs)
    return Task.over(program, name, plain_domain(domain, program))


def _same(resume: Certificate, task: Task) -> None:
    mine = (model_hash(task.model), task.output, dict(task.domain))
    if (resume.model_hash, resume.output, dict(resume.domain)) != mine:
        raise InvalidValueError(
            "resume= takes a certificate of the same model, output and domain; this one is of another."
        )


def _search_clock(clock: Clock) -> Clock:
    """The share of the search for attained values: from 0.2 to 20 seconds."""
    seconds = clock.seconds_left
    share = SEARCH_SHARE
    if 0 < seconds < math.inf:
        share = min(max(share, min(0.5, 0.2 / seconds)), 20.0 / seconds)
    return clock.share(share)


# -- the certificate -------------------------------------------------------------------------------------------------


def _certificate(
    task: Task, found: Attained, solution: Solution, seconds: float, time_budget: float | Budget | Clock
) -> Certificate:
    program, count = task.model, found.lower.numel()
    lower_witness, upper_witness = found.witnesses()
    low, high = found.lower.clone(), found.upper.clone()
    for (i, sign), witness in solution.witnesses.items():
        values, places = (high, upper_witness) if sign > 0 else (low, lower_witness)
        if sign * float(values[i]) < witness.value:
            values[i] = sign * witness.value
            places[i] = {"point": list(witness.point), "direction": None, "value": sign * witness.value}
    proofs = solution.proofs
    upper = torch.tensor([published(proofs[i, 1].bound) for i in range(count)], dtype=torch.float64)
    lower = torch.tensor([-published(proofs[i, -1].bound) for i in range(count)], dtype=torch.float64)
    kinds = {"mixed" if proof.kind == "softmax" else proof.kind for proof in proofs.values()}
    shape = tuple(int(d) for d in program.node(task.output).shape)
    random = bool(draws(program))
    limit = _limit(time_budget)
    made = Certificate(
        lower.reshape(shape),
        upper.reshape(shape),
        low.reshape(shape),
        high.reshape(shape),
        witnesses=(lower_witness, upper_witness),
        method=cast("Method", kinds.pop() if len(kinds) == 1 else "mixed"),
        assumptions=(*_assumptions(program, random=random), *solution.doubts),
        model_hash=model_hash(program),
        domain=dict(task.domain),
        output=task.output,
        input_shape=tuple(tuple(int(d) for d in spec.shape) for spec in program.inputs),
        input_dtype=tuple(str(spec.dtype).removeprefix("torch.") for spec in program.inputs),
        float_limit=None,
        proofs=tuple(solution.proof_data((i, sign)) for i in range(count) for sign in (1, -1)),
        seconds=seconds,
        provenance=provenance({"time_budget": limit.seconds, "steps": limit.steps}),
    )
    return replace(made, advice=_advice(made, solution.behind))


LOOSE = 2.0
"""From this tightness on a certificate says what would make it tighter."""


def _advice(made: Certificate, behind: int) -> tuple[str, ...]:
    """What was measured to make bounds tighter, where these are loose."""
    finite = made.tightness[torch.isfinite(made.tightness)]
    if not finite.numel() or float(finite.max()) < LOOSE:
        return ()
    said = []
    if behind >= 2:
        said.append(
            f"{behind} layers of activations lie behind the last norm. A norm at the last hidden layer is bounded "
            "more tightly in little time: four layers of 128 have tightness 1.3 to 2 there after ten seconds, 1.4 to "
            "3.5 with the norm at the first."
        )
    said.append(
        "More time tightens these bounds (resume=…). A range by construction costs none: end the model in "
        "farfield.nn.RangeHead."
    )
    return tuple(said)


def _limit(time_budget: float | Budget | Clock) -> Budget:
    """What was given, for the record."""
    if isinstance(time_budget, Clock):
        return time_budget.limit
    return time_budget if isinstance(time_budget, Budget) else Budget(seconds=max(0.0, float(time_budget)))


def _assumptions(program: Program, *, random: bool) -> tuple[str, ...]:
    said = [
        "Real arithmetic: rounding of the model's own forward pass is not covered; see float_limit.",
        "The model as captured: eval mode, one row, fixed sizes and weights.",
        "float64 functions of the platform (exp, tanh, erf, …) are right to four units in the last place.",
    ]
    if random:
        said.append(
            "The model draws random numbers: the bounds hold for every draw; attained values are of one draw."
        )
    held = (f"Input {s.name!r} is {s.kind}: bounded by nature." for s in program.inputs if s.kind != "real")
    return (*said, *held, *(f"The capture could not see: {text}" for text in program.unseen))


def first_row(inputs: Any) -> Any:
    """The example's first row: bounds speak of one row, and rows of a batch don't mix."""

    def one(leaf: Any) -> Any:
        return leaf[:1] if isinstance(leaf, Tensor) and leaf.ndim > 0 else leaf

    return tree_map(one, inputs)


def _leaves(example: Any) -> list[Tensor] | None:
    found: list[Tensor] = []
    tree_map(lambda leaf: found.append(leaf) if isinstance(leaf, Tensor) else None, example)
    return found or None
