"""Settings made small by their names."""

from __future__ import annotations

import pytest

from farfield.atlas._small import HEADS, LAYERS, PIXELS, VOCABULARY, WIDTH, small_settings
from farfield.atlas._transformers import _config, find_inputs


class Config:
    def __init__(
        self,
        vocab_size=50_000,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=None,
        intermediate_size=3072,
        depths=(3, 4, 6, 3),
        hidden_sizes=None,
        image_size=224,
        pad_token_id=49_999,
        hidden_act="gelu",
        tie=True,
        dropout=0.1,
        part=None,
        **rest,
    ):
        self.hidden_sizes = [64, 128, 320, 512]


def test_sizes_become_small_and_everything_else_stays():
    found = small_settings(Config, nested={"part": lambda: "small part"}, usual=vars(Config()))
    assert found == {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 2,
        "intermediate_size": 2 * WIDTH,
        "depths": (1, 1, 1, 1),
        "hidden_sizes": [8, 16, 40, 64],
        "image_size": PIXELS,
        "pad_token_id": 49_999 % VOCABULARY,
        "part": "small part",
    }


def test_widths_can_stay():
    found = small_settings(Config, nested={}, usual={}, width=False)
    assert "hidden_size" not in found
    assert "num_attention_heads" not in found
    assert found["num_hidden_layers"] == LAYERS
    assert found["vocab_size"] == VOCABULARY


def test_what_a_kind_fixes_comes_last():
    found = small_settings(Config, nested={}, usual={}, fixed={"hidden_size": 7})
    assert found["hidden_size"] == 7


@pytest.mark.parametrize("value", [2, 16])
def test_nothing_becomes_larger(value):
    def make(hidden_size=value, num_experts=value):
        pass

    found = small_settings(make, nested={}, usual={})
    assert "hidden_size" not in found
    assert found.get("num_experts", value) <= value


def test_a_classifier_of_sequences_has_a_padding_token():
    transformers = pytest.importorskip("transformers")
    config = _config(transformers.LlamaConfig, True)
    assert config.pad_token_id == 0
    model = transformers.LlamaForSequenceClassification(config).eval()
    assert "inputs_embeds" in find_inputs(model, config)
