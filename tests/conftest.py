"""A tier for every test, and what it allows; shapes checked; one torch thread and one seed for each test."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import collections
import functools
import gc
import importlib
import subprocess
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

import tiers

TESTS = Path(__file__).resolve().parent
SOURCE = TESTS.parent / "src"

settings.register_profile(
    "farfield", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("farfield")


def pytest_configure(config):
    """Run the tier ``full`` unless asked for another; have shapes checked everywhere but in a run of unit tests."""
    config.option.markexpr = config.option.markexpr or "full"
    os.environ.setdefault("FARFIELD_CHECK_SHAPES", "0" if config.option.markexpr == "unit" else "1")
    if os.environ["FARFIELD_CHECK_SHAPES"] == "1":
        from jaxtyping import install_import_hook

        # Modules that annotate shapes. The others' types are mypy's affair: checking every call of theirs would
        # take longer than the tests themselves.
        shaped = [
            ".".join(path.relative_to(SOURCE).with_suffix("").parts)
            for path in sorted((SOURCE / "farfield").rglob("*.py"))
            if "from farfield._typing import" in path.read_text(encoding="utf-8")
        ]
        install_import_hook(shaped, "shape_checking.typechecked")


def pytest_collection_finish(session):
    """Begin to watch unit tests; what is imported by now stays, so no collection of garbage looks at it again."""
    _watch_all()
    gc.collect()
    gc.freeze()


def _name(path):
    return path.relative_to(TESTS).as_posix() if path.is_relative_to(TESTS) else path.as_posix()


def pytest_ignore_collect(collection_path, config):
    """A run of unit tests does not even import the files that have none."""
    if config.option.markexpr == "unit" and collection_path.name.startswith("test_"):
        return tiers.of_file(_name(collection_path)) != "unit" or None
    return None


def pytest_itemcollected(item):
    """Mark a test with its tier; a unit test is one of ``full`` as well. One worker takes all of a family."""
    name, call = _name(item.path), getattr(item, "callspec", None)
    if family := tiers.family(name, call.params if call else {}):
        item.add_marker(pytest.mark.xdist_group(family))
    tier = tiers.of_test(tiers.of_file(name), {mark.name for mark in item.iter_markers()})
    function = f"{name}::{getattr(item, 'originalname', item.name)}"
    if not tiers.in_sample(function, _CASES[function]):
        tier = tiers.TIERS[min(tiers.TIERS.index(tier) + 1, 2)]
    _CASES[function] += 1
    item.user_properties.append(("tier", tier))
    for name in {"unit": ("unit", "full"), "full": ("full",), "nightly": ()}[tier]:
        item.add_marker(name)


_CASES = collections.Counter()
"""Cases of each function that were collected so far."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Layers made without a generator and sums are the same in every run, whichever tests came before."""
    torch.default_generator.manual_seed(0)  # torch.manual_seed writes a stack trace for each absent device
    torch.set_num_threads(1)
    _RUNNING["unit"] = item.get_closest_marker("unit") is not None


_RUNNING = {"unit": False}


def _watch(owner, name, what):
    """Have a unit test that calls this fail: it is in the wrong tier. Fixtures count as well."""
    before = getattr(owner, name)

    @functools.wraps(before)
    def watched(*args, **kwargs):
        if _RUNNING["unit"]:
            pytest.fail(f"a unit test {what}: mark it with pytest.mark.full", pytrace=False)
        return before(*args, **kwargs)

    setattr(owner, name, watched)


def _watch_all():
    importlib.import_module("farfield._provenance").provenance({})  # asks git for the commit, once a process
    _watch(subprocess.Popen, "__init__", "starts a process")
    _watch(importlib.import_module("farfield._budget").Clock, "__init__", "searches within a budget")
    _watch(importlib.import_module("farfield.learn._trainer"), "optimizer", "trains")
