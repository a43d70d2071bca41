"""What a setting of a configuration is a number of, told by its name.

A fact about names that people use, and about no library. The atlas makes settings small by it; the census leaves
out of an architecture's key those that are widths. A name that is not here is taken for itself.
"""

from __future__ import annotations

import functools
import re

__all__ = [
    "DEPTHS",
    "HEADS",
    "INNER",
    "KEY_HEADS",
    "NAMED_WIDTHS",
    "VOCABULARY",
    "WIDTH",
    "WIDTH_LISTS",
    "is_width",
]

VOCABULARY = r".*vocab.*size.*|n_vocab|vocabulary_size"
KEY_HEADS = r".*(num|n)_?(key_value|kv)_?heads.*|.*kv_head.*"
HEADS = r".*(attention|attn|_)heads?|n_heads?|num_heads?|nhead|.*_num_heads"
DEPTHS = r".*(num|n)_.*(layers|blocks)|.*_layers|n_layer|num_layers|.*depth|layers|n_blocks|num_stages_.*"
INNER = (
    r".*(intermediate|ffn|feed_?forward|mlp|inner).*(size|dim|hidden).*|d_ff|d_inner|n_inner|.*ffn_embed_dim|"
    r".*filter_size|dim_feedforward|ffn_hidden_size"
)
WIDTH = (
    r".*hidden_(size|dim)|d_model|n_embd|(word_)?embed(ding)?_(dim|size)|dim|.*projection_dim|hidden|"
    r".*(encoder|decoder|text|vision|bottleneck)_.*(dim|size)|width|d_embed|.*hidden_(act_)?dim|emb_dim|"
    r"embed_proj_dim|out_hidden_size|encoder_width|proj_dim|cross_attention_dim|latent_dim|fpn_.*size"
)
WIDTH_LISTS = r"hidden_size|embed_dim|channels|widths|^dims?$|hidden_dims|fusion_hidden|neck_hidden"
NAMED_WIDTHS = frozenset(
    {
        "head_dim",
        "attention_head_dim",
        "d_kv",
        "d_head",
        "q_lora_rank",
        "kv_lora_rank",
        "qk_rope_head_dim",
        "qk_nope_head_dim",
        "v_head_dim",
        "max_position_embeddings",
        "n_positions",
        "max_source_positions",
        "max_target_positions",
        "n_ctx",
        "max_sequence_length",
        "type_vocab_size",
        "rotary_dim",
    }
)
"""Widths and lengths by their whole name."""


@functools.cache
def is_width(name: str, several: bool = False) -> bool:
    """Whether a setting of this name is a width, or a list of ``several``: a size of tensors, no number of layers."""
    if several:
        return re.search(WIDTH_LISTS, name) is not None
    if name in NAMED_WIDTHS:
        return True
    for pattern in (VOCABULARY, KEY_HEADS, HEADS):
        if re.fullmatch(pattern, name):
            return True
    if re.fullmatch(DEPTHS, name):
        return False
    return re.fullmatch(INNER, name) is not None or re.fullmatch(WIDTH, name) is not None
