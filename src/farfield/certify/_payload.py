"""Proofs as plain data, in the model's own units: what a certificate stores and a checker reads.

A dual proof of sign·output ≤ bound lists, by node name and in natural units (y = σ(z) as the model computes them):

``curves``
    ``theta, r`` and, where y is a variable of the joint part, ``t, e, s`` (one number per entry of the node);
    ``lo, hi``: the range of z the separable maxima were taken over.
``norms``
    ``kappa`` (one number per group), ``omega`` where the norm centres, ``parametrised``: whether the norm's value is
    C u on {u : ‖C u‖²/count + ε t² = 1} (C the centred affine map of the homogeneous input), or only its image.
``boxes``
    ``t, s, lo, hi`` of nodes known by their range alone.
``forms, products``
    Rows of the matrix N of pairwise products, in order: the constant 1; t of every parametrised norm; then for every
    listed ``[node, a, b, c]`` the forms a·y + b·z + c ≥ 0 of all its entries. N is symmetric and not negative.
``joint``
    γ: the joint part is at most this.

Arrays are little-endian float64 (products float32), deflated, in base 64.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from farfield.certify._dual import product_forms
from farfield.certify._network import Network
from farfield.certify._problem import Problem
from farfield.certify._proof import DualProof

__all__ = ["dual_payload", "pack", "restore", "unpack"]


def pack(values: Tensor, kind: str = "<f8") -> str:
    """A tensor's entries as text."""
    raw = values.detach().numpy().astype(kind).tobytes()
    return base64.b64encode(zlib.compress(raw, 6)).decode("ascii")


def unpack(text: str, kind: str = "<f8") -> Tensor:
    """The inverse of :func:`pack`, flat and float64."""
    raw = zlib.decompress(base64.b64decode(text))
    return torch.from_numpy(np.frombuffer(raw, dtype=kind).astype(np.float64))


def dual_payload(
    network: Network, problem: Problem, proof: DualProof, output: int, sign: int
) -> dict[str, Any]:
    """The proof as plain data."""
    m = proof.multipliers
    curves: dict[str, Any] = {}
    for i, curve in enumerate(problem.curves):
        unit = curve.unit
        entry = {
            "theta": pack(m[f"theta{i}"] / unit**2),
            "r": pack(m[f"r{i}"] / unit),
            "lo": pack(curve.lo * unit),
            "hi": pack(curve.hi * unit),
        }
        if curve.columns is not None:
            entry |= {
                "t": pack(m[f"t{i}"] / unit**2),
                "e": pack(m[f"e{i}"] / unit**2),
                "s": pack(m[f"s{i}"] / unit),
            }
        curves[network.blocks[curve.block].node] = entry
    norms: dict[str, Any] = {}
    for j, ball in enumerate(problem.balls):
        block = network.blocks[ball.block]
        scale = 1.0 if ball.parametrised else block.radius / ball.radius
        entry = norms.setdefault(block.node, {"parametrised": ball.parametrised, "kappa": [], "omega": []})
        entry["kappa"].append(float(m["kappa"][j]) / scale**2)
        entry["omega"].append(float(m["omega"][j]) / scale**2 if ball.centred else 0.0)
    boxes = {
        network.blocks[box.block].node: {
            "t": pack(m[f"bt{j}"] / box.scale**2),
            "s": pack(m[f"bs{j}"] / box.scale),
            "lo": pack(box.lo * box.scale),
            "hi": pack(box.hi * box.scale),
        }
        for j, box in enumerate(problem.boxes)
    }
    forms, units = [], [torch.ones(1, dtype=torch.float64), problem.cone_scale]
    for i, a, b, c in product_forms(problem):
        curve = problem.curves[i]
        forms.append([network.blocks[curve.block].node, a, b, float(c[0] * curve.unit[0])])
        units.append(curve.unit)
    unit = torch.cat(units)
    return {
        "kind": "dual",
        "output": output,
        "side": "upper" if sign > 0 else "lower",
        "bound": proof.bound,
        "joint": proof.joint,
        "curves": curves,
        "norms": norms,
        "boxes": boxes,
        "forms": forms,
        "products": pack(m["n"] / unit[:, None] / unit[None, :], "<f4"),
    }


def restore(network: Network, problem: Problem, payload: dict[str, Any]) -> dict[str, Tensor]:
    """Multipliers of a stored proof, in the problem's units: where a search goes on."""
    m: dict[str, Tensor] = {}
    for i, curve in enumerate(problem.curves):
        entry, unit = payload["curves"][network.blocks[curve.block].node], curve.unit
        powers = {"theta": 2, "r": 1, "t": 2, "e": 2, "s": 1}
        m |= {f"{k}{i}": unpack(entry[k]) * unit**p for k, p in powers.items() if k in entry}
    kappa, omega, seen = [], [], dict.fromkeys(payload["norms"], 0)
    for ball in problem.balls:
        block = network.blocks[ball.block]
        scale = 1.0 if ball.parametrised else block.radius / ball.radius
        entry = payload["norms"][block.node]
        kappa.append(entry["kappa"][seen[block.node]] * scale**2)
        omega.append(entry["omega"][seen[block.node]] * scale**2)
        seen[block.node] += 1
    m["kappa"] = torch.tensor(kappa, dtype=torch.float64)
    m["omega"] = torch.tensor(omega, dtype=torch.float64)
    for j, box in enumerate(problem.boxes):
        entry = payload["boxes"][network.blocks[box.block].node]
        m[f"bt{j}"], m[f"bs{j}"] = unpack(entry["t"]) * box.scale**2, unpack(entry["s"]) * box.scale
    unit = torch.cat(
        [torch.ones(1, dtype=torch.float64), problem.cone_scale]
        + [problem.curves[i].unit for i, *_ in product_forms(problem)]
    )
    products = unpack(payload["products"], "<f4").reshape(unit.numel(), unit.numel())
    m["n"] = products * unit[:, None] * unit[None, :]
    return m
