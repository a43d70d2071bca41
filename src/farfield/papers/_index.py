"""Every experiment by name. Titles stand here so that a listing imports nothing heavy."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from farfield.errors import InvalidValueError, UnknownNameError

if TYPE_CHECKING:
    from farfield.papers._experiment import Experiment

__all__ = ["experiment", "experiment_names", "experiment_titles"]

_TITLES = {
    "p1.fig1": "P1 Figure 1: networks trained on 1-D toys and followed far outside",
    "p1.fig2": "P1 Figure 2: the tangent kernel of infinite width, without and with LayerNorm",
    "p1.fig2_finite": "P1 Figure 2: empirical tangent kernels at width 128, without and with LayerNorm",
    "p1.fig2_wide": "P1, beside Figure 2: the same kernels at width 1024",
    "p1.width": "P1, beside Figure 2: empirical tangent kernels approach those of infinite width",
    "p1.table1": "P1 Table 1: protein structure, within and beyond the training region",
    "p1.scaling": "P1, beside Table 1: the protein networks under other scalings of the inputs",
    "p1.utkface": "P1 Section 4.3: age from frozen features of faces, one ethnicity label held out",
    "p1.utkface_one_label": "P1, beside Section 4.3: age from faces, trained on one ethnicity label",
    "p1.series": "P1, transformers: a decoder continues a + b·i, with and without LayerNorm after its embedding",
    "p1.parts": "P1, a question of our own: what in LayerNorm makes the far field right?",
    "p2.table2": "P2 Table 2: isometry strength, closed forms against quadrature",
    "p2.tableC1": "P2 Table C.1: isometry strength under gain",
    "p2.fig2": "P2 Figure 2: isometry gap through the layers before and after training",
    "p2.fig3": "P2 Figure 3: isometry gap through depth against Theorem 4",
    "p2.fig3_degenerate": "P2, beside Figure 3: the same on inputs that are nearly parallel, thirty layers",
    "p2.fig4": "P2 Figure 4: layer centering against mean-field centering",
    "p2.fig5": "P2 Figure 5: with and without projection",
    "p2.fig6": "P2 Figure 6: layer projection against mean-field projection",
    "p2.fig7": "P2 Figure 7: training loss of seven activations against isometry strength",
    "p2.fig8": "P2 Figure 8: (a) self-normalized activations, (b) order of activation and norm",
    "p2.fig9": "P2 Figure 9: projection keeps the mean field accurate through depth",
    "p2.figB1": "P2 Figure B.1: the Lyapunov function against its bound",
    "p2.figC1": "P2 Figure C.1: isometry strength as a function of gain",
    "p2.figC2": "P2 Figure C.2: gain and the isometry gap",
    "p2.figC3": "P2 Figure C.3: mean-field constants against Xavier's gain",
    "p2.figC4": "P2 Figure C.4: isometry gap through layers of varying widths",
    "p2.figC5": "P2 Figure C.5: tokens through the LayerNorms of a pretrained transformer",
    "p2.figC5_decoder": "P2 Figure C.5 on RMSNorms: tokens through a pretrained decoder",
    "p2.hermite": "P2, not in the paper: Hermite degree and the speed of isometry",
    "p2.centering": "P2, not in the paper: with and without centering",
    "p2.dual": "P2, beside Lemma B.6: the dual kernel lies below the diagonal",
    "p3.fig1": "P3 Figure 1: XOR through one LayerNorm",
    "p3.fig2": "P3 Figure 2: project, bend, merge: the construction step by step",
    "p3.depth": "P3 Theorem 2: how deep, by the paper's rule and by a shallower one",
    "p3.fig4": "P3 Figure 4: random labels fitted without an activation function",
    "p3.fig5": "P3 Figure 5: how much LN-G bends and what it fits, by its number of groups",
    "p3.lng": "P3, LN-G in networks: convolutions and a transformer, LayerNorm whole and in groups",
}

_RENAMED = {
    "p2.order": "p2.fig8",
    "p2.selfnorm": "p2.fig8",
}
"""Names that are gone → where the experiment is now."""


def experiment_titles() -> dict[str, str]:
    """Name → title of every experiment, in the papers' order."""
    return dict(_TITLES)


def experiment_names(prefix: str = "") -> tuple[str, ...]:
    """Names equal to ``prefix`` or below it: ``"p2"`` gives all of P2, ``"p2.fig3"`` itself, ``""`` everything."""
    return tuple(n for n in _TITLES if not prefix or n == prefix or n.startswith(prefix + "."))


def experiment(name: str) -> Experiment:
    """The experiment of that name.

    Raises
    ------
    InvalidValueError
        If the name is an old one, with the new one.
    UnknownNameError
        With near matches.
    """
    if name in _RENAMED:
        raise InvalidValueError(
            f"The experiment {name} is now {_RENAMED[name]} ({_TITLES[_RENAMED[name]]}): experiments carry the "
            f"paper's own numbers. Run: farfield reproduce {_RENAMED[name]}"
        )
    if name not in _TITLES:
        raise UnknownNameError("experiment", name, _TITLES)
    module = importlib.import_module(f"farfield.papers.{name}")
    found: Experiment = module.EXPERIMENT
    return found
