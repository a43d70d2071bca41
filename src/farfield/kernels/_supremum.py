"""placeholder"""
from __future__ import annotations
from typing import Any
def sup_diagonal(network: Any, kind: str) -> float:
    return 0.0
