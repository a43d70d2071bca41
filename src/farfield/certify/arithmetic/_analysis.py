r"""How far a model's own floating point can be from real arithmetic, for every input up to a magnitude.

Every operator is computed as some real function of its *computed* operands, with an error of its own: a sum of k
products, in any order and with or without fused operations, within γ_k Σ|a_i b_i| (Higham, *Accuracy and Stability of
Numerical Algorithms*, §3.1); a scalar function within a few units of rounding. Errors of the operands are multiplied
by what the operator can stretch them by. What comes out bounds |computed − real| for every entry of the output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from farfield.certify.affine import Block, TooLargeError, build_network
from farfield.certify.arithmetic._formats import FloatFormat
from farfield.certify.arithmetic._norms import norm_drift
from farfield.certify.arithmetic._rules import SPECIAL
from farfield.certify.arithmetic._state import Drift, RoundingError, node_shape, of_farfield, still
from farfield.certify.intervals import Interval, UnboundableError, propagate
from farfield.graph import Node, Program, compose, compute_node, describe, real_size, walk

__all__ = ["Rounding", "RoundingError", "rounding_error"]

ENTRIES = 20_000_000
"""Numbers that one value's coefficients over the input may have; of a larger value only plain errors are followed."""
MAGNITUDES = tuple(10.0**k for k in range(38, -1, -1))
"""What is tried, from the largest down, where inputs have no range."""
PLAIN = 1e15
"""The first that is tried without a cap at the input: squares in a norm stay finite."""
_TESTS = frozenset(["isnan", "isinf", "isfinite"])


@dataclass(frozen=True)
class Rounding:
    """|computed − real| ≤ error for every entry of an output, at inputs with entries up to ``magnitude``."""

    format: str
    magnitude: float
    error: Tensor


def rounding_error(
    program: Program,
    output: str,
    real: FloatFormat,
    boxes: Mapping[str, Interval],
    magnitude: float | None = None,
) -> Rounding:
    """The rounding of one output.

    Parameters
    ----------
    program, output
        Captured with fixed sizes; parameters as the model holds them.
    real
        The format that the model computes in.
    boxes
        Ranges of the real inputs. Where there are none, the largest magnitude 10^k, k ≤ 15, at which nothing
        overflows is found; up to 10³⁸ where a cap of farfield's own comes first.

    magnitude
        Largest size of an input's entries, where they have no range; found by itself by default.

    Raises
    ------
    RoundingError
        Where an operator has no rule, or something overflows at every magnitude.
    """
    if boxes:
        largest = max(float(b.magnitude.max()) for b in boxes.values())
        return _finite(Walk(program, output, real, dict(boxes)).run(largest))
    first = MAGNITUDES[0] if _capped(program) else PLAIN
    tried = MAGNITUDES if magnitude is None else (magnitude,)
    reason: RoundingError | None = None
    for size in tried:
        if magnitude is None and size > first:
            continue
        try:
            return _finite(Walk(program, output, real, _cube(program, size)).run(size))
        except RoundingError as error:
            reason = error
            if not error.by_size:
                break
    assert reason is not None
    raise reason


def _finite(made: Rounding) -> Rounding:
    if not bool(torch.isfinite(made.error).all()):
        raise RoundingError(
            f"There is no bound of the rounding for inputs up to {made.magnitude:.0e}: a norm divides by what may be "
            "rounding alone. Say a smaller magnitude, or put a norm or a cap directly at the input.",
            by_size=True,
        )
    return made


def _cube(program: Program, magnitude: float) -> dict[str, Interval]:
    made = {}
    for spec in program.inputs:
        if spec.kind == "real":
            side = torch.full([int(d) for d in spec.shape], magnitude, dtype=torch.float64)
            made[spec.name] = Interval(-side, side)
    return made


def _capped(program: Program) -> bool:
    """Whether every real input first meets a NormCap or a FeatureClamp, which no finite number makes overflow."""
    wanted = [spec.name for spec in program.inputs if spec.kind == "real"]
    safe = ("NormCap", "FeatureClamp")
    users = [program.node(user) for name in wanted for user in program.users(name)]
    return bool(wanted) and all(node.module_type in safe and of_farfield(node) for node in users)


class Walk:
    def __init__(self, program: Program, output: str, real: FloatFormat, boxes: dict[str, Interval]) -> None:
        self.program, self.output, self.real = program, output, real
        try:
            self.claims: dict[str, Any] = propagate(program, inputs=boxes)
        except UnboundableError as error:
            raise RoundingError(f"There is no bound of the rounding: {error}") from error
        self.columns, begin = {}, 0
        for spec in program.inputs:
            if spec.kind == "real":
                self.columns[spec.name] = begin
                begin += math.prod(int(d) for d in spec.shape)
        self.size = real_size(program)
        self.blocks: dict[str, Block] = {}
        try:
            network = build_network(program, output, self.claims)
            first = {i for i, block in enumerate(network.blocks) if block.kind == "input"}
            self.blocks = {
                b.node: b for b in network.blocks if b.form is not None and first >= set(b.form.matrices)
            }
        except TooLargeError:
            pass

    def run(self, magnitude: float) -> Rounding:
        wanted = {self.output}
        for node in reversed(self.program.nodes):
            if node.name in wanted:
                wanted.update(node.operands)
        nodes = [node for node in self.program.nodes if node.name in wanted]
        drifts = walk(nodes, self._step)
        made = drifts[self.output]
        return Rounding(self.real.name, magnitude, made.error)

    # -- one node ----------------------------------------------------------------------------------------------

    def _step(self, node: Node, operands: tuple[Drift | None, ...]) -> Drift:
        if node.role == "constant":
            return still(self.program.constants[node.name])
        if node.role == "input":
            return self._input(node)
        made = self._computed(node, operands)
        self._overflow(node, made, operands)  # what is summed on the way may be larger than what comes out
        size = self.claimed_size(node)
        if size is not None:
            made = replace(made, size=torch.minimum(made.size, size))
        return made

    def _computed(self, node: Node, operands: tuple[Drift | None, ...]) -> Drift:
        facts = describe(node)
        if node.dtype is not None and node.dtype.is_complex:
            raise RoundingError(
                f"There is no bound of the rounding: {node.place} computes with complex numbers."
            )
        if node.attributes.get("recognized") and not of_farfield(node):
            raise RoundingError(
                f"There is no bound of the rounding: {node.op!r} at {node.place} was read from several steps, which "
                "may overflow, cancel or run in another format where one operator of torch does not."
            )
        if node.dtype is not None and not node.dtype.is_floating_point:
            return self._discrete(node, operands)
        if facts.norm is not None:
            return self._norm(node, operands)
        if node.op in ("identity", "dropout", "cast"):
            return self._rounded_once(operands[0], node)
        if node.op in ("where", "masked_fill"):
            return self._where(node, operands)
        if facts.moves:
            return self._moved(node, operands)
        special = SPECIAL.get(node.op)
        if special is not None:
            return special(self, node, operands)
        if facts.scalar is not None and math.isfinite(facts.scalar.slope) and operands[0] is not None:
            return self._scalar(node, operands[0])
        if facts.linear and (facts.products or (facts.monotone and facts.monotone[0] == 1)):
            return self.linear(node, operands)
        parts = compose(node)
        if parts:
            return self._composed(node, parts, operands)
        raise self._no_rule(node)

    def _no_rule(self, node: Node) -> RoundingError:
        return RoundingError(
            f"There is no bound of the rounding: the operator {node.op!r} at {node.place} has no rounding rule."
        )

    def _input(self, node: Node) -> Drift:
        size = self.claimed_size(node)
        if size is None:
            raise RoundingError(f"There is no bound of the rounding: {node.name!r} has no range.")
        zero = torch.zeros_like(size)
        if node.name not in self.columns or size.numel() * (self.size + 1) > ENTRIES:
            return Drift(zero, size, own=zero)
        rows = torch.zeros(size.numel(), self.size + 1, dtype=torch.float64)
        rows[torch.arange(size.numel()), self.columns[node.name] + torch.arange(size.numel())] = 1.0
        return Drift(zero, size, torch.zeros_like(rows), rows, zero)

    def claimed_size(self, node: Node) -> Tensor | None:
        claim = self.claims.get(node.name)
        return claim.magnitude if isinstance(claim, Interval) else None

    def _overflow(self, node: Node, made: Drift, operands: tuple[Drift | None, ...]) -> None:
        if node.dtype is not None and not node.dtype.is_floating_point:
            return
        largest = float(made.computed_size.max()) if made.computed_size.numel() else 0.0
        spec = describe(node).norm if node.role == "operation" else None
        if spec is not None and not (node.module_type == "NormCap" and of_farfield(node)):
            given = operands[0]
            assert given is not None
            largest = max(largest, float(given.computed_size.max()) ** 2 * spec.size(node_shape(node)))
        self._fits(node, largest)

    def _fits(self, node: Node, largest: float) -> None:
        if not largest < self.real.largest:
            raise RoundingError(
                f"There is no bound of the rounding: {node.place} may overflow in {self.real.name} ({largest:.1e}).",
                by_size=True,
            )

    # -- rules -------------------------------------------------------------------------------------------------

    def _rounded_once(self, x: Drift | None, node: Node) -> Drift:
        assert x is not None
        if node.op != "cast" or node.dtype is None or torch.finfo(node.dtype).eps >= 2 * self.real.unit:
            return x if node.op != "cast" else self._with_units(x, 1.0)
        return x

    def _with_units(self, x: Drift, units: float) -> Drift:
        """Rounded once more."""
        unit = units * self.real.unit
        error = x.error * (1 + unit) + unit * x.size + self.real.smallest
        relative = x.relative
        if relative is not None and x.coefficients is not None:
            relative = relative * (1 + unit) + unit * x.coefficients
            relative[:, -1] += self.real.smallest
        return Drift(error, x.size, relative, x.coefficients)

    def _discrete(self, node: Node, operands: tuple[Drift | None, ...]) -> Drift:
        """Truth values and integers: the same where nothing that they depend on is rounded, or they test for NaN."""
        if node.op in _TESTS or all(o is None or o.exact for o in operands):
            size = self.claimed_size(node)
            shape = node_shape(node)
            most = 1.0 if node.dtype is torch.bool else math.inf
            size = torch.full(shape, most, dtype=torch.float64) if size is None else size
            if not all(self.real.holds(v) for v in node.attributes.values()):
                what = f"{node.op!r} at {node.place} compares with a number that {self.real.name} rounds."
                raise RoundingError(f"There is no bound of the rounding: {what}")
            return Drift(torch.zeros(shape, dtype=torch.float64), size)
        raise RoundingError(
            f"There is no bound of the rounding: {node.op!r} at {node.place} decides by a rounded number."
        )

    def _moved(self, node: Node, operands: tuple[Drift | None, ...]) -> Drift:
        def take(values: list[Any]) -> Tensor:
            given = [
                self.program.constants.get(name) if name is not None and v is None else v
                for name, v in zip(node.inputs, values, strict=True)
            ]
            try:
                found: Tensor = compute_node(node, given, {}, torch.float64)
            except (RuntimeError, TypeError, AttributeError, IndexError, ValueError) as error:
                raise RoundingError(
                    f"There is no bound of the rounding: where {node.op!r} at {node.place} takes its entries from "
                    "depends on the input."
                ) from error
            if not isinstance(found, Tensor):
                raise RoundingError(
                    f"There is no bound of the rounding: {node.op!r} at {node.place} gives several tensors at once."
                )
            return found

        moving = {i for group in describe(node).linear for i in group}

        def part(get: Callable[[Drift], Tensor]) -> list[Any]:
            return [get(o) if o is not None and i in moving else None for i, o in enumerate(operands)]

        error, size = take(part(lambda d: d.error)), take(part(lambda d: d.size))
        rows = [o for i, o in enumerate(operands) if o is not None and i in moving]
        if len(rows) == 1 and rows[0].relative is not None and rows[0].coefficients is not None:
            index = torch.arange(1, rows[0].error.numel() + 1, dtype=torch.float64).reshape(
                rows[0].error.shape
            )
            places = take([index if i in moving else None for i in range(len(operands))]).reshape(-1).long()
            blank = torch.zeros(1, rows[0].relative.shape[1], dtype=torch.float64)
            pick = [torch.cat([blank, t])[places] for t in (rows[0].relative, rows[0].coefficients)]
            own = None if rows[0].own is None else take(part(lambda d: d.error if d.own is None else d.own))
            return Drift(error, size, pick[0], pick[1], own)
        return Drift(error, size)

    def _where(self, node: Node, operands: tuple[Drift | None, ...]) -> Drift:
        """Decided by what is not rounded: the larger error of both; else also the distance between both."""
        decides, others = (
            (operands[0], operands[1:]) if node.op == "where" else (operands[1], (operands[0], *operands[2:]))
        )
        shape = node_shape(node)
        given = [o for o in others if o is not None]
        zero = torch.zeros(shape, dtype=torch.float64)
        error = torch.stack([zero, *(o.error.expand(shape) for o in given)]).amax(0)
        size = torch.stack([zero, *(o.size.expand(shape) for o in given)]).amax(0)
        numbers = [
            abs(float(value))
            for name, value in node.attributes.items()
            if name in ("value", "other", "input") and isinstance(value, int | float) and math.isfinite(value)
        ]
        fill = max(numbers, default=0.0)  # stored in the model's format, so it is rounded too
        error, size = error.clamp_min(self.real.unit * fill), size.clamp_min(fill)
        assert decides is not None
        if not decides.exact:
            error = error + 2 * size
            return Drift(error, size)
        test = self.program.node(node.operands[0 if node.op == "where" else 1])
        first = others[-1] if node.op == "where" else others[0]
        if test.op in ("isnan", "isinf") and first is not None and first.error.shape == torch.Size(shape):
            return first  # finite numbers take this branch, in real arithmetic and in the model's
        rows = [(o.relative, o.coefficients) for o in given if o.error.shape == torch.Size(shape)]
        if given and len(rows) == len(given) and all(a is not None and b is not None for a, b in rows):
            both = [torch.stack([r[i] for r in rows]).amax(0) for i in range(2)]  # type: ignore[misc]
            both[0][:, -1].clamp_min_(self.real.unit * fill)
            both[1][:, -1].clamp_min_(fill)
            return Drift(error, size, both[0], both[1])
        return Drift(error, size)

    def linear(self, node: Node, operands: tuple[Drift | None, ...]) -> Drift:
        """A(|x| + δ) − A(|x|) + γ_k A(|x| + δ), A with absolute coefficients; products of what moves are covered."""
        attributes = {
            k: abs(v) if isinstance(v, int | float) and not isinstance(v, bool) else v
            for k, v in node.attributes.items()
        }
        positive = replace(node, op="add" if node.op == "sub" else node.op, attributes=attributes)

        def run(values: list[Any]) -> Tensor:
            try:
                found: Tensor = compute_node(positive, values, {}, torch.float64)
            except (RuntimeError, TypeError, AttributeError, IndexError, ValueError) as error:
                raise self._no_rule(node) from error
            return found

        full = run([None if o is None else o.computed_size for o in operands])
        plain = run([None if o is None else o.size for o in operands])
        count = self._terms(node, operands, run)
        # A mean is a sum first.
        self._fits(node, float(full.max()) * (1.0 if describe(node).products else count))
        gamma = self.real.gamma(count + 8) + 2 * self.real.once
        error = (full - plain).clamp_min(0.0) + 1e-14 * full + gamma * full + self.real.smallest * (count + 1)
        moving = [(i, o) for i, o in enumerate(operands) if o is not None and o.coefficients is not None]
        linear_in_input = (
            moving
            and all(o is None or o.coefficients is not None or o.exact for o in operands)
            and describe(node).linear_group([i for i, _ in moving]) is not None
        )
        own = self._own(node, operands)
        if not linear_in_input:
            return Drift(error, plain, own=own)
        rows = self._rows(node, positive, operands, run, moving)
        if rows is None:
            return Drift(error, plain, own=own)
        relative, coefficients = rows
        relative = relative * (1 + gamma) + gamma * coefficients
        relative[:, -1] += self.real.smallest * (count + 1)
        return Drift(error, plain, relative, coefficients, own)

    def _own(self, node: Node, operands: tuple[Drift | None, ...]) -> Tensor | None:
        """Relative error of the result itself: one rounding of exact operands, or one more of a product."""
        moving = [o for o in operands if o is not None and o.own is not None]
        rest = [o for o in operands if o is not None and o.own is None]
        if len(moving) != 1 or not all(o.exact for o in rest) or node.op not in ("add", "sub", "mul"):
            return None
        own = moving[0].own
        assert own is not None
        # A number in the place of an operand, or a factor before it, is rounded by its own size.
        exact = None not in node.inputs[:2] and node.attributes.get("alpha", 1) == 1
        if node.op != "mul" and (bool(own.any()) or not exact):
            return None
        return (own * (1 + self.real.once) + self.real.once).expand(node_shape(node)).clone()

    def _terms(
        self, node: Node, operands: tuple[Drift | None, ...], run: Callable[[list[Any]], Tensor]
    ) -> float:
        """At least the number of terms in an entry's sum."""
        if describe(node).products:
            ones = [None if o is None else torch.ones_like(o.size) for o in operands]
            return float(run(ones).max()) + 1.0
        return float(max(o.size.numel() for o in operands if o is not None))

    def _rows(
        self, node: Node, positive: Node, operands: tuple[Drift | None, ...], run: Callable[[list[Any]], Tensor],
        moving: list[tuple[int, Drift]],
    ) -> tuple[Tensor, Tensor] | None:  # fmt: skip
        """A applied to every column of the coefficients over the input; what is added goes to the last column."""
        entries = math.prod(node_shape(node))
        width = self.size + 1
        if entries * width > ENTRIES or any(o.error.numel() * width > ENTRIES for _, o in moving):
            return None
        found = []
        for which in ("relative", "coefficients"):
            columns = []
            for column in range(width):
                values: list[Any] = []
                for i, o in enumerate(operands):
                    table = None if o is None else getattr(o, which)
                    inside = any(i == k for k, _ in moving)
                    if o is None:
                        values.append(None)
                    elif inside and table is not None:
                        values.append(table[:, column].reshape(o.size.shape))
                    elif self._outside(node, i, moving):
                        values.append(o.size)
                    else:  # a constant that is added
                        there = column == width - 1 and which == "coefficients"
                        values.append(o.size if there else torch.zeros_like(o.size))
                columns.append(run(values).reshape(-1))
            found.append(torch.stack(columns, 1))
        return found[0], found[1]

    def _outside(self, node: Node, index: int, moving: list[tuple[int, Drift]]) -> bool:
        """Whether an operand multiplies the moving ones, and is not added to them."""
        group = describe(node).linear_group([i for i, _ in moving])
        return group is not None and index not in group

    def _scalar(self, node: Node, x: Drift) -> Drift:
        """|f(x̃) − f(x)| ≤ L·δ, and a few units of rounding of argument and value."""
        function = describe(node).scalar
        assert function is not None
        self._fits(
            node, 8 * float(x.computed_size.max()) if x.size.numel() else 0.0
        )  # hardswish: 6x on the way
        slope, units = function.slope * (1 + 1e-12), self.real.function
        start = abs(float(function(torch.zeros((), dtype=torch.float64))))
        size = start + slope * x.size
        claimed = self.claimed_size(node)
        size = size if claimed is None else torch.minimum(size, claimed)
        stretch = max(1.0, slope)
        error = slope * x.error + units * (size + stretch * x.computed_size) + self.real.smallest
        error = error + 2 * function.roughness
        if x.relative is None or x.coefficients is None:
            return Drift(error, size)
        coefficients = slope * x.coefficients
        coefficients[:, -1] += start
        relative = slope * x.relative + units * (coefficients + stretch * (x.coefficients + x.relative))
        relative[:, -1] += self.real.smallest + 2 * function.roughness
        return Drift(error, size, relative, coefficients)

    def _norm(self, node: Node, operands: tuple[Drift | None, ...]) -> Drift:
        spec = describe(node).norm
        x = operands[0]
        assert spec is not None
        assert x is not None
        shape = node_shape(node)
        size = spec.size(shape)
        floor = spec.eps if spec.eps_mode == "inside" else spec.eps**2
        if not floor * self.real.summing >= self.real.smallest:
            raise RoundingError(
                f"There is no bound of the rounding: squares at {node.place} may underflow beside ε = {spec.eps:.0e}."
            )
        image = torch.full(shape, spec.radius(size) * (1 + 1e-12), dtype=torch.float64)
        error = norm_drift(spec, x, shape, self.blocks.get(node.name), self.real, image)
        made = Drift(error, image)
        for position, product in ((spec.weight, True), (spec.bias, False)):
            given = None if position is None else operands[position]
            if given is None or position is None:
                continue
            other = Drift(spec.spread(given.error, shape), spec.spread(given.size, shape))
            if product:
                error = made.error * other.computed_size + made.size * other.error
                made = Drift(error, made.size * other.size)
            else:
                made = Drift(made.error + other.error, made.size + other.size)
            made = self._with_units(made, 2.0)
        return made

    def _composed(self, node: Node, parts: tuple[Node, ...], operands: tuple[Drift | None, ...]) -> Drift:
        known = {
            name: o
            for name, o in zip(node.inputs, operands, strict=True)
            if name is not None and o is not None
        }
        for part in parts:
            known[part.name] = self._computed(
                part, tuple(None if n is None else known[n] for n in part.inputs)
            )
        return known[parts[-1].name]
