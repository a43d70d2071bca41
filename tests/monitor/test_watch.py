"""A training loop that stays as it is, and the callbacks of three libraries, each with the library itself."""

import csv

import pytest
import torch
from torch import nn

import farfield as ff
from farfield.errors import InvalidValueError
from farfield.monitor import FarFieldMonitor, IsometryMonitor, TangentMonitor, watch


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))


def train(model, x, steps):
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        (model(x) - x.sum(-1, keepdim=True)).square().mean().backward()
        optimizer.step()


def test_every_so_many_steps_of_its_own_optimizer(tmp_path):
    model, other, x = network(), network(), torch.randn(32, 3)
    told = []
    with watch(model, x, every=10, log=lambda scalars, step: told.append((step, scalars))) as seen:
        train(model, x, 15)
        train(other, x, 100)  # somebody else's steps
        train(model, x, 15)
    train(model, x, 50)  # nobody looks any more
    assert [step for step, _ in seen.records] == [0, 10, 20, 30] and told == seen.records
    seen.to_csv(tmp_path / "seen.csv")
    with open(tmp_path / "seen.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["0", "10", "20", "30"]
    assert [float(row["far_field/slope"]) for row in rows] == [s["far_field/slope"] for _, s in seen.records]


def test_watching_changes_no_bit_of_the_training():
    x = torch.randn(32, 3)
    model, watched = network(), network()
    train(model, x, 40)
    looks = [FarFieldMonitor(watched, x, every=7), IsometryMonitor(watched, x, every=5)]
    with watch(watched, monitors=looks) as seen:
        train(watched, x, 40)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), watched.parameters(), strict=True))
    assert [step for step, _ in seen.records] == [0, 5, 7, 10, 14, 15, 20, 21, 25, 28, 30, 35, 40]


def test_an_error_in_the_loop_leaves_no_hook():
    model, x = network(), torch.randn(8, 3)
    with pytest.raises(ZeroDivisionError), watch(model, x, every=1) as seen:
        1 / 0  # noqa: B018
    train(model, x, 3)
    assert len(seen.records) == 1


def test_nothing_to_look_with_is_named():
    with pytest.raises(InvalidValueError, match="got neither"), watch(network()):
        pass


@pytest.mark.filterwarnings("ignore")
def test_lightning(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch", reason="needs the extra [lightning]")
    from lightning.pytorch.loggers import CSVLogger

    from farfield.monitor.lightning import LightningMonitor

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network()

        def training_step(self, batch, _):
            return (self.net(batch[0]) - 1).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 1e-2)

    module, x = Module(), torch.randn(64, 3)
    callback = LightningMonitor(FarFieldMonitor(module.net, x, every=5))
    trainer = lightning.Trainer(
        max_steps=12,
        callbacks=[callback],
        logger=CSVLogger(tmp_path),
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        accumulate_grad_batches=2,
    )
    trainer.fit(module, torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=8))
    assert [step for step, _ in callback.seen.records] == [0, 5, 10]
    logged = next(tmp_path.rglob("metrics.csv")).read_text(encoding="utf-8")
    assert "far_field/slope" in logged and module.net.training


@pytest.mark.filterwarnings("ignore")
def test_transformers(tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs the extra [transformers]")
    pytest.importorskip("accelerate", reason="transformers' Trainer needs accelerate")
    from farfield.monitor.transformers import TransformersMonitor

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network()

        def forward(self, x, labels=None):
            logits = self.net(x)
            return {"loss": (logits - 1).square().mean(), "logits": logits}

    model, x = Model(), torch.randn(64, 3)
    data = [{"x": row, "labels": torch.ones(1)} for row in x]
    settings = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=12,
        per_device_train_batch_size=8,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        logging_strategy="no",
    )
    trainer = transformers.Trainer(model=model, args=settings, train_dataset=data)
    callback = TransformersMonitor(FarFieldMonitor(model.net, x, every=5)).attach(trainer)
    trainer.train()
    assert [step for step, _ in callback.seen.records] == [0, 5, 10]
    logged = [line for line in trainer.state.log_history if "far_field/slope" in line]
    assert [line["step"] for line in logged] == [0, 5, 10]
    assert logged[1]["far_field/slope"] == callback.seen.records[1][1]["far_field/slope"]


@pytest.mark.filterwarnings("ignore")
def test_stable_baselines3(tmp_path):
    baselines = pytest.importorskip("stable_baselines3", reason="needs the extra [sb3]")
    from stable_baselines3.common.logger import configure

    from farfield.monitor.stable_baselines3 import BaselinesMonitor

    model = baselines.SAC("MlpPolicy", "Pendulum-v1", learning_starts=20, seed=0, device="cpu", batch_size=16)
    model.set_logger(configure(str(tmp_path), ["csv"]))
    example = (torch.randn(16, 3), torch.rand(16, 1) * 2 - 1)
    callback = BaselinesMonitor(FarFieldMonitor(model.critic, example, every=25))
    model.learn(60, callback=callback)
    model.logger.dump(60)
    model.logger.close()
    assert [step for step, _ in callback.seen.records] == [0, 25, 50]
    assert callback.seen.records[-1][1]["far_field/slope"] > 0
    assert "far_field/slope" in (tmp_path / "progress.csv").read_text(encoding="utf-8")


class Counting(nn.Module):
    """State that every call moves, whatever the mode: a counter, a running mean, an attribute."""

    def __init__(self, dtype):
        super().__init__()
        self.net, self.last = network().to(dtype), None
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(3, dtype=dtype))

    def forward(self, x):
        self.calls += 1
        self.mean.mul_(0.9).add_(x.detach().mean(0).to(self.mean), alpha=0.1)
        self.last = x
        return self.net(x)


class Merging(nn.Linear):
    """LoRA as loralib has it: ``eval`` adds the low-rank part to the weight, ``train`` takes it off again."""

    def __init__(self):
        super().__init__(3, 16)
        self.low, self.merged = nn.Parameter(torch.randn(16, 3)), False

    def train(self, mode=True):
        super().train(mode)
        if mode == self.merged:
            self.weight.data += -self.low if mode else self.low
            self.merged = not mode
        return self

    def forward(self, x):
        return nn.functional.linear(x, self.weight if self.merged else self.weight + self.low, self.bias)


LOOKS = {
    "far field": lambda model, x: FarFieldMonitor(model, x).step(0),
    "isometry": lambda model, x: IsometryMonitor(model, x).step(0),
    "tangent": lambda model, x: TangentMonitor(model, x, 2 * x).step(0),
    "audit": ff.audit,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("look", LOOKS)
def test_a_model_with_state_keeps_it(look, dtype):
    model, x = Counting(dtype), torch.randn(8, 3, dtype=dtype)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    LOOKS[look](model, x)
    assert all(tensor.equal(before[name]) for name, tensor in model.state_dict().items())
    assert model.last is None and model.training


@pytest.mark.parametrize("look", LOOKS)
def test_weights_that_eval_would_merge_are_left_alone(look):
    model, x = nn.Sequential(Merging(), nn.ReLU(), nn.Linear(16, 1)), torch.randn(8, 3)
    before, weight = model(x), model[0].weight.clone()
    LOOKS[look](model, x)
    assert model(x).equal(before) and model[0].weight.equal(weight)
