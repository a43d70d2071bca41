"""What an audit costs, in forward passes of the model itself: ViT-B/16 and VGG11 at 224 pixels, and a plain MLP.

    python -m benchmarks.audit_cost [--quick] [--out FILE]

Capture, the whole audit and float32 forward passes of one image are measured in one process, in processor time of all
threads, so that the ratio means something on a busy machine too; passes are timed before and after the audit, and the
median counts. An audit may cost thirty passes and its capture.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks._records import save_record
from farfield._provenance import provenance
from farfield.audit import audit
from farfield.graph import capture

ALLOWED = 30.0


class ViT(nn.Module):
    """Patches, a class token, pre-norm blocks, a final norm."""

    def __init__(self, size: int, patch: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2 + 1, width))
        block = nn.TransformerEncoderLayer(
            width, heads, 4 * width, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, depth, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        seen = self.patches(x).flatten(2).transpose(1, 2)
        seen = torch.cat([self.token.expand(len(seen), -1, -1), seen], 1) + self.places
        made: Tensor = self.head(self.norm(self.blocks(seen))[:, 0])
        return made


def vgg11(size: int, share: float = 1.0) -> nn.Module:
    """Eight convolutions and three linear layers."""
    layers: list[nn.Module] = []
    channels = 3
    for made in (64, "pool", 128, "pool", 256, 256, "pool", 512, 512, "pool", 512, 512, "pool"):
        if isinstance(made, str):
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(channels, round(share * made), 3, padding=1), nn.ReLU()]
            channels = round(share * made)
    flat, wide = channels * (size // 32) ** 2, round(share * 4096)
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(flat, wide), nn.ReLU(), nn.Dropout(), nn.Linear(wide, wide), nn.ReLU(),
        nn.Dropout(), nn.Linear(wide, 1000),
    )  # fmt: skip


def models(quick: bool) -> dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]]:
    if quick:
        return {
            "ViT, small": (lambda: ViT(32, 8, 64, 2, 4), (1, 3, 32, 32)),
            "VGG11, an eighth": (lambda: vgg11(32, 1 / 8), (1, 3, 32, 32)),
        }
    return {
        "ViT-B/16": (lambda: ViT(224, 16, 768, 12, 12), (1, 3, 224, 224)),
        "VGG11": (lambda: vgg11(224), (1, 3, 224, 224)),
        "MLP, four layers of 4096": (
            lambda: nn.Sequential(
                *(m for _ in range(4) for m in (nn.Linear(4096, 4096), nn.ReLU())), nn.Linear(4096, 1)
            ),
            (1, 4096),
        ),
    }


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """Processor seconds of all threads, and what came out."""
    start = time.process_time()
    made = work()
    return time.process_time() - start, made


def measure(build: Callable[[], nn.Module], shape: tuple[int, ...], passes: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model, image = build().eval(), torch.randn(shape)

    def forward() -> Tensor:
        with torch.no_grad():
            found: Tensor = model(image)
            return found

    forward()
    times = [seconds(forward)[0] for _ in range(passes)]
    captured, program = min(
        (seconds(lambda: capture(model, (image,))) for _ in range(2)), key=lambda pair: pair[0]
    )
    spent, found = seconds(lambda: audit(model, (image,), rays=0))
    times += [seconds(forward)[0] for _ in range(passes)]
    one = statistics.median(times)
    return {
        "verdict": found.verdict.name, "parameters": sum(p.numel() for p in model.parameters()),
        "operations": sum(n.role == "operation" for n in program.nodes), "forward_seconds": one,
        "forward_spread": [min(times), max(times)], "capture_seconds": captured, "audit_seconds": spent,
        "passes": max(0.0, spent - captured) / one,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small models, nothing written")
    parser.add_argument("--out", type=Path, default=Path("docs/reproductions/engine/audit_cost.json"))
    given = parser.parse_args()
    capture(nn.Linear(1, 1), (torch.zeros(1, 1),))  # what torch.export loads at its first call
    lines = {}
    for name, (build, shape) in models(given.quick).items():
        print(f"{name} …", flush=True)
        lines[name] = line = measure(build, shape, 2 if given.quick else 5)
        word = "within" if line["passes"] <= ALLOWED else "NOT within"
        print(
            f"{name}: {line['verdict']}, {line['passes']:.1f} passes of {line['forward_seconds']:.3g} s beside a "
            f"capture of {line['capture_seconds']:.3g} s: {word} {ALLOWED:g}"
        )
    if not given.quick:
        save_record({"provenance": provenance({}), "allowed": ALLOWED, "models": lines}, given.out)


if __name__ == "__main__":
    main()
