"""LN-G in place of every LayerNorm of a model that exists: nothing else changes, and nothing falls back unseen."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import farfield as ff
from farfield.errors import InvalidValueError
from farfield.growth import Status
from farfield.nn import GroupedChannelNorm, GroupedLayerNorm, LayerNorm, to_grouped


def encoder(**options) -> nn.TransformerEncoder:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0, **options)
        ragged = not options.get("norm_first", False)
        made = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(16), enable_nested_tensor=ragged)
        for norm in made.modules():
            if isinstance(norm, nn.LayerNorm):
                nn.init.normal_(norm.weight)
                nn.init.normal_(norm.bias)
    return made


def tokens(seed: int = 1) -> torch.Tensor:
    return torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("options", [{}, {"norm_first": True}, {"activation": "gelu"}], ids=str)
@pytest.mark.parametrize("compute", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_an_encoder_in_use_is_the_one_in_training(options, compute):
    plain = encoder(**options)
    grouped = to_grouped(plain, 4)
    assert sum(type(m) is GroupedLayerNorm for m in grouped.modules()) == 5
    hidden = torch.zeros(3, 5, dtype=torch.bool)
    hidden[1, 3:] = True
    x = tokens()
    expected, masked = grouped.train()(x), grouped(x, src_key_padding_mask=hidden)
    assert not torch.allclose(expected, plain.train()(x), atol=0.1)
    grouped.eval()
    with compute():
        torch.testing.assert_close(grouped(x), expected, rtol=0, atol=1e-5)
        seen = grouped(x, src_key_padding_mask=hidden)
        torch.testing.assert_close(seen[~hidden], masked[~hidden], rtol=0, atol=1e-5)
        torch.testing.assert_close(grouped.layers[0](x), grouped.train().layers[0](x), rtol=0, atol=1e-5)


def test_what_the_fast_path_would_compute():
    """Why it is switched off: it asks a norm for ε, weight and bias only, and computes LayerNorm, whatever it is."""
    plain = encoder().eval()
    careless = copy.deepcopy(plain)
    for layer in careless.layers:
        for name in ("norm1", "norm2"):
            norm = GroupedLayerNorm(16, 4)
            norm.load_state_dict(getattr(layer, name).state_dict())
            norm.eps = 1e-5
            setattr(layer, name, norm)
    x = tokens()
    with torch.no_grad():
        torch.testing.assert_close(careless(x), plain(x), rtol=0, atol=1e-5)
        assert (to_grouped(plain, 4)(x) - plain(x)).abs().max() > 0.5
    # GroupedLayerNorm has no ``eps``: put in by hand it fails there, and does not compute something else.
    careless.layers[0].norm1 = GroupedLayerNorm(16, 4)
    with torch.no_grad(), pytest.raises(AttributeError, match="eps"):
        careless(x)


def test_the_original_and_other_models_keep_their_fast_path():
    plain = encoder().eval()
    state = {k: v.clone() for k, v in plain.state_dict().items()}
    to_grouped(plain, 2)
    assert sum(isinstance(m, nn.LayerNorm) for m in plain.modules()) == 5
    assert plain.use_nested_tensor and plain.layers[0].activation_relu_or_gelu == 1
    assert torch.backends.mha.get_fastpath_enabled()
    assert all(torch.equal(v, state[k]) for k, v in plain.state_dict().items())


@pytest.mark.parametrize(
    "again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"]
)
def test_copies_stay_off_the_fast_path(again):
    grouped = to_grouped(encoder(), 4).eval()
    with torch.no_grad():
        torch.testing.assert_close(again(grouped)(tokens()), grouped(tokens()))
        file = io.BytesIO()
        torch.save(grouped, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        torch.testing.assert_close(loaded(tokens()), grouped(tokens()))


def test_one_group_is_the_model_and_weights_go_both_ways():
    plain = encoder().eval()
    one = to_grouped(plain, 1)
    with torch.no_grad():
        torch.testing.assert_close(one(tokens()), plain(tokens()), rtol=0, atol=1e-5)
    assert list(one.state_dict()) == list(plain.state_dict())
    plain.load_state_dict(to_grouped(plain, 4).state_dict())
    assert not any(
        p.data_ptr() == q.data_ptr() for p, q in zip(one.parameters(), plain.parameters(), strict=True)
    )


class LayerNorm2d(nn.LayerNorm):
    """As torchvision and timm write it."""

    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Scaled(nn.LayerNorm):
    """Something else."""

    def forward(self, x):
        return 2 * super().forward(x)


class Logged(nn.LayerNorm):
    """A subclass that computes LayerNorm."""

    def forward(self, x):
        return super().forward(x)


def test_channels_of_images():
    net = nn.Sequential(nn.Conv2d(3, 8, 3), LayerNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1), LayerNorm2d(4))
    nn.init.normal_(net[1].weight)
    x = torch.randn(2, 3, 9, 7, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(to_grouped(net, 1)(x), net(x))
    two = to_grouped(net, 2)
    assert type(two[1]) is GroupedChannelNorm
    z = net[0](x)
    halves = torch.cat(
        [nn.functional.layer_norm(h.movedim(1, -1), (4,)).movedim(-1, 1) for h in z.chunk(2, 1)], 1
    )
    expected = halves * net[1].weight[:, None, None] + net[1].bias[:, None, None]
    torch.testing.assert_close(two[1](z), expected)


def test_subclasses_are_what_they_compute():
    assert type(to_grouped(nn.Sequential(Logged(8)), 2)[0]) is GroupedLayerNorm
    assert type(to_grouped(nn.Sequential(Logged(8).double()), 2)[0]) is GroupedLayerNorm
    with pytest.raises(InvalidValueError, match=r"body\.1 is a Scaled, which computes something else"):
        to_grouped(nn.ModuleDict({"body": nn.Sequential(nn.Linear(2, 8), Scaled(8))}), 2)


@pytest.mark.parametrize(
    ("model", "groups", "message"),
    [
        (nn.Sequential(nn.Linear(2, 8), nn.ReLU()), 2, "Sequential has no LayerNorm"),
        (nn.Sequential(nn.LayerNorm((4, 4))), 2, r"^0 normalizes over axes of sizes 4, 4; .* nn\.GroupNorm"),
        (
            nn.Sequential(nn.LayerNorm(8), nn.LayerNorm(6)),
            4,
            "^1: The number of groups divides .* 4 does not divide 6",
        ),
        (nn.Sequential(nn.LayerNorm(4)), 4, "^0: 4 groups of 4 features hold one feature each"),
        (nn.LayerNorm(8), 0, "LayerNorm: The number of groups"),
        (nn.Sequential(LayerNorm()), 2, "^0 is farfield's LayerNorm, which takes any number"),
    ],
    ids=["none", "axes", "divisor", "single", "zero", "ours"],
)
def test_refusals_name_the_norm_and_the_way_out(model, groups, message):
    with pytest.raises(InvalidValueError, match=message):
        to_grouped(model, groups)


def test_norms_without_shift_shared_ones_other_types_and_a_norm_alone():
    shared = nn.LayerNorm(8, bias=False, eps=1e-3).double()
    net = nn.Sequential(nn.Linear(4, 8).double(), shared, nn.Tanh(), shared, nn.RMSNorm(8).double())
    made = to_grouped(net.eval(), 2)
    assert made[1] is made[3] and made[1].norm_eps == 1e-3 and made[1].bias is None
    assert type(made[4]) is nn.RMSNorm and not made[1].training
    x = torch.randn(3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    by_hand = torch.cat([nn.functional.layer_norm(h, (4,), eps=1e-3) for h in x.chunk(2, -1)], -1)
    torch.testing.assert_close(made[1](x), by_hand)
    assert type(to_grouped(nn.LayerNorm(8, elementwise_affine=False), 2)) is GroupedLayerNorm
    half = to_grouped(nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8)).bfloat16(), 2)
    assert half(torch.ones(2, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_gradients_reach_the_weights_of_the_copy():
    made = to_grouped(nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 1)), 2)
    made(torch.randn(5, 4, generator=torch.Generator().manual_seed(0))).sum().backward()
    assert all(p.grad is not None for p in made.parameters())


@pytest.mark.full
def test_every_verb_takes_the_result(tmp_path):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 1)).eval()
    made = to_grouped(net, 2)
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    assert ff.audit(made, x).verdict is Status.BOUNDED
    proved = ff.certify(made, x, time_budget=ff.Budget(steps=50))
    far = made(1e4 * torch.randn(500, 4, generator=torch.Generator().manual_seed(1))).detach()
    assert proved.lower.item() <= float(far.min()) < float(far.max()) <= proved.upper.item()
    assert ff.audit(to_grouped(encoder().eval(), 4), tokens()).verdict is Status.BOUNDED
    program = torch.export.export(made, (x,))
    torch.testing.assert_close(program.module()(x), made(x))
    guarded = ff.monitor.guard(made, x)
    torch.testing.assert_close(guarded(x)[0], made(x))


class Listed(nn.Module):
    """A norm that is called past the places where modules are."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.steps = [self.norm]

    def forward(self, x):
        return self.steps[0](x)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Listed(), "Listed holds a LayerNorm in a plain list"),
        (
            nn.Sequential(torch.compile(nn.LayerNorm(8), backend="eager")),
            "0 is compiled, where it can't be exchanged",
        ),
        (nn.Sequential(nn.LayerNorm(8)), None),
    ],
    ids=["list", "compiled", "fine"],
)
def test_norms_out_of_sight_are_refused(model, message):
    if message is None:
        assert type(to_grouped(model, 2)[0]) is GroupedLayerNorm
        return
    with pytest.raises(InvalidValueError, match=message):
        to_grouped(model, 2)


def test_hooks_go_along_and_parametrized_norms_do_not():
    net = nn.Sequential(nn.LayerNorm(8))
    net[0].register_forward_hook(lambda module, given, output: 3 * output)
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(to_grouped(net, 1)(x), net(x))
    norm = nn.Sequential(nn.LayerNorm(8))
    nn.utils.parametrize.register_parametrization(norm[0], "weight", nn.Identity())
    with pytest.raises(InvalidValueError, match="0 has parametrized weights"):
        to_grouped(norm, 2)


def test_a_subclass_whose_scale_begins_at_zero_is_probed_all_the_same():
    class Tripled(nn.LayerNorm):
        def forward(self, x):
            return 3 * super().forward(x)

    norm = Tripled(8)
    nn.init.zeros_(norm.weight)
    with pytest.raises(InvalidValueError, match="computes something else"):
        to_grouped(nn.Sequential(norm), 2)


def test_types_of_weights_do_not_move_the_type_of_the_result():
    norm, x = nn.LayerNorm(8), torch.randn(4, 8).bfloat16()
    assert to_grouped(norm, 2)(x).dtype == torch.bfloat16
    with pytest.raises(InvalidValueError, match="number of groups"):
        to_grouped(norm, 2.0)
