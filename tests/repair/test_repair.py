"""A repaired model is bounded, is the old one where the data are, and says what was done."""

import copy
import math
import pickle

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import farfield as ff
from farfield.calibration import FeatureStatistics, UpperQuantile
from farfield.errors import InvalidValueError
from farfield.nn import FeatureClamp, NormCap, RangeHead
from farfield.repair import RepairError, compare_repairs


def plain(n=5, out=1, width=32):
    return nn.Sequential(
        nn.Linear(n, width), nn.ReLU(inplace=True), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, out)
    ).eval()


class Functional(nn.Module):
    """Functional code, keyword arguments, several outputs in a dictionary."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, 4))
        self.v = nn.Linear(8, 2)

    def forward(self, x, *, shift):
        h = torch.relu(x @ self.w.t() + shift)
        return {"y": self.v(h), "size": h.sum(-1)}


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(3, 8, batch_first=True)
        self.head = nn.Linear(11, 1)

    def forward(self, series):
        out, _ = self.rnn(series)
        return self.head(torch.cat([out[:, -1], series[:, -1]], -1))


def unchanged(before, after, *args, **kwargs):
    with torch.no_grad():
        was, now = before(*args, **kwargs), after(*args, **kwargs)
    pairs = [(was[k], now[k]) for k in was] if isinstance(was, dict) else [(was, now)]
    same = torch.stack([(a == b).reshape(len(a), -1).all(-1) for a, b in pairs]).all(0)
    return float(same.double().mean())


@pytest.mark.parametrize("method", ["auto", "features", "cap", "range", "soft"])
@pytest.mark.parametrize("keep", [0.9, 0.99, 1.0])
def test_bounded_and_the_same_where_the_data_are(method, keep):
    model, rows = plain(), torch.randn(1500, 5)
    state = copy.deepcopy(model.state_dict())
    fixed = ff.repair(model, rows, method=method, keep=keep)
    assert fixed.after.verdict.name == "BOUNDED"
    assert unchanged(model, fixed.model, rows) >= keep
    assert fixed.change.unchanged == unchanged(model, fixed.model, rows)
    assert type(fixed.model) is type(model)
    for key, value in state.items():
        assert torch.equal(model.state_dict()[key], value)
        assert torch.equal(fixed.model.state_dict()[key], value)
    extra = set(fixed.model.state_dict()) - set(state)
    assert extra
    assert all(key.startswith("farfield_repair.") for key in extra)
    with torch.no_grad():
        far, near = fixed.model(rows * 1e8), model(rows)
    assert bool(torch.isfinite(far).all())
    assert float(far.abs().max()) <= 100 * float(near.abs().max())


def test_the_three_protections_stand_where_they_should():
    fixed = ff.repair(plain(), torch.randn(800, 5))
    assert [(i.place, i.at, type(i.module)) for i in fixed.inserted] == [
        ("input", "0", FeatureClamp), ("hidden", "1", NormCap), ("output", "0", RangeHead),
    ]  # fmt: skip
    assert "UNBOUNDED → BOUNDED" in str(fixed)
    assert "unchanged" in str(fixed)
    assert "RangeHead(" in fixed.patch()


def test_a_rare_one_hot_column_is_not_clipped():
    rows = torch.randn(2000, 5)
    rows[:, 2] = 0.0
    rows[7, 2] = 1.0
    model = plain()
    fixed = ff.repair(model, rows, method="features")
    assert unchanged(model, fixed.model, rows) == 1.0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30])
def test_a_broken_feature_counts_as_missing(value):
    model, rows = plain(), torch.randn(1000, 5)
    fixed = ff.repair(model, rows)
    broken = rows[:50].clone()
    broken[:, 3] = value
    mean = rows[:50].clone()
    mean[:, 3] = rows[:, 3].mean()
    with torch.no_grad():
        torch.testing.assert_close(fixed.model(broken), fixed.model(mean), rtol=1e-3, atol=1e-4)


def test_functional_code_with_names_and_several_outputs():
    torch.manual_seed(1)
    model = Functional().eval()
    data = {"x": torch.randn(600, 4), "shift": torch.randn(600, 1)}
    fixed = ff.repair(model, data)
    assert fixed.after.verdict.name == "BOUNDED"
    assert unchanged(model, fixed.model, **data) >= 0.99
    assert {i.place for i in fixed.inserted} == {"input", "output"} | (
        {"hidden"} & {i.place for i in fixed.inserted}
    )


def test_a_recurrent_model_on_sequences():
    torch.manual_seed(1)
    model, rows = Recurrent().eval(), torch.randn(300, 6, 3)
    fixed = ff.repair(model, rows)
    assert fixed.after.verdict.name == "BOUNDED"
    assert unchanged(model, fixed.model, rows) >= 0.99


def test_loaders_lists_and_iterators():
    rows, labels = torch.randn(700, 5), torch.randn(700, 1)
    model = plain()
    whole = ff.repair(model, rows)
    loaded = ff.repair(model, DataLoader(TensorDataset(rows, labels), batch_size=64))
    listed = ff.repair(model, [rows[:300], rows[300:]])
    for other in (loaded, listed):
        for ours, theirs in zip(whole.inserted, other.inserted, strict=True):
            for a, b in zip(ours.module.buffers(), theirs.module.buffers(), strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    with pytest.raises(InvalidValueError, match="more than once"):
        ff.repair(model, iter([rows]))
    with pytest.raises(InvalidValueError, match="NaN or infinity"):
        ff.repair(model, torch.full((20, 5), math.nan))


def test_a_bounded_model_is_left_alone():
    model = nn.Sequential(nn.Linear(4, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 1)).eval()
    rows = torch.randn(100, 4)
    fixed = ff.repair(model, rows)
    assert fixed.inserted == ()
    assert "bounded already" in str(fixed)
    assert len(ff.repair(model, rows, even_if_bounded=True).inserted) >= 2


def test_repairing_twice_and_undoing():
    model, rows = plain(), torch.randn(500, 5)
    once = ff.repair(model, rows)
    twice = ff.repair(once.model, rows, keep=0.95)
    assert once.undo().state_dict().keys() == model.state_dict().keys()
    assert torch.equal(twice.undo()(rows), model(rows))


def test_it_survives_pickle_training_and_an_optimizer():
    model, rows = plain(), torch.randn(500, 5)
    fixed = ff.repair(model.train(), rows).model
    assert fixed.training
    again = pickle.loads(pickle.dumps(fixed.eval()))
    assert torch.equal(again(rows * 50), fixed(rows * 50))
    before = [b.clone() for n, b in fixed.named_buffers() if n.startswith("farfield_repair")]
    optimizer = torch.optim.SGD(fixed.parameters(), 0.1)
    fixed(rows).square().mean().backward()
    optimizer.step()
    after = [b for n, b in fixed.named_buffers() if n.startswith("farfield_repair")]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_saved_as_a_program_it_is_still_bounded(tmp_path):
    fixed = ff.repair(plain(), torch.randn(500, 5))
    for name in ("m.pt2", "m.pt", "m.safetensors"):
        fixed.save(tmp_path / name)
    assert ff.audit(str(tmp_path / "m.pt2")).verdict.name == "BOUNDED"
    with pytest.raises(InvalidValueError, match=r"\.pt2"):
        fixed.save(tmp_path / "m.bin")


def test_what_can_not_be_done_is_refused():
    with pytest.raises(InvalidValueError, match="no 'nowhere'"):
        ff.repair(plain(), torch.randn(100, 5), at="nowhere")
    with pytest.raises(InvalidValueError, match="keep"):
        ff.repair(plain(), torch.randn(100, 5), keep=0.0)
    with pytest.raises(InvalidValueError, match="next input"):
        ff.repair(plain(), torch.randn(100, 5), rollout=True)

    class Exploding(nn.Module):
        def forward(self, x):
            return x.cumsum(-1) + torch.tan(x).sum()

    with pytest.raises((RepairError, InvalidValueError)):
        ff.repair(Exploding(), torch.randn(50, 4), method="cap")


def test_a_step_stays_near_its_states():
    """An unstable linear map: the state grows tenfold in a few steps unless it is kept."""
    torch.manual_seed(0)
    turn = torch.linalg.qr(torch.randn(6, 6)).Q * 1.05

    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("turn", turn)

        def forward(self, state):
            return state @ self.turn

    states = torch.randn(2000, 6)
    fixed = ff.repair(Step(), states, rollout=True, keep=0.98)
    state = states[:100]
    for _ in range(300):
        state = fixed.model(state)
    assert float(state.abs().max()) <= 1.2 * float((states @ turn).abs().max())
    assert unchanged(Step(), fixed.model, states) >= 0.98


def test_a_norm_is_distilled_without_labels():
    torch.manual_seed(0)
    model, rows = plain(), torch.randn(1500, 5)
    seen = []
    fixed = ff.repair(model, rows, method="norm", progress=lambda done, total: seen.append((done, total)))
    with torch.no_grad():
        held = torch.randn(400, 5)
        was, now = model(held), fixed.model(held)
    assert 1 - float((was - now).square().sum() / (was - was.mean()).square().sum()) > 0.9
    assert any(isinstance(m, nn.LayerNorm) for m in fixed.model.modules())
    assert seen[0][0] == 1


def test_streamed_statistics_are_those_of_the_whole():
    x = torch.randn(1000, 4, dtype=torch.float64) * torch.tensor([1.0, 10.0, 1e-3, 1e6]) + 5
    streamed = FeatureStatistics()
    for part in x.split([1, 99, 400, 500]):
        streamed.add(part)
    torch.testing.assert_close(streamed.mean, x.mean(0), rtol=1e-12, atol=0)
    torch.testing.assert_close(streamed.deviation, x.std(0, correction=0), rtol=1e-10, atol=0)
    assert torch.equal(streamed.low, x.amin(0))
    assert torch.equal(streamed.high, x.amax(0))


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99, 1.0])
def test_a_quantile_is_never_too_small_and_hardly_too_large(share):
    values = torch.rand(5000, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).exp() ** 5
    sketch = UpperQuantile()
    for part in values.split(700):
        sketch.add(part)
    found = sketch.at_least(share)
    assert float((values <= found).double().mean()) >= share
    true = float(values.sort().values[math.ceil(share * len(values)) - 1])
    assert true <= found <= true * (1 + 3e-4)
    assert len(sketch.counts) < 5000


def test_the_page_shows_both_models_and_loads_nothing():
    fixed = ff.repair(plain(), torch.randn(400, 5))
    page = fixed.to_html(name="<net>")
    assert (
        "UNBOUNDED → BOUNDED" in page
        and "&lt;net&gt;" in page
        and "<script" not in page
        and "http" not in page.replace("http-equiv", "")
    )
    assert page.count('class="was"') == page.count('class="is"') == len(fixed.curves) == 3 + 5
    assert sum(fixed.sizes[0].counts) == 400
    ray = fixed.curves[0]
    near = [i for i, x in enumerate(ray.x) if x <= 1.0]
    assert [ray.before[i] for i in near] == [ray.after[i] for i in near]
    assert max(map(abs, ray.after)) < 1e-3 * max(map(abs, ray.before))


def test_the_quantile_counts_zeros_as_zero():
    seen = UpperQuantile()
    seen.add(torch.cat([torch.zeros(99), torch.tensor([5.0])]))
    assert seen.at_least(0.99) == 0.0 and seen.at_least(1.0) == 5.0
    assert seen.centers()[0.0] == 99


def test_candidates_are_judged_on_rows_marked_as_outside():
    """The truth saturates outside, the network goes on: a repair that holds it there wins."""
    torch.manual_seed(0)
    model, rows = plain(), torch.randn(600, 5)
    far = 8 * torch.randn(200, 5)
    with torch.no_grad():
        truth = model(rows).mean().expand(200, 1)
    table = compare_repairs(
        model, rows, outside=(far, truth), methods=["auto", "range", "features"], keeps=[0.99]
    )
    assert [row.method for row in table.rows] == ["auto", "range", "features"]
    assert not any(row.refused for row in table.rows)
    best = table.best()
    assert best.outside == min(row.outside for row in table.rows) < table.outside_before
    with torch.no_grad():
        again = (best.repair.model(far).double() - truth.double()).square().mean().sqrt()
    assert best.outside == pytest.approx(float(again), rel=1e-9)
    assert "favour the weakest" in str(table) and "as it is" in str(table)


def test_candidates_in_the_tail_and_proved():
    """With targets: the error on the outermost tenth of the rows, by hand; with a budget: what is proved of each."""
    torch.manual_seed(0)
    model, rows = plain(), torch.randn(500, 5) * torch.tensor([1.0, 10.0, 0.1, 1.0, 5.0])
    targets = torch.randn(500, 1)
    table = compare_repairs(
        model,
        rows,
        targets=targets,
        methods=["auto", "features"],
        keeps=[0.99],
        time_budget=ff.Budget(steps=5),
    )
    size = ((rows - rows.mean(0)) / rows.std(0, correction=0)).double().norm(dim=1)
    outermost = size.argsort(descending=True)
    for found, changed in (
        (table.rows[0].tail, table.rows[0].repair.model),
        (table.tail_before, model),
    ):
        with torch.no_grad():
            off = (changed(rows) - targets).double().square()[outermost, 0]
        # The limit is known to a bin: a row more or less.
        near = [float(off[:count].mean().sqrt()) for count in (49, 50, 51)]
        assert min(abs(found - value) for value in near) < 1e-6 * found
    proved = table.rows[0].repair.certificate(ff.Budget(steps=5))
    assert table.rows[0].proved == pytest.approx(float((proved.upper - proved.lower).max()), rel=1e-6)
    assert (
        "most likely trained" in str(table)
        and "proved" in str(table)
        and "outside" not in str(table).split("\n")[2]
    )
    with pytest.raises(InvalidValueError, match="500 rows and 3 targets"):
        compare_repairs(model, rows, targets=targets[:3], methods=["range"])


def test_candidates_without_targets_say_what_they_do_not_know():
    table = compare_repairs(plain(), torch.randn(300, 5), methods=["cap", "norm"], keeps=[0.99], places=["3"])
    assert "not which is best" in str(table)
    assert table.best().at == "3"
    with pytest.raises(InvalidValueError, match="5 rows and 4 targets"):
        compare_repairs(
            plain(), torch.randn(300, 5), methods=["range"], outside=(torch.randn(5, 5), torch.zeros(4, 1))
        )
