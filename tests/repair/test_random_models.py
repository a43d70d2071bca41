"""Repairs of random unbounded graphs hold what they say."""

import pytest

from repair.random_models import examine


def check(seeds, least):
    found = {seed: result for seed in seeds if (result := examine(seed)) is not None}
    assert {seed: wrong for seed, (wrong, _) in found.items() if wrong} == {}
    refused = {seed: why for seed, (_, why) in found.items() if why}
    assert len(found) >= least and len(refused) <= max(1, len(found) // 20), refused


def test_few():
    check(range(12), 3)


@pytest.mark.nightly
def test_many():
    check(range(1_000, 1_600), 150)
