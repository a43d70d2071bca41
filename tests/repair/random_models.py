"""Random unbounded graphs, repaired, and each claim of the repair held against evaluations.

python tests/repair/random_models.py --count 200 --first 0
"""

import argparse
import copy
import sys
from collections import Counter
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import farfield as ff
from farfield.growth import Status, analyze
from farfield.nn import RangeHead
from farfield.repair import RepairError
from growth.random_graphs import directions, random_model

ROWS = 500
FARTHEST = 8


def examine(seed, keep=0.99):
    """None if the model is not unbounded; else (what is wrong, why it was refused)."""
    model, examples = random_model(seed)
    if analyze(model, examples).status is not Status.UNBOUNDED:
        return None
    generator = torch.Generator().manual_seed(seed)
    rows = tuple(torch.randn(ROWS, size, generator=generator) for size in model.sizes)
    weights = copy.deepcopy(model.state_dict())
    try:
        fixed = ff.repair(model, rows, keep=keep)
    except RepairError as error:
        return [], str(error)
    wrong = []
    with torch.no_grad():
        same = (model(*rows) == fixed.model(*rows)).flatten(1).all(-1).double().mean()
        if same < keep or same != fixed.change.unchanged:
            wrong.append(f"{float(same):.3%} unchanged, {fixed.change.unchanged:.3%} said")
        kept = fixed.model.state_dict()
        if any(
            not torch.equal(v, model.state_dict()[k]) or not torch.equal(v, kept[k])
            for k, v in weights.items()
        ):
            wrong.append("a weight changed")
        if ff.audit(fixed.model, tuple(r[:2] for r in rows)).verdict is not Status.BOUNDED:
            wrong.append("an audit does not find it bounded")
        heads = [i.module for i in fixed.inserted if isinstance(i.module, RangeHead)]
        rays = directions(model.sizes, generator)
        for power in range(FARTHEST + 1):
            far = tuple((u * 10.0**power).to(r.dtype) for u, r in zip(rays, rows, strict=True))
            value = fixed.model(*far)
            if not bool(((value >= heads[0].low) & (value <= heads[0].high)).all()):
                wrong.append(f"leaves its range at 1e{power}")
    return wrong, ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    seed, seen, refusals, faults = given.first, 0, Counter(), []
    while seen < given.count:
        found = examine(seed)
        if found is not None:
            seen += 1
            wrong, refused = found
            faults += [(seed, w) for w in wrong]
            if refused:
                refusals[refused] += 1
                print(seed, "refused:", refused, flush=True)
        seed += 1
    print(
        f"{seen} unbounded models of {seed - given.first}: {sum(refusals.values())} refused, {len(faults)} faults"
    )
    for seed, words in faults:
        print(seed, words)


if __name__ == "__main__":
    main()
