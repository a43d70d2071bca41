"""Models as people write them, through four verbs: an answer or a refusal in words, never a traceback."""

import collections
import dataclasses
import typing

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import farfield as ff
from farfield.errors import FarfieldError


class Base(nn.Module):
    def __init__(self, i=4, h=8, o=2):
        super().__init__()
        self.a = nn.Linear(i, h)
        self.b = nn.Linear(h, o)

    def f(self, x):
        return self.b(torch.relu(self.a(x)))


class DictOut(Base):
    def forward(self, x):
        y = self.f(x)
        return {"logits": y, "value": y.mean(-1)}


Out = collections.namedtuple("Out", "mean std")


class NT(Base):
    def forward(self, x):
        y = self.f(x)
        return Out(y, functional.softplus(y))


@dataclasses.dataclass
class DC:
    mean: Tensor
    n: int = 3
    extra: typing.Any = None


class DCOut(Base):
    def forward(self, x):
        return DC(self.f(x))


class Scalar(Base):
    def forward(self, x):
        return self.f(x).sum()


class NoBatch(Base):
    def forward(self, x):
        return self.f(x.flatten()[:4])


class Opt(Base):
    def forward(self, x, mask=None, *, scale=1.0, return_aux=False):
        y = self.f(x) * scale
        if mask is not None:
            y = y * mask
        return (y, x) if return_aux else y


class ListIn(Base):
    def forward(self, xs):
        return self.f(sum(xs))


class DictIn(Base):
    def forward(self, batch):
        return self.f(batch["x"]) + batch["t"]


class Kw(Base):
    def forward(self, **kw):
        return self.f(kw["x"])


class Ints(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(10, 4)
        self.l = nn.Linear(4, 1)

    def forward(self, ids, x):
        return self.l(self.e(ids).mean(1)) + x


class Numpyish(Base):
    def forward(self, x):
        return self.f(x) * float(np.sqrt(2.0))


class PyLoop(Base):
    def forward(self, x):
        out = []
        for i in range(x.shape[1]):
            out.append(torch.tanh(x[:, i]))  # noqa: PERF401
        return torch.stack(out, 1)


class InPlace(Base):
    def forward(self, x):
        y = x.clone()
        y[:, 0] = 0
        y[:, 1:] *= 2
        y.clamp_(-3, 3)
        return self.f(y)


class Slice(Base):
    def forward(self, x):
        z = torch.zeros(len(x), 8)
        z[:, :4] = x
        z[:, 4:] = torch.sin(x)
        return z


class Counter(Base):
    def __init__(self):
        super().__init__()
        self.n = 0

    def forward(self, x):
        self.n += 1
        return self.f(x)


class Noise(Base):
    def forward(self, x):
        return self.f(x + torch.randn_like(x) * 0.1)


class Drop(Base):
    def forward(self, x):
        return self.f(functional.dropout(x, 0.5, training=self.training))


class DropAlways(Base):
    def forward(self, x):
        return self.f(functional.dropout(x, 0.5))


class Grad(Base):
    def forward(self, x):
        x = x.detach().requires_grad_(True)
        with torch.enable_grad():
            y = torch.tanh(self.a(x)).sum()
            (g,) = torch.autograd.grad(y, x, create_graph=True)
        return g


class Dist(Base):
    def forward(self, x):
        y = self.f(x)
        return torch.distributions.Normal(y, y.exp().clamp(1e-3, 10)).mean


class DistOut(Base):
    def forward(self, x):
        y = self.f(x)
        return torch.distributions.Normal(y, 1.0)


class BF(Base):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.f(x)


class Half(Base):
    def forward(self, x):
        return self.f(x).half()


class Branch(Base):
    def forward(self, x):
        return self.f(x) if x.shape[-1] == 4 else x


class DataBranch(Base):
    def forward(self, x):
        return torch.tanh(self.f(x)) if x.abs().max() < 1e6 else self.f(x)


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.r = nn.LSTM(4, 5, batch_first=True, num_layers=2, bidirectional=True)
        self.o = nn.Linear(10, 1)

    def forward(self, x, h=None):
        y, h = self.r(x, h)
        return self.o(y[:, -1]), h


class Img(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Sequential(
            nn.Conv2d(3, 4, 3, 2),
            nn.BatchNorm2d(4),
            nn.SiLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4, 3),
        )

    def forward(self, x):
        return self.c(x)


class Tr(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True), 1
        )
        self.i = nn.Linear(4, 8)
        self.o = nn.Linear(8, 2)

    def forward(self, x):
        return self.o(self.e(self.i(x)).mean(1))


class WN(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.utils.parametrizations.weight_norm(nn.Linear(4, 8))
        self.o = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 1))

    def forward(self, x):
        return self.o(functional.gelu(self.l(x)))


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.LazyLinear(8)
        self.o = nn.Linear(8, 1)

    def forward(self, x):
        return self.o(functional.relu(self.l(x)))


class Shared(Base):
    def __init__(self):
        super().__init__(4, 4, 4)
        self.b = self.a

    def forward(self, x):
        return self.b(functional.relu(self.a(self.b(x))))


class NoParam(nn.Module):
    def forward(self, x):
        return x**2


class Const(nn.Module):
    def forward(self, x):
        return torch.ones(len(x), 2)


class Ident(nn.Module):
    def forward(self, x):
        return x


class IntOut(Base):
    def forward(self, x):
        return self.f(x).argmax(-1)


class Bool(Base):
    def forward(self, x):
        return self.f(x) > 0


class Nest(Base):
    def forward(self, x):
        y = self.f(x)
        return [y, (y, {"a": y})]


class NoneOut(Base):
    def forward(self, x):
        return self.f(x), None


class StrOut(Base):
    def forward(self, x):
        return self.f(x), "ok", 3


class TwoX(Base):
    def forward(self, obs, act):
        return self.f(torch.cat([obs, act], -1))


class Complexy(Base):
    def forward(self, x):
        return torch.view_as_real(torch.fft.fft(self.f(x)))


class CplxOut(Base):
    def forward(self, x):
        return torch.fft.fft(self.f(x))


class Sparse(Base):
    def forward(self, x):
        return torch.sparse.mm(torch.eye(len(x)).to_sparse(), self.f(x))


class Vmap(Base):
    def forward(self, x):
        return torch.vmap(lambda r: self.f(r))(x)


class Jac(Base):
    def forward(self, x):
        return torch.func.vmap(torch.func.jacrev(lambda r: torch.tanh(self.a(r))))(x)


class Ckpt(Base):
    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.f, x, use_reentrant=False)


class Where(Base):
    def forward(self, x):
        return torch.where(torch.isfinite(x), x, torch.zeros_like(x))[:, :2]


class Assert(Base):
    def forward(self, x):
        assert x.ndim == 2 and (x == x).all()
        return self.f(x)


class Print(Base):
    def forward(self, x):
        return self.f(x)


class ItemScale(Base):
    def forward(self, x):
        return self.f(x) / max(1.0, x.abs().max().item())


class Tuple1(Base):
    def forward(self, x):
        return (self.f(x),)


class Double(Base):
    def forward(self, x):
        return self.f(x).double()


class Perm(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(3, 3)

    def forward(self, x):
        return self.l(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class SparseBuffer(Base):
    def __init__(self, kind):
        super().__init__()
        self.register_buffer("edges", kind(torch.eye(4)))

    def forward(self, x):
        return (self.edges @ torch.relu(self.a(x)).T[:4]).T


class LeavesLists(nn.Module):
    """Nothing has a row for each row."""

    def forward(self, x):
        return x.sum(), [x.mean(0)]


def R(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


ROWS = R(40, 4)
OF_ROWS = [
    DictOut, NT, DCOut, Scalar, NoBatch, Opt, Numpyish, PyLoop, InPlace, Slice, Counter, Noise, Drop, DropAlways,
    Grad, Dist, DistOut, BF, Half, Branch, DataBranch, WN, Lazy, Shared, NoParam, Const, Ident, IntOut, Bool, Nest,
    NoneOut, StrOut, Complexy, CplxOut, Sparse, Vmap, Jac, Ckpt, Where, Assert, ItemScale, Tuple1, Double,
    LeavesLists,
]  # fmt: skip
CASES = {kind.__name__: (kind, ROWS) for kind in OF_ROWS} | {
    "Kw": (Kw, {"x": R(40, 4)}),
    "Ints": (Ints, (torch.arange(200).reshape(40, 5) % 10, R(40, 1))),
    "Lstm": (Lstm, R(40, 6, 4)),
    "Img": (Img, R(40, 3, 9, 9)),
    "Tr": (Tr, R(40, 5, 4)),
    "TwoX": (TwoX, (R(40, 3), R(40, 1))),
    "Perm": (Perm, R(40, 3, 4, 4)),
    "ListIn": (ListIn, ([R(40, 4), R(40, 4)],)),
    "DictIn": (DictIn, ({"x": R(40, 4), "t": R(40, 2)},)),
    "sparse by entries": (lambda: SparseBuffer(torch.Tensor.to_sparse), ROWS),
    "sparse by rows": (lambda: SparseBuffer(torch.Tensor.to_sparse_csr), ROWS),
}


def guarded(model, rows):
    made = ff.guard(model, rows)
    args, kwargs = (
        (rows, {}) if isinstance(rows, tuple) else ((), rows) if isinstance(rows, dict) else ((rows,), {})
    )
    assert made(*args, **kwargs)[1].dtype.is_floating_point


VERBS = {
    "audit": lambda model, rows: ff.audit(model, rows, rays=0),
    "repair": ff.repair,
    "guard": guarded,
    "certify": lambda model, rows: ff.certify(model, rows, time_budget=ff.Budget(steps=1)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("verb", VERBS)
def test_an_answer_or_a_refusal_in_words(name, verb):
    kind, rows = CASES[name]
    torch.manual_seed(0)
    model = kind().eval()
    if name == "Lazy":
        model(rows)
    try:
        VERBS[verb](model, rows)
    except FarfieldError as error:
        said = str(error)
    else:
        return
    assert len(said) > 30


@pytest.mark.parametrize("kind", [Scalar, LeavesLists])
def test_without_a_row_for_each_row_all_of_an_output_is_compared(kind):
    """A sum over the rows is the same only if all of it is."""
    torch.manual_seed(0)
    fixed = ff.repair(kind().eval(), ROWS, method="features" if kind is Scalar else "auto", keep=0.5)
    rows = torch.cat([ROWS, 1e6 * ROWS])
    found = ff.repair._change.measure_change(
        fixed.undo(), fixed.model, ff.calibration.Batches(rows, fixed.model)
    )
    assert found.unchanged < 1.0 and found.largest > 0
