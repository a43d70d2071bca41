"""The interpreter against the model itself, in float64 to 1e-12, over many kinds of models."""

import pytest
import torch

from farfield.graph import capture
from farfield.graph._prepare import quiet
from graph.models import MODELS
from graph.support import InDouble, assert_same, double, raw_program


@pytest.mark.parametrize("name", MODELS)
def test_program_equals_model(name):
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    model, inputs = model.double(), double(inputs)
    flags = [module.training for module in model.modules()]
    parameters = {key: value.clone() for key, value in model.state_dict().items()}
    program = capture(model, inputs)
    assert [module.training for module in model.modules()] == flags
    assert all(torch.equal(value, parameters[key]) for key, value in model.state_dict().items())
    assert program.capture == "export"
    assert program.unseen == ()
    assert not program.find("unknown")
    with torch.no_grad():
        assert_same(program, inputs, model.eval()(*inputs))


@pytest.mark.parametrize(
    "name", ["layer_norm_mlp", "convolutional", "transformer_encoder", "lstm", "coupling_flow"]
)
def test_program_holds_for_other_batch_sizes(name):
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    model, inputs = model.double().eval(), double(inputs)
    program = capture(model, inputs)
    assert isinstance(program.inputs[0].shape[0], str)
    wider = tuple(torch.cat([x, 2 * x, x[:1]]) for x in inputs)
    with torch.no_grad():
        assert_same(program, wider, model(*wider))


@pytest.mark.parametrize("name", ["layer_norm_mlp", "resnet", "critic", "swiglu", "causal_decoder"])
def test_tracing_and_exporting_agree(name):
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    model, inputs = model.double().eval(), double(inputs)
    if name == "causal_decoder":
        inputs = (inputs[0][:1],)
    program = capture(model, inputs, prefer="fx")
    with torch.no_grad():
        assert_same(program, inputs, model(*inputs))
    assert program.capture in ("fx", "export")


def core_aten(model, inputs):
    with quiet():  # torch warns of its own deprecations
        return torch.export.export(model, inputs, strict=False).run_decompositions()


@pytest.mark.parametrize("name", ["layer_norm_mlp", "unet", "multihead_attention", "lstm", "in_place_writes"])
def test_core_aten_means_the_same(name):
    """A program that somebody already decomposed as far as torch can."""
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    model, inputs = model.double().eval(), double(inputs)
    with torch.no_grad():
        program = capture(core_aten(model, inputs))
        assert_same(program, inputs, model(*inputs))
    assert not program.find("unknown")


def test_norms_survive_full_decomposition():
    torch.manual_seed(0)
    nn = torch.nn
    model = nn.Sequential(
        nn.Linear(6, 8), nn.LayerNorm(8), nn.RMSNorm(8), nn.GroupNorm(2, 8), nn.Softmax(-1)
    ).double()
    x = torch.randn(2, 6, dtype=torch.float64)
    with torch.no_grad():
        program = capture(core_aten(model, (x,)))
    ops = [node.op for node in program.nodes if node.role == "operation"]
    assert ops == ["linear", "layer_norm", "rms_norm", "mul", "group_norm", "softmax"]


def test_own_types_are_kept_when_asked():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.GELU()).bfloat16()
    x = torch.randn(3, 4, dtype=torch.bfloat16)
    program = capture(model, x)
    value = program.evaluate(x, dtype=None)[program.outputs[0]]
    assert value.dtype == torch.bfloat16
    assert torch.equal(value, model(x))
    assert program.evaluate(x)[program.outputs[0]].dtype == torch.float64


def test_only_what_is_kept_stays():
    model, inputs = MODELS["residual"]()
    program = capture(model, inputs)
    everything = program.evaluate(*inputs)
    assert set(everything) == {node.name for node in program.nodes}
    kept = program.evaluate(*inputs, keep=program.outputs)
    assert set(kept) == set(program.outputs)
    assert torch.equal(kept[program.outputs[0]], everything[program.outputs[0]])


def _hugging_face():
    transformers = pytest.importorskip("transformers")
    small = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4}
    feed = {"intermediate_size": 32, "max_position_embeddings": 32}
    ids = torch.randint(50, (2, 5))
    return {
        "bert": lambda: (
            transformers.BertModel(transformers.BertConfig(**small, **feed)),
            {"input_ids": ids, "attention_mask": torch.ones(2, 5, dtype=torch.long)},
            ("layer_norm", 3),
        ),
        "gpt2": lambda: (
            transformers.GPT2LMHeadModel(
                transformers.GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2, n_positions=32)
            ),
            {"input_ids": ids},
            ("layer_norm", 3),
        ),
        "llama": lambda: (
            transformers.LlamaForCausalLM(transformers.LlamaConfig(**small, **feed, num_key_value_heads=2)),
            {"input_ids": ids},
            ("rms_norm", 3),
        ),
        "vit": lambda: (
            transformers.ViTModel(
                transformers.ViTConfig(
                    hidden_size=16,
                    num_hidden_layers=1,
                    num_attention_heads=2,
                    intermediate_size=32,
                    image_size=8,
                    patch_size=4,
                )
            ),
            {"pixel_values": torch.randn(2, 3, 8, 8)},
            ("layer_norm", 3),
        ),
        "t5": lambda: (
            transformers.T5EncoderModel(
                transformers.T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
            ),
            {"input_ids": ids},
            ("rms_norm", 3),
        ),
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "vit", "t5"])
def test_hugging_face_models(name):
    torch.manual_seed(0)
    model, inputs, (norm, count) = _hugging_face()[name]()
    model, inputs = model.double(), double(inputs)
    model.train()
    cached = getattr(model.config, "use_cache", None)
    program = capture(model, inputs)
    assert getattr(model.config, "use_cache", None) is cached
    assert model.training
    assert not program.find("unknown")
    assert program.unseen == ()
    assert len(program.find(norm)) == count
    assert all(name.startswith("output_") for name in program.outputs)
    assert [spec.name for spec in program.inputs] == list(inputs)
    model.eval()
    if cached is not None:
        model.config.use_cache = False
    with torch.no_grad(), InDouble():
        returned = model(**inputs)
    # Llama computes its rotary angles in float32 from constants: folded, they keep that precision.
    tolerance = {"rtol": 1e-6, "atol": 1e-10} if name == "llama" else {}
    assert_same(program, list(inputs.values()), returned, **tolerance)


def test_raw_programs_are_not_changed_by_the_passes():
    model, inputs = MODELS["residual"]()
    raw = raw_program(model, inputs)
    assert capture(model, inputs) is not raw
    assert raw_program(model, inputs).nodes == raw.nodes
