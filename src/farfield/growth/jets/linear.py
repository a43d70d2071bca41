"""Jets of linear maps: exact on every coefficient; the bias belongs to power 0."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from farfield.graph._wide import is_narrow, linear_in_blocks
from farfield.growth._jet import ROUNDING, Jet, add, convolve, linear_map, matmul, product_floor
from farfield.growth._leading import spread_floor
from farfield.growth._step import Step, jet_rule

__all__ = ["matrix_product", "reshaped", "transposed"]


def transposed(jet: Jet) -> Jet:
    """The last two axes exchanged."""
    return Jet(jet.powers, jet.values.mT, jet.errors.mT, jet.full_floor().mT)


def matrix_product(a: Jet, b: Jet, lowest: float) -> Jet:
    """As ``torch.matmul``: vectors become matrices for the product and lose the extra axis again."""
    left, right = a.ndim == 1, b.ndim == 1
    if left:
        a = reshaped(a, (1, *a.shape))
    if right:
        b = reshaped(b, (*b.shape, 1))
    result = matmul(a, b, lowest)
    shape = list(result.shape)
    if right:
        shape.pop(-1)
    if left:
        shape.pop(-1 if right else -2)
    return reshaped(result, tuple(shape)) if left or right else result


def reshaped(jet: Jet, shape: tuple[int, ...]) -> Jet:
    """The same entries in another shape."""
    count = len(jet.powers)
    return Jet(
        jet.powers,
        jet.values.reshape(count, *shape),
        jet.errors.reshape(count, *shape),
        jet.full_floor().reshape(shape),
    )


def _weight(jet: Jet) -> Tensor:
    return jet.values[0]


@jet_rule("linear")
def _linear(step: Step) -> Jet:
    x, weight = step.jet(0), step.jet(1)
    mixed = x.values.is_complex() or weight.values.is_complex()
    if mixed and not weight.is_constant:
        raise NotImplementedError("complex layers whose weights move are not followed to infinity")
    if not mixed and weight.is_constant and is_narrow(_weight(weight), torch.float64):
        with torch.no_grad():
            squares = x.errors.square() + ROUNDING**2 * x.values.abs().square()
        values, variances = linear_in_blocks(x.values, _weight(weight), squares)
        result = Jet(x.powers, values, variances.sqrt(), spread_floor(x.full_floor(), (-1,)))
    elif weight.is_constant and x.ndim > 0:
        tensor = _weight(weight)
        squared = tensor.abs().square()
        if mixed:
            tensor = tensor.to(torch.complex128)
        result = linear_map(
            x,
            lambda v: torch.nn.functional.linear(v.to(tensor.dtype), tensor),
            lambda v: torch.nn.functional.linear(v, squared),
            spread_floor(x.full_floor(), (-1,)),
        )
    else:
        result = matrix_product(x, transposed(weight), step.lowest)
    return _biased(result, step.jet(2), step.lowest) if step.present(2) else result


def _biased(result: Jet, bias: Jet, lowest: float) -> Jet:
    """With a bias added; where only higher powers are followed, a constant one goes into the floor at once."""
    if lowest > 0.0 and bias.is_constant and bias.values.is_floating_point():
        return result.raised(torch.where(bias.values[0] != 0, lowest, -math.inf).to(torch.float64))
    return add(result, bias)


@jet_rule("matmul")
def _matmul(step: Step) -> Jet:
    return matrix_product(step.jet(0), step.jet(1), step.lowest)


@jet_rule("conv", "conv_transpose")
def _convolution(step: Step) -> Jet:
    x, weight = step.jet(0), step.jet(1)
    spatial = weight.ndim - 2
    axes = tuple(range(x.ndim - spatial - 1, x.ndim))
    floor = spread_floor(x.full_floor(), axes)
    if weight.is_constant:
        tensor = _weight(weight)
        squared = tensor.square()
        result = linear_map(
            x, lambda v: step.compute(v, tensor, None), lambda v: step.compute(v, squared, None), floor
        )
    else:
        every = tuple(range(weight.ndim))
        top_x = x.top().amax(axes, keepdim=True)
        top_w = weight.top().amax(every).reshape((1,) * x.ndim)
        floor_w = weight.full_floor().amax(every).reshape((1,) * x.ndim)
        joined = product_floor(
            Jet(x.powers, x.values, x.errors, floor),
            Jet(weight.powers, weight.values, weight.errors, floor_w),
            top_x,
            top_w,
        )
        result = convolve(x, weight, lambda v, w: step.compute(v, w, None), joined, step.lowest)
    if not step.present(2):
        return result
    bias = step.jet(2)
    shape = (bias.shape[0], *(1,) * spatial)
    return _biased(result, reshaped(bias, shape), step.lowest)


@jet_rule("fft_fft", "fft_ifft", "fft_rfft", "fft_irfft")
def _transform(step: Step) -> Jet:
    """Discrete Fourier transforms: unitary up to scale, so errors are spread evenly over the transformed axes."""
    x = step.jet(0)
    axes = tuple(step.attributes["dim"])
    values = torch.stack([step.compute(v) for v in x.values])
    with torch.no_grad():
        size = (x.errors.square() + 2.0**-106 * x.values.abs().square()).sum(
            [a + 1 for a in axes], keepdim=True
        )
        if step.attributes.get("norm") != "backward" or step.node.op in ("fft_fft", "fft_rfft"):
            errors = size.sqrt()
        else:
            count = 1
            for axis in axes:
                count *= x.shape[axis]
            errors = 2.0 * size.sqrt() / count**0.5
        errors = errors.expand(values.shape)
    floor = spread_floor(x.full_floor(), axes)
    return Jet(x.powers, values, errors, floor)
