"""A chain of modules as a maximization whose tensors carry gradients to the model's parameters.

A chain is … → norm → (activation → linear)*. Whatever stands before its last norm, the norm's image is a ball; behind
affine layers alone it is the ellipsoid {u : uᵀGu = 1} over homogeneous inputs, as in
:mod:`farfield.certify.dual._problem`. That module rounds outwards and takes any program; this one rebuilds the same
kind of problem at every call from the live weights, without rounding, so that a bound can be trained.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from farfield.certify._rounding import with_room
from farfield.certify.affine import is_curve
from farfield.certify.dual._problem import Ball, Curve, Problem
from farfield.errors import FarfieldError, PrecisionError
from farfield.gaussian import ScalarFunction
from farfield.graph import capture, describe
from farfield.nn import Center, Elementwise, GroupedLayerNorm, LayerNorm, Project, ScaledLinear

__all__ = ["NormedChain", "UntrainableBoundError", "parse_chain"]

Kind: TypeAlias = Literal["affine", "norm", "curve", "other"]
NORMS = (nn.LayerNorm, nn.RMSNorm, LayerNorm, Project, GroupedLayerNorm)
PASSING = (nn.Identity, nn.Dropout, nn.AlphaDropout)
"""The identity in eval mode, which is what a bound speaks of."""
ACCEPTED = (
    "nn.Sequential (farfield.nn.MLP is one) of any layers, then a last norm (nn.LayerNorm over the last axis, "
    "nn.RMSNorm, farfield.nn.LayerNorm, Project or GroupedLayerNorm), then activations and nn.Linear or "
    "farfield.nn.ScaledLinear"
)


class UntrainableBoundError(FarfieldError, TypeError):
    """The model is no chain that a differentiable bound can be built for; the message says where and what to do."""


class Scale(nn.Module):
    """x ↦ factor·x: the constant of a scaled activation."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        return self.factor * x


@dataclass(frozen=True)
class ChainStep:
    """One module of a chain; ``curve`` is the scalar function of an activation."""

    kind: Kind
    name: str
    module: nn.Module
    curve: ScalarFunction | None = None


@dataclass(frozen=True)
class Units:
    """Powers of two that keep a problem's numbers near 1: fixed, so that multipliers keep their meaning."""

    source: Tensor
    curves: tuple[Tensor, ...]


@dataclass(frozen=True)
class NormImage:
    """The image of the last norm: value = matrix @ x for x in the balls."""

    balls: tuple[Ball, ...]
    matrix: Tensor
    cone: Tensor

    def spread(self, matrix: Tensor) -> Tensor:
        """A bound on ‖matrix @ x‖: ‖Σ_g B_g u_g‖ ≤ ‖(B_1 … B_g)‖₂ √g over unit balls, exact for one."""
        pieces = [whitened(ball, matrix) for ball in self.balls]
        norm: Tensor = torch.linalg.matrix_norm(torch.cat(pieces, 1), 2)
        return norm * math.sqrt(len(pieces))


@dataclass(frozen=True)
class NormedChain:
    """A model's steps, and how its last norm is described.

    Parameters
    ----------
    steps
        Modules in order.
    norm
        Index of the last norm.
    parametrized
        The norm stands behind affine layers alone, with fewer inputs than features: an ellipsoid over the inputs.
    """

    steps: tuple[ChainStep, ...]
    norm: int
    features: int
    parametrized: bool

    # -- the problem at the current weights --------------------------------------------------------------------------

    def problem(self, units: Units) -> Problem:
        """The maximization at the current weights, differentiable in them."""
        return self._assemble(units, [])

    def units(self) -> Units:
        """Units that fit the current weights."""
        with torch.no_grad():
            found: list[Tensor] = []
            source = self._source_units()
            self._assemble(Units(source, ()), found)
            return Units(source, tuple(found))

    def _assemble(self, units: Units, found: list[Tensor]) -> Problem:
        source = self._source(units.source)
        size = source.matrix.shape[1]
        columns, matrix, offset = slice(0, size), *_norm_affine(self.steps[self.norm].module, source.matrix)
        tail = self.steps[self.norm + 1 :]
        last_curve = max((i for i, step in enumerate(tail) if step.kind == "curve"), default=-1)
        curves: list[Curve] = []
        box: tuple[Tensor, Tensor] | None = None
        reach = torch.zeros((), dtype=torch.float64)
        for i, step in enumerate(tail):
            if step.kind == "affine":
                weight, bias = _affine(step.module, matrix.shape[0])
                matrix, offset = weight @ matrix, weight @ offset + bias
                continue
            assert step.curve is not None
            if box is None:
                half = sum(ball_norms(b, matrix) for b in source.balls)
                lo, hi = offset - half, offset + half
            else:  # the box is centered on its own middle, Cauchy–Schwarz on the offset
                middle, half = (
                    offset + matrix @ ((box[0] + box[1]) / 2),
                    matrix.abs() @ ((box[1] - box[0]) / 2),
                )
                around = torch.linalg.vector_norm(matrix, dim=1) * reach
                lo = torch.maximum(middle - half, offset - around)
                hi = torch.minimum(middle + half, offset + around)
            if len(found) == len(curves) and not units.curves:
                found.append(_power_of_two(torch.maximum(lo.abs(), hi.abs())))
            unit = units.curves[len(curves)] if units.curves else found[len(curves)]
            low, high = step.curve.rough_image(lo, hi)
            scaled = matrix / unit[:, None]
            moved = source.spread(scaled) if box is None else torch.linalg.matrix_norm(scaled, 2) * reach
            reach = torch.minimum(  # ‖σ(z)‖ ≤ ‖σ(b)‖ + sup|σ′|·‖z − b‖
                torch.linalg.vector_norm(torch.maximum(low.abs(), high.abs()) / unit),
                torch.linalg.vector_norm(step.curve.curve(offset) / unit)
                + with_room(step.curve.slope) * moved,
            )
            box = (low / unit, high / unit)
            kept = slice(size, size + unit.numel()) if i != last_curve else None
            wide = torch.nn.functional.pad(scaled, (columns.start, 0))
            zero = torch.zeros((), dtype=torch.float64)
            curves.append(
                Curve(kept, wide, zero, offset / unit, zero, lo / unit, hi / unit, unit, step.curve, len(curves))
            )  # fmt: skip
            if kept is not None:
                columns, size = kept, kept.stop
            matrix, offset = torch.diag(unit), torch.zeros_like(offset)
        return self._problem(source, curves, size, matrix, offset)

    def _problem(
        self, source: NormImage, curves: list[Curve], size: int, matrix: Tensor, offset: Tensor
    ) -> Problem:
        zero = torch.zeros((), dtype=torch.float64)
        outputs = offset.numel()
        objective = torch.zeros(outputs, size, dtype=torch.float64)
        last: list[Tensor | None] = [None] * len(curves)
        if curves:
            last[-1] = matrix
        else:
            objective = matrix
        wide = tuple(
            replace(c, matrix=torch.nn.functional.pad(c.matrix, (0, size - c.matrix.shape[1])))
            for c in curves
        )
        cone = torch.nn.functional.pad(source.cone, (0, size - source.cone.shape[1]))
        none, scale = (
            torch.zeros(cone.shape[0], dtype=torch.float64),
            torch.ones(cone.shape[0], dtype=torch.float64),
        )
        return Problem(
            size, source.balls, (), wide, objective, zero, tuple(last), (None,) * len(curves), offset, zero, cone,
            none, scale,
        )  # fmt: skip

    # -- the last norm -----------------------------------------------------------------------------------------------

    def _prefix(self) -> Tensor:
        """(features, inputs + 1): the norm's argument over homogeneous inputs, centered where the norm centers."""
        module = self.steps[self.norm].module
        matrix = offset = None
        for step in self.steps[: self.norm]:
            if matrix is None or offset is None:
                matrix, offset = _affine(step.module, _inputs(step.module))
            else:
                weight, bias = _affine(step.module, matrix.shape[0])
                matrix, offset = weight @ matrix, weight @ offset + bias
        assert matrix is not None
        assert offset is not None
        whole = torch.cat([matrix, offset[:, None]], 1)
        return whole - whole.mean(0, keepdim=True) if _centered(module) else whole

    def _source_units(self) -> Tensor:
        if not self.parametrized:
            return torch.full(
                (1,), 2.0 ** math.ceil(math.log2(math.sqrt(self.features))), dtype=torch.float64
            )
        columns = torch.linalg.vector_norm(self._prefix(), dim=0) / math.sqrt(self.features)
        return _power_of_two(columns).reciprocal()

    def _source(self, unit: Tensor) -> NormImage:
        module = self.steps[self.norm].module
        zero = torch.zeros((), dtype=torch.float64)
        if self.parametrized:
            matrix = self._prefix() * unit
            stabilizer = torch.zeros(unit.numel(), dtype=torch.float64)
            stabilizer[-1] = _norm_eps(module) * unit[-1] ** 2
            gram = matrix.T @ matrix / self.features + torch.diag(stabilizer)
            ball = Ball(slice(0, unit.numel()), gram, zero, 1.0, False, 0)
            cone = torch.zeros(1, unit.numel(), dtype=torch.float64)
            cone[0, -1] = 1.0
            return NormImage((ball,), matrix, cone)
        groups = module.groups if isinstance(module, GroupedLayerNorm) else 1
        width = self.features // groups
        eye = torch.eye(width, dtype=torch.float64)
        radius = math.sqrt(width) / float(unit)
        balls = tuple(
            Ball(slice(g * width, (g + 1) * width), eye, zero, radius, _centered(module), 0)
            for g in range(groups)
        )
        matrix = float(unit) * torch.eye(self.features, dtype=torch.float64)
        cone = torch.zeros(0, self.features, dtype=torch.float64)
        return NormImage(balls, matrix, cone)


def whitened(ball: Ball, matrix: Tensor) -> Tensor:
    """B with {matrix @ x : x in the ball} = {B u : ‖u‖ ≤ 1}."""
    piece = matrix[:, ball.columns]
    if ball.centered:
        piece = piece - piece.mean(1, keepdim=True)
    factor, info = torch.linalg.cholesky_ex(ball.gram)
    if int(info):
        raise PrecisionError(
            "The layers before the norm have become singular: their Gram matrix has no Cholesky factor in float64. "
            "Rescale the inputs, or drop inputs that are copies of one another."
        )
    solved: Tensor = torch.linalg.solve_triangular(factor, piece.T, upper=False)
    return ball.radius * solved.T


def ball_norms(ball: Ball, matrix: Tensor) -> Tensor:
    """Largest |(matrix @ x)_j| over a ball, exactly."""
    norms: Tensor = torch.linalg.vector_norm(whitened(ball, matrix), dim=1)
    return norms


def parse_chain(model: nn.Module, example: Tensor) -> NormedChain:
    """The chain a model is, checked against the model at an example.

    Raises
    ------
    UntrainableBoundError
        If it is none.
    """
    steps = tuple(_steps("", model))
    norms = [i for i, step in enumerate(steps) if step.kind == "norm"]
    if not norms:
        raise UntrainableBoundError(
            "A bound for every input needs a norm on the way, and this model has none that is known: without one no "
            f"training makes it bounded. Accepted: {ACCEPTED}. farfield.nn.RangeHead bounds any model by "
            "construction."
        )
    norm = norms[-1]
    for step in steps[norm + 1 :]:
        if step.kind == "other":
            raise UntrainableBoundError(
                f"Behind the last norm only activations and linear layers can be bounded with gradients; got "
                f"{type(step.module).__name__} at {step.name!r}. Accepted: {ACCEPTED}. For another model train with "
                "farfield.nn.RangeHead at its end, which bounds it by construction."
            )
    features = _features(model, steps, norm, example)
    module = steps[norm].module
    if isinstance(module, nn.LayerNorm | nn.RMSNorm) and len(module.normalized_shape) != 1:
        raise UntrainableBoundError(
            f"The norm at {steps[norm].name!r} normalizes over {list(module.normalized_shape)}; only the last axis "
            "can be bounded with gradients. Flatten before it."
        )
    parametrized = (
        norm > 0
        and all(step.kind == "affine" for step in steps[:norm])
        and not isinstance(module, GroupedLayerNorm)
        and _norm_eps(module) > 0
        and isinstance(steps[0].module, nn.Linear | ScaledLinear)
        and _inputs(steps[0].module) + 1 <= features - 1
    )
    return NormedChain(steps, norm, features, parametrized)


def _features(model: nn.Module, steps: tuple[ChainStep, ...], norm: int, example: Tensor) -> int:
    """Size of the last norm's axis; on the way, that the steps in turn are what the model computes."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            expected, value, features = model(example), example, 0
            for i, step in enumerate(steps):
                features = int(value.shape[-1]) if i == norm else features
                value = step.module(value)
    finally:
        for module, mode in modes.items():
            module.training = mode
    if value.shape != expected.shape or not torch.allclose(value, expected, rtol=1e-4, atol=1e-5):
        raise UntrainableBoundError(
            "Run one after the other, the modules of this model give another value than the model itself: it has a "
            f"forward or hooks of its own. Accepted: {ACCEPTED}."
        )
    return features


def _steps(name: str, module: nn.Module) -> list[ChainStep]:
    if isinstance(module, NORMS):
        return [ChainStep("norm", name, module)]
    if isinstance(module, (nn.Linear, ScaledLinear, Center, *PASSING)):
        return [ChainStep("affine", name, module)]
    if isinstance(module, nn.Sequential):
        return [
            s for key, child in module.named_children() for s in _steps(f"{name}.{key}".strip("."), child)
        ]
    if isinstance(module, Elementwise) and module.function is None and module.scale != 1.0:
        plain = Elementwise(module.sigma)
        return [
            ChainStep("curve", name, plain, _curve(plain))
            if _curve(plain)
            else ChainStep("other", name, plain),
            ChainStep("affine", name, Scale(module.scale)),
        ]
    curve = None if any(True for _ in module.parameters()) else _curve(module)
    return [ChainStep("other" if curve is None else "curve", name, module, curve)]


def _curve(module: nn.Module) -> ScalarFunction | None:
    """The scalar function of a module that is one operation, entry by entry."""
    try:
        program = capture(module, torch.zeros(1, 3), dynamic_batch=False)
    except Exception:  # whatever refuses three numbers is no activation
        return None
    nodes = [n for n in program.nodes if n.role == "operation" and n.op != "identity"]
    return describe(nodes[0]).scalar if len(nodes) == 1 and is_curve(nodes[0]) else None


def _inputs(module: nn.Module) -> int:
    assert isinstance(module, nn.Linear | ScaledLinear)
    return int(module.in_features)


def _affine(module: nn.Module, size: int) -> tuple[Tensor, Tensor]:
    """(W, b) of an affine module, in float64, carrying gradients."""
    if isinstance(module, nn.Linear | ScaledLinear):
        weight, bias = module.weight.double(), module.bias
        given = torch.zeros(weight.shape[0], dtype=torch.float64) if bias is None else bias.double()
        if isinstance(module, ScaledLinear):
            weight = weight * math.sqrt(module.weight_var / module.in_features)
            given = given * math.sqrt(module.bias_var)
        return weight, given
    eye = torch.eye(size, dtype=torch.float64)
    zero = torch.zeros(size, dtype=torch.float64)
    if isinstance(module, Center):
        return eye - 1.0 / size, zero
    return (module.factor * eye if isinstance(module, Scale) else eye), zero


def _norm_affine(module: nn.Module, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The norm's own scale and shift on its image."""
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    if isinstance(weight, Tensor):
        matrix = weight.double()[:, None] * matrix
    if isinstance(bias, Tensor):
        return matrix, bias.double()
    return matrix, torch.zeros(matrix.shape[0], dtype=torch.float64)


def _centered(module: nn.Module) -> bool:
    return isinstance(module, nn.LayerNorm | LayerNorm | GroupedLayerNorm)


def _norm_eps(module: nn.Module) -> float:
    if isinstance(module, LayerNorm):
        return float(module[1].norm_eps)  # type: ignore[arg-type]
    if isinstance(module, Project | GroupedLayerNorm):
        return module.norm_eps
    assert isinstance(module, nn.LayerNorm | nn.RMSNorm)
    if module.eps is None:
        weight = module.weight
        return torch.finfo(weight.dtype if isinstance(weight, Tensor) else torch.get_default_dtype()).eps
    return float(module.eps)


def _power_of_two(value: Tensor) -> Tensor:
    safe = torch.where(value > 0, value.clamp(1e-100, 1e100), torch.ones_like(value))
    return torch.exp2(torch.ceil(torch.log2(safe)))
