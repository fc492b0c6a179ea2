"""config.json, tables of rules, engines: what goes into a plan, and what is refused."""

from __future__ import annotations

import pytest

from bench.synth.shapes import shape_names
from loaders.slicing.build import plan_rank
from loaders.slicing.config import Quantisation, facts_of, needed
from loaders.slicing.engines import engine_of
from loaders.slicing.errors import ConfigError, PlanError, RulesError
from loaders.slicing.model import model_of
from loaders.slicing.plan import Degrees
from loaders.slicing.rules import built_in, parse_table, read_table, table_for, table_names
from tests.tiny_plans import decoder, manifest, names


@pytest.mark.parametrize("text", ["text_config", "llm_config"])
def test_facts_of_a_nested_language_model(text):
    inner = {"num_hidden_layers": 3, "num_attention_heads": 4, "torch_dtype": "float16"}
    facts = facts_of({"architectures": ["X"], "tie_word_embeddings": True, text: inner})
    assert (facts.layers, facts.heads, facts.kv_heads, facts.architecture) == (3, 4, 4, "X")
    assert (facts.tied, facts.dtype) == (True, "float16")


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({}, None),
        ({"quantize": "w8a8_dynamic"}, Quantisation(method="ascend")),
        (
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 64]}},
            Quantisation(method="fp8", block=(128, 64)),
        ),
        (
            {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {
                "group_0": {"weights": {"strategy": "group", "group_size": 32}}}}},
            Quantisation(method="compressed-tensors", group=32),
        ),
        (
            {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {
                "group_0": {"weights": {"strategy": "block", "block_structure": "128x128"}}}}},
            Quantisation(method="compressed-tensors", block=(128, 128)),
        ),
        (
            {"compression_config": {"quant_method": "compressed-tensors", "config_groups": {
                "group_0": {"weights": {"strategy": "channel", "group_size": None}}}}},
            Quantisation(method="compressed-tensors"),
        ),
    ],
)  # fmt: skip
def test_quantisation_of_config(config, found):
    assert facts_of(config).quantisation == found


@pytest.mark.parametrize(
    "config",
    [
        {"num_attention_heads": 0},
        {"num_attention_heads": 10**30},
        {"num_hidden_layers": 10**9},
        {"num_experts": 10**9},
        {"torch_dtype": "x"},
        {"num_attention_heads": "8"},
        {"num_hidden_layers": True},
        {"num_key_value_heads": -1},
        {"vocab_size": 1.5},
        {"tie_word_embeddings": "yes"},
        {"quantization_config": {"weight_block_size": [128]}},
        {"quantization_config": {"weight_block_size": [0, 1]}},
    ],
)
def test_a_config_of_wrong_types_is_refused_by_field(config):
    with pytest.raises(ConfigError) as error:
        facts_of(config)
    assert "config.json" in str(error.value)
    assert "found" in str(error.value)


def test_what_a_rule_needs_is_named():
    with pytest.raises(ConfigError, match="num_attention_heads"):
        needed(facts_of({}), "heads")
    with pytest.raises(ConfigError, match=r"no config.json"):
        model_of(manifest({"a.weight": (2,)}, None))
    tensors, config = decoder(experts=2)
    del config["num_experts"]
    with pytest.raises(ConfigError, match="num_experts"):
        model_of(manifest(tensors, config))
    with pytest.raises(PlanError, match=r"expert 1, but config\.json says 1 experts"):
        model_of(manifest(tensors, {**config, "num_experts": 1}))


def test_every_built_in_table_can_be_read_and_is_no_shape():
    for name in table_names():
        assert built_in(name).rules
    assert not set(table_names()) & set(shape_names())
    for architecture in ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM",
                         "Qwen3MoeForCausalLM", "MixtralForCausalLM", "DeepseekV2ForCausalLM",
                         "DeepseekV3ForCausalLM"):  # fmt: skip
        assert table_for(architecture) is not None
    assert table_for(None) is None


def test_an_unknown_architecture_with_known_names_is_planned_and_told():
    tensors, config = decoder()
    model = model_of(manifest(tensors, {**config, "architectures": ["OtherForCausalLM"]}))
    assert model.table.name == "dense"
    assert "OtherForCausalLM" in model.notes[0]
    assert model_of(manifest(*decoder(experts=2, arch="Other"))).table.name == "moe"


def test_names_that_no_rule_knows_are_refused_with_names_and_a_way_out():
    tensors, config = decoder()
    tensors["model.layers.0.mystery.weight"] = (3, 3)
    for architecture in ("LlamaForCausalLM", "Other"):
        with pytest.raises(RulesError, match=r"mystery.*--rules"):
            model_of(manifest(tensors, {**config, "architectures": [architecture]}))


@pytest.mark.parametrize("tower", ["visual.blocks.0", "model.vision_tower.encoder.layers.7"])
def test_a_vision_tower_is_whole_on_every_rank_and_its_layers_are_no_drafts(tower):
    tensors, config = decoder(layers=2)
    own = {f"{tower}.attn.qkv.weight": (9, 3), f"{tower}.attn.qkv.bias": (9,)}
    model = model_of(manifest({**tensors, **own}, config))
    assert not model.skipped
    assert any("vision tower is planned whole" in note for note in model.notes)
    for rank in range(4):
        plan = plan_rank(model, Degrees(tp=2, pp=2), rank)
        assert {one.name: one.shape for one in plan.parameters if one.name in own} == own
    assert not any("vision" in note for note in model_of(manifest(tensors, config)).notes)


def test_a_users_table_extends_a_built_in_one(tmp_path):
    tensors, config = decoder()
    tensors["model.layers.0.mystery.weight"] = (6, 4)
    path = tmp_path / "mine.toml"
    path.write_text(
        'extends = "dense"\n[[rules]]\nnames = ["layers.{layer}.mystery"]\n'
        'kind = "other"\ncut = "row"\ninto = "riddle"\n'
    )
    model = model_of(manifest(tensors, {**config, "architectures": ["X"]}), read_table(path))
    plan = plan_rank(model, Degrees(tp=2), 1)
    assert "model.layers.0.riddle.weight" in names(plan)
    own = next(one for one in plan.parameters if one.kind == "other")
    assert own.shape == (6, 2)


RULE = '[[rules]]\nnames = ["a"]\nkind = "k"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "at least one"),
        ("rules = 3", r"\[\[rules\]\]"),
        ("surprise = 1\n" + RULE + 'cut = "row"', "surprise"),
        (RULE, "rule 1: cut is missing"),
        (RULE + 'cut = "diagonal"', "cut: expected .*column.*found 'diagonal'"),
        (RULE + 'cut = "row"\ncolour = "red"', "unknown field colour"),
        (RULE + 'cut = "row"\nstage = "middle"', "stage: expected first, last"),
        (RULE + 'cut = "row"\nstacked = "x"', "stacked: expected out_in"),
        (RULE + 'cut = "heads"', "needs parts"),
        (RULE + 'cut = "row"\nparts = ["a", "b"]', "several parts"),
        (RULE + 'cut = "row"\nparts = ["a"]\nof = ["b"]', "among"),
        (RULE + 'cut = "row"\ntied = 1', "tied: expected true or false"),
        ('[[rules]]\nnames = "a"\nkind = "k"\ncut = "row"', "names: expected a list"),
        (RULE + 'cut = "row"\ninto = 3', "into: expected a text"),
        ('extends = "nothing"', "nothing"),
    ],
)
def test_a_faulty_table_is_refused_by_rule_and_field(text, said):
    with pytest.raises(RulesError, match=said):
        parse_table("mine", text)


def test_a_table_that_cannot_be_read_names_the_file(tmp_path):
    with pytest.raises(RulesError, match=r"absent\.toml"):
        read_table(tmp_path / "absent.toml")
    for data in (b"[[", b"\xff"):
        (tmp_path / "bad.toml").write_bytes(data)
        with pytest.raises(RulesError, match=r"bad.toml"):
            read_table(tmp_path / "bad.toml")


def test_engines_by_version():
    assert engine_of("vllm-0.33") == engine_of(" VLLM-0.33 ")
    assert [engine_of(f"vllm-{v}").remainder for v in ("0.8.5", "0.9", "0.9.2", "0.10.2")] == [
        "last", "last", "last", "spread"
    ]  # fmt: skip
    assert engine_of("vllm-ascend-v0.11.0rc1").round_robin
    assert engine_of("vllm-0.6.3").kv == "v0"
    assert not engine_of("vllm-0.13").ep_filter
    for text in ("", "vllm", "sglang-0.4", "vllm-", "vllm-1", "vllm-0.9x"):
        with pytest.raises(PlanError, match="expected vllm-VERSION"):
            engine_of(text)
