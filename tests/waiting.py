"""Waiting for another process or thread by counted looks, not by a clock: a busy machine makes each look later."""

import time

import pytest

LOOKS, PAUSE = 3000, 0.05


def until(condition, *, alive=lambda: True):
    """The condition's first true value; a failure where it never comes, or where what it waits for has ended."""
    for _ in range(LOOKS):
        ended = not alive()  # asked first: what happens just before the end is still seen
        if value := condition():
            return value
        assert not ended, "what should have brought it about has ended"
        time.sleep(PAUSE)
    pytest.fail(f"not so after {LOOKS} looks")
