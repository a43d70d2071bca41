"""Multipliers between the units of a problem and those of the model, in which certificates hold them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from farfield.certify._proofs import BoxMultipliers, CurveMultipliers, DualProof, NormMultipliers, pack
from farfield.certify.affine import Network
from farfield.certify.dual._dual import Multipliers, product_forms
from farfield.certify.dual._layers import LayerSearch
from farfield.certify.dual._nested import Nested, NestedMultipliers
from farfield.certify.dual._problem import Ball, Problem
from farfield.certify.dual._prove import ProvedValue

__all__ = ["publish", "publish_nested", "restore", "restore_nested"]


def publish(
    network: Network, problem: Problem, proved: ProvedValue, output: int, sign: int,
    layers: Sequence[LayerSearch] = (),
) -> DualProof:  # fmt: skip
    """The proof in the model's own units; ``layers`` are behind the problem's smaller ranges."""
    m = proved.multipliers
    curves: dict[str, CurveMultipliers] = {}
    for i, curve in enumerate(problem.curves):
        unit, inner = curve.unit, curve.columns is not None
        curves[network.blocks[curve.block].node] = CurveMultipliers(
            m[f"theta{i}"] / unit**2,
            m[f"r{i}"] / unit,
            curve.lo * unit,
            curve.hi * unit,
            m[f"t{i}"] / unit**2 if inner else None,
            m[f"e{i}"] / unit**2 if inner else None,
            m[f"s{i}"] / unit if inner else None,
        )
    norms: dict[str, NormMultipliers] = {}
    for j, (name, scale, ball) in enumerate(_balls(network, problem)):
        before = norms.get(name, NormMultipliers(ball.parametrized, (), ()))
        kappa = float(m["kappa"][j]) / scale**2
        omega = float(m["omega"][j]) / scale**2 if ball.centered else 0.0
        norms[name] = NormMultipliers(
            ball.parametrized, (*before.kappa, kappa), (*before.omega, omega), enclosure=ball.enclosure
        )
    boxes = {
        network.blocks[box.block].node: BoxMultipliers(
            m[f"bt{j}"] / box.scale**2, m[f"bs{j}"] / box.scale, box.lo * box.scale, box.hi * box.scale
        )
        for j, box in enumerate(problem.boxes)
    }
    forms = []
    for i, a, b, c in product_forms(problem):
        curve = problem.curves[i]
        forms.append((network.blocks[curve.block].node, a, b, float(c[0] * curve.unit[0])))
    unit = _product_units(problem)
    products = m["n"] / unit[:, None] / unit[None, :]
    ranges = dict(_layer(network, problem, layer) for layer in layers)
    return DualProof(
        output, sign, proved.bound, proved.joint, curves, norms, boxes, tuple(forms), products, ranges
    )


def _layer(network: Network, problem: Problem, found: LayerSearch) -> tuple[str, dict[str, Any]]:
    """(node, the multipliers of its ranges in the model's own units), in single precision."""
    m, target = found.multipliers, problem.curves[found.target]
    groups, each = m["factor"].shape
    goal = target.unit.repeat(2).reshape(groups, each)

    def stored(value: Tensor) -> str:
        return pack(value.reshape(-1), "<f4")

    curves: dict[str, Any] = {}
    for k, (i, inner) in enumerate(zip(found.curves, found.inner, strict=True)):
        unit = problem.curves[i].unit
        made = {"theta": m[f"theta{k}"] / unit**2, "r": m[f"r{k}"] / unit * goal[:, :, None]}
        if inner:
            made |= {name: m[f"{name}{k}"] / unit**2 for name in ("t", "e")}
            made["s"] = m[f"s{k}"] / unit * goal[:, :, None]
        curves[network.blocks[problem.curves[i].block].node] = {n: stored(v) for n, v in made.items()}
    norms: dict[str, list[tuple[Tensor, Tensor]]] = {}
    none = torch.zeros(groups, dtype=torch.float64)
    used = {network.blocks[problem.balls[j].block].node for j in found.balls}
    for j, (name, scale, ball) in enumerate(_balls(network, problem)):
        if name not in used:
            continue
        pair = (none, none)
        if j in found.balls:
            at = found.balls.index(j)
            pair = (m["kappa"][:, at] / scale**2, m["omega"][:, at] / scale**2 if ball.centered else none)
        norms.setdefault(name, []).append(pair)
    parts = {
        name: {
            what: stored(torch.stack([p[k] for p in pairs], 1)) for k, what in enumerate(("kappa", "omega"))
        }
        for name, pairs in norms.items()
    }
    node = network.blocks[target.block].node
    return node, {"groups": groups, "factor": stored(m["factor"] * goal), "curves": curves, "norms": parts}


def restore(network: Network, problem: Problem, proof: DualProof) -> Multipliers:
    """Multipliers of a stored proof, in the problem's units: where a search goes on."""
    m: Multipliers = {}
    powers = {"theta": 2, "r": 1, "t": 2, "e": 2, "s": 1}
    for i, curve in enumerate(problem.curves):
        entry = proof.curves[network.blocks[curve.block].node]
        for name, power in powers.items():
            value = getattr(entry, name)
            if value is not None:
                m[f"{name}{i}"] = value * curve.unit**power
    kappa, omega, seen = [], [], dict.fromkeys(proof.norms, 0)
    for name, scale, _ in _balls(network, problem):
        kappa.append(proof.norms[name].kappa[seen[name]] * scale**2)
        omega.append(proof.norms[name].omega[seen[name]] * scale**2)
        seen[name] += 1
    m["kappa"] = torch.tensor(kappa, dtype=torch.float64)
    m["omega"] = torch.tensor(omega, dtype=torch.float64)
    for j, box in enumerate(problem.boxes):
        held = proof.boxes[network.blocks[box.block].node]
        m[f"bt{j}"], m[f"bs{j}"] = held.t * box.scale**2, held.s * box.scale
    unit = _product_units(problem)
    m["n"] = proof.products * unit[:, None] * unit[None, :]
    return m


def publish_nested(
    network: Network, nested: Nested, found: NestedMultipliers, output: int, sign: int
) -> DualProof:
    """The proof of a nested problem: both problems' multipliers, and the products of their forms in one matrix."""
    outer, inner = (
        publish(network, problem, ProvedValue(found.bound, found.bound, m), output, sign)
        for problem, m in ((nested.outer, found.outer), (nested.inner, found.inner))
    )
    norms = {name: replace(norm, nested=True) for name, norm in outer.norms.items()}
    at_outer, at_inner = _form_places(nested)
    size = len(at_outer) + len(at_inner)
    products = torch.zeros(size, size, dtype=torch.float64)
    products[at_outer[:, None], at_outer] = outer.products
    products[at_inner[:, None], at_inner] = inner.products
    half = 0.5 * found.nu / _product_units(nested.inner)
    products[0, at_inner] += half
    products[at_inner, 0] += half
    return replace(
        outer, curves={**inner.curves, **outer.curves}, norms={**inner.norms, **norms},
        forms=(*inner.forms, *outer.forms), products=products,
    )  # fmt: skip


def restore_nested(network: Network, nested: Nested, proof: DualProof) -> list[NestedMultipliers] | None:
    """Where a search of a nested problem goes on; ``None`` if the proof is not one of it."""
    name = network.blocks[nested.outer.balls[0].block].node
    if name not in proof.norms or not proof.norms[name].nested:
        return None
    at_outer, at_inner = _form_places(nested)
    if len(proof.products) != len(at_outer) + len(at_inner):
        return None
    own = [replace(proof, products=proof.products[at[:, None], at]) for at in (at_outer, at_inner)]
    try:
        outer, inner = (
            restore(network, problem, part)
            for problem, part in zip((nested.outer, nested.inner), own, strict=True)
        )
    except KeyError:
        return None
    # What moves by factors needs somewhere to begin.
    inner["floor"] = (-inner["kappa"]).clamp_min(0.0)
    inner["kappa"] = (inner["kappa"] + inner["floor"]).clamp_min(1e-12)
    inner["omega"] = inner["omega"].clamp_min(1e-12)
    nu = 2 * proof.products[0, at_inner] * _product_units(nested.inner)
    return [NestedMultipliers(outer, inner, nu)]


def _form_places(nested: Nested) -> tuple[Tensor, Tensor]:
    """Rows of N that the outer problem's products stand in, and those of the inner one's."""
    heads = nested.inner.cone.shape[0]  # t of every parametrized norm
    inner = sum(len(c) for *_, c in product_forms(nested.inner))
    outer = sum(len(c) for *_, c in product_forms(nested.outer))
    begin = 2 + heads
    at_inner = [1 + heads, *range(1, 1 + heads), *range(begin, begin + inner)]
    at_outer = [0, *range(begin + inner, begin + inner + outer)]
    return torch.tensor(at_outer), torch.tensor(at_inner)


def _balls(network: Network, problem: Problem) -> Iterator[tuple[str, float, Ball]]:
    """(node, unit, ball) of every ball."""
    for ball in problem.balls:
        block = network.blocks[ball.block]
        yield block.node, 1.0 if ball.parametrized else block.radius / ball.radius, ball


def _product_units(problem: Problem) -> Tensor:
    units = [torch.ones(1, dtype=torch.float64), problem.cone_scale]
    return torch.cat([*units, *(problem.curves[i].unit for i, *_ in product_forms(problem))])
