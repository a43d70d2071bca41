"""P1 on faces: networks that are what they are called, features that resume, claims that can fail."""

import dataclasses
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from farfield.data import PackedFaces, weights_file
from farfield.data._files import DataError
from farfield.errors import InvalidValueError, MissingExtraError, UnknownNameError
from farfield.papers.p1 import _ages, _features, _heads_far, utkface, utkface_one_label
from farfield.papers.p1._backbones import BACKBONES, Backbone, MobileNetV2, ResNet18, _folded, backbone


def shaken(model, seed=0):
    """Every parameter and statistic drawn at random, so that none can be left out unnoticed."""
    generator = torch.Generator().manual_seed(seed)
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            noise = torch.randn(value.shape, generator=generator)
            value.copy_(
                0.5 + noise.abs() if name.endswith("var") else noise / max(1, value[:1].numel()) ** 0.5
            )
    return model.eval()


# ------------------------------------------------------------------ backbones


def convolve(s, x, convolution, norm, stride=1, padding=0, groups=1):
    x = F.conv2d(x, s[f"{convolution}.weight"], stride=stride, padding=padding, groups=groups)
    mean, scale = s[f"{norm}.running_mean"], s[f"{norm}.weight"] / (s[f"{norm}.running_var"] + 1e-5).sqrt()
    return (x - mean[:, None, None]) * scale[:, None, None] + s[f"{norm}.bias"][:, None, None]


def mobilenet(s, x, residual=True):
    """MobileNetV2 read off its parameters' names and shapes."""
    x = convolve(s, x, "features.0.0", "features.0.1", 2, 1).clamp(0, 6)
    halve = {2, 4, 7, 14}
    for k in range(1, 18):
        at, y = f"features.{k}.conv", x
        if k > 1:
            y = convolve(s, y, f"{at}.0.0", f"{at}.0.1").clamp(0, 6)
        d = 0 if k == 1 else 1
        stride = 2 if k in halve else 1
        y = convolve(s, y, f"{at}.{d}.0", f"{at}.{d}.1", stride, 1, y.shape[1]).clamp(0, 6)
        y = convolve(s, y, f"{at}.{d + 1}", f"{at}.{d + 2}")
        x = x + y if residual and stride == 1 and x.shape == y.shape else y
    return convolve(s, x, "features.18.0", "features.18.1").clamp(0, 6).flatten(2).mean(2)


def resnet(s, x, first_stride):
    x = F.max_pool2d(convolve(s, x, "conv1", "bn1", first_stride, 3).relu(), 3, 2, 1)
    for k in range(1, 5):
        for b in range(2):
            at, stride = f"layer{k}.{b}", 2 if k > 1 and b == 0 else 1
            y = convolve(s, x, f"{at}.conv1", f"{at}.bn1", stride, 1).relu()
            y = convolve(s, y, f"{at}.conv2", f"{at}.bn2", 1, 1)
            if f"{at}.downsample.0.weight" in s:
                x = convolve(s, x, f"{at}.downsample.0", f"{at}.downsample.1", stride)
            x = (x + y).relu()
    return x.flatten(2).mean(2)


@torch.no_grad()
def test_networks_compute_what_their_parameters_say():
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    net = shaken(MobileNetV2()).double()
    assert sum(p.numel() for p in net.parameters()) == 3_504_872  # as published
    expected = mobilenet(net.state_dict(), x)
    torch.testing.assert_close(net(x), expected, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(net(x), mobilenet(net.state_dict(), x, residual=False), rtol=1e-3)
    torch.testing.assert_close(_folded(net)(x), expected, rtol=1e-9, atol=1e-11)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in net.modules())
    assert sum(p.numel() for p in ResNet18(1000).parameters()) == 11_689_512
    for stride in (1, 2):
        net = shaken(ResNet18(5, first_stride=stride)).double()
        expected = resnet(net.state_dict(), x, stride)
        torch.testing.assert_close(net(x), expected, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(net.classify(x), net.fc(expected), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(_folded(net)(x), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.data
@pytest.mark.parametrize("name", ["mobilenet_v2", "resnet18_tiny"])
def test_weights_load_strictly_and_are_frozen(name):
    try:
        weights_file(name)
    except DataError as error:
        pytest.skip(str(error))
    source = backbone(name)
    net = source.network()
    assert not any(p.requires_grad for p in net.parameters()) and not net.training
    images = np.random.default_rng(0).integers(0, 256, (2, 128, 128, 3), dtype=np.uint8)
    with torch.no_grad():
        found = net(source.prepare(images))
    assert found.shape == (2, source.features) and torch.isfinite(found).all() and found.std() > 0.05


def test_images_are_prepared_for_the_network():
    source = Backbone("x", "x", 1, 4, (0.5, 0.25, 0.0), (0.5, 1.0, 2.0), nn.Identity)
    images = np.zeros((1, 8, 8, 3), np.uint8)
    images[..., 1], images[..., 2] = 255, 51
    x = source.prepare(images)
    assert x.shape == (1, 3, 4, 4)
    for channel, value in enumerate((-1.0, 0.75, 0.1)):
        torch.testing.assert_close(x[0, channel], torch.full((4, 4), value))
    with pytest.raises(InvalidValueError, match="height, width, 3"):
        source.prepare(images[0])


def test_unknown_and_missing_networks_say_so(monkeypatch):
    with pytest.raises(UnknownNameError, match="resnet18"):
        backbone("resnet19")
    assert set(BACKBONES) == {"mobilenet_v2", "resnet18_tiny", "resnet18"}
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.setitem(sys.modules, "torchvision.models", None)
    with pytest.raises(MissingExtraError, match="torchvision"):
        backbone("resnet18").network()


# ------------------------------------------------------------------ features


class Blocks(PackedFaces):
    """Stands for packed faces: every image one gray, its row's number."""

    def __init__(self):
        object.__setattr__(self, "asked", [])

    def images(self, rows):
        self.asked.extend(rows.tolist())
        return np.broadcast_to(
            (rows % 251).astype(np.uint8)[:, None, None, None], (len(rows), 4, 4, 3)
        ).copy()


class Mean(nn.Module):
    def forward(self, x):
        return x.mean((2, 3))


def test_features_resume_and_are_not_computed_twice(tmp_path):
    source = Backbone("mean", "mean", 3, 4, (0.0, 0.0, 0.0), (1 / 255, 1 / 255, 1 / 255), Mean)
    rows = np.random.default_rng(0).permutation(1200)
    faces = Blocks()

    def stop(done, total):
        assert total == 1200
        if done > _features.CHUNK:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _features.features(source, faces, rows, tmp_path / "f", progress=stop)
    assert faces.asked == rows[: 2 * _features.CHUNK].tolist()
    found = _features.features(source, faces, rows, tmp_path / "f")
    assert faces.asked == rows.tolist()
    torch.testing.assert_close(found, torch.from_numpy(rows % 251).float()[:, None].expand(-1, 3))
    with pytest.raises(InvalidValueError, match="another computation"):
        _features.features(source, faces, rows[::-1].copy(), tmp_path / "f")


# ------------------------------------------------------------------ ages


def faces(labels):
    none = np.zeros(len(labels), np.int64)
    return PackedFaces(none, np.array(labels), np.zeros(0, np.uint8), none, none)


def test_the_split_is_the_texts_four_labels_and_others_apart():
    some = faces([4, 0, 1, 2, 3, 4, 0])
    assert utkface.EXPERIMENT.settings["held_out"] == [4]
    rows, near = _ages.chosen_rows(some, [4], None, 0)
    assert rows[:near].tolist() == [1, 2, 3, 4, 6] and rows[near:].tolist() == [0, 5]
    rows, near = _ages.chosen_rows(some, [1, 2, 3, 4], None, 0)
    assert utkface_one_label.EXPERIMENT.settings["held_out"] == [1, 2, 3, 4]
    assert rows[:near].tolist() == [1, 6] and near == 2
    many = faces([0] * 90 + [4] * 10)
    rows, near = _ages.chosen_rows(many, [4], 20, 0)
    assert (len(rows), near) == (20, 18) and not many.held_out()[rows[:near]].any()


def test_scores_are_the_usual_ones():
    draw = torch.Generator().manual_seed(0)
    truth, guess = torch.rand(3, 50, generator=draw).double(), torch.rand(3, 50, generator=draw).double()
    metrics = pytest.importorskip("sklearn.metrics")
    expected = [metrics.r2_score(t, g) for t, g in zip(truth, guess, strict=True)]
    np.testing.assert_allclose(_ages.r2(guess, truth), expected, rtol=1e-12)
    shares = _ages.share_by_bin(torch.tensor([-1e9, -40.0, 2.0, 4.9, 1e9], dtype=torch.float64))
    assert shares.sum() == 1 and shares[0] == 0.4 and shares[-1] == 0.2 and shares[8] == 0.4
    bias, spread = _ages._by_decade(torch.tensor([[1.0, 3.0, -2.0]]), torch.tensor([[9.0, 0.0, 120.0]]))
    assert bias[0, 0] == 2 and spread[0, 0] ** 2 == pytest.approx(5) and bias[0, -1] == -2
    assert bias[0, 1:-1].isnan().all()


def test_scaling_never_looks_at_a_far_row():
    draw = torch.Generator().manual_seed(0)
    z, age = torch.randn(30, 4, generator=draw), 100 * torch.rand(30, generator=draw).double()
    changed, older = z.clone(), age.clone()
    changed[20:], older[20:] = 7.0, 300.0
    for how in (("standard", "standard"), ("none", "standard"), ("none", "none")):
        one, two = _ages.scaled(z, age, 20, *how), _ages.scaled(changed, older, 20, *how)
        assert torch.equal(one.x[:20], two.x[:20]) and torch.equal(one.y[:20], two.y[:20])
        torch.testing.assert_close(one.years(one.y[:, 0]), age, rtol=1e-6, atol=1e-4)
    assert torch.equal(_ages.scaled(z, age, 20, "none", "none").x, z)


HEADS = {"standard": ("none", 1e-2), "LN first": ("first", 1e-2)}
SHAPE = {"width": 16, "depth": 2, "bias_var": 0.01, "kaiming_first": False}


def problem():
    draw = torch.Generator().manual_seed(0)
    z = torch.randn(300, 5, generator=draw).abs()
    age = 20 + 10 * (z[:, 0] + z[:, 1]).double()
    return _ages.scaled(z, age, 200, "none", "standard")


def test_heads_learn_and_seeds_differ():
    found = _ages.measure(problem(), HEADS, SHAPE, 0.9, 32, 40, [0, 1])
    for name in HEADS:
        kind = _ages.together(name, [found[name], found[name]])
        assert kind.id.shape == (4,) and (kind.id > 0.8).all() and (kind.ood > 0.8).all()
        assert kind.id[0] != kind.id[1] and kind.id[0] == kind.id[2]
        assert torch.allclose(kind.histogram.sum(1), torch.ones(4, dtype=torch.float64))
    models = _ages.restored(found, HEADS, 5, SHAPE, 2)
    assert len(models) == 4 and [len(list(m)) for m in models] == [5, 5, 6, 6]
    far = problem()
    again = _ages.r2(far.years(models[1](far.x[200:])[:, 0].detach()), far.age[200:])
    torch.testing.assert_close(again, found["standard"]["ood"][1], rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------ claims


def kinds(ood, id_):
    out = []
    for name in utkface.PUBLISHED:
        noise = 0.01 * torch.randn(40, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        rest = (
            torch.zeros(40, 2, 10),
            torch.zeros(40, 2, 10),
            torch.zeros(40, 36),
            torch.zeros(40),
            torch.zeros(40),
        )
        out.append(_ages.HeadResults(name, id_[name] + noise, ood[name] + noise, *rest))
    return out


def test_claims_hold_for_the_papers_figures_and_fail_for_others():
    ood, id_ = ({name: pair[k][0] for name, pair in utkface.PUBLISHED.items()} for k in (0, 1))
    assert all(v.holds for v in utkface._accuracy(kinds(ood, id_)))
    alike = dict.fromkeys(ood, 0.4)
    assert [v.holds for v in utkface._accuracy(kinds(alike, id_))][:3] == [False] * 3
    worse = {**id_, "LN second": 0.6}
    assert [v.holds for v in utkface._accuracy(kinds(ood, worse))][3:6] == [True, False, True]
    swapped = {**ood, "LN first": 0.36, "LN second": 0.47}
    assert [v.holds for v in utkface._accuracy(kinds(swapped, id_))][-2:] == [False, False]
    key = ("mobilenet_v2", "standard", "standard")
    assert utkface._apart(key, kinds(ood, id_)).holds and not utkface._apart(key, kinds(alike, id_)).holds


def far(name, where, **changes):
    torch.manual_seed(0)
    models = [_ages.head(where, 5, seed=s, **SHAPE) for s in range(2)]
    found = _heads_far.far_field(
        name, models, problem().x.double(), time_budget=0.3, directions=16, farthest=1e8, center=38.0, spread=22.0,
        seed=0,
    )  # fmt: skip
    return dataclasses.replace(found, **changes)


def test_heads_far_away_and_claims_about_them(monkeypatch):
    plain, normed = far("standard", "none"), far("LN first", "first")
    assert plain.unbounded and not plain.certified and abs(plain.exponent - 1) < 1e-3
    assert normed.certified and not normed.unbounded and normed.inside
    assert utkface._bounded(plain).holds and utkface._bounded(normed).holds
    # A head of the other kind under the name fails the claim.
    assert not utkface._bounded(dataclasses.replace(plain, name="LN first")).holds
    assert not utkface._bounded(dataclasses.replace(normed, name="standard")).holds
    original = _heads_far.certify

    def narrowed(*args, **options):
        found = original(*args, **options)
        middle = (found.attained_lower + found.attained_upper) / 2
        same = {"attained_lower": middle, "attained_upper": middle}
        return dataclasses.replace(found, lower=middle, upper=middle, witnesses=((), ()), proofs=(), **same)

    monkeypatch.setattr(_heads_far, "certify", narrowed)
    assert not far("LN first", "first").inside
