"""What help, notebooks and editors show of a public function is the function: its arguments and its own text."""

import contextlib
import importlib
import inspect
import pydoc
import re
from pathlib import Path

import pytest

import farfield as ff

PAGES = [page.read_text() for page in (Path(__file__).parents[1] / "docs" / "api").glob("*.rst")]
ROOMS = sorted(
    {room for page in PAGES for room in re.findall(r"^\.\. currentmodule:: (\S+)$", page, re.MULTILINE)}
)
CALLABLE = [getattr(ff, name) for name in ff.__all__ if callable(getattr(ff, name))]


@pytest.mark.parametrize("function", CALLABLE, ids=lambda f: getattr(f, "__name__", str(f)))
def test_signature_and_text(function):
    words = inspect.signature(function).parameters
    assert set(words) - {"args", "kwargs"}, "a signature that says nothing"
    text = inspect.getdoc(function)
    assert text and "May import" not in text


@pytest.mark.parametrize("name", ["audit", "repair", "certify"])
def test_packages_that_are_their_function(name):
    package = getattr(ff, name)
    function = vars(package)[name]
    assert inspect.signature(package) == inspect.signature(function)
    assert package.__doc__ == function.__doc__
    assert f"{name}(" in pydoc.plain(pydoc.render_doc(package))
    with pytest.raises(TypeError):
        package()


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_name_has_a_place_in_the_reference_and_a_signature(room):
    words = {word for page in PAGES for word in re.findall(r"[\w.]+", page)}
    module = importlib.import_module(room)
    for name in module.__all__:
        thing = getattr(module, name)
        if not inspect.ismodule(thing):
            assert {name, f"{room}.{name}"} & words, f"{room}.{name} has no place in docs/api"
        if inspect.isclass(thing) or inspect.isfunction(thing):
            with contextlib.suppress(ValueError):  # some of C's classes have none
                inspect.signature(thing)
