r"""Formulas as inline SVG, drawn by matplotlib's mathtext: no script, no font and no network in the reader's browser.

Mathtext knows most of TeX's symbols but wants every argument in braces; :func:`braced` adds them. A formula it
cannot read is shown as its source, and the build says which (``-v``).
"""

from __future__ import annotations

import functools
import html
import re

from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.textpath import TextPath
from sphinx.util import logging

logger = logging.getLogger(__name__)

_SYNONYMS = {
    r"\ge": r"\geq",
    r"\le": r"\leq",
    r"\lVert": r"\Vert ",
    r"\rVert": r"\Vert ",
    r"\lvert": "|",
    r"\rvert": "|",
    r"\tfrac": r"\frac",
    r"\dfrac": r"\frac",
    r"\colon": ":",
}
_ARGUMENTS = {r"\frac": 2, r"\sqrt": 1, r"\mathcal": 1, r"\mathbb": 1, r"\mathrm": 1, r"\mathbf": 1}
_TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|[^\\]", re.DOTALL)


def _next_argument(tokens: list[str], start: int) -> tuple[str, int]:
    """One TeX argument from position ``start``: a braced group, or a single token."""
    while start < len(tokens) and tokens[start].isspace():
        start += 1
    if start == len(tokens):
        return "", start
    if tokens[start] != "{":
        return tokens[start], start + 1
    depth, end = 1, start + 1
    while end < len(tokens) and depth:
        depth += {"{": 1, "}": -1}.get(tokens[end], 0)
        end += 1
    return "".join(tokens[start + 1 : end - 1]), end


def braced(tex: str, *, display: bool = False) -> str:
    r"""As mathtext takes it: ``\frac1n`` → ``\frac{1}{n}``, ``\ge`` → ``\geq``; large outer fractions on display."""
    tokens = [_SYNONYMS.get(t, t) for t in _TOKEN.findall(" ".join(tex.split()))]
    out: list[str] = []
    at = depth = 0
    while at < len(tokens):
        token = tokens[at]
        at += 1
        depth += {"{": 1, "}": -1}.get(token, 0)
        out.append(r"\dfrac" if token == r"\frac" and display and depth == 0 else token)
        if token == r"\sqrt" and at < len(tokens) and tokens[at] == "[":
            continue
        for _ in range(_ARGUMENTS.get(token, 0)):
            argument, at = _next_argument(tokens, at)
            out.append("{" + braced(argument) + "}")
    return "".join(out)


@functools.cache
def _svg(tex: str, *, display: bool) -> str | None:
    """The drawing, sitting on the text's baseline; None if mathtext cannot read the formula."""
    try:
        outline = TextPath(
            (0, 0), f"${braced(tex, display=display)}$", size=100, prop=FontProperties(math_fontfamily="cm")
        )
    except (ValueError, RuntimeError) as error:
        logger.info("mathtext cannot read %r: %s", tex, str(error).splitlines()[-1])
        return None
    if not len(outline.vertices):
        return None
    letters = {Path.MOVETO: "M", Path.LINETO: "L", Path.CURVE3: "Q", Path.CURVE4: "C", Path.CLOSEPOLY: "Z"}
    pieces = []
    for points, code in outline.iter_segments(curves=True, simplify=False):
        pairs = " ".join(f"{x:.1f} {-y:.1f}" for x, y in points.reshape(-1, 2))
        pieces.append(letters[code] + ("" if code == Path.CLOSEPOLY else pairs))
    box = outline.get_extents()
    left, top, width, height = box.x0 - 2, -box.y1 - 2, box.width + 4, box.height + 4
    em = (1.1 if display else 1.0) / 100
    label = html.escape(" ".join(tex.split()), quote=True)
    style = f"width:{width * em:.3f}em;height:{height * em:.3f}em;vertical-align:{(box.y0 - 2) * em:.3f}em"
    return (
        f'<svg class="formula" role="img" aria-label="{label}" style="{style}" '
        f'viewBox="{left:.1f} {top:.1f} {width:.1f} {height:.1f}">'
        f'<title>{label}</title><path fill="currentColor" d="{"".join(pieces)}"/></svg>'
    )


def _visit(translator, node, *, block: bool) -> None:
    from docutils import nodes

    tex = node.astext()
    drawn = _svg(tex, display=block)
    body = drawn or f"<code>{html.escape(tex)}</code>"
    tag = "div" if block else "span"
    translator.body.append(f'<{tag} class="math">{body}</{tag}>')
    raise nodes.SkipNode


def _inline(translator, node) -> None:
    _visit(translator, node, block=False)


def _block(translator, node) -> None:
    _visit(translator, node, block=True)


def setup(app):
    app.add_html_math_renderer("mathtext", (_inline, None), (_block, None))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
