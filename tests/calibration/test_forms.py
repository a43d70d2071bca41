"""Rows in every form people have are the same calls of the model, at every verb, and columns keep their names."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import farfield as ff
from farfield.calibration import Batches, entry_name, read_rows
from farfield.errors import InvalidValueError
from farfield.graph import capture, example_inputs

pandas = pytest.importorskip("pandas")
NAMES = ("temperature", "pressure", "flow")
ROWS = torch.rand(40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2 - 1
FRAME = pandas.DataFrame(ROWS.numpy(), columns=list(NAMES))


def net(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.Linear(8, 1)).to(dtype).eval()


def forms(folder):
    """Name → the same rows."""
    np.save(folder / "rows.npy", ROWS.numpy())
    np.savez(folder / "rows.npz", input=ROWS.numpy())
    torch.save(ROWS, folder / "rows.pt")
    FRAME.to_csv(folder / "rows.csv", index=False)
    np.savetxt(folder / "plain.csv", ROWS.numpy(), delimiter=",", fmt="%.17g")
    found = {
        "tensor": ROWS,
        "array": ROWS.numpy(),
        "frame": FRAME,
        "columns": {name: FRAME[name] for name in NAMES},
        "dictionary": {"input": ROWS.numpy()},
        "tuple": (ROWS.numpy(),),
        "list": [ROWS[:30], ROWS[30:]],
        "frames": [FRAME[:30], FRAME[30:]],
        "loader": DataLoader(TensorDataset(ROWS), batch_size=16),
        "labels": DataLoader(TensorDataset(ROWS, ROWS[:, 0]), batch_size=16),
        "named labels": [{"input": ROWS, "target": ROWS[:, 0]}],
        **{kind: folder / f"rows.{kind}" for kind in ("npy", "npz", "pt", "csv")},
        "no heading": str(folder / "plain.csv"),
    }
    if pytest.importorskip("pyarrow"):
        FRAME.to_parquet(folder / "rows.parquet")
        found["parquet"] = folder / "rows.parquet"
    return found


def test_every_form_gives_the_same_rows(tmp_path):
    for name, data in forms(tmp_path).items():
        batches = Batches(data, net())
        got = torch.cat([next(iter((*args, *kwargs.values()))) for args, kwargs in batches])
        assert got.equal(ROWS), name
        named = name in ("frame", "columns", "csv", "parquet")
        assert (batches.columns == {"0": NAMES}) is named, name


def test_audit_and_certify_take_every_form(tmp_path):
    model = net()
    for name, data in forms(tmp_path).items():
        if name in ("list", "named labels"):  # a list of tensors is a list of arguments here
            continue
        given, columns = example_inputs(model, data)
        (rows,) = (
            given.values() if isinstance(given, dict) else given if isinstance(given, tuple) else (given,)
        )
        assert rows.dtype == torch.float64 and rows[:16].equal(ROWS[:16]), name
        assert set(columns) <= {"input"}
    for data in (FRAME, ROWS.numpy(), tmp_path / "rows.csv"):
        assert ff.audit(model, data, rays=0).verdict.name == "BOUNDED"
        made = ff.certify(model, data, time_budget=ff.Budget(steps=2))
        assert bool(torch.isfinite(made.upper).all()) and ff.verify_certificate(model, made, inputs=data)


def test_rows_come_in_the_type_of_the_model_or_file(tmp_path):
    np.save(tmp_path / "rows.npy", ROWS.numpy())
    program = torch.export.export(net(torch.float32), (ROWS[:2].float(),))
    for model in (net(torch.float32), program, capture(program)):
        assert example_inputs(model, tmp_path / "rows.npy")[0][0].dtype == torch.float32
        assert example_inputs(model, FRAME)[1] == {"input": NAMES}


def test_a_table_that_is_no_numbers_is_refused():
    for frame, said in (
        (FRAME.assign(city="Rome"), "column 'city'"),
        (FRAME.rename(columns={"flow": "pressure"}), "names of their own"),
    ):
        with pytest.raises(InvalidValueError, match=said):
            Batches(frame, net())
    mixed = FRAME.assign(flow=FRAME["flow"] > 0)  # numbers and truths beside each other
    assert Batches(mixed, net()).first()[0][0].dtype == torch.float64


def test_a_csv_that_excel_wrote(tmp_path):
    (tmp_path / "rows.csv").write_bytes(b'\xef\xbb\xbf"a b",c\r\n1,2\r\n3,4\r\n')
    found = read_rows(tmp_path / "rows.csv")
    assert found.names == ("a b", "c") and found.values.tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_names_of_entries():
    assert entry_name("1", (2,), {"1": NAMES}, ["x", "y"]) == "flow"
    assert entry_name("1", (2,), {}, ["x", "y"]) == "y[:, 2]"
    assert entry_name("series", (2, 0), {}, []) == "series[:, 2, 0]"
    assert entry_name("0", (), {}, ["t"]) == "t"
