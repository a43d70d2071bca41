"""A build warning for every public class and function that has no page in the API reference."""

from __future__ import annotations

import importlib
from pathlib import Path

from sphinx.util import logging

logger = logging.getLogger(__name__)

PAGES = Path(__file__).resolve().parents[1] / "api"


def packages() -> list[str]:
    """A package for every page of the API reference; the page ``farfield`` lists names that live elsewhere."""
    return [
        f"farfield.{page.stem.replace('_', '.')}"
        for page in PAGES.glob("*.rst")
        if page.stem not in ("index", "farfield")
    ]


def _check(app, env) -> None:
    documented = env.get_domain("py").objects
    for package in packages():
        module = importlib.import_module(package)
        for name in module.__all__:
            if callable(getattr(module, name)) and f"{package}.{name}" not in documented:
                logger.warning("%s.%s is public and missing from docs/api", package, name)


def setup(app):
    app.connect("env-check-consistency", _check)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
