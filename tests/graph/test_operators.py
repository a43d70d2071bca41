"""The contract every registered operator keeps, and that a faulty one breaks."""

import dataclasses
import functools
import itertools
from collections.abc import Callable

import pytest
import torch
from torch import nn

from captured import kept
from farfield.errors import InvalidValueError, UnknownNameError
from farfield.graph import operator, operator_names, operators, register_operator
from farfield.graph._fold import fold
from farfield.graph._simplify import simplify
from farfield.graph.operators import (
    Example,
    Operator,
    Sample,
    Target,
    find_operator,
    registered_targets,
    unregister_operator,
)
from farfield.graph.recognition import recognize
from graph.support import EXACT, Function, assert_same, raw_program, tensors_of

UNREPEATABLE = {"bernoulli", "empty", "randint", "random"}
MINIMUM = """
    linear matmul conv conv_transpose embedding add sub mul div neg pow square sqrt rsqrt reciprocal exp expm1 log
    log1p abs sign sin cos tanh sigmoid hardtanh hardsigmoid hardswish relu leaky_relu prelu elu selu celu gelu silu
    mish softplus softsign erf logsigmoid tanhshrink softshrink hardshrink threshold softmax log_softmax logsumexp
    layer_norm rms_norm group_norm instance_norm batch_norm l2_normalize sum mean var std prod amax amin argmax
    maximum minimum clamp where cumsum norm attention max_pool avg_pool adaptive_avg_pool interpolate pad cat stack
    split chunk getitem slice select index index_select gather scatter reshape permute expand repeat squeeze
    unsqueeze cast dropout identity gt lt ge le eq ne logical_and logical_or logical_not arange full tril triu
    masked_fill fft_rfft fft_irfft real imag view_as_real topk sort roll flip lstm gru rnn_tanh rnn_relu
"""


class Examples(nn.Module):
    """Examples of several operators as one model: a child per operator, so that nodes say whose they are."""

    def __init__(self, ops):
        super().__init__()
        self.calls = [
            (op.name, example.function, len(example.samples)) for op in ops for example in op.examples
        ]
        self.of = nn.ModuleDict({op.name: Called() for op in ops})

    def forward(self, *inputs):
        rest = iter(inputs)
        return [
            self.of[name](function, *itertools.islice(rest, count)) for name, function, count in self.calls
        ]


class Called(nn.Module):
    def forward(self, function, *inputs):
        return function(*inputs)


@functools.cache
def raw_family(family):
    """A family's examples as one model, their inputs, and its program before any pass."""
    ops = [op for op in operators() if op.family == family]
    model = Examples(ops)
    inputs = tuple(tensor for op in ops for example in op.examples for tensor in example.inputs())
    return model, inputs, kept(f"raw.{family}", lambda: raw_program(model, inputs, dynamic_batch=False))


def check_operators(ops, *, dynamic_batch=False) -> dict[str, Callable[[], None]]:
    """Capture the examples of some operators together; operator name → the check of its contract.

    Captured, each example holds its operator, and the interpreter agrees with plain torch before and after
    the passes.
    """
    model = Examples(ops)
    inputs = tuple(tensor for op in ops for example in op.examples for tensor in example.inputs())
    return checks(ops, model, inputs, raw_program(model, inputs, dynamic_batch=dynamic_batch))


def checks(ops, model, inputs, raw) -> dict[str, Callable[[], None]]:
    """Operator name → the check of its contract, where its examples are captured already."""
    final = recognize(simplify(fold(raw)))
    values = [program.evaluate(*inputs) for program in (raw, final)]
    returned = model(*inputs)
    ends = itertools.accumulate((len(tensors_of(part)) for part in returned), initial=0)
    spans = {}
    for (name, _, _), (begin, end) in zip(model.calls, itertools.pairwise(ends), strict=True):
        spans.setdefault(name, []).append(range(begin, end))
    flat = tensors_of(returned)

    def check(op: Operator) -> None:
        own = {n.op for p in (raw, final) for n in p.nodes if n.module_path == f"of.{op.name}"}
        assert op.name in own, f"{op.name} is not among {sorted(own)}"
        for program, value in zip((raw, final), values, strict=True):
            for node in program.find(op.name):
                if node.role == "operation" and op.variadic is None:
                    assert len(node.inputs) == len(op.arguments)
            for index in itertools.chain.from_iterable(spans[op.name]):
                got, want = value[program.outputs[index]], flat[index]
                declared = program.node(program.outputs[index]).shape
                assert got.shape == want.shape
                assert got.dtype == want.dtype
                assert all(isinstance(d, str) or d == n for d, n in zip(declared, got.shape, strict=True))
                if op.name not in UNREPEATABLE:
                    torch.testing.assert_close(got, want, equal_nan=True, **EXACT)

    return {op.name: functools.partial(check, op) for op in ops}


@functools.cache
def family_checks(family: str):
    return checks([op for op in operators() if op.family == family], *raw_family(family))


@pytest.mark.parametrize("name", operator_names())
def test_contract(name):
    op = operator(name)
    assert op.summary
    assert op.examples
    family_checks(op.family)[name]()


@pytest.mark.full
@pytest.mark.parametrize("family", ["create", "join", "reduce", "shape"])
def test_contract_with_open_sizes(family):
    """Where sizes are among the arguments, the contract also holds for axes of unknown length."""
    for check in check_operators(
        [op for op in operators() if op.family == family], dynamic_batch=True
    ).values():
        check()


@pytest.mark.full
@pytest.mark.parametrize("family", sorted({op.family for op in operators()}))
def test_decomposed_capture_agrees_too(family):
    """A family's examples as one model, taken apart to core ATen as far as the table goes."""
    ops = [op for op in operators() if op.family == family and op.name not in UNREPEATABLE]
    inputs = tuple(tensor for op in ops for example in op.examples for tensor in example.inputs())
    model = Examples(ops)
    raw = raw_program(model, inputs, decompose=True, dynamic_batch=False)
    assert_same(raw, inputs, model(*inputs))
    assert_same(recognize(simplify(fold(raw))), inputs, model(*inputs))


def test_the_names_that_growth_rules_are_written_for_exist():
    assert not set(MINIMUM.split()) - set(operator_names())


def test_every_target_names_a_function_that_torch_has():
    absent = []
    for target in registered_targets():
        namespace, _, rest = target.partition("#")[0].partition(".")
        packet, _, overload = rest.partition(".")
        if namespace == "aten" and not hasattr(getattr(torch.ops.aten, packet, None), overload):
            absent.append(target)
    assert not absent


WRONG = {
    "wrong value": lambda node, tensors: torch.sinc(tensors[0]) + 1e-9,
    "wrong shape": lambda node, tensors: torch.sinc(tensors[0])[None],
    "wrong type": lambda node, tensors: torch.sinc(tensors[0]).float(),
}


@pytest.fixture
def sinc():
    """An operator that nobody registers, torch takes apart, and a test may define wrongly."""
    yield Operator(
        "sinc",
        "elementwise",
        "sin(πx)/(πx)",
        ("input",),
        (Target("aten.sinc.default"),),
        lambda node, tensors: torch.sinc(tensors[0]),
        (Example(torch.sinc, (Sample((3, 4)),)),),
    )
    unregister_operator("sinc", missing_ok=True)


def test_a_user_can_register_an_operator_and_it_stays_whole(sinc):
    example = sinc.example
    taken_apart = raw_program(Function(example.function), example.inputs())
    assert "sinc" not in {node.op for node in taken_apart.nodes}
    assert register_operator(sinc) is sinc
    check_operators([sinc])["sinc"]()
    unregister_operator("sinc")
    assert find_operator("aten.sinc.default") is None


@pytest.mark.parametrize("fault", WRONG)
def test_the_contract_catches_a_wrong_operator(sinc, fault):
    register_operator(dataclasses.replace(sinc, compute=WRONG[fault]))
    with pytest.raises(AssertionError):
        check_operators([operator("sinc")])["sinc"]()


def test_the_contract_catches_an_operator_that_is_never_captured(sinc):
    register_operator(dataclasses.replace(sinc, targets=(Target("aten.never.default"),)))
    with pytest.raises(AssertionError, match="not among"):
        check_operators([operator("sinc")])["sinc"]()


def test_registration_refuses_what_would_confuse(sinc):
    with pytest.raises(InvalidValueError, match="reserved"):
        register_operator(dataclasses.replace(sinc, name="unknown"))
    with pytest.raises(InvalidValueError, match="already means 'relu'"):
        register_operator(dataclasses.replace(sinc, targets=(Target("aten.relu.default"),)))
    with pytest.raises(InvalidValueError, match="example"):
        register_operator(dataclasses.replace(sinc, examples=()))
    with pytest.raises(UnknownNameError, match="relu"):
        operator("rellu")
    with pytest.raises(UnknownNameError):
        unregister_operator("sinc")


def test_examples_draw_from_their_own_generator():
    state = torch.get_rng_state()
    first, second = operator("linear").example.inputs(3), operator("linear").example.inputs(3)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert torch.equal(state, torch.get_rng_state())
