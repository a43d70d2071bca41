"""The architectures of ``transformers``: every class of its model mappings, built from a small configuration."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from farfield.atlas._architecture import Architecture, NotBuiltError
from farfield.atlas._small import PIXELS, VOCABULARY, small_settings
from farfield.errors import MissingExtraError

__all__ = ["architectures", "build", "class_of", "find_inputs", "library"]

TOKENS, ROWS = 6, 2
LARGEST = 12_000_000
"""Parameters of a model that is built: a kind that can't be made smaller than this is left out, and says so."""

_LARGEST_SIDE = 1024
"""Pixels of an image that is tried."""

_TASKS: dict[str, str] = {
    "MODEL": "features",
    "MODEL_FOR_IMAGE_CLASSIFICATION": "image classification",
    "MODEL_FOR_SEMANTIC_SEGMENTATION": "segmentation",
    "MODEL_FOR_UNIVERSAL_SEGMENTATION": "segmentation",
    "MODEL_FOR_INSTANCE_SEGMENTATION": "segmentation",
    "MODEL_FOR_IMAGE_SEGMENTATION": "segmentation",
    "MODEL_FOR_DEPTH_ESTIMATION": "depth",
    "MODEL_FOR_OBJECT_DETECTION": "object detection",
    "MODEL_FOR_ZERO_SHOT_OBJECT_DETECTION": "object detection",
    "MODEL_FOR_VIDEO_CLASSIFICATION": "video classification",
    "MODEL_FOR_IMAGE_TO_IMAGE": "image to image",
    "MODEL_FOR_KEYPOINT_DETECTION": "keypoints",
    "MODEL_FOR_KEYPOINT_MATCHING": "keypoints",
    "MODEL_FOR_MASKED_IMAGE_MODELING": "masked image",
    "MODEL_FOR_AUDIO_CLASSIFICATION": "audio classification",
    "MODEL_FOR_AUDIO_FRAME_CLASSIFICATION": "audio classification",
    "MODEL_FOR_AUDIO_XVECTOR": "speaker embedding",
    "MODEL_FOR_CTC": "speech recognition",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ": "speech recognition",
    "MODEL_FOR_TEXT_TO_SPECTROGRAM": "speech synthesis",
    "MODEL_FOR_TEXT_TO_WAVEFORM": "speech synthesis",
    "MODEL_FOR_TIME_SERIES_PREDICTION": "time series",
    "MODEL_FOR_TIME_SERIES_REGRESSION": "time series",
    "MODEL_FOR_TIME_SERIES_CLASSIFICATION": "time series",
    "MODEL_FOR_CAUSAL_LM": "causal language model",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM": "sequence to sequence",
    "MODEL_FOR_MASKED_LM": "masked language model",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT": "image and text to text",
    "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION": "image and text",
    "MODEL_FOR_MASK_GENERATION": "segmentation",
    "MODEL_FOR_VISUAL_QUESTION_ANSWERING": "image and text",
    "MODEL_FOR_BACKBONE": "backbone",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION": "text classification",
    "MODEL_FOR_PRETRAINING": "pretraining",
    "MODEL_FOR_TOKEN_CLASSIFICATION": "token classification",
    "MODEL_FOR_QUESTION_ANSWERING": "question answering",
}
"""Mapping of transformers → task; in the order in which the atlas takes them. A class is taken once."""

_RESNET = {
    "model_type": "resnet",
    "embedding_size": 8,
    "hidden_sizes": [8, 16, 24, 32],
    "depths": [1, 1, 1, 1],
}
_ON_RESNET: dict[str, Any] = {
    "use_timm_backbone": False,
    "use_pretrained_backbone": False,
    "backbone": None,
    "backbone_config": {**_RESNET, "out_features": ["stage4"]},
}
_ON_PYRAMID = {**_ON_RESNET, "backbone_config": {**_RESNET, "out_features": ["stage2", "stage3", "stage4"]}}
_MROPE = {"rope_scaling": {"type": "default", "rope_type": "default", "mrope_section": [1, 1, 2]}}
_FIXED: dict[str, dict[str, Any]] = {
    "conditional_detr": _ON_RESNET,
    "cvt": {"depth": [1, 2, 3]},
    "dab-detr": _ON_RESNET,
    "dbrx": {
        "attn_config": {"kv_n_heads": 2},
        "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "deformable_detr": _ON_PYRAMID,
    "detr": _ON_RESNET,
    "efficientnet": {"width_coefficient": 0.25, "depth_coefficient": 0.3, "hidden_dim": 64},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "jamba": {"use_mamba_kernels": False},
    "mamba2": {"num_heads": 4, "head_dim": 16, "n_groups": 1},
    "perceiver": {"d_latents": 32, "num_latents": 8, "d_model": 32},
    "pvt": {"image_size": 64},
    "qwen2_5_vl_text": _MROPE,
    "qwen2_vl_text": _MROPE,
    "qwen3_vl_moe_text": _MROPE,
    "qwen3_vl_text": _MROPE,
    "table-transformer": _ON_RESNET,
    "transfo-xl": {"cutoffs": [16, 32]},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "zamba": {"use_mamba_kernels": False},
}
"""Settings of a kind that its names do not tell."""


def library() -> Any:
    """The package itself."""
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError("The atlas of transformers", "transformers", "transformers") from error
    messages: Any = transformers.logging
    messages.set_verbosity_error()
    return transformers


def architectures() -> Iterator[Architecture]:
    """Every class of the mappings, one after the other; nothing is built."""
    auto = importlib.import_module(f"{library().__name__}.models.auto.modeling_auto")
    seen: set[str] = set()
    for mapping, task in _TASKS.items():
        for family, names in getattr(auto, f"{mapping}_MAPPING_NAMES").items():
            for name in [names] if isinstance(names, str) else names:
                if name not in seen:
                    seen.add(name)
                    yield Architecture("transformers", name, family, task)


def build(name: str, family: str) -> tuple[nn.Module, dict[str, Any]]:
    """The model with random weights, and inputs that it runs on.

    Raises
    ------
    NotBuiltError
        With the first reason why it can't be built small, or does not run.
    """
    kind = class_of(name, family)
    tried: list[str] = []
    for width in (True, False):
        try:
            config = _config(library().CONFIG_MAPPING[family], width)
            if hasattr(config, "use_cache"):
                config.use_cache = False
            _check_size(kind, config)
            torch.manual_seed(0)
            model = kind(config).eval().float()
            return model, find_inputs(model, config)
        except NotBuiltError as error:
            tried.append(str(error))
        except Exception as error:
            said = " ".join(str(error).split())[:300]
            tried.append(f"{type(error).__name__}: {said}")
    raise NotBuiltError(tried[0])


def class_of(name: str, family: str) -> Any:
    """The class of a name, whether its package exports it or not."""
    found = getattr(library(), name, None)
    if found is None:
        auto = importlib.import_module(f"{library().__name__}.models.auto.configuration_auto")
        package = auto.model_type_to_module_name(family)
        module = importlib.import_module(f"{library().__name__}.models.{package}.modeling_{package}")
        found = getattr(module, name)
    return found


def _config(kind: Any, width: bool) -> Any:
    base = library().PretrainedConfig
    try:
        whole = kind()
        usual = vars(whole)
        parts = {k: type(v) for k, v in usual.items() if isinstance(v, base)}
    except Exception:
        usual = {}
        parts = {k: v for k, v in getattr(kind, "sub_configs", {}).items() if v is not library().AutoConfig}
    nested = {k: (lambda part=part: _config(part, width).to_dict()) for k, part in parts.items()}
    fixed = _FIXED.get(kind.model_type, {})
    config = kind(**small_settings(kind, nested=nested, usual=usual, width=width, fixed=fixed))
    if getattr(config, "pad_token_id", 0) is None:
        config.pad_token_id = 0  # a classifier of sequences takes no batch without one
    return config


def _check_size(kind: Any, config: Any) -> None:
    """Refuse what is too large before its weights are drawn."""
    try:
        with torch.device("meta"):
            count = sum(p.numel() for p in kind(config).parameters())
    except Exception:
        return  # some can't be made without numbers; the worker's memory limit holds for them
    if count > LARGEST:
        raise NotBuiltError(f"It has {count:,} parameters in the smallest configuration that was found.")


def find_inputs(
    model: nn.Module, config: Any, run: Callable[[nn.Module, dict[str, Any]], object] | None = None
) -> dict[str, Any]:
    """The first of the candidates that the model runs on; real inputs before ids."""
    first = ""
    for inputs in _candidates(model, config):
        try:
            with torch.no_grad():
                model(**inputs) if run is None else run(model, inputs)
        except Exception as error:
            first = first or f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        else:
            return inputs
    raise NotBuiltError(f"It runs on none of the inputs that were tried. {first}".strip())


def _candidates(model: nn.Module, config: Any) -> Iterator[dict[str, Any]]:
    names = inspect.signature(model.forward).parameters
    main = getattr(model, "main_input_name", "input_ids")
    images = list(_images(names, config))
    texts = list(_texts(model, names))
    sounds = list(_sounds(names, config))
    if main == "pixel_values" or "input_ids" not in names:
        yield from images
        for image in images:
            for text in texts:
                yield {**image, **text}
    yield from sounds
    for sound in sounds:
        for text in texts:
            yield {**sound, **text}
    yield from _series(names, config)
    yield from _others(names, config)
    yield from texts
    for text in texts:
        yield from _placed(text, names)
        for image in images:
            yield {**text, **image}


def _ids() -> Tensor:
    return torch.arange(ROWS * TOKENS).reshape(ROWS, TOKENS) % (VOCABULARY // 2) + 3


def _texts(model: Any, names: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    width = None
    try:
        width = int(model.get_input_embeddings().weight.shape[-1])
    except Exception:
        width = None
    two = "decoder_input_ids" in names
    if width is not None and "inputs_embeds" in names:
        embeds = torch.randn(ROWS, TOKENS, width)
        if two and "decoder_inputs_embeds" in names:
            yield {"inputs_embeds": embeds, "decoder_inputs_embeds": torch.randn(ROWS, TOKENS, width)}
        if two:
            yield {"inputs_embeds": embeds, "decoder_input_ids": _ids()}
        yield {"inputs_embeds": embeds}
    if two and "input_ids" not in names and "inputs_embeds" not in names:
        if width is not None and "decoder_inputs_embeds" in names:
            yield {"decoder_inputs_embeds": torch.randn(ROWS, TOKENS, width)}
        yield {"decoder_input_ids": _ids()}
    if "input_ids" in names:
        if two:
            yield {"input_ids": _ids(), "decoder_input_ids": _ids()}
        yield {"input_ids": _ids()}


def _placed(text: dict[str, Any], names: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A text with the places of its tokens: in order, or on a page."""
    if "position_ids" in names:
        places = torch.arange(TOKENS).expand(ROWS, TOKENS).contiguous()
        yield {**text, "position_ids": places.expand(3, ROWS, TOKENS).contiguous()}
        yield {**text, "position_ids": places}
    if "bbox" in names:
        for sides in (4, 8):
            yield {**text, "bbox": torch.rand(ROWS, TOKENS, sides)}
        yield {**text, "bbox": torch.ones(ROWS, TOKENS, 4, dtype=torch.long)}


def _others(names: Mapping[str, Any], config: Any) -> Iterator[dict[str, Any]]:
    """Inputs of kinds that are alone in what they take."""
    if "returns_to_go" in names:
        yield {
            "states": torch.randn(ROWS, TOKENS, config.state_dim),
            "actions": torch.randn(ROWS, TOKENS, config.act_dim),
            "rewards": torch.randn(ROWS, TOKENS, 1),
            "returns_to_go": torch.randn(ROWS, TOKENS, 1),
            "timesteps": torch.arange(TOKENS).expand(ROWS, TOKENS).contiguous(),
            "attention_mask": torch.ones(ROWS, TOKENS, dtype=torch.long),
        }
    if "inputs" in names:
        yield {"inputs": torch.randn(ROWS, TOKENS, int(getattr(config, "d_model", 32)))}
    if "visual_feats" in names:
        yield {
            "input_ids": _ids(),
            "visual_feats": torch.randn(ROWS, TOKENS, config.visual_feat_dim),
            "visual_pos": torch.rand(ROWS, TOKENS, config.visual_pos_dim),
        }


def _images(names: Mapping[str, Any], config: Any) -> Iterator[dict[str, Any]]:
    name = next((n for n in ("pixel_values", "pixel_values_videos") if n in names), None)
    if name is None:
        return
    vision = getattr(config, "vision_config", None) or getattr(config, "backbone_config", None) or config
    channels = getattr(vision, "num_channels", getattr(vision, "in_channels", getattr(vision, "in_chans", 3)))
    channels = channels if isinstance(channels, int) else 3
    sides: list[Any] = [
        getattr(vision, k, None) for k in ("image_size", "img_size", "crop_size", "input_size")
    ]
    sides = [
        s if isinstance(s, int) else max(s) if isinstance(s, (list, tuple)) and s else None for s in sides
    ]
    for side in dict.fromkeys([*(s for s in sides if s), PIXELS, 64, 224]):
        if side > _LARGEST_SIDE:
            continue
        image = torch.randn(ROWS, channels, side, side)
        yield {name: image}
        frames = getattr(vision, "num_frames", getattr(vision, "frames_per_clip", None))
        if isinstance(frames, int):
            yield {name: torch.randn(ROWS, frames, channels, side, side)}
        if "pixel_mask" in names:
            yield {name: image, "pixel_mask": torch.ones(ROWS, side, side, dtype=torch.long)}


def _sounds(names: Mapping[str, Any], config: Any) -> Iterator[dict[str, Any]]:
    sound = next((v for k, v in vars(config).items() if "audio" in k and hasattr(v, "to_dict")), config)
    keys = ("num_mel_bins", "feature_size", "input_feat_per_channel", "n_mels", "input_dim", "input_size")
    bins = [getattr(sound, k) for k in keys if isinstance(getattr(sound, k, None), int)] or [16]
    for name in ("input_features", "audio_values", "input_values", "spectrogram"):
        if name not in names:
            continue
        if name == "input_values":
            yield {name: torch.randn(ROWS, 2000)}
            yield {name: torch.randn(ROWS, 1, 2000)}
        length = getattr(sound, "max_length", None)
        lengths = [
            n for n in (length, 2 * getattr(sound, "max_source_positions", 0), 128) if isinstance(n, int)
        ]
        for size in [n for n in dict.fromkeys(lengths) if 0 < n <= 1024]:
            for width in bins:
                yield {name: torch.randn(ROWS, width, size)}
                yield {name: torch.randn(ROWS, size, width)}


def _series(names: Mapping[str, Any], config: Any) -> Iterator[dict[str, Any]]:
    past = next((n for n in ("past_values", "past_target") if n in names), None)
    if past is None:
        return
    length = int(getattr(config, "context_length", 32) or 32)
    lags = getattr(config, "lags_sequence", None) or [0]
    channels = int(getattr(config, "num_input_channels", 1) or 1)
    whole = length + max(lags)
    yield {past: torch.randn(ROWS, length, channels)}
    yield {past: torch.randn(ROWS, length)}
    if "freq" in names:
        padding, freq = torch.zeros(ROWS, length, dtype=torch.long), torch.zeros(ROWS, 1, dtype=torch.long)
        yield {past: torch.randn(ROWS, length), "past_values_padding": padding, "freq": freq}
    features = int(getattr(config, "num_time_features", 0) or 0)
    yield {
        past: torch.randn(ROWS, whole),
        "past_time_features": torch.randn(ROWS, whole, max(features, 1)),
        "past_observed_mask": torch.ones(ROWS, whole),
        "future_values": torch.randn(ROWS, int(getattr(config, "prediction_length", None) or length)),
        "future_time_features": torch.randn(
            ROWS, int(getattr(config, "prediction_length", None) or length), max(features, 1)
        ),
    }
