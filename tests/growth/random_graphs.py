"""Random networks with known building blocks: directed acyclic graphs of operators, as nn.Modules with random weights.

``random_model(seed)`` draws a graph; ``probe(model, …)`` evaluates it along many rays at radii up to 1e8 in float64. Run as
a script to audit many graphs and count the verdicts::

    python tests/growth/random_graphs.py --count 2000
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

RADII = (1e-2, 1.0, 10.0, 1e2, 1e4, 1e6, 1e8)
WIDTHS = (3, 4, 6, 8)


@dataclass
class Step:
    """One node of the graph: which earlier values it reads and what it does with them."""

    name: str
    sources: tuple[int, ...]
    part: str | None
    apply: Callable[..., Tensor]


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.1),
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "softplus": F.softplus,
    "elu": F.elu,
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 1.5),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu6": F.relu6,
    "hardtanh": F.hardtanh,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "softsign": F.softsign,
    "logsigmoid": F.logsigmoid,
    "tanhshrink": F.tanhshrink,
    "softshrink": F.softshrink,
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
    "swiglu": lambda a, b: F.silu(a) * b,
    "tanh_gate": lambda a, b: torch.tanh(a) * torch.tanh(b),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "over_square": lambda a, b: a / (1 + b * b),
    "over_abs": lambda a, b: a / (0.5 + b.abs()),
    "over_softplus": lambda a, b: a / (F.softplus(b) + 0.1),
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
    "log_softmax": lambda x: F.log_softmax(x, -1),
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
        self.last_norm = nn.LayerNorm(width) if self.final == "layer" else nn.RMSNorm(width)
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
            "l2": lambda x: F.normalize(x, dim=-1),
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
