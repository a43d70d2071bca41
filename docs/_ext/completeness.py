"""A build warning for every public name that has no page in the API reference."""

from __future__ import annotations

import importlib

from sphinx.util import logging

logger = logging.getLogger(__name__)

PACKAGES = (
    "farfield.gaussian",
    "farfield.geometry",
    "farfield.geometry.bounds",
    "farfield.geometry.spectrum",
    "farfield.engine",
    "farfield.data",
    "farfield.nn",
    "farfield.kernels",
    "farfield.kernels.gpytorch",
    "farfield.lnnet",
    "farfield.ntk",
    "farfield.learn",
    "farfield.papers",
    "farfield.report",
    "farfield.errors",
)


def _check(app, env) -> None:
    documented = env.get_domain("py").objects
    for package in PACKAGES:
        for name in importlib.import_module(package).__all__:
            if f"{package}.{name}" not in documented:
                logger.warning("%s.%s is public and missing from docs/api", package, name)


def setup(app):
    app.connect("env-check-consistency", _check)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
