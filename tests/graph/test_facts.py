"""What every operator says it *is*, held against what it computes; registering an operator enrolls it here."""

import dataclasses
import functools
import math

import pytest
import torch

from farfield.gaussian import scalar_function, scalar_function_names
from farfield.graph import (
    Node,
    compose,
    compute_node,
    describe,
    linear_part,
    operator,
    operator_names,
    operators,
)
from graph.test_operators import raw_family


@functools.cache
def captured(family):
    """The nodes of one family's examples, with the values of their operands."""
    _, inputs, program = raw_family(family)
    values = program.evaluate(*inputs)
    nodes = [node for node in program.nodes if node.role == "operation"]
    return [(n, [None if i is None else values[i] for i in n.inputs]) for n in nodes]


def calls(name):
    return [(n, t) for n, t in captured(operator(name).family) if n.op == name]


def floating(tensor):
    return isinstance(tensor, torch.Tensor) and (tensor.is_floating_point() or tensor.is_complex())


def run(node, tensors):
    value = compute_node(node, tensors, {}, torch.float64)
    parts = value if isinstance(value, tuple | list) else (value,)
    return torch.cat([part.reshape(-1) for part in parts])


def check_linear(node, tensors, facts):
    """L(a·u + b·v) = a·L(u) + b·L(v) and f(x) = L(x) + f(0), for every group."""
    generator = torch.Generator().manual_seed(3)
    checked = 0
    for group in facts.linear:
        moving = [i for i in group if i < len(tensors) and floating(tensors[i])]
        if not moving:
            continue
        checked += 1

        def filled(base, parts, moving=moving):
            given = list(base)
            for i, part in zip(moving, parts, strict=True):
                given[i] = part
            return given

        def drawn(moving=moving):
            return [
                torch.randn(tensors[i].shape, generator=generator, dtype=tensors[i].dtype) for i in moving
            ]

        part, rest = linear_part(node, tensors, group, moving)
        u, v = drawn(), drawn()
        mixed = [2.5 * a - 0.5 * b for a, b in zip(u, v, strict=True)]
        left = run(part, filled(rest, mixed))
        right = 2.5 * run(part, filled(rest, u)) - 0.5 * run(part, filled(rest, v))
        torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-9, check_dtype=False)
        zero = [torch.zeros_like(a) for a in u]
        affine = run(node, filled(tensors, u)) - run(node, filled(tensors, zero))
        torch.testing.assert_close(
            affine, run(part, filled(rest, u)), rtol=1e-9, atol=1e-9, check_dtype=False
        )
    return checked


def check_monotone(node, tensors, facts):
    for position, sign in enumerate(facts.monotone):
        x = tensors[position] if position < len(tensors) else None
        if not sign or not isinstance(x, torch.Tensor) or not x.is_floating_point():
            continue
        for seed in range(4):
            step = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed), dtype=x.dtype)
            step = 0.03 * step * (torch.rand(x.shape, dtype=x.dtype) > 0.4)
            given = list(tensors)
            given[position] = x + step
            before, after = run(node, tensors), run(node, given)
            if before.is_complex():
                continue
            fell = sign * (after.double() - before.double()) < -1e-12
            assert not bool(fell.any()), (node.op, position)


def check_range(node, tensors, facts):
    """The example's operands, and others a thousand times as large, stay within the range."""
    lo, hi = facts.range
    for factor in (1.0, -1.0, 1e3, -1e3):
        given = [factor * t if isinstance(t, torch.Tensor) and t.is_floating_point() else t for t in tensors]
        value = run(node, given)
        if value.is_complex():
            continue
        inside = value[~value.isnan()] if value.is_floating_point() else value
        assert bool((inside >= lo).all() and (inside <= hi).all()), node.op
        assert not facts.positive or lo >= 0.0


def check_moves(node, tensors, facts):
    sources = [tensors[i] for i in facts.linear[0] if i < len(tensors) and tensors[i] is not None]
    named = operator(node.op).arguments
    numbers = [node.attributes[n] for n in named if isinstance(node.attributes.get(n), int | float)]
    flat = [s.reshape(-1) for source in sources for s in (source if isinstance(source, tuple) else (source,))]
    pool = {*(complex(v) for t in flat for v in t.tolist()), *(complex(n) for n in numbers)}
    pool |= {0j} if facts.fills else set()
    assert {complex(v) for v in run(node, tensors).tolist()} <= pool, node.op


def check_entrywise(node, tensors, facts):
    """Changing one row of the result's broadcast operands changes no other row."""
    x = tensors[0]
    if not floating(x) or x.ndim == 0 or x.shape[0] < 2:
        return
    given = list(tensors)
    changed = x.clone()
    changed[0] = 0.5 * changed[0]
    given[0] = changed
    before, after = (compute_node(node, t, {}, torch.float64) for t in (tensors, given))
    if before.shape == x.shape:
        assert torch.equal(before[1:].nan_to_num(), after[1:].nan_to_num()), node.op


def check_products(node, tensors, facts):
    """Per operand of a group, the coefficients are entries of the other operands: |L| is L of their sizes."""
    for group in facts.linear:
        for p in (p for p in group if p < len(tensors) and floating(tensors[p])):
            if any(t is not None and t.is_complex() for t in tensors):
                continue
            pool = {
                0.0,
                1.0,
                *(
                    v
                    for i, t in enumerate(tensors)
                    if t is not None and i != p
                    for v in t.reshape(-1).tolist()
                ),
            }
            pool |= {float(v) for v in node.attributes.values() if isinstance(v, int | float)}
            part, rest = linear_part(node, tensors, group, [p])
            sizes = [t.abs() if floating(t) else t for t in rest]
            for unit in torch.eye(tensors[p].numel(), dtype=torch.float64).reshape(-1, *tensors[p].shape):
                found, size = (run(part, [*t[:p], unit, *t[p + 1 :]]) for t in (rest, sizes))
                assert set(found.tolist()) <= pool, node.op
                assert torch.equal(found.abs(), size.abs()), node.op


def check_norm(node, tensors, facts):
    spec, x = facts.norm, tensors[0].double()
    shape = tuple(x.shape)
    index = spec.group_index(shape)
    groups = x.reshape(-1)[index]
    assert sorted(index.reshape(-1).tolist()) == list(range(x.numel()))
    size = index.shape[1]
    assert size == spec.size(shape)
    if spec.centered:
        groups = groups - groups.mean(-1, keepdim=True)
    length = torch.linalg.vector_norm(groups, spec.order, -1, keepdim=True) / spec.count(size) ** 0.5
    if spec.eps_mode == "inside":
        length = (length**2 + spec.eps).sqrt()
    else:
        length = length + spec.eps if spec.eps_mode == "outside" else length.clamp_min(spec.eps)
    unit = groups / length
    assert bool((unit.norm(dim=-1) <= spec.radius(size) * (1 + 1e-12)).all())
    value = torch.empty(x.numel(), dtype=torch.float64)
    value[index] = unit
    value = value.reshape(shape)
    if spec.weight is not None:
        value = value * spec.spread(tensors[spec.weight], shape)
    if spec.bias is not None:
        value = value + spec.spread(tensors[spec.bias], shape)
    torch.testing.assert_close(compute_node(node, tensors, {}, torch.float64), value, rtol=1e-9, atol=1e-9)


def check_scalar(node, tensors, facts):
    """The function of one number is what the operator does to every entry."""
    x = torch.linspace(-30, 30, 6001, dtype=torch.float64)
    value = compute_node(node, [x], {}, torch.float64)
    torch.testing.assert_close(facts.scalar(x), value, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", operator_names())
def test_facts_hold(name):
    for node, tensors in calls(name):
        facts = describe(node)
        first, second = (compute_node(node, tensors, {}, torch.float64) for _ in range(2))
        if facts.deterministic and isinstance(first, torch.Tensor):
            assert torch.equal(first.nan_to_num(), second.nan_to_num())
        check_linear(node, tensors, facts)
        if facts.deterministic:
            check_monotone(node, tensors, facts)
        if facts.moves:
            assert facts.linear
            check_moves(node, tensors, facts)
        if facts.entrywise:
            check_entrywise(node, tensors, facts)
        if facts.norm is not None:
            check_norm(node, tensors, facts)
        if facts.scalar is not None:
            check_scalar(node, tensors, facts)
        if facts.positive:
            assert bool((run(node, tensors) > 0).all())
        if facts.deterministic and facts.range != (-math.inf, math.inf):
            check_range(node, tensors, facts)
        if facts.products:
            check_products(node, tensors, facts)


def test_most_linear_operators_are_really_checked():
    """The check of linearity would be empty if no example had a floating operand in a group."""
    checked = {n.op for op in operators() for n, t in calls(op.name) if check_linear(n, t, describe(n))}
    declared = {n.op for op in operators() for n, _ in calls(op.name) if describe(n).linear}
    assert declared - checked <= {"cast", "getitem"}
    assert len(checked) > 40


@pytest.mark.parametrize(
    ("op", "claim"),
    [("relu", {"linear": ((0,),)}), ("mul", {"linear": ((0, 1),)})],
)
def test_a_false_fact_is_noticed(op, claim):
    def falsely():
        for node, tensors in calls(op):
            check_linear(node, tensors, dataclasses.replace(describe(node), **claim))

    with pytest.raises(AssertionError):
        falsely()


@pytest.mark.parametrize("name", [op.name for op in operators() if op.composed is not None])
def test_a_composition_computes_the_operator(name):
    composed = 0
    for node, tensors in calls(name):
        values = {n: t for n, t in zip(node.inputs, tensors, strict=True) if n is not None}
        for part in compose(node):
            given = [None if n is None else values[n] for n in part.inputs]
            values[part.name] = compute_node(part, given, {}, torch.float64)
            composed += 1
        if node.name in values:
            expected = compute_node(node, tensors, {}, torch.float64)
            torch.testing.assert_close(values[node.name], expected, rtol=1e-12, atol=1e-12)
    assert composed


def test_a_range_that_is_too_small_is_noticed():
    node, tensors = calls("square")[0]
    with pytest.raises(AssertionError):
        check_range(node, tensors, dataclasses.replace(describe(node), range=(0.0, 1.0)))


def test_an_interpolation_is_no_sum_of_products():
    node, tensors = calls("lerp")[0]
    with pytest.raises(AssertionError):
        check_products(node, tensors, describe(node))


def test_a_falling_function_is_not_called_rising():
    node, tensors = calls("neg")[0]
    with pytest.raises(AssertionError):
        check_monotone(node, tensors, dataclasses.replace(describe(node), monotone=(1,)))


@pytest.mark.parametrize("name", scalar_function_names())
def test_every_scalar_function_belongs_to_an_operator(name):
    needed = {"threshold": {"threshold": 0.3, "value": -0.5}}.get(name, {})
    facts = describe(Node("y", name, inputs=("x",), attributes=needed))
    assert facts.scalar is scalar_function(name, needed)
    assert (facts.monotone, facts.positive) == ((facts.scalar.monotone,), facts.scalar.positive)


def test_another_function_is_not_taken_for_it():
    node, tensors = calls("gelu")[0]
    other = dataclasses.replace(describe(node), scalar=scalar_function("silu"))
    with pytest.raises(AssertionError):
        check_scalar(node, tensors, other)


def test_what_a_mode_changes():
    """Facts are read with the node's own attributes, result type and mode."""
    train = Node("y", "dropout", inputs=("x",), attributes={"p": 0.5, "train": True})
    serve = Node("y", "dropout", inputs=("x",), attributes={"p": 0.5, "train": False})
    assert not describe(train).deterministic
    assert not describe(train).moves
    assert describe(serve).moves
    assert not describe(Node("y", "cast", inputs=("x",), dtype=torch.int64)).moves
    assert describe(Node("y", "cast", inputs=("x",), dtype=torch.float16)).moves
    assert not describe(Node("y", "sum", inputs=("x",), dtype=torch.int64)).linear
    assert not describe(Node("y", "random")).deterministic
    floor = Node("y", "div", inputs=("x", None), attributes={"other": 2.0, "rounding_mode": "floor"})
    assert not describe(floor).linear
    batch = {"training": True, "eps": 1e-5}
    assert not describe(
        Node("y", "batch_norm", inputs=("x", None, None, None, None), attributes=batch)
    ).linear
    stored = {"use_input_stats": False, "eps": 1e-5}
    assert describe(Node("y", "instance_norm", inputs=("x",), attributes=stored)).norm is None


def test_a_computed_weight_is_an_operand():
    node = Node("y", "layer_norm", inputs=("x", "w", None), attributes={"dim": (1,), "eps": 1e-5})
    spec = describe(node).norm
    assert (spec.weight, spec.bias) == (1, None)
