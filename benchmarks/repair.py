"""What a repair is worth: trained networks made bounded without training, on real tables, critics and simulators.

    python -m benchmarks.repair tables [--tables NAME …] [--seeds 5] [--quick]
    python -m benchmarks.repair protein [--seeds 10]
    python -m benchmarks.repair rollouts [--seeds 5]
    python -m benchmarks.repair cost
    python -m benchmarks.repair summary

``tables``: 2×128 ReLU networks trained without a norm, on twelve tables, split three ways (the top decile of the
leading feature, of the first principal component, or of the norm of the standardised row is held out, as the far
side). Each protection is put in afterwards, without training or labels, and compared with the network as trained
and with one trained with a LayerNorm from the start. Errors are root mean squares in deviations of the training
target. *Broken* sets one random feature of every near row to 100 deviations.

Finished runs are lines of a file beside the record, and are not computed again.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import farfield as ff
from benchmarks._records import save_record
from benchmarks.tables import TABLES
from farfield import data
from farfield._provenance import provenance
from farfield.data import far_field_split
from farfield.nn import FeatureClamp, RangeHead

KINDS = ("feature", "component", "norm")
BROKEN = 100.0
WIDTH = 128
STEPS = 3000
BATCH = 256
OUT = Path("docs/reproductions/repair")


class Clipped(nn.Module):
    """An activation kept, neuron by neuron, at most at what the training rows gave (range supervision)."""

    def __init__(self, inner: nn.Module, high: Tensor) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("high", high)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return torch.minimum(self.inner(x), self.high)


def network(features: int, *, norm: bool) -> nn.Sequential:
    first = [nn.Linear(features, WIDTH), *([nn.LayerNorm(WIDTH)] if norm else []), nn.ReLU()]
    return nn.Sequential(*first, nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))


def train(x: Tensor, y: Tensor, *, norm: bool, seed: int, steps: int = STEPS) -> nn.Sequential:
    """Adam with a cosine schedule, the same for every network."""
    torch.manual_seed(seed)
    model = network(x.shape[1], norm=norm)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    draws = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = torch.randint(len(x), (BATCH,), generator=draws)
        loss = (model(x[rows]) - y[rows]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return model.eval()


def far_mask(x: np.ndarray, kind: str) -> np.ndarray:
    """The top decile by the leading feature, the first principal component or the norm of the standardised row."""
    scaled = (x - x.mean(0)) / np.where(x.std(0) > 0, x.std(0), 1.0)
    if kind == "feature":
        score = x[:, 0]
    elif kind == "component":
        _, _, directions = np.linalg.svd(scaled - scaled.mean(0), full_matrices=False)
        direction = directions[0] * np.sign(directions[0][np.argmax(np.abs(directions[0]))])
        score = scaled @ direction
    else:
        score = np.linalg.norm(scaled, axis=1)
    limit = np.quantile(score, 0.9)
    far = score > limit
    return np.asarray(
        far if far.any() else score >= limit
    )  # a feature of a few values: all that have the largest


def rows_of(table: str, kind: str, seed: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Standardised by the training rows: train, near, far."""
    whole = data.load(table, seed=0)
    x = np.concatenate([part.x for part in (whole.train, whole.id, whole.ood)]).astype(np.float64)
    y = np.concatenate([part.y.reshape(len(part.y), -1)[:, 0] for part in (whole.train, whole.id, whole.ood)])
    order = np.random.default_rng(0).permutation(len(x))[:20_000]  # the larger tables are cut: 180 networks
    x, y = x[order], y[order]
    parts = far_field_split(x, y, far=far_mask(x, kind), share=0.9, seed=seed)
    center, scale = parts[0].x.mean(0), parts[0].x.std(0)
    scale = np.where(scale > 0, scale, 1.0)
    low, high = parts[0].y.mean(), parts[0].y.std()
    return {
        name: (
            torch.tensor((p.x - center) / scale, dtype=torch.float32),
            torch.tensor((p.y - low) / high, dtype=torch.float32)[:, None],
        )
        for name, p in zip(("train", "near", "far"), parts, strict=True)
    }


def plain_clamp(limit: Tensor) -> Callable[[nn.Module, Tensor], nn.Module]:
    def made(model: nn.Module, x: Tensor) -> nn.Module:
        return nn.Sequential(FeatureClamp(-limit, limit, end=math.inf), model).eval()

    return made


def seen_clamp(model: nn.Module, x: Tensor) -> nn.Module:
    return nn.Sequential(FeatureClamp(x.amin(0), x.amax(0), end=math.inf), model).eval()


def kept_range(model: nn.Module, x: Tensor) -> nn.Module:
    with torch.no_grad():
        y = model(x)
    return nn.Sequential(model, RangeHead(y.amin(0), y.amax(0), knee=0.0)).eval()


def clipped(model: nn.Module, x: Tensor, *, per_layer: bool = False) -> nn.Module:
    assert isinstance(model, nn.Sequential)
    made: list[nn.Module] = []
    h = x
    with torch.no_grad():
        for layer in model:
            h = layer(h)
            high = h.amax(0)
            if isinstance(layer, nn.ReLU):
                layer = Clipped(layer, high.max().expand_as(high).clone() if per_layer else high)
            made.append(layer)
    return nn.Sequential(*made).eval()


def repaired(**options: Any) -> Callable[[nn.Module, Tensor], nn.Module]:
    def made(model: nn.Module, x: Tensor) -> nn.Module:
        return ff.repair(model, x, **options).model

    return made


def protections(features: int) -> dict[str, Callable[[nn.Module, Tensor], nn.Module]]:
    """Name of a row of the table → from a trained model and its rows to a protected one."""
    return {
        "nothing": lambda model, x: model,
        "output range": kept_range,
        "neuron clipping": clipped,
        "layer clipping": lambda model, x: clipped(model, x, per_layer=True),
        "features in their range": seen_clamp,
        "features at 10 deviations": plain_clamp(torch.full((features,), 10.0)),
        "features at 5 deviations": plain_clamp(torch.full((features,), 5.0)),
        "features (repair)": repaired(method="features"),
        "norm cap (repair)": repaired(method="cap"),
        "repair": repaired(),
        "repair, every row kept": repaired(keep=1.0),
        "repair, soft": repaired(method="soft"),
    }


def error(model: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return float((model(x) - y).double().square().mean().sqrt())


def broken(x: Tensor, seed: int) -> Tensor:
    """One feature of every row reads 100 deviations, on either side."""
    draws = torch.Generator().manual_seed(seed)
    which = torch.randint(x.shape[1], (len(x),), generator=draws)
    sign = torch.randint(2, (len(x),), generator=draws) * 2.0 - 1.0
    changed = x.clone()
    changed[torch.arange(len(x)), which] = sign * BROKEN
    return changed


def measured(model: nn.Module, reference: nn.Module, rows: dict[str, Any], seed: int) -> dict[str, float]:
    x, y = rows["near"]
    with torch.no_grad():
        same = (model(rows["train"][0]) == reference(rows["train"][0])).all(-1).double().mean()
    return {
        "far": error(model, *rows["far"]),
        "near": error(model, x, y),
        "unchanged": float(same),
        "broken": error(model, broken(x, seed), y),
    }


def table_run(table: str, kind: str, seed: int, steps: int) -> dict[str, Any]:
    rows = rows_of(table, kind, seed)
    x, y = rows["train"]
    plain = train(x, y, norm=False, seed=seed, steps=steps)
    normed = train(x, y, norm=True, seed=seed, steps=steps)
    found = {"trained with LayerNorm": measured(normed, plain, rows, seed)}
    for name, protect in protections(x.shape[1]).items():
        try:
            found[name] = measured(protect(plain, x), plain, rows, seed)
        except ff.FarfieldError as refusal:
            found[name] = {"refused": str(refusal)}  # type: ignore[dict-item]
    top = ff.repair(normed, x, even_if_bounded=True).model
    found["LayerNorm, repaired"] = measured(top, plain, rows, seed)
    return {"table": table, "kind": kind, "seed": seed, "rows": len(x), "found": found}


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A line for every protection, over all runs."""
    lines = []
    for name in runs[0]["found"]:
        pairs = [(r["found"][name], r["found"]["nothing"], r) for r in runs if "far" in r["found"][name]]
        ratios = np.array([a["far"] / b["far"] for a, b, _ in pairs])
        cells: dict[tuple[str, str], list[float]] = {}
        for (_, _, run), ratio in zip(pairs, ratios, strict=True):
            cells.setdefault((run["table"], run["kind"]), []).append(math.log(ratio))
        means = {cell: math.exp(np.mean(values)) for cell, values in cells.items()}
        worst = max(means, key=lambda cell: means[cell])
        logs = np.log(ratios)
        half = 1.96 * logs.std(ddof=1) / math.sqrt(len(logs)) if len(logs) > 1 else math.nan
        lines.append(
            {
                "name": name,
                "runs": len(pairs),
                "refused": len(runs) - len(pairs),
                "far": math.exp(logs.mean()),
                "far_interval": [math.exp(logs.mean() - half), math.exp(logs.mean() + half)],
                "worst_run": float(ratios.max()),
                "worst_cell": [*worst, means[worst]],
                "worse_cells": [[*cell, mean] for cell, mean in means.items() if mean > 1.03],
                "cells": len(means),
                "near": math.exp(np.mean([math.log(a["near"] / b["near"]) for a, b, _ in pairs])),
                "unchanged": float(np.mean([a["unchanged"] for a, _, _ in pairs])),
                "broken": float(np.mean([a["broken"] for a, _, _ in pairs])),
                "broken_geometric": math.exp(np.mean([math.log(a["broken"]) for a, _, _ in pairs])),
                "unbroken": float(np.mean([a["near"] for a, _, _ in pairs])),
            }
        )
    return lines


def show(lines: list[dict[str, Any]]) -> None:
    heads = ("far", "interval", "worst cell", "> 3 %", "near", "kept", "broken", "(geo)")
    print(f"{'':<28}" + "".join(f"{h:>{w}}" for h, w in zip(heads, (7, 16, 27, 7, 7, 7, 8, 8), strict=True)))
    for line in lines:
        (low, high), (table, kind, value) = line["far_interval"], line["worst_cell"]
        cells = (
            f"{line['far']:.3f}", f"[{low:.3f}, {high:.3f}]", f"{value:.2f} {table}/{kind}",
            f"{len(line['worse_cells'])}/{line['cells']}", f"{line['near']:.3f}", f"{line['unchanged']:.3f}",
            f"{line['broken']:.2f}", f"{line['broken_geometric']:.2f}",
        )  # fmt: skip
        print(
            f"{line['name']:<28}"
            + "".join(f"{c:>{w}}" for c, w in zip(cells, (7, 16, 27, 7, 7, 7, 8, 8), strict=True))
        )


def vars_of(given: argparse.Namespace) -> dict[str, Any]:
    """What was asked for, without places on this machine."""
    return {k: v for k, v in vars(given).items() if k != "out"}


def kept_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def tables(given: argparse.Namespace) -> None:
    """The table of protections."""
    wanted = given.tables or (("yacht", "boston") if given.quick else (*TABLES, "protein"))
    seeds = range(2 if given.quick else given.seeds)
    path = given.out / "tables.runs.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    runs = [] if given.quick else kept_lines(path)
    done = {(r["table"], r["kind"], r["seed"]) for r in runs}
    todo = [(t, k, s) for s in seeds for t in wanted for k in KINDS if (t, k, s) not in done]
    for number, (table, kind, seed) in enumerate(todo, 1):
        if not data.is_here(table):
            print(f"{table} is not here: farfield data fetch {table}", file=sys.stderr)
            continue
        run = table_run(table, kind, seed, 500 if given.quick else STEPS)
        runs.append(run)
        if not given.quick:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(run) + "\n")
        print(f"{number}/{len(todo)} {table} {kind} {seed}", file=sys.stderr, flush=True)
    show(summary(runs))
    if not given.quick:
        save_record(
            {"provenance": provenance(vars_of(given)), "lines": summary(runs)}, given.out / "tables.json"
        )


def r_squared(model: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        found = model(x)
    return float(1 - (found - y).double().square().sum() / (y - y.mean()).double().square().sum())


def protein(given: argparse.Namespace) -> None:
    """P1's standard network on protein, repaired, beside one with a LayerNorm first."""
    path = given.out / "protein.runs.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    runs = kept_lines(path)
    done = {r["seed"] for r in runs}
    for seed in (s for s in range(given.seeds) if s not in done):
        split = data.load("protein", seed=seed)
        center, scale = split.train.x.mean(0), split.train.x.std(0)
        low, high = split.train.y.mean(), split.train.y.std()
        rows = {
            name: (
                torch.tensor((p.x - center) / scale, dtype=torch.float32),
                torch.tensor((p.y - low) / high, dtype=torch.float32)[:, None],
            )
            for name, p in (("train", split.train), ("id", split.id), ("ood", split.ood))
        }
        x, y = rows["train"]
        models = {
            "standard": train(x, y, norm=False, seed=seed, steps=given.steps),
            "LayerNorm": train(x, y, norm=True, seed=seed, steps=given.steps),
        }
        for method in ("auto", "features", "cap", "range"):
            models[f"repair, {method}"] = ff.repair(models["standard"], x, method=method).model
        run = {
            "seed": seed,
            "found": {k: {p: r_squared(m, *rows[p]) for p in ("id", "ood")} for k, m in models.items()},
        }
        runs.append(run)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(run) + "\n")
        print(json.dumps(run), file=sys.stderr, flush=True)
    lines = [
        {
            "name": name,
            "seeds": len(runs),
            **{p: float(np.mean([r["found"][name][p] for r in runs])) for p in ("id", "ood")},
            "ood_deviation": float(np.std([r["found"][name]["ood"] for r in runs], ddof=1)),
        }
        for name in runs[0]["found"]
    ]
    for line in lines:
        print(f"{line['name']:<20} ID {line['id']:.3f}  OOD {line['ood']:.3f} ± {line['ood_deviation']:.3f}")
    save_record(
        {"provenance": provenance(vars_of(given)), "steps": given.steps, "lines": lines},
        given.out / "protein.json",
    )


def lorenz(state: Tensor, step: float = 0.05, forcing: float = 8.0) -> Tensor:
    """One Runge-Kutta step of Lorenz-96."""

    def slope(x: Tensor) -> Tensor:
        return (x.roll(-1, -1) - x.roll(2, -1)) * x.roll(1, -1) - x + forcing

    a = slope(state)
    b = slope(state + step / 2 * a)
    c = slope(state + step / 2 * b)
    d = slope(state + step * c)
    return state + step / 6 * (a + 2 * b + 2 * c + d)


class Step(nn.Module):
    """state + difference, the difference from a network on the standardised state."""

    def __init__(self, inner: nn.Module, mean: Tensor, scale: Tensor, size: Tensor) -> None:
        super().__init__()
        self.inner = inner
        for name, value in (("mean", mean), ("scale", scale), ("size", size)):
            self.register_buffer(name, value)

    def forward(self, state: Tensor) -> Tensor:  # noqa: D102
        return state + self.size * self.inner((state - self.mean) / self.scale)


def trained_step(seed: int, *, convolution: bool, steps: int) -> tuple[Step, Tensor]:
    torch.manual_seed(seed)
    state = 8.0 + torch.randn(500, 40)
    for _ in range(200):
        state = lorenz(state)
    states = [state]
    for _ in range(20):
        states.append(lorenz(states[-1]))
    x, y = torch.cat(states[:-1]), torch.cat(states[1:])
    if convolution:
        ring = {"padding": 2, "padding_mode": "circular"}
        inner: nn.Module = nn.Sequential(
            nn.Unflatten(-1, (1, 40)), nn.Conv1d(1, 32, 5, **ring), nn.ReLU(), nn.Conv1d(32, 32, 5, **ring),  # type: ignore[arg-type]
            nn.ReLU(), nn.Conv1d(32, 1, 1), nn.Flatten(-2),
        )  # fmt: skip
    else:
        inner = nn.Sequential(
            nn.Linear(40, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 40)
        )
    model = Step(inner, x.mean(0), x.std(0), (y - x).std(0))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        rows = torch.randint(len(x), (256,))
        loss = ((model(x[rows]) - y[rows]) / model.size).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return model.eval(), x


def rolled(model: nn.Module, state: Tensor, steps: int = 1500) -> dict[str, Any]:
    spreads, spectra = [], []
    with torch.no_grad():
        for step in range(steps):
            state = model(state)
            if step >= steps - 300:
                spreads.append(state)
                spectra.append(torch.fft.rfft(state, dim=-1).abs().square().mean(0))
    late = torch.stack(spreads)
    wild = (~(late.abs() < 100.0)).flatten(2).any(-1).any(0)
    calm = late[:, ~wild]
    return {
        "blown_up": float(wild.double().mean()),
        "spread": float(late.double().std()),
        "spread_of_the_rest": float(calm.double().std()) if calm.numel() else math.nan,
        "mean": float(late.double().mean()),
        "spectrum": torch.stack(spectra).mean(0).tolist(),
    }


def rollouts(given: argparse.Namespace) -> None:
    """Learned steps of Lorenz-96, dense and convolutional, fed back 1,500 times from 200 states."""
    runs: list[dict[str, Any]] = []
    truth = 8.0 + torch.randn(200, 40, generator=torch.Generator().manual_seed(1))
    for _ in range(300):
        truth = lorenz(truth)

    class True_(nn.Module):  # noqa: N801
        def forward(self, state: Tensor) -> Tensor:
            return lorenz(state)

    reference = rolled(True_(), truth)
    print(f"truth: spread {reference['spread']:.2f}, mean {reference['mean']:.2f}")
    for convolution in (False, True):
        for seed in range(given.seeds):
            model, x = trained_step(seed, convolution=convolution, steps=given.steps)
            fixed = ff.repair(model, x, rollout=True)
            only = ff.repair(model, x, method="auto")
            found = {
                "as trained": model,
                "repair, rollout": fixed.model,
                "repair, not of the state": only.model,
            }
            run = {
                "kind": "convolution" if convolution else "dense",
                "seed": seed,
                "unchanged": fixed.change.unchanged,
                "found": {k: rolled(m, truth) for k, m in found.items()},
            }
            runs.append(run)
            said = {
                k: f"{v['blown_up']:.0%} blow up, spread {v['spread']:.3g}" for k, v in run["found"].items()
            }
            print(run["kind"], seed, f"unchanged {run['unchanged']:.4f}", said, flush=True)
    save_record(
        {"provenance": provenance(vars_of(given)), "truth": reference, "runs": runs},
        given.out / "rollouts.json",
    )


def batches(x: Tensor, size: int = 4096) -> Iterator[Tensor]:
    yield from x.split(size)


def cost(given: argparse.Namespace) -> None:
    """Passes over the rows and time, beside one pass of the model and one audit."""
    x = torch.randn(200_000, 64)
    model = nn.Sequential(
        nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1)
    ).eval()
    rows = [0]
    model.register_forward_pre_hook(lambda m, args: rows.__setitem__(0, rows[0] + len(args[0])))

    def one_pass() -> None:
        with torch.no_grad():
            for part in batches(x):
                model(part)

    def timed(job: Callable[[], Any]) -> float:
        start = time.perf_counter()
        job()
        return time.perf_counter() - start

    one_pass()
    passes = [timed(one_pass) for _ in range(3)]
    audit = timed(lambda: ff.audit(model, x[:2], rays=0))
    rows[0] = 0
    whole = timed(lambda: ff.repair(model, x))
    record = {
        "one_pass": min(passes),
        "audit": audit,
        "repair": whole,
        "in_passes": (whole - 2 * audit) / min(passes),
        "rows_through_the_model": rows[0] / len(x),
    }
    print(json.dumps(record, indent=1))
    save_record({"provenance": provenance(vars_of(given)), **record}, given.out / "cost.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("part", choices=("tables", "protein", "rollouts", "cost", "summary"))
    parser.add_argument("--tables", nargs="+")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--quick", action="store_true", help="two small tables, two seeds, nothing written")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    if given.part == "summary":
        show(summary(kept_lines(given.out / "tables.runs.jsonl")))
    else:
        {"tables": tables, "protein": protein, "rollouts": rollouts, "cost": cost}[given.part](given)


if __name__ == "__main__":
    main()
