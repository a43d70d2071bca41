"""Boosted trees beside the networks: the one place that imports XGBoost."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from farfield.errors import MissingExtraError

__all__ = ["boosted_trees"]


def boosted_trees(x: Tensor, y: Tensor, at: Tensor, *, rounds: int) -> Tensor:
    """Predictions at ``at``, shape (m,), of XGBoost with its own default settings after so many rounds.

    One thread: the order of sums, and with it the result, is then the same everywhere.
    """
    try:
        import xgboost
    except ImportError as error:
        raise MissingExtraError("The comparison with boosted trees", "xgboost-cpu", "trees") from error
    options: dict[str, Any] = {"objective": "reg:squarederror", "nthread": 1}
    booster = xgboost.train(options, xgboost.DMatrix(x.numpy(), y.numpy(), nthread=1), num_boost_round=rounds)
    return torch.from_numpy(booster.predict(xgboost.DMatrix(at.numpy(), nthread=1))).double()
