"""What is to be bounded, what intervals say of it, and what was found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from farfield.certify._cone import Cone, cone_of
from farfield.certify._domain import box_around, domain_boxes, restricted
from farfield.certify._proofs import Proof
from farfield.certify._provers import AttainedPoint, Key
from farfield.certify._search_region import search_region
from farfield.certify.affine import Network, TooLargeError, build_network
from farfield.certify.intervals import Interval, UnboundableError, propagate
from farfield.errors import FarfieldError
from farfield.graph import Node, Program, describe, real_size
from farfield.growth import Status, analyze

__all__ = [
    "EVERY_INPUT",
    "OWN",
    "Solution",
    "Task",
    "UnboundedError",
    "draws",
    "in_domain",
    "kept",
]

EVERY_INPUT: Mapping[str, Any] = {"kind": "all"}
OWN = "domain"
"""What a proof is over that is about the domain's own program."""


class UnboundedError(FarfieldError):
    """There is no certificate: the model is unbounded, or not proved bounded. The message says which, and where."""


@dataclass(frozen=True)
class Task:
    """What is to be bounded: one output of a model, over a domain, on these sides.

    ``program`` is what provers take: its values over the boxes (over every input where there are none) are the
    model's over the domain.
    """

    model: Program
    program: Program
    output: str
    domain: Mapping[str, Any]
    boxes: Mapping[str, Interval]
    signs: tuple[int, ...] = (1, -1)
    cone: Cone | None = None
    """The domain in homogeneous coordinates, for a task over every input that need only hold in it."""
    asked: Mapping[str, Any] = field(default_factory=dict)
    """That domain."""
    mark: str = OWN
    """What its proofs are over (:class:`Solution`)."""

    @classmethod
    def over(
        cls, model: Program, output: str, domain: Mapping[str, Any], signs: tuple[int, ...] = (1, -1)
    ) -> Task:
        """The task of a plain domain."""
        return cls(model, restricted(model, domain), output, domain, domain_boxes(domain, model), signs)

    def require_bounded(self) -> None:
        """Raise :class:`UnboundedError`, with the reason, unless intervals bound the output."""
        _require_bounded(self)

    @property
    def usable(self) -> bool:
        """Whether the program is the model over the domain; a half-space is used in homogeneous coordinates only."""
        return bool(self.domain["kind"] != "halfspace")

    @cached_property
    def claimed(self) -> tuple[dict[str, Any], str | None]:
        """Every node's range, and why the output has no finite one (``None`` where it has); computed once."""
        return _claimed(self)

    @cached_property
    def network(self) -> Network | None:
        """The program as curves and norms with affine forms between them; ``None`` where it is too large for that."""
        try:
            return build_network(self.program, self.output, self.claimed[0], self.boxes)
        except TooLargeError:
            return None

    @cached_property
    def outer(self) -> Task:
        """The same in homogeneous coordinates."""
        whole = Task.over(self.model, self.output, EVERY_INPUT, self.signs)
        return replace(whole, cone=cone_of(self.domain), asked=self.domain, mark="cone")

    @cached_property
    def boxed(self) -> Task:
        """The same over the box around a ball or an ellipsoid; itself for other domains."""
        box = box_around(self.domain)
        if box is self.domain:
            return self
        made = Task.over(self.model, self.output, box, self.signs)
        return replace(made, cone=cone_of(self.domain), asked=self.domain, mark="box")


@dataclass(frozen=True)
class Solution:
    """The best proof of every entry and side, values met on the way, and what could not be re-checked.

    ``over``: entries and sides whose proof is not about the domain's own program, but about every input
    (``"everywhere"``), the domain's cone in homogeneous coordinates (``"cone"``), or what an ellipsoid is in the
    model over the box around it (``"box"``).
    """

    proofs: Mapping[Key, Proof]
    witnesses: Mapping[Key, AttainedPoint]
    doubts: tuple[str, ...] = ()
    over: Mapping[Key, str] = field(default_factory=dict)
    behind: int = 0
    """Layers of activations behind the last norm, which is what the dual has to cross."""

    def joined(self, proofs: Mapping[Key, Proof], over: str) -> Solution:
        """Where one of these proofs, all over the same, is the better one or the only one, that one."""
        better = {k: p for k, p in proofs.items() if k not in self.proofs or p.bound < self.proofs[k].bound}
        return replace(
            self, proofs={**self.proofs, **better}, over={**self.over, **dict.fromkeys(better, over)}
        )

    def proof_data(self, key: Key) -> dict[str, Any]:
        """The proof of an entry and side as a certificate holds it."""
        data = self.proofs[key].to_dict()
        over = self.over.get(key, OWN)
        return data if over == OWN else {**data, "over": over}


# -- claims ----------------------------------------------------------------------------------------------------------


def _claimed(task: Task) -> tuple[dict[str, Any], str | None]:
    """Every node's range, and why the output has no finite one; ``None`` where it has."""
    reason = "intervals give no finite range"
    claims: dict[str, Any] = {}
    try:
        claims = propagate(task.program, inputs=dict(task.boxes))
    except UnboundableError as error:
        reason = str(error)
    claim = claims.get(task.output)
    finite = isinstance(claim, Interval) and bool((torch.isfinite(claim.lo) & torch.isfinite(claim.hi)).all())
    return claims, None if finite else reason


def _require_bounded(task: Task) -> None:
    """The error says why there is no finite range."""
    claims, reason = task.claimed
    if reason is None:
        return
    draw = _unbounded_draw(task, claims)
    if draw is not None:
        raise UnboundedError(
            f"There is no certificate: {task.output!r} depends on random numbers that have no bound, drawn at "
            f"{draw.place}."
        )
    if task.domain["kind"] in ("box", "ball", "ellipsoid"):
        raise UnboundedError(f"{task.output!r} was not proved bounded over the domain: {reason}.")
    verdict = next(v for v in analyze(task.model).verdicts if v.output == task.output)
    if verdict.status is Status.UNBOUNDED:
        raise UnboundedError(
            f"There is no certificate: the output {task.output!r} is unbounded. {verdict}. "
            "farfield.repair(model, rows) bounds it without training; farfield audit shows the escape path and the "
            "place for a norm."
        )
    if verdict.status is Status.UNKNOWN:
        raise UnboundedError(
            f"There is no certificate: farfield could not decide whether {task.output!r} is bounded. {verdict}."
        )
    raise UnboundedError(f"{task.output!r} is bounded, but farfield could not prove a number: {reason}.")


def _unbounded_draw(task: Task, claims: Mapping[str, Any]) -> Node | None:
    """A random draw of any size that the output depends on."""
    for node in draws(task.program):
        claim = claims.get(node.name)
        if not node.operands and isinstance(claim, Interval) and not claim.bounded:
            return node
    return None


def draws(program: Program) -> list[Node]:
    """Nodes that draw random numbers."""
    return [node for node in program.nodes if node.role == "operation" and not describe(node).deterministic]


def in_domain(task: Task, witnesses: Mapping[Key, AttainedPoint]) -> dict[Key, AttainedPoint]:
    """Points of a restricted program as points of the model's inputs; those that are outside are lost."""
    if task.program is task.model:
        return kept(task.asked, task.model, witnesses) if task.asked else dict(witnesses)
    names = [spec.name for spec in task.model.inputs if spec.kind == "real"]
    region = search_region(task.domain, real_size(task.model))
    made = {}
    for (index, sign), witness in witnesses.items():
        free = torch.tensor(witness.point, dtype=torch.float64).reshape(1, -1)
        rest = [torch.zeros([int(d) for d in s.shape], dtype=s.dtype) for s in task.program.inputs[1:]]
        values = task.program.evaluate(free, *rest, keep=names)
        point = region.project(torch.cat([values[name].reshape(1, -1) for name in names], 1))[0]
        given = real_inputs(task.model, point)
        value = sign * float(task.model.evaluate(*given, keep=[task.output])[task.output].reshape(-1)[index])
        if region.contains(point):
            made[index, sign] = AttainedPoint(value, tuple(point.tolist()))
    return made


def kept(
    domain: Mapping[str, Any], model: Program, witnesses: Mapping[Key, AttainedPoint]
) -> dict[Key, AttainedPoint]:
    """Those of a model's points that are in a domain; points of one input of several are in none."""
    size = real_size(model)
    region = search_region(domain, size)
    points = {key: torch.tensor(one.point, dtype=torch.float64) for key, one in witnesses.items()}
    return {k: witnesses[k] for k, point in points.items() if len(point) == size and region.contains(point)}


def real_inputs(program: Program, point: Tensor) -> list[Tensor]:
    """Every input of a program: the real ones from their entries, flattened and joined, the others 0."""
    given, begin = [], 0
    for spec in program.inputs:
        shape = torch.Size(int(d) for d in spec.shape)
        if spec.kind != "real":
            given.append(torch.zeros(shape, dtype=spec.dtype))
            continue
        given.append(point[begin : begin + shape.numel()].reshape(shape))
        begin += shape.numel()
    return given
