"""Certificates of small models, and forgeries of them whose claims are false.

A forgery publishes less than a value the model attains, or a bound of a model that has none; what it says beside
(multipliers, trees, witnesses, hashes) is changed at random as well. Run by hand, it makes as many as are asked for:

    python tests/certify/forgeries.py 5000
"""

from __future__ import annotations

import base64
import copy
import itertools
import json
import math
import random
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from farfield.certify import certify, model_hash
from farfield.certify.checker import CertificateError, check_program
from farfield.graph import Program, capture

Data = dict[str, Any]
DOUBLE = torch.float64


@dataclass(frozen=True)
class Case:
    """A model, its program, its certificate as plain data, and what it attains at a few thousand inputs."""

    name: str
    model: nn.Module
    program: Program
    data: Data
    low: tuple[float, ...]
    high: tuple[float, ...]


def steps_not_seconds(model: nn.Module, example: Any, steps: int = 150, **options: Any) -> Data:
    """A certificate after so many looks at the clock, however busy the machine is; as plain data."""
    ticks = itertools.count()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: next(ticks) / 100)
        made = certify(model, example, time_budget=steps / 100, **options)
    return json.loads(json.dumps(made.to_dict()))


def inputs(dim: int, count: int = 4000, seed: int = 1) -> Tensor:
    """Directions at radii from 10⁻² to 10⁶."""
    generator = torch.Generator().manual_seed(seed)
    radius = 10 ** (8 * torch.rand(count, 1, generator=generator, dtype=DOUBLE) - 2)
    return torch.randn(count, dim, generator=generator, dtype=DOUBLE) * radius


class Plain(nn.Module):
    """Written as people write: numbers (or buffers) on either side, a norm with a bias, a mean behind it."""

    def __init__(self, dim: int, width: int = 8, numbers: bool = False) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(dim, width), nn.LayerNorm(width), nn.Linear(width, 2)
        nn.init.normal_(self.norm.bias)
        for name, value in (("middle", 0.5), ("scale", 0.25), ("shift", 1.5)):
            if numbers:
                setattr(self, name, value)
            else:
                self.register_buffer(name, torch.tensor(value))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.first((x - self.middle) / self.scale))
        return self.head(functional.gelu(h + self.scale)) + self.shift - h.mean(-1, keepdim=True)


class Adaptive(nn.Module):
    """A norm whose weight is computed: exp grows with the input, tanh does not."""

    def __init__(self, weight: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.lift, self.weight = nn.Linear(2, 4), weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.lift(x)
        return functional.layer_norm(h, (4,), weight=self.weight(h[0]))


def _stack(dim: int, norm: nn.Module, act: nn.Module, out: int = 1, width: int = 8) -> nn.Module:
    return nn.Sequential(
        nn.Linear(dim, width), norm, act, nn.Linear(width, width), act, nn.Linear(width, out)
    )


def _models() -> Iterator[tuple[str, Callable[[], nn.Module], int, Any]]:
    yield "relu", lambda: _stack(1, nn.LayerNorm(8), nn.ReLU()), 1, None
    yield "gelu", lambda: _stack(2, nn.LayerNorm(8), nn.GELU(), 2), 2, None
    yield "tanh", lambda: _stack(7, nn.RMSNorm(8), nn.Tanh()), 7, None
    yield "groups", lambda: _stack(6, nn.GroupNorm(2, 8), nn.LeakyReLU(0.1), 2), 6, None
    yield "plain", lambda: Plain(2), 2, None
    yield "wide", lambda: Plain(8), 8, None
    yield "box", lambda: nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)), 2, (-1.0, 1.5)
    yield "classes", lambda: nn.Sequential(_stack(2, nn.LayerNorm(8), nn.ReLU(), 3), nn.Softmax(-1)), 2, None


@cache
def cases() -> tuple[Case, ...]:
    """Honest certificates of every kind of proof."""
    made = []
    for seed, (name, build, dim, domain) in enumerate(_models()):
        torch.manual_seed(seed)
        model = build().double().eval().requires_grad_(False)
        example = torch.zeros(1, dim, dtype=DOUBLE)
        data = steps_not_seconds(model, example, domain=domain)
        x = inputs(dim)
        if domain is not None:
            x = domain[0] + (domain[1] - domain[0]) * torch.rand(len(x), dim, dtype=DOUBLE)
        values = model(x).reshape(len(x), -1)
        low, high = values.amin(0).tolist(), values.amax(0).tolist()
        program = capture(model, example, dynamic_batch=False)
        made.append(Case(name, model, program, data, tuple(low), tuple(high)))
    return tuple(made)


@cache
def unbounded() -> tuple[tuple[nn.Module, int], ...]:
    """Models without any bound, with and without a norm in them."""
    torch.manual_seed(0)
    beside = nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4))

    class Beside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = beside

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)[:, :1] + 1e-6 * x[:, :1]

    models = (
        nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1)),
        nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.GELU(), nn.Linear(4, 1)),
        Adaptive(torch.exp), Adaptive(torch.sinh), Adaptive(torch.square), Beside(),
    )  # fmt: skip
    return tuple((m.double().eval().requires_grad_(False), 2) for m in models)


# -- forging -------------------------------------------------------------------------------------------------


def _change(entry: Data, key: str, change: Callable[[Any], None], kind: str = "<f8") -> None:
    raw = np.frombuffer(zlib.decompress(base64.b64decode(entry[key])), dtype=kind).copy()
    if raw.size:
        change(raw)
    entry[key] = base64.b64encode(zlib.compress(raw.tobytes())).decode()


def _spoil_proof(proof: Data, rng: random.Random) -> None:
    """Something about how the bound is proved."""
    size = 10.0 ** rng.uniform(-3, 1)
    if proof["kind"] == "dual":
        tables = [e for k in ("curves", "boxes") for e in proof[k].values()]
        if tables and rng.random() < 0.6:
            entry = rng.choice(tables)
            key = rng.choice([k for k in entry if k not in ("lo", "hi")])
            _change(entry, key, rng.choice([
                lambda v: v.__imul__(1 + size), lambda v: v.__imul__(-1.0), lambda v: v.__iadd__(size),
                lambda v: v.__isub__(size), lambda v: v.__imul__(0.0), lambda v: v.__setitem__(0, math.nan),
            ]))  # fmt: skip
        elif proof["norms"] and rng.random() < 0.6:
            norm = rng.choice(list(proof["norms"].values()))
            norm[rng.choice(["kappa", "omega"])] = [
                rng.choice([0.0, -size, size, 1e6]) for _ in norm["kappa"]
            ]
            if rng.random() < 0.2:
                norm["parametrized"] = not norm["parametrized"]
        elif proof["forms"] and rng.random() < 0.7:
            form = rng.choice(proof["forms"])
            form[rng.randint(1, 3)] -= size
        else:
            _change(proof, "products", lambda v: v.__imul__(rng.choice([-1.0, 0.0, 1 + size, 1e9])), "<f4")
        proof["joint"] -= size
    elif proof["kind"] == "cells":
        face = rng.randrange(len(proof["trees"]))
        tree = proof["trees"][face]
        proof["trees"][face] = rng.choice(
            [tree, ".", "x", "", tree.replace(".", "x", 1), tree[:-1], tree + "."]
        )
        if rng.random() < 0.5:
            row = rng.choice(proof["matrix"])
            row[rng.randrange(len(row))] *= rng.choice([0.0, -1.0, 0.5, 1e-9, math.nan])
        if rng.random() < 0.3:
            proof["shift"][0] += size
    elif proof["kind"] == "softmax" and proof["differences"]:
        _spoil_proof(rng.choice(proof["differences"]), rng)


def _false_claim(case: Case, data: Data, rng: random.Random) -> tuple[int, str]:
    """Publish less than what is attained, with proofs that state it."""
    entry, side = rng.randrange(len(case.low)), rng.choice(["lower", "upper"])
    sign, met = (1.0, case.high[entry]) if side == "upper" else (-1.0, -case.low[entry])
    width = max(case.high[entry] - case.low[entry], 1e-3)
    claim = met - width * 10.0 ** rng.uniform(-3, 0.5)
    data[side][entry] = sign * (claim + 2e-9 * max(1.0, abs(claim)))
    for proof in data["proofs"]:
        if proof["output"] == entry and proof["side"] == side:
            proof["bound"] = claim
            for inner in proof.get("differences", ()):
                inner["bound"] -= 10.0 ** rng.uniform(-2, 1)
    return entry, side


def _without_witnesses(data: Data, rng: random.Random) -> None:
    if rng.random() < 0.8:
        data["witnesses"] = rng.choice([{}, None, {"lower": [], "upper": []}])


JUNK: tuple[Any, ...] = (
    None, True, "", "nan", "inf", math.nan, math.inf, -math.inf, 1e308, -1e308, 10**400, 0, -1, [], {}, [[]], [None],
    "x" * 50,
    {"kind": "all"}, [1, 2, 3], "AAAA", 2.5, "torch", b"",
)  # fmt: skip


def _junk(data: Any, rng: random.Random) -> None:
    """One field of the data, anywhere: another value, another type, or gone."""
    place = data
    for _ in range(rng.randint(0, 6)):
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        deeper = [k for k in keys if isinstance(place[k], dict | list) and place[k]]
        if not deeper:
            break
        place = place[rng.choice(deeper)]
    keys = list(place) if isinstance(place, dict) else list(range(len(place)))
    key = rng.choice(keys)
    if rng.random() < 0.25:
        del place[key]
    else:
        place[key] = copy.deepcopy(rng.choice(JUNK))


def altered(seed: int) -> tuple[str, Program, Data]:
    """An honest certificate with one or two fields changed at random: it may still be true."""
    rng = random.Random(seed)
    case = rng.choice(cases())
    data = copy.deepcopy(case.data)
    for _ in range(rng.randint(1, 2)):
        _junk(data, rng)
    return f"altered {case.name}", case.program, data


def forgery(seed: int) -> tuple[str, Program, Data]:
    """What it is, the program it is said to be of, and the data. Its claim is false."""
    rng = random.Random(seed)
    case = rng.choice(cases())
    data = copy.deepcopy(case.data)
    kind = rng.choice(["claim", "proof", "proof", "junk", "weights", "model", "unbounded", "domain", "swap"])
    if kind in ("weights", "model", "unbounded"):
        program = _other(case, kind, data, rng)
        if program is not None:
            return f"{kind} {case.name}", program, data
        kind = "claim"
    if kind == "domain" and data["domain"]["kind"] == "box":
        data["domain"] = rng.choice([{"kind": "all"}, {"kind": "halfspace", "normal": [1.0], "offset": 0.0}])
        _without_witnesses(data, rng)
        return "domain", case.program, data
    _false_claim(case, data, rng)
    _without_witnesses(data, rng)
    if kind == "proof":
        for proof in data["proofs"]:
            _spoil_proof(proof, rng)
    elif kind == "junk":
        for _ in range(rng.randint(1, 3)):
            if isinstance(data.get("proofs"), list) and data["proofs"]:
                _junk(data["proofs"], rng)
    elif kind == "swap":
        proofs = data["proofs"]
        a, b = rng.choice(proofs), rng.choice(proofs)
        for key in ("output", "side"):
            a[key], b[key] = b[key], a[key]
        for proof in (a, b):
            if proof["kind"] == "cells" and rng.random() < 0.5:
                proof["output_index"], proof["sign"] = proof["output"], 1 if proof["side"] == "upper" else -1
    return f"{kind} {case.name}", case.program, data


def _other(case: Case, kind: str, data: Data, rng: random.Random) -> Program | None:
    """Another program under the certificate's name, for which its claims do not hold."""
    dim = int(case.program.inputs[0].shape[1])
    if case.data["domain"]["kind"] == "box":
        return None
    if kind == "unbounded":
        model, dim = rng.choice(unbounded())
        data["input_shape"] = [[1, dim]]
    elif kind == "weights":
        model = copy.deepcopy(case.model)
        weights = [p for p in model.parameters() if p.ndim == 2]
        weights[-1].mul_(rng.choice([1.5, 3.0, 10.0]))
    else:
        shape = case.program.inputs[0].shape
        others = [c.model for c in cases() if c is not case and c.program.inputs[0].shape == shape]
        if not others:
            return None
        model = rng.choice(others)
    program = capture(model, torch.zeros(1, dim, dtype=DOUBLE), dynamic_batch=False)
    values = model(inputs(dim)).reshape(4000, -1)
    size = values.shape[1]
    data["model_hash"], data["output"], data["witnesses"] = model_hash(program), program.outputs[0], {}
    for side in ("lower", "upper"):
        data[side] = (data[side] * size)[:size]
    wrong = bool((values.amax(0) > torch.tensor(data["upper"], dtype=DOUBLE)).any())
    wrong |= bool((values.amin(0) < torch.tensor(data["lower"], dtype=DOUBLE)).any())
    return program if wrong else None


def accepted(program: Program, data: Data) -> bool:
    """Whether the checker accepts; any error but its own refusal comes through."""
    try:
        return check_program(program, data)
    except CertificateError as error:
        reason = str(error)
    assert "TypeCheckError" not in reason  # a refusal, not a fault of the checker's own
    return False


def main(count: int) -> int:
    """Forge, and say what was accepted."""
    wrong = []
    for seed in range(count):
        what, program, data = forgery(seed)
        if accepted(program, data):
            wrong.append((seed, what))
        if seed % 100 == 99:
            sys.stderr.write(f"{seed + 1} forged, {len(wrong)} accepted\n")
    sys.stdout.write(f"{count} forgeries, {len(wrong)} accepted: {wrong[:20]}\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5000))
