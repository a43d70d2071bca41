"""Random programs as people write them, as readable Python source that is run as it is printed.

A :class:`Plan` is what was drawn: the inputs' shapes and a list of steps. Its :meth:`Plan.write` gives the source,
and ``Source.build()`` the module in float64. A plan can be replayed with steps left out or with smaller inputs: that
is how failures shrink.
"""

from __future__ import annotations

import linecache
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from programs.operations import (
    BOUNDED,
    ENTRYWISE,
    GROWS,
    NORMS,
    OPERATIONS,
    PAIRS,
    ROWS,
    Scribe,
    Size,
    Value,
    fill,
    finish,
)

__all__ = ["Plan", "Source", "Step", "build", "random_plan", "singles"]

PRELUDE = '''import torch
import torch.nn.functional as F
from torch import nn


def parameter(*shape):
    return nn.Parameter(torch.empty(shape))


def draw(part, seed, scale, bias=None):
    """Weights of this scale; gains, biases and running statistics of size 1, biases ``bias`` if given."""
    generator = torch.Generator().manual_seed(seed)
    named = [("", part)] if isinstance(part, nn.Parameter) else [*part.named_parameters(), *part.named_buffers()]
    for name, p in named:
        if p.is_floating_point():
            size = scale / max(1, p.shape[-1]) ** 0.5 if p.ndim > 1 else 0.5
            value = size * torch.randn(p.shape, generator=generator)
            if name == "running_var":
                value = value.abs() + 0.1
            elif name == "weight" and p.ndim == 1:
                value = value + 1.0
            p.data = torch.full_like(value, bias) if name == "bias" and bias is not None else value
    return part


def train(model, shapes, steps=25):
    """A few steps of Adam towards a sine; the same weights every time, dropout or not."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        _train(model, shapes, steps)


def _train(model, shapes, steps):
    generator = torch.Generator().manual_seed(0)
    inputs = [4 * torch.rand(64, *shape, generator=generator).double() - 2 for shape in shapes]
    target = torch.sin(2 * sum(x.flatten(1).sum(-1) for x in inputs))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        y = model(*inputs)
        loss = (y.reshape(64, -1) - target[:, None]).square().mean()
        if not (torch.isfinite(loss) and loss.requires_grad):
            break
        try:
            loss.backward()
        except RuntimeError:  # floor division has no derivative
            break
        optimizer.step()
    if not all(bool(torch.isfinite(p).all()) for p in model.parameters()):
        for name, p in model.named_parameters():
            p.data = before[name]
'''


@dataclass(frozen=True)
class Step:
    """One operation: its name, the identities of its operands (inputs are negative), the seed of what it draws."""

    identity: int
    operation: str
    operands: tuple[int, ...]
    seed: int


@dataclass(frozen=True)
class Plan:
    """What was drawn."""

    seed: int
    shapes: tuple[tuple[int, ...], ...]
    steps: tuple[Step, ...]
    head: int
    trained: bool

    def write(self) -> Source:
        """The program's source; a step that does not apply to the shapes it meets is its first operand."""
        scribe = Scribe()
        names = ["x"] if len(self.shapes) == 1 else ["x", "y", "z"][: len(self.shapes)]
        values = {-1 - i: Value(n, s, GROWS) for i, (n, s) in enumerate(zip(names, self.shapes, strict=True))}
        aliases: dict[int, int] = {}
        single = False

        def resolved(identity: int) -> int:
            while identity in aliases:
                identity = aliases[identity]
            return identity if identity in values else -1

        present = {step.identity for step in self.steps}
        lines: list[str] = []
        for step in self.steps:
            for old in range(step.identity):
                if old not in present and old not in values:
                    aliases.setdefault(old, -1 if not values else max(values))
            operands = [values[resolved(i)] for i in step.operands]
            scribe.begin(step.seed, str(step.identity))
            parts, known, scribe.single_row = (
                len(scribe.parts),
                {k: list(v) for k, v in scribe.known.items()},
                False,
            )
            made = OPERATIONS[step.operation][2](scribe, *operands)
            if made is None:
                del scribe.parts[parts:]
                scribe.known = known
                aliases[step.identity] = step.operands[0]
                continue
            text, shape, size = made
            single = single or scribe.single_row
            values[step.identity] = Value(f"h{step.identity}", shape, size)
            lines.append(f"h{step.identity} = {text}")
        scribe.begin(self.head, "_head")
        ending, result = finish(scribe, values[max(values)])
        kept = _live([*lines, *ending])
        parts = [p for p in scribe.parts if re.search(rf"{re.escape(p.split(' ')[0])}\b", "\n".join(kept))]
        return Source(tuple(names), self.shapes, tuple(parts), tuple(kept), result.size, self.trained, single)


def _live(lines: list[str]) -> list[str]:
    """Without the lines whose result nobody reads."""
    kept: list[str] = []
    wanted: set[str] = set()
    for line in reversed(lines):
        target, _, text = line.partition(" = ") if not line.startswith("return") else ("", "", line)
        if target and target not in wanted:
            continue
        wanted.discard(target)
        wanted |= set(re.findall(r"(?<![\w.])h\d*(?!\w)", text))
        kept.insert(0, line)
    return kept


@dataclass(frozen=True)
class Source:
    """A written program: the lines of ``__init__`` and ``forward``, and what is known of it by construction."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    parts: tuple[str, ...]
    lines: tuple[str, ...]
    size: Size
    trained: bool
    single_row: bool

    @property
    def bounded(self) -> bool | None:
        """By construction: True for every input, False along almost every ray, None if neither is known."""
        return {BOUNDED: True, GROWS: False}.get(self.size)

    def body(self) -> str:
        """The class alone."""
        indent = "\n        "
        made = indent.join(["super().__init__()", *self.parts])
        return (
            f"class Program(nn.Module):\n    def __init__(self):{indent}{made}\n\n"
            f"    def forward(self, {', '.join(self.names)}):{indent}{indent.join(self.lines)}\n"
        )

    def script(self) -> str:
        """Everything that reproduces the program, ready to run."""
        shapes = ", ".join(
            f"torch.zeros({', '.join(map(str, (1, *s)))}, dtype=torch.float64)" for s in self.shapes
        )
        training = f"train(model, {list(self.shapes)})\n" if self.trained else ""
        return (
            f"{PRELUDE}\n\n{self.body()}\n\nmodel = Program().double()\n{training}model.eval()\n"
            f"inputs = ({shapes},)\n# bounded by construction: {self.bounded}\n"
        )

    def exactly(self) -> Source:
        """Without casts to float32 and float16: in real arithmetic they change nothing."""
        return replace(
            self,
            lines=tuple(
                t.replace(".float()", ".double()").replace(".half()", ".double()") for t in self.lines
            ),
        )

    def build(self) -> nn.Module:
        """The module, in float64 and eval mode."""
        return build(self.script())

    @cached_property
    def inputs(self) -> tuple[Tensor, ...]:
        """An example of one row."""
        return tuple(torch.zeros(1, *s, dtype=torch.float64) for s in self.shapes)


def build(script: str) -> nn.Module:
    """Run a script and take its model. Tracebacks and captures show its lines."""
    name = f"<program {hash(script) & 0xFFFFFFFF:08x}>"
    linecache.cache[name] = (len(script), None, script.splitlines(keepends=True), name)
    space: dict[str, Any] = {"__name__": "random_program"}
    exec(compile(script, name, "exec"), space)
    model = space["model"]
    assert isinstance(model, nn.Module)
    return model.requires_grad_(False)


def random_plan(seed: int, longest: int = 9) -> Plan:
    """Draw a program. Later values are likelier operands, so that programs get deep."""
    rng = random.Random(seed)
    shapes = []
    for _ in range(rng.choice([1, 1, 1, 2])):
        kind = rng.random()
        if kind < 0.75:
            shapes.append((rng.choice([1, 1, 2, 3, 4, 5, 8, 12]),))
        elif kind < 0.9:
            shapes.append((2, rng.choice([1, 2, 3, 4])))
        else:
            shapes.append((rng.choice([1, 2]), 2, rng.choice([1, 2, 3])))
    names, often = list(OPERATIONS), [OPERATIONS[n][1] for n in OPERATIONS]
    steps: list[Step] = []
    inputs = [-1 - i for i in range(len(shapes))]
    if rng.random() < 0.7:  # a first layer, as networks have
        steps.append(Step(0, "affine", (-1,), rng.randrange(10**9)))
    if len(inputs) > 1:
        steps.append(
            Step(len(steps), "pair", (steps[-1].identity if steps else -1, -2), rng.randrange(10**9))
        )
    for _ in range(rng.randint(1, longest)):
        pool = [*inputs, *(s.identity for s in steps)]
        name = rng.choices(names, often)[0]
        operands = tuple(
            pool[max(rng.randrange(len(pool)), rng.randrange(len(pool)))] for _ in range(OPERATIONS[name][0])
        )
        operands = (pool[-1] if rng.random() < 0.75 else operands[0], *operands[1:])
        steps.append(Step(len(steps), name, operands, rng.randrange(10**9)))
    return Plan(seed, tuple(shapes), tuple(steps), rng.randrange(10**9), rng.random() < 0.3)


def singles() -> Iterator[tuple[str, Source]]:
    """Every operation alone: on a linear map of the input, and behind a norm. (what, program)."""
    begin = ("self.p0 = draw(nn.Linear(2, 3), 1, 1.0)", "self.p1 = draw(nn.Linear(3, 3), 2, 1.0)")
    tables = {"entrywise": ENTRYWISE, "row": ROWS, "norm": NORMS, "pair": PAIRS}
    for kind, table in tables.items():
        for template, effect in table.items():
            for norm in (False, True):
                scribe = Scribe(parts=list(begin))
                scribe.begin(len(template), "2")
                first = "F.layer_norm(self.p0(x), (3,))" if norm else "self.p0(x)"
                lines = [f"h0 = {first}"]
                if kind == "pair":
                    lines.append(
                        "h1 = F.layer_norm(self.p1(self.p0(x)), (3,))" if norm else "h1 = self.p1(self.p0(x))"
                    )
                lines.append(f"h2 = {fill(scribe, template, 3, a='h0', b='h1')}")
                lines.append(f"return {scribe.part('nn.Linear(3, 1)')}(h2) + 0.5")
                size: Size = (
                    BOUNDED
                    if norm or kind == "norm" or effect == "bound"
                    else GROWS
                    if effect == "keep"
                    else "open"
                )
                what = f"{template}{' behind a norm' if norm else ''}"
                yield what, Source(("x",), ((2,),), tuple(scribe.parts), tuple(lines), size, False, False)
