"""Gradients that are written out against autograd's, for chains as people write them."""

import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from farfield.learn import Stack, Training, _trainer, train
from farfield.learn import _by_hand as by_hand
from farfield.learn import _stack as stacks
from farfield.learn._training import row_losses
from farfield.nn import MLP, Center, RangeHead

WIDE = {"width": 40, "depth": 2, "bias_var": 0.1, "dtype": torch.float64}


def generator(seed):
    return torch.Generator().manual_seed(seed)


def mlp(**options):
    return lambda seed: MLP(3, 2, generator=generator(seed), **{**WIDE, **options})


def chain(*layers):
    def make(seed):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return nn.Sequential(*(layer() for layer in layers)).double()

    return make


CHAINS = {
    "plain": (mlp(), "First Relu Affine Relu Affine"),
    "norm first": (mlp(norm="layer", placement="first"), "First Relu Affine Relu Affine"),
    "norm second": (mlp(norm="layer", placement="second"), "First Relu Affine RowNorm Relu Affine"),
    "norms with weights": (
        mlp(norm="layer", norm_affine=True), "First RowNorm Relu Affine RowNorm Relu Affine",
    ),
    "projection first": (mlp(norm="rms", placement="first"), "First Local Relu Affine Relu Affine"),
    "rms first": (
        chain(lambda: nn.Linear(3, 20), lambda: nn.RMSNorm(20, eps=0.1, elementwise_affine=False), nn.ReLU,
              lambda: nn.Linear(20, 2)),
        "First Relu Affine",
    ),
    "norm first, gelu": (mlp(norm="layer", activation="gelu"), "First Local Affine RowNorm Local Affine"),
    "post": (mlp(norm="layer", order="post"), "First Relu RowNorm Affine Relu RowNorm Affine"),
    "ntk": (mlp(parametrization="ntk", norm="layer"), "First Local Affine RowNorm Local Affine"),
    "no bias": (mlp(bias_var=0.0, norm="layer", placement="first"), "First Relu Affine Relu Affine"),
    "narrow": (mlp(width=8, norm="layer", placement="first"), "Affine RowNorm Relu Affine Relu Affine"),
    "norm of the input": (
        chain(lambda: nn.LayerNorm(3), lambda: nn.Linear(3, 20), nn.ReLU, lambda: nn.Linear(20, 2)),
        "RowNorm Affine Relu Affine",
    ),
    "two norms in a row": (
        chain(lambda: nn.Linear(3, 20), lambda: nn.LayerNorm(20, elementwise_affine=False),
              lambda: nn.RMSNorm(20, eps=0.1), nn.ReLU, nn.ReLU, lambda: nn.Linear(20, 2)),
        "First RowNorm Relu Relu Affine",
    ),
    "two products in a row": (
        chain(lambda: nn.Linear(3, 20), lambda: nn.Linear(20, 1), lambda: nn.Linear(1, 2)),
        "First Affine Affine",
    ),
    "modules that write in place": (
        chain(lambda: nn.Linear(3, 20), lambda: nn.ReLU(inplace=True), Center, lambda: nn.LeakyReLU(inplace=True),
              nn.Identity, lambda: nn.Linear(20, 2), lambda: RangeHead(-1.0, 1.0)),
        "First Relu Local Local Local Affine Local",
    ),
    "one product": (chain(lambda: nn.Linear(3, 2)), "Affine"),
}  # fmt: skip


def without(monkeypatch):
    monkeypatch.setattr(stacks, "_layers", lambda model: None)


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("cached", [1, 2**18], ids=["many pieces", "one piece"])
@pytest.mark.parametrize("how", ["one thread", "two threads"])
def test_a_step_has_the_gradients_of_autograd(name, cached, how, monkeypatch):
    if how == "two threads":
        monkeypatch.setattr(_trainer, "_THREADED", 0)
        monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    make, kinds = CHAINS[name]
    models = [make(seed) for seed in range(4)]
    found = [
        type(layer).__name__.removesuffix("AffineStep") or "Affine" for layer in Stack(models).chain.layers
    ]
    assert " ".join(found) == kinds
    monkeypatch.setattr("farfield.learn._pieces._CACHED", cached)
    x, y, weights = (
        torch.randn(70, k, generator=generator(k), dtype=torch.float64) + 0.5 * (k == 3) for k in (3, 2, 1)
    )
    rows = torch.stack([torch.randperm(70, generator=generator(k))[:50] for k in range(4)])
    # A step of SGD of size one: the change of a parameter is its gradient.
    settings = Training(epochs=1, optimizer="sgd", lr=1.0, batch_size=None)
    options = {"training": settings, "weights": weights[:, 0].abs(), "rows": rows}
    written = train(models, x, y, **options)
    without(monkeypatch)
    assert Stack(models).chain is None
    by_autograd = train(models, x, y, **options)
    torch.testing.assert_close(written.losses, by_autograd.losses, rtol=1e-12, atol=0)
    for model, a, b in zip(models, written.models, by_autograd.models, strict=True):
        for p, q, r in zip(model.parameters(), a.parameters(), b.parameters(), strict=True):
            size = float((r - p).detach().abs().max())
            assert size > 0 and float((q - r).detach().abs().max()) <= 1e-11 * max(size, 1.0)


def test_members_of_a_large_step_go_to_threads(monkeypatch):
    models = [mlp(norm="layer", placement="first")(seed) for seed in range(5)]
    x, y = (torch.randn(50, k, generator=generator(k), dtype=torch.float64) for k in (3, 2))
    threads, calls = set(), []
    plain = by_hand.WrittenOut.accumulate

    def watched(self, members, pieces):
        threads.add(threading.get_ident())
        calls.append(members.start)
        return plain(self, members, pieces)

    def seen():
        calls.clear(), threads.clear()
        made = train(models, x, y, training=Training(epochs=1, batch_size=None)).models
        assert sorted(calls) == [0, 1, 2, 3, 4]
        return threading.get_ident() not in threads, [p.detach() for m in made for p in m.parameters()]

    monkeypatch.setattr(by_hand.WrittenOut, "accumulate", watched)
    monkeypatch.setattr("farfield.learn._pieces._CACHED", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert not seen()[0]
    monkeypatch.setattr(_trainer, "_THREADED", 0)
    aside, first = seen()
    assert aside
    with torch.autocast("cpu"):
        for a, b in zip(first, seen()[1], strict=True):
            assert torch.equal(a, b)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)  # too few members to keep three at work
    assert not seen()[0]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(_trainer, "_BUFFERS", 100)
    assert not seen()[0]


def test_frozen_parameters_have_no_gradient_and_others_do(monkeypatch):
    def make():
        model = mlp(norm="layer", placement="first")(0)
        model[0].bias.requires_grad_(False)
        model[3].weight.requires_grad_(False)
        return model

    x, y = (torch.randn(30, k, generator=generator(k), dtype=torch.float64) for k in (3, 2))
    settings = Training(epochs=3, lr=0.01)
    by_hand = train([make()], x, y, training=settings).models[0]
    assert torch.equal(by_hand[0].bias, make()[0].bias) and torch.equal(by_hand[3].weight, make()[3].weight)
    without(monkeypatch)
    by_autograd = train([make()], x, y, training=settings).models[0]
    for p, q in zip(by_hand.parameters(), by_autograd.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-11)


def test_one_that_diverges_behind_a_norm_leaves_the_others_alone():
    x, y = (torch.randn(30, k, generator=generator(k), dtype=torch.float64) for k in (3, 2))
    models = [mlp(norm="layer", placement="first")(seed) for seed in range(2)]
    whole = train(models[:1], x, y, training=Training(epochs=4))
    with torch.no_grad():
        models[1][0].weight[0, 0] = torch.inf
    done = train(models, x, y, training=Training(epochs=4))
    assert done.diverged == (1,)
    for p, q in zip(done.models[0].parameters(), whole.models[0].parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-11)


def test_inputs_that_the_first_layer_nearly_maps_to_zero():
    """The size of A·u by R·u, where A·u is a small difference of large terms, and where it is 0."""
    make = chain(
        lambda: nn.Linear(2, 16), lambda: nn.LayerNorm(16, elementwise_affine=False), lambda: nn.Linear(16, 1)
    )
    models = [make(seed) for seed in range(2)]
    with torch.no_grad():
        for model in models:
            model[0].weight[:, 1] = -model[0].weight[:, 0] * (1 + 1e-7)
            model[0].bias.zero_()
    x = torch.tensor([[1e3, 1e3], [0.0, 0.0], [1.0, -1.0]], dtype=torch.float64)
    done = train(models, x, torch.ones(3, 1).double(), training=Training(epochs=1, optimizer="sgd", lr=1.0))
    for model, trained in zip(models, done.models, strict=True):
        loss = (model(x) - 1).square().mean()
        for p, q, g in zip(
            model.parameters(),
            trained.parameters(),
            torch.autograd.grad(loss, model.parameters()),
            strict=True,
        ):
            torch.testing.assert_close(p - q, g, rtol=1e-6, atol=1e-6 * float(g.abs().max()))


@pytest.mark.parametrize("shape", [(2, 5, 3), (2, 5, 4, 3)])
def test_losses_come_with_their_gradients(shape):
    output = torch.randn(*shape, generator=generator(0), dtype=torch.float64, requires_grad=True)
    classes = torch.randint(0, 3, shape[1:-1], generator=generator(1))[None]
    losses, gradient = row_losses("cross_entropy")(output.detach(), classes)
    expected = F.cross_entropy(output.flatten(0, -2), classes.expand(shape[:-1]).flatten(), reduction="none")
    torch.testing.assert_close(losses, expected.reshape(2, 5, -1).mean(2).detach())
    torch.testing.assert_close(
        gradient, torch.autograd.grad(expected.reshape(2, 5, -1).mean(2).sum(), output)[0]
    )
    target = torch.randn(1, *shape[1:], generator=generator(2), dtype=torch.float64)
    losses, gradient = row_losses("mse")(output.detach(), target)
    expected = (output - target).square().flatten(2).mean(2)
    torch.testing.assert_close(losses, expected.detach())
    torch.testing.assert_close(gradient, torch.autograd.grad(expected.sum(), output)[0])
