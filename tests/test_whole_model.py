"""What a checkpoint lacks for its parameters, and what it has too much of: each named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tiny_assembly import CONFIG, shapes
from tiny_plans import manifest

from bench.synth.manifest import manifest_of
from bench.synth.shapes import load_shape, shape_names
from loaders.slicing.model import model_of
from loaders.slicing.whole import Whole, whole

LAYER = "model.layers.1."


def looked_at(
    change: Callable[[dict[str, Any]], object] = lambda tensors: None, **config: Any
) -> Whole:
    tensors: dict[str, Any] = dict(shapes())
    change(tensors)
    checkpoint = manifest(tensors, {**CONFIG, **config})
    return whole(model_of(checkpoint), checkpoint)


def without(*names: str) -> Callable[[dict[str, Any]], object]:
    return lambda tensors: [tensors.pop(name) for name in names]


def lacking(found: Whole) -> dict[str, str]:
    return {one.parameter: one.lacks for one in found.unfilled}


@pytest.mark.parametrize("name", shape_names())
def test_models_as_published_are_whole(name: str) -> None:
    checkpoint = manifest_of(load_shape(name))
    found = whole(model_of(checkpoint), checkpoint)
    assert found.unfilled == ()
    assert found.surplus == {}
    assert (found.draft is not None) == (name == "deepseek-v3")


def test_a_draft_model_is_a_part_of_its_own() -> None:
    checkpoint = manifest_of(load_shape("deepseek-v3"))
    draft = whole(model_of(checkpoint), checkpoint).draft
    assert draft is not None
    assert draft.layers == (61,)
    assert all(name.startswith("model.layers.61.") for name in draft.tensors)
    assert draft.nbytes == sum(
        one.nbytes for one in checkpoint.tensors if one.name in set(draft.tensors)
    )


@pytest.mark.parametrize("part", ["q", "k", "v"])
def test_a_fused_part_that_one_layer_lacks(part: str) -> None:
    found = lacking(looked_at(without(f"{LAYER}self_attn.{part}_proj.weight")))
    assert found == {f"{LAYER}self_attn.qkv_proj.weight": f"its part {part}"}


@pytest.mark.parametrize("name", ["self_attn.o_proj", "mlp.down_proj", "input_layernorm"])
def test_a_parameter_that_other_layers_have(name: str) -> None:
    found = lacking(looked_at(without(f"{LAYER}{name}.weight")))
    assert list(found) == [f"{LAYER}{name}.weight"]
    assert "other layers have it" in found[f"{LAYER}{name}.weight"]


def test_a_fused_parameter_none_of_whose_parts_are_there() -> None:
    names = [f"{LAYER}mlp.{part}_proj.weight" for part in ("gate", "up")]
    assert list(lacking(looked_at(without(*names)))) == [f"{LAYER}mlp.gate_up_proj.weight"]


def test_a_bias_that_other_layers_have() -> None:
    def biased(tensors: dict[str, Any]) -> None:
        for layer in (0, 2):
            tensors[f"model.layers.{layer}.self_attn.o_proj.bias"] = (64,)

    assert list(lacking(looked_at(biased))) == [f"{LAYER}self_attn.o_proj.bias"]


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_whole_layers_up_to_those_of_the_config(layer: int) -> None:
    def cut(tensors: dict[str, Any]) -> None:
        for name in [one for one in tensors if one.startswith(f"model.layers.{layer}.")]:
            del tensors[name]

    found = lacking(looked_at(cut))
    assert list(found) == [f"model.layers.{layer}.*"]
    assert "3 layers" in found[f"model.layers.{layer}.*"]


@pytest.mark.parametrize("name", ["lm_head", "model.embed_tokens", "model.norm"])
def test_what_belongs_to_no_layer(name: str) -> None:
    assert list(lacking(looked_at(without(f"{name}.weight")))) == [f"{name}.weight"]


def test_a_tied_head_may_be_absent_and_is_kept_once() -> None:
    absent = looked_at(without("lm_head.weight"), tie_word_embeddings=True)
    assert (absent.unfilled, absent.tied) == ((), ())
    there = looked_at(tie_word_embeddings=True)
    assert (there.unfilled, there.tied) == ((), ("lm_head.weight",))


def test_surplus_tensors_are_named_with_the_reason() -> None:
    def more(tensors: dict[str, Any]) -> None:
        tensors[f"{LAYER}self_attn.rotary_emb.inv_freq"] = (4,)
        tensors["model.layers.3.input_layernorm.weight"] = (64,)

    found = looked_at(more)
    assert found.surplus == {
        f"{LAYER}self_attn.rotary_emb.inv_freq": "engines compute rotary frequencies",
        "model.layers.3.input_layernorm.weight": "layer 3 is a draft layer: the model has 3",
    }
    assert found.draft is None
    declared = looked_at(more, num_nextn_predict_layers=1)
    assert declared.draft is not None
    assert declared.draft.nbytes == 128


def test_dense_and_expert_layers_are_not_held_against_each_other() -> None:
    checkpoint = manifest_of(load_shape("deepseek-v3"))
    lost = "model.layers.9.mlp.experts.7.up_proj.weight"
    from dataclasses import replace

    short = replace(
        checkpoint, tensors=tuple(one for one in checkpoint.tensors if one.name != lost)
    )
    found = lacking(whole(model_of(short), short))
    assert found == {"model.layers.9.mlp.experts.w13_weight": "its part up of expert 7"}
    lost = "model.layers.9.mlp.experts.7."
    short = replace(
        checkpoint,
        tensors=tuple(one for one in checkpoint.tensors if not one.name.startswith(lost)),
    )
    found = lacking(whole(model_of(short), short))
    assert found == {
        f"model.layers.9.mlp.experts.{name}_weight": "1 expert of 256: 7" for name in ("w13", "w2")
    }


def test_the_command_names_them_and_ends_with_1(tmp_path: Any) -> None:
    from click.testing import CliRunner
    from tiny_assembly import written

    from bench.commands.plan import command

    made = written(tmp_path / "model", {**CONFIG, "num_hidden_layers": 4})
    result = CliRunner().invoke(command, [made.root])
    assert result.exit_code == 1
    assert "UNFILLED: model.layers.3.* lacks every tensor" in result.output
    assert CliRunner().invoke(command, [written(tmp_path / "good").root]).exit_code == 0
