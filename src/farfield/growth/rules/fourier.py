"""Fourier transforms: linear maps of bounded weights. A claim about a complex tensor is one about both its parts."""

from __future__ import annotations

import math

from farfield.growth._extent import Extent, inherit, join, undefined
from farfield.growth._rate import SINGULAR
from farfield.growth._registry import Site, growth_rule, size_of
from farfield.growth.rules.arithmetic import symmetric

__all__: list[str] = []


@growth_rule("fft_fft", "fft_ifft", "fft_rfft", "fft_irfft")
def _transform(site: Site) -> Extent:
    x = site.extent(0)
    if x.rate == SINGULAR:
        return undefined(site.name, "a Fourier transform of values that may be infinite", x)
    op, norm = site.node.op, site.attributes.get("norm", "backward")
    sizes = site.attributes.get("s")
    producer = site.producers[0]
    shape = producer.shape if producer is not None else ()
    count = (
        size_of(tuple(sizes))
        if sizes is not None
        else size_of(tuple(shape[d] for d in site.attributes["dim"]))
    )
    if op == "fft_irfft" and sizes is None:
        count *= 2.0
    inverse = op in ("fft_ifft", "fft_irfft")
    divided = norm == ("backward" if inverse else "forward")
    factor = 1.0 if divided else (math.sqrt(count) if norm == "ortho" else count)
    return symmetric(x, math.sqrt(2.0) * factor * (1.0 + 1e-12))


@growth_rule("imag", "conj")
def _part(site: Site) -> Extent:
    return symmetric(site.extent(0))


@growth_rule("complex")
def _complex(site: Site) -> Extent:
    return join(site.extent(0), site.extent(1))


@growth_rule("polar")
def _polar(site: Site) -> Extent:
    size, angle = site.extent(0), site.extent(1)
    if angle.rate == SINGULAR:
        return undefined(site.name, "the angle of a complex number may be infinite", size, angle)
    return inherit(symmetric(size), angle)
