"""Learned simulators that are fed back: as trained, and with the state kept where it was seen.

    python -m benchmarks.repair_rollouts [--systems lorenz96 kuramoto] [--seeds 5] [--steps 4000]

Lorenz-96 (40 variables, F = 8, steps of 0.05) and the Kuramoto-Sivashinsky equation (a ring of length 22 at 64
points, steps of 0.5), each learned as state + difference by a dense and by a convolutional network. 200 states are
rolled 1,500 steps; the last 300 are compared with the truth's: the share that blows up (|value| ≥ 100), spread, mean,
spectrum.

Finished runs are lines of a file beside the record, and are not computed again.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import farfield as ff
from benchmarks._records import save_record
from benchmarks.repair import OUT, kept_lines, vars_of
from farfield._provenance import provenance

TRAJECTORIES, LENGTH = 500, 20
STATES, ROLLED, LATE = 200, 1500, 300
WILD = 100.0


@dataclass(frozen=True)
class System:
    """A flow on a ring of points: one step of it, and states to begin with."""

    points: int
    advance: Callable[[Tensor], Tensor]
    begin: Callable[[int, torch.Generator], Tensor]
    settle: int


def lorenz(state: Tensor, step: float = 0.05, forcing: float = 8.0) -> Tensor:
    """One Runge-Kutta step of Lorenz-96."""

    def slope(x: Tensor) -> Tensor:
        return (x.roll(-1, -1) - x.roll(2, -1)) * x.roll(1, -1) - x + forcing

    a = slope(state)
    b = slope(state + step / 2 * a)
    c = slope(state + step / 2 * b)
    d = slope(state + step * c)
    return state + step / 6 * (a + 2 * b + 2 * c + d)


class Kuramoto:
    """Steps of u_t = −u·u_x − u_xx − u_xxxx on a ring, by exponential Runge-Kutta of order four."""

    def __init__(self, points: int = 64, length: float = 22.0, step: float = 0.1, inner: int = 5) -> None:
        waves = 2 * math.pi / length * torch.arange(points // 2 + 1, dtype=torch.float64)
        linear = waves**2 - waves**4
        self.points, self.inner = points, inner
        self.whole, self.half = torch.exp(step * linear), torch.exp(step * linear / 2)
        # The coefficients by means over a circle: the formulas themselves lose all digits near 0.
        circle = torch.exp(1j * math.pi * (torch.arange(32, dtype=torch.float64) + 0.5) / 32)
        z = step * linear[:, None] + circle[None]
        e = torch.exp(z)
        self.q = step * ((torch.exp(z / 2) - 1) / z).mean(1).real
        self.f1 = step * ((-4 - z + e * (4 - 3 * z + z**2)) / z**3).mean(1).real
        self.f2 = step * ((2 + z + e * (z - 2)) / z**3).mean(1).real
        self.f3 = step * ((-4 - 3 * z - z**2 + e * (4 - z)) / z**3).mean(1).real
        self.derivative = -0.5j * waves

    def _product(self, v: Tensor) -> Tensor:
        return self.derivative * torch.fft.rfft(torch.fft.irfft(v, self.points).square())

    def __call__(self, state: Tensor) -> Tensor:
        """The state half a unit of time later."""
        v = torch.fft.rfft(state.double())
        for _ in range(self.inner):
            n = self._product(v)
            a = self.half * v + self.q * n
            na = self._product(a)
            b = self.half * v + self.q * na
            nb = self._product(b)
            c = self.half * a + self.q * (2 * nb - n)
            v = self.whole * v + n * self.f1 + 2 * (na + nb) * self.f2 + self._product(c) * self.f3
        return torch.fft.irfft(v, self.points).to(state.dtype)


def systems() -> dict[str, System]:
    def waves(count: int, source: torch.Generator) -> Tensor:
        place = 2 * math.pi * torch.arange(64) / 64
        parts = [torch.randn(count, 2, generator=source) for _ in range(4)]
        return sum(  # type: ignore[return-value]
            p[:, :1] * torch.cos((k + 1) * place) + p[:, 1:] * torch.sin((k + 1) * place)
            for k, p in enumerate(parts)
        )

    return {
        "lorenz96": System(40, lorenz, lambda n, g: 8.0 + torch.randn(n, 40, generator=g), 200),
        "kuramoto": System(64, Kuramoto(), waves, 200),
    }


def settled(system: System, count: int, seed: int) -> Tensor:
    state = system.begin(count, torch.Generator().manual_seed(seed))
    for _ in range(system.settle):
        state = system.advance(state)
    return state


class Step(nn.Module):
    """state + difference, the difference from a network on the standardized state."""

    def __init__(self, inner: nn.Module, mean: Tensor, scale: Tensor, size: Tensor) -> None:
        super().__init__()
        self.inner = inner
        for name, value in (("mean", mean), ("scale", scale), ("size", size)):
            self.register_buffer(name, value)

    def forward(self, state: Tensor) -> Tensor:  # noqa: D102
        return state + self.size * self.inner((state - self.mean) / self.scale)


def trained_step(system: System, seed: int, *, convolution: bool, steps: int) -> tuple[Step, Tensor]:
    states = [settled(system, TRAJECTORIES, 100 + seed)]
    for _ in range(LENGTH):
        states.append(system.advance(states[-1]))
    x, y = torch.cat(states[:-1]), torch.cat(states[1:])
    torch.manual_seed(seed)
    n = system.points
    if convolution:
        ring: dict[str, Any] = {"padding": 2, "padding_mode": "circular"}
        inner: nn.Module = nn.Sequential(
            nn.Unflatten(-1, (1, n)), nn.Conv1d(1, 32, 5, **ring), nn.ReLU(), nn.Conv1d(32, 32, 5, **ring),
            nn.ReLU(), nn.Conv1d(32, 1, 1), nn.Flatten(-2),
        )  # fmt: skip
    else:
        inner = nn.Sequential(nn.Linear(n, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, n))
    model = Step(inner, x.mean(0), x.std(0), (y - x).std(0))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        rows = torch.randint(len(x), (256,))
        loss = ((model(x[rows]) - y[rows]) / model.size).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval(), x


@torch.no_grad()
def rolled(advance: Callable[[Tensor], Tensor], state: Tensor) -> dict[str, Any]:
    late = []
    for step in range(ROLLED):
        state = advance(state)
        if step >= ROLLED - LATE:
            late.append(state)
    seen = torch.stack(late).double()
    wild = (~(seen.abs() < WILD)).any(-1).any(0)
    spectrum = torch.fft.rfft(seen, dim=-1).abs().square().mean((0, 1))
    return {
        "blown_up": float(wild.double().mean()),
        "spread": float(seen.std()),
        "mean": float(seen.mean()),
        "spectrum": spectrum.tolist(),
    }


def run(system: System, name: str, kind: str, seed: int, steps: int, begun: Tensor) -> dict[str, Any]:
    model, x = trained_step(system, seed, convolution=kind == "convolution", steps=steps)
    fixed = ff.repair(model, x, rollout=True)
    models = {
        "as trained": model,
        "repair, of the step": ff.repair(model, x).model,
        "repair, of the state": fixed.model,
    }
    return {
        "system": name,
        "kind": kind,
        "seed": seed,
        "unchanged": fixed.change.unchanged,
        "found": {which: rolled(m, begun) for which, m in models.items()},
    }


def summary(runs: list[dict[str, Any]], truths: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """A line for each system, kind and model: means over seeds, the spectrum's distance as a mean |log₁₀| ratio.

    Of waves that hold a millionth of the true energy or more: what a network leaves in the others is its own noise.
    """
    lines = []
    for name, kind in dict.fromkeys((r["system"], r["kind"]) for r in runs):
        mine = [r for r in runs if (r["system"], r["kind"]) == (name, kind)]
        for which in mine[0]["found"]:
            found = [r["found"][which] for r in mine]
            true = np.array(truths[name]["spectrum"])[1:]
            held = true > 1e-6 * true.sum()
            with np.errstate(all="ignore"):
                off = [np.abs(np.log10((np.array(f["spectrum"])[1:] / true)[held])).mean() for f in found]
            lines.append({
                "system": name, "kind": kind, "model": which, "seeds": len(found),
                "blown_up": float(np.mean([f["blown_up"] for f in found])),
                "spread": float(np.median([f["spread"] for f in found])),
                "spreads": [f["spread"] for f in found],
                "true_spread": truths[name]["spread"],
                "mean": float(np.median([f["mean"] for f in found])), "true_mean": truths[name]["mean"],
                "spectrum_off": float(np.median(off)),
                "unchanged": float(np.mean([r["unchanged"] for r in mine])),
            })  # fmt: skip
    return lines


def main() -> None:
    """Train, repair, roll out."""
    known = systems()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--systems", nargs="+", default=list(known), choices=list(known))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4000, help="of training")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    path = given.out / "rollouts.runs.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    runs = kept_lines(path)
    done = {(r["system"], r["kind"], r["seed"]) for r in runs}
    truths = {}
    for name in given.systems:
        system = known[name]
        begun = settled(system, STATES, 1)
        truths[name] = rolled(system.advance, begun)
        for seed in range(given.seeds):
            for kind in ("dense", "convolution"):
                if (name, kind, seed) in done:
                    continue
                runs.append(run(system, name, kind, seed, given.steps, begun))
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(runs[-1]) + "\n")
    lines = summary([r for r in runs if r["system"] in truths], truths)
    for line in lines:
        print(
            f"{line['system']:<9} {line['kind']:<12} {line['model']:<21} {line['blown_up']:4.0%} blow up, spread "
            f"{line['spread']:.3g} for {line['true_spread']:.3g}, spectrum off by {line['spectrum_off']:.2f}, "
            f"{line['unchanged']:.1%} of steps unchanged"
        )
    save_record({"provenance": provenance(vars_of(given)), "lines": lines}, given.out / "rollouts.json")


if __name__ == "__main__":
    main()
