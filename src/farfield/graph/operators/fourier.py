"""Discrete Fourier transforms, and the complex numbers they bring."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from farfield.graph._node import Node
from farfield.graph.operators._bindings import all_axes, complex_, example, real
from farfield.graph.operators._facts import Facts
from farfield.graph.operators._registry import Binding, Call, Operator, Target, calling

__all__ = ["OPERATORS"]

PI = math.nextafter(math.pi, 4.0)

_TRANSFORMS: dict[str, Callable[..., Any]] = {
    "fft_fft": torch.fft.fftn,
    "fft_ifft": torch.fft.ifftn,
    "fft_rfft": torch.fft.rfftn,
    "fft_irfft": torch.fft.irfftn,
}
_SCALING = {True: ("backward", "ortho", "forward"), False: ("forward", "ortho", "backward")}


def _axes(call: Call) -> dict[str, Any]:
    """Sizes and axes of an ``fft``, ``fft2`` or ``fftn`` call, as lists either way."""
    a = call.arguments
    rank = len(a["input"].shape)
    sizes = a.get("s", a.get("n"))
    sizes = (sizes,) if isinstance(sizes, int) else sizes
    dim = a.get("dim")
    if dim is None and sizes is not None:
        dim = tuple(range(rank - len(sizes), rank))
    return {
        "input": a["input"],
        "s": None if sizes is None else tuple(sizes),
        "dim": all_axes(dim, rank),
        "norm": a.get("norm") or "backward",
    }


def _raw(forward: bool | None) -> Binding:
    """Arguments of the kernels that transforms become once they are decomposed."""

    def bind(call: Call) -> dict[str, Any]:
        a = call.arguments
        rank = len(a["input"].shape)
        dim = all_axes(a["dim"], rank)
        direction = bool(a["forward"]) if forward is None else forward
        last = a.get("last_dim_size")
        shape = a["input"].shape
        sizes = None if last is None else (*(shape[d] for d in dim[:-1]), last)
        return {
            "input": a["input"],
            "s": sizes,
            "dim": dim,
            "norm": _SCALING[direction][a["normalization"]],
        }

    return bind


_LINEAR = Facts(linear=((0,),), complex=True)


def _transform(name: str) -> Callable[[Node, Sequence[Any]], Any]:
    def compute(node: Node, tensors: Sequence[Any]) -> Any:
        a = node.attributes
        return _TRANSFORMS[name](tensors[0], a["s"], a["dim"], a["norm"])

    return compute


def _fourier(
    name: str, summary: str, targets: tuple[Target, ...], *functions: Callable[..., Any], of: Any = real
) -> Operator:
    spelled = tuple(Target(f"aten.{name}{n}.default", _axes) for n in ("", "2", "n"))
    return Operator(
        name,
        "fourier",
        summary + " over the axes dim, cut or padded to sizes s, scaled as norm says",
        ("input",),
        (*spelled, *targets),
        _transform(name),
        tuple(example(f, of(2, 5, 6)) for f in functions),
        facts=_LINEAR,
    )


def _simple(
    name: str,
    summary: str,
    function: Callable[..., Any],
    *targets: str,
    of: Any = complex_,
    facts: Facts,
) -> Operator:
    def compute(node: Node, tensors: Sequence[Any]) -> Any:
        return function(tensors[0])

    return Operator(
        name,
        "fourier",
        summary,
        ("input",),
        tuple(Target(f"aten.{t}.default") for t in targets),
        compute,
        (example(function, of(3, 2)),),
        facts=facts,
    )


def _polar(node: Node, tensors: Sequence[Any]) -> Any:
    return torch.polar(tensors[0], tensors[1])


OPERATORS = (
    _fourier(
        "fft_fft",
        "discrete Fourier transform",
        (Target("aten._fft_c2c.default", _raw(None)),),
        lambda x: torch.fft.fft(x, dim=1),
        lambda x: torch.fft.fftn(x, dim=(1, 2), norm="ortho"),
        of=complex_,
    ),
    _fourier(
        "fft_ifft",
        "inverse discrete Fourier transform",
        (Target("aten._fft_c2c.default#inverse", _raw(None)),),
        lambda x: torch.fft.ifft(x),
        lambda x: torch.fft.ifft2(x, norm="forward"),
        of=complex_,
    ),
    _fourier(
        "fft_rfft",
        "the non-redundant half of the transform of a real tensor",
        (Target("aten._fft_r2c.default", _raw(True)),),
        lambda x: torch.fft.rfft(x),
        lambda x: torch.fft.rfft2(x, s=(4, 4)),
    ),
    _fourier(
        "fft_irfft",
        "the real tensor whose half transform is input",
        (Target("aten._fft_c2r.default", _raw(False)),),
        lambda x: torch.fft.irfft(x, n=9),
        lambda x: torch.fft.irfft2(x),
        of=complex_,
    ),
    _simple("real", "real part", torch.real, "real", facts=_LINEAR),
    _simple("imag", "imaginary part", torch.imag, "imag", facts=_LINEAR),
    _simple(
        "conj",
        "complex conjugate",
        lambda x: torch.conj_physical(x),
        "conj_physical",
        "_conj_physical",
        "_conj",
        "conj",
        facts=_LINEAR,
    ),
    _simple(
        "angle",
        "argument of a complex number, in [−π, π]",
        torch.angle,
        "angle",
        facts=Facts(complex=True, range=(-PI, PI)),
    ),
    _simple(
        "view_as_real",
        "real and imaginary parts along a new last axis",
        torch.view_as_real,
        "view_as_real",
        facts=_LINEAR,
    ),
    _simple(
        "view_as_complex",
        "complex numbers from a last axis of length 2",
        torch.view_as_complex,
        "view_as_complex",
        of=real,
        facts=_LINEAR,
    ),
    Operator(
        "complex",
        "fourier",
        "real + i · imag",
        ("real", "imag"),
        (Target("aten.complex.default"),),
        calling(torch.complex),
        (example(torch.complex, real(3), real(3)),),
        facts=Facts(linear=((0, 1),), complex=True),
    ),
    Operator(
        "polar",
        "fourier",
        "abs · e^{i · angle}",
        ("abs", "angle"),
        (Target("aten.polar.default"),),
        _polar,
        (example(torch.polar, real(3), real(3)),),
        facts=Facts(complex=True),
    ),
)
