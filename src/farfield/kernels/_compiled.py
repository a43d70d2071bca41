r"""The passes over a block of kernel entries as one, compiled by numba; imported only where it is installed.

With torch alone every degree of the polynomial is a pass over a block in the second-level cache, and two dozen of
them are most of an entry's time. Here a few hundred entries at a time stay in the first-level cache: their angles,
then four degrees of Horner's rule to a load and a store. The angles are

.. math:: \arcsin\sqrt z = \sqrt z\,(1 + z R(z)), \qquad \arcsin t = \frac\pi2 - 2\arcsin\sqrt{(1-t)/2}\ \ (t > 1/2)

with R a polynomial that interpolates at Chebyshev points. There is no branch in a loop, only choices between two
values, which vector instructions have; NaN stays NaN. Sums stay in the order written, so that a value does not depend
on its place in a block. Arrays are one-dimensional and contiguous, results may go into the array of the arguments,
and the number of coefficients is a multiple of four.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = ["SWITCHED_OFF", "narrow", "padded", "polynomial", "wide"]

SWITCHED_OFF = bool(getattr(numba.config, "DISABLE_JIT", False))
"""Whether numba was told to compile nothing: Python's own loops would take a thousand times as long."""

_Function = TypeVar("_Function", bound=Callable[..., Any])

_CHUNK = 512
_HALF_PI = math.pi / 2
_QUARTER_PI = np.float32(math.pi / 4)
# R on [0, 1/4]: the arcsine is off by 6e-17 at most.
_A0, _A1, _A2, _A3 = 0.1666666666666665, 0.07500000000020764, 0.044642857103423646, 0.03038194736709848
_A4, _A5, _A6, _A7 = 0.02237204763174451, 0.017355259955786323, 0.013929652902326633, 0.011875494382636922
_A8, _A9, _A10, _A11 = 0.0078029494773533175, 0.01603551434914882, -0.010749050339697808, 0.028169218060881414
# R on [0, 1/2], for float32: 9e-9.
_B0, _B1, _B2 = (
    np.float32(0.16666665678232892),
    np.float32(0.07500252163633334),
    np.float32(0.044538813973175724),
)
_B3, _B4, _B5 = (
    np.float32(0.03199023922716213),
    np.float32(0.010435325974988746),
    np.float32(0.06379697638268081),
)
_B6, _B7 = np.float32(-0.07972071595315332), np.float32(0.09469734959597223)


def _jit(function: _Function) -> _Function:
    """Compiled at its first call, or read from where numba keeps it since an earlier process.

    ``contract`` alone of the liberties with arithmetic: a product and a sum in one instruction.
    """
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}
    made: Any
    try:
        made = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # nowhere to keep it: a read-only installation, and no home
        made = numba.njit(**options)(function)
    return cast("_Function", made)


def padded(terms: NDArray[Any]) -> NDArray[Any]:
    """Coefficients with zeros for the highest powers, up to a multiple of four."""
    return np.concatenate([terms, np.zeros(-len(terms) % 4, dtype=terms.dtype)])


@_jit
def _horner(w: NDArray[Any], partial: NDArray[Any], out: NDArray[Any], terms: NDArray[Any]) -> None:
    """Σ terms[k]·wᵏ of one chunk."""
    size = len(w)
    partial[:] = 0
    for k in range(len(terms) // 4 - 1, 0, -1):
        c3, c2, c1, c0 = terms[4 * k + 3], terms[4 * k + 2], terms[4 * k + 1], terms[4 * k]
        for i in range(size):
            u = w[i]
            partial[i] = (((partial[i] * u + c3) * u + c2) * u + c1) * u + c0
    c3, c2, c1, c0 = terms[3], terms[2], terms[1], terms[0]
    for i in range(size):
        u = w[i]
        out[i] = (((partial[i] * u + c3) * u + c2) * u + c1) * u + c0


@_jit
def polynomial(w: NDArray[Any], out: NDArray[Any], terms: NDArray[Any]) -> None:
    """Σ terms[k]·wᵏ, the constant one first."""
    partial = np.empty(_CHUNK, dtype=w.dtype)
    for start in range(0, len(w), _CHUNK):
        own = w[start : start + _CHUNK]
        _horner(own, partial[: len(own)], out[start : start + _CHUNK], terms)


@_jit
def wide(
    products: NDArray[np.float64], out: NDArray[np.float64], terms: NDArray[np.float64], clear: float
) -> int:
    """The polynomial in w = arcsin(product), in float64.

    Entries whose product is not below ``clear`` in size, NaN included, become NaN; returned is how many.
    """
    angle, partial = np.empty(_CHUNK), np.empty(_CHUNK)
    lost = 0
    for start in range(0, len(products), _CHUNK):
        own = products[start : start + _CHUNK]
        w = angle[: len(own)]
        for i in range(len(own)):
            t = own[i]
            a = abs(t)
            inner, outer = a * a, 0.5 - 0.5 * a
            z = inner if inner < outer else outer  # noqa: FURB136
            s = math.sqrt(z)
            q = (((((_A11 * z + _A10) * z + _A9) * z + _A8) * z + _A7) * z + _A6) * z + _A5
            q = ((((q * z + _A4) * z + _A3) * z + _A2) * z + _A1) * z + _A0
            r = s + s * z * q
            r = _HALF_PI - 2.0 * r if outer < inner else r
            r = r if a < clear else math.nan
            lost += 0 if a < clear else 1
            w[i] = r if t > 0.0 else -r
        _horner(w, partial[: len(own)], out[start : start + _CHUNK], terms)
    return lost


@_jit
def narrow(squares: NDArray[np.float64], out: NDArray[np.float32], terms: NDArray[np.float32]) -> None:
    """The polynomial in w = θ/2 − π/4 from sin²(θ/2), in float32.

    The smaller of sin² and cos² is found in float64: float32 loses no digit at either end.
    """
    angle, partial = np.empty(_CHUNK, dtype=np.float32), np.empty(_CHUNK, dtype=np.float32)
    for start in range(0, len(squares), _CHUNK):
        own = squares[start : start + _CHUNK]
        w = angle[: len(own)]
        for i in range(len(own)):
            sine = own[i]
            cosine = 1.0 - sine
            less = sine if sine < cosine else cosine  # noqa: FURB136
            z = np.float32(0.0 if less < 0.0 else less)  # noqa: FURB136
            s = np.sqrt(z)
            q = (((_B7 * z + _B6) * z + _B5) * z + _B4) * z + _B3
            q = ((q * z + _B2) * z + _B1) * z + _B0
            r = s + s * z * q - _QUARTER_PI
            w[i] = -r if cosine < sine else r
        _horner(w, partial[: len(own)], out[start : start + _CHUNK], terms)
