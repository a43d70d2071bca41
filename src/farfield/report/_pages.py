"""The jinja environment and the style sheets that every HTML page shares."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from typing import Any

import jinja2
from markupsafe import Markup

from farfield.report._words import listed, number, power_of_ten, ratio_text, shape_text

__all__ = ["environment", "rendered", "script", "styles", "template_source"]


@cache
def environment() -> jinja2.Environment:
    """Templates of the package: everything escaped, an undefined name an error."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("farfield.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(number=number, ten=power_of_ten, listed=listed, shape=shape_text, ratio=ratio_text)
    return made


def rendered(template: str, *sheets: str, **view: Any) -> str:
    """A page: a template with what it prints, and style sheets of ours."""
    page: str = environment().get_template(template).render(**view, css=styles(*sheets))
    return page


def template_source(name: str) -> str:
    """A file beside the templates, as it is."""
    loader = environment().loader
    assert loader is not None
    return loader.get_source(environment(), name)[0]


def styles(*names: str) -> Markup:
    """Style sheets in a row, to be put into the page unescaped: they are ours."""
    return Markup("\n").join(Markup(template_source(name)) for name in names)


def script(name: str) -> tuple[Markup, str]:
    """A script of ours, to be put into the page unescaped, and the hash by which the page's policy lets it run."""
    source = template_source(name)
    digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
    return Markup(source), f"sha256-{digest}"
