"""Random networks: directed acyclic graphs of operators, as nn.Modules with random weights, and their examination.

``random_model(seed)`` draws a graph; ``examine(seed)`` asks for its verdict and checks that verdict, every
node's claim and the horizon against evaluations in float64 along many rays at radii up to 1e8. As a script it
examines many::

    python tests/growth/random_graphs.py --count 2000 --first 0
"""

from __future__ import annotations

import argparse
import copy
import math
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from farfield.graph import Program, capture
from farfield.growth import GrowthReport, Status, Verdict, Witness, analyze
from growth.oracles import RADII, horizon_violations, interval_violations, rate_violations

WIDTHS = (3, 4, 6, 8)
SLOW = ("log", "asinh", "root", "logsumexp")
"""Blocks that bring logarithms or roots: limits are then reached too slowly to be seen at 1e8."""


@dataclass
class Step:
    """One node of the graph: which earlier values it reads and what it does with them."""

    name: str
    sources: tuple[int, ...]
    part: str | None
    apply: Callable[..., Tensor]


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "leaky_relu": lambda x: functional.leaky_relu(x, 0.1),
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "mish": functional.mish,
    "softplus": functional.softplus,
    "elu": functional.elu,
    "selu": functional.selu,
    "celu": lambda x: functional.celu(x, 1.5),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu6": functional.relu6,
    "hardtanh": functional.hardtanh,
    "hardsigmoid": functional.hardsigmoid,
    "hardswish": functional.hardswish,
    "softsign": functional.softsign,
    "logsigmoid": functional.logsigmoid,
    "tanhshrink": functional.tanhshrink,
    "softshrink": functional.softshrink,
    "abs": torch.abs,
    "sin": torch.sin,
    "erf": torch.erf,
    "atan": torch.atan,
    "square": torch.square,
    "cube": lambda x: x**3,
    "root": lambda x: torch.sqrt(1 + x.abs()),
    "log": lambda x: torch.log1p(x.abs()),
    "asinh": torch.asinh,
    "bell": lambda x: torch.exp(-x * x),
    "decay": lambda x: torch.exp(-torch.relu(x)),
    "exp_of_tanh": lambda x: torch.exp(torch.tanh(x)),
    "inverse": lambda x: 1 / (1 + x.abs()),
    "round": torch.round,
    "sign": torch.sign,
    "neg": torch.neg,
}

NORMS = ("layer", "layer_plain", "rms", "group", "l2", "batch", "by_hand", "std", "softmax")

PAIRS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "gate": lambda a, b: torch.sigmoid(a) * b,
    "swiglu": lambda a, b: functional.silu(a) * b,
    "tanh_gate": lambda a, b: torch.tanh(a) * torch.tanh(b),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "over_square": lambda a, b: a / (1 + b * b),
    "over_abs": lambda a, b: a / (0.5 + b.abs()),
    "over_softplus": lambda a, b: a / (functional.softplus(b) + 0.1),
    "over_root": lambda a, b: a / torch.sqrt(1 + b * b),
    "where": lambda a, b: torch.where(a > 0, a, b),
    "where_small": lambda a, b: torch.where(a.abs() < 1, a, torch.tanh(b)),
    "capped": lambda a, b: torch.minimum(a, torch.sigmoid(b)),
    "attend": lambda a, b: torch.softmax(a, -1) * b,
    "lerp": lambda a, b: torch.lerp(a, b, 0.3),
    "cap_both": lambda a, b: torch.maximum(torch.minimum(a, torch.tanh(b)), -torch.sigmoid(b)),
}

SHRINKS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda x: x - x.mean(-1, keepdim=True),
    "sum": lambda x: x.sum(-1, keepdim=True).expand_as(x),
    "amax": lambda x: x - x.amax(-1, keepdim=True),
    "amin": lambda x: x.amin(-1, keepdim=True).expand_as(x),
    "logsumexp": lambda x: x.logsumexp(-1, keepdim=True).expand_as(x),
    "var": lambda x: x.var(-1, keepdim=True).expand_as(x),
    "norm": lambda x: x.norm(dim=-1, keepdim=True).expand_as(x),
    "cumsum": lambda x: x.cumsum(-1),
    "flip": lambda x: x.flip(-1),
    "log_softmax": lambda x: functional.log_softmax(x, -1),
    "sort": lambda x: x.sort(-1).values,
    "clamp": lambda x: x.clamp(-2, 3),
    "clamp_min": lambda x: x.clamp(min=-1),
    "clamp_max": lambda x: x.clamp(max=0.5),
    "halves": lambda x: torch.cat(x.chunk(2, -1)[::-1], -1),
    "scaled": lambda x: 0.3 * x - 1.0,
}


def _call(part: nn.Module, x: Tensor) -> Tensor:
    return part(x)  # type: ignore[no-any-return]


class RandomGraph(nn.Module):
    """A drawn graph: ``trunk`` nodes over the inputs, then a linear head over a few of them."""

    def __init__(self, rng: random.Random, generator: torch.Generator) -> None:
        super().__init__()
        self.inputs = rng.choice((1, 1, 1, 2))
        self.widths: list[int] = [rng.choice(WIDTHS) for _ in range(self.inputs)]
        self.sizes = list(self.widths)
        self.steps: list[Step] = []
        self.parts = nn.ModuleDict()
        for _ in range(rng.randint(2, 9)):
            self._grow(rng)
        last = len(self.widths) - 1
        picked = sorted({last, *(rng.randrange(len(self.widths)) for _ in range(rng.choice((0, 0, 1))))})
        self.picked = [i for i in picked if i >= self.inputs or rng.random() < 0.5] or [last]
        self.final = rng.choice(("", "", "", "", "", "", "", "", "layer", "tanh", "rms"))
        width = sum(self.widths[i] for i in self.picked)
        self.last_norm = nn.LayerNorm(width) if self.final == "layer" else nn.RMSNorm(width, eps=1e-6)
        self.head = nn.Linear(width, rng.choice((1, 2)))
        self._draw(rng, generator)

    def _module(self, module: nn.Module) -> str:
        name = f"m{len(self.parts)}"
        self.parts[name] = module
        return name

    def _add(
        self,
        name: str,
        sources: tuple[int, ...],
        width: int,
        apply: Callable[..., Tensor],
        part: str | None = None,
    ) -> None:
        """Add a node; with a part, ``apply`` takes that module first (never a closure: models get copied)."""
        self.steps.append(Step(name, sources, part, apply))
        self.widths.append(width)

    def _pick(self, rng: random.Random) -> int:
        """Recent values are likelier, so that graphs get deep."""
        size = len(self.widths)
        return max(rng.randrange(size), rng.randrange(size))

    def _grow(self, rng: random.Random) -> None:
        kind = rng.choices(
            ("linear", "activation", "norm", "pair", "shrink", "residual", "cat"), (6, 5, 1.2, 4, 2, 2, 1.5)
        )[0]
        source = self._pick(rng)
        width = self.widths[source]
        if kind == "linear":
            out = rng.choice(WIDTHS)
            key = self._module(nn.Linear(width, out, bias=rng.random() < 0.8))
            self._add("linear", (source,), out, _call, key)
        elif kind == "activation":
            name = rng.choice(list(ACTIVATIONS))
            self._add(name, (source,), width, ACTIVATIONS[name])
        elif kind == "norm":
            self._norm(rng.choice(NORMS), source, width)
        elif kind == "shrink":
            name = rng.choice(list(SHRINKS))
            self._add(name, (source,), width, SHRINKS[name])
        elif kind == "cat":
            other = self._pick(rng)
            self._add("cat", (source, other), width + self.widths[other], lambda a, b: torch.cat([a, b], -1))
        elif kind == "residual":
            name = rng.choice(list(ACTIVATIONS))
            key = self._module(nn.Linear(width, width))
            function = ACTIVATIONS[name]
            self._add(f"residual_{name}", (source,), width, lambda part, x: x + function(part(x)), key)
        else:
            other, name = self._pick(rng), rng.choice(list(PAIRS))
            key = self._module(nn.Linear(self.widths[other], width))
            pair = PAIRS[name]
            self._add(name, (source, other), width, lambda part, a, b: pair(a, part(b)), key)

    def _norm(self, name: str, source: int, width: int) -> None:
        modules: dict[str, Callable[[], nn.Module]] = {
            "layer": lambda: nn.LayerNorm(width),
            "layer_plain": lambda: nn.LayerNorm(width, elementwise_affine=False, eps=1e-3),
            "rms": lambda: nn.RMSNorm(width, eps=1e-6),
            "group": lambda: nn.GroupNorm(2 if width % 2 == 0 else 1, width),
            "batch": lambda: nn.BatchNorm1d(width),
        }
        functions: dict[str, Callable[[Tensor], Tensor]] = {
            "l2": lambda x: functional.normalize(x, dim=-1),
            "by_hand": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5),
            "std": lambda x: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-3),
            "softmax": lambda x: torch.softmax(x, -1),
        }
        if name in modules:
            key = self._module(modules[name]())
            self._add(name, (source,), width, _call, key)
        else:
            self._add(name, (source,), width, functions[name])

    def _draw(self, rng: random.Random, generator: torch.Generator) -> None:
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                value = torch.randn(parameter.shape, generator=generator)
                if parameter.ndim > 1:
                    value = value * (1.5 / parameter.shape[1] ** 0.5)
                    if rng.random() < 0.05:
                        value = torch.zeros_like(value)
                    elif rng.random() < 0.1:
                        value = value.abs()
                parameter.copy_(value)
                del name
            for module in self.modules():
                if isinstance(module, nn.BatchNorm1d) and module.running_mean is not None:
                    module.running_mean.copy_(torch.randn(module.num_features, generator=generator))
                    assert module.running_var is not None
                    module.running_var.copy_(0.1 + torch.rand(module.num_features, generator=generator))
        self.eval()

    def forward(self, *inputs: Tensor) -> Tensor:
        values = list(inputs)
        for step in self.steps:
            part = () if step.part is None else (self.parts[step.part],)
            values.append(step.apply(*part, *(values[i] for i in step.sources)))
        x = torch.cat([values[i] for i in self.picked], -1)
        if self.final in ("layer", "rms"):
            x = self.last_norm(x)
        x = self.head(x)
        return torch.tanh(x) if self.final == "tanh" else x

    def describe(self) -> str:
        """The graph in one line."""
        steps = [f"{i + self.inputs}={s.name}{list(s.sources)}" for i, s in enumerate(self.steps)]
        return f"inputs {self.sizes}; {' '.join(steps)}; head{self.picked} {self.final}"


def random_model(seed: int) -> tuple[RandomGraph, tuple[Tensor, ...]]:
    """A graph and example inputs, from generators of their own."""
    generator = torch.Generator().manual_seed(seed)
    model = RandomGraph(random.Random(seed), generator)
    examples = tuple(torch.randn(2, size, generator=generator) for size in model.sizes)
    return model, examples


def directions(
    sizes: list[int], generator: torch.Generator, count: int = 48, extra: Tensor | None = None
) -> list[Tensor]:
    """Unit directions over all inputs together: random, along axes, equal, sign patterns, and any given ones."""
    total = sum(sizes)
    eye = torch.eye(total, dtype=torch.float64)
    rows = [
        torch.randn(count, total, generator=generator, dtype=torch.float64),
        torch.randn(count // 2, total, generator=generator, dtype=torch.float64).sign(),
        eye,
        -eye,
        torch.ones(1, total, dtype=torch.float64),
        -torch.ones(1, total, dtype=torch.float64),
    ]
    if extra is not None:
        rows.append(extra)
    flat = torch.cat(rows)
    flat = flat / flat.norm(dim=-1, keepdim=True)
    return list(flat.split(sizes, -1))


@dataclass
class Outcome:
    """What the examination of one graph found."""

    seed: int
    status: Status
    wrong: list[str] = field(default_factory=list)
    cause: str = ""


def examine(seed: int) -> Outcome:
    """Draw a graph, ask for its verdict, and check everything that is claimed against evaluations."""
    model, examples = random_model(seed)
    program = capture(model, examples)
    report = analyze(program, examples)
    exact = copy.deepcopy(model).to(torch.float64)
    generator = torch.Generator().manual_seed(seed + 1_000_000)
    extra = None
    if report.witness is not None and len(report.witness.directions) == model.inputs:
        rows = [
            u.reshape(-1, size)[:1]
            for u, size in zip(report.witness.directions.values(), model.sizes, strict=True)
        ]
        extra = torch.cat(rows, -1)
    rays = directions(model.sizes, generator, extra=extra)
    outcome = Outcome(seed, report.status)
    outcome.wrong += [
        f"{v} leaves its interval" for v in interval_violations(program, report.analysis, _at(rays))
    ]
    outcome.wrong += [f"{v} outgrows its rate" for v in rate_violations(program, report.analysis, rays)]
    outcome.wrong += _horizon_faults(model, exact, program, rays)
    outcome.wrong += _verdict_faults(exact, examples, program, report, rays)
    if report.status is Status.UNKNOWN:
        outcome.cause = _cause(program, next(v for v in report.verdicts if v.status is Status.UNKNOWN))
    return outcome


def _cause(program: Program, verdict: Verdict) -> str:
    """Why a verdict stayed open: the reason, or what stands on the way along which growth was not excluded."""
    if verdict.growth.reason is not None:
        return verdict.growth.reason.text
    ops = {program.node(name).op for path in verdict.paths for name in path.nodes}
    if ops & {"div", "reciprocal", "rsqrt"}:
        return f"{verdict.growth.kind.value}, through a quotient"
    if {n.op for n in program.nodes} & {"sin", "cos", "round", "floor"}:
        return f"{verdict.growth.kind.value}, beside an oscillation"
    return f"{verdict.growth.kind.value}, through {', '.join(sorted(ops - {'input', 'identity', 'linear'}))}"


def _at(rays: list[Tensor]) -> list[list[Tensor]]:
    return [[radius * u for u in rays] for radius in RADII]


@torch.no_grad()
def _run(model: RandomGraph, inputs: list[Tensor]) -> Tensor:
    result: Tensor = model(*inputs)
    return result


def _horizon_faults(
    model: RandomGraph, exact: RandomGraph, program: Program, rays: list[Tensor]
) -> list[str]:
    if any(word in model.describe() for word in SLOW):
        return []
    found = horizon_violations(
        program, rays, [None] * len(rays), lambda radius: _run(exact, [radius * u for u in rays]), radius=1e10
    )
    return [f"horizon: {fault}" for fault in found]


def _verdict_faults(
    exact: RandomGraph,
    examples: tuple[Tensor, ...],
    program: Program,
    report: GrowthReport,
    rays: list[Tensor],
) -> list[str]:
    sizes = [float(_run(exact, inputs).abs().max()) for inputs in _at(rays)]
    near = max(1.0, *(s for s, radius in zip(sizes, RADII, strict=True) if radius <= 1e4))
    if report.status is Status.BOUNDED and not sizes[-1] <= 3.0 * near:
        return [f"BOUNDED, but {near:.3g} becomes {sizes[-1]:.3g}"]
    if report.status is Status.UNBOUNDED:
        assert report.witness is not None
        return _witness_faults(exact, examples, program, report.witness)
    return []


def _witness_faults(
    exact: RandomGraph, examples: tuple[Tensor, ...], program: Program, witness: Witness
) -> list[str]:
    """Follow the witness with the module itself, at radii it was not confirmed at."""

    whole = any(u.ndim == 2 for u in witness.directions.values())

    def value(radius: float) -> float:
        inputs = []
        for spec, x in zip(program.inputs, examples, strict=True):
            u = witness.directions.get(spec.name)
            if u is None:
                inputs.append((x if whole else x[:1]).to(torch.float64))
            else:
                inputs.append(radius * (u if whole else u[None]))
        return float(_run(exact, inputs)[witness.index if whole else (0, *witness.index)])

    if witness.method == "measured":
        radius = 0.9 * witness.evidence[-1].radius
        grows = abs(value(radius)) > 1e6 * (1.0 + abs(value(radius / 2)))
        return [] if grows else ["exponential growth is not there"]
    if witness.logarithms or witness.degree < 1.0:
        return [] if abs(value(1e24)) > 1.2 * abs(value(1e12)) else ["slow growth is not there"]
    radius = 3e9 if witness.degree < 20 else 3e5
    claimed = witness.slope * radius**witness.degree
    # Next to λ/log λ the ratio converges slowly; nothing else excuses more than 1e-4.
    if not math.isclose(value(radius), claimed, rel_tol=2e-2):
        return [f"claimed {claimed:.6g} at {radius:.0e}, measured {value(radius):.6g}"]
    return []


def main() -> None:
    """Examine many graphs and print the tally."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--verbose", action="store_true", help="describe graphs that stay UNKNOWN")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tally: Counter[str] = Counter()
    causes: Counter[str] = Counter()
    for seed in range(options.first, options.first + options.count):
        outcome = examine(seed)
        tally[outcome.status.name] += 1
        tally["WRONG"] += bool(outcome.wrong)
        if outcome.cause:
            causes[outcome.cause] += 1
            if options.verbose:
                print(seed, outcome.cause, random_model(seed)[0].describe(), flush=True)
        if outcome.wrong:
            print(seed, outcome.status.name, outcome.wrong, random_model(seed)[0].describe(), flush=True)
    print(dict(tally))
    print(dict(causes))


if __name__ == "__main__":
    main()
