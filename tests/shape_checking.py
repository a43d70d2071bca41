"""The run-time type checker that the import hook applies to farfield under test."""

import contextlib
from collections.abc import Iterator

import jaxtyping
from beartype import BeartypeConf, beartype

typechecked = beartype(conf=BeartypeConf(is_pep484_tower=True))


@contextlib.contextmanager
def as_users_run_it() -> Iterator[None]:
    """Without the checks of annotations, so that a wrong argument meets the library's own error."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
