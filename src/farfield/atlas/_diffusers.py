"""The networks of diffusers: autoencoders, U-Nets, transformers, asked about samples and conditioning."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from farfield.atlas._recipes import Recipes

__all__ = ["architectures", "build"]

_RECIPES = Recipes("diffusers")
architectures, build = _RECIPES.architectures, _RECIPES.build
WIDTHS = (8, 16)
_STEP = torch.tensor([1, 1])


def _make(name: str, inputs: dict[str, Any], options: dict[str, Any]) -> tuple[nn.Module, Any]:
    import diffusers

    rest = {} if name == "T2IAdapter" else {"return_dict": False}
    return getattr(diffusers, name)(**options), {**inputs, **rest}


def _sample(*shape: int) -> torch.Tensor:
    return torch.randn(2, *shape)


_TRANSFORMER: dict[str, Any] = {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2}
_BLOCKS: dict[str, Any] = {"block_out_channels": WIDTHS, "norm_num_groups": 4, "layers_per_block": 1}
_LATENT: dict[str, Any] = {
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
    "latent_channels": 4,
}
_TABLE: tuple[tuple[str, str, dict[str, Any], dict[str, Any]], ...] = (
    (
        "UNet2DModel",
        "u-net",
        {"sample": _sample(3, 8, 8), "timestep": _STEP},
        {
            **_BLOCKS,
            "sample_size": 8,
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
            "attention_head_dim": 4,
        },
    ),
    (
        "UNet2DConditionModel",
        "u-net",
        {"sample": _sample(4, 8, 8), "timestep": _STEP, "encoder_hidden_states": _sample(3, 16)},
        {
            **_BLOCKS,
            "sample_size": 8,
            "cross_attention_dim": 16,
            "attention_head_dim": 4,
            "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
            "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
        },
    ),
    (
        "UNet1DModel",
        "u-net",
        {"sample": _sample(2, 32), "timestep": _STEP},
        {
            "block_out_channels": (8, 16, 16),
            "sample_size": 32,
            "layers_per_block": 1,
            "extra_in_channels": 16,
        },
    ),
    (
        "UNet3DConditionModel",
        "u-net",
        {"sample": _sample(4, 2, 8, 8), "timestep": _STEP, "encoder_hidden_states": _sample(3, 16)},
        {
            **_BLOCKS,
            "sample_size": 8,
            "cross_attention_dim": 16,
            "attention_head_dim": 4,
            "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
            "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"),
        },
    ),
    ("AutoencoderKL", "autoencoder", {"sample": _sample(3, 16, 16)}, {**_BLOCKS, **_LATENT}),
    (
        "AutoencoderTiny",
        "autoencoder",
        {"sample": _sample(3, 16, 16)},
        {
            "encoder_block_out_channels": (8, 8),
            "decoder_block_out_channels": (8, 8),
            "num_encoder_blocks": (1, 1),
            "num_decoder_blocks": (1, 1),
        },
    ),
    (
        "VQModel",
        "autoencoder",
        {"sample": _sample(3, 16, 16)},
        {**_BLOCKS, **_LATENT, "num_vq_embeddings": 16},
    ),
    (
        "AsymmetricAutoencoderKL",
        "autoencoder",
        {"sample": _sample(3, 16, 16)},
        {**_LATENT, "down_block_out_channels": WIDTHS, "up_block_out_channels": WIDTHS, "norm_num_groups": 4},
    ),
    (
        "AutoencoderDC",
        "autoencoder",
        {"sample": _sample(3, 16, 16)},
        {
            "latent_channels": 4,
            "attention_head_dim": 2,
            "encoder_block_types": ("ResBlock", "EfficientViTBlock"),
            "decoder_block_types": ("ResBlock", "EfficientViTBlock"),
            "encoder_block_out_channels": (8, 8),
            "decoder_block_out_channels": (8, 8),
            "encoder_qkv_multiscales": ((), (5,)),
            "decoder_qkv_multiscales": ((), (5,)),
            "encoder_layers_per_block": (1, 1),
            "decoder_layers_per_block": (1, 1),
            "downsample_block_type": "conv",
            "upsample_block_type": "interpolate",
            "decoder_norm_types": "rms_norm",
            "decoder_act_fns": "silu",
            "scaling_factor": 0.4,
        },
    ),
    (
        "DiTTransformer2DModel",
        "transformer",
        {"hidden_states": _sample(4, 8, 8), "timestep": _STEP, "class_labels": torch.tensor([0, 1])},
        {**_TRANSFORMER, "sample_size": 8, "num_embeds_ada_norm": 8, "norm_num_groups": 4},
    ),
    (
        "PixArtTransformer2DModel",
        "transformer",
        {
            "hidden_states": _sample(4, 8, 8),
            "timestep": _STEP,
            "encoder_hidden_states": _sample(3, 16),
            "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
        },
        {
            **_TRANSFORMER,
            "sample_size": 8,
            "cross_attention_dim": 16,
            "caption_channels": 16,
            "num_embeds_ada_norm": 8,
            "use_additional_conditions": False,
            "out_channels": 8,
        },
    ),
    (
        "SD3Transformer2DModel",
        "transformer",
        {
            "hidden_states": _sample(4, 8, 8),
            "encoder_hidden_states": _sample(3, 16),
            "pooled_projections": _sample(12),
            "timestep": _STEP,
        },
        {
            **_TRANSFORMER,
            "sample_size": 8,
            "patch_size": 2,
            "in_channels": 4,
            "out_channels": 4,
            "joint_attention_dim": 16,
            "caption_projection_dim": 16,
            "pooled_projection_dim": 12,
            "pos_embed_max_size": 8,
        },
    ),
    (
        "FluxTransformer2DModel",
        "transformer",
        {
            "hidden_states": _sample(16, 4),
            "encoder_hidden_states": _sample(3, 16),
            "pooled_projections": _sample(12),
            "timestep": torch.tensor([0.5, 0.5]),
            "img_ids": torch.zeros(16, 3),
            "txt_ids": torch.zeros(3, 3),
        },
        {
            **_TRANSFORMER,
            "num_layers": 1,
            "num_single_layers": 1,
            "patch_size": 1,
            "in_channels": 4,
            "joint_attention_dim": 16,
            "pooled_projection_dim": 12,
            "axes_dims_rope": (4, 2, 2),
        },
    ),
    (
        "SanaTransformer2DModel",
        "transformer",
        {"hidden_states": _sample(4, 8, 8), "encoder_hidden_states": _sample(3, 8), "timestep": _STEP},
        {
            **_TRANSFORMER,
            "patch_size": 1,
            "in_channels": 4,
            "out_channels": 4,
            "num_cross_attention_heads": 2,
            "cross_attention_head_dim": 8,
            "cross_attention_dim": 16,
            "caption_channels": 8,
            "sample_size": 8,
        },
    ),
    (
        "WanTransformer3DModel",
        "transformer",
        {"hidden_states": _sample(4, 2, 8, 8), "timestep": _STEP, "encoder_hidden_states": _sample(3, 16)},
        {
            **_TRANSFORMER,
            "attention_head_dim": 12,
            "in_channels": 4,
            "out_channels": 4,
            "text_dim": 16,
            "freq_dim": 32,
            "ffn_dim": 32,
            "cross_attn_norm": True,
            "rope_max_seq_len": 32,
        },
    ),
    (
        "LTXVideoTransformer3DModel",
        "transformer",
        {
            "hidden_states": _sample(16, 4),
            "encoder_hidden_states": _sample(3, 16),
            "timestep": _STEP,
            "encoder_attention_mask": torch.ones(2, 3),
            "num_frames": 1,
            "height": 4,
            "width": 4,
        },
        {
            **_TRANSFORMER,
            "in_channels": 4,
            "out_channels": 4,
            "cross_attention_dim": 16,
            "caption_channels": 16,
        },
    ),
    (
        "CogVideoXTransformer3DModel",
        "transformer",
        {"hidden_states": _sample(1, 4, 8, 8), "encoder_hidden_states": _sample(3, 8), "timestep": _STEP},
        {
            **_TRANSFORMER,
            "in_channels": 4,
            "out_channels": 4,
            "time_embed_dim": 4,
            "text_embed_dim": 8,
            "sample_width": 8,
            "sample_height": 8,
            "sample_frames": 1,
            "patch_size": 2,
            "max_text_seq_length": 3,
        },
    ),
    (
        "StableAudioDiTModel",
        "transformer",
        {
            "hidden_states": _sample(3, 4),
            "timestep": torch.tensor([0.5, 0.5]),
            "encoder_hidden_states": _sample(3, 8),
            "global_hidden_states": _sample(1, 8),
        },
        {
            **_TRANSFORMER,
            "sample_size": 4,
            "in_channels": 3,
            "num_key_value_attention_heads": 1,
            "out_channels": 3,
            "cross_attention_dim": 4,
            "time_proj_dim": 8,
            "global_states_input_dim": 8,
            "cross_attention_input_dim": 8,
        },
    ),
    (
        "PriorTransformer",
        "transformer",
        {
            "hidden_states": _sample(16),
            "timestep": _STEP,
            "proj_embedding": _sample(16),
            "encoder_hidden_states": _sample(5, 16),
        },
        {**_TRANSFORMER, "embedding_dim": 16, "num_embeddings": 5, "additional_embeddings": 4},
    ),
    (
        "T2IAdapter",
        "adapter",
        {"x": _sample(3, 32, 32)},
        {"channels": [8, 16], "num_res_blocks": 1, "downscale_factor": 8},
    ),
)
for _name, _family, _inputs, _options in _TABLE:
    _RECIPES.add(
        _name,
        _family,
        "image generation",
        lambda n=_name, i=_inputs, o=_options: _make(n, i, o),  # type: ignore[misc]
    )
