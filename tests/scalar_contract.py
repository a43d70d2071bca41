"""What every scalar function of the table must satisfy: plain functions that take one ScalarFunction and its twin.

The twin is the same function written in mpmath. Bounds are held against it without slack; ``NOISE`` is what mpmath's
own differences lose at 40 digits.
"""

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import mpmath as mp
import torch

from farfield.gaussian import ScalarFunction, scalar_function, scalar_function_names

__all__ = ["CHECKS", "Case", "enrolled"]

DIGITS: Final = 40
NOISE: Final = mp.mpf(10) ** -30
Formula = Callable[[Any], Any]

VARIANTS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("gelu", {"approximate": "tanh"}),
    ("softplus", {"beta": 3.0}),
    ("softplus", {"beta": 0.5, "threshold": 1.5}),
    ("softplus", {"threshold": -2.0}),
    ("softplus", {"threshold": math.inf}),
    ("elu", {"alpha": 2.0}),
    ("elu", {"alpha": 0.7, "scale": 1.3, "input_scale": 1.9}),
    ("elu", {"alpha": -0.5}),
    ("elu", {"alpha": 0.8, "scale": -1.5}),
    ("elu", {"alpha": -0.8, "scale": -1.5}),
    ("elu", {"alpha": 0.0}),
    ("celu", {"alpha": 0.3}),
    ("celu", {"alpha": 2.5}),
    ("leaky_relu", {"negative_slope": -0.2}),
    ("leaky_relu", {"negative_slope": 1.7}),
    ("hardtanh", {"min_val": -2.0, "max_val": 0.5}),
    ("hardtanh", {"min_val": 0, "max_val": 6}),
    ("softshrink", {"lambd": 1.25}),
    ("hardshrink", {"lambd": 0.125}),
    ("threshold", {"threshold": -1.0, "value": 2.0}),
    ("threshold", {"threshold": 0.3, "value": 0.3}),
    ("threshold", {"threshold": 1.5, "value": 20.0}),
)


def _clip(x: Any, low: Any, high: Any) -> Any:
    return min(max(x, mp.mpf(low)), mp.mpf(high))


def _unit(alpha: Any = 1.0, scale: Any = 1.0, input_scale: Any = 1.0) -> Formula:
    a, s, r = mp.mpf(alpha), mp.mpf(scale), mp.mpf(input_scale)
    return lambda x: s * x if x > 0 else s * a * mp.expm1(r * x)


def _gelu(approximate: str = "none") -> Formula:
    if approximate == "tanh":
        return lambda x: x / (1 + mp.exp(-2 * mp.sqrt(2 / mp.pi) * (x + mp.mpf(0.044715) * x**3)))
    return lambda x: x * mp.erfc(-x / mp.sqrt(2)) / 2


def _logistic(x: Any) -> Any:
    return 1 / (1 + mp.exp(-x)) if x > 0 else mp.exp(x) / (1 + mp.exp(x))


def _ramp(x: Any, beta: Any = 1.0) -> Any:
    return max(x, mp.mpf(0)) + mp.log1p(mp.exp(-mp.mpf(beta) * abs(x))) / beta


def _softplus(beta: float = 1.0, threshold: float = 20.0) -> Formula:
    return lambda x: x if x * beta > threshold else _ramp(x, beta)


def _tanh_of_ramp(x: Any) -> Any:
    return (
        1 - 2 / (1 + (1 + mp.exp(x)) ** 2) if x < 50 else 1 - 2 * mp.exp(-2 * x) / (1 + (1 + mp.exp(-x)) ** 2)
    )


TWINS: Final[dict[str, Callable[..., Formula]]] = {
    "relu": lambda: lambda x: max(x, mp.mpf(0)),
    "leaky_relu": lambda negative_slope=0.01: lambda x: x if x > 0 else mp.mpf(negative_slope) * x,
    "abs": lambda: abs,
    "elu": _unit,
    "selu": lambda: _unit(1.6732632423543772848170429916717, 1.0507009873554804934193349852946),
    "celu": lambda alpha=1.0: _unit(alpha, 1.0, 1 / mp.mpf(alpha)),
    "gelu": _gelu,
    "silu": lambda: lambda x: x * _logistic(x),
    "mish": lambda: lambda x: x * _tanh_of_ramp(x),
    "softplus": _softplus,
    "logsigmoid": lambda: lambda x: -_ramp(-x),
    "softsign": lambda: lambda x: x / (1 + abs(x)),
    "sigmoid": lambda: _logistic,
    "tanh": lambda: mp.tanh,
    "erf": lambda: mp.erf,
    "erfc": lambda: mp.erfc,
    "atan": lambda: mp.atan,
    "hardtanh": lambda min_val=-1.0, max_val=1.0: lambda x: _clip(x, min_val, max_val),
    "hardsigmoid": lambda: lambda x: _clip(x + 3, 0, 6) / 6,
    "hardswish": lambda: lambda x: x * _clip(x + 3, 0, 6) / 6,
    "tanhshrink": lambda: lambda x: x - mp.tanh(x),
    "softshrink": lambda lambd=0.5: lambda x: x - _clip(x, -lambd, lambd),
    "hardshrink": lambda lambd=0.5: lambda x: mp.mpf(0) if -lambd <= x <= lambd else x,
    "threshold": lambda threshold, value: lambda x: x if x > threshold else mp.mpf(value),
    "sign": lambda: mp.sign,
    "sin": lambda: mp.sin,
    "cos": lambda: mp.cos,
    "floor": lambda: mp.floor,
    "ceil": lambda: mp.ceil,
    "round": lambda: lambda x: mp.nint(x),
    "trunc": lambda: lambda x: mp.floor(x) if x > 0 else mp.ceil(x),
}


@dataclass(frozen=True)
class Case:
    """One entry with its function and its smooth function in mpmath."""

    name: str
    attributes: dict[str, Any]

    @property
    def entry(self) -> ScalarFunction:
        found = scalar_function(self.name, self.attributes)
        assert found is not None
        return found

    @functools.cached_property
    def function(self) -> Formula:
        """Evaluated once at each place and precision: many checks look at the same places."""
        twin = TWINS[self.name](**self.attributes)
        known = functools.cache(lambda x, _: twin(x))
        return lambda x: known(x, mp.mp.prec)

    @property
    def curve(self) -> Formula:
        beta = self.attributes.get("beta", 1.0)
        return (lambda x: _ramp(x, beta)) if self.name == "softplus" else self.function

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{k}={v}' for k, v in self.attributes.items())})"


def enrolled() -> dict[str, Case]:
    """Every name of the table with torch's defaults, and variants; by a readable label."""
    needed = {"threshold": {"threshold": 0.3, "value": -0.5}}
    cases = [Case(name, needed.get(name, {})) for name in scalar_function_names()]
    return {str(case): case for case in (*cases, *(Case(*variant) for variant in VARIANTS))}


# ------------------------------------------------------------------ where to look


def places(f: ScalarFunction) -> list[float]:
    """Dense around 0, closer around kinks, jumps and the valley, out to ±1e6; sorted floats."""
    special = [0.0, f.valley, *f.kinks, *(p for p, *_ in f.jumps)]
    found = {0.05 * i for i in range(-240, 241)} | {0.37 * i for i in range(-100, 101)}
    found |= {s * 10.0**e for e in (1.7, 2, 2.3, 3, 4, 5, 6) for s in (-1, 1)}
    for p in special:
        found |= {p, math.nextafter(p, math.inf), math.nextafter(p, -math.inf)}
        found |= {p + s * 10.0**-e for e in (1, 2, 3, 6, 9, 12) for s in (-1, 1)}
    return sorted(found)


def derivative(g: Formula, x: Any, order: int, kinks: tuple[float, ...] = ()) -> Any:
    """One-sided away from the nearest kink: a difference never reaches across it."""
    side = 1 if not kinks or x > min(kinks, key=lambda k: abs(x - k)) else -1
    return mp.diff(g, x, order, direction=side if kinks else 0)


def largest(g: Formula, xs: list[Any]) -> Any:
    """The largest value of g at these points and between the neighbors of the best of them (golden section)."""
    values = [g(x) for x in xs]
    best = max(range(len(xs)), key=lambda i: values[i])
    a, b = xs[max(best - 1, 0)], xs[min(best + 1, len(xs) - 1)]
    ratio = (mp.sqrt(5) - 1) / 2
    c, d = b - ratio * (b - a), a + ratio * (b - a)
    at_c, at_d = g(c), g(d)
    for _ in range(60):
        if at_c >= at_d:
            b, d, at_d = d, c, at_c
            c = b - ratio * (b - a)
            at_c = g(c)
        else:
            a, c, at_c = c, d, at_d
            d = a + ratio * (b - a)
            at_d = g(d)
    return max(*values, at_c, at_d)


def _numbers(f: ScalarFunction) -> list[Any]:
    return [mp.mpf(x) for x in places(f)]


def _between(f: ScalarFunction) -> list[Any]:
    """Places within [−12, 12] and off the kinks, for derivatives."""
    return [x for x in _numbers(f) if abs(x) <= 12 and x not in f.kinks][::3]


def _rest(f: ScalarFunction, g: Formula, x: Any) -> Any:
    return g(x) - mp.mpf((f.left if x < 0 else f.right).slope) * x


# ------------------------------------------------------------------ the checks


def check_function(f: ScalarFunction, case: Case) -> None:
    """Within the stated loss, exact where that is 0; ``smooth`` too."""
    xs = places(f)
    for function, twin in ((f.function, case.function), (f.curve, case.curve)):
        values = function(torch.tensor(xs, dtype=torch.float64)).tolist()
        for x, value in zip(xs, values, strict=True):
            if any(abs(x - p) <= 2.0**-50 * abs(p) for p, *_ in f.jumps) and f.loss:
                continue  # on which side of a rounded place it lies is open
            true = twin(mp.mpf(x))
            loss = (
                f.loss and f.loss * abs(true) + 2.0**-48 * min(abs(x), 64.0) * (f.shape == "valley") + 1e-300
            )
            assert abs(mp.mpf(value) - true) <= loss, (x, value, true)


def check_range(f: ScalarFunction, case: Case) -> None:
    """No value outside; every finite end is approached, an infinite one has a tail that leads there."""
    values = [case.function(x) for x in [*_numbers(f), mp.mpf(-(10**9)), mp.mpf(10**9)]]
    assert mp.mpf(f.lo) <= min(values)
    assert max(values) <= mp.mpf(f.hi)
    limits = (f.limit("left"), f.limit("right"))
    jumps = [v for _, *both in f.jumps for v in both]
    for end, reached, sign in ((f.lo, min(values), -1), (f.hi, max(values), 1)):
        if math.isinf(end):
            assert sign * math.inf in limits
        else:
            near = min(abs(end - v) for v in [float(reached), *jumps])
            assert near <= (1e-2 if f.shape == "other" else 1e-8) * (1 + abs(end)), (end, reached)


def check_shape(f: ScalarFunction, case: Case) -> None:
    """Values rise, fall, or fall and then rise, but for the jumps."""
    if f.shape == "other":
        return
    for a, b in itertools.pairwise(_numbers(f)):
        if any(a <= p + 2.0**-50 * abs(p) and b >= p - 2.0**-50 * abs(p) for p, *_ in f.jumps):
            continue
        rises = case.function(b) - case.function(a)
        if f.shape == "valley" and a < f.valley < b:
            continue
        sign = -1 if f.shape == "decreasing" or (f.shape == "valley" and b <= f.valley) else 1
        assert sign * rises >= 0, (a, b)


def check_valley(f: ScalarFunction, case: Case) -> None:
    """Nothing lies lower, and the range ends there."""
    if f.shape != "valley":
        return
    bottom = case.function(mp.mpf(f.valley))
    for step in (1e-6, 1e-3, 0.1, 3.0):
        assert bottom <= case.function(mp.mpf(f.valley) + step)
        assert bottom <= case.function(mp.mpf(f.valley) - step)
    assert mp.mpf(f.lo) <= bottom <= mp.mpf(f.lo) + mp.mpf(2) ** -53


def check_signs(f: ScalarFunction, case: Case) -> None:
    """What follows from shape, range and jumps: monotone, positive."""
    values = [case.function(x) for x in _numbers(f) if abs(x) < 5000]
    if f.monotone:
        assert all(f.monotone * (b - a) >= 0 for a, b in itertools.pairwise(values))
    assert not f.positive or min(values) > 0


def check_tails(f: ScalarFunction, case: Case) -> None:
    """Slope and offset at 1e3 … 1e6, and what is left."""
    for tail, side in ((f.left, -1), (f.right, 1)):
        if tail.remainder == "bounded":
            rest = [case.function(side * (1000 + mp.mpf(i) / 7)) for i in range(60)]
            rest = [v - tail.slope * side * (1000 + mp.mpf(i) / 7) for i, v in enumerate(rest)]
            assert math.isnan(tail.offset)
            assert 0.4 < max(rest) - min(rest) <= 2
            continue
        for size in (mp.mpf(10) ** 3, mp.mpf(10) ** 4, mp.mpf(10) ** 6):
            left = abs(case.function(side * size) - mp.mpf(tail.slope) * side * size - mp.mpf(tail.offset))
            rounded = abs(mp.mpf(tail.offset)) * mp.mpf(2) ** -53
            if tail.remainder == "exact":
                assert left <= rounded
            elif tail.remainder == "flat":
                assert left <= rounded + size**-8
            else:
                assert mp.mpf("0.1") / size < left < 2 / size


def check_remainder(f: ScalarFunction, case: Case) -> None:
    """σ − slope·x within its range, attained; and beyond r within what ``remainder_beyond`` says."""
    xs = _numbers(f)
    rest = [_rest(f, case.curve, x) for x in xs]
    low, high = f.remainder
    assert mp.mpf(low) <= min(rest)
    assert max(rest) <= mp.mpf(high)
    assert float(min(rest)) - low < 0.1
    assert high - float(max(rest)) < 0.1
    if f.remainder_beyond is None:
        return
    bounds = f.remainder_beyond(torch.tensor([abs(float(x)) for x in xs], dtype=torch.float64)).tolist()
    for x, left, bound in zip(xs, rest, bounds, strict=True):
        offset = mp.mpf((f.left if x < 0 else f.right).offset)
        rounded = abs(offset) * mp.mpf(2) ** -53  # the stored limit is π/2 to the nearest
        assert abs(left - offset) <= mp.mpf(bound) + rounded + NOISE * abs(x), x
    _falls(f.remainder_beyond)


def _falls(bound: Callable[[torch.Tensor], torch.Tensor]) -> None:
    values = bound(torch.cat([torch.linspace(0, 40, 20_001), torch.logspace(1.7, 6, 100)]).to(torch.float64))
    assert bool((values.diff() <= 1e-12 * values[:-1]).all())
    assert bool((values >= 0).all())


def check_suprema(f: ScalarFunction, case: Case) -> None:
    """sup|σ′|, sup|σ″| and sup|σ‴| between the kinks: not exceeded, and attained."""
    if math.isinf(f.slope):
        return
    parts = [-12.0, *f.kinks, 12.0]
    for order, bound in ((1, f.slope), (2, f.curvature), (3, f.third)):
        tops = [
            abs(mp.mpf(tail.slope)) for tail in (f.left, f.right) if order == 1
        ]  # of softplus, only a limit
        for a, b in itertools.pairwise(parts):
            ends = [mp.mpf(a) + mp.mpf(10) ** -30, mp.mpf(b) - mp.mpf(10) ** -30]
            inner = [x for x in _between(f) if a < x < b]
            tops.append(
                largest(
                    lambda x, k=order: abs(derivative(case.curve, x, k, f.kinks)), [ends[0], *inner, ends[1]]
                )
            )
        assert max(tops) <= mp.mpf(bound) + NOISE, (order, max(tops))
        assert mp.mpf(bound) <= max(tops) * (1 + mp.mpf(10) ** -14) + NOISE, (order, max(tops))


def check_curvature_beyond(f: ScalarFunction, case: Case) -> None:
    """|σ″| at x is within what is said of everything beyond |x|."""
    if f.curvature_beyond is None:
        return
    xs = _between(f) + [mp.mpf(s * k) for k in (13, 17, 25, 60) for s in (-1, 1)]
    bounds = f.curvature_beyond(torch.tensor([abs(float(x)) for x in xs], dtype=torch.float64)).tolist()
    for x, bound in zip(xs, bounds, strict=True):
        assert abs(derivative(case.curve, x, 2, f.kinks)) <= mp.mpf(bound) + NOISE, x
    _falls(f.curvature_beyond)


def check_kinks(f: ScalarFunction, case: Case) -> None:
    """At each kink some derivative jumps, by ``bends`` the first; between kinks none does."""
    if math.isinf(f.slope):
        return
    changes = dict(f.bends)
    assert set(changes) <= set(f.kinks)
    tiny = mp.mpf(10) ** -35
    for k in f.kinks:
        sides = [[mp.diff(case.curve, mp.mpf(k) + s * tiny, n, direction=s) for n in (1, 2)] for s in (-1, 1)]
        gaps = [b - a for a, b in zip(*sides, strict=True)]
        assert abs(gaps[0] - mp.mpf(changes.get(k, 0.0))) <= mp.mpf(2) ** -52, (k, gaps)
        assert max(map(abs, gaps)) > 1e-6
    for a, b in itertools.pairwise(_between(f)):
        if not any(a <= k <= b for k in f.kinks):
            moved = abs(derivative(case.curve, b, 1, f.kinks) - derivative(case.curve, a, 1, f.kinks))
            assert moved <= mp.mpf(f.curvature) * (b - a) + NOISE, (a, b)


def check_jumps(f: ScalarFunction, case: Case) -> None:
    """Each has the stated limits; elsewhere a continuous function moves no faster than its slope."""
    for place, before, after in f.jumps:
        room = mp.mpf(2) ** -45 * (1 + abs(mp.mpf(place)))
        for limit, at in ((before, place - room), (after, place + room)):
            assert abs(case.function(at) - mp.mpf(limit)) <= 4 * room, (place, limit)
    if math.isfinite(f.slope):
        for a, b in itertools.pairwise(_numbers(f)):
            if not any(a <= p <= b for p, *_ in f.jumps):
                gap = abs(case.function(b) - case.function(a))
                near = any(min(abs(a - p), abs(b - p)) <= 2.0**-50 * abs(p) for p, *_ in f.jumps)
                assert near or gap <= mp.mpf(f.slope) * (b - a) + NOISE, (a, b)
    elif not f.jumps:
        assert f.right.remainder == "bounded"  # rounding: everywhere


def check_half_planes(f: ScalarFunction, case: Case) -> None:
    """a·σ(z) + b·z + c ≥ 0 everywhere, and nearly 0 somewhere."""
    xs = _numbers(f)
    for a, b, c in f.half_planes:
        side = lambda z, a=a, b=b, c=c: mp.mpf(a) * case.curve(z) + mp.mpf(b) * z + mp.mpf(c)  # noqa: E731
        lowest = -largest(lambda z, side=side: -side(z), xs)
        assert lowest >= 0, (a, b, c, lowest)
        assert lowest < 1e-2, (a, b, c, lowest)


def check_pieces(f: ScalarFunction, case: Case) -> None:
    """Between the kinks the function is the piece, up to the roughness."""
    if not f.pieces:
        assert f.curvature > 0
        return
    ends = (-math.inf, *f.kinks, math.inf)
    for (slope, shift), (a, b) in zip(f.pieces, itertools.pairwise(ends), strict=True):
        for x in (x for x in _numbers(f) if a <= x <= b):
            assert abs(case.curve(x) - mp.mpf(slope) * x - mp.mpf(shift)) <= mp.mpf(f.roughness), x


def check_homogeneous(f: ScalarFunction, case: Case) -> None:
    """σ(v) = slope·v on either side of 0, for no function that does not say so."""
    xs = [mp.mpf(s * x) for x in (1e-3, 0.4, 2.0, 700.0) for s in (-1, 1)]
    same = all(case.function(x) == mp.mpf((f.left if x < 0 else f.right).slope) * x for x in xs)
    assert f.homogeneous is same


def check_saturates(f: ScalarFunction, case: Case) -> None:
    """An infinite argument gives the limit where it says so, and at some end it does not where it does not."""
    got = f.function(torch.tensor([-math.inf, math.inf], dtype=torch.float64)).tolist()
    limits = [f.limit("left"), f.limit("right")]
    if f.saturates:
        assert all(a == b or abs(a - b) < 1e-15 for a, b in zip(got, limits, strict=True)), (got, limits)


def check_roughness(f: ScalarFunction, case: Case) -> None:
    """The operator's function stays this near the smooth one, and is the same below."""
    for x in _numbers(f):
        gap = abs(case.function(x) - case.curve(x))
        assert gap <= (mp.mpf(f.roughness) if x >= mp.mpf(f.rough_from) else 0), x


def check_image(f: ScalarFunction, case: Case) -> None:
    """σ of every point of an interval lies in its image; ends may be infinite or equal."""
    generator = torch.Generator().manual_seed(0)
    xs = places(f)
    picks = torch.randint(0, len(xs), (300, 2), generator=generator).sort(1).values.tolist()
    pairs = [(xs[a], xs[b]) for a, b in picks] + [(x, x) for x in xs[::7]] + list(itertools.pairwise(xs))[::5]
    pairs += [(-math.inf, x) for x in xs[::40]] + [(x, math.inf) for x in xs[::40]] + [(-math.inf, math.inf)]
    lo, hi = (torch.tensor(list(ends), dtype=torch.float64) for ends in zip(*pairs, strict=True))
    for image, twin in ((f.image, case.function), (f.rough_image, case.curve)):
        inside = {x: twin(mp.mpf(x)) for x in xs}
        for (a, b), low, high in zip(pairs, *(end.tolist() for end in image(lo, hi)), strict=True):
            chosen = [x for x in xs if a <= x <= b]
            for x in {*chosen[:2], *chosen[-2:], *chosen[:: max(1, len(chosen) // 12)]}:
                assert mp.mpf(low) <= inside[x] <= mp.mpf(high), (a, b, x)


CHECKS: Final[dict[str, Callable[[ScalarFunction, Case], None]]] = {
    check.__name__.removeprefix("check_"): check
    for check in (
        check_function, check_range, check_shape, check_valley, check_signs, check_tails, check_remainder,
        check_suprema, check_curvature_beyond, check_kinks, check_jumps, check_half_planes, check_pieces,
        check_homogeneous, check_saturates, check_roughness, check_image,
    )
}  # fmt: skip
