"""LN-Nets for any points and labels: right answers, depth, structure, precision, and every degenerate input."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from farfield.errors import InvalidValueError, PrecisionError
from farfield.lnnet import LNNet, construct, smallest_digits
from shape_checking import as_users_run_it


def problem(seed, largest=60):
    draw = np.random.default_rng(seed)
    m, d = int(draw.integers(3, largest + 1)), int(draw.integers(1, 51))
    classes = int(draw.integers(2, 11))
    return torch.tensor(draw.normal(size=(m, d))), torch.tensor(draw.integers(0, classes, m))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def check(x, y, rule, seed=0, **options):
    net = construct(x, y, rule=rule, generator=seeded(seed), **options)
    assert torch.equal(net.predict(x), y)
    # In another order and batch, where products round otherwise.
    order = torch.randperm(len(x), generator=seeded(seed))
    for part in order.split(7):
        assert torch.equal(net.predict(x[part]), y[part])
    linear = [m for m in net.modules() if isinstance(m, nn.Linear)]
    norms = [m for m in net.modules() if isinstance(m, nn.LayerNorm)]
    assert net.depth == len(norms) == len(linear) - 1 >= 1
    assert {type(m) for m in net.modules()} == {LNNet, nn.Sequential, nn.Linear, nn.LayerNorm}
    assert all(m.out_features == 3 for m in linear[:-1]) and all(m.normalized_shape == (3,) for m in norms)
    assert all(m.eps == 1e-5 and m.weight is None for m in norms)
    assert linear[-1].out_features == len(y.unique())
    if rule == "paper" and len(x) >= 3:
        assert net.depth <= max(len(x) - 2, 1)
    return net


@pytest.mark.full
@pytest.mark.parametrize("rule", ["paper", "fold"])
@pytest.mark.parametrize("seed", range(20))
def test_any_labels(seed, rule):
    net = check(*problem(seed, largest=40), rule, seed)
    assert net.margin > 0 and net.rule == rule


@pytest.mark.nightly
@pytest.mark.parametrize("rule", ["paper", "fold"])
@pytest.mark.parametrize("start", range(0, 500, 10))
def test_any_labels_five_hundred_times(start, rule):
    """500 problems by either rule: to 100 points, 2 to 10 classes, 1 to 50 dimensions."""
    for seed in range(1000 + start, 1000 + start + 10):
        check(*problem(seed, largest=100), rule, seed)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(5))
def test_two_hundred_points_fold_far_below_a_third(seed):
    draw = np.random.default_rng(seed)
    x, y = torch.tensor(draw.normal(size=(200, 4))), torch.tensor(draw.integers(0, 2, 200))
    assert check(x, y, "fold", seed).depth <= 45


def test_depth_of_the_fold_rule():
    """Two classes, well under a third of the points; P3's own count is m − 2."""
    for m, most in ((12, 2.5), (30, 5.5), (60, 11.0)):
        depths = []
        for seed in range(4):
            draw = np.random.default_rng(seed)
            x, y = torch.tensor(draw.normal(size=(m, 3))), torch.tensor(draw.integers(0, 2, m))
            depths.append(check(x, y, "fold", seed).depth)
        assert np.mean(depths) <= most, (m, depths)


@given(
    st.lists(st.tuples(st.integers(-8, 8), st.integers(0, 3)), min_size=1, max_size=14),
    st.sampled_from(["paper", "fold"]),
)
@settings(max_examples=40)
def test_points_on_a_grid(rows, rule):
    """One dimension, equal gaps, duplicates of one label: every mirrored pair collides under P3's own choice."""
    label = {}
    for t, c in rows:
        label.setdefault(t, c)
    x = torch.tensor([[float(t)] for t, _ in rows], dtype=torch.float64)
    check(x, torch.tensor([label[t] for t, _ in rows]), rule)


def test_mirrored_points_of_three_classes():
    """The points at ±1 would meet if the line were folded at 0, as P3 folds it: labels 1 and 2 would be one."""
    x = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]], dtype=torch.float64)
    y = torch.tensor([0, 1, 2, 0])
    c, h = 0.0, 2.0
    printed = h / ((x - c) ** 2 + h**2).sqrt()
    assert printed[1] == printed[2]
    for rule in ("paper", "fold"):
        check(x, y, rule)


def test_xor():
    x = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    y = torch.tensor([0, 1, 1, 0])
    for rule in ("paper", "fold"):
        net = check(x, y, rule)
        assert net.depth == 1 and net.readout.weight.dtype == torch.float32
        assert net.margin == pytest.approx(float(net.lines(x)[-1].sort().values.diff().max()), rel=1e-5)


def test_every_point_its_own_class():
    x = torch.randn(12, 2, generator=seeded(), dtype=torch.float64)
    assert check(x, torch.arange(12), "fold").depth == 1


def test_points_along_a_line_and_constant_features():
    t = torch.randn(25, 1, generator=seeded(), dtype=torch.float64)
    y = torch.randint(0, 3, (25,), generator=seeded())
    check(t * torch.tensor([[1.0, -2.0, 0.5]]) + 3.0, y, "fold")
    check(torch.cat([t, torch.full_like(t, 7.0)], 1), y, "paper")


@pytest.mark.parametrize("scale", [1e-150, 1e-3, 1e150])
def test_any_unit(scale):
    x, y = problem(3, largest=20)
    check(x * scale, y, "fold", dtype=torch.float64)


def test_features_in_different_units():
    x, y = problem(5, largest=20)
    check(x * torch.logspace(-9, 9, x.shape[1], dtype=torch.float64), y, "fold", dtype=torch.float64)


def test_duplicates_of_one_label_and_one_class_and_one_point():
    x = torch.tensor([[1.0, 2.0], [1.0, 2.0], [3.0, 4.0], [5.0, 9.0], [3.0, 4.0]])
    check(x, torch.tensor([4, 4, -1, 4, -1]), "fold")
    net = check(x, torch.full((5,), 9), "paper")
    assert net.margin == float("inf") and net(x).shape == (5, 1)
    check(x[:1], torch.tensor([3]), "fold")
    check(x[2:4], torch.tensor([3, 2]), "paper")


def test_labels_of_any_kind():
    x = torch.randn(10, 2, generator=seeded())
    for y in (torch.arange(10) % 2 == 0, torch.tensor([-5, 2**40] * 5), torch.tensor([0.5, 1.5] * 5)):
        net = check(x, y, "fold")
        assert net.labels.dtype == y.dtype


def test_equal_points_with_different_labels_are_named():
    x = torch.tensor([[0.0, 1.0], [1.0, 2.0], [5.0, 5.0], [1.0, 2.0]])
    with pytest.raises(InvalidValueError, match=r"points 1 and 3 are equal and their labels are 7 and 8"):
        construct(x, torch.tensor([0, 7, 1, 8]))
    with pytest.raises(ValueError, match="Remove one of them"):
        construct(x, torch.tensor([0, 7, 1, 8]), rule="paper")


def test_refusals():
    x, y = torch.randn(4, 2, generator=seeded()), torch.tensor([0, 1, 0, 1])
    with as_users_run_it():
        with pytest.raises(InvalidValueError, match="'fold' and 'paper'"):
            construct(x, y, rule="origami")
        with pytest.raises(InvalidValueError, match="float16"):
            construct(x, y, dtype=torch.float16)
        with pytest.raises(InvalidValueError, match=r"shapes \(4, 2\) and \(3,\)"):
            construct(x, y[:3])
        with pytest.raises(InvalidValueError, match="shapes"):
            construct(x[:0], y[:0])
    with pytest.raises(InvalidValueError, match="point 2 is"):
        construct(torch.tensor([[0.0], [1.0], [float("inf")]]), torch.tensor([0, 1, 0]))


def test_points_closer_than_rounding_are_refused_with_the_digits_that_would_do():
    x = torch.tensor([[0.0], [1e-20], [1.0], [2.0]], dtype=torch.float64)
    with pytest.raises(PrecisionError, match=r"needs 2\d digits") as caught:
        construct(x, torch.tensor([0, 1, 0, 1]))
    assert "float64, which has 15.7" in str(caught.value)
    near = torch.tensor([[1.0], [1.0 + 1e-9], [2.0], [3.0]], dtype=torch.float64)  # two are one in float32
    with pytest.raises(PrecisionError, match=r"float32, which has 6\.9"):
        construct(near, torch.tensor([0, 1, 0, 1]), dtype=torch.float32)
    assert check(near, torch.tensor([0, 1, 0, 1]), "fold").readout.weight.dtype == torch.float64


def test_progress_is_told_of_every_attempt():
    x, y, seen = torch.tensor([[0.0], [1e-20], [1.0], [2.0]]).double(), torch.tensor([0, 1, 0, 1]), []
    with pytest.raises(PrecisionError):
        construct(x, y, progress=lambda done, total: seen.append((done, total)))
    total = seen[0][1]
    assert seen == [(k, total) for k in range(total)] and total > 3
    del seen[:]
    construct(x * 1e3 + torch.arange(4)[:, None], y, progress=lambda *told: seen.append(told))
    assert 1 <= len(seen) < total and seen[0] == (0, total)


def test_precision_is_no_less_than_what_small_networks_need():
    for seed in range(6):
        x, y = problem(seed, largest=25)
        net = construct(x, y, generator=seeded(seed))
        measured = smallest_digits(net, x, y)
        assert 1 <= measured <= net.precision
        # One in a row less and some label is wrong: the bisection found an edge.
        with pytest.raises(PrecisionError, match=f"arithmetic of {measured - 1} digits"):
            smallest_digits(net, x, y, most=measured - 1)
    with pytest.raises(PrecisionError, match="Is it the one built"):
        smallest_digits(net, x, (y + 1) % (int(y.max()) + 1), most=20)


def test_the_stabilizer_of_torch_does_not_matter():
    x, y = problem(2, largest=40)
    net = construct(x, y, dtype=torch.float64, generator=seeded())
    before = net.lines(x)[-1]
    for module in net.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 0.0
    assert float((net.lines(x)[-1] - before).abs().max()) < 1e-3 * net.margin
    assert torch.equal(net.predict(x), y)


def test_circles_and_lines():
    x, y = problem(4, largest=20)
    net = construct(x, y, dtype=torch.float64, generator=seeded())
    circles, lines = net.circles(x), net.lines(x)
    assert circles.shape == (net.depth, len(x), 2) and lines.shape == (net.depth + 1, len(x))
    torch.testing.assert_close(
        circles.norm(dim=-1), torch.ones(net.depth, len(x), dtype=torch.float64), atol=1e-12, rtol=0
    )
    assert float(lines.abs().max()) <= 1.0 + 1e-12
    # The last line shows each label as one stretch.
    label = y[lines[-1].argsort()]
    assert int((label[1:] != label[:-1]).sum()) + 1 == len(y.unique())


def test_the_same_generator_gives_the_same_network_and_no_global_draw():
    x, y = problem(6, largest=20)
    state = torch.get_rng_state()
    a, b = (construct(x, y, generator=seeded(3)) for _ in "ab")
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def test_it_is_an_ordinary_module(tmp_path):
    x, y = problem(7, largest=15)
    net = construct(x, y, generator=seeded())
    loss = nn.functional.cross_entropy(net(x), torch.unique(y, return_inverse=True)[1])
    loss.backward()
    assert all(p.grad is not None for p in net.parameters())
    torch.save(net.state_dict(), tmp_path / "net.pt")
    other = construct(x, y, generator=seeded())
    other.load_state_dict(torch.load(tmp_path / "net.pt", weights_only=True))
    assert torch.equal(other.predict(x), y) and "depth=" in repr(net)


def test_a_network_with_one_weight_changed_would_be_seen():
    x, y = problem(8, largest=30)
    net = construct(x, y, generator=seeded())
    with torch.no_grad():
        net.body[0].bias[0] += 0.3 * net.body[0].weight.norm()  # of all three, the norm would take it away
    assert not torch.equal(net.predict(x), y)


def test_points_beyond_the_range_of_float32_are_not_classified_by_accident():
    """In float32 two of them are ∞ and their scores NaN, of which argmax makes label 0: the right one."""
    x = torch.tensor([[1.7e308], [-1.7e308], [0.0]], dtype=torch.float64)
    for rule in ("fold", "paper"):
        net = check(x, torch.tensor([0, 0, 1]), rule)
        assert net.readout.weight.dtype == torch.float64
        assert bool(torch.isfinite(net(x)).all()) and net.margin > 0


def test_differences_too_small_for_any_weight():
    x, y = problem(3, largest=20)
    with pytest.raises(InvalidValueError, match="Multiply the points"):
        construct(x * 1e-310, y)
    # Beside features that tell the points apart they do no harm.
    check(torch.cat([x, x * 1e-310], 1), y, "fold")


def test_what_is_not_a_real_number_or_a_label_is_said():
    y = torch.tensor([0, 1])
    with as_users_run_it():
        with pytest.raises(InvalidValueError, match="complex"):
            construct(torch.tensor([[1.0 + 1.0j], [1.0 - 1.0j]]), y)
        with pytest.raises(InvalidValueError, match="NaN"):
            construct(torch.tensor([[1.0], [2.0]]), torch.tensor([0.0, float("nan")]))
        with pytest.raises(InvalidValueError, match="2\\^53"):
            construct(torch.tensor([[2**60], [2**60 + 1]]), y)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(4))
def test_a_network_from_exact_arithmetic_is_used_where_it_survives_rounding(seed):
    """Pairs of points 1e-13 apart: either a network, or a refusal that does not contradict itself."""
    x = torch.randn(10, 2, generator=seeded(seed), dtype=torch.float64)
    x, y = torch.cat([x, x + 1e-13]), torch.arange(20) // 10
    refusal = ""
    try:
        net = check(x, y, "fold", 1)
        assert smallest_digits(net, x, y) <= net.precision
    except PrecisionError as error:
        refusal = str(error)
    found = re.search(r"needs (\d+) digits", refusal)
    assert seed or not refusal
    assert found is None or int(found.group(1)) > 15.7 or "round more often" in refusal


def test_labels_that_a_network_does_not_know():
    x, y = problem(0, largest=10)
    net = construct(x, y, generator=seeded())
    with pytest.raises(InvalidValueError, match=r"does not know the labels \[99\]"):
        smallest_digits(net, x, torch.full_like(y, 99))
    with pytest.raises(InvalidValueError, match="labels"):
        smallest_digits(net, x, y[:-1])


def test_what_was_not_tried_is_not_said_to_have_failed():
    """Exact arithmetic is for few points; a refusal of many must not speak of it as tried."""
    x = torch.cat([torch.zeros(1), torch.tensor([1e-30]), torch.arange(1.0, 250.0)]).double()[:, None]
    with pytest.raises(PrecisionError, match="is tried for 200 points or fewer"):
        construct(x, torch.arange(len(x)) % 2, generator=seeded())
