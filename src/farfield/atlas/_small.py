"""A small configuration of a kind: the settings it is made of by default, each made small by what its name says.

Nothing is known here about any library. A configuration class is a callable with defaults; a setting is a number, a
list of numbers, or a configuration of its own.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from farfield.audit import _sizes

__all__ = ["LAYERS", "VOCABULARY", "WIDTH", "small_settings"]

WIDTH, HEADS, LAYERS, VOCABULARY, PIXELS, PATCH = 32, 4, 2, 64, 32, 8

_EXACT: dict[str, Any] = {
    "head_dim": WIDTH // HEADS,
    "attention_head_dim": WIDTH // HEADS,
    "d_kv": WIDTH // HEADS,
    "d_head": WIDTH // HEADS,
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_local_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_topk": 2,
    "moe_k": 2,
    "n_group": 1,
    "num_expert_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "max_position_embeddings": 64,
    "n_positions": 64,
    "max_source_positions": 64,
    "max_target_positions": 64,
    "n_ctx": 64,
    "max_sequence_length": 64,
    "image_size": PIXELS,
    "patch_size": PATCH,
    "num_queries": 4,
    "num_feature_levels": 3,
    "num_labels": 3,
    "num_mel_bins": 16,
    "feature_size": 16,
    "mamba_d_state": 8,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_expand": 2,
    "n_mamba_heads": 2,
    "state_size": 8,
    "time_step_rank": 4,
    "sliding_window": 4,
    "attention_chunk_size": 4,
    "type_vocab_size": 2,
    "rotary_dim": 8,
}
"""Settings by their whole name."""

_UNSET: dict[str, int] = {
    "head_dim": WIDTH // HEADS,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "n_routed_experts": 4,
    "vocab_size": VOCABULARY,
    "prediction_length": 4,
}
"""Settings that are None by default and that some kinds can't do without."""

_PATTERNS: tuple[tuple[str, int], ...] = (
    (_sizes.VOCABULARY, VOCABULARY),
    (_sizes.KEY_HEADS, 2),
    (_sizes.HEADS, HEADS),
    (_sizes.DEPTHS, LAYERS),
    (_sizes.INNER, 2 * WIDTH),
    (_sizes.WIDTH, WIDTH),
)


def small_settings(
    make: Callable[..., Any],
    *,
    nested: Mapping[str, Callable[[], Any]],
    usual: Mapping[str, Any],
    width: bool = True,
    fixed: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Arguments that make a small configuration.

    Parameters
    ----------
    make
        The configuration's class.
    nested
        Setting → what makes a small configuration of it.
    usual
        What settings are in a configuration that is made without any: for lists that the class fills in itself.
    width
        Make layers narrow. Otherwise only fewer of them, with a smaller vocabulary and smaller images: where widths
        depend on each other in a way that the names do not tell.
    fixed
        Settings with a value of their own.
    """
    found: dict[str, Any] = {}
    for name, parameter in inspect.signature(make).parameters.items():
        if name in nested:
            found[name] = nested[name]()
            continue
        value = parameter.default
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        if value is None and isinstance(usual.get(name), (list, tuple)):
            value = usual[name]
        small = _UNSET.get(name) if value is None and width else _small(name, value, width)
        if small is not None and small != value:
            found[name] = small
    heads = usual.get("num_heads")
    if width and isinstance(heads, (list, tuple)) and isinstance(usual.get("embed_dim"), int):
        found["embed_dim"] = 8 * heads[0]  # widths double from stage to stage, and so do heads
    if "kv_lora_rank" in usual and width:
        found["num_key_value_heads"] = HEADS  # keys are compressed instead of shared
    return {**found, **(fixed or {})}


def _small(name: str, value: Any, width: bool) -> Any:
    """The setting made small; None where it is to stay as it is."""
    if name.endswith(("_token_id", "_token_index")) or name == "pad_index":
        return value % VOCABULARY if isinstance(value, int) and value >= VOCABULARY else None
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        return _small_number(name, value, width)
    if isinstance(value, (list, tuple)) and value and all(type(v) is int for v in value):
        return _small_list(name, value, width)
    return None


def _small_number(name: str, value: int, width: bool) -> int | None:
    sizes = ("image_size", "num_labels", "max_position_embeddings")
    if name in _EXACT and (width or name in sizes):
        return min(value, int(_EXACT[name])) if value > 0 else None
    for place, (pattern, size) in enumerate(_PATTERNS):
        if re.fullmatch(pattern, name):
            free = width or place in (0, 3)
            return size if free and value > size else None
    return None


def _small_list(name: str, values: Sequence[int], width: bool) -> Any:
    kind: Any = type(values)
    if re.search(r"depth|num_blocks|layers_per|num_layers|stage_layers|num_hidden_layers", name):
        return kind([1] * len(values))
    if width and re.search(_sizes.WIDTH_LISTS, name):
        factor = 1
        while all(v % (2 * factor) == 0 for v in values) and min(values) // (2 * factor) >= 8:
            factor *= 2
        return kind([v // factor for v in values])
    if name == "image_size" or name == "input_size":
        return kind([PIXELS] * len(values))
    return None
