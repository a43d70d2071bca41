"""Many networks trained at once come out as each does alone."""

import itertools
import multiprocessing
import signal
import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from farfield.engine import FolderInUseError
from farfield.errors import InvalidValueError
from farfield.learn import Stack, Training, predict_all, train
from farfield.nn import MLP, GroupedLayerNorm
from waiting import until


def generator(seed):
    return torch.Generator().manual_seed(seed)


def mlp(seed, *, inputs=3, outputs=2, dtype=torch.float64, **settings):
    settings = {"width": 12, "depth": 2, "bias_var": 0.1, **settings}
    return MLP(inputs, outputs, generator=generator(seed), dtype=dtype, **settings)


def data(n=40, inputs=3, outputs=2, dtype=torch.float64):
    x = torch.randn(n, inputs, generator=generator(100), dtype=dtype)
    return x, torch.sin(x[:, :1]) + torch.arange(outputs) * x[:, 1:2]


class Attention(nn.Module):
    """Something no chain of layers is."""

    def __init__(self, seed):
        super().__init__()
        self.lift = nn.Linear(3, 8, dtype=torch.float64)
        self.mix = nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
        self.read = nn.Linear(8, 2, dtype=torch.float64)
        with torch.no_grad():
            for p in self.parameters():
                p.normal_(0, 0.3, generator=generator(seed))

    def forward(self, x):
        h = self.lift(x)[:, None]
        return self.read(self.mix(h, h, h, need_weights=False)[0])[:, 0]


FAMILIES = {
    "plain": lambda seed: mlp(seed),
    "norm_first": lambda seed: mlp(seed, norm="layer", placement="first"),
    "norm_every_affine": lambda seed: mlp(seed, norm="layer", norm_affine=True),
    "rms": lambda seed: mlp(seed, norm="rms", norm_affine=True, activation="gelu"),
    "project": lambda seed: mlp(seed, norm="rms", order="post", activation="tanh"),
    # Without the biases that the norm takes away again: their gradients are rounding, and Adam divides by its size.
    "batch": lambda seed: mlp(seed, norm="batch", norm_affine=True, bias_var=0.0),
    "ntk": lambda seed: mlp(seed, parametrization="ntk", norm="layer"),
    "range": lambda seed: mlp(seed, certified_range=(-2.0, 2.0)),
    "grouped": lambda seed: mlp(seed, norm="grouped", groups=3),
    "attention": Attention,
}


def alone(model, x, y, training, seed, rows=None, weights=None):
    """A plain loop for one model: the reference, written without anything of the trainer."""
    import copy

    model = copy.deepcopy(model).train()
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[training.optimizer]
    extra = {"momentum": training.momentum} if training.optimizer == "sgd" else {}
    step = kind(model.parameters(), lr=training.lr, weight_decay=training.weight_decay, **extra)
    rows = torch.arange(len(x)) if rows is None else rows
    weights = torch.ones(len(x), dtype=torch.float64) if weights is None else weights
    weights = weights / weights[rows].mean()
    for epoch in range(training.epochs):
        if training.schedule == "cosine":
            step.param_groups[0]["lr"] = training.lr * (1 + np.cos(np.pi * epoch / training.epochs)) / 2
        size = training.batch_size or len(rows)
        order = rows
        if size < len(rows):
            order = rows[torch.from_numpy(np.random.default_rng([seed, epoch]).permutation(len(rows)))]
        for k in range(0, len(rows), size):
            batch = order[k : k + size]
            step.zero_grad()
            if training.loss == "mse":
                each = (model(x[batch]) - y[batch]).square().mean(1)
            else:
                each = F.cross_entropy(model(x[batch]), y[batch], reduction="none")
            (weights[batch] * each).mean().backward()
            step.step()
    return model.eval()


def same(a, b, tolerance=1e-9):
    for (name, p), (_, q) in zip(a.state_dict().items(), b.state_dict().items(), strict=True):
        torch.testing.assert_close(p, q, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("batch_size", [None, 16])
def test_as_each_alone(family, batch_size):
    x, y = data()
    models = [FAMILIES[family](seed) for seed in range(3)]
    training = Training(epochs=12, batch_size=batch_size, lr=0.01)
    done = train(models, x, y, training=training, seeds=[5, 6, 7])
    for model, trained, seed in zip(models, done.models, [5, 6, 7], strict=True):
        same(trained, alone(model, x, y, training, seed))


def test_the_comparison_can_fail():
    x, y = data()
    model = mlp(0)
    done = train([model], x, y, training=Training(epochs=3, lr=0.01))
    with pytest.raises(AssertionError):
        same(done.models[0], alone(model, x, y, Training(epochs=3, lr=0.0101), 0))


def test_structures_mixed_keep_their_places():
    x, y = data()
    order = ["norm_first", "plain", "attention", "norm_first", "batch", "plain"]
    models = [FAMILIES[name](k) for k, name in enumerate(order)]
    training = Training(epochs=6, lr=0.01)
    done = train(models, x, y, training=training)
    for k, model in enumerate(models):
        same(done.models[k], alone(model, x, y, training, k))
    torch.testing.assert_close(
        predict_all(done.models, x), torch.stack([m(x) for m in done.models]).detach(), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "sgd", "momentum": 0.9, "schedule": "cosine"},
        {"optimizer": "adamw", "weight_decay": 0.1},
        {"optimizer": "adam", "weight_decay": 0.01, "batch_size": 7},
    ],
)
def test_optimizers_and_schedules(settings):
    x, y = data()
    models = [mlp(seed, norm="layer") for seed in range(2)]
    training = Training(epochs=8, lr=0.01, **settings)
    done = train(models, x, y, training=training)
    for k, model in enumerate(models):
        same(done.models[k], alone(model, x, y, training, k))


def test_a_rate_for_every_model():
    x, y = data()
    models = [mlp(0), mlp(0), mlp(0)]
    done = train(models, x, y, training=Training(epochs=5, lr=(0.01, 0.02, 0.01)))
    same(done.models[1], alone(models[1], x, y, Training(epochs=5, lr=0.02), 1))
    same(done.models[0], done.models[2], 0.0)


def test_rows_of_its_own_and_weights():
    x, y = data()
    rows = torch.stack([torch.randperm(40, generator=generator(k))[:25] for k in range(3)])
    weights = torch.rand(40, generator=generator(9), dtype=torch.float64)
    models = [mlp(seed) for seed in range(3)]
    training = Training(epochs=6, lr=0.01, batch_size=10)
    done = train(models, x, y, training=training, rows=rows, weights=weights)
    for k, model in enumerate(models):
        same(done.models[k], alone(model, x, y, training, k, rows[k], weights))


def test_integer_weights_are_repeated_rows():
    x, y = data(20)
    counts = torch.randint(0, 4, (20,), generator=generator(1))
    repeated = torch.repeat_interleave(torch.arange(20), counts)
    training = Training(epochs=10, lr=0.01)
    by_weight = train([mlp(0)], x, y, training=training, weights=counts.double()).models[0]
    same(by_weight, train([mlp(0)], x[repeated], y[repeated], training=training).models[0])


def test_pieces_change_nothing(monkeypatch):
    x, y = data(100)
    models = [mlp(seed, norm="layer", placement="first") for seed in range(2)]
    training = Training(epochs=5, lr=0.01)
    whole = train(models, x, y, training=training)
    monkeypatch.setattr("farfield.learn._pieces._PIECE", 17 * 2 * 12)
    monkeypatch.setattr("farfield.learn._pieces._CACHED", 17 * 12)
    pieces = train(models, x, y, training=training)
    for a, b in zip(whole.models, pieces.models, strict=True):
        same(a, b, 1e-12)
    torch.testing.assert_close(whole.losses, pieces.losses, rtol=1e-12, atol=0)


def test_classes():
    x, _ = data()
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()
    models = [mlp(seed, outputs=3) for seed in range(2)]
    training = Training(epochs=10, lr=0.01, loss="cross_entropy", batch_size=16)
    done = train(models, x, y, training=training)
    for k, model in enumerate(models):
        same(done.models[k], alone(model, x, y, training, k))


def test_each_stops_by_itself_and_goes_back_to_its_best():
    x, y = data(60)
    y = y + torch.randn(y.shape, generator=generator(3), dtype=y.dtype)
    rows, held = torch.arange(30), torch.arange(30, 60)
    models = [mlp(seed, width=32) for seed in range(4)]
    training = Training(epochs=300, lr=0.02, patience=15)
    done = train(models, x, y, training=training, rows=rows, validation_rows=held)
    assert len(set(done.epochs)) > 1
    losses = done.validation_losses
    for k, (model, epoch) in enumerate(zip(models, done.epochs, strict=True)):
        seen = losses[:, k][torch.isfinite(losses[:, k])]
        assert len(seen) == min(epoch + 15, 300)
        assert epoch == int(seen.argmin()) + 1
        torch.testing.assert_close(
            float((done.models[k](x[held]) - y[held]).square().mean().detach()),
            float(seen.min()),
            rtol=1e-9,
            atol=0,
        )
        same(done.models[k], alone(model, x, y, Training(epochs=epoch, lr=0.02), k, rows), 1e-8)


def test_one_that_diverges_leaves_the_others_alone():
    x, y = data()
    models = [mlp(0), mlp(1)]
    with torch.no_grad():
        models[1][0].weight.fill_(torch.inf)
    training = Training(epochs=5, lr=0.01)
    done = train(models, x, y, training=training)
    assert done.diverged == (1,)
    same(done.models[0], alone(models[0], x, y, training, 0))


def test_models_given_are_not_changed():
    x, y = data()
    models = [mlp(0, norm="batch"), mlp(1)]
    before = [{k: v.clone() for k, v in m.state_dict().items()} for m in models]
    modes = [m.training for m in models]
    train(models, x, y, training=Training(epochs=2))
    for model, state, mode in zip(models, before, modes, strict=True):
        assert model.training == mode
        for name, value in model.state_dict().items():
            assert torch.equal(value, state[name])


def test_frozen_parameters_stay():
    x, y = data()
    model = mlp(0)
    model[0].weight.requires_grad_(False)
    done = train([model], x, y, training=Training(epochs=3, lr=0.1))
    assert torch.equal(done.models[0][0].weight, model[0].weight)
    assert not torch.equal(done.models[0][2].weight, model[2].weight)


def test_tied_weights_and_other_norms_go_through_vmap():
    tied = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    tied[2].weight = tied[0].weight
    assert not Stack([tied]).structured
    assert not Stack([nn.Sequential(GroupedLayerNorm(4, 2))]).structured
    assert Stack([mlp(0, norm="layer", norm_affine=True)]).structured


def test_chains_agree_with_vmap():
    x = torch.randn(3, 7, 3, generator=generator(0), dtype=torch.float64)
    for name in FAMILIES:
        stack = Stack([FAMILIES[name](seed) for seed in range(3)])
        stack.training = False
        by_rule = stack(x)
        stack._steps = None
        torch.testing.assert_close(by_rule, stack(x), rtol=1e-12, atol=1e-12)


def test_bfloat16_learns_as_well():
    x, y = data(256, dtype=torch.float32)
    models = [mlp(seed, dtype=torch.float32, width=32, norm="layer") for seed in range(2)]
    exact, rough = (
        train(models, x, y, training=Training(epochs=150, lr=0.01, precision=p)).losses
        for p in ("float32", "bfloat16")
    )
    assert not torch.equal(exact, rough)
    torch.testing.assert_close(exact[:20], rough[:20], rtol=0.05, atol=0)
    assert bool((rough[-1] < 0.02 * rough[0]).all())


@pytest.mark.parametrize(("faster", "chosen"), [(True, "bfloat16"), (False, "float32")])
def test_precision_is_chosen_by_a_trial(monkeypatch, faster, chosen):
    asked = []
    monkeypatch.setattr(
        "farfield.learn._training._bfloat16_pays", lambda device, width: bool(asked.append(width)) or faster
    )
    x, y = data(64, dtype=torch.float32)
    models = [mlp(seed, dtype=torch.float32, width=32) for seed in range(2)]
    by_trial = train(models, x, y, training=Training(epochs=3, precision="auto"))
    wanted = train(models, x, y, training=Training(epochs=3, precision=chosen))
    assert (by_trial.precision, wanted.precision, asked) == (chosen, chosen, [32])
    assert torch.equal(by_trial.losses, wanted.losses)


def test_the_trial_answers_the_same_within_a_process():
    from farfield.learn._training import _bfloat16_pays

    first = _bfloat16_pays(torch.device("cpu"), 128)
    assert isinstance(first, bool) and all(
        _bfloat16_pays(torch.device("cpu"), 128) is first for _ in range(3)
    )


def _job(folder, pause):
    x, y = data(200, dtype=torch.float32)
    models = [FAMILIES[n](k).float() for k, n in enumerate(["plain", "norm_first", "plain", "batch"])]

    def slowly(done, total):
        time.sleep(pause)

    return train(
        models, x, y,
        training=Training(epochs=60, batch_size=64, lr=0.01, patience=25, optimizer="adam"),
        validation_rows=torch.arange(150, 200), rows=torch.arange(150),
        checkpoint=folder, checkpoint_seconds=0.0, progress=slowly,
    )  # fmt: skip


def test_a_killed_run_goes_on_to_the_same_bits(tmp_path):
    whole = _job(tmp_path / "whole", 0.0)
    context = multiprocessing.get_context("fork")  # with one thread, as here
    killed = 0
    for pause in itertools.repeat(0.05, 3):
        process = context.Process(target=_job, args=(tmp_path / "killed", pause))
        process.start()
        until(lambda: list((tmp_path / "killed").glob("*.result")))
        time.sleep(0.3)
        process.kill()
        process.join()
        killed += process.exitcode == -signal.SIGKILL
    assert killed
    resumed = _job(tmp_path / "killed", 0.0)
    assert torch.equal(whole.losses, resumed.losses)
    assert torch.equal(whole.validation_losses.nan_to_num(), resumed.validation_losses.nan_to_num())
    assert whole.epochs == resumed.epochs
    for a, b in zip(whole.models, resumed.models, strict=True):
        for p, q in zip(a.state_dict().values(), b.state_dict().values(), strict=True):
            assert torch.equal(p, q)


def test_another_training_does_not_take_the_folder(tmp_path):
    x, y = data()
    train([mlp(0)], x, y, training=Training(epochs=2), checkpoint=tmp_path)
    with pytest.raises(InvalidValueError, match="another computation"):
        train([mlp(0)], x, y, training=Training(epochs=3), checkpoint=tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"models": []}, "at least one model"),
        ({"y": torch.zeros(40)}, r"y\[:, None\]"),
        ({"y": torch.zeros(39, 2)}, "one target for every row"),
        ({"seeds": [1]}, "one seed for every model"),
        ({"rows": torch.tensor([40])}, "0 to 39"),
        ({"rows": torch.zeros(3, 2, dtype=torch.int64)}, "with 2 models"),
        ({"training": Training(patience=3)}, "give them"),
        ({"training": Training(lr=(1e-3,))}, "one for every model"),
        ({"weights": -torch.ones(40)}, "non-negative"),
        ({"weights": torch.zeros(40)}, "all be zero"),
        ({"models": [nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.1))] * 2}, "p = 0"),
    ],
)
def test_errors_teach(change, words):
    x, y = data()
    given = {"models": [mlp(0), mlp(1)], "x": x, "y": y, **change}
    with pytest.raises(InvalidValueError, match=words):
        train(given.pop("models"), given.pop("x"), given.pop("y"), **given)


@pytest.mark.parametrize(
    "settings", [{"epochs": 0}, {"batch_size": 0}, {"lr": 0.0}, {"patience": 0}, {"lr": (0.1, -1.0)}]
)
def test_settings_are_checked(settings):
    with pytest.raises(InvalidValueError):
        Training(**settings)


def test_names_are_checked():
    wrong = Training()
    object.__setattr__(wrong, "optimizer", "adamm")  # past the check of types that tests run under
    with pytest.raises(KeyError, match="Did you mean 'adam'"):
        wrong.__post_init__()


# ------------------------------------------------------------------ models that look alike


class Times(nn.Module):
    """Prints the same whatever its factor."""

    def __init__(self, factor):
        super().__init__()
        self.factor, self.linear = factor, nn.Linear(3, 2, dtype=torch.float64)

    def forward(self, x):
        return self.factor * self.linear(x)


def test_models_that_print_alike_are_not_taken_for_one_another():
    x, _ = data()
    functions = (lambda z: torch.sin(z), lambda z: torch.tanh(z))
    for models in (
        [Times(1.0), Times(5.0)],
        [mlp(0, activation=f) for f in functions],
        [mlp(0, certified_range=(-1.0, 1.0 + k * 1e-9)) for k in range(2)],
    ):
        expected = torch.stack([m.eval()(x) for m in models]).detach()
        torch.testing.assert_close(predict_all(models, x), expected, rtol=1e-13, atol=1e-13)
        with pytest.raises(InvalidValueError, match="one value of every setting"):
            Stack(models)


def test_models_that_are_alike_are_stacked():
    act = lambda z: z * torch.sigmoid(z)  # noqa: E731
    for family in (*FAMILIES.values(), lambda seed: mlp(seed, activation=act), lambda seed: Times(3.0)):
        assert Stack([family(seed) for seed in range(2)]).size == 2


def test_a_checkpoint_knows_settings_that_are_not_printed(tmp_path):
    x, y = data()
    models = [Times(1.0), Times(1.0)]
    models[1].load_state_dict(models[0].state_dict())
    models[1].factor = 5.0
    train(models[:1], x, y, training=Training(epochs=2), checkpoint=tmp_path)
    with pytest.raises(InvalidValueError, match="another computation"):
        train(models[1:], x, y, training=Training(epochs=2), checkpoint=tmp_path)


def test_a_module_that_stands_twice_is_run_twice():
    x, y = data()
    act, norm = nn.ReLU(), nn.BatchNorm1d(5, affine=False, dtype=torch.float64)
    linear = [nn.Linear(a, b, dtype=torch.float64) for a, b in ((3, 5), (5, 5), (5, 2))]
    training = Training(epochs=4, lr=0.01)
    for between in ([act], [norm], [norm, act]):
        model = nn.Sequential(linear[0], *between, linear[1], *between, linear[2])
        done = train([model], x, y, training=training).models[0]
        same(done, alone(model, x, y, training, 0))
        torch.testing.assert_close(predict_all([done], x)[0], done(x).detach(), rtol=1e-12, atol=1e-12)


def test_hooks_on_a_container_are_run():
    x, _ = data()
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 3)), nn.Linear(3, 2)).double()
    model[0].register_forward_hook(lambda module, inputs, output: 2 * output)
    torch.testing.assert_close(predict_all([model], x)[0], model(x).detach(), rtol=1e-12, atol=1e-12)


def test_targets_of_another_shape_are_refused():
    x, y = data()
    for model, target in ((mlp(0), y[:, :1]), (nn.Sequential(mlp(0), nn.Flatten(0)), y)):
        with pytest.raises(InvalidValueError, match="of a row have one shape"):
            train([model], x, target, training=Training(epochs=1))


def test_weights_may_be_integers():
    x, y = data()
    counts = torch.randint(0, 4, (40,), generator=generator(1))
    a, b = (
        train([mlp(0)], x, y, training=Training(epochs=3), weights=w).models[0]
        for w in (counts, counts.double())
    )
    same(a, b, 0.0)


def test_what_happens_after_its_stop_is_not_a_models_own():
    x, y = data(60)
    rows, held = torch.arange(30), torch.arange(30, 60)
    y = y + torch.randn(y.shape, generator=generator(3), dtype=y.dtype)
    models = [mlp(0, width=32), mlp(1)]
    # The first stops early; its rate makes it overflow only later, while the second goes on.
    training = Training(epochs=80, optimizer="sgd", lr=(40.0, 1e-3), patience=3, schedule="constant")
    both = train(models, x, y, training=training, rows=rows, validation_rows=held)
    one = train(
        models[:1],
        x,
        y,
        training=Training(epochs=80, optimizer="sgd", lr=40.0, patience=3),
        rows=rows,
        validation_rows=held,
    )
    count = one.trained[0]
    assert both.trained[0] == count < both.trained[1]
    assert both.diverged == one.diverged
    assert bool(both.losses[count:, 0].isnan().all())
    torch.testing.assert_close(both.losses[:count, 0], one.losses[:, 0], rtol=1e-9, atol=0, equal_nan=True)


def test_a_checkpoint_knows_which_rows_are_which(tmp_path):
    """Rows to train on and rows to stop by, the same numbers: two runs, though each gives one tensor."""
    x, y = data()
    half = torch.arange(20)
    train([mlp(0)], x, y, training=Training(epochs=2), checkpoint=tmp_path, rows=half)
    with pytest.raises(InvalidValueError, match="another computation"):
        train([mlp(0)], x, y, training=Training(epochs=2), checkpoint=tmp_path, validation_rows=half)


def test_a_checkpoint_is_of_one_version(tmp_path, monkeypatch):
    from farfield.learn import _trainer

    x, y = data()
    train([mlp(0)], x, y, training=Training(epochs=2), checkpoint=tmp_path)
    monkeypatch.setattr(_trainer, "provenance", lambda settings: {"versions": {"torch": "0"}})
    with pytest.raises(InvalidValueError, match="another computation"):
        train([mlp(0)], x, y, training=Training(epochs=2), checkpoint=tmp_path)


def test_one_run_at_a_time_in_a_folder(tmp_path):
    x, y = data()

    def again(done, total):
        if done == 1:
            with pytest.raises(FolderInUseError, match="Another run is using"):
                train([mlp(0)], x, y, training=Training(epochs=2), checkpoint=tmp_path)
            raised.append(True)

    raised = []
    train([mlp(0)], x, y, training=Training(epochs=2), checkpoint=tmp_path, progress=again)
    train([mlp(0)], x, y, training=Training(epochs=2), checkpoint=tmp_path)  # it is free again
    assert raised == [True]
