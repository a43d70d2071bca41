"""A guard: nothing inside changes, everything outside is told, nothing that comes in makes nonsense come out."""

import copy
import itertools
import math

import pytest
import torch
from torch import nn

import farfield as ff
from farfield.errors import FarfieldError, InvalidValueError
from farfield.monitor import GuardSummary, guard

INF, NAN = math.inf, math.nan


def network(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 2)).to(dtype).eval()


def rows(count=2000, dtype=torch.float32):
    draws = torch.randn(count, 5, generator=torch.Generator().manual_seed(1))
    return (draws * torch.tensor([1.0, 10.0, 0.1, 1.0, 5.0]) + 3).to(dtype)


@torch.no_grad()
@pytest.mark.parametrize("answer", ["flag", "cap", "fallback"])
@pytest.mark.parametrize("keep", [0.9, 0.99, 1.0])
def test_inside_nothing_changes(answer, keep):
    model, x = network(), rows()
    output, score = guard(model, x, keep=keep, on_outside=answer)(x)
    inside = score <= 1
    assert torch.equal(output[inside], model(x)[inside])
    assert keep <= float(inside.double().mean()) <= keep + 2e-3


HOSTILE = [
    0.0,
    -0.0,
    1e-45,
    1e-38,
    1.0,
    -3.0,
    100.0,
    1e10,
    -1e30,
    3e38,
    -3.4e38,
    INF,
    -INF,
    NAN,
    2**31,
    -(2**63),
]


@torch.no_grad()
@pytest.mark.parametrize("answer", ["cap", "fallback"])
def test_whatever_comes_in_numbers_come_out(answer):
    model, x = network(), rows()
    guarded = guard(model, x, on_outside=answer)
    draws = torch.Generator().manual_seed(2)
    picked = torch.tensor(HOSTILE)[torch.randint(len(HOSTILE), (20_000, 5), generator=draws)]
    usual = x[torch.randint(len(x), (20_000,), generator=draws)]
    mixed = torch.where(torch.rand(20_000, 5, generator=draws) < 0.4, picked, usual)
    for wild in (picked, mixed):
        output, score = guarded(wild)
        assert bool(torch.isfinite(output).all()) and not bool(torch.isnan(score).any())
        broken = ~torch.isfinite(wild).all(1)
        assert bool(torch.isinf(score[broken]).all())
        inside = score <= 1
        assert torch.equal(output[inside], model(wild)[inside])


@pytest.mark.nightly
@torch.no_grad()
def test_a_million_hostile_rows():
    model, x = network(), rows()
    guarded = guard(model, x, on_outside="fallback")
    draws = torch.Generator().manual_seed(3)
    for _ in range(20):
        picked = torch.tensor(HOSTILE)[torch.randint(len(HOSTILE), (50_000, 5), generator=draws)]
        usual = x[torch.randint(len(x), (50_000,), generator=draws)]
        wild = torch.where(torch.rand(50_000, 5, generator=draws) < 0.3, picked, usual)
        output, score = guarded(wild)
        assert bool(torch.isfinite(output).all()) and not bool(torch.isnan(score).any())
        assert torch.equal(output[score <= 1], model(wild)[score <= 1])


@torch.no_grad()
@pytest.mark.parametrize(
    "given", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool]
)
def test_another_type_is_taken(given):
    guarded = guard(network(), rows(), on_outside="fallback")
    x = (100 * torch.randn(50, 5, generator=torch.Generator().manual_seed(4))).to(given)
    output, _ = guarded(x)
    assert output.dtype == torch.float32 and bool(torch.isfinite(output).all())
    assert bool(torch.isinf(guarded(torch.full((1, 5), 1e300, dtype=torch.float64))[1]).all())


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_models_of_other_types(dtype):
    model, x = network(dtype), rows(dtype=dtype)
    guarded = guard(model, x, on_outside="cap")
    output, score = guarded(x)
    inside = score <= 1
    assert float(inside.double().mean()) >= 0.985
    assert torch.equal(output[inside], model(x)[inside])
    far, score = guarded((x.double() * 1e4).to(dtype))
    assert bool(torch.isfinite(far).all()) and bool((score > 1).all())


@torch.no_grad()
def test_farther_is_more():
    guarded = guard(network(), rows())
    scores = [guarded(rows(20) * scale)[1] for scale in (10.0, 100.0, 1e4, 1e8, 1e20)]
    for near, far in itertools.pairwise(scores):
        assert bool((far > near).all())


@torch.no_grad()
def test_what_is_outside_is_named():
    guarded = guard(network(), rows())
    x = rows(6)
    x[0, 2], x[1, 4], x[2, 0] = 50.0, NAN, -INF
    x[3] = x[3].mean() * 0 + guarded.limits["input_0"].features.high * 0.99  # all at once, none by itself
    found = guarded.explain(x)
    assert [e.what for e in found[:4]] == ["input[:, 2]", "input[:, 4]", "input[:, 0]", "size of input"]
    assert found[1].score == found[2].score == INF and found[3].score > 1
    assert "outside (score" in str(found[0]) and "input[:, 2] is 50" in str(found[0])
    assert "inside" in str(guarded.explain(rows(6)[4:5])[0])
    torch.testing.assert_close(torch.tensor([e.score for e in found[:4]]), guarded(x)[1][:4])


class Several(nn.Module):
    """An image and a table in; a dictionary, with a number for the whole batch in it, out."""

    def __init__(self):
        super().__init__()
        self.image, self.table = nn.Conv2d(3, 4, 3), nn.Linear(5, 4)

    def forward(self, image, table):
        h = self.image(image).mean((2, 3)) + self.table(table)
        return {"value": h, "total": h.sum()}


@torch.no_grad()
def test_several_inputs_and_outputs():
    torch.manual_seed(0)
    model = Several().eval()
    image, table = torch.randn(200, 3, 8, 8), torch.randn(200, 5)
    guarded = guard(model, (image, table), on_outside="fallback")
    output, score = guarded(image, table)
    assert float((score <= 1).double().mean()) >= 0.99
    assert torch.equal(output["value"][score <= 1], model(image, table)["value"][score <= 1])
    image[0, 1, 2, 3] = NAN
    table[1] *= 1e6
    output, score = guarded(image, table)
    assert score[0] == INF and score[1] > 100 and bool(torch.isfinite(output["value"]).all())
    named = guarded.explain(image, table)
    assert named[0].what == "image[:, 1, 2, 3]" and named[1].what.startswith("table[:, ")
    by_name = guard(model, {"image": image[2:], "table": table[2:]})
    assert bool((by_name(table=table[2:9], image=image[2:9])[1] > 0).all())


@torch.no_grad()
def test_tokens():
    encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).eval()
    x = torch.randn(300, 6, 8, generator=torch.Generator().manual_seed(5))
    guarded = guard(encoder, x)
    output, score = guarded(x)
    assert output.shape == x.shape and score.shape == (300,) and float((score <= 1).double().mean()) >= 0.98
    x[0, 3, 2] = 1e5
    assert guarded.explain(x[:1])[0].what == "src[:, 3, 2]"


@torch.no_grad()
def test_it_is_exported_and_compiled():
    guarded, x = guard(network(), rows(), on_outside="fallback"), 7 * rows(20)
    x[3, 1] = NAN
    wanted = guarded(x)
    batch = torch.export.Dim("batch", min=2, max=64)
    exported = torch.export.export(guarded, (rows(8),), dynamic_shapes=({0: batch},)).module()
    compiled = torch.compile(guarded, backend="eager", fullgraph=True)
    for twin in (exported, compiled, copy.deepcopy(guarded)):
        for got, want in zip(twin(x), wanted, strict=True):
            torch.testing.assert_close(got, want)
    again = guard(network(), 2 * rows(), on_outside="fallback")
    again.load_state_dict(guarded.state_dict())
    for got, want in zip(again(x), wanted, strict=True):
        torch.testing.assert_close(got, want)


@torch.no_grad()
def test_other_answers():
    model, x = network(), rows()
    far = 1e5 * x[:3]
    assert torch.equal(guard(model, x, on_outside="fallback", fallback=7.0)(far)[0], torch.full((3, 2), 7.0))
    row = torch.tensor([1.0, -1.0])
    assert torch.equal(guard(model, x, on_outside="fallback", fallback=row)(far)[0], row.expand(3, 2))
    other = nn.Sequential(nn.Linear(5, 2), nn.Tanh()).eval()
    output, _ = guard(model, x, on_outside="fallback", fallback=other)(torch.full((3, 5), NAN))
    assert bool((output.abs() <= 1).all())


@torch.no_grad()
def test_a_certificate_is_held_against_every_answer():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 16), nn.LayerNorm(16), nn.Linear(16, 1)).eval()
    x = rows()
    certificate = ff.certify(model, x[:1], time_budget=ff.Budget(steps=200))
    guarded = guard(model, x, certificate=certificate)
    assert bool(torch.isfinite(guarded(x)[1]).all())
    guarded.model[2].weight.mul_(1e4)  # a fault in memory
    assert float(guarded(x)[1].max()) == pytest.approx(1e30)
    with pytest.raises(FarfieldError):
        guard(network(), x, certificate=certificate)


@torch.no_grad()
def test_it_counts():
    guarded = guard(network(), rows())
    x = rows(10)
    x[0, 2], x[1, 2], x[2, 3] = 50.0, 60.0, NAN
    guarded(x)
    guarded(rows(5)[3:])
    found = guarded.summary()
    assert (found.rows, found.outside, found.not_finite, found.worst) == (12, 3, 1, INF)
    assert found.features == {"input[:, 2]": 2, "input[:, 3]": 1}
    both = found + GuardSummary(8, 1, 2.0, 0, {"input[:, 1]": 1})
    assert (both.rows, both.share) == (20, 0.2) and both.features == {
        "input[:, 2]": 2,
        "input[:, 3]": 1,
        "input[:, 1]": 1,
    }
    assert both.to_dict()["worst"] == "inf" and "4 of 20 rows were outside (20.00%)" in str(both)
    text = both.to_prometheus()
    assert "farfield_guard_rows_total 20\n" in text and "farfield_guard_worst_score +Inf\n" in text
    assert 'farfield_guard_feature_outside_total{feature="input[:, 2]"} 2' in text
    guarded.reset()
    assert guarded.summary() == GuardSummary()
    guarded.counting = False
    guarded(x)
    assert guarded.summary().rows == 0


def test_a_feature_that_never_moved():
    x = rows()
    x[:, 1] = 4.0
    guarded = guard(network(), x)
    with torch.no_grad():
        assert float((guarded(x)[1] <= 1).double().mean()) >= 0.99
        ranges = (x.amax(0) - x.amin(0))[[0, 2, 3, 4]]
        x[0, 1] = 4.0 + 50 * float(ranges.median())
        assert guarded(x[:1])[1] == pytest.approx(
            101, rel=1e-3
        )  # in halves of the other columns' median range
        assert "every calibration row had 4. What never moved has no scale" in str(guarded.explain(x[:1])[0])
        x[:, :] = 4.0  # nothing moves: in units of their own size
        assert guard(network(), x)(x[:1] + 4)[1] == pytest.approx(5**0.5, rel=1e-3)  # five of them together


def test_wrong_questions_are_named():
    model, x = network(), rows()
    with pytest.raises(InvalidValueError, match="keep is a share"):
        guard(model, x, keep=0.0)
    with pytest.raises(InvalidValueError, match="flag, cap, fallback"):
        guard(model, x, on_outside="ignore")
    with pytest.raises(InvalidValueError, match="is for on_outside='fallback'"):
        guard(model, x, fallback=0.0)
    with pytest.raises(InvalidValueError, match="NaN or infinity"):
        guard(model, torch.full((4, 5), NAN))
    with pytest.raises(InvalidValueError, match="real-valued"):
        guard(nn.Embedding(10, 3), torch.zeros(5, 2, dtype=torch.int64))


@torch.no_grad()
def test_capped_it_is_bounded():
    class Output(nn.Module):
        def __init__(self):
            super().__init__()
            self.guard = guard(network(), rows(), on_outside="cap")

        def forward(self, x):
            return self.guard(x)[0]

    assert ff.audit(Output().eval(), rows(1)).verdict.name == "BOUNDED"


def test_a_finite_reading_has_a_finite_score():
    model, x = nn.Linear(3, 1), torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    guarded = ff.guard(model, x, on_outside="cap")
    row = torch.zeros(5, 3)
    row[:, 1] = torch.tensor([10.0, 1e20, 1e38, -3.4e38, INF])
    with torch.no_grad():
        _, score = guarded(row)
        exported = torch.export.export(guarded, (row,)).module()(row)[1]
    assert bool(torch.isfinite(score[:4]).all()) and math.isinf(score[4])
    assert bool((score[1:] >= score[:-1]).all())
    assert torch.allclose(score, exported)


class Named(nn.Module):
    """One argument, with the name that most people give it."""

    def __init__(self):
        super().__init__()
        self.net = network()

    def forward(self, x):
        return self.net(x)


@torch.no_grad()
@pytest.mark.parametrize("by_name", [False, True])
def test_arguments_come_by_position_or_by_name(by_name, tmp_path):
    guarded = guard(Named(), {"x": rows()} if by_name else rows(), on_outside="cap")
    given = torch.cat([rows(4), 1e6 * rows(4)])
    (first, score), (second, other) = guarded(given), guarded(x=given)
    assert first.equal(second) and score.equal(other) and bool((score[4:] > 1).all())
    assert [str(e) for e in guarded.explain(given)] == [str(e) for e in guarded.explain(x=given)]
    guarded.save(tmp_path / "guarded.pt2")
    program = torch.export.load(tmp_path / "guarded.pt2").module()
    assert torch.allclose((program(x=given) if by_name else program(given))[1], score)


class Timed(nn.Module):
    """A time for each row, without an axis of features."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 2)

    def forward(self, x, t):
        return self.net(torch.cat([x, t[:, None]], -1))


@torch.no_grad()
@pytest.mark.parametrize("answer", ["flag", "cap", "fallback"])
def test_rows_of_one_number(answer):
    x, t = rows(), torch.rand(2000, generator=torch.Generator().manual_seed(2))
    guarded = guard(Timed(), (x, t), on_outside=answer, keep=1.0)
    score = guarded(x, t)[1]
    assert score.shape == (2000,) and bool((score <= 1).all())
    score = guarded(x[:3], torch.tensor([0.5, 50.0, NAN]))[1]
    assert score[0] <= 1 < score[1] < INF == score[2]
    assert guarded.explain(x[:1], torch.tensor([50.0]))[0].what == "t"
    program = torch.export.export(guarded, (x[:4], t[:4])).module()
    assert program(x[:4], 90 * t[:4])[1].equal(guarded(x[:4], 90 * t[:4])[1])


@torch.no_grad()
@pytest.mark.parametrize("answer", ["flag", "cap", "fallback"])
def test_no_rows(answer):
    guarded = guard(network(), [rows()[:100], rows()[:0], rows()[100:]], on_outside=answer)
    output, score = guarded(rows()[:0])
    assert output.shape == (0, 2) and score.shape == (0,) and guarded.explain(rows()[:0]) == []


class Product(nn.Module):
    """Large where both features are, which never happened together."""

    def forward(self, x):
        return x[:, 0] * x[:, 1]


@torch.no_grad()
@pytest.mark.parametrize("answer", ["flag", "cap", "fallback"])
def test_an_output_outside_is_explained_and_counted(answer):
    first = torch.rand(500, 1, generator=torch.Generator().manual_seed(0))
    guarded = guard(Product(), torch.cat([first, 1 - first], -1), on_outside=answer)
    given = torch.tensor([[0.4, 0.6], [0.9, 0.9]])
    score, (inside, outside) = guarded(given)[1], guarded.explain(given)
    assert score[0] <= 1 < score[1] and inside.score <= 1
    assert outside.what == "output" and outside.score == pytest.approx(float(score[1]))
    assert outside.value == pytest.approx(0.81) and outside.high == pytest.approx(0.25, rel=1e-2)
    summary = guarded.summary()
    assert (summary.rows, summary.outside, summary.worst) == (2, 1, float(score[1])) and not summary.features


@torch.no_grad()
def test_numbers_beyond_float32_have_scores():
    given = 1e60 * rows(dtype=torch.float64)
    guarded = guard(network(torch.float64), given)
    score = guarded(torch.cat([given, 100 * given]))[1]
    assert float((score[:2000] <= 1).double().mean()) >= 0.98 and bool((score[2000:] > 1).all())


@torch.no_grad()
@pytest.mark.parametrize("count", [1, 2, 50])
def test_a_recurrent_state_is_no_answer_for_rows(count):
    torch.manual_seed(0)
    guarded = guard(nn.LSTM(5, 8, 2, batch_first=True), torch.randn(count, 4, 5), on_outside="fallback")
    (output, (state, memory)), score = guarded(100 * torch.randn(6, 4, 5))
    assert output.shape == (6, 4, 8) and state.shape == memory.shape == (2, 6, 8) and score.shape == (6,)


class Scoring(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = network()

    def forward(self, x):
        y = self.net(x)
        return {"logits": y, "score": y[:, 0]}


@pytest.mark.filterwarnings("ignore")  # of torch.onnx, about torch
def test_a_model_with_a_score_of_its_own_is_written(tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    guard(Scoring(), rows()).save(tmp_path / "guarded.onnx")
    session = runtime.InferenceSession(tmp_path / "guarded.onnx")
    assert [value.name for value in session.get_outputs()] == ["logits", "score", "guard_score"]


@torch.no_grad()
@pytest.mark.parametrize(
    "case", ["module flag", "module cap", "module fallback", "pt2 flag", "pt2 cap", "onnx fallback"]
)
@pytest.mark.filterwarnings("ignore")
def test_the_score_has_a_verdict_of_its_own(case, tmp_path):
    """A flag alone bounds no prediction; the score that it adds is bounded in any case."""
    kind, answer = case.split()
    target, given = guard(network(), rows(), on_outside=answer), (rows(1),)
    if kind != "module":
        target.save(place := tmp_path / f"guarded.{kind}")
        target, given = place, ()
    found = ff.audit(target, *given)
    output, score = (v.status.name for v in found.report.verdicts if v.input is None)
    wanted = "UNBOUNDED" if answer == "flag" else "BOUNDED"
    assert (found.verdict.name, output, score) == (wanted, wanted, "BOUNDED")


def test_the_largest_score_of_a_number():
    guarded = guard(network(), rows(), on_outside="cap")
    x = torch.full((3, 5), 3e38)
    x[1], x[2, 0] = -3e38, INF
    assert guarded(x)[1].tolist() == [pytest.approx(1e30), pytest.approx(1e30), INF]


@torch.no_grad()
@pytest.mark.parametrize("answer", ["flag", "cap", "fallback"])
def test_what_is_compiled_counts_too(answer):
    guarded, x = guard(network(), rows(), on_outside=answer), rows(10)
    x[0, 2], x[1, 2], x[2, 3] = 50.0, 60.0, NAN
    torch.compile(guarded, backend="eager", fullgraph=True)(x)
    found = guarded.summary()
    assert (found.rows, found.outside, found.not_finite, found.worst) == (10, 3, 1, INF)
    assert found.features == {"input[:, 2]": 2, "input[:, 3]": 1}
    torch.export.export(guarded, (x,)).module()(x)
    assert guarded.summary() == found  # an exported copy counts nothing
    assert not any("counted" in name for name in guarded.state_dict())


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_limits_stay_wide_when_the_type_changes(dtype):
    x = rows()
    x[:, 3] *= 1e6  # beyond float16: limits of that type would be infinite
    guarded = guard(network(), x, on_outside="cap")
    guarded.to(dtype)
    given = rows(50)
    given[:, 3] = 1.0
    output, score = guarded(given)
    assert output.dtype == dtype and bool(((score <= 1) == (guarded.float()(given)[1] <= 1)).all())
    assert guarded.limits["input_0"].low.dtype == torch.float32


def test_processes_that_train_together_keep_their_own_counts():
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        guarded, x = guard(network(), rows()), 9 * rows(4)
        together = nn.parallel.DistributedDataParallel(guarded)
        synced = set(together.named_module_buffers)
        assert not synced & {"counted", "worst", "outside_0"}
        together(x)
        assert guarded.summary().rows == 4
    finally:
        dist.destroy_process_group()


def test_columns_keep_their_names():
    pandas = pytest.importorskip("pandas")
    names = ["temperature", "pressure", "flow", "humidity", "wind"]
    frame = pandas.DataFrame(rows().double().numpy(), columns=names)
    guarded = guard(network(), frame, on_outside="cap")
    few = frame.iloc[:3].copy()
    few.iloc[1, 1] = 500.0
    with torch.no_grad():
        output, score = guarded(few)
    assert output.shape == (3, 2) and score[0] <= 1 < score[1]
    assert guarded.explain(few)[1].what == "pressure"
    assert guarded.summary().features == {"pressure": 1}
    assert 'feature="pressure"' in guarded.summary().to_prometheus()
    with torch.no_grad():  # columns are found by name
        assert guarded(few[names[::-1]].assign(more="text"))[1].equal(score)
    with pytest.raises(InvalidValueError, match="no column 'wind'"):
        guarded(few[names[:4]])
