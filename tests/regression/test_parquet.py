"""Nyström from Parquet in one pass, resumed, and its predictions back to Parquet."""

from pathlib import Path

import numpy as np
import pytest
import torch

from engine_tasks import identical
from farfield.data import parquet_pieces, read_piece
from farfield.engine import TaskError, local
from farfield.errors import InvalidValueError, UnknownNameError
from farfield.regression import Nystrom, fit, predict_parquet, stream_parquet
from parquet_tables import columns, write
from ray_tests import run_on_ray
from regression_problems import RBF, data, network

parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")


def test_on_a_cluster(tmp_path):
    run_on_ray(Path(__file__).with_name("regression_on_ray.py"), tmp_path)


@pytest.mark.parametrize(("files", "group", "rows"), [(1, 1000, 65_536), (3, 70, 200), (4, 10_000, 1)])
def test_the_same_fit_as_from_memory(tmp_path, files, group, rows):
    x, y = data(1000, 3, k=2)
    write(tmp_path / "t", x, y, files=files, group=group)
    kernel, anchors = RBF(), x[:40]
    model = stream_parquet(Nystrom(kernel, anchors), tmp_path / "t", columns(3), ["y0", "y1"], rows=rows)
    expected = Nystrom(kernel, anchors).partial_fit(x, y)
    assert model.count == 1000
    a, b = model.solve(1e-2), expected.solve(1e-2)
    torch.testing.assert_close(a.weights, b.weights, rtol=1e-6, atol=1e-9)
    if files == 1 and group == 1000:  # one piece: the very same sums
        assert identical(a.weights, b.weights)


def test_single_target_and_a_second_pass(tmp_path):
    x, y = data(300, 3)
    write(tmp_path / "t", x, y)
    model = Nystrom(RBF(), x[:20])
    for _ in range(2):
        assert stream_parquet(model, tmp_path / "t" / "0.parquet", columns(3), "y0") is model
    assert model.count == 600 and model.solve(1e-2).weights.shape == (20,)


class StopError(Exception):
    pass


def test_resumed(tmp_path):
    x, y = data(1000, 3)
    write(tmp_path / "t", x, y, files=2, group=100)
    options = {"rows": 100}
    expected = stream_parquet(Nystrom(RBF(), x[:20]), tmp_path / "t", columns(3), "y0", **options)

    def stop(done, total):
        if done == 7:
            raise StopError

    folder = tmp_path / "resume"
    with pytest.raises(StopError):
        stream_parquet(
            Nystrom(RBF(), x[:20]),
            tmp_path / "t",
            columns(3),
            "y0",
            checkpoint=folder,
            progress=stop,
            **options,
        )
    seen = []
    model = stream_parquet(
        Nystrom(RBF(), x[:20]), tmp_path / "t", columns(3), "y0", checkpoint=folder,
        progress=lambda *at: seen.append(at), **options,
    )  # fmt: skip
    assert seen[0] == (7, 10) and identical(model._sums[0], expected._sums[0])
    # Other rows under the same names are another computation.
    parquet.write_table(
        parquet.read_table(tmp_path / "t" / "0.parquet").slice(1), tmp_path / "t" / "0.parquet"
    )
    with pytest.raises(InvalidValueError, match="belong to another computation"):
        stream_parquet(Nystrom(RBF(), x[:20]), tmp_path / "t", columns(3), "y0", checkpoint=folder, **options)


@pytest.mark.parametrize("outputs", [None, 2])
def test_predictions_and_bounds(tmp_path, outputs):
    x, y = data(500, 3, k=outputs)
    write(tmp_path / "t", x, y, files=2, group=60)
    model = Nystrom(network(), x[:30]).partial_fit(x, y)
    f = model.solve(1e-2)
    made = predict_parquet(f, tmp_path / "t", columns(3), tmp_path / "out", carry=["row"], rows=120)
    assert len(made) == 6 and sorted((tmp_path / "out").iterdir()) == list(made)
    table = parquet.read_table(tmp_path / "out")
    assert table["row"].to_pylist() == list(range(500))
    ends = [""] if outputs is None else ["_0", "_1"]
    mean = np.stack([table[f"mean{e}"].to_numpy() for e in ends], 1)
    bound = np.stack([table[f"bound{e}"].to_numpy() for e in ends], 1)
    np.testing.assert_allclose(mean, f.mean(x).reshape(500, -1).numpy(), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(bound, f.output_bound(x).reshape(500, -1).numpy(), rtol=1e-12)
    assert (np.abs(mean) <= bound).all()
    # Again: nothing is written; another fit is refused; a missing file is made again.
    before = [path.stat().st_mtime_ns for path in made]
    bytes_before = made[2].read_bytes()
    made[2].unlink()
    again = predict_parquet(f, tmp_path / "t", columns(3), tmp_path / "out", carry=["row"], rows=120)
    after = [path.stat().st_mtime_ns for path in again]
    assert before[:2] + before[3:] == after[:2] + after[3:] and made[2].read_bytes() == bytes_before
    with pytest.raises(TaskError, match="made from other rows or by another fit"):
        predict_parquet(
            model.solve(2e-2), tmp_path / "t", columns(3), tmp_path / "out", carry=["row"], rows=120
        )


def test_an_exact_fit_predicts_too(tmp_path):
    x, y = data(60, 3)
    write(tmp_path / "t", x, y)
    f = fit(network(), x, y, noise=1e-2)
    (path,) = predict_parquet(f, tmp_path / "t", columns(3), tmp_path / "out")
    table = parquet.read_table(path)
    np.testing.assert_allclose(table["mean"].to_numpy(), f.mean(x).numpy(), rtol=1e-12, atol=1e-12)
    assert (table["bound"].to_numpy() >= f.output_bound(x).numpy() * (1 - 1e-12)).all()


def test_refusals(tmp_path):
    x, y = data(50, 3)
    x[7, 1] = torch.nan
    write(tmp_path / "t", x, y, word=["a"] * 50)
    model = Nystrom(RBF(), data(50, 3)[0][:5])
    with pytest.raises(UnknownNameError, match=r"named 'x9'\. Known: row, word, x0"):
        stream_parquet(model, tmp_path / "t", ["x0", "x1", "x9"], "y0")
    with pytest.raises(InvalidValueError, match="3 features"):
        stream_parquet(model, tmp_path / "t", ["x0"], "y0")
    with pytest.raises(TaskError, match=r"Piece\(.*1 of their entries are not"):
        stream_parquet(model, tmp_path / "t", columns(3), "y0")
    with pytest.raises(TaskError, match=r"Column 'word' of .* holds string"):
        stream_parquet(model, tmp_path / "t", ["x0", "x2", "word"], "y0")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidValueError, match=r"no \*\.parquet file"):
        stream_parquet(model, tmp_path / "empty", columns(3), "y0")


def test_other_rows_with_the_same_footer_are_another_computation(tmp_path):
    x, y = data(300, 3)
    write(tmp_path / "t", x, y)
    path, f = tmp_path / "t" / "0.parquet", Nystrom(RBF(), x[:20]).partial_fit(x, y).solve(1e-2)
    stream_parquet(Nystrom(RBF(), x[:20]), path, columns(3), "y0", checkpoint=tmp_path / "sums")
    predict_parquet(f, path, columns(3), tmp_path / "out")
    (piece,) = parquet_pieces(path, columns(3))
    table = parquet.read_table(path)
    parquet.write_table(table.take(list(reversed(range(300)))), path)
    with pytest.raises(InvalidValueError, match="belong to another computation"):
        stream_parquet(Nystrom(RBF(), x[:20]), path, columns(3), "y0", checkpoint=tmp_path / "sums")
    with pytest.raises(TaskError, match="made from other rows"):
        predict_parquet(f, path, columns(3), tmp_path / "out")
    with pytest.raises(InvalidValueError, match="has changed since"):
        next(read_piece(piece, columns(3)))


def test_predictions_mix_with_nothing_else(tmp_path):
    x, y = data(100, 3)
    write(tmp_path / "t", x, y, files=2, mean=[1.0] * 100)
    f = Nystrom(RBF(), x[:20]).partial_fit(x, y).solve(1e-2)
    with pytest.raises(InvalidValueError, match="'mean' is one of those"):
        predict_parquet(f, tmp_path / "t", columns(3), tmp_path / "out", carry=["mean"])
    for inside in ("t", "t/out"):
        with pytest.raises(InvalidValueError, match="outside it"):
            predict_parquet(f, tmp_path / "t", columns(3), tmp_path / inside)
    predict_parquet(f, tmp_path / "t", columns(3), tmp_path / "out")
    with pytest.raises(InvalidValueError, match=r"holds part-000001\.parquet, and there are only 1"):
        predict_parquet(f, tmp_path / "t" / "0.parquet", columns(3), tmp_path / "out")


@pytest.mark.parametrize("kind", ["string", "timestamp[ns]", "date32[day]"])
def test_what_only_looks_like_a_number_is_refused(tmp_path, kind):
    pyarrow = pytest.importorskip("pyarrow")
    types = {
        "string": pyarrow.string(),
        "timestamp[ns]": pyarrow.timestamp("ns"),
        "date32[day]": pyarrow.date32(),
    }
    values = ["1", "2"] if kind == "string" else [1, 2]
    parquet.write_table(pyarrow.table({"x": pyarrow.array(values, types[kind])}), tmp_path / "a.parquet")
    (piece,) = parquet_pieces(tmp_path / "a.parquet", ["x"])
    with pytest.raises(InvalidValueError, match="numbers are needed"):
        next(read_piece(piece, ["x"]))


# ------------------------------------------------------------------ tiles that are kept


@pytest.mark.parametrize("engine", [local(), local(3)], ids=["one", "three"])
def test_kept_tiles_change_no_bit(engine):
    x, y = data(500, 3, k=2)
    options = {"noise": 1e-2, "solver": "pcg", "rank": 30, "tolerance": 1e-9}
    kept, again = (fit(network(), x, y, engine=engine, keep_tiles=k, **options) for k in (True, False))
    assert identical(kept.weights, again.weights)


class Counted(RBF):
    calls = 0

    def __call__(self, x1, x2=None):
        type(self).calls += len(x1) * len(x1 if x2 is None else x2)
        return super().__call__(x1, x2)


def test_kept_tiles_are_computed_once():
    x, y = data(400, 3)
    options = {"noise": 1e-2, "solver": "pcg", "rank": 5, "tolerance": 1e-9}
    entries = []
    for keep in (False, True):
        Counted.calls = 0
        fit(Counted(), x, y, keep_tiles=keep, **options)
        entries.append(Counted.calls)
    # The preconditioner, the tiles and one product at the end: about 1.5 n² here.
    assert entries[1] < 2 * 400**2 < 10 * 400**2 < entries[0]


def test_tiles_that_do_not_fit_are_refused():
    x, y = data(400, 3)
    with pytest.raises(InvalidValueError, match="keep_tiles=False"):
        fit(RBF(), x, y, noise=1e-2, solver="pcg", keep_tiles=True, memory="600kB")
    with pytest.raises(InvalidValueError, match="the solver is Cholesky"):
        fit(RBF(), x, y, noise=1e-2, keep_tiles=True)
