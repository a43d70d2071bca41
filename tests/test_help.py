"""What help, notebooks and editors show of a public function is the function: its arguments and its own text."""

import inspect
import pydoc

import pytest

import farfield as ff

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
