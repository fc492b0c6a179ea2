"""`coldload check` of quantised checkpoints: the description against the tensors, both ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from bench.cli import main
from loaders.checkpoint.modules import disagreements, fused_names, left_alone, matches
from tests import tiny_quantised as tiny

Q, K, V = (f"{tiny.LAYER}.self_attn.{part}_proj" for part in "qkv")
LEFT = ["lm_head", "re:.*mlp.gate$"]
MODULES = [
    name.removesuffix(".weight") for name in tiny.model(experts=2) if name.endswith("_proj.weight")
]


def compressed(ignore: list[str] = LEFT, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tensors and config of a sound model: every linear layer int8 with channel scales."""
    tensors = tiny.model(experts=2)
    for module in MODULES:
        rows = len(tensors[f"{module}.weight"])
        tensors[f"{module}.weight"] = tensors[f"{module}.weight"].to(torch.int8)
        tensors[f"{module}.weight_scale"] = torch.ones(rows, 1, dtype=torch.bfloat16)
    return tensors, tiny.compressed_config(ignore, **options)


def ascend() -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Tensors and description of a sound model."""
    tensors, _ = compressed()
    for module in MODULES:
        tensors[f"{module}.weight_offset"] = torch.zeros(len(tensors[f"{module}.weight"]), 1)
    kinds = {
        name: "W8A8_DYNAMIC"
        if name.rpartition(".")[0] in MODULES and "bias" not in name
        else "FLOAT"
        for name in tensors
    }
    return tensors, {
        "version": "1.0.0",
        "model_quant_type": "W8A8_DYNAMIC",
        "group_size": 0,
        **kinds,
    }


def check(folder: Path) -> tuple[int, dict[tuple[str, str | None], dict[str, str]]]:
    done = CliRunner().invoke(main, ["check", str(folder), "--json"])
    problems = json.loads(done.stdout)["problems"]
    return done.exit_code, {(one["code"], one["tensor"]): one for one in problems}


def check_compressed(
    tmp_path: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any]
) -> tuple[int, dict[tuple[str, str | None], dict[str, str]]]:
    return check(tiny.write(tmp_path / "m", tensors, config=config))


def check_ascend(
    tmp_path: Path, tensors: dict[str, torch.Tensor], description: Any, **config: Any
) -> tuple[int, dict[tuple[str, str | None], dict[str, str]]]:
    folder = tiny.write(tmp_path / "m", tensors, config={**tiny.CONFIG, **config})
    text = description if isinstance(description, str) else json.dumps(description)
    (folder / "quant_model_description.json").write_text(text)
    return check(folder)


def test_sound_ones(tmp_path: Path) -> None:
    assert check_compressed(tmp_path / "c", *compressed()) == (0, {})
    assert check_ascend(tmp_path / "a", *ascend()) == (0, {})
    plain = tiny.write(tmp_path / "p", tiny.model())
    assert check(plain) == (0, {})


def test_a_missing_and_a_surplus_scale(tmp_path: Path) -> None:
    tensors, config = compressed()
    del tensors[f"{Q}.weight_scale"]
    tensors["lm_head.weight_scale"] = torch.ones(12, 1)
    tensors["gone.weight_scale"] = torch.ones(12, 1)
    tensors[f"{K}.input_scale"] = torch.ones(1)
    code, found = check_compressed(tmp_path, tensors, config)
    assert code == 1
    assert set(found) == {
        ("scale-missing", f"{Q}.weight"),
        ("scale-surplus", "lm_head.weight_scale"),
        ("scale-surplus", "gone.weight_scale"),
        ("scale-surplus", f"{K}.input_scale"),
    }
    assert f"{Q}.weight_scale" in found["scale-missing", f"{Q}.weight"]["message"]


def test_static_activations_need_their_scales(tmp_path: Path) -> None:
    tensors, config = compressed(static=True)
    for module in MODULES[1:]:
        tensors[f"{module}.input_scale"] = torch.tensor(1.0)
    code, found = check_compressed(tmp_path, tensors, config)
    assert (code, set(found)) == (1, {("scale-missing", f"{MODULES[0]}.weight")})


@pytest.mark.parametrize(
    ("strategy", "more", "shape"),
    [
        ("tensor", {}, (1,)),
        ("tensor", {}, ()),
        ("block", {"block_structure": [4, 4]}, (2, 2)),
        ("group", {"group_size": 4}, (8, 2)),
    ],
)
def test_c16_scale_shapes(
    tmp_path: Path, strategy: str, more: dict[str, Any], shape: tuple[int, ...]
) -> None:
    tensors, config = compressed(strategy=strategy, **more)
    for name, tensor in list(tensors.items()):
        if name.endswith(".weight_scale"):
            rows, columns = tensors[name.removesuffix("_scale")].shape
            sizes = {"tensor": shape, "group": (rows, -(-columns // 4))}
            sizes["block"] = (-(-rows // 4), -(-columns // 4))
            tensors[name] = torch.ones(sizes[strategy], dtype=tensor.dtype)
    assert check_compressed(tmp_path / "good", tensors, config) == (0, {})
    tensors[f"{Q}.weight_scale"] = torch.ones(8, 1) if strategy != "channel" else torch.ones(1)
    code, found = check_compressed(tmp_path / "bad", tensors, config)
    assert (code, set(found)) == (1, {("scale-shape", f"{Q}.weight_scale")})


def test_c61_ignore_names_one_part_of_a_fused_layer(tmp_path: Path) -> None:
    tensors, config = compressed([*LEFT, "re:.*q_proj"])
    del tensors[f"{Q}.weight_scale"]
    tensors[f"{Q}.weight"] = tiny.weight(8, 8)
    code, found = check_compressed(tmp_path, tensors, config)
    group = f"{tiny.LAYER}.self_attn.qkv_proj"
    assert (code, set(found)) == (1, {("fused-parts-disagree", group)})
    text = found["fused-parts-disagree", group]["message"]
    assert all(part in text for part in (Q, K, V))


def test_c61_ignore_of_a_quantised_part(tmp_path: Path) -> None:
    code, found = check_compressed(tmp_path, *compressed([*LEFT, "re:.*q_proj"]))
    assert (code, set(found)) == (1, {("quantised-but-ignored", f"{Q}.weight")})


@pytest.mark.parametrize(
    "ignore", [f"{tiny.LAYER}.self_attn.qkv_proj", "re:.*qkv_proj", "re:.*[qkv]_proj"]
)
def test_c61_the_fused_name_means_all_parts(tmp_path: Path, ignore: str) -> None:
    tensors, config = compressed([*LEFT, ignore])
    for module in (Q, K, V):
        tensors[f"{module}.weight"] = tensors[f"{module}.weight"].to(torch.bfloat16)
        del tensors[f"{module}.weight_scale"]
    assert check_compressed(tmp_path, tensors, config) == (0, {})


def test_c62_experts_follow_the_same_matcher(tmp_path: Path) -> None:
    tensors, config = compressed([*LEFT, r"re:.*experts\.1\."])
    for module in MODULES:
        if ".experts.1." in module:
            tensors[f"{module}.weight"] = tensors[f"{module}.weight"].to(torch.bfloat16)
            del tensors[f"{module}.weight_scale"]
    code, found = check_compressed(tmp_path / "some", tensors, config)
    group = f"{tiny.LAYER}.mlp.experts"
    assert (code, set(found)) == (1, {("fused-parts-disagree", group)})
    config["quantization_config"]["ignore"] = LEFT
    code, found = check_compressed(tmp_path / "none", tensors, config)
    assert {key[0] for key in found} == {"fused-parts-disagree", "float-not-ignored"}
    for module in MODULES:
        if ".experts.0." in module:
            tensors[f"{module}.weight"] = tensors[f"{module}.weight"].to(torch.bfloat16)
            del tensors[f"{module}.weight_scale"]
    config["quantization_config"]["ignore"] = [*LEFT, group]
    assert check_compressed(tmp_path / "all", tensors, config) == (0, {})


def test_dtypes_that_the_config_doesnt_say(tmp_path: Path) -> None:
    tensors, config = compressed(kind="float")
    code, found = check_compressed(tmp_path, tensors, config)
    assert (code, {key[0] for key in found}) == (1, {"quantised-dtype"})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"ignore": ["re:("]}, "ignore-invalid"),
        ({"ignore": "lm_head"}, "quantisation-invalid"),
        ({"config_groups": 7}, "quantisation-invalid"),
        ({"config_groups": {"g": {"targets": ["Linear"], "weights": {}}}}, "quantisation-invalid"),
    ],
)
def test_configs_that_say_nothing(tmp_path: Path, change: dict[str, Any], expected: str) -> None:
    tensors, config = compressed()
    config["quantization_config"] |= change
    code, found = check_compressed(tmp_path, tensors, config)
    assert (code, {key[0] for key in found}) == (1, {expected})


def test_other_formats_are_left_alone_with_a_word(tmp_path: Path) -> None:
    tensors, config = compressed()
    config["quantization_config"]["config_groups"]["group_0"]["format"] = "nvfp4-pack-quantized"
    code, found = check_compressed(tmp_path / "nv", tensors, config)
    assert (code, {key[0] for key in found}) == (0, {"quantisation-unexamined"})
    config["quantization_config"] = {"quant_method": "gptq"}
    code, found = check_compressed(tmp_path / "gptq", tensors, config)
    assert (code, {key[0] for key in found}) == (0, {"quantisation-unexamined"})
    config["quantization_config"] = "int8"
    assert check_compressed(tmp_path / "odd", tensors, config)[0] == 1


def test_ascend_description_and_weights_both_ways(tmp_path: Path) -> None:
    tensors, description = ascend()
    del tensors[f"{Q}.weight_offset"]
    del description[f"{K}.weight"]
    description["model.gone.weight"] = "FLOAT"
    tensors["model.new.bias"] = torch.ones(2)
    description["lm_head.weight"] = "W8A8_DYNAMIC"
    code, found = check_ascend(tmp_path, tensors, description)
    assert code == 1
    assert set(found) == {
        ("described-but-absent", f"{Q}.weight_offset"),
        ("described-but-absent", "model.gone.weight"),
        ("scale-missing", f"{Q}.weight"),
        ("not-described", f"{K}.weight"),
        ("not-described", "model.new.bias"),
        ("scale-surplus", f"{K}.weight_scale"),
        ("scale-surplus", f"{K}.weight_offset"),
        ("quantised-dtype", "lm_head.weight"),
    }
    assert found["not-described", "model.new.bias"]["severity"] == "warning"


def test_ascend_fused_parts(tmp_path: Path) -> None:
    tensors, description = ascend()
    tensors[f"{Q}.weight"] = tiny.weight(8, 8)
    for name in (f"{Q}.weight_scale", f"{Q}.weight_offset"):
        del tensors[name], description[name]
    description[f"{Q}.weight"] = "FLOAT"
    code, found = check_ascend(tmp_path, tensors, description)
    assert (code, set(found)) == (
        1,
        {("fused-parts-disagree", f"{tiny.LAYER}.self_attn.qkv_proj")},
    )


def test_c60_static_ascend_layers_need_no_weight_scale(tmp_path: Path) -> None:
    tensors, description = ascend()
    for module in MODULES:
        rows = len(tensors[f"{module}.weight"])
        for name in ("weight_scale", "weight_offset"):
            del tensors[f"{module}.{name}"], description[f"{module}.{name}"]
        more = {
            "input_scale": torch.ones(1),
            "input_offset": torch.zeros(1, dtype=torch.int8),
            "deq_scale": torch.ones(rows, dtype=torch.int64),
            "quant_bias": torch.zeros(rows, dtype=torch.int32),
        }
        tensors |= {f"{module}.{name}": tensor for name, tensor in more.items()}
        description |= {f"{module}.{name}": "W8A8" for name in ("weight", *more)}
    assert check_ascend(tmp_path / "good", tensors, description) == (0, {})
    del tensors[f"{Q}.deq_scale"], description[f"{Q}.deq_scale"]
    code, found = check_ascend(tmp_path / "bad", tensors, description)
    assert (code, set(found)) == (1, {("scale-missing", f"{Q}.weight")})


def test_c19_a_tied_head_may_be_described(tmp_path: Path) -> None:
    tensors, description = ascend()
    del tensors["lm_head.weight"]
    assert check_ascend(tmp_path / "t", tensors, description, tie_word_embeddings=True) == (0, {})
    assert check_ascend(tmp_path / "f", tensors, description)[0] == 1


@pytest.mark.parametrize("text", ["{", "[]", '{"a.weight": NaN}', ""])
def test_a_broken_description_is_named(tmp_path: Path, text: str) -> None:
    code, found = check_ascend(tmp_path, tiny.model(), text)
    assert (code, {key[0] for key in found}) == (1, {"quantisation-invalid"})


def test_many_of_a_kind_are_counted(tmp_path: Path) -> None:
    tensors = {f"l{number}.up_proj.weight_scale": torch.ones(1) for number in range(50)}
    code, found = check_compressed(tmp_path, tensors, tiny.compressed_config([]))
    assert code == 1
    assert len(found) == 21
    assert any("30 more" in one["message"] for one in found.values())


def test_names() -> None:
    assert fused_names("a.self_attn.k_proj") == ("a.self_attn.qkv_proj",)
    assert fused_names("a.experts.7.w1") == ("a.experts.7.w13", "a.experts")
    assert fused_names("a.experts.7.down_proj") == ("a.experts",)
    assert fused_names("k_proj") == ("qkv_proj",)
    assert fused_names("a.o_proj") == ()
    for name in (
        "lm_head",
        "a.mlp.gate",
        "a.embed_tokens",
        "visual.blocks.0.mlp.fc1",
        "a.router.wg",
    ):
        assert left_alone(name) is not None
    for name in (
        "a.mlp.gate_proj",
        "a.experts.3.w2",
        "a.self_attn.kv_b_proj",
        "a.mlp.gate_up_proj",
    ):
        assert left_alone(name) is None
    assert matches("a.q_proj", ["re:a"])  # from the start on, as the library matches
    assert not matches("b.a.q_proj", ["re:a"])


modules = st.builds(
    "model.layers.{}.{}".format,
    st.integers(0, 2),
    st.sampled_from(
        ["mlp.experts.0.w1", "mlp.experts.1.w3", "self_attn.q_proj", "self_attn.v_proj"]
    ),
)


@given(st.dictionaries(modules, st.sampled_from(["int8", "float"])))
def test_a_disagreement_names_exactly_the_parts(states: dict[str, str]) -> None:
    found = disagreements(states)
    for group, parts in found.items():
        assert len(parts) == 2
        for state, names in parts.items():
            assert all(states[name] == state and group in fused_names(name) for name in names)
    agreed = {fused_names(name)[-1] for name in states} - found.keys()
    for group in agreed:
        assert len({state for name, state in states.items() if group in fused_names(name)}) == 1
