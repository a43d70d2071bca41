"""Certificates checked from the model and the stored numbers alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from farfield._regular_file import UnsafeFileError, read_json
from farfield.certify._hash import model_hash
from farfield.certify.checker._cells import CellsCheck
from farfield.certify.checker._cone import DomainCone
from farfield.certify.checker._dual import DualCheck
from farfield.certify.checker._given import (
    WITNESS,
    bounded_program,
    box_around,
    cone_of_domain,
    is_inside,
    listed,
    number,
)
from farfield.certify.checker._ranges import Ranges
from farfield.certify.checker._said import Verification, check_said
from farfield.certify.checker._softmax import DIFFERENCES, difference_program, probability_bound
from farfield.certify.checker._values import CertificateError, Span
from farfield.graph import Program, capture, example_inputs

__all__ = ["check_program", "proof_reader", "read_certificate", "uncheckable", "verify_certificate"]

SPARE = 1e-9
"""A bound computed here may exceed the stated one by this much of max(1, |bound|)."""
LONGEST = 1 << 24
"""Entries of an input that a certificate may ask for."""


def verify_certificate(model: Any, certificate: Any, inputs: Any = None) -> Verification:
    """Check a certificate from the model and the stored numbers alone.

    Nothing that found a bound is trusted. A certificate stands when the model is the one it was made for, every bound
    it publishes follows from its proofs by this checker's own arithmetic, and no bound is passed by a witness. The
    shapes, types, method, figures and assumptions are held against the model and the proofs. What was attained is
    evaluated again where a witness is stored. What a certificate says about rounding (``arithmetic``) is not derived
    again here: checked is that this much was added, in the model's own format. Whatever was not checked is named in
    the result.

    Parameters and result are those of :func:`farfield.certify.verify_certificate`.

    Raises
    ------
    CertificateError
        Where a check fails, or the certificate is not written as one. The bound of a proof computed here may exceed
        the stated one by 1e-9·max(1, |bound|); published bounds may not be below what is proved here.
    """
    return check_program(*read_certificate(model, certificate, inputs))


def read_certificate(model: Any, certificate: Any, inputs: Any = None) -> tuple[Program, Mapping[str, Any]]:
    """The program that a certificate speaks of, and its plain data; nothing is checked yet."""
    data = _read(certificate)
    if inputs is None:
        inputs = _zeros(data)
        try:
            program = capture(model, inputs, dynamic_batch=False)
        except Exception as error:
            raise CertificateError(
                f"The model does not run on the certificate's input_shape: {error}"
            ) from error
    else:
        inputs, _ = example_inputs(model, inputs)
        row = tree_map(lambda leaf: leaf[:1] if isinstance(leaf, Tensor) and leaf.ndim else leaf, inputs)
        program = capture(model, tuple(row) if isinstance(row, list) else row, dynamic_batch=False)
    return program, data


def check_program(program: Program, certificate: Any) -> Verification:
    """The same for a program that is captured already."""
    data = _read(certificate)
    try:
        with np.errstate(all="ignore"), torch.no_grad():
            return _check(program, data)
    except CertificateError:
        raise
    except Exception as error:  # whatever a malformed certificate leads to is a refusal
        raise CertificateError(
            f"The certificate is not written as one: {type(error).__name__}: {error}."
        ) from error


def proof_reader(
    program: Program, output: str, domain: Mapping[str, Any], stop: Callable[[], bool] = lambda: False
) -> Callable[[Mapping[str, Any]], float]:
    """Proof ↦ the bound of sign·f that it establishes by this checker's arithmetic; ranges are computed once.

    No more cells are looked at once ``stop()`` is true: the bound is what they gave until then, or ∞ where some of
    those that a proof lists have none.
    """
    checker = _Over(program, output, domain, stop)

    def read(proof: Mapping[str, Any]) -> float:
        with np.errstate(all="ignore"), torch.no_grad():
            return checker.proved(proof)[2]

    return read


def uncheckable(program: Program, output: str, domain: Mapping[str, Any] | None = None) -> str | None:
    """The operator of this program that keeps its output from being re-checked, in words; ``None`` if all is well.

    Known before anything is searched: it asks only whether this checker's plain intervals reach the output.

    Examples
    --------
    >>> from torch import nn
    >>> uncheckable(capture(nn.LayerNorm(3), torch.zeros(1, 3), dynamic_batch=False), "output") is None
    True
    """
    try:
        program, confined, _ = bounded_program(program, domain or {"kind": "all"})
        lo, hi = Ranges(program, confined).of(output)
    except CertificateError as error:
        return str(error)
    if np.isfinite(lo).all() and np.isfinite(hi).all():
        return None
    return "The independent checker proves no finite range of the output."


# -- the data ------------------------------------------------------------------------------------------------


def _read(certificate: Any) -> Mapping[str, Any]:
    if isinstance(certificate, str | Path):
        try:
            certificate = read_json(certificate)
        except UnsafeFileError as error:
            raise CertificateError(str(error)) from error
    elif hasattr(certificate, "to_dict"):
        certificate = certificate.to_dict()
    if not isinstance(certificate, Mapping) or certificate.get("format") != "farfield-certificate/1":
        raise CertificateError("This is no certificate of the format farfield-certificate/1.")
    return certificate


def _zeros(data: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    try:
        made = []
        for shape, kind in zip(data["input_shape"], data["input_dtype"], strict=True):
            sizes = [int(d) for d in shape]
            dtype = getattr(torch, str(kind).removeprefix("torch."))
            if not isinstance(dtype, torch.dtype) or min(sizes, default=0) < 0 or math.prod(sizes) > LONGEST:
                raise ValueError(f"no input has shape {sizes} and type {kind}")
            made.append(torch.zeros(sizes, dtype=dtype))
        return tuple(made)
    except Exception as error:
        raise CertificateError(
            f"input_shape and input_dtype are not written as they should be: {error}."
        ) from error


# -- the checks ----------------------------------------------------------------------------------------------


def _check(program: Program, data: Mapping[str, Any]) -> Verification:
    digest = model_hash(program)
    if digest != data["model_hash"]:
        raise CertificateError(
            f"The model is not the certificate's: its hash is {digest}, not {data['model_hash']}."
        )
    output = data["output"]
    if output not in program.outputs:
        raise CertificateError(f"The program has no output {output!r}; it has {', '.join(program.outputs)}.")
    domain = data["domain"]
    if not isinstance(domain, Mapping):
        raise CertificateError("A certificate's domain is a table with its kind.")
    size = math.prod(int(d) for d in program.node(output).shape)
    bounds = {
        s: [number(v, f"{s}[{i}]") for i, v in enumerate(listed(data[s], s))] for s in ("lower", "upper")
    }
    if any(len(side) != size for side in bounds.values()):
        raise CertificateError(
            f"{output!r} has {size} entries; the certificate bounds another number of them."
        )
    _check_witnesses(program, data, bounds)
    proved = _Over(program, output, domain).all(listed(data["proofs"], "proofs"))
    rounded = _rounding(data, size)
    for index in range(size):
        for side, published in (("upper", bounds["upper"][index]), ("lower", -bounds["lower"][index])):
            found = proved.get((index, side), math.inf)
            found += rounded[index]
            if published < found:
                raise CertificateError(
                    f"The {side} bound of entry {index} is not proved: {published:.12g} is published, {found:.12g} "
                    "is proved (both of sign·f)."
                )
    said = check_said(program, data)
    if data.get("within") is None:
        return said
    inner = _check_within(program, data)
    return replace(said, unchecked=tuple(dict.fromkeys((*said.unchecked, *inner.unchecked))))


def _rounding(data: Mapping[str, Any], size: int) -> list[float]:
    """What the certificate says it added for rounding, entry by entry; 0 for real arithmetic."""
    arithmetic = data.get("arithmetic")
    if arithmetic is None:
        return [0.0] * size
    if not isinstance(arithmetic, Mapping):
        raise CertificateError("A certificate's arithmetic is a table.")
    added = [number(v, "what is added for rounding") for v in listed(arithmetic["error"], "error")]
    if len(added) != size or not 0 <= min(added, default=0.0) <= max(added, default=0.0) < math.inf:
        raise CertificateError(
            f"What is added for rounding has {size} finite numbers, none of them negative."
        )
    return added


def _check_within(program: Program, data: Mapping[str, Any]) -> Verification:
    """The certificate over a second domain stands by itself."""
    if not isinstance(data["within"], Mapping):
        raise CertificateError("The certificate within a certificate is a table.")
    inner = _read(data["within"])
    if inner.get("within") is not None:
        raise CertificateError("The certificate within a certificate has another one in it.")
    if inner.get("output") != data["output"]:
        raise CertificateError("The certificate within a certificate is of another output.")
    try:
        return _check(program, inner)
    except CertificateError as error:
        raise CertificateError(f"Within: {error}") from error


def _check_witnesses(
    program: Program, data: Mapping[str, Any], bounds: Mapping[str, Sequence[float]]
) -> None:
    """Stored values are values of the program, at inputs of the domain, and no bound is passed by one."""
    if any(spec.kind != "real" for spec in program.inputs):
        return
    output, listed = data["output"], data.get("witnesses") or {}
    for side in ("lower", "upper"):
        for index, witness in enumerate(listed.get(side) or ()):
            if witness.get("point") is None:
                continue
            point = np.array([number(v, "a witness's point") for v in witness["point"]])
            if not is_inside(data["domain"], point):
                raise CertificateError("A witness lies outside the certificate's domain.")
            value = float(
                program.evaluate(*_inputs(program, point), keep=[output])[output].reshape(-1)[index]
            )
            stored, allowed = number(witness["value"], "a witness's value"), WITNESS * max(1.0, abs(value))
            if not abs(value - stored) <= allowed:
                raise CertificateError(
                    f"The witness of {side}[{index}] reaches {value:.12g}, not {stored:.12g}."
                )
            low, high = bounds["lower"][index], bounds["upper"][index]
            if not low - allowed <= value <= high + allowed:
                raise CertificateError(
                    f"Entry {index} attains {value:.12g}, outside the published [{low:.12g}, {high:.12g}]."
                )
            attained = data.get(f"attained_{side}")
            if attained is not None:
                claimed = number(attained[index], f"attained_{side}[{index}]")
                if (claimed > value + allowed) if side == "upper" else (claimed < value - allowed):
                    raise CertificateError(
                        f"attained_{side}[{index}] is {claimed:.12g}; its witness reaches {value:.12g}."
                    )


def _inputs(program: Program, point: Any) -> list[torch.Tensor]:
    """One tensor per input from their entries, flattened and joined."""
    given, begin = [], 0
    for spec in program.inputs:
        shape = tuple(int(d) for d in spec.shape)
        part = point[begin : begin + math.prod(shape)]
        begin += math.prod(shape)
        if part.size != math.prod(shape):
            raise CertificateError(f"A witness's point has {point.size} entries, too few for the inputs.")
        given.append(torch.from_numpy(part.reshape(shape)))
    return given


class _Over:
    """Proofs about one output over a domain: by its own program, the box around an ellipsoid, in homogeneous
    coordinates, or about every input.
    """

    def __init__(
        self,
        program: Program,
        output: str,
        domain: Mapping[str, Any],
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        whole = {"kind": "all"}
        self.make: dict[str, Callable[[], _Checker]] = {
            "domain": lambda: _Checker(output, *bounded_program(program, domain), stop=stop),
            "box": lambda: _Checker(
                output,
                *bounded_program(program, box_around(program, domain)),
                ball=cone_of_domain(program, domain),
                stop=stop,
            ),
            "everywhere": lambda: _Checker(output, *bounded_program(program, whole), stop=stop),
            "cone": lambda: _Checker(
                output, *bounded_program(program, whole), cone=cone_of_domain(program, domain), stop=stop
            ),
        }
        self.made: dict[str, _Checker] = {}

    def _of(self, proof: Any) -> _Checker:
        over = proof.get("over", "domain") if isinstance(proof, Mapping) else "domain"
        if over not in self.make:
            raise CertificateError(
                f"a proof is over its domain, the box around it, its cone or everywhere, not over {over!r:.40}."
            )
        if over not in self.made:
            self.made[over] = self.make[over]()
        return self.made[over]

    def proved(self, proof: Any) -> tuple[int, str, float]:
        """(entry, side, bound of sign·f)."""
        return self._of(proof).proved(proof)

    def all(self, proofs: Sequence[Any]) -> dict[tuple[int, str], float]:
        """(entry, side) → the bound of sign·f that the proofs establish; a proof that states more is refused."""
        best: dict[tuple[int, str], float] = {}
        for place, proof in enumerate(proofs):
            try:
                found = self._of(proof).all([proof])
            except CertificateError as error:
                raise CertificateError(f"Proof {place}: {error}") from error
            best |= {key: min(best.get(key, math.inf), bound) for key, bound in found.items()}
        return best


class _Checker:
    """Proofs about one output of one program over one domain."""

    def __init__(
        self,
        output: str,
        program: Program,
        confined: dict[str, Span],
        unbounded: str | None,
        cone: DomainCone | None = None,
        ball: DomainCone | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.program, self.output, self.confined, self.unbounded = program, output, confined, unbounded
        self.cone, self.ball, self.stop = cone, ball, stop
        self.ranges = Ranges(program, confined)
        self.memo: dict[str, Any] = {}
        self.size = math.prod(int(d) for d in program.node(output).shape)

    def all(self, proofs: Sequence[Any]) -> dict[tuple[int, str], float]:
        """(entry, side) → the bound of sign·f that the proofs establish; a proof that states more is refused."""
        best: dict[tuple[int, str], float] = {}
        for proof in proofs:
            index, side, found = self.proved(proof)
            bound = number(proof["bound"], "its bound")
            if not found <= bound + SPARE * max(1.0, abs(bound)):
                raise CertificateError(
                    f"it states {bound:.12g} and proves {found:.12g}: {found - bound:.3g} more."
                )
            best[index, side] = min(best.get((index, side), math.inf), found)
        return best

    def proved(self, proof: Any) -> tuple[int, str, float]:
        """(entry, side, bound of sign·f)."""
        if not isinstance(proof, Mapping):
            raise CertificateError(f"a proof is a table, not {type(proof).__name__}.")
        index, side, kind = proof["output"], proof["side"], proof["kind"]
        if type(index) is not int or not 0 <= index < self.size or side not in ("upper", "lower"):
            raise CertificateError(f"there is no entry {index!r}, side {side!r}.")
        sign = 1.0 if side == "upper" else -1.0
        if kind == "interval":
            lo, hi = self.ranges.of(self.output)
            return index, side, float(hi[index] if sign > 0 else -lo[index])
        if kind == "dual":
            check = DualCheck(self.ranges, self.output, self.unbounded, proof, self.cone, self.memo)
            return index, side, check.check(index, sign)
        if kind == "cells":
            if proof["output_index"] != index or proof["sign"] != sign:
                raise CertificateError("its cells are of another entry or side than it says.")
            bound = number(proof["bound"], "its bound")
            about = (self.ranges, self.output, self.confined, self.unbounded)
            cells = CellsCheck(*about, index, sign, self.cone, self.ball, self.memo)
            return index, side, cells.check(proof, bound + SPARE / 2 * max(1.0, abs(bound)), self.stop)
        if kind == "softmax":
            differences = difference_program(self.program, self.output)
            if differences is None:
                raise CertificateError("the output is no softmax over all its entries.")
            inner = _Checker(DIFFERENCES, differences, self.confined, self.unbounded, self.cone)
            proved = inner.all(listed(proof["differences"], "differences"))
            rows = {row: bound for (row, upper), bound in proved.items() if upper == "upper"}
            return index, side, probability_bound(rows, self.size, index, sign)
        raise CertificateError(f"there is no kind of proof named {kind!r}.")
