"""What the abstract interpretation says of whole programs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from captured import Plain
from farfield.errors import UnknownNameError
from farfield.graph import Example, Operator, capture, register_operator
from farfield.graph.operators import unregister_operator
from farfield.growth import Kind, register_growth_rule
from farfield.growth._analysis import analyze_growth
from farfield.growth._extent import Extent, interval
from farfield.growth._registry import Site, unregister_growth_rule
from growth.oracles import RADII, interval_violations, rate_violations

X = torch.zeros(2, 6)


def growth_of(function: Callable[..., Tensor], *inputs: Tensor, moving: str | None = None) -> str:
    program = capture(Plain(function), inputs or (X,))
    analysis = analyze_growth(program)
    return str(analysis.growth(program.outputs[0], moving)).split(" ")[0]


CASES: list[tuple[str, Callable[[Tensor], Tensor], str]] = [
    ("identity", lambda x: x, "LINEAR"),
    ("square", lambda x: x * x, "POLYNOMIAL(2)"),
    ("cube times root", lambda x: x**3 * torch.sqrt(1 + x.abs()), "POLYNOMIAL(3.5)"),
    ("logarithm", lambda x: torch.log1p(x.abs()), "SUBLINEAR"),
    ("root", lambda x: x.abs().sqrt(), "SUBLINEAR"),
    ("exponential", torch.exp, "EXPONENTIAL"),
    ("exponential of a negative", lambda x: torch.exp(-torch.relu(x)), "BOUNDED"),
    ("bell", lambda x: torch.exp(-(x**2)), "BOUNDED"),
    ("bell by hand", lambda x: torch.exp(-x * x), "BOUNDED"),
    ("x times bell", lambda x: x**5 * torch.exp(-(x**2)), "BOUNDED"),
    ("sigmoid gate", lambda x: torch.sigmoid(x) * x, "LINEAR"),
    ("softplus gate in a bounded head", lambda x: torch.tanh(nn.functional.softplus(x) * x), "BOUNDED"),
    ("one-sided cap", lambda x: torch.minimum(x, torch.ones_like(x)), "LINEAR"),
    ("two one-sided caps", lambda x: x.clamp(max=1).clamp(min=-1), "BOUNDED"),
    ("ratio to its own norm", lambda x: 3 * x / (1 + x.norm(dim=-1, keepdim=True)), "BOUNDED"),
    ("algebraic sigmoid", lambda x: x / torch.sqrt(1 + x**2), "BOUNDED"),
    ("too weak a denominator", lambda x: x**2 / torch.sqrt(1 + x**2), "POLYNOMIAL(2)"),
    ("denominator of another size", lambda x: x / (1 + x.flip(-1) ** 2), "LINEAR"),
    ("share of a sum", lambda x: torch.relu(x) / (1e-6 + torch.relu(x).sum(-1, keepdim=True)), "BOUNDED"),
    ("share of an average norm", lambda x: x.abs() / (1e-6 + x.abs().mean(0, keepdim=True)), "BOUNDED"),
    ("unit", lambda x: x / x.norm(dim=-1, keepdim=True), "BOUNDED"),
    ("reciprocal", lambda x: 1 / x, "UNKNOWN:"),
    ("logarithm of a square", lambda x: torch.log(x**2), "UNKNOWN:"),
    ("sign", torch.sign, "BOUNDED"),
    ("sine", torch.sin, "BOUNDED"),
    ("x sine", lambda x: x * torch.sin(x), "LINEAR"),
    ("attention", lambda x: torch.softmax(x @ x.T, -1) @ torch.tanh(x), "BOUNDED"),
    ("masked softmax", lambda x: x.masked_fill(x > 0, -torch.inf).softmax(-1), "BOUNDED"),
    ("where on its own sign", lambda x: torch.where(x > 0, torch.zeros_like(x), x).exp(), "BOUNDED"),
    ("where on its own size", lambda x: torch.where(x.abs() < 2, x, torch.zeros_like(x)), "BOUNDED"),
    ("difference of the same", lambda x: torch.relu(x) - torch.relu(x), "CONSTANT"),
    ("times nothing", lambda x: x * 0.0, "CONSTANT"),
    ("standard deviation", lambda x: x.std(-1), "LINEAR"),
    ("variance", lambda x: x.var(-1), "POLYNOMIAL(2)"),
    ("product over an axis", lambda x: x.prod(-1), "POLYNOMIAL(6)"),
    ("logsumexp", lambda x: x.logsumexp(-1), "LINEAR"),
    ("half of a concatenation", lambda x: torch.cat([x, torch.tanh(x)], -1)[:, 6:], "BOUNDED"),
    ("the other half", lambda x: torch.cat([x, torch.tanh(x)], -1)[:, 3:9], "LINEAR"),
    ("halves exchanged", lambda x: torch.cat([torch.tanh(x), x], -1).chunk(2, -1)[0], "BOUNDED"),
    ("one row beside others", lambda x: (torch.stack([x.tanh(), x], 1) + 1.0)[:, 0] * 2, "BOUNDED"),
]


@pytest.mark.parametrize(("name", "function", "expected"), CASES, ids=[name for name, _, _ in CASES])
def test_growth_of(name: str, function: Callable[[Tensor], Tensor], expected: str) -> None:
    assert growth_of(function) == expected


MOVED: list[Callable[[Tensor], Tensor]] = [
    lambda x: torch.stack([x.tanh(), x, x.sin()], 0).permute(1, 0, 2)[:, 2] + 1,
    lambda x: torch.stack([x.tanh(), x], -1).permute(2, 0, 1)[0] * 3,
    lambda x: torch.cat([x.tanh(), x, x.sigmoid()], 1).permute(1, 0)[12:15].permute(1, 0),
    lambda x: nn.functional.layer_norm(torch.stack([x, x.tanh()], 1), (6,))[:, 0],
    lambda x: (torch.stack([x, x.tanh()], 1) + nn.functional.normalize(x, dim=-1).unsqueeze(1))[:, 1],
    lambda x: torch.cat([x, x.tanh()], -1).split([2, 4, 6], -1)[2] ** 2,
    lambda x: torch.where(x > 1, torch.cat([x.tanh(), x], -1)[:, 3:9], x.cos()).unbind(1)[2],
    lambda x: torch.softmax(torch.stack([x, x.tanh() * 9], 1), -1)[:, 1],
]


@pytest.mark.parametrize("function", [*(f for _, f, _ in CASES), *MOVED])
def test_claims_about_functions_are_never_contradicted(function: Callable[[Tensor], Tensor]) -> None:
    program = capture(Plain(function), (torch.zeros(5, 6, dtype=torch.float64),), dynamic_batch=False)
    analysis = analyze_growth(program)
    rng = torch.Generator().manual_seed(0)
    rows = [torch.randn(5, 6, generator=rng, dtype=torch.float64) for _ in range(6)]
    rows += [
        torch.eye(6, dtype=torch.float64)[:5],
        -torch.eye(6, dtype=torch.float64)[1:],
        torch.ones(5, 6).double(),
    ]
    assert not interval_violations(program, analysis, [[radius * u] for u in rows for radius in RADII])
    for u in rows:
        assert not rate_violations(program, analysis, [u])


def test_slices_are_seen_through() -> None:
    found = [growth_of(function) for function in MOVED]
    assert found == ["BOUNDED"] * 6 + ["LINEAR", "BOUNDED"]


def test_each_input_is_judged_alone() -> None:
    def function(state: Tensor, action: Tensor) -> Tensor:
        return torch.tanh(state) * action**2

    program = capture(Plain(function), (X, X.clone()))
    analysis = analyze_growth(program)
    output, (state, action) = program.outputs[0], [spec.name for spec in program.inputs]
    assert analysis.growth(output, state).kind is Kind.BOUNDED
    assert analysis.growth(output, action).degree == 2
    assert analysis.growth(output).degree == 2
    with pytest.raises(UnknownNameError, match="real-valued input"):
        analysis.growth(output, "velocity")


def test_integer_inputs_are_bounded_by_nature_and_say_so() -> None:
    table = nn.Embedding(5, 3)
    program = capture(table, (torch.tensor([[0, 1]]),))
    growth = analyze_growth(program).growth(program.outputs[0])
    assert growth.bounded
    assert growth.interval[1] >= float(table.weight.detach().max())
    assert "bounded by nature" in str(growth.assumptions[0])


def test_a_norm_without_epsilon_is_bounded_under_an_assumption() -> None:
    program = capture(nn.LayerNorm(6, eps=0.0), (X,))
    growth = analyze_growth(program).growth(program.outputs[0])
    assert growth.bounded
    assert "constant row" in growth.assumptions[0].text


def test_layer_norm_bound_is_attained() -> None:
    """|ẑ_i| ≤ √(d − 1), reached as one feature runs away from the rest."""
    program = capture(nn.LayerNorm(6, elementwise_affine=False), (X,))
    lo, hi = analyze_growth(program).growth(program.outputs[0]).interval
    value = program.evaluate(1e8 * torch.eye(6, dtype=torch.float64)[:1])[program.outputs[0]]
    assert float(value.max()) <= hi <= float(value.max()) * (1 + 1e-9)
    assert lo == -hi


def test_batch_norm_in_training_is_not_a_function_of_its_input() -> None:
    def function(x: Tensor) -> Tensor:
        return nn.functional.batch_norm(x, None, None, training=True)

    assert growth_of(function, torch.zeros(4, 6)) == "UNKNOWN:"


def test_an_operator_without_a_rule_is_unknown_at_its_node() -> None:
    register_operator(
        Operator(
            "test_squash",
            "test",
            "x / (1 + |x|), unheard of",
            ("input",),
            (),
            lambda node, tensors: nn.functional.softsign(tensors[0]),
            (Example(nn.functional.softsign, ()),),
        )
    )
    try:
        program = capture(Plain(torch.tanh), (X,))
        nodes = tuple(n if n.op != "tanh" else _renamed(n, "test_squash") for n in program.nodes)
        program = _with_nodes(program, nodes)
        growth = analyze_growth(program).growth(program.outputs[0])
        assert growth.kind is Kind.UNKNOWN
        assert growth.reason is not None
        assert growth.reason.node == next(n.name for n in nodes if n.op == "test_squash")
        assert "register_growth_rule" in growth.reason.text

        def squash(site: Site) -> Extent:
            return interval(-1.0, 1.0, *site.everything())

        register_growth_rule("test_squash", squash)
        assert analyze_growth(program).growth(program.outputs[0]).interval == (-1.0, 1.0)
        register_growth_rule("test_squash", lambda site: 1 / 0)
        assert "failed" in str(analyze_growth(program).growth(program.outputs[0]).reason)
    finally:
        unregister_growth_rule("test_squash")
        unregister_operator("test_squash")


def _renamed(node: object, op: str) -> object:
    from dataclasses import replace

    return replace(node, op=op)  # type: ignore[type-var]


def _with_nodes(program: object, nodes: tuple[object, ...]) -> object:
    from dataclasses import replace

    return replace(program, nodes=nodes)  # type: ignore[type-var]


def test_dead_weights_carry_nothing() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    nn.init.zeros_(model[2].weight)
    program = capture(model, (X,))
    growth = analyze_growth(program).growth(program.outputs[0])
    assert growth.kind is Kind.CONSTANT


def test_to_dict_is_plain_data() -> None:
    import json

    program = capture(nn.Sequential(nn.Linear(6, 8), nn.ReLU()), (X,))
    text = json.dumps(analyze_growth(program).to_dict(), allow_nan=False)
    assert '"linear"' in text
