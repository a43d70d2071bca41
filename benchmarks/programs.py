"""Random programs, networks and forgeries by the thousand: what leaks, what is wrong, what is refused.

    python -m benchmarks.programs --count 3000 --seed 0 [--out programs.jsonl] [--shrink]
    python -m benchmarks.programs --singles
    python -m benchmarks.programs --networks 1000
    python -m benchmarks.programs --regions 500
    python -m benchmarks.programs --forgeries 5000
    python -m benchmarks.programs --zoo

Each program of ``tests/programs`` (each module stack of ``tests/certify/networks.py``) is audited, certified,
attacked, verified, forged and compared with its horizon; mpmath decides what is close. With ``--out`` every outcome
is a line of that file, and a second run goes on where the first one stopped. The summary is JSON on stdout, progress
on stderr.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from certify.networks import attack as attack_network
from certify.networks import network
from certify.regions import attack as attack_region
from certify.regions import random_region
from farfield import certify, verify_certificate
from farfield._provenance import provenance
from farfield.certify import Certificate, CertificateError, UnboundedError
from farfield.certify.checker import check_program
from farfield.errors import InvalidValueError
from farfield.graph import capture
from programs.examine import Outcome, Settings, examine, plan_fails, refusal_kind
from programs.forgeries import false_claims
from programs.generator import random_plan, singles
from programs.shrink import shrink

KINDS = (
    "leak",
    "wrong verdict",
    "accepted forgery",
    "refused certificate",
    "announced refusal",
    "crash",
    "horizon",
)


def _row(outcome: Outcome) -> dict[str, Any]:
    row = asdict(outcome)
    for fault, said in zip(outcome.faults, row["faults"], strict=True):
        said["key"] = fault.key
    return row


def program_row(seed: int, settings: Settings, small: bool) -> dict[str, Any]:
    """One program; its faults with a minimal program each, where that is wanted."""
    plan = random_plan(seed)
    outcome = examine(plan.write(), seed, settings)
    row = _row(outcome)
    for fault, said in zip(outcome.faults, row["faults"], strict=True):
        if small and fault.kind != "announced refusal":
            least = shrink(plan, lambda p, key=fault.key: plan_fails(p, key, seed, settings), tries=40)
            said["program"] = least.write().body()
    return row


def network_row(seed: int, settings: Settings, _: bool = False) -> dict[str, Any]:
    """One module stack: certified, attacked, verified, forged."""
    model, dim, what = network(seed, largest=128, deepest=4)
    outcome = Outcome(seed, True, verdict="BOUNDED", cause=what)
    certificate = certify(model, torch.zeros(1, dim, dtype=torch.float64), time_budget=settings.seconds)
    return _certified(outcome, model, certificate, attack_network(model, dim, seed), settings)


def region_row(seed: int, settings: Settings, _: bool = False) -> dict[str, Any]:
    """One module stack over one region: the same."""
    model, dim, what = network(seed, largest=64, deepest=4)
    domain, where = random_region(seed, dim)
    outcome = Outcome(seed, True, verdict="BOUNDED", cause=f"{what} over {where}")
    inputs = torch.zeros(1, dim, dtype=torch.float64)
    certificate = certify(model, inputs, time_budget=settings.seconds, domain=domain)
    return _certified(outcome, model, certificate, attack_region(model, domain, dim, seed), settings)


def _certified(
    outcome: Outcome,
    model: torch.nn.Module,
    certificate: Certificate,
    met: tuple[Tensor, Tensor],
    settings: Settings,
) -> dict[str, Any]:
    """Bounds against what was met, with zero slack; verified; and forged."""
    what, seed = outcome.cause, outcome.seed
    low, high = met
    lower, upper = certificate.lower.reshape(-1), certificate.upper.reshape(-1)
    if bool((high > upper).any() or (low < lower).any()):
        outcome.add(
            "leak", f"{what}: [{lower.tolist()}, {upper.tolist()}] but [{low.tolist()}, {high.tolist()}]"
        )
    outcome.tightness, outcome.method = float(((upper - lower) / (high - low)).max()), certificate.method
    try:
        verify_certificate(model, certificate)
    except CertificateError as error:
        outcome.add(refusal_kind(certificate, error), str(error)[:200])
    size = next(p for p in model.parameters()).shape[1]
    program = capture(model, torch.zeros(1, size, dtype=torch.float64), dynamic_batch=False)
    for done, forged, *_ in false_claims(
        certificate.to_dict(), low, high, random.Random(seed), settings.forgeries
    ):
        outcome.forgeries += 1
        try:
            check_program(program, forged)
        except CertificateError:
            continue
        outcome.add("accepted forgery", done)
    return _row(outcome)


def zoo_row(specimen: Any, settings: Settings) -> dict[str, Any]:
    """One bounded model of the audit's zoo: certified and verified."""
    model, inputs = specimen.build()
    outcome = Outcome(0, True, verdict="BOUNDED")
    try:
        certificate = certify(model, inputs, time_budget=settings.seconds)
    except UnboundedError as error:
        outcome.cause = f"bounded, no number: {error}"
        return _row(outcome)
    except InvalidValueError as error:  # several outputs: which one was not said
        outcome.cause = str(error)
        return _row(outcome)
    outcome.method = certificate.method
    try:
        verify_certificate(model, certificate, inputs)
    except CertificateError as error:
        outcome.add(refusal_kind(certificate, error), str(error)[:200])
    return _row(outcome)


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts by kind, seeds of every fault, causes of UNKNOWN, tightness."""
    faults = [(f["kind"], r["seed"]) for r in rows for f in r["faults"]]
    loose = sorted(
        r["tightness"] for r in rows if r["tightness"] is not None and math.isfinite(r["tightness"])
    )
    causes = Counter(
        r["cause"].split(" at ")[0][:90] for r in rows if r["cause"] and r["verdict"] != "UNBOUNDED"
    )
    verdicts = Counter((str(r["bounded"]), r["verdict"]) for r in rows)
    quantiles = (0.1, 0.5, 0.9, 0.99, 1.0)
    return {
        "programs": len(rows),
        **{kind: len({s for k, s in faults if k == kind}) for kind in KINDS},
        "seeds": {kind: sorted({s for k, s in faults if k == kind})[:30] for kind in KINDS},
        "verdicts": {f"{by_construction} → {v}": n for (by_construction, v), n in verdicts.most_common()},
        "unknown": dict(causes.most_common(30)),
        "certificates": sum(bool(r["method"]) for r in rows),
        "methods": dict(Counter(r["method"] for r in rows if r["method"])),
        "forgeries": sum(r["forgeries"] for r in rows),
        "tightness": {str(q): loose[min(len(loose) - 1, int(q * len(loose)))] for q in quantiles if loose},
    }


def bounded_zoo() -> list[Any]:
    """The zoo's bounded models whose packages are here."""
    from zoo._catalogue import SPECIMENS

    return [
        s
        for s in SPECIMENS
        if s.truth == "BOUNDED" and not s.slow and all(importlib.util.find_spec(p) for p in s.needs)
    ]


def rows(words: argparse.Namespace, found: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Every outcome that is not among those found."""
    settings = Settings(seconds=words.seconds, twins=1)
    done = {(r["kind"], r["seed"]) for r in found}
    jobs = [("program", s) for s in range(words.seed, words.seed + words.count)]
    jobs += [("network", s) for s in range(words.seed, words.seed + words.networks)]
    jobs += [("region", s) for s in range(words.seed, words.seed + words.regions)]
    for kind, seed in jobs:
        if (kind, seed) not in done:
            make = {"program": program_row, "network": network_row, "region": region_row}[kind]
            yield {"kind": kind, **make(seed, settings, words.shrink)}
    for seed, (what, source) in enumerate(singles() if words.singles else ()):
        if ("single", seed) not in done:
            yield {"kind": "single", "what": what, **_row(examine(source, seed, settings))}
    for specimen in bounded_zoo() if words.zoo else ():
        if ("zoo", specimen.name) not in {(r["kind"], r.get("what")) for r in found}:
            yield {"kind": "zoo", "what": specimen.name, **zoo_row(specimen, settings)}
    many = replace(settings, forgeries=25, twins=4, horizon=False)
    earlier = [r for r in found if r["kind"] == "forgeries"]
    forged, seed = (
        sum(r["forgeries"] for r in earlier),
        max([words.seed - 1, *(r["seed"] for r in earlier)]) + 1,
    )
    while forged < words.forgeries:
        row = (program_row if seed % 2 else network_row)(seed, many, words.shrink)
        forged, seed = forged + row["forgeries"], seed + 1
        yield {"kind": "forgeries", **row}


def main() -> None:
    """Run what is asked for; print the summary."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=0, help="random programs")
    parser.add_argument("--networks", type=int, default=0, help="module stacks")
    parser.add_argument("--regions", type=int, default=0, help="module stacks over regions")
    parser.add_argument("--forgeries", type=int, default=0, help="forged certificates")
    parser.add_argument("--zoo", action="store_true", help="the bounded models of the audit's zoo")
    parser.add_argument("--singles", action="store_true", help="every operation alone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0.2, help="of search for a certificate")
    parser.add_argument("--shrink", action="store_true", help="print a minimal program for every fault")
    parser.add_argument("--out", type=Path, help="outcomes, one a line; a second run goes on from here")
    words = parser.parse_args()
    torch.set_num_threads(1)
    found: list[dict[str, Any]] = []
    if words.out is not None and words.out.exists():
        found = [json.loads(line) for line in words.out.read_text().splitlines()]
    begun, total = time.monotonic(), words.count + words.networks + words.regions
    for row in rows(words, tuple(found)):
        found.append(row)
        if words.out is not None:
            with words.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
        for fault in row["faults"]:
            if fault["kind"] != "announced refusal":
                print(
                    f"{row['kind']} {row['seed']}: {fault['kind']}: {fault['text']}\n{fault.get('program', '')}",
                    file=sys.stderr,
                )
        print(
            f"\r{len(found)}/{total or '…'} {time.monotonic() - begun:.0f} s",
            end="",
            file=sys.stderr,
            flush=True,
        )
    settings = {k: str(v) for k, v in vars(words).items()}
    print(json.dumps({**summary(found), "provenance": provenance(settings)}, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
