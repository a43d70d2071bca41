"""The zoo as it is shipped: the verdict on an exported ONNX file is the module's, and so is the horizon."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

import farfield as ff
from farfield.growth import horizon
from zoo._catalogue import SPECIMENS, by_name

NOT_EXPORTED = "torch.onnx.export fails"


def exported(name: str, path: Path):
    """The specimen's module and inputs, written to a file; None where torch can't export it."""
    model, inputs = by_name(name).build()
    args, kwargs = (
        ((), inputs) if isinstance(inputs, dict) else (inputs if isinstance(inputs, tuple) else (inputs,), {})
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(model, args, str(path), kwargs=kwargs, dynamo=True, verbose=False)
    except Exception:
        return None
    return model, inputs


def compared(name: str, folder: Path) -> str:
    """ "" if both agree; else what differs. A contradiction begins with CONTRADICTION."""
    path = folder / f"{name}.onnx"
    found = exported(name, path)
    if found is None:
        return NOT_EXPORTED
    model, inputs = found
    theirs, ours = ff.audit(model, inputs, rays=0), ff.audit(path, rays=0)
    if ours.verdict is not theirs.verdict:
        said = (
            f"{theirs.verdict.name} → {ours.verdict.name}: {ours.report.verdicts[0]} {ours.subject['unseen']}"
        )
        return said if "UNKNOWN" in said else f"CONTRADICTION {said}"
    leaves = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    if len(leaves) != 1 or not leaves[0].is_floating_point() or len(ours.report.program.outputs) != 1:
        return ""
    directions = torch.randn(
        leaves[0].shape, generator=torch.Generator().manual_seed(0), dtype=leaves[0].dtype
    )
    try:
        one = horizon(model, directions, example_inputs=inputs)
    except Exception:
        return ""  # the module has none
    other = horizon(path, directions, example_inputs=(leaves[0],))
    for attribute in ("slope", "value"):
        a, b = (getattr(h, attribute).double().numpy() for h in (one, other))
        scale = max(1e-3, np.abs(a[np.isfinite(a)]).max(initial=0.0))
        if not np.allclose(a, b, rtol=1e-3, atol=1e-3 * scale, equal_nan=True):
            return f"the horizon's {attribute} differs"
    return ""


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [s.name for s in SPECIMENS if not s.slow])
def test_an_exported_file_has_the_verdict_of_its_module(name, tmp_path):
    for package in by_name(name).needs:
        pytest.importorskip(package)
    said = compared(name, tmp_path)
    assert not said.startswith(("CONTRADICTION", "the horizon")), said
