"""What certification returns: bounds, what they assume, what was attained, and how somebody else checks them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from farfield._regular_file import UnsafeFileError, read_json
from farfield._text import clean
from farfield.certify._domain import KINDS, domain_words
from farfield.certify._hash import model_hash
from farfield.certify._text import digits, entry, escaped, plain_data, power, ratio, revived
from farfield.certify.arithmetic import Rounding
from farfield.errors import InvalidValueError, MissingExtraError

__all__ = ["FORMAT", "Certificate", "Method", "Witness", "model_hash"]

FORMAT = "farfield-certificate/1"
Method: TypeAlias = Literal["interval", "dual", "cells", "mixed"]
Witness: TypeAlias = dict[str, Any]
"""``{"point": [...] or None, "direction": [...] or None, "value": number}``."""

_METHODS = {
    "interval": "interval propagation",
    "dual": "Lagrangian dual",
    "cells": "branch and bound",
    "mixed": "several methods",
}
_ARRAYS = ("lower", "upper", "attained_lower", "attained_upper")
_ROWS = 32
"""Outputs that a model card lists; the file has them all."""


@dataclass(frozen=True, eq=False)
class Certificate:
    """Lower and upper bounds of a model's output that hold for every input of a domain.

    Parameters
    ----------
    lower, upper
        Proved bounds, shaped like the output; −∞ and ∞ where nothing was proved.
    attained_lower, attained_upper
        Smallest and largest value a search met, in float64; the true range lies between these and the bounds.
    witnesses
        Two lists over the flattened output, for the lower and for the upper side: where the attained value is taken.
        ``point`` is the real inputs flattened and joined, ``direction`` a ray along which ``value`` is the limit.
        Either list may be empty.
    method
        How the bounds were proved: ``"interval"``, ``"dual"``, ``"cells"`` or ``"mixed"``.
    assumptions
        What the bounds rest on besides the model itself, in sentences.
    model_hash
        Of the program the bounds speak of, see :func:`model_hash`.
    domain
        Inputs the bounds hold for: ``{"kind": "all"}``, ``{"kind": "box", "lower": [...], "upper": [...]}``,
        ``{"kind": "halfspace", "normal": [...], "offset": c}`` for {x : normal·x ≤ c}, ``{"kind": "ball", "center":
        [...], "radius": r}``, ``{"kind": "ellipsoid", "center": [...], "axes": [...]}`` for
        {x : Σ ((x_i − center_i)/axes_i)² ≤ 1}, over the real inputs flattened and joined.
    output
        Name of the output.
    input_shape, input_dtype
        Of every input, in order.
    float_limit
        Euclidean norm of the input beyond which floating-point results can differ from the proof: the first at which
        they did on a few rays; ``None`` where they did not.
    proofs
        What an independent checker needs, plain data.
    arithmetic
        ``{"format": "float32", "magnitude": m, "error": [...]}`` where the bounds are about the output as it is
        computed in that format, at inputs with entries up to m; ``error`` is what was added on either side for it.
        ``None``: real arithmetic.
    advice
        What would make these bounds tighter, in sentences; empty where they are tight.
    within
        A second certificate of the same output over a smaller domain, with its own proofs.
    seconds
        Time spent.
    provenance
        Versions, commit, settings.

    Raises
    ------
    InvalidValueError
        Unless lower ≤ attained_lower ≤ attained_upper ≤ upper, entry by entry, all of one shape.

    Examples
    --------
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> certificate = Certificate(-2 * one, 2 * one, -one, one, method="dual", model_hash="0" * 64)
    >>> certificate.tightness
    tensor([[2.]], dtype=torch.float64)
    >>> print(certificate)
    Certificate for output, proved for every real input. A bound is not a claim of accuracy.
      output[0, 0] in [-2, 2], attained [-1, 1], tightness 2
      Proved by Lagrangian dual, in real arithmetic.
      Model sha256 000000000000…
    """

    lower: Tensor
    upper: Tensor
    attained_lower: Tensor
    attained_upper: Tensor
    witnesses: tuple[Sequence[Witness], Sequence[Witness]] = ((), ())
    method: Method = "mixed"
    assumptions: tuple[str, ...] = ()
    model_hash: str = ""
    domain: Mapping[str, Any] = field(default_factory=lambda: {"kind": "all"})
    output: str = "output"
    input_shape: tuple[tuple[int, ...], ...] = ()
    input_dtype: tuple[str, ...] = ()
    float_limit: float | None = None
    proofs: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    arithmetic: Mapping[str, Any] | None = None
    advice: tuple[str, ...] = ()
    within: Certificate | None = None
    seconds: float = 0.0
    provenance: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for name in _ARRAYS:
            object.__setattr__(self, name, getattr(self, name).detach().to("cpu", torch.float64))
        _check_order(self)
        if self.method not in _METHODS:
            raise InvalidValueError(f"method is one of {', '.join(_METHODS)}, not {self.method!r}.")
        count = self.lower.numel()
        sides = tuple(tuple(side) for side in self.witnesses)
        if len(sides) != 2 or any(len(side) not in (0, count) for side in sides):
            raise InvalidValueError(
                f"witnesses are two lists, lower and upper side, of one witness for each of the {count} flat outputs "
                f"(or none at all); received lists of {[len(side) for side in sides]}."
            )
        object.__setattr__(self, "witnesses", sides)
        _check_domain(self.domain)
        if self.within is not None and (self.within.model_hash, self.within.output) != (
            self.model_hash,
            self.output,
        ):
            raise InvalidValueError(
                "within is a certificate of the same model and output, over a smaller domain."
            )

    @property
    def bounded(self) -> bool:
        """Whether both bounds of every output are finite."""
        return bool((torch.isfinite(self.lower) & torch.isfinite(self.upper)).all())

    @property
    def tightness(self) -> Tensor:
        """(upper − lower) / (attained_upper − attained_lower) per output: 1 is exact, ∞ where nothing moved."""
        proved, met = self.upper - self.lower, self.attained_upper - self.attained_lower
        ratio = torch.where(met > 0, proved / torch.where(met > 0, met, 1.0), math.inf)
        return torch.where((met == 0) & (proved == 0), 1.0, ratio)

    def computed_in(self, rounding: Rounding) -> Certificate:
        """Bounds of what is computed, from bounds in real arithmetic and a bound of the rounding."""
        error = rounding.error.reshape(self.lower.shape)
        words = (
            f"Arithmetic: {rounding.format} rounded to nearest; sums in any order, in float32 or better; "
            "variances from deviations; functions (exp, tanh, erf, …) right to 16 units in the last place; no TF32, "
            "no autocast."
        )
        unchecked = (
            "The bound of the rounding is computed once; the independent checker checks the bounds in real "
            "arithmetic, and that this much was added to them."
        )
        kept = tuple(text for text in self.assumptions if not text.startswith("Real arithmetic"))
        data = {
            "format": rounding.format,
            "magnitude": rounding.magnitude,
            "error": error.reshape(-1).tolist(),
        }
        # A hair more than the sum: the checker adds the same numbers and rounds its own way.
        wide = error + 1e-15 * torch.maximum(self.lower.abs(), self.upper.abs())
        return replace(
            self,
            lower=self.lower - wide,
            upper=self.upper + wide,
            arithmetic=data,
            assumptions=(words, unchecked, *kept),
        )

    def _arithmetic_words(self) -> str:
        if self.arithmetic is None:
            return "in real arithmetic"
        most = max(self.arithmetic["error"], default=0.0)
        size = (
            ""
            if self.domain["kind"] not in ("all", "halfspace") and not _endless(self.domain)
            else (f", at inputs with entries up to {self.arithmetic['magnitude']:.0e}")
        )
        return f"as computed in {self.arithmetic['format']}{size}; rounding adds at most {most:.2g}"

    # -- plain data --------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: arrays flat, in full precision, infinities as the strings ``"inf"`` and ``"-inf"``."""
        return {
            "format": FORMAT,
            "output": self.output,
            "shape": list(self.lower.shape),
            **{name: plain_data(getattr(self, name).reshape(-1).tolist()) for name in _ARRAYS},
            "tightness": plain_data(self.tightness.reshape(-1).tolist()),
            "bounded": self.bounded,
            "witnesses": {"lower": plain_data(self.witnesses[0]), "upper": plain_data(self.witnesses[1])},
            "method": self.method,
            "assumptions": list(self.assumptions),
            "model_hash": self.model_hash,
            "domain": plain_data(self.domain),
            "input_shape": [list(shape) for shape in self.input_shape],
            "input_dtype": list(self.input_dtype),
            "float_limit": plain_data(self.float_limit),
            "seconds": self.seconds,
            "provenance": plain_data(self.provenance),
            "proofs": plain_data(self.proofs),
            **({"advice": list(self.advice)} if self.advice else {}),
            **({} if self.arithmetic is None else {"arithmetic": plain_data(self.arithmetic)}),
            **({} if self.within is None else {"within": self.within.to_dict()}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Certificate:
        """The certificate behind :meth:`to_dict`.

        Raises
        ------
        InvalidValueError
            If the data are not of this format, or break an invariant.
        """
        if data.get("format") != FORMAT:
            raise InvalidValueError(
                f'A certificate has "format": {FORMAT!r}; this one has {data.get("format")!r}. '
                "Write it with this version of farfield, or read it with the one that wrote it."
            )
        try:
            shape = tuple(int(size) for size in data["shape"])
            arrays = {
                name: torch.tensor([float(v) for v in data[name]], dtype=torch.float64).reshape(shape)
                for name in _ARRAYS
            }
            witnesses = data["witnesses"]
            return cls(
                **arrays,
                witnesses=(revived(witnesses["lower"]), revived(witnesses["upper"])),
                method=data["method"],
                assumptions=tuple(data["assumptions"]),
                model_hash=data["model_hash"],
                domain=revived(data["domain"]),
                output=data["output"],
                input_shape=tuple(tuple(int(size) for size in shape) for shape in data["input_shape"]),
                input_dtype=tuple(data["input_dtype"]),
                float_limit=revived(data["float_limit"]),
                proofs=tuple(revived(data["proofs"])),
                arithmetic=None if data.get("arithmetic") is None else {**revived(data["arithmetic"])},
                advice=tuple(str(text) for text in data.get("advice", ())),
                within=cls.from_dict({**data["within"]}) if data.get("within") is not None else None,
                seconds=float(data["seconds"]),
                provenance=revived(data["provenance"]),
            )
        except InvalidValueError:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
            raise InvalidValueError(f"The certificate is incomplete or malformed: {error!r}.") from error

    def save(self, path: str | PathLike[str]) -> None:
        """Write the certificate as JSON."""
        text = json.dumps(self.to_dict(), allow_nan=False, ensure_ascii=False, indent=1)
        Path(path).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Certificate:
        """Read what :meth:`save` wrote. Reading checks nothing against a model: that is verification's."""
        try:
            data = read_json(path)
        except UnsafeFileError as error:
            raise InvalidValueError(str(error)) from error
        if not isinstance(data, dict):
            raise InvalidValueError(f"{str(path)!r} holds a {type(data).__name__}, not a certificate.")
        return cls.from_dict(data)

    # -- words -------------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        word = "A bound is not a claim of accuracy" if self.bounded else "Some entries are not bounded by it"
        lines = [f"Certificate for {self.output}, proved for {domain_words(self.domain)}. {word}."]
        rows = self._rows()
        lines += [
            f"  {name} in [{low}, {high}], attained [{a}, {b}], tightness {tightness}"
            for name, low, high, a, b, tightness in rows[:8]
        ]
        if len(rows) > 8:
            finite = self.tightness[torch.isfinite(self.tightness)]
            worst = ratio(float(finite.max())) if finite.numel() == self.lower.numel() else "inf"
            lines.append(f"  and {len(rows) - 8} more; loosest tightness {worst}")
        if self.within is not None:
            lines.append(f"  For {domain_words(self.within.domain)} besides:")
            lines += [
                f"    {name} in [{low}, {high}], attained [{a}, {b}], tightness {tightness}"
                for name, low, high, a, b, tightness in self.within._rows()[:8]
            ]
        lines.append(f"  Proved by {_METHODS[self.method]}, {self._arithmetic_words()}.")
        lines += [f"  Assumes: {text}" for text in self.assumptions]
        if self.float_limit is not None:
            lines.append(
                f"  Floating-point results can differ from the proof beyond ‖x‖ ≈ {power(self.float_limit)}."
            )
        lines += [f"  Tighter: {text}" for text in self.advice]
        if self.model_hash:
            lines.append(f"  Model sha256 {self.model_hash[:12]}…")
        return "\n".join(lines)

    def model_card(self, file: str = "cert.json", target: str = "TARGET") -> str:
        """A section for a model card, in Markdown: bounds, what they assume, and how to check them again.

        Parameters
        ----------
        file, target
            What to write in the command that checks the certificate.
        """
        rows = self._rows()
        table = [f"| {' | '.join(escaped(cell) for cell in row)} |" for row in rows[:_ROWS]]
        if len(rows) > _ROWS:
            table.append(f"| and {len(rows) - _ROWS} more | | | | | |")
        limit = (
            f"Floating-point results can differ from the proof beyond ‖x‖ ≈ {power(self.float_limit)}."
            if self.float_limit is not None
            else "On the rays tried, floating-point results follow the proof at every size of input."
        )
        says = (
            f"Proved for {domain_words(self.domain)}, {self._arithmetic_words()}, by {_METHODS[self.method]}. "
            "**A bound is not a claim of accuracy.**"
            if self.bounded
            else f"Not every output is bounded for {domain_words(self.domain)}: an infinite bound proves nothing."
        )
        return "\n".join([
            "## Output bounds",
            "",
            says,
            "",
            "| output | proved lower | proved upper | attained lower | attained upper | tightness |",
            "|---|---|---|---|---|---|",
            *table,
            "",
            "Assumptions:",
            "",
            *(f"- {escaped(text)}" for text in self.assumptions),
            f"- {limit}",
            "",
            f"Model: `sha256:{self.model_hash}`. Check again; the checker shares no bounding code with the search:",
            "",
            "```console",
            clean(f"$ farfield verify {file} {target}"),
            "```",
            "",
        ])  # fmt: skip

    def _repr_html_(self) -> str:
        from farfield.report import certificate_summary

        return certificate_summary(self.to_dict())

    def to_html(self, *, name: str = "", file: str = "") -> str:
        """One page that loads nothing: what is proved, what was attained, what it assumes, how to check it again.

        Parameters
        ----------
        name
            What to call the model.
        file
            Where the certificate is stored, for the command that checks it.
        """
        from farfield.report import render_certificate

        return render_certificate(self.to_dict(), name=name, file=file)

    def plot(self, *, ax: Any = None) -> Any:
        """Draw the proved and the attained range of every output; needs ``farfield[plot]``.

        Parameters
        ----------
        ax
            matplotlib axes to draw on; those of a new figure by default.

        Returns
        -------
        matplotlib.axes.Axes
        """
        from farfield.report import plot_certificate

        return plot_certificate(self.to_dict(), ax=ax)

    def _rows(self) -> list[tuple[str, str, str, str, str, str]]:
        """Name, bounds rounded outwards, attained rounded inwards, tightness."""
        shape = self.lower.shape
        columns = [getattr(self, name).reshape(-1).tolist() for name in _ARRAYS]
        return [
            (
                entry(self.output, place, shape),
                digits(low, -1),
                digits(high, 1),
                digits(a, 1),
                digits(b, -1),
                ratio(tight),
            )
            for place, (low, high, a, b, tight) in enumerate(
                zip(*columns, self.tightness.reshape(-1).tolist(), strict=True)
            )
        ]

    # -- beside the weights ------------------------------------------------------------------------------------

    def to_safetensors_metadata(self) -> dict[str, str]:
        """What fits into the header of a ``.safetensors`` file: bounds, hash, assumptions; no proofs."""
        data = self.to_dict()
        texts = {
            key: data[key] if isinstance(data[key], str) else json.dumps(data[key], allow_nan=False)
            for key in ("format", "output", "shape", *_ARRAYS, "method", "assumptions", "model_hash", "domain",
                        "input_shape", "float_limit")
        }  # fmt: skip
        return {f"farfield.{key}": text for key, text in {**texts, "summary": str(self)}.items()}

    def embed(self, path_in: str | PathLike[str], path_out: str | PathLike[str]) -> None:
        """Copy a ``.safetensors`` file, adding this certificate's bounds to its metadata; all else stays.

        Raises
        ------
        MissingExtraError
            Without safetensors.
        """
        try:
            from safetensors import safe_open
            from safetensors.torch import save_file
        except ImportError as error:
            raise MissingExtraError("Embedding a certificate", "safetensors", "certify") from error
        if not Path(path_in).is_file():
            raise InvalidValueError(f"There is no file {str(path_in)!r} to embed the certificate in.")
        with safe_open(path_in, framework="pt") as stored:
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118  (not a mapping)
            metadata = dict(stored.metadata() or {})
        save_file(tensors, path_out, metadata={**metadata, **self.to_safetensors_metadata()})


def _check_order(certificate: Certificate) -> None:
    shapes = {name: tuple(getattr(certificate, name).shape) for name in _ARRAYS}
    if len(set(shapes.values())) != 1:
        raise InvalidValueError(
            f"Bounds and attained values have one shape, the output's; received {shapes}."
        )
    chain = ("lower", "attained_lower", "attained_upper", "upper")
    for small, large in pairwise(chain):
        a, b = getattr(certificate, small).reshape(-1), getattr(certificate, large).reshape(-1)
        wrong = torch.nonzero(~(a <= b)).reshape(-1)
        if wrong.numel():
            i = int(wrong[0])
            raise InvalidValueError(
                f"lower ≤ attained_lower ≤ attained_upper ≤ upper must hold for every output, but at flat output {i} "
                f"{small} is {float(a[i])!r} and {large} {float(b[i])!r}. A value outside a bound refutes the bound: "
                "don't widen it, find which of the two is wrong (nan is neither)."
            )


def _endless(domain: Mapping[str, Any]) -> bool:
    """Whether a box has a side without an end."""
    return any(math.isinf(float(end)) for name in ("lower", "upper") for end in domain.get(name, ()))


def _check_domain(domain: Mapping[str, Any]) -> None:
    kind = str(domain.get("kind"))
    if kind not in KINDS or not set(KINDS[kind]) <= set(domain):
        raise InvalidValueError(
            f"A domain has a kind ({', '.join(KINDS)}) and what belongs to it, such as "
            f'{{"kind": "box", "lower": [...], "upper": [...]}}; received {dict(domain)!r:.200}.'
        )
    if kind == "box":
        pairs = list(zip(domain["lower"], domain["upper"], strict=False))
        if len(domain["lower"]) != len(domain["upper"]) or not all(low <= high for low, high in pairs):
            raise InvalidValueError(
                "A box has as many lower as upper ends, and no lower end above its upper one."
            )
