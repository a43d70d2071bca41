"""One random program through everything: audit, certify, attack, verify, forge, horizon. What is wrong is a fault."""

from __future__ import annotations

import math
import random
import traceback
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import farfield as ff
from farfield.certify import CertificateError, UnboundedError, model_hash
from farfield.certify import _certify as certify_module
from farfield.certify.checker import check_program
from farfield.graph import Program, capture
from programs.attack import Target, attack, rays
from programs.exact import MissingOperatorError, array, mp
from programs.forgeries import false_claims, other_weights, unbounded_twins
from programs.generator import Plan, Source, random_plan

__all__ = ["Fault", "Outcome", "Settings", "examine", "examine_seed", "plan_fails", "refusal_kind"]


@dataclass(frozen=True)
class Fault:
    """Something wrong: its kind, what exactly, and (for a crash) where."""

    kind: str
    text: str

    @property
    def key(self) -> str:
        """Kind and the stable part of the text: what stays the same while a program shrinks."""
        stable = self.text.split(" @ ")[-1] if self.kind == "crash" else ""
        return f"{self.kind} {stable}".strip()


@dataclass
class Outcome:
    """What the examination of one program found."""

    seed: int
    bounded: bool | None
    verdict: str = ""
    cause: str = ""
    method: str = ""
    tightness: float | None = None
    forgeries: int = 0
    faults: list[Fault] = field(default_factory=list)

    def add(self, kind: str, text: str) -> None:
        """Note a fault."""
        self.faults.append(Fault(kind, text))


@dataclass(frozen=True)
class Settings:
    """How much is done for each program."""

    seconds: float = 0.2
    samples: int = 1500
    climb: int = 30
    forgeries: int = 2
    twins: int = 0
    horizon: bool = True
    certify: bool = True


def examine_seed(seed: int, settings: Settings = Settings()) -> Outcome:
    """Draw a program and examine it."""
    return examine(random_plan(seed).write(), seed, settings)


def examine(source: Source, seed: int, settings: Settings = Settings()) -> Outcome:
    """Everything farfield says about a program, against construction and evaluation."""
    outcome = Outcome(seed, source.bounded)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        target = Target.of(source)
        _audit(source, target, outcome, seed, settings)
        if settings.certify:
            _certify(source, target, outcome, seed, settings)
    return outcome


def _guarded(outcome: Outcome, what: str, work: Callable[[], Any], *expected: type[Exception]) -> Any:
    """Run a piece of farfield; whatever it raises, unless expected, is a crash with its innermost place."""
    try:
        return work()
    except expected:
        raise
    except Exception as error:  # a crash is what is looked for
        ours = [f for f in traceback.extract_tb(error.__traceback__) if "farfield" in f.filename]
        where = f"{Path(ours[-1].filename).name}:{ours[-1].name}" if ours else "?"
        outcome.add(
            "crash",
            f"{what}: {type(error).__name__}: {str(error)[:200]} @ {what} {type(error).__name__} {where}",
        )
        return None


# ------------------------------------------------------------------ verdicts


def _audit(source: Source, target: Target, outcome: Outcome, seed: int, settings: Settings) -> None:
    rows = 1 if source.single_row else 2
    generator = torch.Generator().manual_seed(seed)
    example = tuple(torch.randn(rows, *s, generator=generator, dtype=torch.float64) for s in source.shapes)
    model = source.build()
    result = _guarded(outcome, "audit", lambda: ff.audit(model, example, rays=6 if seed % 8 == 0 else 0))
    if result is None:
        return
    outcome.verdict = result.verdict.name
    if outcome.verdict == "UNKNOWN":
        reasons = [v.reason for v in result.report.verdicts if v.reason is not None]
        outcome.cause = reasons[0].text if reasons else "no reason"
    if source.bounded is True and outcome.verdict == "UNBOUNDED":
        outcome.add("wrong verdict", f"UNBOUNDED ({result.witness}), but bounded by construction")
    if source.bounded is False and outcome.verdict == "BOUNDED":
        outcome.add("wrong verdict", "BOUNDED, but unbounded by construction")
    if outcome.verdict == "BOUNDED" and source.bounded is None:
        grown = _growth(target, seed)
        if grown is not None:
            outcome.add("wrong verdict", f"BOUNDED, but {grown}")
    if outcome.verdict == "UNBOUNDED":
        wrong = _witness_fault(target, result.witness, example)
        if wrong:
            outcome.add("wrong verdict", f"UNBOUNDED, but {wrong}")
    if settings.horizon:
        _guarded(
            outcome,
            "horizon",
            lambda: _horizon(source, target, result.report.program, example, outcome, seed),
        )


def _growth(target: Target, seed: int) -> str | None:
    """How a program that is said to be bounded grows, if it does: seen in float64, confirmed in mpmath."""
    u = rays(sum(target.sizes), torch.Generator().manual_seed(seed), 8 if target.source.single_row else 40)
    with torch.no_grad():
        sizes = [
            target(r * u).abs().amax(-1).nan_to_num(0.0, 0.0) for r in (1e-2, 1.0, 1e2, 1e4, 1e6, 1e9, 1e12)
        ]
    before = torch.stack(sizes[:5]).amax()
    far, row = sizes[-1].max(0)
    if not far > 2.0 * before + 1e-6:
        return None
    values = [target.exactly((u[row], r)) for r in (1e12, 1e18, 1e24)]
    if any(v is None for v in values):
        return None
    met = [float(max(abs(e) for e in v)) for v in values if v is not None]
    if met[2] > 1.3 * met[1] > 1.3**2 * met[0] or met[2] > 1e6 * (1 + float(before)):
        return f"|f| is {met[0]:.4g}, {met[1]:.4g}, {met[2]:.4g} at ‖x‖ = 1e12, 1e18, 1e24"
    return None


def _witness_fault(target: Target, witness: Any, example: tuple[Tensor, ...]) -> str | None:
    """What is wrong with a witness, by evaluation in mpmath along its ray."""
    if witness is None:
        return "there is no witness"

    def value(radius: float) -> Any:
        inputs = []
        for name, shape, x in zip(target.source.names, target.source.shapes, example, strict=True):
            u = witness.directions.get(name)
            if u is None:
                inputs.append(array(x[:1]))
                continue
            rows = u.double().reshape(-1, *shape)
            row = witness.index[0] if len(rows) > 1 else 0  # a witness may have a direction for each row
            inputs.append(array(rows[row : row + 1]) * mp.mpf(radius))
        assert target._exact is not None
        found = target._exact(*inputs)
        return None if found is None else abs(found[witness.index[-1] if len(found) > 1 else 0])

    target.exactly(torch.zeros(sum(target.sizes), dtype=torch.float64))
    if witness.method == "measured":
        radius = witness.evidence[-1].radius
        near, far = value(radius), value(3 * radius)
        return (
            None
            if near is None or far is None or far > 10 * near
            else f"|f| is {mp.nstr(near, 5)} at {radius:.3g} and {mp.nstr(far, 5)} at three times that"
        )
    errors = []
    for radius in (1e30, 1e60):
        claimed = (
            abs(mp.mpf(witness.slope))
            * mp.mpf(radius) ** mp.mpf(witness.degree)
            * mp.log(radius) ** mp.mpf(witness.logarithms)
        )
        met = value(radius)
        if met is None:
            return None
        errors.append(float(abs(met - claimed) / claimed))
    if errors[1] < 1e-3 or errors[1] < 0.7 * errors[0]:
        return None
    return f"{witness} is off by {errors[0]:.3g} at 1e30 and {errors[1]:.3g} at 1e60"


def _horizon(
    source: Source, target: Target, program: Any, example: tuple[Tensor, ...], outcome: Outcome, seed: int
) -> None:
    """Limits and leading terms against evaluation at large radii: float64 first, mpmath where that is off."""
    if source.single_row:
        return
    u = rays(sum(target.sizes), torch.Generator().manual_seed(seed + 1), 4)[:6]
    pieces = target.inputs(u)
    seen = ff.horizon(program, pieces[0] if len(pieces) == 1 else list(pieces), example_inputs=example)
    limit, degree, coefficient = (t.reshape(len(u), -1) for t in (seen.value, seen.degree, seen.coefficient))
    with torch.no_grad():
        far = target(1e9 * u)
    for row in range(len(u)):
        for entry in range(far.shape[1]):
            claim = _Claim(*(float(t[row, entry]) for t in (limit, degree, coefficient)))
            if (
                math.isnan(claim.degree)
                or claim.degree > 9
                or claim.off(mp.mpf(float(far[row, entry])), mp.mpf(1e9)) <= 1e-4
            ):
                continue
            errors = []
            for radius in ("1e25", "1e40", "1e3000"):  # the last for limits behind a logarithm
                found = target.exactly((u[row], radius))
                if found is None:
                    return
                errors.append(claim.off(found[entry], mp.mpf(radius)))
                if errors[-1] <= 1e-4:
                    break
            if errors[-1] > 1e-4 and not errors[-1] < 0.3 * errors[0]:
                along = [round(v, 4) for v in u[row].tolist()]
                off = ", ".join(f"{e:.3g}" for e in errors)
                outcome.add("horizon", f"{claim} along {along}: off by {off} at 1e25, 1e40, 1e3000")
                return


@dataclass(frozen=True)
class _Claim:
    """What a horizon says of one entry along one ray."""

    limit: float
    degree: float
    coefficient: float

    def off(self, met: Any, radius: Any) -> float:
        """Relative error of a value met at a radius; a logarithm adds 2⁻²⁰ to the degree."""
        if not math.isnan(self.limit):
            said = mp.mpf(self.limit)
        else:
            power = round(self.degree, 3)
            logarithms = mp.mpf((self.degree - power) * 2**20)
            said = mp.mpf(self.coefficient) * radius ** mp.mpf(power) * mp.log(radius) ** logarithms
        return float(abs(met - said) / (mp.mpf(1e-3) + abs(said)))


# ------------------------------------------------------------------ certificates


def _certify(source: Source, target: Target, outcome: Outcome, seed: int, settings: Settings) -> None:
    exported = torch.export.export(source.build(), source.inputs)
    generator = torch.Generator().manual_seed(seed)
    try:
        with _without_float_limit():
            certificate = _guarded(
                outcome,
                "certify",
                lambda: ff.certify(
                    exported, source.inputs, time_budget=settings.seconds, generator=generator
                ),
                UnboundedError,
            )
    except UnboundedError as error:
        if outcome.verdict == "BOUNDED":
            outcome.cause = f"bounded, no number: {str(error)[:160]}"
        return
    if certificate is None:
        return
    if outcome.verdict == "UNBOUNDED" and certificate.bounded:
        outcome.add(
            "wrong verdict",
            f"UNBOUNDED, but certified to be in [{certificate.lower.tolist()}, {certificate.upper.tolist()}]",
        )
    outcome.method = certificate.method
    low, high, low_point, high_point = attack(target, seed, samples=settings.samples, steps=settings.climb)
    lower, upper = certificate.lower.reshape(-1), certificate.upper.reshape(-1)
    for entry in range(len(lower)):
        for side, met, bound, point in (
            ("above", float(high[entry]), float(upper[entry]), high_point[entry]),
            ("below", -float(low[entry]), -float(lower[entry]), low_point[entry]),
        ):
            if met > bound and _really(target, point, entry, side, bound):
                outcome.add(
                    "leak",
                    f"entry {entry} goes {side} {bound:.15g}: {met:.15g} at {point.tolist()} ({certificate.method})",
                )
    met_low = torch.minimum(low, certificate.attained_lower.reshape(-1))
    met_high = torch.maximum(high, certificate.attained_upper.reshape(-1))
    width = (met_high - met_low).clamp_min(1e-12 * (1.0 + met_high.abs()))
    ratio = ((upper - lower) / width)[met_high - met_low > 1e-6 * (1.0 + met_high.abs())]
    outcome.tightness = float(ratio.max()) if ratio.numel() else None
    try:
        _guarded(
            outcome,
            "verify",
            lambda: ff.verify_certificate(exported, certificate, source.inputs),
            CertificateError,
        )
    except CertificateError as error:
        outcome.add(refusal_kind(certificate, error), str(error)[:200])
    _forge(
        source,
        target,
        capture(exported, source.inputs, dynamic_batch=False),
        certificate.to_dict(),
        (low, high, low_point, high_point),
        outcome,
        random.Random(seed),
        settings,
    )


def _without_float_limit() -> AbstractContextManager[Any]:
    """Where floating point ends takes more time to find than all the rest, and nothing here reads it."""
    if not hasattr(certify_module, "float_limit"):
        return nullcontext()
    return mock.patch.object(certify_module, "float_limit", return_value=None)


def refusal_kind(certificate: Any, error: CertificateError) -> str:
    """Announced if the certificate says which operator the checker does not know; else a fault."""
    announced = any("rests on the search" in a for a in certificate.assumptions)
    return "announced refusal" if announced and "does not support" in str(error) else "refused certificate"


def _really(target: Target, point: Tensor, entry: int, side: str, bound: float) -> bool:
    """Whether the value at a point passes a bound in real arithmetic."""
    try:
        exact = target.exactly(point)
    except MissingOperatorError as error:
        warnings.warn(str(error), stacklevel=1)
        return True
    return exact is not None and (exact[entry] if side == "above" else -exact[entry]) > bound


def _forge(
    source: Source, target: Target, program: Program, data: dict[str, Any],
    met: tuple[Tensor, Tensor, Tensor, Tensor], outcome: Outcome, rng: random.Random, settings: Settings,
) -> None:  # fmt: skip
    low, high, low_point, high_point = met
    for done, forged, entry, side, claim in false_claims(data, low, high, rng, settings.forgeries):
        outcome.forgeries += 1
        if _accepted(outcome, program, forged):
            point = (high_point if side == "upper" else low_point)[entry]
            if _really(
                target,
                point,
                entry,
                "above" if side == "upper" else "below",
                claim if side == "upper" else -claim,
            ):
                outcome.add("accepted forgery", f"{done}: {side} {claim:.9g} of entry {entry} was accepted")
    if settings.twins <= 0 or not data["bounded"]:  # that an output lies in [−∞, ∞] is true of every model
        return
    bounds = [torch.tensor([float(v) for v in data[k]], dtype=torch.float64) for k in ("lower", "upper")]
    for twin in rng.sample(twins := list(unbounded_twins(source)), min(settings.twins, len(twins))):
        theirs = _captured(twin)
        outcome.forgeries += 1
        if _accepted(outcome, theirs, _disguised(data, theirs)) and (
            twin.size == "grows" or _leaves(Target.of(twin), *bounds)
        ):
            changed = [line for line in twin.lines if line not in source.lines]
            outcome.add("accepted forgery", f"for an unbounded twin: {changed}")
    other = Target.of(other_weights(source, rng))
    if _leaves(other, *bounds):
        outcome.forgeries += 1
        theirs = _captured(other.source)
        if _accepted(outcome, theirs, _disguised(data, theirs)):
            outcome.add(
                "accepted forgery", "for the same program with other weights, which leaves the bounds"
            )


def _leaves(target: Target, lower: Tensor, upper: Tensor) -> bool:
    """Whether a program is met outside of bounds, by more than rounding."""
    low, high, *_ = attack(target, 0, samples=300, steps=0)
    room = 1e-6 * (1.0 + torch.maximum(lower.abs(), upper.abs()))
    return bool(((high > upper + room) | (low < lower - room)).any())


def _captured(source: Source) -> Program:
    """As :func:`farfield.verify_certificate` does it; forgeries of one program are all checked on one capture."""
    return capture(torch.export.export(source.build(), source.inputs), source.inputs, dynamic_batch=False)


def _disguised(data: dict[str, Any], program: Program) -> dict[str, Any]:
    """A certificate that calls itself another model's, without witnesses that would give it away."""
    return {
        **data,
        "model_hash": model_hash(program),
        "output": program.outputs[0],
        "witnesses": {"lower": [], "upper": []},
    }


def _accepted(outcome: Outcome, program: Program, forged: dict[str, Any]) -> bool:
    try:
        return bool(
            _guarded(
                outcome,
                "verify a forgery",
                lambda: check_program(program, forged),
                CertificateError,
            )
        )
    except CertificateError:
        return False


def plan_fails(plan: Plan, key: str, seed: int, settings: Settings) -> bool:
    """Whether a plan still shows a fault."""
    try:
        return any(f.key == key for f in examine(plan.write(), seed, settings).faults)
    except Exception:  # not a program any more
        return False
