"""The jet rule of any node: its operator's own, that of what it is composed of, or what its facts say."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from farfield.graph import Facts, Node, compose, describe, linear_part
from farfield.growth._jet import ABOVE, ROUNDING, Jet, add, as_real, constant, from_terms, unknown_like
from farfield.growth._step import JET_RULES, JetRule, JetValue, Step
from farfield.growth.jets.elementwise import limit_only
from farfield.growth.jets.shape import moved, places

__all__ = ["rule_of"]

INF = math.inf


def rule_of(node: Node) -> JetRule | None:
    """The rule of a node, ``None`` where nothing is known that would give one."""
    rule = JET_RULES.find(node)
    if rule is not None:
        return rule
    small = compose(node)
    if small and all(rule_of(part) is not None for part in small):
        return _composed(small)
    facts = describe(node)
    if facts.moves:
        return _move(facts)
    if facts.linear:
        return _linear(facts)
    if facts.domain is not None:
        return limit_only
    if all(math.isfinite(end) for end in facts.range):
        return _confined
    return None


def _composed(nodes: tuple[Node, ...]) -> JetRule:
    """The rules of the small nodes, one after another."""

    def rule(step: Step) -> JetValue:
        values: dict[str, Any] = dict(zip(step.node.inputs, step.operands, strict=True))  # type: ignore[arg-type]
        for node in nodes:
            operands = tuple(None if name is None else values[name] for name in node.inputs)
            own = rule_of(node)
            assert own is not None
            values[node.name] = own(replace(step, node=node, operands=operands)).trimmed(step.lowest)
        result: JetValue = values[nodes[-1].name]
        return result

    return rule


def _move(facts: Facts) -> JetRule:
    """The operands of the group lie first; what follows names places."""
    count = len(facts.linear[0])

    def rule(step: Step) -> JetValue:
        indices, decided = places(step, count)
        result = moved(step, [step.jet(i) for i in range(count)], indices)
        return result if decided or not isinstance(result, Jet) else unknown_like(result)

    return rule


def _linear(facts: Facts) -> Callable[[Step], Jet]:
    """L(v) + f(0), coefficient by coefficient; errors from the size of L on vectors of the same size."""

    def rule(step: Step) -> Jet:
        jets = [None if operand is None else as_real(step.jet(i)) for i, operand in enumerate(step.operands)]
        moving = [i for i, jet in enumerate(jets) if jet is not None and not jet.is_constant]
        group = facts.linear_group(moving)
        if group is None:
            raise ValueError("operands move that it is not linear in together")
        tensors: list[Any] = [None if jet is None else jet.at(0.0) for jet in jets]
        node, rest = linear_part(step.node, tensors, group, moving)
        part = replace(step, node=node)
        given = {i: jet for i, jet in enumerate(jets) if jet is not None and i in moving}

        def applied(fill: dict[int, Tensor], of: Step, others: list[Any]) -> Tensor:
            result: Tensor = of.compute(*(fill.get(i, other) for i, other in enumerate(others)))
            return result

        generator = torch.Generator().manual_seed(0)
        terms: dict[float, tuple[Tensor, Tensor]] = {}
        for power in sorted({p for jet in given.values() for p in jet.powers}, reverse=True):
            parts = {i: jet.at(power) for i, jet in given.items()}
            value = applied(parts, part, rest)
            with torch.no_grad():
                size, relative = value.abs().amax(), ROUNDING
                for i, jet in given.items():
                    signs = torch.randn(jet.shape, generator=generator).sign().to(jet.values.device)
                    size = torch.maximum(
                        size, applied({**parts, i: parts[i] * signs}, part, rest).abs().amax()
                    )
                    largest = parts[i].abs().amax().clamp_min(1e-300)
                    relative = max(relative, float(jet.error_at(power).amax() / largest))
                terms[power] = (value, torch.full_like(value, 32.0 * float(size) * relative))
        floor = max(float(jet.full_floor().max()) for jet in given.values())
        offset = applied({i: torch.zeros_like(jet.at(0.0)) for i, jet in given.items()}, step, tensors)
        shape = (1,) * offset.ndim
        return add(from_terms(terms, torch.full(shape, floor, dtype=torch.float64)), constant(offset))

    return rule


def _confined(step: Step) -> Jet:
    """A value within a finite range, and nothing else known of it."""
    example = step.compute(*(None if o is None else step.jet(i).at(0.0) for i, o in enumerate(step.operands)))
    return unknown_like(constant(example), ABOVE)
