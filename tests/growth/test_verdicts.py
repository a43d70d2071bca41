"""Verdicts, witnesses, escape paths and cuts on networks whose truth is known."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from captured import Plain
from farfield.errors import InvalidValueError
from farfield.graph import capture
from farfield.growth import Kind, Status, analyze
from farfield.growth._analysis import analyze_growth
from farfield.growth._paths import bounding_cut, escape_path, escape_paths, insertion_cut
from farfield.growth._witness import find_witness

X = torch.zeros(2, 6)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def seeded(model: nn.Module, seed: int = 0) -> nn.Module:
    """Weights from a generator of their own."""
    rng = generator(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng) / parameter.shape[-1] ** 0.5)
    return model.eval()


class Residual(nn.Module):
    def __init__(self, *, final: bool) -> None:
        super().__init__()
        self.inp, self.ln, self.fc, self.out = (
            nn.Linear(6, 32),
            nn.LayerNorm(32),
            nn.Linear(32, 32),
            nn.Linear(32, 1),
        )
        self.final = nn.LayerNorm(32) if final else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = self.inp(x)
        h = h + torch.relu(self.fc(self.ln(h)))
        return self.out(self.final(h))


class Critic(nn.Module):
    """The action joins before or after the norm."""

    def __init__(self, *, late: bool) -> None:
        super().__init__()
        self.late = late
        self.s = nn.Sequential(nn.Linear(8 if late else 10, 32), nn.LayerNorm(32), nn.ReLU())
        self.q = nn.Sequential(nn.Linear(34 if late else 32, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        if self.late:
            return self.q(torch.cat([self.s(state), action], -1))
        return self.q(self.s(torch.cat([state, action], -1)))


def mlp(*middle: nn.Module) -> nn.Module:
    return seeded(nn.Sequential(nn.Linear(6, 32), *middle, nn.ReLU(), nn.Linear(32, 1)))


CASES: list[tuple[str, Callable[[], nn.Module], Status]] = [
    ("plain", mlp, Status.UNBOUNDED),
    ("layer norm", lambda: mlp(nn.LayerNorm(32)), Status.BOUNDED),
    ("batch norm", lambda: mlp(nn.BatchNorm1d(32)), Status.UNBOUNDED),
    ("residual", lambda: seeded(Residual(final=False)), Status.UNBOUNDED),
    ("residual with final norm", lambda: seeded(Residual(final=True)), Status.BOUNDED),
    ("reciprocal", lambda: Plain(lambda x: 1 / x), Status.UNKNOWN),
    ("x sin x", lambda: Plain(lambda x: x * torch.sin(x)), Status.UNBOUNDED),
    ("gru", lambda: seeded(nn.GRU(6, 4, batch_first=True)), Status.BOUNDED),
    ("relu rnn", lambda: seeded(nn.RNN(6, 4, nonlinearity="relu", batch_first=True)), Status.UNBOUNDED),
]


@pytest.mark.parametrize(("name", "make", "status"), CASES, ids=[name for name, _, _ in CASES])
def test_status(name: str, make: Callable[[], nn.Module], status: Status) -> None:
    example = torch.zeros(2, 5, 6) if name in ("gru", "relu rnn") else X
    report = analyze(make(), (example,), generator=generator())
    assert report.status is status, str(report)
    for verdict in report.verdicts:
        assert (verdict.witness is not None) == (verdict.status is Status.UNBOUNDED)
        assert (verdict.reason is not None) == (verdict.status is Status.UNKNOWN)
        assert str(verdict)
    json.dumps(report.to_dict(), allow_nan=False)


def test_witness_is_confirmed_by_the_module_itself() -> None:
    model = mlp()
    witness = analyze(model, (X,), generator=generator()).witness
    assert witness is not None
    assert witness.method == "jet"
    assert witness.evaluated == "module in float64"
    assert witness.degree == 1.0
    assert math.isclose(float(witness.direction.norm()), 1.0)
    with torch.no_grad():
        measured = copy.deepcopy(model).double()(1e8 * witness.direction[None]) / 1e8
    assert math.isclose(float(measured), witness.slope, rel_tol=1e-5)
    radii = [e.radius for e in witness.evidence]
    assert radii == sorted(radii)
    assert radii[-1] >= 1e8
    assert abs(witness.evidence[-1].ratio - witness.slope) <= 1e-5 * abs(witness.slope)


@pytest.mark.parametrize(
    ("function", "degree", "logarithms"),
    [
        (lambda x: x**2, 2.0, 0.0),
        (lambda x: torch.sqrt(1 + x.abs()), 0.5, 0.0),
        (lambda x: torch.log1p(x.abs()), 0.0, 1.0),
        (lambda x: x * torch.log1p(x.abs()), 1.0, 1.0),
        (lambda x: ((((1 + x**2) ** 2) ** 2) ** 2) ** 2 * x, 33.0, 0.0),
        (lambda x: (((1 + x**2) ** 4) ** 4) ** 3, 96.0, 0.0),
    ],
)
def test_rates_of_witnesses(function: Callable[[Tensor], Tensor], degree: float, logarithms: float) -> None:
    witness = analyze(Plain(function), (X,), generator=generator()).witness
    assert witness is not None
    assert (witness.degree, witness.logarithms) == (degree, logarithms)


def test_a_degree_that_cannot_be_represented_is_not_guessed() -> None:
    def function(x: Tensor) -> Tensor:
        for _ in range(9):
            x = x * x + 1
        return x

    report = analyze(Plain(function), (X,), generator=generator())
    assert report.verdict().growth.degree == 512.0
    assert report.status is Status.UNKNOWN


def test_exponential_growth_is_measured_and_says_so() -> None:
    report = analyze(seeded(nn.Sequential(nn.Linear(6, 4), Plain(torch.exp))), (X,), generator=generator())
    assert report.status is Status.UNBOUNDED
    assert report.witness is not None
    assert report.witness.method == "measured"
    assert math.isinf(report.witness.degree)
    assert report.verdict().growth.kind is Kind.EXPONENTIAL


def test_growth_in_a_thin_cone_is_climbed_to() -> None:
    """relu(min x) grows in one orthant of 2^12; gradient ascent through the jet finds it."""

    def function(x: Tensor) -> Tensor:
        return torch.relu(x.amin(-1, keepdim=True))

    report = analyze(Plain(function), (torch.zeros(2, 12),), generator=generator())
    assert report.status is Status.UNBOUNDED
    assert report.witness is not None
    assert bool((report.witness.direction > 0).all())


def test_no_witness_for_a_bounded_function_the_analysis_cannot_prove() -> None:
    """x − x through two products is 0 up to rounding: noise must not become a witness."""
    rng = generator(7)
    first = torch.randn(8, 6, generator=rng, dtype=torch.float64)
    second = torch.randn(5, 8, generator=rng, dtype=torch.float64)

    def function(x: Tensor) -> Tensor:
        long = functional.linear(functional.linear(x, first), second)
        return long - functional.linear(x, second @ first)

    program = capture(Plain(function), (X.double(),))
    analysis = analyze_growth(program)
    assert not analysis.growth(program.outputs[0]).bounded
    assert find_witness(analysis, (X.double(),), 0, generator=generator()) is None


def test_a_wrong_rate_is_not_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the jets lied about a slope, the evaluations would say so and no verdict would follow."""
    from farfield.growth import _confirm, _witness

    honest = _witness.follow

    def lying(*arguments: object) -> object:
        jet, notes = honest(*arguments)  # type: ignore[arg-type]
        return type(jet)(jet.powers, 1.01 * jet.values, jet.errors, jet.floor), notes

    for module in (_witness, _confirm):
        monkeypatch.setattr(module, "follow", lying)
    assert analyze(mlp(), (X,), generator=generator()).status is Status.UNKNOWN


def test_escape_path_names_modules_and_bypassed_norms() -> None:
    report = analyze(seeded(Residual(final=False)), (X,), generator=generator())
    path = report.verdict().paths[0]
    assert path.labels == ("x", "inp", "add", "out")
    assert path.bypassed == ("ln",)
    assert str(path) == "x → inp → add → out bypasses ln"
    assert path.nodes[0] == "x"
    assert path.nodes[-1] == report.program.outputs[0]


def test_late_action_escapes_alone() -> None:
    model = seeded(Critic(late=True))
    report = analyze(model, (torch.zeros(2, 8), torch.zeros(2, 2)), generator=generator())
    output = report.program.outputs[0]
    assert report.verdict(output, "state").status is Status.BOUNDED
    assert report.verdict(output, "action").status is Status.UNBOUNDED
    path = escape_path(report.analysis, output, "action")
    assert path is not None
    assert path.labels == ("action", "cat", "q.0", "q.1", "q.2")
    assert escape_paths(report.analysis, output, "state") == ()
    early = analyze(seeded(Critic(late=False)), (torch.zeros(2, 8), torch.zeros(2, 2)), generator=generator())
    assert early.status is Status.BOUNDED


def test_the_norm_that_cuts_every_path_is_named() -> None:
    report = analyze(seeded(Residual(final=True)), (X,), generator=generator())
    cut = report.verdict().cut
    assert cut is not None
    assert cut.labels == ("final",)


def test_two_norms_on_two_branches_are_both_named() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.na, self.nb = (
                nn.Linear(6, 8),
                nn.Linear(6, 8),
                nn.LayerNorm(8),
                nn.RMSNorm(8),
            )

        def forward(self, x: Tensor) -> Tensor:
            return self.na(self.a(x)) + self.nb(self.b(x))

    program = capture(Branches(), (X,))
    cut = bounding_cut(analyze_growth(program), program.outputs[0])
    assert cut is not None
    assert cut.labels == ("na", "nb")


def test_the_smallest_insertion_is_found_and_verified() -> None:
    program = capture(seeded(Residual(final=False)), (X,))
    analysis = analyze_growth(program)
    late = insertion_cut(analysis, program.outputs[0])
    early = insertion_cut(analysis, program.outputs[0], near="input")
    assert late is not None
    assert early is not None
    assert (late.labels, early.labels) == (("add",), ("inp",))
    assert late.verified
    assert early.verified


def test_gates_do_not_count_as_carriers() -> None:
    """In attention only the values carry growth; queries and keys do not."""

    class Attend(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.value = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return functional.scaled_dot_product_attention(self.query(x), x, self.value(x))

    program = capture(seeded(Attend()), (torch.zeros(2, 4, 6),))
    paths = escape_paths(analyze_growth(program), program.outputs[0], limit=10)
    assert [path.labels for path in paths] == [("x", "value", "attention")]


def test_one_tensor_given_for_two_inputs_is_two_inputs() -> None:
    report = analyze(Plain(lambda a, b: a - b), (X, X), generator=generator())
    assert report.status is Status.UNBOUNDED


def test_every_output_has_its_verdict() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean, self.scale = nn.Linear(6, 2), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.mean(x), torch.sigmoid(self.scale(x))

    report = analyze(seeded(Heads()), (X,), generator=generator())
    first, second = report.program.outputs
    assert report.verdict(first).status is Status.UNBOUNDED
    assert report.verdict(second).status is Status.BOUNDED
    assert report.status is Status.UNBOUNDED
    with pytest.raises(InvalidValueError, match="There is no verdict"):
        report.verdict("logits")


def test_the_same_generator_gives_the_same_witness() -> None:
    one = analyze(mlp(), (X,), generator=generator(3)).witness
    two = analyze(mlp(), (X,), generator=generator(3)).witness
    assert one is not None
    assert two is not None
    assert torch.equal(one.direction, two.direction)
    assert one.slope == two.slope
