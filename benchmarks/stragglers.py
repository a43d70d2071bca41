"""Slow items among many: how busy the workers are, with tasks that sleep.

    python -m benchmarks.stragglers [--workers 2 8 32] [--items N] [--unit SECONDS]

One item in a hundred takes 150 times as long as the others. Efficiency is the ideal time, all seconds that the tasks
slept over the number of workers, over the time it took. Each task says how long it slept: on a machine that is shared
it may be half as long again as was asked for. For results in order, and as they end. Sleeping takes no processor: 32
workers can be tried on any machine that is not busy.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from functools import partial

from farfield.engine import local

SLOW, SHARE = 150.0, 0.01


def sleep(unit: float, item: tuple[int, float]) -> tuple[int, float]:
    begun = time.perf_counter()
    time.sleep(unit * item[1])
    return item[0], time.perf_counter() - begun


def measure(workers: int, items: int, unit: float, ordered: bool) -> float:
    draw = random.Random(0)
    work = [(k, SLOW if draw.random() < SHARE else 1.0) for k in range(items)]
    begun = time.perf_counter()
    found = [result for _, result in local(workers).map(partial(sleep, unit), work, ordered=ordered)]
    taken = time.perf_counter() - begun
    numbers = [number for number, _ in found]
    assert sorted(numbers) == list(range(items))
    assert not ordered or numbers == list(range(items))
    return sum(seconds for _, seconds in found) / workers / taken


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 8, 32])
    parser.add_argument("--items", type=int, default=1000, help="for each worker")
    parser.add_argument("--unit", type=float, default=0.01, help="seconds of an ordinary item")
    options = parser.parse_args()
    for workers in options.workers:
        count = options.items * workers
        busy = {
            name: round(measure(workers, count, options.unit, ordered), 3)
            for name, ordered in (("in order", True), ("as they end", False))
        }
        print(json.dumps({"workers": workers, "items": count, "efficiency": busy}), flush=True)


if __name__ == "__main__":
    main()
