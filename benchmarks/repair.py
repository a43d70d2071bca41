"""What a repair is worth: trained networks made bounded without training, on real tables.

    python -m benchmarks.repair tables [--tables NAME …] [--seeds 5] [--quick]
    python -m benchmarks.repair protein [--seeds 10]
    python -m benchmarks.repair cost
    python -m benchmarks.repair summary

``tables``: 2×128 ReLU networks trained without a norm, on twelve tables, split three ways (the top decile of the
leading feature, of the first principal component, or of the norm of the standardized row is held out, as the far
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
from farfield.errors import FarfieldError
from farfield.nn import FeatureClamp, RangeHead
from farfield.papers.p1._protein import Case, load_cases, r_squared, train_variants
from farfield.papers.p1.table1 import EXPERIMENT

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
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    draws = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = torch.randint(len(x), (BATCH,), generator=draws)
        loss = (model(x[rows]) - y[rows]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def far_mask(x: np.ndarray, kind: str) -> np.ndarray:
    """The top decile by the leading feature, the first principal component or the norm of the standardized row."""
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
    """Standardized by the training rows: train, near, far."""
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
        except FarfieldError as refusal:
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


def protein(given: argparse.Namespace) -> None:
    """P1's standard networks on protein, trained and split as in its Table 1, repaired; its LN networks beside."""
    settings = {**EXPERIMENT.settings, "epochs": given.epochs}
    network = {
        k: settings[k] for k in ("width", "depth", "activation", "weight_var", "bias_var", "norm_affine")
    }
    cases = load_cases(range(given.seeds), settings["inputs"], settings["rows"])
    count = sys.stderr.isatty()
    trained = train_variants(
        cases, {"standard": "none"}, epochs=settings["epochs"], lr=settings["lr"], precision=settings["precision"],
        scratch=given.out / "protein.training", **network,
        progress=lambda done, total: print(f"\r{done}/{total}", end="", file=sys.stderr) if count else None,
    ).models["standard"]  # fmt: skip
    models: dict[str, list[nn.Module]] = {"standard": list(trained)}
    unchanged: dict[str, list[float]] = {}
    ways: dict[str, dict[str, Any]] = {m: {"method": m} for m in ("auto", "features", "cap", "range", "soft")}
    ways |= {f"keep {share}": {"keep": share} for share in (0.98, 0.95, 0.9)}
    for way, options in ways.items():
        found = [
            ff.repair(model, case.x[case.part("train")], **options)
            for model, case in zip(trained, cases, strict=True)
        ]
        models[f"repair, {way}"] = [r.model for r in found]
        unchanged[f"repair, {way}"] = [r.change.unchanged for r in found]
    lines = []
    for name, kind in models.items():
        scores = {
            part: [_score(m, c, part) for m, c in zip(kind, cases, strict=True)] for part in ("id", "ood")
        }
        lines.append(
            {"name": name, "seeds": len(cases), **_with_means(scores), "unchanged": unchanged.get(name)}
        )
    table = Path("docs/reproductions/p1/table1.json")
    if table.exists() and given.epochs == EXPERIMENT.settings["epochs"]:
        numbers = json.loads(table.read_text())["numbers"]
        for name in ("standard", "LN first", "LN second", "LN every"):
            scores = {part: numbers[name][part]["r2"][: given.seeds] for part in ("id", "ood")}
            lines.append({"name": f"{name} (Table 1's own run)", "seeds": given.seeds, **_with_means(scores)})
    for line in lines:
        print(f"{line['name']:<32} ID {line['id']:.3f}  OOD {line['ood']:.3f} ± {line['ood_deviation']:.3f}")
    save_record({"provenance": provenance(vars_of(given)), "lines": lines}, given.out / "protein.json")


@torch.no_grad()
def _score(model: nn.Module, case: Case, part: str) -> float:
    rows = case.part(part)
    return float(r_squared(model(case.x[rows])[:, 0], case.y[rows, 0]))


def _with_means(scores: dict[str, list[float]]) -> dict[str, Any]:
    return {
        **{part: float(np.mean(values)) for part, values in scores.items()},
        "ood_deviation": float(np.std(scores["ood"], ddof=1)) if len(scores["ood"]) > 1 else math.nan,
        "scores": scores,
    }


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
        "in_passes": (whole - audit) / min(passes),
        "rows_through_the_model": rows[0] / len(x),
    }
    print(json.dumps(record, indent=1))
    save_record({"provenance": provenance(vars_of(given)), **record}, given.out / "cost.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("part", choices=("tables", "protein", "cost", "summary"))
    parser.add_argument("--tables", nargs="+")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--epochs", type=int, default=EXPERIMENT.settings["epochs"], help="of protein's networks"
    )
    parser.add_argument("--quick", action="store_true", help="two small tables, two seeds, nothing written")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    if given.part == "summary":
        show(summary(kept_lines(given.out / "tables.runs.jsonl")))
    else:
        {"tables": tables, "protein": protein, "cost": cost}[given.part](given)


if __name__ == "__main__":
    main()
