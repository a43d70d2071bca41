"""Audit one large transformer and print what it cost, as JSON: run as a script, in a process of its own.

python _measure.py closed|open [layers]
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor, nn

WIDTH, HEADS, TOKENS = 768, 12, 16


class Block(nn.Module):
    """GPT-2's block."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU("tanh"), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2)
            for part in self.qkv(self.ln_1(x)).chunk(3, -1)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.ln_2(x))


class Decoder(nn.Module):
    """Embedded tokens in, hidden states out; with or without the final norm."""

    def __init__(self, layers: int, final: bool) -> None:
        super().__init__()
        self.position = nn.Parameter(0.02 * torch.randn(TOKENS, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
        self.ln_f = nn.LayerNorm(WIDTH) if final else nn.Identity()

    def forward(self, embeddings: Tensor) -> Tensor:
        return self.ln_f(self.blocks(embeddings + self.position))


def from_transformers(layers: int) -> nn.Module:
    """GPT-2 as the ``transformers`` library has it."""
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(n_embd=WIDTH, n_layer=layers, n_head=HEADS, vocab_size=2000, n_positions=64)
    return GPT2Model(config)


def resident() -> int:
    """Bytes in memory now; where the system does not say, the largest so far."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return peak()


def peak() -> int:
    """The largest number of bytes in memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main(kind: str, layers: int) -> dict[str, float | str]:
    from farfield.audit import audit

    torch.set_num_threads(1)
    torch.manual_seed(0)
    # Imports and caches belong to no model: pay for them first.
    audit(Decoder(1, final=True), (torch.zeros(1, TOKENS, WIDTH),))
    if kind == "transformers":
        model, inputs = from_transformers(layers).eval(), {"inputs_embeds": torch.randn(1, TOKENS, WIDTH)}
    else:
        model, inputs = Decoder(layers, final=kind == "closed").eval(), (torch.randn(1, TOKENS, WIDTH),)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    before, wall, cpu = resident(), time.perf_counter(), time.process_time()
    result = audit(model, inputs)
    return {
        "verdict": result.verdict.name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "model_bytes": size,
        "growth_bytes": max(peak() - before, 0),
        "wall_seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
        "codes": " ".join(sorted({f.code for f in result.findings})),
    }


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        print(json.dumps(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 15)))
