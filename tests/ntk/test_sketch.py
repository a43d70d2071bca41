"""The kernel from random directions: unbiased, and as sure of itself as it should be."""

import pytest
import torch
from torch import nn

from farfield.errors import InvalidValueError
from farfield.ntk import sketch_ntk
from ntk_models import build, distance, reference


def sketched(name, outputs="trace", directions=4000, seed=0, **options):
    model, x, y = build(name)
    generator = torch.Generator().manual_seed(seed)
    return (
        sketch_ntk(model, x, y, outputs=outputs, directions=directions, generator=generator, **options),
        reference(model, x, y, outputs),
    )


@pytest.mark.parametrize(
    "name", ["layer_norm_affine", "shared_linear", "cnn", "lstm", "embedding_with_padding"]
)
def test_within_five_standard_errors(name):
    estimate, truth = sketched(name, directions=400)
    assert estimate.value.shape == estimate.standard_error.shape == truth.shape
    assert ((estimate.value - truth).abs() < 5 * estimate.standard_error).all()
    assert (estimate.standard_error > 0).all()


@pytest.mark.parametrize("outputs", ["full", "sum", 1])
def test_every_choice_of_outputs(outputs):
    estimate, truth = sketched("layer_norm_affine", outputs, directions=400)
    assert estimate.value.shape == truth.shape
    assert ((estimate.value - truth).abs() < 5 * estimate.standard_error).all()


def test_a_kernel_wrong_by_two_per_cent_is_noticed():
    model = nn.Linear(5, 64).double()  # many outputs: as good as so many directions
    x = torch.randn(2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    estimate = sketch_ntk(model, x, directions=6000, generator=torch.Generator().manual_seed(2))
    truth = reference(model, x)
    assert ((estimate.value - truth).abs() < 5 * estimate.standard_error).all()
    assert ((estimate.value - 1.02 * truth).abs() > 5 * estimate.standard_error).any()


def test_the_standard_error_is_the_spread_of_the_estimate():
    """Over repetitions; one that forgets the root, or the number of directions, is far off."""
    model, x, _ = build("linear")
    runs = [
        sketch_ntk(model, x, directions=30, generator=torch.Generator().manual_seed(s)) for s in range(300)
    ]
    spread = torch.stack([r.value for r in runs]).std(0)
    claimed = torch.stack([r.standard_error**2 for r in runs]).mean(0).sqrt()
    assert (spread / claimed - 1).abs().max() < 0.25
    assert (spread / (claimed / 30**0.5) - 1).abs().min() > 1


def test_the_error_falls_as_the_root_of_the_directions():
    errors = []
    for directions in (50, 3200):
        found = [
            sketched("linear", directions=directions, seed=s) for s in range(5 if directions == 50 else 1)
        ]
        errors.append(sum(float(e.standard_error.mean()) for e, _ in found) / len(found))
    assert 6 < errors[0] / errors[1] < 10.5


@pytest.mark.parametrize("name", ["cnn", "lstm", "stopped_gradient", "embedding_bag"])
def test_neither_batches_nor_directions_at_once_show(name, monkeypatch):
    one, _ = sketched(name, directions=10)
    two, _ = sketched(name, directions=10, batch=2)
    monkeypatch.setattr("farfield.ntk._sketch._AT_ONCE", 1)
    three, _ = sketched(name, directions=10)
    assert distance(one.value, two.value) < 1e-12
    assert distance(one.value, three.value) < 1e-12


def test_refusals():
    model, x, y = build("linear")
    with pytest.raises(InvalidValueError, match="at least two directions"):
        sketch_ntk(model, x, directions=1)
    with pytest.raises(InvalidValueError, match="index of one output"):
        sketch_ntk(model, x, outputs=7)
    with pytest.raises(InvalidValueError, match="same kind of input"):
        sketch_ntk(model, x, y[:, :2])
    with pytest.raises(InvalidValueError, match="n ≥ 1"):
        sketch_ntk(model, x[:0])
