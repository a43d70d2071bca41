"""A build warning for every public name that has no page in the API reference."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

from sphinx.util import logging

logger = logging.getLogger(__name__)

PAGES = Path(__file__).resolve().parents[1] / "api"


def packages() -> list[str]:
    """Every package that a page of the API reference is about."""
    texts = (page.read_text(encoding="utf-8") for page in sorted(PAGES.glob("*.rst")))
    return sorted(
        {name for text in texts for name in re.findall(r"^\.\. currentmodule:: (\S+)$", text, re.MULTILINE)}
    )


def _check(app, env) -> None:
    documented = env.get_domain("py").objects
    for package in packages():
        module = importlib.import_module(package)
        for name in module.__all__:
            if not inspect.ismodule(getattr(module, name)) and f"{package}.{name}" not in documented:
                logger.warning("%s.%s is public and missing from docs/api", package, name)


def setup(app):
    app.connect("env-check-consistency", _check)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
