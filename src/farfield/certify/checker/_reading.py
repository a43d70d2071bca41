"""The checker's reading of a program: layers of curves and norms, and between them affine maps.

Every value is a MidRad array with one leading axis: row 0 is the constant part, row i the coefficient of variable i.
What is affine is decided by the facts of a node alone; L and |L| come from running it (see ``_affine``).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from farfield.certify.checker._affine import AffineMap
from farfield.certify.checker._curves import CheckedCurve, curve
from farfield.certify.checker._ranges import Ranges
from farfield.certify.checker._values import Array, CertificateError, MidRad, U, gamma, round_up, sizes
from farfield.graph import Node, NormSpec, describe

__all__ = ["Form", "Layer", "Reading"]

NOTHING = 1e-200
"""Largest size of a value that is 0 but for what underflows."""
LARGEST = 60_000_000
"""Coefficients of one value; more are refused."""


@dataclass(frozen=True)
class Form:
    """A value as constant + coefficients·variables: (1 + variables, *shape). Degree 1: the constant multiplies t."""

    value: MidRad
    degree: int = 0

    @property
    def moving(self) -> bool:
        """Some variable enters."""
        return bool(self.value.mid.shape[0] > 1)

    def rows(self, start: int, stop: int) -> MidRad:
        """Coefficients of some variables: (entries of the value, variables)."""
        count = self.value.mid.shape[0]
        entries = math.prod(self.value.mid.shape[1:])
        mid, rad = np.zeros((2, entries, stop - start))
        have = max(0, min(count, stop) - start)
        mid[:, :have] = self.value.mid.reshape(count, entries)[start : start + have].T
        rad[:, :have] = self.value.rad.reshape(count, entries)[start : start + have].T
        return MidRad(mid, rad)


@dataclass(frozen=True)
class Layer:
    """Variables that are no affine function of earlier ones.

    ``kind`` is ``"input"`` (of ℝⁿ), ``"box"``, ``"curve"`` or ``"norm"``; ``columns`` are its rows in later forms.
    A norm is y = c/√(Σc²/count + ε) within each of its groups, c = z or z − mean; Σy² ≤ count in each. ε is ``None``
    where it stands elsewhere.
    """

    kind: str
    node: Node
    columns: slice
    argument: Form | None = None
    sigma: CheckedCurve | None = None
    groups: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    centered: bool = False
    count: float = 1.0
    eps: float | None = None

    @property
    def size(self) -> int:
        """How many variables."""
        return int(self.columns.stop - self.columns.start)

    @property
    def radius(self) -> float:
        """Largest ‖y‖₂ of a norm's group, rounded up."""
        return math.sqrt(self.count) * (1 + 4 * U)

    @property
    def most(self) -> float:
        """Largest |y_i| of a norm."""
        return self.radius * (math.sqrt(1 - 1 / self.groups.shape[1]) * (1 + 4 * U) if self.centered else 1.0)


def _padded(rad: Array) -> Array:
    """Radii rounded up; 0 stays 0, so that a form shows what it depends on, and row 0 pays for what underflows."""
    made = np.where(rad > 0, round_up(rad), 0.0)
    made[0] = round_up(made[0])
    return made


class Reading:
    """One output of a program as an affine form over layers.

    Parameters
    ----------
    ranges
        Of the program: constants are read from it.
    output
        What is bounded.
    boxes
        Nodes that are known by their range alone.
    listed
        Curves and norms that become layers; all of them by default.
    unbounded
        The input that runs through all of ℝⁿ, if it is to be read.
    opened
        Norms whose argument is read; all of them by default.
    """

    def __init__(
        self, ranges: Ranges, output: str, boxes: Collection[str], unbounded: str | None,
        listed: Collection[str] | None = None, opened: Collection[str] | None = None,
    ) -> None:  # fmt: skip
        self.ranges, self.program = ranges, ranges.program
        self.boxes, self.unbounded, self.listed, self.opened = boxes, unbounded, listed, opened
        self.layers: list[Layer] = []
        self.rows = 1
        self.lost = ""
        self.forms: dict[str, Any] = {}
        wanted = {output}
        for node in reversed(self.program.nodes):
            if node.name in wanted and node.name not in boxes:
                closed = opened is not None and node.name not in opened and describe(node).norm is not None
                wanted.update(node.operands[1:] if closed else node.operands)
        for node in self.program.nodes:
            if node.name in wanted:
                self.forms[node.name] = self._read(node)
        form = self.forms[output]
        if not isinstance(form, Form):
            raise CertificateError(
                f"The output is no affine function of the layers this proof names: the independent checker does not "
                f"support {self.lost or 'an operation'} between them."
            )
        self.output: Form = form

    def _read(self, node: Node) -> Any:
        """The node as a form (a tuple of them where it has several values), ``None`` where it is none."""
        if node.name in self.boxes:
            return self._variables("box", node)
        if node.role == "input":
            return self._variables("input", node, degree=1) if node.name == self.unbounded else None
        if node.dtype is not None and (node.dtype.is_complex or not node.dtype.is_floating_point):
            return None
        span = self.ranges.get(node.name)
        # What a factor of 0 leaves is a constant, whatever stands beside it.
        if span is not None and (self._still(node) or float(np.abs(span).max()) <= NOTHING):
            exact = np.array_equal(span[0], span[1])
            value = MidRad.exact(span[0].copy()) if exact else MidRad.between(*span)
            return Form(MidRad(value.mid[None], value.rad[None])) if np.isfinite(value.rad).all() else None
        made = self._step(node)
        if made is None and not self.lost:
            self.lost = f"{node.op} ({node.name})"
        return made

    def _still(self, node: Node) -> bool:
        """Nothing random and no input enters."""
        if node.role == "constant":
            return True
        forms = [self.forms.get(n) for n in node.operands]
        known = [self.ranges.constant(n) is not None for n in node.operands]
        still = [k or (isinstance(f, Form) and not f.moving) for k, f in zip(known, forms, strict=True)]
        return describe(node).deterministic and all(still) and self.ranges.get(node.name) is not None

    def _step(self, node: Node) -> Any:
        operands = [None if name is None else self.forms.get(name) for name in node.inputs]
        if node.op == "getitem" and isinstance(operands[0], tuple):
            return operands[0][int(node.attributes["index"])]
        facts = describe(node)
        if any(isinstance(o, tuple) for o in operands) or not facts.deterministic:
            return None
        if facts.norm is not None:
            return self._norm(node, operands, facts.norm)
        moving = [i for i, o in enumerate(operands) if o is not None and o.moving]
        if facts.linear and (group := facts.linear_group(moving)) is not None:
            return self._affine(node, operands, group)
        sigma = curve(node.op, node.attributes) if self.listed is None or node.name in self.listed else None
        if sigma is None or len(node.operands) != 1 or operands[0] is None:
            return None
        return self._variables("curve", node, operands[0].degree, argument=operands[0], sigma=sigma)

    def _affine(self, node: Node, operands: list[Any], group: tuple[int, ...]) -> Any:
        """Σ L x + f(0): f(0) belongs to the constant part, which t multiplies where the degree is 1."""
        fixed: list[Any] = []
        for i, name in enumerate(node.inputs):
            inside = name is not None and i in group
            if inside and operands[i] is None:
                return None
            fixed.append(
                torch.zeros(sizes(self.program.node(str(name))), dtype=torch.float64)
                if inside
                else self.ranges.constant(name)
            )
            if name is not None and fixed[-1] is None:
                return None
        affine = AffineMap(node, describe(node), group, fixed)
        degrees = {operands[i].degree for i in affine.places if operands[i].moving}
        if not affine.supported or len(degrees) > 1:
            return None
        start = affine.offset()
        parts = start if isinstance(start, tuple) else (start,)
        count = max([1, *(len(operands[i].value.mid) for i in affine.places)])
        if count * sum(p.size for p in parts) > LARGEST:
            raise CertificateError(f"{node.name!r} has too many coefficients for the independent checker.")
        mids = [np.zeros((count, *p.shape)) for p in parts]
        rads = [np.zeros((count, *p.shape)) for p in parts]
        for mid, rad, part in zip(mids, rads, parts, strict=True):
            mid[0] += part
            rad[0] += gamma(16) * np.abs(part)
        for i in affine.places:
            x = operands[i].value
            made = affine.apply(i, x.mid)
            loss = affine.loss(i)
            loose = affine.absolute(i, loss * np.abs(x.mid) + x.rad)
            for k in range(len(parts)):
                mids[k][: len(x.mid)] += made[k] if isinstance(made, tuple) else made
                rads[k][: len(x.mid)] += loose[k] if isinstance(loose, tuple) else loose
        summed = gamma(len(affine.places) + 1) if len(affine.places) > 1 or parts[0].any() else 0.0
        forms = [
            Form(MidRad(m, _padded(r + summed * np.abs(m))), *degrees)
            for m, r in zip(mids, rads, strict=True)
        ]
        return tuple(forms) if isinstance(start, tuple) else forms[0]

    def _norm(self, node: Node, operands: list[Any], spec: NormSpec) -> Form | None:
        if self.listed is not None and node.name not in self.listed:
            return None
        shape = sizes(node)
        groups = spec.group_index(shape).numpy()
        count = spec.count(groups.shape[1])
        if spec.order != 2 or count <= 0 or not spec.eps >= 0:
            return None
        laid: dict[int, MidRad] = {}
        for place in (spec.weight, spec.bias):
            if place is None:
                continue
            given = operands[place]
            if given is None or given.moving:
                return None
            spread = [
                spec.spread(torch.from_numpy(v[0].copy()), shape).numpy()
                for v in (given.value.mid, given.value.rad)
            ]
            laid[place] = MidRad(spread[0][None], spread[1][None])
        inside = spec.eps_mode == "inside"
        made = self._variables(
            "norm", node, argument=operands[0], groups=groups, centered=spec.centered, count=count,
            eps=spec.eps if inside else None,
        ).value  # fmt: skip
        if spec.weight is not None:
            scaled = made * laid[spec.weight]
            made = MidRad(scaled.mid, np.where(made.mid != 0, scaled.rad, 0.0))
        if spec.bias is not None:
            made.mid[0], made.rad[0] = laid[spec.bias].mid[0], laid[spec.bias].rad[0]
        return Form(made)

    def _variables(self, kind: str, node: Node, degree: int = 0, **details: Any) -> Form:
        size = math.prod(sizes(node))
        if size * (self.rows + size) > LARGEST:
            raise CertificateError(f"{node.name!r} has too many entries for the independent checker.")
        columns = slice(self.rows, self.rows + size)
        self.layers.append(Layer(kind, node, columns, **details))
        self.rows += size
        mid = np.zeros((self.rows, size))
        mid[columns] = np.eye(size)
        return Form(MidRad.exact(mid.reshape(self.rows, *sizes(node))), degree)
