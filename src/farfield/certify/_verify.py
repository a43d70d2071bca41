"""A certificate checked: by the checker, and its rounding by the analysis that bounds it, once more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from farfield.certify._domain import bounding_boxes
from farfield.certify.arithmetic import FORMATS, RoundingError, rounding_error
from farfield.certify.checker import CertificateError, Verification, check_program, read_certificate
from farfield.graph import Program

__all__ = ["verify_certificate"]

ROOM = 1e-6
"""Relative difference put down to the platform's sums."""
_AGAIN = (
    "arithmetic: how much rounding adds was computed again by the code that certify uses, not by the checker"
)


def verify_certificate(model: Any, certificate: Any, inputs: Any = None) -> Verification:
    """Check a certificate from the model and the stored numbers alone.

    Nothing that found a bound is trusted: see :func:`farfield.certify.checker.verify_certificate`, which shares no
    code with the search. Only what a certificate adds for rounding (``arithmetic``) has no second derivation: it is
    computed again from the model, and less than that is refused.

    Parameters
    ----------
    model
        What the certificate speaks of.
    certificate
        A path, the plain data, or an object with ``to_dict()``.
    inputs
        Example inputs to capture the model with, of which the first row is taken, as ``certify`` does; zeros of the
        certificate's ``input_shape`` by default.

    Returns
    -------
    Verification
        True, with the assumptions and with what was not checked; whatever is wrong raises.

    Raises
    ------
    CertificateError
        Where a check fails, or the certificate is not written as one.
    """
    program, data = read_certificate(model, certificate, inputs)
    found = check_program(program, data)
    parts = [data] if data.get("within") is None else [data, data["within"]]
    if all(part.get("arithmetic") is None for part in parts):
        return found
    for part in parts:
        if part.get("arithmetic") is not None:
            _check_rounding(program, part)
    said = (_AGAIN if text.startswith("arithmetic") else text for text in found.unchecked)
    return replace(found, unchecked=tuple(said))


def _check_rounding(program: Program, data: Mapping[str, Any]) -> None:
    """What was added for rounding is no less than what is computed again, at inputs as large."""
    stated = data["arithmetic"]
    try:
        boxes = bounding_boxes(data["domain"], program)
        made = rounding_error(
            program, data["output"], FORMATS[stated["format"]], boxes, float(stated["magnitude"])
        )
    except RoundingError as error:
        raise CertificateError(f"What rounding adds can't be bounded: {error}") from error
    added = torch.tensor(stated["error"], dtype=torch.float64).reshape(made.error.shape)
    if float(stated["magnitude"]) > made.magnitude * (1 + ROOM) or bool(
        (added < made.error * (1 - ROOM)).any()
    ):
        raise CertificateError(
            f"Rounding adds up to {float(made.error.max()):.3g} at inputs up to {made.magnitude:.0e}; it says "
            f"{float(added.max()):.3g} at inputs up to {float(stated['magnitude']):.0e}."
        )
