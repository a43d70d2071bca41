"""What random programs are made of: each operation as a line of Python, its shape, and whether it is bounded.

An operation gets a :class:`Scribe` and its operands and writes expressions. Shapes leave out the batch axis. Whether
a value is bounded is known by construction only: ``BOUNDED`` for every input, ``GROWS`` along almost every ray, or
``OPEN``. Nothing here asks farfield.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

__all__ = [
    "BOUNDED",
    "ENTRYWISE",
    "GROWS",
    "NORMS",
    "OPEN",
    "OPERATIONS",
    "PAIRS",
    "ROWS",
    "Scribe",
    "Size",
    "Value",
    "fill",
    "finish",
    "normed",
]

Size = Literal["bounded", "grows", "open"]
BOUNDED: Size = "bounded"
GROWS: Size = "grows"
OPEN: Size = "open"
LARGEST = 12
"""No axis gets longer."""


@dataclass(frozen=True)
class Value:
    """A tensor of the program: its name, its shape without the batch axis, what is known of its size."""

    name: str
    shape: tuple[int, ...]
    size: Size

    @property
    def width(self) -> int:
        """Length of the last axis."""
        return self.shape[-1]


@dataclass
class Scribe:
    """Writes one program: lines of ``__init__`` and of ``forward``, and parts that may be shared."""

    rng: random.Random = field(default_factory=random.Random)
    parts: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    known: dict[tuple[str, ...], list[str]] = field(default_factory=dict)
    single_row: bool = False
    label: str = "0"
    _count: int = 0

    def begin(self, seed: int, label: str) -> None:
        """The next operation: names of its parts carry its label, so that they stay when others are removed."""
        self.rng, self.label, self._count = random.Random(seed), label, 0

    def number(self, low: float = -3.0, high: float = 3.0) -> str:
        """A Python number: an int, a round one or any."""
        value = self.rng.uniform(low, high)
        kind = self.rng.randrange(3)
        if kind == 0 and low <= round(value) <= high and round(value) != 0:
            return str(round(value))
        return f"{value:.1f}" if kind == 1 and float(f"{value:.1f}") != 0.0 else f"{value:.4f}"

    def positive(self) -> str:
        """A positive Python number."""
        return self.number(0.25, 4.0)

    def norm_eps(self) -> str:
        """From tiny to large."""
        return self.rng.choice(["1e-12", "1e-6", "1e-5", "1e-5", "1e-3", "0.1"])

    def part(self, made: str, *, fresh: bool = False) -> str:
        """A module or parameter with drawn weights; sometimes one that is there already (shared weights)."""
        same = self.known.setdefault((made,), [])
        if same and not fresh and self.rng.random() < 0.25:
            return self.rng.choice(same)
        self._count += 1
        name = f"self.p{self.label}" + ("abcdefghij"[self._count - 1] if self._count > 1 else "")
        scale = self.rng.choice(
            ["0.1", "0.5", "0.7", "1.0", "1.0", "3.0", "30.0", "1e3", "1e6"][: 8 + (self.rng.random() < 0.2)]
        )
        bias = self.rng.choice(["None"] * 12 + ["300.0"])
        said = f", bias={bias}" if bias != "None" else ""
        self.parts.append(f"{name} = draw({made}, {self.rng.randrange(10**6)}, {scale}{said})")
        same.append(name)
        return name

    def linear(self, n: int, m: int) -> str:
        """A linear map of the last axis, with or without a bias."""
        return self.part(f"nn.Linear({n}, {m}{', bias=False' if self.rng.random() < 0.15 else ''})")

    def parameter(self, *shape: int) -> str:
        """A bare parameter."""
        return self.part(f"parameter({', '.join(map(str, shape))})")

    def fitted(self, b: Value, shape: tuple[int, ...]) -> str:
        """An expression of b in a shape that broadcasts with ``shape``."""
        if b.shape == shape:
            return b.name
        if len(b.shape) == len(shape) < 3 and b.shape[:-1] == shape[:-1]:
            return f"{self.linear(b.width, shape[-1])}({b.name})"
        flat = b.name if len(b.shape) == 1 else f"{b.name}.flatten(1)"
        size = math.prod(b.shape)
        if len(shape) == 3:
            return f"{self.linear(size, shape[0])}({flat})[:, :, None, None]"
        return f"{self.linear(size, shape[-1])}({flat})" + (".unsqueeze(1)" if len(shape) == 2 else "")


Operation = Callable[..., tuple[str, tuple[int, ...], Size] | None]
OPERATIONS: dict[str, tuple[int, float, Operation]] = {}
"""Name → (operands, how often, what it writes: expression, shape, size; None where it does not apply)."""


def operation(arity: int, often: float = 1.0) -> Callable[[Operation], Operation]:
    """Register under the function's name."""

    def register(function: Operation) -> Operation:
        OPERATIONS[function.__name__] = (arity, often, function)
        return function

    return register


def _kept(effect: str, *sizes: Size) -> Size:
    """``keep``: grows with its one operand. ``bound``: always bounded. ``loose``: bounded with its operands."""
    if effect == "bound" or all(s == BOUNDED for s in sizes):
        return BOUNDED
    return GROWS if effect == "keep" and GROWS in sizes else OPEN


# {a} is the operand, {b} a second one; {c} and {k} are numbers, {p} a positive one; {w} is the last axis' length.
ENTRYWISE: dict[str, str] = {
    "{a} + {c}": "keep", "{c} - {a}": "keep", "{c} + {a}": "keep", "{k} * {a} + {c}": "keep",
    "{a} / {p}": "keep", "({a} - {c}) / {p}": "keep", "-{a}": "keep", "{a} ** 2": "keep",
    "{a} ** 3": "keep", "{a}.square() * 0.1 + {c}": "keep", "{a}.abs() + {c}": "keep",
    "{p} / (1 + {a}.abs())": "bound", "{c} / ({a} ** 2 + {p})": "bound", "2.0 ** -{a}.abs()": "bound",
    "1 - torch.sigmoid({a})": "bound", "torch.relu({a})": "loose", "torch.relu({a}) + {c}": "loose",
    "F.leaky_relu({a}, 0.1)": "keep", "F.gelu({a}) / 2.0": "loose",
    "F.gelu({a}, approximate='tanh')": "loose", "F.silu({a}) - {c}": "loose", "F.mish({a})": "loose",
    "F.softplus({a})": "loose", "F.softplus({a} - 1) + 1e-3": "loose", "F.elu({a})": "loose",
    "F.selu({a})": "loose", "F.celu({a}, 1.5)": "loose", "torch.tanh({a}) * {c}": "bound",
    "torch.sigmoid({a})": "bound", "F.hardtanh({a})": "bound", "F.relu6({a})": "bound",
    "F.hardsigmoid({a})": "bound", "F.hardswish({a})": "loose", "F.softsign({a})": "bound",
    "torch.atan({a})": "bound", "torch.sin({a})": "bound", "torch.cos({a} / {p})": "bound",
    "torch.erf({a})": "bound", "torch.exp(-{a} ** 2)": "bound", "torch.exp(-{a}.abs())": "bound",
    "F.softshrink({a})": "keep", "F.tanhshrink({a})": "keep", "F.logsigmoid({a})": "loose",
    "{a}.clamp(-1.5, 2.0) + 0.25": "bound", "{a}.clamp({c}, 9)": "bound", "{a}.clamp(min={c})": "loose",
    "{a}.clamp(max={c})": "loose", "torch.exp(torch.tanh({a}))": "bound", "torch.log1p({a}.abs())": "keep",
    "torch.sqrt(1 + {a} ** 2)": "keep", "torch.rsqrt({p} + {a} * {a})": "bound", "torch.sign({a})": "bound",
    "torch.asinh({a})": "keep", "torch.round({a})": "keep", "torch.floor({a} / {p})": "keep",
    "{a} - torch.floor({a})": "bound", "torch.trunc({a})": "keep", "torch.remainder({a}, {p})": "bound",
    "{a} % {p}": "bound", "torch.fmod({a}, {p})": "bound",
    "torch.div({a}, {p}, rounding_mode='floor')": "keep",
    "torch.div({a}, {p}, rounding_mode='trunc')": "keep", "{a} // {p}": "keep",
    "torch.exp(-{a} ** 2) // -2": "bound", "{a}.float().to({a}.dtype)": "keep",
    "{a}.half().to({a}.dtype)": "keep", "torch.tanh({a}).half().to({a}.dtype)": "bound",
    "{a}.clamp(-9, 9).long().to({a}.dtype)": "bound", "{a} + (3 * torch.tanh({a})).int()": "keep",
    "{a}.bool().to({a}.dtype)": "bound", "({a} > {c}).to({a}.dtype)": "bound", "{a} * ({a} > 0)": "loose",
    "{a} * ({a} > {c}).to({a}.dtype)": "loose", "torch.where({a} > {c}, {a}, {k})": "loose",
    "torch.where({a}.abs() < {p}, {a}, {c})": "bound", "{a}.masked_fill({a} < {c}, {k})": "loose",
    "{a}.masked_fill({a}.abs() > {p}, 0.0)": "bound", "{a} * ~({a} > 0)": "loose",
    "F.dropout({a}, 0.3, training=self.training)": "keep",
    "torch.relu({a}) - torch.relu({a} - {p})": "bound",
    "F.relu({a} - {p}) - 2 * F.relu({a}) + F.relu({a} + {p})": "bound", "({a} + {a}) / 2": "keep",
    "{a} * {a}": "keep", "torch.maximum({a}, torch.tensor({c}, dtype={a}.dtype))": "loose",
    "{a} * torch.tensor({p}, dtype={a}.dtype)": "keep", "torch.nan_to_num({a})": "keep",
    "{a} + torch.ones_like({a})": "keep", "{a}.new_full((), {p}) * {a}": "keep",
}  # fmt: skip

ROWS: dict[str, str] = {
    "{a}.flip(-1)": "keep", "-{a}.flip(-1) + {c}": "keep", "{a}.roll(1, -1)": "keep",
    "{a}.cumsum(-1)": "keep", "F.softmax({a}, -1)": "bound", "F.softmax({a} / {p}, -1) + {c}": "bound",
    "F.log_softmax({a}, -1)": "loose", "{a}.sort(-1).values": "keep",
    "{a} - {a}.mean(-1, keepdim=True) + {c}": "loose", "{a} - {a}.amax(-1, keepdim=True)": "loose",
    "{a} / ({a}.abs().sum(-1, keepdim=True) + {p})": "bound",
    "{a} / ({a}.abs().amax(-1, keepdim=True) + {p})": "bound", "{a}.gather(-1, {a}.argsort(-1))": "keep",
    "{a} * F.one_hot({a}.argmax(-1), {w}).to({a}.dtype)": "loose", "{a} * torch.tensor({list})": "keep",
    "{a} + torch.arange({w})": "keep", "{a} * torch.linspace(1, 2, {w}, dtype={a}.dtype)": "keep",
    "{a}.logsumexp(-1, keepdim=True).expand_as({a})": "loose", "{a} + {a}.sum(-1, keepdim=True)": "loose",
    "F.softmin({a}, -1) * {a}": "loose", "torch.cummax({a}, -1).values": "loose",
    "{a}[..., list({back})]": "keep",
}  # fmt: skip

NORMS: dict[str, str] = {
    "{layer}({a})": "", "{plain}({a})": "", "{rms}({a})": "", "F.layer_norm({a}, ({w},))": "",
    "F.layer_norm({a}, ({w},), F.softplus({u}), torch.tanh({v}))": "",
    "F.layer_norm({a}, ({w},), weight={u}.softmax(0))": "", "F.normalize({a}, dim=-1)": "",
    "F.normalize({a} + {c}, dim=-1) * {p}": "", "F.normalize({a}, dim=-1, eps={eps})": "",
    "({a} - {a}.mean(-1, keepdim=True)) * torch.rsqrt({a}.var(-1, keepdim=True, unbiased=False) + {eps})": "",
    "({a} - {a}.mean(-1, keepdim=True)) / ({a}.var(-1, keepdim=True, unbiased=False) + {eps}).sqrt() * {u} + {v}": "",
    "{a} * torch.rsqrt({a}.pow(2).mean(-1, keepdim=True) + {eps})": "",
    "{a} * torch.rsqrt({a}.square().mean(-1, keepdim=True) + {eps}) * {u}": "",
    "({a} - {a}.mean(-1, keepdim=True)) / ({a}.std(-1, keepdim=True) + {eps})": "two",
    "{a} / ({a}.norm(dim=-1, keepdim=True) + {eps})": "",
    "{a} / {a}.norm(dim=-1, keepdim=True).clamp_min({eps})": "",
    "{a} / torch.sqrt(({a} * {a}).sum(-1, keepdim=True) + {eps})": "", "F.softmax({a}, -1)": "",
    "F.softmax({a}, -1) * {u}": "",
}  # fmt: skip

PAIRS: dict[str, str] = {
    "{a} + {b}": "sum", "{a} - {b}": "sum", "{b} * 0.1 + {a}": "sum", "{a} * {b}": "loose",
    "torch.maximum({a}, {b} - {c})": "loose", "torch.minimum({a}, {b})": "loose",
    "torch.where({a} > {b}, {a}, {b} * 0.1)": "loose", "torch.where({b} > {c}, {a}, 0.1 * {a})": "loose",
    "{a} * torch.sigmoid({b})": "loose", "torch.tanh({a}) * torch.tanh({b})": "bound",
    "{a} * F.softmax({b}, -1)": "loose", "F.silu({a}) * {b}": "loose", "{a} / (1 + {b} ** 2)": "loose",
    "{a} / ({b}.abs() + {p})": "loose", "{a} / torch.sqrt({p} + {b} * {b})": "loose",
    "{a} / (F.softplus({b}) + 0.1)": "loose", "{a} / (1 + {a}.abs() + {b}.abs())": "bound",
    "torch.lerp({a}, {b}, 0.3)": "loose", "torch.addcmul({a}, {b}, {b}, value=0.1)": "loose",
    "torch.hypot({a}, {b})": "either", "{a} * ({b} > 0)": "loose",
    "{a}.masked_fill({b} > {c}, {k})": "loose", "{a} + torch.tanh({b}).round()": "first",
    "torch.sigmoid({b}) * {a} + (1 - torch.sigmoid({b})) * {c}": "loose", "torch.tanh({b}) + {a}": "first",
    "torch.atan2({a}, 1 + {b} ** 2)": "bound", "({a} > {b}).to({a}.dtype)": "bound",
    "F.layer_norm({a}, ({w},)) * (1 + {b}) + {b}": "second",
    "F.layer_norm({a}, ({w},)) * (1 + torch.tanh({b})) + torch.sigmoid({b})": "bound",
    "F.normalize({a}, dim=-1) * F.softplus({b})": "second",
    "torch.min(torch.max({a}, -{b}.abs() - 1), {b}.abs() + 1)": "loose",
}  # fmt: skip


def _drawn(scribe: Scribe, templates: dict[str, str]) -> str:
    """One template; a bounding one in a quarter of the cases, or everything would be bounded."""
    wanted = scribe.rng.random() < 0.25
    return scribe.rng.choice([t for t, effect in templates.items() if (effect == "bound") == wanted])


def fill(scribe: Scribe, template: str, w: int, **names: str) -> str:
    """Put numbers, parts and operands into a template."""
    made = {
        "c": scribe.number, "k": scribe.number, "p": scribe.positive, "eps": scribe.norm_eps, "w": lambda: str(w),
        "layer": lambda: scribe.part(f"nn.LayerNorm({w}, eps={scribe.norm_eps()})"),
        "plain": lambda: scribe.part(f"nn.LayerNorm({w}, elementwise_affine=False)"),
        "rms": lambda: scribe.part(f"nn.RMSNorm({w}, eps={scribe.norm_eps()})"),
        "u": lambda: scribe.parameter(w), "v": lambda: scribe.parameter(w),
        "list": lambda: "[" + ", ".join(scribe.positive() for _ in range(w)) + "]",
        "back": lambda: f"range({w - 1}, -1, -1)",
    }  # fmt: skip
    for key, make in made.items():
        if "{" + key + "}" in template:
            names[key] = make()
    return template.format(**names)


# ------------------------------------------------------------------ operations


@operation(1, 12)
def entrywise(scribe: Scribe, a: Value) -> tuple[str, tuple[int, ...], Size]:
    template = _drawn(scribe, ENTRYWISE)
    return fill(scribe, template, a.width, a=a.name), a.shape, _kept(ENTRYWISE[template], a.size)


@operation(1, 4)
def row(scribe: Scribe, a: Value) -> tuple[str, tuple[int, ...], Size]:
    template = _drawn(scribe, ROWS)
    return fill(scribe, template, a.width, a=a.name), a.shape, _kept(ROWS[template], a.size)


def normed(scribe: Scribe, a: Value) -> tuple[str, tuple[int, ...], Size]:
    """A norm of the last axis: bounded whatever comes in."""
    template = scribe.rng.choice([t for t, need in NORMS.items() if need != "two" or a.width > 1])
    return fill(scribe, template, a.width, a=a.name), a.shape, BOUNDED


operation(1, 2)(normed)


@operation(1, 5)
def affine(scribe: Scribe, a: Value) -> tuple[str, tuple[int, ...], Size] | None:
    """Linear maps as people write them."""
    n, m = a.width, scribe.rng.choice([1, 2, 3, 4, 6, 8, 12])
    kind = scribe.rng.randrange(8)
    if kind < 4:
        text = f"{scribe.linear(n, m)}({a.name})"
    elif kind == 4:
        weight = scribe.parameter(m, n)
        gain = f" * {scribe.parameter(m, 1)}" if scribe.rng.random() < 0.5 else ""
        text = f"F.linear({a.name}, {weight} / {weight}.norm(dim=1, keepdim=True){gain})"
    elif kind == 5:
        text = f"{a.name} @ {scribe.parameter(n, m)}.softmax(0) + {scribe.number()}"
    elif kind == 6:
        letters = "bcdefg"[: len(a.shape)]
        text = f"torch.einsum('{letters}i,ij->{letters}j', {a.name}, {scribe.parameter(n, m)})"
    else:
        weight, m = scribe.parameter(n), n
        text = f"{a.name} * ({weight} / {weight}.norm())"
    return text, (*a.shape[:-1], m), _kept("keep", a.size)


@operation(1, 2)
def residual(scribe: Scribe, a: Value) -> tuple[str, tuple[int, ...], Size]:
    template = scribe.rng.choice(
        ["torch.relu({})", "torch.tanh({})", "F.gelu({})", "{}.square() * 0.1", "torch.sin({})"]
    )
    size = _kept("keep", a.size) if "tanh" in template or "sin" in template else _kept("loose", a.size)
    return (
        f"{a.name} + " + template.format(f"{scribe.linear(a.width, a.width)}({a.name})"),
        a.shape,
        size,
    )


@operation(2, 6)
def pair(scribe: Scribe, a: Value, b: Value) -> tuple[str, tuple[int, ...], Size]:
    template = _drawn(scribe, PAIRS)
    other = scribe.fitted(b, a.shape)
    effect, sizes = PAIRS[template], (a.size, b.size)
    if effect == "sum":  # two that grow may cancel
        size: Size = GROWS if sorted(sizes) == [BOUNDED, GROWS] else _kept("loose", *sizes)
    elif effect == "first":
        size = a.size
    elif effect == "second":
        size = BOUNDED if b.size == BOUNDED else OPEN
    else:
        size = GROWS if effect == "either" and GROWS in sizes else _kept(effect, *sizes)
    name = other if other == b.name else f"({other})" if " " in other else other
    return fill(scribe, template, a.width, a=a.name, b=name), a.shape, size


@operation(2, 2)
def joined(scribe: Scribe, a: Value, b: Value) -> tuple[str, tuple[int, ...], Size] | None:
    """Cats and stacks."""
    other, kind = scribe.fitted(b, a.shape), scribe.rng.randrange(5)
    both = _kept("loose", a.size, b.size)
    if len(a.shape) > 1 and b.shape != a.shape:
        other = f"({other}).expand_as({a.name})"
    if kind == 0 and 2 * a.width <= LARGEST:
        size = GROWS if GROWS in (a.size, b.size) else both
        return f"torch.cat([{a.name}, {other}], -1)", (*a.shape[:-1], 2 * a.width), size
    if kind == 1:
        return f"torch.stack([{a.name}, {other}], -1).sum(-1) - {scribe.number()}", a.shape, both
    if kind == 2:
        return f"torch.stack([{a.name}, {other}], 1).mean(1)", a.shape, both
    if kind == 3:
        return f"torch.stack([{a.name}, {other}], 1).amax(1)", a.shape, both
    cut = max(1, a.width // 2)
    if cut == a.width:
        return None
    left, right = f"{a.name}[..., :{cut}] + 1.0", f"({other})[..., {cut}:] * 0.5"
    return f"torch.cat([{left}, {right}], -1)", a.shape, both


@operation(1, 3)
def picked(scribe: Scribe, a: Value) -> tuple[str, tuple[int, ...], Size] | None:
    """Chunks, splits, slices, fancy indices."""
    w, rng, size = a.width, scribe.rng, _kept("loose", a.size)
    if w < 2:
        return f"{a.name}.repeat({', '.join(['1'] * len(a.shape))}, 2)", (*a.shape[:-1], 2), a.size
    kind, half = rng.randrange(9), w // 2
    lead = a.shape[:-1]
    if kind == 0 and w % 2 == 0:
        return f"{a.name}.chunk(2, -1)[{rng.randrange(2)}]", (*lead, half), size
    if kind == 1 and w % 2 == 0:
        chunks = f"{a.name}.chunk(2, -1)"
        return f"{chunks}[0] * torch.sigmoid({chunks}[1])", (*lead, half), size
    if kind == 2:
        return f"torch.split({a.name}, [1, {w - 1}], -1)[1]", (*lead, w - 1), size
    if kind == 3:
        return f"{a.name}[..., ::2]", (*lead, -(-w // 2)), size
    if kind == 4:
        index = [rng.randrange(w) for _ in range(min(w, 4))]
        return f"{a.name}[..., {index}]", (*lead, len(index)), size
    if kind == 5:
        return f"{a.name}.gather(-1, {a.name}.argmax(-1, keepdim=True))", (*lead, 1), size
    if kind == 6:
        return f"{a.name}.topk({half}, -1).values", (*lead, half), size
    if kind == 7:
        return f"{a.name}[..., 1:] - {a.name}[..., :-1]", (*lead, w - 1), size
    return f"{a.name}.index_select(-1, torch.tensor([{w - 1}, 0]))", (*lead, 2), size


@operation(1, 2)
def reduced(scribe: Scribe, a: Value) -> tuple[str, tuple[int, ...], Size]:
    name = scribe.rng.choice(
        [
            "mean",
            "sum",
            "amax",
            "amin",
            "norm",
            "var",
            "logsumexp",
            "abs().mean",
            "square().sum",
            "max",
            "prod",
        ]
    )
    if name == "var" and a.width < 2:
        name = "mean"
    if name == "max":
        return f"{a.name}.max(-1, keepdim=True).values", (*a.shape[:-1], 1), _kept("loose", a.size)
    if name == "norm":
        text = f"{a.name}.norm(dim=-1, keepdim=True)"
    elif name == "var":
        text = f"{a.name}.var(-1, keepdim=True, unbiased=False)"
    else:
        text = f"{a.name}.{name}(-1, keepdim=True)"
    return (
        text,
        (*a.shape[:-1], 1),
        _kept("keep" if name in ("norm", "abs().mean", "square().sum") else "loose", a.size),
    )


@operation(1, 3)
def reshaped(scribe: Scribe, a: Value) -> tuple[str, tuple[int, ...], Size] | None:
    """Between rows, sequences and images."""
    rng, rank = scribe.rng, len(a.shape)
    if rank == 1:
        if a.width % 2 or a.width < 4:
            return f"{a.name}.unsqueeze(1)", (1, a.width), a.size
        if rng.random() < 0.3 and a.width in (8, 12):
            shape: tuple[int, ...] = (2, 2, a.width // 4)
            return f"{a.name}.reshape(-1, 2, 2, {a.width // 4})", shape, a.size
        text = rng.choice([f"view(-1, 2, {a.width // 2})", f"unflatten(-1, (2, {a.width // 2}))"])
        return f"{a.name}.{text}", (2, a.width // 2), a.size
    if rank == 2:
        t, w = a.shape
        kind = rng.randrange(5)
        if kind == 0:
            return f"{a.name}.transpose(1, 2)", (w, t), a.size
        if kind == 1:
            return f"{a.name}[:, {rng.choice([0, -1])}]", (w,), _kept("loose", a.size)
        if kind == 2:
            return f"{a.name}.{rng.choice(['mean', 'sum', 'amax'])}(1)", (w,), _kept("loose", a.size)
        return (f"{a.name}.flatten(1)", (t * w,), a.size) if t * w <= LARGEST else None
    c, h, w = a.shape
    if rng.random() < 0.5:
        return f"{a.name}.mean((2, 3))", (c,), _kept("loose", a.size)
    return (f"{a.name}.flatten(1)", (c * h * w,), a.size) if c * h * w <= LARGEST else None


@operation(1, 3)
def of_channels(scribe: Scribe, a: Value) -> tuple[str, tuple[int, ...], Size] | None:
    """Convolutions, pooling, group, instance and batch norms; attention over a sequence."""
    rng = scribe.rng
    if len(a.shape) == 1:
        groups = 2 if a.width % 2 == 0 and a.width > 2 and rng.random() < 0.7 else 1
        if rng.random() < 0.5 and a.width > 1:
            return f"{scribe.part(f'nn.GroupNorm({groups}, {a.width})')}({a.name})", a.shape, BOUNDED
        return f"{scribe.part(f'nn.BatchNorm1d({a.width})')}({a.name})", a.shape, a.size
    if len(a.shape) == 2:
        t, w = a.shape
        kind = rng.randrange(4)
        if kind == 0 and w > 1:
            return f"{scribe.part(f'nn.InstanceNorm1d({t}, affine=True)')}({a.name})", a.shape, BOUNDED
        if kind == 1:
            q, k = scribe.linear(w, 3), scribe.linear(w, 3)
            weights = f"({q}({a.name}) @ {k}({a.name}).transpose(1, 2) / 3 ** 0.5).softmax(-1)"
            return f"{weights} @ {a.name}", a.shape, _kept("loose", a.size)
        if kind == 2:
            made = ", ".join(f"{scribe.linear(w, w)}({a.name})" for _ in range(3))
            return f"F.scaled_dot_product_attention({made})", a.shape, _kept("loose", a.size)
        return f"F.avg_pool1d({a.name}, 3, 1, 1)", a.shape, _kept("loose", a.size)
    c, h, w = a.shape
    kind = rng.randrange(6)
    if kind == 0:
        return (
            f"{scribe.part(f'nn.Conv2d({c}, {c}, 3, padding=1)')}({a.name})",
            a.shape,
            _kept("keep", a.size),
        )
    if kind == 1 and h * w > 1:
        return f"{scribe.part(f'nn.InstanceNorm2d({c}, affine=True)')}({a.name})", a.shape, BOUNDED
    if kind == 2 and h * w > 1:
        return f"{scribe.part(f'nn.GroupNorm({rng.choice([1, c])}, {c})')}({a.name})", a.shape, BOUNDED
    if kind == 3:
        return f"{scribe.part(f'nn.BatchNorm2d({c})')}({a.name})", a.shape, a.size
    pool = rng.choice(["max_pool2d", "avg_pool2d"])
    return f"F.{pool}({a.name}, 3, 1, 1)", a.shape, _kept("loose", a.size)


@operation(2, 0.4)
def gain_from_a_row(scribe: Scribe, a: Value, b: Value) -> tuple[str, tuple[int, ...], Size] | None:
    """A norm whose weight is computed from the input: only for batches of one row."""
    if len(b.shape) != 1:
        return None
    made, size = scribe.rng.choice(
        [("torch.sigmoid({})", BOUNDED), ("torch.exp({})", OPEN), ("(1 + {})", OPEN)]
    )
    weight = made.format(f"{scribe.linear(b.width, a.width)}({b.name})[0]")
    scribe.single_row = True
    return (
        f"F.layer_norm({a.name}, ({a.width},), weight={weight})",
        a.shape,
        BOUNDED if b.size == BOUNDED else size,
    )


def finish(scribe: Scribe, a: Value) -> tuple[list[str], Value]:
    """The head: an output of a few entries, behind a norm, a bounded activation or nothing."""
    rng, lines = scribe.rng, []
    if len(a.shape) > 1:
        if math.prod(a.shape) <= LARGEST and rng.random() < 0.5:
            a = Value(f"{a.name}.flatten(1)", (math.prod(a.shape),), a.size)
        else:
            axes = "1" if len(a.shape) == 2 else "(2, 3)"
            kept = a.shape[1:] if len(a.shape) == 2 else a.shape[:1]
            a = Value(f"{a.name}.mean({axes})", kept, _kept("loose", a.size))
    kind = rng.random()
    if kind < 0.4:
        lines.append(f"h = {a.name}")
        text, shape, size = normed(scribe, Value("h", a.shape, a.size))
        lines.append(f"h = {text}")
        a = Value("h", shape, size)
    elif kind < 0.45:
        a = Value(f"torch.tanh({a.name})", a.shape, BOUNDED)
    outputs = rng.choice([1, 1, 1, 2, 3])
    text = f"{scribe.linear(a.width, outputs)}({a.name})"
    shift = rng.random()
    text = (
        f"{text} + {scribe.number()}"
        if shift < 0.4
        else f"{scribe.number()} - {text}"
        if shift < 0.5
        else text
    )
    size: Size = a.size
    last = rng.random()
    if last < 0.04:
        text, size = f"F.softmax({text}, -1)", BOUNDED
    elif last < 0.1:
        text, size = f"({text}).sum(-1)", _kept("loose", size)
    elif last < 0.14:
        text, size = f"({text}).clamp(-5, 40)", BOUNDED
    return [*lines, f"return {text}"], Value("return", (outputs,), size)
