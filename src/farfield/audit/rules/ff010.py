"""FF010: depth, activation and order of norm predict that samples become parallel at initialization."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from farfield.audit._context import Context
from farfield.audit._result import Finding, Outcome
from farfield.audit.rules import Judgment, Rule
from farfield.gaussian import Activation, activation, activation_names, dual, mean_reduced_dual, moments
from farfield.graph import Node

__all__ = ["RULE", "predicted_correlation"]

_LIMIT = 0.95
_MIXING = ("linear", "matmul", "conv")


def _sigma(node: Node) -> Activation | None:
    if node.op not in activation_names():
        return None
    allowed = {"leaky_relu": ("negative_slope",), "elu": ("alpha",), "celu": ("alpha",)}.get(node.op, ())
    values = {key: float(node.attributes[key]) for key in allowed if key in node.attributes}
    try:
        return activation(node.op, **values)
    except ValueError:
        return None


def _longest_chain(context: Context) -> list[Node]:
    """The longest run of mixing layers, activations and norms in which each feeds only the next."""
    program = context.program
    kept = {"layer_norm", "rms_norm", "batch_norm", "group_norm", *_MIXING, *activation_names()}
    best: list[Node] = []
    chains: dict[str, list[Node]] = {}
    for node in program.nodes:
        if node.role != "operation":
            continue
        live = [o for o in node.operands if program.node(o).role != "constant"]
        previous = chains.get(live[0], []) if len(live) == 1 else []
        if node.op in kept and len(live) == 1:
            chains[node.name] = [*previous, node]
        elif node.op in ("identity", "reshape", "cast", "dropout", "permute") and len(live) == 1:
            chains[node.name] = previous
        if len(chains.get(node.name, [])) > len(best):
            best = chains[node.name]
    return best


def predicted_correlation(chain: list[Node], start: float = 0.5) -> tuple[float, int]:
    """Correlation of two inputs after the chain at infinite width and Gaussian weights, and the layers it has.

    A LayerNorm straight after the activation removes its mean (σ̄); elsewhere only the scale matters and the mean
    stays (σ̂): then correlations drift towards the fixed point of σ̂(ρ)/σ̂(1), which for most activations is 1.
    """
    rho, layers = torch.tensor(start, dtype=torch.float64), 0
    for here, after in itertools.zip_longest(chain, chain[1:]):
        sigma = _sigma(here)
        if sigma is None:
            continue
        layers += 1
        if after is not None and after.op == "layer_norm":
            rho = mean_reduced_dual(sigma, rho) / moments(sigma).variance
        else:
            rho = dual(sigma, rho) / moments(sigma).second
        rho = rho.clamp(-1.0, 1.0)
    return float(rho), layers


def check(context: Context) -> Judgment:
    """Fires when inputs of correlation ½ are predicted to end above 0.95 after a chain of eight layers or more."""
    chain = _longest_chain(context)
    rho, layers = predicted_correlation(chain)
    if layers < 8:
        return (
            Outcome.NOT_APPLICABLE,
            (),
            f"the longest chain without skips has {layers} activations; under 8 nothing collapses",
        )
    if rho <= _LIMIT:
        return Outcome.PASSED, (), f"predicted correlation after {layers} layers: {rho:.3f}"
    first = next(n for n in chain if _sigma(n) is not None)
    finding = Finding(
        "FF010",
        "warning",
        f"{layers} layers of {first.op} without a skip: at initialization two inputs of correlation 0.5 are "
        f"predicted to leave with {rho:.4f}. Samples become parallel and training slows.",
        context.place(first.name),
        "Put the LayerNorm after the activation (it then removes the mean that aligns them), add skips, or use an "
        "activation of mean zero.",
        {"layers": layers, "correlation": rho, "activation": first.op},
    )
    return Outcome.FAILED, (finding,), ""


def _deep(post: bool) -> nn.Module:
    layers: list[nn.Module] = [nn.Linear(6, 32)]
    for _ in range(24):
        layers += [nn.ReLU(), nn.LayerNorm(32)] if post else [nn.LayerNorm(32), nn.ReLU()]
        layers.append(nn.Linear(32, 32))
    return nn.Sequential(*layers)


def triggers() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Norm before the activation, 24 layers."""
    return _deep(post=False), (torch.zeros(1, 6),)


def passes() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Norm after the activation."""
    return _deep(post=True), (torch.zeros(1, 6),)


RULE = Rule("FF010", "rank collapse predicted at initialization", check, triggers, passes)
