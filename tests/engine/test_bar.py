"""The bar: on stderr, only if the work lasts, and never in the way of stdout."""

import contextlib
import time

import pytest

from farfield.engine import bar, local
from waiting import until


class Terminal:
    """A stderr that says it is a terminal."""

    def __init__(self):
        self.text = ""
        self.encoding = "utf-8"

    def write(self, text):
        self.text += text
        return len(text)

    def flush(self):
        pass

    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


@contextlib.contextmanager
def bar_on(terminal, after):
    """The bar with its stderr replaced during the test, not in a fixture: pytest puts its own back in between."""
    with contextlib.redirect_stderr(terminal), bar("kernel", after=after) as progress:
        yield progress


def wait_for(terminal, text):
    until(lambda: text in terminal.text)


def test_short_work_draws_nothing(terminal):
    with bar_on(terminal, 60.0) as progress:
        list(local().map(abs, range(3), progress=progress))
    assert terminal.text == ""


def test_long_work_draws_a_bar_before_its_first_result(terminal, capsys):
    with bar_on(terminal, 0.0) as progress:
        wait_for(terminal, "kernel")
        assert "kernel" in terminal.text
        list(local().map(abs, range(3), progress=progress))
        print("data")
        wait_for(terminal, "3/3")
    assert "3/3" in terminal.text
    assert capsys.readouterr().out == "data\n"
    drawn = terminal.text
    time.sleep(0.3)
    assert terminal.text == drawn, "it goes on drawing after its end"


def test_nothing_is_drawn_where_there_is_no_terminal(terminal, monkeypatch):
    monkeypatch.setattr(terminal, "isatty", lambda: False)
    with bar_on(terminal, 0.0) as progress:
        time.sleep(0.1)
        progress(1, 1)
    assert terminal.text == ""


def test_an_error_ends_the_bar(terminal):
    def fail():
        with bar_on(terminal, 0.0):
            wait_for(terminal, "kernel")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    drawn = terminal.text
    time.sleep(0.3)
    assert terminal.text == drawn
