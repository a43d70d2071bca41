"""``certify_rollout``: a model fed with its own output."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from farfield._budget import Budget, Clock, running
from farfield.certify._certificate import Certificate
from farfield.certify._certify import UnboundedError, captured_row, first_row, make_task, prove_task
from farfield.certify._hash import model_hash
from farfield.certify.checker import CertificateError, check_program
from farfield.certify.rollout._certificate import WIDENED, RolloutCertificate, RolloutVerdict
from farfield.certify.rollout._powers import Powers, powers
from farfield.certify.rollout._split import REST, StepSplit, split_step
from farfield.errors import InvalidValueError
from farfield.graph import Program, open_model

__all__ = ["certify_rollout", "verify_rollout"]

_FIRST_SHARE, _NEXT_SHARE = 0.5, 0.5
_ROUNDS = 12
_LONGEST = 500
"""Steps of a simulation at most, before its states count as late."""
_SIZES = (1e20, 1e40, 1e70, 1e100)
"""Sizes at which a state that seems to escape is followed again."""
_GAIN = 0.99
"""Another round is made while it takes at least 1% off the widest entry."""
_ASSUMPTIONS = (
    "Real arithmetic: rounding of the step's own forward pass is not covered.",
    "The step as captured: eval mode, one row, fixed sizes and weights.",
)


@torch.enable_grad()
def certify_rollout(
    step: nn.Module | ExportedProgram | str | Path,
    state: Tensor | None = None,
    *,
    controls: Any = None,
    control_range: tuple[Any, Any] | None = None,
    time_budget: float | Budget = 60.0,
    generator: torch.Generator | None = None,
) -> RolloutCertificate:
    """Does a model that is fed with its own output stay bounded, for ever and from every start?

    The step is split into x⁺ = A·x + g(x, u), A the state's linear part (found in the graph) and g the rest, which is
    bounded as any model is. If ‖Aᵏ‖ < 1 for some k, every state is drawn into a box: with g in c ± h,
    |x − (1 − A)⁻¹c| gets at most Σ|Aᵏ|·h. The bound of g is then computed again over that box, and so on. A = 1 (a
    learned difference that is added to the state): each step moves it by at most sup |g|, and nothing says that it
    ever stops. A step that averages the state with something bounded (a GRU: z·x + (1 − z)·g with a gate z) stays in
    every box that holds both.

    Parameters
    ----------
    step
        State (and controls) in, next state out: a module, an exported program, a ``.pt2`` or an ``.onnx`` file.
    state
        An example state with a batch axis; its shape matters. A file knows its own.
    controls
        What the step takes besides: a tensor, or a tuple of them in its order.
    control_range
        (lower, upper) for the controls, each one number or as many as there are real entries. Every real control by
        default; then the box is found once and not made smaller.
    time_budget
        Seconds, or a :class:`~farfield._budget.Budget`.
    generator
        Source of random starts.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(2, 16), nn.LayerNorm(16), nn.Linear(16, 2)).double()
    >>> class Leaky(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.net = net
    ...
    ...     def forward(self, x):
    ...         return 0.9 * x + self.net(x)
    >>> found = certify_rollout(Leaky(), torch.zeros(1, 2, dtype=torch.float64), time_budget=Budget(steps=50))
    >>> found.verdict.name, bool((found.attractor_lower <= found.attained_lower).all())
    ('INVARIANT', True)
    """
    begun, clock = time.monotonic(), running(time_budget)
    case = _opened(step, state, controls, control_range)
    draw = generator or torch.Generator().manual_seed(0)
    made = _decided(case, clock, draw)
    return replace(
        made, assumptions=_ASSUMPTIONS, model_hash=model_hash(case.program), seconds=time.monotonic() - begun
    )


@dataclass(frozen=True)
class _Case:
    """A step, captured and split."""

    program: Program
    split: StepSplit
    shape: tuple[int, ...]
    controls: tuple[Tensor, Tensor] | None
    """Their range; a pair of empty tensors where there are none."""

    @property
    def size(self) -> int:
        return len(self.split.matrix)


def _opened(step: Any, state: Tensor | None, controls: Any, control_range: tuple[Any, Any] | None) -> _Case:
    example: Any = () if state is None else (state,)
    if controls is not None:
        example = (*example, *(controls if isinstance(controls, tuple | list) else (controls,)))
    model, row = open_model(step, first_row(example), rows=1)
    program = captured_row(model, row)
    real = [spec for spec in program.inputs if spec.kind == "real"]
    if not real:
        raise InvalidValueError("The step takes no real-valued state.")
    source, output = real[0].name, program.outputs[0]
    shape = tuple(int(d) for d in program.node(source).shape)
    given = tuple(int(d) for d in program.node(output).shape)
    if shape != given:
        raise InvalidValueError(
            f"A step returns the next state, of the state's own shape: it takes {list(shape)} and returns "
            f"{list(given)}. Its first argument is the state and its first result the next one."
        )
    others = sum(int(torch.Size([int(d) for d in spec.shape]).numel()) for spec in real[1:])
    limits: tuple[Tensor, Tensor] | None = None
    if not others:
        limits = (torch.zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.float64))
    elif control_range is not None:
        low, high = (
            torch.as_tensor(side, dtype=torch.float64).reshape(-1).expand(others) for side in control_range
        )
        limits = (low, high)
    return _Case(program, split_step(program, source, output), shape, limits)


def _decided(case: _Case, clock: Clock, draw: torch.Generator) -> RolloutCertificate:
    split = case.split
    contraction = powers(split.matrix, split.error)
    try:
        first = _bounded(case, None, clock.share(_FIRST_SHARE), draw)
    except UnboundedError as error:
        return _escape(
            case, draw, f"No bound was proved of what a step adds to the state's linear part. {error}"
        )
    if split.averages:
        return RolloutCertificate(
            RolloutVerdict.INVARIANT,
            "A step averages the state with something bounded: no box that holds this and the start is left.",
            split.matrix,
            lower=first.lower.reshape(case.shape),
            upper=first.upper.reshape(case.shape),
            rest=(first,),
        )
    if split.integrates:
        drift = torch.maximum(first.lower.abs(), first.upper.abs())
        return RolloutCertificate(
            RolloutVerdict.DRIFTS,
            "The state is carried over and something is added in every step: each step is bounded, their sum is not.",
            split.matrix,
            drift=drift.reshape(case.shape),
            rest=(first,),
        )
    if contraction is None:
        largest = float(torch.linalg.eigvals(split.matrix).abs().max())
        said = f"The state's linear part is no contraction: its largest eigenvalue is {largest:.6g} in size."
        return _escape(case, draw, said, rest=(first,))
    return _invariant(case, contraction, first, clock, draw)


# -- boxes -----------------------------------------------------------------------------------------------------------


def _bounded(
    case: _Case, box: tuple[Tensor, Tensor] | None, clock: Clock, draw: torch.Generator
) -> Certificate:
    """A certificate of the rest: for every state, or over a box of them."""
    domain = None
    if case.controls is not None and (box is not None or len(case.controls[0])):
        domain = _with_controls(case, box)
    return prove_task(make_task(case.split.rest, REST, domain), clock, generator=draw)


def _with_controls(case: _Case, box: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
    """A box of states (every state without one), and the controls' range."""
    assert case.controls is not None
    every = torch.full((case.size,), torch.inf, dtype=torch.float64)
    low, high = (-every, every) if box is None else box
    return torch.cat([low, case.controls[0]]), torch.cat([high, case.controls[1]])


def _invariant(
    case: _Case, contraction: Powers, first: Certificate, clock: Clock, draw: torch.Generator
) -> RolloutCertificate:
    found = [first]
    low, high = first.lower.reshape(-1), first.upper.reshape(-1)
    box = _box(case.split, contraction, low, high)
    widest = outer = box
    while case.controls is not None and len(found) < _ROUNDS and not clock.over:
        try:
            again = _bounded(case, box, clock.share(_NEXT_SHARE), draw)
        except UnboundedError:
            break
        low, high = torch.maximum(low, again.lower.reshape(-1)), torch.minimum(high, again.upper.reshape(-1))
        smaller = _meet(_box(case.split, contraction, low, high), box)
        gained = float((smaller[1] - smaller[0]).max()) < _GAIN * float((box[1] - box[0]).max())
        found.append(again)
        box = smaller
        if not gained:
            break
    if not case.split.replaces:
        outer = _stays(contraction, widest)
    attained = _simulated(case, draw, contraction.steps)
    lower, upper, late_lower, late_upper = (side.reshape(case.shape) for side in (*outer, *box))
    carried = (
        "replaces the state" if case.split.replaces else "contracts the state and adds something bounded"
    )
    return RolloutCertificate(
        RolloutVerdict.INVARIANT,
        f"A step {carried}, so that every rollout ends in a box, whatever it began with.",
        case.split.matrix,
        lower=lower,
        upper=upper,
        attractor_lower=late_lower,
        attractor_upper=late_upper,
        attained_lower=attained[0].reshape(case.shape),
        attained_upper=attained[1].reshape(case.shape),
        rest=tuple(found),
        contraction=(contraction.steps, contraction.factor),
    )


def _box(split: StepSplit, contraction: Powers, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Where states end if the rest of a step lies in [low, high]."""
    if split.replaces:
        return low, high
    middle = low / 2 + high / 2
    center = torch.linalg.solve(torch.eye(len(middle), dtype=torch.float64) - split.matrix, middle)
    size = split.matrix.abs() @ center.abs() + middle.abs() + center.abs()
    # x − center: A·(x − center) + (g − middle) + what the solve left over.
    left = (split.matrix @ center + middle - center).abs() + split.error @ center.abs() + 1e-13 * size
    half = torch.maximum(high - middle, middle - low) + left
    reach = contraction.gathered(half) * (1.0 + WIDENED)
    return center - reach, center + reach


def _stays(contraction: Powers, box: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Where a state that is in the box once is for ever after: |Aᵏ|·w + w."""
    center, half = (box[0] + box[1]) / 2, (box[1] - box[0]) / 2
    reach = (contraction.peak @ half + half) * (1.0 + WIDENED)
    return center - reach, center + reach


def _meet(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return torch.maximum(one[0], other[0]), torch.minimum(one[1], other[1])


# -- simulation ------------------------------------------------------------------------------------------------------


def _simulated(
    case: _Case, draw: torch.Generator, settled: int, starts: int = 32, counted: int = 100
) -> tuple[Tensor, Tensor]:
    """Least and largest entries of late states."""
    sizes = 10.0 ** (torch.arange(starts, dtype=torch.float64) % 4 - 1)
    x = torch.randn((starts, *case.shape), generator=draw, dtype=torch.float64)
    x = x * sizes.reshape(-1, *(1,) * len(case.shape))
    low = torch.full((case.size,), torch.inf, dtype=torch.float64)
    high = -low
    settled = min(settled, _LONGEST)
    for step in range(settled + counted):
        x = _advanced(case, x, draw)
        if step >= settled:
            rows = x.reshape(starts, -1)
            low, high = torch.minimum(low, rows.amin(0)), torch.maximum(high, rows.amax(0))
    return low, high


def _advanced(case: _Case, x: Tensor, draw: torch.Generator) -> Tensor:
    """One step of the program in float64 for many states (starts, *shape), controls at random."""
    given: list[Tensor] = []
    begin, seen, rows = 0, False, len(x)
    for spec in case.program.inputs:
        shape = [int(d) for d in spec.shape]
        count = int(torch.Size(shape).numel())
        if spec.kind != "real":
            given.append(torch.zeros([rows, *shape], dtype=spec.dtype or torch.float64))
        elif not seen:
            given.append(x)
            seen = True
        else:
            drawn = torch.rand((rows, count), generator=draw, dtype=torch.float64)
            low, high = _sides(case.controls, begin, count)
            given.append((low + (high - low) * drawn).reshape(rows, *shape))
            begin += count
    output = case.program.outputs[0]

    def one(*inputs: Tensor) -> Tensor:
        value: Tensor = case.program.evaluate(*inputs, keep=(output,))[output]
        return value

    try:
        return torch.vmap(one)(*given)
    except RuntimeError:  # an operator that knows no batches of batches
        return torch.stack([one(*row) for row in zip(*given, strict=True)])


def _sides(limits: tuple[Tensor, Tensor] | None, begin: int, count: int) -> tuple[Tensor, Tensor]:
    """The range of some controls; [−1, 1] where any is allowed."""
    if limits is None:
        return -torch.ones(count, dtype=torch.float64), torch.ones(count, dtype=torch.float64)
    return limits[0][begin : begin + count], limits[1][begin : begin + count]


def _escape(
    case: _Case, draw: torch.Generator, reason: str, rest: tuple[Certificate, ...] = ()
) -> RolloutCertificate:
    """A start from which a state grows a million times, as powers do, and on at every size; else unknown, and why."""
    sizes = torch.tensor([1.0, 1e2, 1e4], dtype=torch.float64).repeat(8)
    start = torch.randn((len(sizes), *case.shape), generator=draw, dtype=torch.float64)
    start = start * sizes.reshape(-1, *(1,) * len(case.shape))
    x, sizes_met = start, [sizes]
    for step in range(1, _LONGEST + 1):
        x = _advanced(case, x, draw)
        largest = x.reshape(len(sizes), -1).abs().amax(1)
        sizes_met.append(largest)
        # Faster than any power of the number of steps: what only drifts doubles where the steps do.
        gone = (largest > 1e6 * sizes) & (largest > 1e3 * sizes_met[step // 2]) & ~largest.isnan()
        for k in gone.nonzero().flatten().tolist():
            if not _grows_on(case, x[k : k + 1], step, draw):
                sizes[k] = torch.inf  # a start of its own scale: what grew is not looked at again
                continue
            witness = {"state": start[k].reshape(-1).tolist(), "steps": step, "size": float(largest[k])}
            return RolloutCertificate(
                RolloutVerdict.ESCAPES, reason, case.split.matrix, rest=rest, witness=witness
            )
        if bool(largest.isnan().all()):
            break
    return RolloutCertificate(RolloutVerdict.UNKNOWN, reason, case.split.matrix, rest=rest)


def _grows_on(case: _Case, x: Tensor, steps: int, draw: torch.Generator) -> bool:
    """Whether a state grows at every size as it did at first, for longer than a matrix without eigenvalues would.

    A population in raw counts grows until it meets its capacity, and a transient until it has passed.
    """
    for size in _SIZES:
        x = x * (size / float(x.abs().max()))
        largest = size
        for _ in range(min(_LONGEST, max(steps, 2 * case.size, 32))):
            made = _advanced(case, x, draw)
            largest = float(made.abs().max())
            if not math.isfinite(largest) or largest == 0.0:
                break
            x = made
        if not largest > 1e3 * size:  # also where it is not a number
            return False
    return True


# -- checking --------------------------------------------------------------------------------------------------------


def verify_rollout(
    step: nn.Module | ExportedProgram | str | Path,
    certificate: RolloutCertificate,
    state: Tensor | None = None,
    *,
    controls: Any = None,
    control_range: tuple[Any, Any] | None = None,
) -> bool:
    """Check a rollout's certificate against the step: every bound of the rest by the independent checker, then the
    boxes again from those bounds.

    The split of the step is derived again by the same code, and compared with the step itself on random states.

    Raises
    ------
    CertificateError
        If the certificate is of another step, or says more than is proved.
    """
    case = _opened(step, state, controls, control_range)
    if model_hash(case.program) != certificate.model_hash:
        raise CertificateError("The certificate is of another step: its hash differs.")
    _check_split(case)
    if certificate.verdict not in (RolloutVerdict.INVARIANT, RolloutVerdict.DRIFTS):
        return True  # nothing is claimed to be proved
    if not certificate.rest:
        raise CertificateError("It holds no bound of what a step adds.")
    low = torch.full((case.size,), -torch.inf, dtype=torch.float64)
    high = -low
    contraction = powers(case.split.matrix, case.split.error)
    box: tuple[Tensor, Tensor] | None = None
    widest: tuple[Tensor, Tensor] | None = None
    for one in certificate.rest:
        _check_domain(case, one, box)
        check_program(case.split.rest, one)
        low, high = torch.maximum(low, one.lower.reshape(-1)), torch.minimum(high, one.upper.reshape(-1))
        if contraction is not None:
            made = _box(case.split, contraction, low, high)
            box = made if box is None else _meet(made, box)
            widest = widest or box
    if certificate.verdict is RolloutVerdict.DRIFTS:
        drift = torch.maximum(low.abs(), high.abs())
        if not case.split.integrates or certificate.drift is None or _less(certificate.drift, drift):
            raise CertificateError("The drift that is claimed is smaller than the one that is proved.")
        return True
    if case.split.averages:
        if certificate.lower is None or certificate.upper is None:
            raise CertificateError("A box is missing.")
        if _less(-certificate.lower, -low) or _less(certificate.upper, high):
            raise CertificateError("A box that is claimed is smaller than the one that is proved.")
        if certificate.attractor_lower is not None or certificate.attractor_upper is not None:
            raise CertificateError("Nothing says that states end in a smaller box.")
        return True
    if contraction is None or box is None or widest is None:
        raise CertificateError("The state's linear part is no contraction.")
    outer = widest if case.split.replaces else _stays(contraction, widest)
    claims = (
        (certificate.lower, certificate.upper, outer),
        (certificate.attractor_lower, certificate.attractor_upper, box),
    )
    for claimed_low, claimed_high, proved in claims:
        if claimed_low is None or claimed_high is None:
            raise CertificateError("A box is missing.")
        if _less(-claimed_low, -proved[0]) or _less(claimed_high, proved[1]):
            raise CertificateError("A box that is claimed is smaller than the one that is proved.")
    return True


def _less(claimed: Tensor, proved: Tensor) -> bool:
    """Whether a bound claims more than is proved; NaN does."""
    proved = proved.reshape(-1)
    slack = torch.where(torch.isfinite(proved), 1e-12 * proved.abs(), 0.0)
    return not bool((claimed.reshape(-1) >= proved - slack).all())


def _check_domain(case: _Case, one: Certificate, box: tuple[Tensor, Tensor] | None) -> None:
    """The first bound is for every state; later ones cover the box that the earlier ones prove."""
    if one.domain["kind"] == "all":
        return
    if one.domain["kind"] != "box" or case.controls is None:
        raise CertificateError("A bound of what a step adds speaks of a set that was not proved.")
    low, high = (torch.tensor(one.domain[side], dtype=torch.float64) for side in ("lower", "upper"))
    wanted = _with_controls(case, box)
    if _less(-low, -wanted[0]) or _less(high, wanted[1]):
        raise CertificateError(
            "A bound of what a step adds speaks of a smaller box than the one that was proved."
        )


def _check_split(case: _Case) -> None:
    """A·x + g(x, u) is the step: on random states, in float64."""
    draw = torch.Generator().manual_seed(1)
    for size in (0.1, 1.0, 10.0):
        x = size * torch.randn((4, *case.shape), generator=draw, dtype=torch.float64)
        marks = torch.Generator().manual_seed(2), torch.Generator().manual_seed(2)
        whole = _advanced(case, x, marks[0])
        rest = _advanced(replace(case, program=case.split.rest), x, marks[1])
        parts = (x.reshape(4, -1) @ case.split.matrix.T).reshape(whole.shape) + rest
        if case.split.averages:
            parts = whole.clamp(torch.minimum(x, rest), torch.maximum(x, rest))
        if not torch.allclose(whole, parts, rtol=1e-9, atol=1e-9 * (1.0 + float(whole.abs().max()))):
            raise CertificateError("The step is not the sum of its parts.")
