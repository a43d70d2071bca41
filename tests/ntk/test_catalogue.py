"""Every method gives the kernel of every kind of module, and leaves the module as it was."""

import itertools

import pytest
import torch

from farfield.ntk import empirical_ntk, layer_contributions
from farfield.ntk._gram import _block
from ntk_models import CATALOGUE, build, distance, gradients, reference

METHODS = ("layerwise", "jacobian", "ntvp")
NAMES = sorted(CATALOGUE)


def index_of(model, x):
    """One output: a number where there is one axis, else a number for each."""
    shape = model(x[:1]).shape[1:]
    place = tuple(size - 1 if k % 2 == 0 else 0 for k, size in enumerate(shape))
    return place[0] if len(place) == 1 else place


def state(model):
    return {
        "parameters": [
            (n, id(p), p._version, p.requires_grad, p.grad)
            for n, p in model.named_parameters(remove_duplicate=False)
        ],
        "buffers": [(n, id(b), b._version) for n, b in model.named_buffers()],
        "modules": [
            (n, id(m), m.training, len(m._forward_hooks))
            for n, m in model.named_modules(remove_duplicate=False)
        ],
    }  # fmt: skip


def test_the_catalogue_is_large_and_varied():
    assert len(CATALOGUE) >= 60


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_methods_agree_with_each_other_and_with_plain_autograd(name):
    """And leave the model and its inputs as they were."""
    model, x, y = build(name)
    a, b = gradients(model, x), gradients(model, y)
    truth = torch.einsum("nkp,mlp->nmkl", a, b)
    before, values, inputs = state(model), [p.detach().clone() for p in model.parameters()], x.clone()
    found = {}
    for method in METHODS:
        found[method] = empirical_ntk(model, x, y, outputs="full", method=method)
        assert state(model) == before, method
    assert all(torch.equal(v, p) for v, p in zip(values, model.parameters(), strict=True))
    assert torch.equal(x, inputs) and not x.requires_grad
    for method, value in found.items():
        assert value.shape == truth.shape and value.dtype == torch.float64, method
        assert distance(value, truth) < 1e-10, method
    for first, second in itertools.combinations(found.values(), 2):
        assert distance(first, second) < 1e-10
    square = torch.einsum("nkp,mkp->nm", a, a)
    total = torch.einsum("nkp,mlp->nm", a, b)
    for method in METHODS:
        assert distance(empirical_ntk(model, x, method=method), square) < 1e-10, method
        assert distance(empirical_ntk(model, x, y, outputs="sum", method=method), total) < 1e-10, method
    assert distance(empirical_ntk(model, x), square) < 1e-10


@pytest.mark.parametrize("name", NAMES)
def test_one_output(name):
    model, x, y = build(name)
    if model(x[:1]).dim() < 2:
        pytest.skip("its outputs have no axis")
    place = index_of(model, x)
    truth = reference(model, x, y, place)
    for method in METHODS:
        assert distance(empirical_ntk(model, x, y, outputs=place, method=method), truth) < 1e-10, method


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_some_of_the_parameters(name):
    """Every second one, so that weights count without their biases and the other way round; and one alone."""
    model, x, y = build(name)
    named = [name for name, p in model.named_parameters() if p.requires_grad and "spare" not in name]
    for chosen in ({*named[::2]}, {*named[1::2]}, {named[-1]}):
        if not chosen:
            continue
        truth = reference(model, x, y, chosen=chosen.__contains__)
        for method in METHODS if len(chosen) == 1 else METHODS[:2]:
            value = empirical_ntk(model, x, y, parameters=lambda n, p: n in chosen, method=method)  # noqa: B023
            assert distance(value, truth) < 1e-10, (chosen, method)


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_parts_by_parameter(name):
    model, x, y = build(name)
    before = state(model)
    parts = layer_contributions(model, x, y)
    assert state(model) == before
    named = {name for name, p in model.named_parameters() if p.requires_grad}
    assert set(parts) <= named
    assert distance(sum(parts.values()), reference(model, x, y)) < 1e-10
    for name, part in parts.items():
        # A bias may be counted with its weight, and only so.
        with_bias = {name, name.removesuffix("weight") + "bias"} if name.endswith("weight") else {name}
        alone = reference(model, x, y, chosen={name}.__contains__)
        both = reference(model, x, y, chosen=(with_bias - (set(parts) - {name})).__contains__)
        assert min(float((part - truth).abs().max()) for truth in (alone, both)) <= 1e-10 * float(
            both.abs().max()
        )


@pytest.mark.parametrize("name", ["mlp", "layer_norm_affine", "cnn", "gpt_tied", "lstm"])
@pytest.mark.parametrize("method", METHODS)
def test_single_precision(name, method):
    model, x, y = build(name, torch.float32)
    value = empirical_ntk(model, x, y, method=method)
    assert value.dtype == torch.float32
    model, x, y = build(name)
    assert distance(value.double(), reference(model, x, y)) < 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_single_inputs(name):
    """One against several, where rules for batches go wrong first."""
    model, x, y = build(name)
    truth = reference(model, x[:1], y)
    for method in METHODS[:2]:
        assert distance(empirical_ntk(model, x[:1], y, method=method), truth) < 1e-10, method
        assert distance(empirical_ntk(model, y, x[:1], method=method), truth.T) < 1e-10, method


@pytest.mark.parametrize("method", METHODS)
def test_inside_inference_mode(method):
    model, x, y = build("layer_norm_affine")
    truth = reference(model, x, y)
    with torch.inference_mode():
        value = empirical_ntk(model, x.clone(), y.clone(), method=method)
    assert distance(value, truth) < 1e-10
    assert not value.is_inference() and not value.requires_grad


@pytest.mark.parametrize("method", METHODS)
def test_several_workers_do_not_disturb_each_other(method):
    """Values are put into the module itself for the time of a run."""
    from farfield.engine import local

    model, _, _ = build("raw_parameters")
    x = torch.randn(12, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    truth = reference(model, x)
    value = empirical_ntk(model, x, method=method, memory=10_000, engine=local(4))
    assert distance(value, truth) < 1e-10


# ------------------------------------------------------------------ the oracle notices


def wrong(kind):
    """Kernels with the faults that are easily made."""
    model, x, y = build("shared_linear")
    a, b = gradients(model, x), gradients(model, y)
    if kind == "two per cent":
        return 1.02 * torch.einsum("nkp,mkp->nm", a, b), reference(model, x, y)
    if kind == "another input":
        return torch.einsum("nkp,mkp->nm", a, b.roll(1, 0)), reference(model, x, y)
    if kind == "outputs swapped":
        return torch.einsum("nkp,mlp->nmlk", a, b), reference(model, x, y, "full")
    if kind == "uses counted apart":
        # Σ over uses of the kernel of each, instead of the kernel of the sum.
        layers = [torch.nn.Linear(5, 5).double() for _ in range(3)]
        for layer in layers:
            layer.load_state_dict(model[0].state_dict())
        parts = torch.nn.Sequential(layers[0], model[1], layers[1], model[3], layers[2], model[5])
        return empirical_ntk(parts, x, y), reference(model, x, y)
    if kind == "bias forgotten":
        return empirical_ntk(model, x, y, parameters=lambda n, p: "bias" not in n), reference(model, x, y)
    raise AssertionError(kind)


@pytest.mark.parametrize(
    "kind", ["two per cent", "another input", "outputs swapped", "uses counted apart", "bias forgotten"]
)
def test_a_wrong_kernel_is_noticed(kind):
    value, truth = wrong(kind)
    assert value.shape == truth.shape and distance(value, truth) > 1e-3


def test_a_wrong_rule_is_noticed(monkeypatch):
    """A padding token that counts, patches without dilation, a norm's shift that is forgotten."""
    from farfield.ntk import _factors

    def ignoring(option, value):
        original = _factors.ParameterCall.option

        def changed(self, name, default=None):
            return value if name == option else original(self, name, default)

        return changed

    for name, option, value in (("embedding_with_padding", "padding", None), ("gpt_tied", "rows", 8)):
        model, x, y = build(name)
        with monkeypatch.context() as patch:
            patch.setattr(_factors.ParameterCall, "option", ignoring(option, value))
            if option == "rows":
                with pytest.raises(Exception, match=r"size|shape"):
                    empirical_ntk(model, x, y, method="layerwise")
            else:
                assert distance(empirical_ntk(model, x, y, method="layerwise"), reference(model, x, y)) > 1e-3

    def unsummed(*given):
        return 0.98 * _block(*given)

    model, x, y = build("mlp")
    with monkeypatch.context() as patch:
        patch.setattr("farfield.ntk._gram._block", unsummed)
        assert distance(empirical_ntk(model, x, y, method="layerwise"), reference(model, x, y)) > 1e-3


def test_torch_forgets_what_a_shared_module_held():
    """Why values are put into every place by name: torch's own way leaves another tensor behind."""
    model, x, _ = build("shared_block_with_norms")
    before = state(model)["parameters"]
    values = {name: p.detach().clone() for name, p in model.named_parameters()}
    torch.func.functional_call(model, values, (x,))
    after = state(model)["parameters"]
    if [p[:2] for p in after] == [p[:2] for p in before]:
        pytest.skip("this version of torch puts everything back")
    model, x, _ = build("shared_block_with_norms")
    before = state(model)["parameters"]
    empirical_ntk(model, x, method="jacobian")
    assert state(model)["parameters"] == before
