"""A large program is tried with less: what is claimed of it is the same, and the steps are counted."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import farfield.graph._program as program_module
import farfield.growth._horizon as horizon_module
from farfield.audit import Context, audit
from farfield.audit.rules.ff006 import float_horizon
from farfield.graph import Program, capture, differs
from farfield.graph._wide import BLOCK, is_narrow, linear_in_blocks
from farfield.growth import Status, analyze, horizon
from farfield.growth._evaluate import rows_are_samples
from farfield.growth._extent import Extent
from farfield.growth._rate import LINEAR
from farfield.growth.rules.linear import affine

WIDE = 2300
"""A square layer of this width has more than five million weights."""


class Large(nn.Module):
    """Three layers, the middle one large."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(6, WIDE), nn.LayerNorm(WIDE) if norm else nn.Identity()
        self.middle, self.head = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.middle(torch.relu(self.norm(self.first(x))))))


class LargeBranch(Large):
    """The norm is skipped for a batch of three."""

    def __init__(self) -> None:
        super().__init__(norm=True)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.first(x)
        seen = seen if x.shape[0] == 3 else self.norm(seen)
        return self.head(torch.relu(self.middle(torch.relu(seen))))


class LargeValue(LargeBranch):
    """The norm is skipped far out, which a capture does not see."""

    def is_far(self, x: Tensor) -> bool:
        return float(x.abs().max()) > 1e8

    def forward(self, x: Tensor) -> Tensor:
        seen = self.first(x)
        try:
            far = self.is_far(x)
        except Exception:  # no values while it is traced
            far = False
        return self.head(torch.relu(self.middle(torch.relu(seen if far else self.norm(seen)))))


class LargeWhenAllAreFar(LargeValue):
    def is_far(self, x: Tensor) -> bool:
        return float(x.norm(dim=-1).min()) > 1e4


class OneWay(Large):
    """Grows along half of the directions: the last ReLU is open in one of two."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.middle(self.first(x))[:, :1] - 1.0)


def made(kind: type[Large], seed: int = 0) -> Large:
    torch.manual_seed(seed)
    return kind().eval()


def test_which_programs_are_large():
    assert capture(made(Large), torch.zeros(2, 6)).is_large
    assert not capture(nn.Linear(100, 100), torch.zeros(2, 100)).is_large
    image = capture(nn.Conv2d(3, 64, 3, padding=1), torch.zeros(1, 3, 300, 300))
    assert image.is_large and image.computed() == 64 * 300 * 300


@pytest.mark.parametrize("rows", [1, 5])
def test_a_large_weight_is_converted_by_blocks(rows):
    model = made(Large)
    x = torch.randn(rows, 6)
    assert is_narrow(model.middle.weight, torch.float64) and not is_narrow(model.head.weight, torch.float64)
    program = capture(model, x)
    found = program.evaluate(x)[program.outputs[0]]
    torch.testing.assert_close(found, made(Large).double()(x.double()), rtol=1e-12, atol=1e-13)


def test_blocks_of_every_size_and_their_gradient():
    generator = torch.Generator().manual_seed(0)
    for outputs, inputs in ((1, BLOCK), (3, BLOCK + 1), (BLOCK, 4), (700, 1500)):
        weight = torch.randn(outputs, inputs, generator=generator)
        x = torch.randn(2, 3, inputs, generator=generator, dtype=torch.float64)
        values, squares = linear_in_blocks(x, weight, x.square())
        torch.testing.assert_close(values, x @ weight.double().T)
        torch.testing.assert_close(squares, x.square() @ weight.double().square().T)
    x.requires_grad_(True)
    values, squares = linear_in_blocks(x, weight, x.detach().square())
    values.sum().backward()
    torch.testing.assert_close(x.grad, weight.double().sum(0).expand_as(x))
    torch.testing.assert_close(squares, x.detach().square() @ weight.double().square().T)


def test_the_horizon_is_that_of_the_same_model_in_float64():
    model, directions = made(Large), torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    found, wide = horizon(model, directions), horizon(made(Large).double(), directions.double())
    torch.testing.assert_close(found.slope, wide.slope, rtol=1e-11, atol=1e-14)
    assert not bool(found.degenerate.any())


def test_an_infinite_entry_of_a_large_weight_is_infinite():
    model, direction = made(Large), torch.ones(1, 6)
    alive = int(model.first.weight.sum(1).argmax())
    with torch.no_grad():
        model.middle.weight[:, alive] = math.inf
    found, wide = (horizon(m, d) for m, d in ((model, direction), (model.double(), direction.double())))
    assert not bool((found.degree <= 1.0).any())
    assert torch.equal(found.degenerate, wide.degenerate) and torch.equal(
        found.degree.isnan(), wide.degree.isnan()
    )


def test_the_audit_of_a_large_model_counts_its_steps(monkeypatch):
    rows: dict[str, int] = {"float64": 0, "float32": 0, "module": 0, "jets": 0}
    evaluated, followed = program_module.interpret, horizon_module.run_jets

    def interpret(nodes, specs, constants, inputs, *, dtype, keep):
        rows["float64" if dtype == torch.float64 else "float32"] += len(inputs[0])
        return evaluated(nodes, specs, constants, inputs, dtype=dtype, keep=keep)

    def run_jets(program, inputs, **options):
        rows["jets"] += sum(jet.shape[0] for jet in inputs.values())
        return followed(program, inputs, **options)

    monkeypatch.setattr(program_module, "interpret", interpret)
    monkeypatch.setattr(horizon_module, "run_jets", run_jets)
    model = made(Large)
    monkeypatch.setattr("farfield.growth._evaluate.LARGEST_COPY", 0)  # the program speaks for the module
    program = capture(model, torch.zeros(1, 6))
    model.register_forward_hook(
        lambda _, given, __: rows.__setitem__("module", rows["module"] + len(given[0]))
    )
    rows.update(dict.fromkeys(rows, 0))
    report = analyze(model, torch.zeros(1, 6), program=program)
    assert report.status is Status.UNBOUNDED
    assert rows == {"float64": 2, "float32": 3 + 5, "module": 5, "jets": 1}


def test_a_direction_that_does_not_grow_is_followed_by_others():
    for seed in range(6):
        model = made(OneWay, seed)
        found = analyze(model, torch.zeros(1, 6))
        assert found.status is Status.UNBOUNDED
        witness = found.witness
        value = made(OneWay, seed).double()(1e9 * witness.direction[None]).detach()
        assert float(value[0, 0]) == pytest.approx(1e9 * witness.slope, rel=1e-5)


@pytest.mark.parametrize("kind", [LargeBranch, LargeValue, LargeWhenAllAreFar])
@pytest.mark.parametrize("rows", [1, 2])
def test_a_program_that_is_not_the_module_is_told_apart(kind, rows):
    model = made(kind)
    found = audit(model, torch.randn(rows, 6))
    assert found.verdict is Status.UNKNOWN
    program = capture(model, torch.randn(rows, 6))
    assert "is not the module" in differs(model, program, torch.randn(rows, 6))


def test_a_large_bounded_model_is_bounded():
    torch.manual_seed(0)
    assert audit(Large(norm=True).eval(), torch.randn(4, 6)).verdict is Status.BOUNDED


class Shares(nn.Module):
    def __init__(self, share: float) -> None:
        super().__init__()
        self.layer, self.share = nn.Linear(4, 4), share

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.share * x.mean(0, keepdim=True)


class Rounds(nn.Module):
    """Steps: where float32 turns one, the row alone and beside another seem apart."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3)))

    def forward(self, x: Tensor) -> Tensor:
        return torch.round(1e6 * self.layers(x)) % 2.0


@pytest.mark.parametrize("share", [0.0, 1e-3, 1e-6])
def test_rows_that_share_little_are_no_samples(share):
    torch.manual_seed(0)
    x = torch.randn(2, 4)
    program: Program = capture(Shares(share), x)
    axis = str(program.inputs[0].shape[0])
    assert rows_are_samples(program, [x], axis) == (share == 0.0)


class HidesOne(nn.Module):
    """A large column beside one that joins the rows."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([1e8 * torch.sigmoid(x), x - x.mean(0, keepdim=True)], 1)


def test_a_large_entry_hides_no_shared_one():
    x = torch.randn(2, 4)
    program = capture(HidesOne(), x)
    assert not rows_are_samples(program, [x], str(program.inputs[0].shape[0]))


class Shifted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return torch.relu(self.layer(x)) + t


def test_a_number_beside_a_batch():
    torch.manual_seed(0)
    report = analyze(Shifted(), (torch.randn(2, 4), torch.tensor(0.5)))
    assert [v.status for v in report.verdicts] == [Status.UNBOUNDED] * len(report.verdicts)


def test_rows_of_a_model_with_steps_are_samples():
    torch.manual_seed(0)
    x = torch.randn(2, 64)
    program = capture(Rounds(), x)
    assert rows_are_samples(program, [x], str(program.inputs[0].shape[0]))


@pytest.mark.parametrize("seed", range(20))
def test_signed_row_sums(seed):
    """Interval of Σ w v, entry by entry, for ends that are numbers, zero or infinite."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(5, 7, generator=generator)
    weight[seed % 5] = 0.0
    if seed % 3 == 0:
        weight = weight.abs()
    for lo, hi in (
        (-2.0, 3.0),
        (0.0, 4.0),
        (0.0, math.inf),
        (-math.inf, 0.0),
        (-math.inf, math.inf),
        (-1.0, math.inf),
    ):
        found = affine(Extent(LINEAR, LINEAR, lo, hi), weight, "node")
        ends = [
            [
                sum(0.0 if w == 0 else w * (hi if (w > 0) == upper else lo) for w in row)
                for row in weight.double().tolist()
            ]
            for upper in (False, True)
        ]
        low, high = min(ends[0]), max(ends[1])
        assert found.lo <= low and found.hi >= high
        assert found.lo == pytest.approx(low, rel=1e-9) and found.hi == pytest.approx(high, rel=1e-9)


@pytest.mark.parametrize("scale", [1.0, 1e10])
def test_where_float32_ends_is_not_put_too_far_for_a_large_program(monkeypatch, scale):
    """What is given for a large program is at most what the fine search finds."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 1)).eval()
    with torch.no_grad():
        model[0].weight.mul_(scale)

    def found() -> float:
        result = audit(model, torch.zeros(1, 6))
        context = Context(result.report, model, (torch.zeros(1, 6),))
        return float_horizon(context)

    fine = found()
    monkeypatch.setattr(program_module, "LARGE", 0)
    coarse = found()
    assert fine / 100.1 <= coarse <= fine and 1e5 < fine < 1e25
