"""Keys of architectures: what a verdict on structure depends on is in them, widths are not."""

from __future__ import annotations

import json
import struct

import pytest

from farfield._weights import CheckpointError
from farfield.audit._sizes import is_width
from farfield.audit._structure import parse_config, parse_header, read_header, structure_of
from farfield.errors import InvalidValueError

CONFIG = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
    "pad_token_id": 0,
    "vocab_size": 1000,
}
SHAPES = {"a.weight": (128, 512), "a.bias": (128,)}


def key(config=CONFIG, shapes=SHAPES, **options):
    return structure_of(config, shapes, **options).key


@pytest.mark.parametrize(
    "other",
    [
        {"hidden_size": 256},
        {"vocab_size": 30_000},
        {"pad_token_id": 3},
        {"_name_or_path": "elsewhere"},
        {"transformers_version": "9"},
    ],
)
def test_widths_and_names_of_files_are_left_out(other):
    assert key({**CONFIG, **other}, {"a.weight": (7, 9), "a.bias": (7,)}) == key()


@pytest.mark.parametrize(
    "other",
    [
        {"hidden_size": 1},
        {"hidden_size": 0},
        {"hidden_size": 512},  # now equal to another width
        {"num_hidden_layers": 0},
        {"num_hidden_layers": 3},
        {"layer_norm_eps": 0.0},
        {"hidden_act": "relu"},
        {"pad_token_id": None},
        {"architectures": ["BertForMaskedLM"]},
        {"tie_word_embeddings": False},
        {"some_new_size": 5},  # a name that is not known is taken for itself
    ],
)
def test_what_a_verdict_can_depend_on_is_kept(other):
    assert key({**CONFIG, **other}) != key()


@pytest.mark.parametrize(
    "shapes",
    [
        None,
        {"a.weight": (128, 512)},
        {"a.weight": (128, 512), "b.bias": (128,)},
        {"a.weight": (128, 1), "a.bias": (128,)},
        {"a.weight": (128, 0), "a.bias": (128,)},
        {"a.weight": (128, 512, 2), "a.bias": (128,)},
    ],
)
def test_names_of_tensors_and_sizes_of_one_are_kept(shapes):
    assert key(shapes=shapes) != key()


def test_builder_and_inputs_are_kept_and_numbers_counted():
    assert key(builder="a:b") != key() != key(builder="a:b", inputs=("1x8",))
    assert structure_of(CONFIG, SHAPES).parameters == 128 * 512 + 128
    assert structure_of(CONFIG, None).parameters is None


@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("hidden_size", True),
        ("num_attention_heads", True),
        ("max_position_embeddings", True),
        ("num_hidden_layers", False),
        ("encoder_layers", False),
        ("num_experts_per_tok", False),
        ("layer_norm_eps", False),
        ("patch_size", False),
    ],
)
def test_names_of_widths(name, width):
    assert is_width(name) is width


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"a": 1}', '{"a": {"shape": [-1]}}', '{"a": {"shape": [1.5]}}', '{"a": {"shape": [[1]]}}'],
)
def test_a_header_that_is_none_is_refused(text):
    with pytest.raises(CheckpointError, match="Not the header"):
        parse_header(text)


@pytest.mark.parametrize("text", ["", "[]", "nothing"])
def test_a_configuration_that_is_none_is_refused(text):
    with pytest.raises(InvalidValueError, match=r"config\.json"):
        parse_config(text)


def test_a_header_is_read_and_nothing_behind_it(tmp_path):
    text = json.dumps(
        {"__metadata__": {"format": "pt"}, "w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
    )
    file = tmp_path / "model.safetensors"
    file.write_bytes(
        struct.pack("<Q", len(text)) + text.encode()
    )  # the numbers are missing, and are not missed
    assert parse_header(read_header(file)) == {"w": (2, 3)}
    file.write_bytes(struct.pack("<Q", 10**12))
    with pytest.raises(CheckpointError, match="no safetensors file"):
        read_header(file)
    file.write_bytes(struct.pack("<Q", 100) + b"{}")
    with pytest.raises(CheckpointError, match="ends within its header"):
        read_header(file)
