"""``certify``: from a bounded model to numbers that hold for every input."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils._pytree import tree_map

from farfield._provenance import provenance
from farfield.certify._cells import branch
from farfield.certify._certificate import Certificate, Method
from farfield.certify._descent import optimise
from farfield.certify._domain import domain_boxes, plain_domain
from farfield.certify._dual import objective
from farfield.certify._float_limit import float_limit
from farfield.certify._hash import model_hash
from farfield.certify._network import Network, TooLargeError, build_network
from farfield.certify._payload import dual_payload, restore
from farfield.certify._problem import NoProblemError, Problem, build_problem
from farfield.certify._proof import prove
from farfield.certify._search import Attained, attained
from farfield.certify._softmax import DIFFERENCES, confidence, difference_program, pairs
from farfield.certify.checker import CertificateError, proof_reader
from farfield.certify.intervals import Interval, UnboundableError, propagate
from farfield.errors import FarfieldError, InvalidValueError, PrecisionError, UnknownNameError
from farfield.graph import Program, capture
from farfield.growth import Status, analyse

__all__ = ["UnboundedError", "certify"]

ALLOWANCE = 2e-9
"""Published bounds are wider than proved ones by this much of themselves: a checker rounds differently."""
CELL_DIMENSIONS = 5
"""Branch and bound over cells is tried up to this many inputs."""
RECHECKED_CELLS = 20_000
"""Proofs of up to this many cells are checked again before they are published."""
SEARCH_SHARE = 0.15
Progress = Callable[[float, str], None]


class UnboundedError(FarfieldError):
    """There is no certificate: the model is unbounded, or not proved bounded. The message says which, and where."""


@dataclass(frozen=True)
class _Bound:
    """A proved bound of sign·f for one entry."""

    value: float
    kind: str
    proof: Mapping[str, Any]


def certify(
    model: nn.Module | ExportedProgram | str | Path,
    inputs: Any = (),
    *,
    time_budget: float = 60.0,
    domain: Any = None,
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

    The bounds speak of real arithmetic and of the model as captured, in eval mode: *bounded*, which is not *correct*.

    Parameters
    ----------
    model
        A module, an exported program, or the path of a ``.pt2`` file.
    inputs
        An example input, a tuple of them, or a dictionary: shapes matter, the first row is taken.
    time_budget
        Seconds of search, beside what capturing the model takes: the best answer found by then is returned, and it is
        sound whenever it comes.
    domain
        Every real input by default; (lower, upper) for a box; see
        :class:`~farfield.certify.Certificate` for half-spaces.
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
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(2, 8), nn.LayerNorm(8), nn.Linear(8, 1)).double()
    >>> certificate = certify(model, torch.zeros(1, 2, dtype=torch.float64), time_budget=1)
    >>> bool((certificate.upper <= 8**0.5 * model[2].weight.norm() + model[2].bias).all())
    True
    """
    begun = time.monotonic()
    example = _first_row(inputs)
    program = capture(model, example, dynamic_batch=False)
    name = _output(program, output)
    where = plain_domain(domain, program)
    if resume is not None:
        _same(resume, program, name, where)
    boxes = domain_boxes(where, program)
    ready = time.monotonic()
    task = _Task(program, name, where, boxes, ready, ready + 0.95 * time_budget, progress)
    claims = task.intervals()
    network = task.network(claims)
    found = attained(
        program, name, seconds=max(0.2, min(SEARCH_SHARE * time_budget, 20.0)),
        generator=generator or torch.Generator().manual_seed(0), domain=where, start=_leaves(example),
    )  # fmt: skip
    bounds = task.agreed(task.bounds(claims[name], network, found, resume))
    task.confidences(bounds)
    return _certificate(model, example, task, found, bounds, time.monotonic() - begun)


class _Task:
    """One certificate in the making."""

    def __init__(
        self, program: Program, output: str, domain: Mapping[str, Any], boxes: Mapping[str, Interval],
        begun: float, deadline: float, progress: Progress | None,
    ) -> None:  # fmt: skip
        self.program, self.output, self.domain, self.boxes = program, output, domain, boxes
        self.begun, self.deadline, self.progress = begun, deadline, progress
        self.signs: tuple[int, ...] = (1, -1)
        self.doubts: list[str] = []
        self.best_points: dict[tuple[int, int], tuple[float, dict[str, Any]]] = {}

    def say(self, words: str) -> None:
        """Report progress."""
        if self.progress is not None:
            now = time.monotonic()
            self.progress(min(1.0, (now - self.begun) / max(self.deadline - self.begun, 1e-9)), words)

    def left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()

    def intervals(self) -> dict[str, Any]:
        """Every node's range; the error says why there is none."""
        self.say("intervals")
        reason = ""
        try:
            claims = propagate(self.program, inputs=dict(self.boxes))
        except UnboundableError as error:
            claims, reason = {}, str(error)
        claim = claims.get(self.output)
        if isinstance(claim, Interval) and bool((torch.isfinite(claim.lo) & torch.isfinite(claim.hi)).all()):
            return claims
        if self.domain["kind"] != "box":
            self._refuse_unbounded(reason)
        raise UnboundedError(
            f"{self.output!r} was not proved bounded: {reason or 'intervals give no finite range'}."
        )

    def _refuse_unbounded(self, reason: str) -> None:
        verdict = next(v for v in analyse(self.program).verdicts if v.output == self.output)
        if verdict.status is Status.UNBOUNDED:
            raise UnboundedError(
                f"There is no certificate: the output {self.output!r} is unbounded. {verdict}. "
                "Run farfield audit for the escape path and the place for a norm."
            )
        if verdict.status is Status.UNKNOWN:
            raise UnboundedError(
                f"There is no certificate: whether {self.output!r} is unbounded is open. {verdict}."
            )
        raise UnboundedError(
            f"{self.output!r} is bounded, but no number was proved: {reason or 'intervals give no finite range'}."
        )

    def network(self, claims: Mapping[str, Any]) -> Network | None:
        """The network in the form that is bounded tightly; ``None`` where it is too large for that."""
        try:
            return build_network(self.program, self.output, claims, self.boxes)
        except TooLargeError:
            return None

    def bounds(
        self, claim: Interval, network: Network | None, found: Attained, resume: Certificate | None
    ) -> dict[tuple[int, int], _Bound]:
        """(entry, sign) → the best bound."""
        best = {
            (i, sign): _Bound(
                float(hi) if sign > 0 else -float(lo), "interval", _interval_proof(i, sign, lo, hi)
            )
            for i, (lo, hi) in enumerate(zip(claim.lo.reshape(-1), claim.hi.reshape(-1), strict=True))
            for sign in self.signs
        }
        if resume is not None:
            for proof in resume.proofs:
                key = (int(proof["output"]), 1 if proof["side"] == "upper" else -1)
                best[key] = _better(best[key], _Bound(float(proof["bound"]), str(proof["kind"]), proof))
        if network is None or difference_program(self.program, self.output) is not None:
            return best
        dimensions = _dimensions(network)
        cells = network.compact() and dimensions is not None and dimensions <= CELL_DIMENSIONS
        problem = self._problem(network)
        jobs = sorted(best, key=lambda k: -(best[k].value - _reached(found, k)))
        for done, key in enumerate(jobs):
            share = self.left() / (len(jobs) - done)
            if self.left() <= 0.05 or share < 0.02:
                break
            self.say(f"output {key[0]}, {'upper' if key[1] > 0 else 'lower'} bound")
            until = time.monotonic() + share
            if cells and dimensions is not None:
                part = 1.0 if problem is None else 0.8 if dimensions <= 3 else 0.3
                best[key] = _better(best[key], self._cells(network, key, found, part * share))
            close = best[key].value - _reached(found, key) <= 2e-3 * abs(_reached(found, key))
            if problem is not None and not close and until - time.monotonic() > 0.01:
                best[key] = _better(best[key], self._dual(network, problem, key, until, best[key]))
        return best

    def agreed(self, bounds: dict[tuple[int, int], _Bound]) -> dict[tuple[int, int], _Bound]:
        """Bounds that the checker proves as well: where its arithmetic is coarser, what it proves is published.

        Long lists of cells are left out: there the checker halves what it finds too large.
        """
        read = proof_reader(self.program, self.output, self.domain)
        for key, bound in bounds.items():
            if bound.kind == "cells" and int(bound.proof["cells"]) > RECHECKED_CELLS:
                continue
            try:
                value = max(bound.value, read(bound.proof))
            except CertificateError as error:
                self.doubts.append(f"Not to be re-checked independently: {error}")
                continue
            bounds[key] = _Bound(value, bound.kind, {**bound.proof, "bound": value})
        return bounds

    def confidences(self, bounds: dict[tuple[int, int], _Bound]) -> None:
        """Behind a softmax: bounds on the logits' differences, and through them on every probability."""
        program = difference_program(self.program, self.output)
        if program is None:
            return
        inner = _Task(program, DIFFERENCES, self.domain, self.boxes, self.begun, self.deadline, self.progress)
        inner.signs = (1,)
        try:
            claims = inner.intervals()
        except UnboundedError:
            return
        generator = torch.Generator().manual_seed(0)
        found = attained(
            program, DIFFERENCES, seconds=0.1 * max(1.0, self.left()), generator=generator, domain=self.domain
        )
        best = inner.agreed(inner.bounds(claims[DIFFERENCES], inner.network(claims), found, None))
        values = [_published(best[row, 1].value) for row in range(len(best))]
        classes = len(bounds) // 2
        for index, sign in list(bounds):
            value = sign * confidence(values, classes, index, sign > 0)
            proof = {
                "kind": "softmax",
                "output": index,
                "side": "upper" if sign > 0 else "lower",
                "bound": value,
                "differences": [
                    best[row, 1].proof for row, pair in enumerate(pairs(classes)) if pair[sign < 0] == index
                ],
            }
            bounds[index, sign] = _better(bounds[index, sign], _Bound(value, "softmax", proof))

    def _cells(
        self, network: Network, key: tuple[int, int], found: Attained, seconds: float
    ) -> _Bound | None:
        try:
            proof, _ = branch(network, key[0], key[1], budget_seconds=seconds, attained=_reached(found, key))
        except FarfieldError:
            return None
        if proof.finite:
            self.best_points[key] = (proof.attained, {"point": list(proof.point), "direction": None})
        data = {
            "kind": "cells",
            "output": key[0],
            "side": "upper" if key[1] > 0 else "lower",
            **proof.to_dict(),
        }
        return _Bound(proof.bound, "cells", data)

    def _dual(
        self, network: Network, problem: Problem, key: tuple[int, int], until: float, so_far: _Bound
    ) -> _Bound | None:
        goal = objective(problem, key[0], key[1])
        start = None
        if so_far.kind == "dual":
            try:
                start = restore(network, problem, dict(so_far.proof))
            except (KeyError, RuntimeError):
                start = None
        multipliers, _ = optimise(problem, goal, seconds=0.97 * (until - time.monotonic()), start=start)
        try:
            proof = prove(problem, goal, multipliers, key[0])
        except PrecisionError:
            return None
        return _Bound(proof.bound, "dual", dual_payload(network, problem, proof, *key))

    def _problem(self, network: Network) -> Problem | None:
        try:
            return build_problem(network, _typical(self.program, network))
        except NoProblemError:
            return None


def _better(old: _Bound, new: _Bound | None) -> _Bound:
    return old if new is None or not new.value < old.value else new


def _reached(found: Attained, key: tuple[int, int]) -> float:
    return float(found.upper[key[0]]) if key[1] > 0 else -float(found.lower[key[0]])


def _interval_proof(index: int, sign: int, lo: Tensor, hi: Tensor) -> dict[str, Any]:
    bound = float(hi) if sign > 0 else -float(lo)
    return {"kind": "interval", "output": index, "side": "upper" if sign > 0 else "lower", "bound": bound}


def _dimensions(network: Network) -> int | None:
    sources = [b for b in network.blocks if b.kind == "input" or (b.kind == "box" and b.op == "input")]
    if len(sources) != 1:
        return None
    return sources[0].size - (1 if sources[0].kind == "input" else 0)


def _typical(program: Program, network: Network, points: int = 40) -> dict[int, Tensor]:
    """Curve → about the largest |z| met over a few inputs: units for the search."""
    wanted = {i: program.node(b.node).operands[0] for i, b in enumerate(network.blocks) if b.kind == "curve"}
    generator = torch.Generator().manual_seed(0)
    largest: dict[int, Tensor] = {}
    for k in range(points):
        size = 10.0 ** (-2 + 6 * k / points)
        given = [
            size * torch.randn([int(d) for d in spec.shape], generator=generator, dtype=torch.float64)
            if spec.kind in ("real", "bounded")
            else torch.zeros([int(d) for d in spec.shape], dtype=spec.dtype)
            for spec in program.inputs
        ]
        values = program.evaluate(*given, keep=set(wanted.values()))
        for i, name in wanted.items():
            met = values[name].reshape(-1).abs().nan_to_num(0.0)
            largest[i] = torch.maximum(largest[i], met) if i in largest else met
    return {i: 1.5 * v for i, v in largest.items()}


def _certificate(
    model: Any,
    example: Any,
    task: _Task,
    found: Attained,
    bounds: Mapping[tuple[int, int], _Bound],
    seconds: float,
) -> Certificate:
    program, count = task.program, found.lower.numel()
    lower_witness, upper_witness = found.witnesses()
    low, high = found.lower.clone(), found.upper.clone()
    for (i, sign), (value, place) in task.best_points.items():
        values, witnesses = (high, upper_witness) if sign > 0 else (low, lower_witness)
        if sign * float(values[i]) < value:
            values[i] = sign * value
            witnesses[i] = {**place, "value": sign * value}
    upper = torch.tensor([_published(bounds[i, 1].value) for i in range(count)], dtype=torch.float64)
    lower = torch.tensor([-_published(bounds[i, -1].value) for i in range(count)], dtype=torch.float64)
    kinds = {"mixed" if b.kind == "softmax" else b.kind for b in bounds.values()}
    shape = tuple(int(d) for d in program.node(task.output).shape)
    return Certificate(
        lower.reshape(shape),
        upper.reshape(shape),
        low.reshape(shape),
        high.reshape(shape),
        witnesses=(lower_witness, upper_witness),
        method=cast("Method", kinds.pop() if len(kinds) == 1 else "mixed"),
        assumptions=(*_assumptions(program), *task.doubts),
        model_hash=model_hash(program),
        domain=dict(task.domain),
        output=task.output,
        input_shape=tuple(tuple(int(d) for d in spec.shape) for spec in program.inputs),
        input_dtype=tuple(str(spec.dtype).removeprefix("torch.") for spec in program.inputs),
        float_limit=float_limit(model, example, program) if task.left() > 0 or count < 64 else None,
        proofs=tuple(bounds[i, sign].proof for i in range(count) for sign in (1, -1)),
        seconds=seconds,
        provenance=provenance({"time_budget": task.deadline - task.begun}),
    )


def _published(bound: float) -> float:
    return bound + ALLOWANCE * max(1.0, abs(bound))


def _assumptions(program: Program) -> tuple[str, ...]:
    said = [
        "Real arithmetic: rounding of the model's own forward pass is not covered; see float_limit.",
        "The model as captured: eval mode, one row, fixed sizes and weights.",
        "float64 functions of the platform (exp, tanh, erf, …) are right to four units in the last place.",
    ]
    held = (f"Input {s.name!r} is {s.kind}: bounded by nature." for s in program.inputs if s.kind != "real")
    return (*said, *held)


def _first_row(inputs: Any) -> Any:
    """The example's first row: bounds speak of one row, and rows of a batch don't mix."""

    def one(leaf: Any) -> Any:
        return leaf[:1] if isinstance(leaf, Tensor) and leaf.ndim > 0 else leaf

    return tree_map(one, inputs)


def _leaves(example: Any) -> list[Tensor] | None:
    found: list[Tensor] = []
    tree_map(lambda leaf: found.append(leaf) if isinstance(leaf, Tensor) else None, example)
    return found or None


def _output(program: Program, wanted: str | None) -> str:
    if wanted is None:
        if len(program.outputs) > 1:
            raise InvalidValueError(
                f"The model returns {len(program.outputs)} tensors ({', '.join(program.outputs)}): say which one "
                "with output=…"
            )
        return program.outputs[0]
    if wanted not in program.outputs:
        raise UnknownNameError("output", wanted, program.outputs)
    return wanted


def _same(resume: Certificate, program: Program, output: str, domain: Mapping[str, Any]) -> None:
    if (
        resume.model_hash != model_hash(program)
        or resume.output != output
        or dict(resume.domain) != dict(domain)
    ):
        raise InvalidValueError(
            "resume= takes a certificate of the same model, output and domain, and this one is of another."
        )
