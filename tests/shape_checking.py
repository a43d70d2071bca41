"""The run-time type checker that the import hook applies to farfield under test."""

from beartype import BeartypeConf, beartype

typechecked = beartype(conf=BeartypeConf(is_pep484_tower=True))
