"""A second pair of eyes: certificates checked again from the model and the stored numbers alone.

Nothing that found a bound is trusted. A certificate stands when the program is the one it was made for, every
bound it publishes follows from its proofs by the arithmetic of :mod:`farfield.certify._check_values`, and no bound is
passed by a value the program attains.

A **dual** proof of sign·f ≤ bound has multipliers for which, at every input,

    sign·f = joint(x) + Σ_curves [sσ(z) + Tσ(z)² + Eσ(z)z − Θz² − rz] + Σ_boxes [sy + Ty²] − (what is never negative)

so sign·f ≤ max joint + Σ of one-dimensional maxima. The joint part c·x + Θz² + rz − sy − Ty² − Eyz + κ(ρ² − xᵀGx)
− ω(Σx)² + gᵀNg is at most γ where the bordered matrix of γ − joint is positive semidefinite. N ≥ 0 multiplies forms
g ≥ 0, κ ≥ 0 multiplies ρ² − xᵀGx ≥ 0, and Σx = 0 within a group of a norm that centres.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from farfield.certify._check_cells import check_cells
from farfield.certify._check_dual import SPARE, DualCheck
from farfield.certify._check_intervals import Ranges, ranges
from farfield.certify._check_values import (
    Array,
    CertificateError,
)
from farfield.certify._hash import model_hash
from farfield.certify._softmax import DIFFERENCES, difference_program, pairs
from farfield.graph import Program, capture

__all__ = ["CertificateError", "check_program", "proof_reader", "verify_certificate"]


def verify_certificate(model: Any, certificate: Any, inputs: Any = None) -> bool:
    """Check a certificate again, from the model and the stored numbers alone.

    Parameters
    ----------
    model
        What the certificate speaks of.
    certificate
        A path, the plain data, or an object with ``to_dict()``.
    inputs
        Example inputs to capture the model with; zeros of the certificate's ``input_shape`` by default.

    Returns
    -------
    bool
        ``True``; whatever is wrong raises.

    Raises
    ------
    CertificateError
        Where a check fails. The bound of a proof recomputed here may exceed the stored one by 1e-9·max(1, |bound|),
        and what the certificate publishes must leave room for that.
    """
    data = _read(certificate)
    if inputs is None:
        inputs = [
            torch.zeros(shape, dtype=getattr(torch, str(kind).removeprefix("torch.")))
            for shape, kind in zip(data["input_shape"], data["input_dtype"], strict=True)
        ]
    example = tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)
    return check_program(capture(model, example, dynamic_batch=False), data)


def _read(certificate: Any) -> Mapping[str, Any]:
    if isinstance(certificate, str | Path):
        certificate = json.loads(Path(certificate).read_text(encoding="utf-8"))
    elif hasattr(certificate, "to_dict"):
        certificate = certificate.to_dict()
    if not isinstance(certificate, Mapping) or certificate.get("format") != "farfield-certificate/1":
        raise CertificateError("This is no certificate of the format farfield-certificate/1.")
    return certificate


def check_program(program: Program, certificate: Any) -> bool:
    """The same for a program that is captured already."""
    data = _read(certificate)
    try:
        return _check(program, data)
    except (KeyError, TypeError, IndexError, ValueError, OverflowError) as error:
        raise CertificateError(
            f"The certificate is not written as one: {type(error).__name__}: {error}."
        ) from error


def _check(program: Program, data: Mapping[str, Any]) -> bool:
    digest = model_hash(program)
    if digest != data["model_hash"]:
        raise CertificateError(
            f"The model is not the certificate's: its hash is {digest}, not {data['model_hash']}."
        )
    output = str(data["output"])
    if output not in program.outputs:
        raise CertificateError(f"The program has no output {output!r}; it has {', '.join(program.outputs)}.")
    confined, unbounded = _domain(program, data["domain"])
    size = math.prod(int(d) for d in program.node(output).shape)
    lower, upper = ([float(v) for v in data[side]] for side in ("lower", "upper"))
    if len(lower) != size or len(upper) != size or any(math.isnan(v) for v in (*lower, *upper)):
        raise CertificateError(
            f"{output!r} has {size} entries; the certificate bounds {len(lower)} and {len(upper)}."
        )
    with np.errstate(all="ignore"), torch.no_grad():
        _check_witnesses(program, output, data, lower, upper)
        proved = _check_proofs(program, output, data, confined, unbounded)
    for index in range(size):
        for side, published in (("upper", upper[index]), ("lower", -lower[index])):
            if published < proved.get((index, side), math.inf):
                raise CertificateError(
                    f"The {side} bound of entry {index} is not proved: {published:.12g} is published, "
                    f"{proved.get((index, side), math.inf):.12g} is proved (both of sign·f)."
                )
    return True


def _domain(program: Program, domain: Mapping[str, Any]) -> tuple[dict[str, tuple[Array, Array]], str | None]:
    real = [spec for spec in program.inputs if spec.kind == "real"]
    if domain["kind"] in ("all", "halfspace"):  # what holds everywhere holds in a half-space
        return {}, real[0].name if len(real) == 1 else None
    if domain["kind"] != "box" or len(real) != 1:
        raise CertificateError("A certificate's domain is all inputs, or a box of the one real input.")
    shape = tuple(int(d) for d in real[0].shape)
    lower, upper = (np.array(domain[k], dtype=np.float64).reshape(-1) for k in ("lower", "upper"))
    if lower.size != math.prod(shape) or upper.size != lower.size or not (lower <= upper).all():
        raise CertificateError(f"The box needs {math.prod(shape)} lower ends, each at most the upper one.")
    return {real[0].name: (lower.reshape(shape), upper.reshape(shape))}, None


def _check_witnesses(
    program: Program, output: str, data: Mapping[str, Any], lower: Sequence[float], upper: Sequence[float]
) -> None:
    """Stored values are values of the program, and no bound is passed by one."""
    listed = data.get("witnesses") or {}
    found = [(side, index, w) for side in ("lower", "upper") for index, w in enumerate(listed.get(side, ()))]
    for side, index, witness in found:
        if witness.get("point") is None or any(spec.kind != "real" for spec in program.inputs):
            continue
        stored = float(witness["value"])
        value = float(
            program.evaluate(*_inputs(program, witness["point"]), keep=[output])[output].reshape(-1)[index]
        )
        allowed = 1e-9 * max(1.0, abs(value))
        if not abs(value - stored) <= allowed:
            raise CertificateError(
                f"The witness of the {side} side of entry {index} reaches {value:.12g}, not {stored:.12g}."
            )
        if not lower[index] <= value <= upper[index]:
            raise CertificateError(
                f"Entry {index} attains {value:.12g}, outside the published "
                f"[{lower[index]:.12g}, {upper[index]:.12g}]."
            )
        attained = data.get(f"attained_{side}")
        if attained is not None:
            claimed = float(attained[index])
            if (claimed > value + allowed) if side == "upper" else (claimed < value - allowed):
                raise CertificateError(
                    f"attained_{side} of entry {index} is {claimed:.12g}; its witness reaches {value:.12g}."
                )


def _inputs(program: Program, point: Sequence[float]) -> list[torch.Tensor]:
    """One tensor per input from their entries, flattened and joined."""
    flat, given = torch.tensor(point, dtype=torch.float64), []
    for spec in program.inputs:
        shape = tuple(int(d) for d in spec.shape)
        given.append(flat[: math.prod(shape)].reshape(shape))
        flat = flat[math.prod(shape) :]
    return given


def _check_proofs(
    program: Program,
    output: str,
    data: Mapping[str, Any],
    confined: dict[str, tuple[Array, Array]],
    unbounded: str | None,
) -> dict[tuple[int, str], float]:
    """(entry, side) → the bound of sign·f that the proofs establish."""
    known = ranges(program, confined)
    proved: dict[tuple[int, str], float] = {}
    size = math.prod(int(d) for d in program.node(output).shape)
    for number, proof in enumerate(data["proofs"]):
        index, side, bound = int(proof["output"]), str(proof["side"]), float(proof["bound"])
        if not 0 <= index < size or side not in ("upper", "lower"):
            raise CertificateError(f"Proof {number} is of entry {index}, side {side!r}: there is none.")
        sign = 1.0 if side == "upper" else -1.0
        try:
            found = _proved(program, output, known, confined, unbounded, proof, index, sign)
        except CertificateError as error:
            raise CertificateError(
                f"Proof {number} ({proof['kind']}, {side} bound of entry {index}): {error}"
            ) from error
        spare = SPARE * max(1.0, abs(bound))
        if not found <= bound + spare:
            raise CertificateError(
                f"Proof {number} ({proof['kind']}, {side} bound of entry {index}) states {bound:.12g} "
                f"and proves {found:.12g}: "
                f"{found - bound:.3g} more."
            )
        proved[index, side] = min(proved.get((index, side), math.inf), bound + spare)
    return proved


def proof_reader(
    program: Program, output: str, domain: Mapping[str, Any]
) -> Callable[[Mapping[str, Any]], float]:
    """Proof ↦ the bound of sign·f that it establishes by this checker's arithmetic; ranges are computed once."""
    confined, unbounded = _domain(program, domain)
    known = ranges(program, confined)

    def read(proof: Mapping[str, Any]) -> float:
        sign = 1.0 if proof["side"] == "upper" else -1.0
        return _proved(program, output, known, confined, unbounded, proof, int(proof["output"]), sign)

    return read


def _proved(
    program: Program, output: str, known: Ranges, confined: dict[str, tuple[Array, Array]], unbounded: str | None,
    proof: Mapping[str, Any], index: int, sign: float,
) -> float:  # fmt: skip
    if proof["kind"] == "dual":
        return DualCheck(program, output, known, unbounded, proof).check(index, sign)
    if proof["kind"] == "interval":
        lo, hi = known.of(output)
        return float(hi[index] if sign > 0 else -lo[index])
    if proof["kind"] == "cells":
        bound = float(proof["bound"])
        line = bound + SPARE * max(1.0, abs(bound))
        return check_cells(program, output, known, confined, unbounded, proof, index, sign, line)
    if proof["kind"] == "softmax":
        return _confidence(program, output, confined, unbounded, proof, index, sign)
    raise CertificateError(f"There is no kind of proof named {proof['kind']!r}.")


def _confidence(
    program: Program, output: str, confined: dict[str, tuple[Array, Array]], unbounded: str | None,
    proof: Mapping[str, Any], index: int, sign: float,
) -> float:  # fmt: skip
    """A probability's bound from proved bounds of logits' differences l_i − l_j ≤ D_ij."""
    differences = difference_program(program, output)
    if differences is None:
        raise CertificateError("The output is no softmax over a few classes.")
    proved = _check_proofs(differences, DIFFERENCES, {"proofs": proof["differences"]}, confined, unbounded)
    classes = math.prod(int(d) for d in program.node(output).shape)
    total = 1.0
    for row, (i, j) in enumerate(pairs(classes)):
        if (i if sign > 0 else j) != index:
            continue
        bound = proved.get((row, "upper"), math.inf)
        if sign > 0:
            total += math.exp(-bound) * (1 - 1e-14) if -700 < bound < 700 else 0.0
        else:
            total += math.exp(bound) * (1 + 1e-14) if bound < 700 else math.inf
    return sign * (1.0 / total) + 1e-13
