"""A repaired model is bounded, is the old one where the data are, and says what was done."""

import copy
import dataclasses
import math
import pickle

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import farfield as ff
from farfield.calibration import FeatureStatistics, UpperQuantile
from farfield.errors import InvalidValueError
from farfield.monitor import FarFieldMonitor, IsometryMonitor
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
    assert isinstance(fixed.model, type(model)) and type(fixed.undo()) is type(model)  # decision 0044
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
        ff.repair(model, torch.full((200, 5), math.nan))


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
    assert not fixed.training  # as it serves, whatever mode the model was given in
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
    with pytest.raises(InvalidValueError, match="returns the next state"):
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
    assert "favor the weakest" in str(table) and "as it is" in str(table)


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


class Named(nn.Module):
    """An argument with a name, as most people write it."""

    def __init__(self):
        super().__init__()
        self.net = plain()

    def forward(self, x, scale=1.0):
        return self.net(x) * scale


def test_an_argument_is_protected_by_position_and_by_name():
    rows = torch.randn(300, 5)
    for data in (rows, {"x": rows}):
        fixed = ff.repair(Named(), data, method="features")
        with torch.no_grad():
            by_position, by_name = fixed.model(1e9 * rows), fixed.model(x=1e9 * rows)
        assert by_position.equal(by_name) and float(by_name.abs().max()) < 1e3


def test_a_batch_without_rows_is_passed_over():
    rows = torch.randn(300, 5)
    fixed = ff.repair(plain(), [rows[:0], rows[:100], rows[:0], rows[100:]])
    assert fixed.change.rows == 300 and fixed.change.unchanged >= 0.99 and fixed.curves


@dataclasses.dataclass(frozen=True)
class Record:
    """What torch takes for a leaf."""

    value: torch.Tensor
    parts: tuple[torch.Tensor, ...]
    name: str = "record"


class Recording(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = plain()

    def forward(self, x):
        y = self.net(x)
        return Record(y, (y * 2, y[:, 0]))


@torch.no_grad()
def test_outputs_in_a_record_are_protected_and_compared():
    model, rows = Recording().eval(), torch.randn(500, 5)
    fixed = ff.repair(model, rows)
    assert [i.at for i in fixed.inserted if i.place == "output"] == ["0", "1", "2"]
    before, after = model(rows), fixed.model(rows)
    assert isinstance(after, Record) and after.name == "record"
    same = (before.value == after.value).all(-1)
    assert fixed.change.unchanged == pytest.approx(float(same.float().mean())) and not bool(same.all())
    guarded = ff.guard(model, rows, on_outside="fallback")
    answer, score = guarded(torch.full((2, 5), math.nan))
    assert answer.value.isfinite().all() and answer.parts[1].isfinite().all() and score.isinf().all()
    guarded.model.net[-1].bias.data.add_(1e6)  # a fault: the answer is not one that was seen
    assert (guarded(rows)[1] > 1).all() and (guarded(rows)[0].value < 1e3).all()


class Counting(nn.Module):
    """State that every call moves."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(5, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 1)
        )
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.calls += 1
        return self.net(x)


@pytest.mark.parametrize("method", ["auto", "norm"])
def test_state_is_as_given_and_the_model_serves(method):
    model, rows = Counting().train(), torch.randn(200, 5)
    model.net[1].eval()  # frozen, as in fine-tuning
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fixed = ff.repair(model, rows, method=method, keep=0.5)
    for made in (fixed.model, fixed.undo(), *([ff.guard(model, rows).model] if method == "auto" else [])):
        state = made.state_dict()
        assert method == "norm" or all(state[name].equal(tensor) for name, tensor in before.items())
    assert not any(module.training for module in fixed.model.modules())
    assert model.training and not model.net[1].training


def test_candidates_are_judged_as_they_serve_and_leave_the_model_alone():
    model, rows = Counting().train(), torch.randn(200, 5)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    options = {"methods": ["range"], "outside": (3 * rows, torch.zeros(200, 1))}
    first, second = (compare_repairs(model, rows, **options) for _ in range(2))
    assert all(tensor.equal(before[name]) for name, tensor in model.state_dict().items()) and model.training
    assert first.outside_before == second.outside_before and first.rows[0].outside == second.rows[0].outside


class InPlace(nn.Module):
    """Writes into what it is given."""

    def __init__(self):
        super().__init__()
        self.net = plain()

    def forward(self, x):
        x -= 0.5
        return self.net(x.relu_())


def test_a_model_that_writes_into_its_argument():
    model, rows = InPlace().eval(), torch.randn(300, 5)
    given = rows.clone()
    fixed = ff.repair(model, given)
    guarded = ff.guard(model, given)
    IsometryMonitor(model, given[:8], layers="net.0").step(0)
    FarFieldMonitor(model, given[:8]).step(0)
    assert given.equal(rows) and fixed.change.unchanged >= 0.99
    with torch.no_grad():
        same = (model(rows.clone()) == fixed.model(rows.clone())).all(-1)
        assert (
            float(same.float().mean()) >= 0.99
            and float((guarded(rows.clone())[1] <= 1).float().mean()) >= 0.98
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("count", [100, 200])
def test_small_types_and_constant_outputs(dtype, count):
    model, rows = plain(out=3).to(dtype), torch.randn(count, 5).to(dtype)
    model[-1].weight.data[:2] = 0
    model[-1].bias.data[:2] = torch.tensor([0.0, 1.0])
    fixed = ff.repair(model, rows)
    assert fixed.after.verdict.name == "BOUNDED" and fixed.change.unchanged >= 0.99
    assert all(math.isfinite(row.before) for row in fixed.far if row.feature is not None)


def test_features_near_the_largest_number_of_their_type():
    clamp = FeatureClamp(torch.tensor(-4e4).half(), torch.tensor(4e4).half())
    given = torch.tensor([0.0, 1.0, -3e4, 6e4, math.inf]).half()
    assert clamp(given).tolist() == [0.0, 1.0, -30000.0, 40000.0, 0.0]
    assert FeatureClamp(-3e38, 3e38)(torch.tensor([1.0])).tolist() == [1.0]
    rows = (9000 * torch.randn(400, 5)).clamp(-6e4, 6e4).half()
    model = plain().half()
    model[0].weight.data *= 1e-3
    fixed = ff.repair(model, rows)
    assert (
        fixed.change.unchanged >= 0.99 and fixed.model(torch.full((1, 5), math.inf).half()).isfinite().all()
    )


class Keeping(nn.Module):
    """Keeps a tensor of its last call, which is no leaf."""

    def __init__(self):
        super().__init__()
        self.net = plain()

    def forward(self, x):
        self.last = self.net(x)
        return self.last


@pytest.mark.parametrize(
    "make", [Keeping, lambda: nn.DataParallel(plain()), lambda: torch.compile(plain(), backend="eager")]
)
def test_wrapped_models_and_tensors_of_an_earlier_call(make):
    model, rows = make(), torch.randn(200, 5)
    model(rows)
    fixed, guarded = ff.repair(model, rows), ff.guard(model, rows)
    with torch.no_grad():
        assert float(fixed.model(1e9 * rows).abs().max()) < 100 and fixed.after.verdict.name == "BOUNDED"
        assert guarded(rows)[0].equal(fixed.undo()(rows))


class Pair(nn.Module):
    """A submodule that returns two tensors; the second is the one that goes on."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(5, 16)

    def forward(self, x):
        h = self.a(x)
        return torch.tanh(h), torch.relu(h)


class Paired(nn.Module):
    def __init__(self):
        super().__init__()
        self.pair, self.out, self.unused = Pair(), nn.Linear(16, 1), nn.Linear(3, 3)

    def forward(self, x):
        return self.out(self.pair(x)[1])


def test_submodules_that_return_several_tensors():
    rows = torch.randn(300, 5)
    fixed = ff.repair(Paired(), rows, method="cap")
    assert [i.at for i in fixed.inserted] == ["pair.a"] and fixed.after.verdict.name == "BOUNDED"
    assert [i.at for i in ff.repair(Paired(), rows, at="pair").inserted] == ["0", "pair", "0"]
    with pytest.raises(InvalidValueError, match="does not call 'unused'"):
        ff.repair(Paired(), rows, at="unused")


@pytest.mark.parametrize("make", [ff.repair, ff.guard])
def test_data_as_people_have_it(make):
    pandas, rows = pytest.importorskip("pandas"), torch.randn(200, 5)
    table = pandas.DataFrame(rows.double().numpy(), columns=list("abcde"))
    for data in (table, table.to_numpy(), table.to_numpy()[:, ::-1], (table,), {"input": table.to_numpy()}):
        make(plain(), data)
    make(plain(), dict(table.items()))  # columns by name
    make(plain(), [{"input": rows, "y": rows[:, 0]}])  # a batch with labels
    labels = torch.zeros(200, dtype=torch.long)
    for data, told in (
        ((rows, labels), "leave labels out"),
        (TensorDataset(rows, labels), "DataLoader"),
        (rows.double(), "torch.float64, the model's parameters torch.float32"),
        (labels[:, None].expand(200, 5), "torch.int64"),
        (rows.tolist(), "not list"),
        (table.astype(str), "Rows are numbers"),
        ([([rows, rows], labels)], "one argument"),
        (table.assign(city="Rome"), "column 'city'"),
        ({"x": rows, "y": labels}, "takes input"),
    ):
        with pytest.raises(InvalidValueError, match=told):
            make(plain(), data)


@pytest.mark.parametrize("method", ["auto", "soft"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_lines_to_write_give_the_same_protections(method, dtype):
    fixed = ff.repair(plain().to(dtype), torch.randn(200, 5).to(dtype), method=method)
    written = {}
    exec(fixed.patch(), written)
    for insertion in fixed.inserted:
        ours, theirs = insertion.module.state_dict(), written[insertion.key].state_dict()
        assert ours.keys() == theirs.keys() and all(ours[k].equal(theirs[k]) for k in ours)
        assert repr(insertion.module) == repr(written[insertion.key])


class Tokens(nn.Module):
    def __init__(self, masked):
        super().__init__()
        self.masked, self.hidden, self.out = masked, nn.Linear(5, 16), nn.Linear(16, 1)

    def forward(self, x):
        scores = self.out(self.hidden(x).relu()).squeeze(-1)
        return scores.masked_fill(x[..., 0] > 0, -math.inf) if self.masked else scores


@pytest.mark.parametrize("make", [ff.repair, ff.guard])
def test_outputs_without_a_range_are_named(make):
    with pytest.raises(InvalidValueError, match="The model's outputs on the calibration rows hold NaN"):
        make(Tokens(masked=True), torch.randn(200, 6, 5))
    with pytest.raises(InvalidValueError, match=r"Outputs have limits .* \(6,\) and \(9,\)"):
        make(Tokens(masked=False), [torch.randn(20, 6, 5), torch.randn(20, 9, 5)])


def test_an_output_that_overflowed_has_no_size():
    """The largest float is a number that the model never gave."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)).eval()
    with torch.no_grad():
        model[2].weight.mul_(1e37)
    fixed = ff.repair(model, torch.randn(300, 3))
    assert math.inf in [row.before for row in fixed.far]
    assert "1.8e+308" not in str(fixed) and "was inf" in str(fixed)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_few_rows_are_refused(count):
    with pytest.raises(InvalidValueError, match=r"row.*fewer than 8"):
        ff.repair(plain(), torch.randn(count, 5))


def test_rows_below_the_quantile_are_warned_of():
    with pytest.warns(UserWarning, match=r"50 rows.*needs 100"):
        assert ff.repair(plain(), torch.randn(50, 5)).after.verdict.name == "BOUNDED"
    ff.repair(plain(), torch.randn(50, 5), keep=0.9)


def test_columns_are_named_in_what_is_said():
    pandas = pytest.importorskip("pandas")
    names = ["temperature", "pressure", "flow", "humidity", "wind"]
    frame = pandas.DataFrame(torch.randn(200, 5).numpy(), columns=names)
    fixed = ff.repair(plain(), frame)
    assert fixed.columns == {"0": tuple(names)}
    assert "FeatureClamp on input (temperature, pressure, flow, humidity and 1 more)" in str(fixed)
    assert {row.feature for row in fixed.far} == {None, *names}
    assert {curve.label for curve in fixed.curves if curve.kind == "feature"} == set(names)
    assert "wind" in fixed.to_html() and "# on argument input (temperature" in fixed.patch()
    assert "input[:, 1]" in {row.feature for row in ff.repair(plain(), torch.randn(200, 5)).far}


class Actor(nn.Module):
    """Draws its action, as stable-baselines3's SAC does."""

    def __init__(self):
        super().__init__()
        self.net = plain()

    def forward(self, obs, deterministic=False):
        mean = self.net(obs)
        return torch.tanh(mean if deterministic else mean + torch.randn_like(mean))


def test_an_actor_is_told_of_its_inputs_and_its_draws():
    rows = torch.randn(200, 5)
    with pytest.raises(InvalidValueError, match=r"draws random numbers.*'obs': rows, 'deterministic': True"):
        ff.repair(Actor(), rows)
    mean = {"obs": rows, "deterministic": True}
    assert "even_if_bounded=True" in str(ff.repair(Actor(), mean))
    fixed = ff.repair(Actor(), mean, even_if_bounded=True)
    assert any(isinstance(i.module, FeatureClamp) for i in fixed.inserted)


class Controlled(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x, u):
        return 0.9 * x + self.net(torch.cat([x, u], -1))


def test_a_step_names_the_state_that_is_fed_back():
    torch.manual_seed(0)
    data = {"x": torch.randn(300, 3), "u": torch.randn(300, 2)}
    with pytest.raises(InvalidValueError, match=r"x, u: name it with state="):
        ff.repair(Controlled(), data, rollout=True)
    fixed = ff.repair(Controlled(), data, state="x")
    assert {(i.place, i.at) for i in fixed.inserted} == {("input", "x"), ("input", "u"), ("output", "0")}
    positional = ff.repair(Controlled(), tuple(data.values()), state="x")
    assert positional.after.verdict.name == "BOUNDED"


def test_a_difference_is_no_step():
    class Difference(nn.Module):
        def forward(self, x):
            return 0.01 * torch.relu(x)

    with pytest.warns(UserWarning, match=r"x \+ model\(x\)"):
        ff.repair(Difference(), 3 + torch.randn(300, 3), rollout=True)


def test_what_overflowed_is_said_to_be_infinite():
    class Cubed(nn.Module):
        def forward(self, x):
            return (1e15 * x.sum(-1, keepdim=True)) ** 15

    assert "was infinite and is now" in str(ff.repair(Cubed(), torch.rand(200, 3, dtype=torch.float64)))
