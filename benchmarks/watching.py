"""What a guard costs in service, and what monitors cost in training, beside the model alone.

    python -m benchmarks.watching [--rounds N] [--compiled] [--out FOLDER]

Each pair is timed in turn, in short rounds, and the ratio is of the quarter of rounds that were fastest: another job
on the machine meets both. In service: one forward pass of a guarded model over that of the model, for models of a
million parameters and more, at batches of 1, 16 and 256; as they are, and with ``--compiled`` both compiled (a C++
compiler is needed). In training: a hundred steps with one look over a hundred without.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks._records import save_record
from farfield._provenance import provenance
from farfield.monitor import FarFieldMonitor, IsometryMonitor, TangentMonitor, guard

EVERY = 100
SECONDS = 12.0
"""A pair takes about so long: large batches of a large model get fewer rounds."""


def dense(inputs: int = 64, width: int = 1024, depth: int = 2) -> nn.Module:
    """A surrogate: 64 features, two hidden layers of 1,024, 1.1 million parameters."""
    layers: list[nn.Module] = [nn.Linear(inputs, width), nn.ReLU()]
    for _ in range(depth - 1):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 1))


def convolutional() -> nn.Module:
    """A small residual-free network on 3 × 64 × 64 pictures, 1.2 million parameters."""
    layers: list[nn.Module] = []
    channels = 3
    for width in (32, 64, 128, 256):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 1))


def encoder() -> nn.Module:
    """A transformer on 32 readings of 16 sensors, 1.6 million parameters."""
    layer = nn.TransformerEncoderLayer(192, 4, 768, dropout=0.0, batch_first=True, norm_first=True)
    stack = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    return nn.Sequential(nn.Linear(16, 192), stack, nn.Linear(192, 1))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "dense": (dense, (64,)),
    "convolutional": (convolutional, (3, 64, 64)),
    "transformer": (encoder, (32, 16)),
}


def in_turn(first: Callable[[], Any], second: Callable[[], Any], rounds: int, calls: int) -> float:
    """The second's time over the first's: short turns, and of each the quarter that met the least beside it."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for call, spent in zip((first, second), seconds, strict=True):
            begun = time.perf_counter()
            for _ in range(calls):
                call()
            if number:  # the first round warms up
                spent.append(time.perf_counter() - begun)
    quarters = [statistics.mean(sorted(spent)[: max(1, rounds // 4)]) for spent in seconds]
    return quarters[1] / quarters[0]


def served(rounds: int, compiled: bool) -> list[dict[str, Any]]:
    """Guarded over bare, by model, batch and answer."""
    found = []
    for name, (make, shape) in MODELS.items():
        torch.manual_seed(0)
        model = make().eval()
        rows = torch.randn(256, *shape)
        for answer in ("flag", "cap", "fallback"):
            guarded: Callable[..., Any] = guard(model, rows, on_outside=answer)  # type: ignore[arg-type]
            bare: Callable[..., Any] = model
            if compiled:
                bare, guarded = torch.compile(model), torch.compile(guarded)
            for batch in (1, 16, 256):
                x = rows[:batch]
                with torch.no_grad():
                    bare(x), guarded(x)
                    begun = time.perf_counter()
                    bare(x)
                    once = max(time.perf_counter() - begun, 1e-5)
                    calls = max(1, int(0.02 / once))
                    turns = min(rounds, max(9, int(SECONDS / (2 * calls * once))))
                    ratio = in_turn(lambda: bare(x), lambda: guarded(x), turns, calls)  # noqa: B023
                found.append(
                    {
                        "model": name,
                        "parameters": sum(p.numel() for p in model.parameters()),
                        "answer": answer,
                        "batch": batch,
                        "milliseconds": 1e3 * once,
                        "ratio": ratio,
                    }
                )
                print(f"{name:14} {answer:9} batch {batch:4}: {ratio:.3f}", flush=True)
    return found


def trained(rounds: int) -> list[dict[str, Any]]:
    """A hundred steps with a look over a hundred without, by model and monitor."""
    found = []
    for name, (make, shape) in MODELS.items():
        torch.manual_seed(0)
        model = make().train()
        x, y = torch.randn(256, *shape), torch.randn(256, 1)
        batch = 256 if name == "dense" else 32
        optimizer = torch.optim.Adam(model.parameters())

        def step() -> None:
            optimizer.zero_grad()  # noqa: B023
            output = model(x[:batch])  # noqa: B023
            (output.reshape(batch, -1)[:, :1] - y[:batch]).square().mean().backward()  # noqa: B023
            optimizer.step()  # noqa: B023

        watches = {
            "far field": FarFieldMonitor(model, x[:8], every=EVERY),
            "isometry": IsometryMonitor(model, x[:32], every=EVERY),
        }
        if name == "dense":
            watches["tangent"] = TangentMonitor(model, x[:64], 1.1 * x[:64], every=EVERY)
        for watch, monitor in watches.items():
            step()
            monitor.scalars()
            looks, steps = [], []
            for _ in range(rounds):
                begun = time.perf_counter()
                monitor.scalars()
                looks.append(time.perf_counter() - begun)
                begun = time.perf_counter()
                for _ in range(5):
                    step()
                steps.append((time.perf_counter() - begun) / 5)
            share = statistics.median(a / b for a, b in zip(looks, steps, strict=True)) / EVERY
            found.append({"model": name, "monitor": watch, "batch": batch, "share": share})
            print(f"{name:14} {watch:9} {share:.2%} of training at every={EVERY}", flush=True)
    return found


def main() -> None:
    """Both, and a record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument(
        "--compiled", action="store_true", help="guards only, both sides through torch.compile"
    )
    parser.add_argument("--out", type=Path, default=Path("docs/reproductions/monitor"))
    given = parser.parse_args()
    record: dict[str, Any] = {"provenance": provenance({"rounds": given.rounds, "compiled": given.compiled})}
    record["guard"] = served(given.rounds, given.compiled)
    if not given.compiled:
        record["monitors"] = trained(given.rounds)
    save_record(record, given.out / ("watching_compiled.json" if given.compiled else "watching.json"))


if __name__ == "__main__":
    main()
