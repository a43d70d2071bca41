"""The VC dimension's lower bound: proved by building a network for every labeling."""

import itertools

import pytest
import torch

from farfield.errors import InvalidValueError
from farfield.lnnet import shattering_depth, vc_lower_bound
from farfield.lnnet._capacity import _on_a_line


def points(count, inputs, seed=0):
    return torch.randn(count, inputs, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    ("depth", "inputs"), [(0, 1), (1, 1), (2, 1), (3, 1), (0, 2), (1, 2), (2, 2), (1, 3), (2, 4)]
)
def test_as_many_points_as_the_bound_says_are_shattered(depth, inputs):
    x = points(vc_lower_bound(depth, inputs), inputs)
    assert shattering_depth(x, generator=torch.Generator().manual_seed(1)) <= depth


def test_the_bound_is_exact_for_one_input_and_one_layer():
    """One LayerNorm after a linear map of one input makes intervals and their complements: 0101 is neither."""
    generator = torch.Generator().manual_seed(0)
    t = torch.linspace(-1.0, 1.0, 4, dtype=torch.float64)
    met = set()
    for _ in range(20000):
        c, h, angle, level = torch.randn(4, generator=generator, dtype=torch.float64)
        v = torch.stack([t - c, h.expand(4)], 1)
        read = (v / v.norm(dim=1, keepdim=True)) @ torch.stack([angle.cos(), angle.sin()])
        met.add(tuple((read > level).int().tolist()))
    every = set(itertools.product((0, 1), repeat=4))
    assert every - met == {(0, 1, 0, 1), (1, 0, 1, 0)} and vc_lower_bound(1) == 3


def test_one_more_point_than_the_bound_takes_more_layers_on_a_line():
    """The check can say no: alternating labels of five points need more than one LayerNorm."""
    x = torch.tensor([0.0, 1.1, 2.0, 3.3, 4.1], dtype=torch.float64)[:, None]
    assert shattering_depth(x, generator=torch.Generator().manual_seed(0)) > 1


def test_the_first_points_take_two_positions_and_labels_are_kept():
    x, labels = points(7, 3), torch.tensor([0, 1, 1, 0, 1, 0, 0])
    line, own = _on_a_line(x, labels, 3)
    assert len(line.unique()) == 5 and sorted(own.tolist()) == sorted(labels.tolist())
    assert (own[line == 0.0] == 0).all() and (own[line == 1.0] == 1).all()


def test_what_is_refused():
    with pytest.raises(InvalidValueError, match="at least 0"):
        vc_lower_bound(-1)
    with pytest.raises(InvalidValueError, match="1 to 12 points"):
        shattering_depth(points(13, 1))
    flat = torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [3.0, 5.0]], dtype=torch.float64)
    with pytest.raises(InvalidValueError, match="general position"):
        shattering_depth(flat)
