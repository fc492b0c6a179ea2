"""GPTQ and AWQ: every rank's part of each tensor, against plain slices of it."""

from __future__ import annotations

import numpy as np
import pytest

from loaders.slicing.build import plan_rank
from loaders.slicing.errors import ConfigError, IndivisibleError, PlanError
from loaders.slicing.model import model_of
from loaders.slicing.plan import Degrees
from loaders.slicing.sizes import all_ranks, count
from tests.tiny_plans import carried_out, decoder, manifest, numbered

AT = "model.layers.0."
PACK, GROUP = 8, 16
CONFIGS = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False},
    "awq": {"quant_method": "awq", "w_bit": 4, "q_group_size": GROUP},
}


def packed(method, experts=0, bias=False, **change):
    """A decoder whose linear weights are packed, and its config.json."""
    tensors, config = decoder(
        hidden=64, heads=4, kv=2, dim=16, inter=128, experts=experts, moe=64, bias=bias
    )
    quantisation = {**CONFIGS[method], **change}
    group = quantisation.get("group_size", quantisation.get("q_group_size"))
    found = {}
    for name, shape in tensors.items():
        if "_proj.weight" not in name:
            found[name] = shape
            continue
        module, (out, size) = name.removesuffix("weight"), shape
        groups = 1 if group == -1 else size // group
        gptq = method == "gptq"
        qweight = (size // PACK, out) if gptq else (size, out // PACK)
        found[f"{module}qweight"] = ("int32", qweight)
        found[f"{module}qzeros"] = ("int32", (groups, out // PACK))
        found[f"{module}scales"] = (groups, out)
        if gptq:
            found[f"{module}g_idx"] = ("int32", (size,))
    return found, {**config, "quantization_config": quantisation}


def ranks(tensors, config, degrees):
    checkpoint = manifest(tensors, config)
    model, full = model_of(checkpoint), numbered(checkpoint)
    plans = [plan_rank(model, degrees, rank) for rank in range(degrees.world)]
    sizes = all_ranks(count(model, checkpoint), degrees)
    for plan, size in zip(plans, sizes, strict=True):
        assert (plan.kept_bytes, plan.parameter_bytes) == (size.kept, size.kept + size.padding)
    return [carried_out(plan, full) for plan in plans], full


def share(array, axis, rank, tp):
    """An equal part of the array: np.array_split says where, the plan must agree."""
    return np.array_split(array, tp, axis)[rank]


@pytest.mark.parametrize("method", ["gptq", "awq"])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_column_and_row_cuts_of_every_tensor(method, tp):
    found, full = ranks(*packed(method), Degrees(tp=tp))
    for rank, got in enumerate(found):
        for end in ("qweight", "qzeros", "scales"):
            parts = [full[f"{AT}mlp.{part}_proj.{end}"] for part in ("gate", "up")]
            expected = np.concatenate([share(one, 1, rank, tp) for one in parts], axis=1)
            assert (got[f"{AT}mlp.gate_up_proj.{end}"] == expected).all()
            down = share(full[f"{AT}mlp.down_proj.{end}"], 0, rank, tp)
            assert (got[f"{AT}mlp.down_proj.{end}"] == down).all()
        if method == "gptq":
            down = share(full[f"{AT}mlp.down_proj.g_idx"], 0, rank, tp)
            assert (got[f"{AT}mlp.down_proj.g_idx"] == down).all()
            # one for the fused matrix, its last part's, and whole
            assert (got[f"{AT}mlp.gate_up_proj.g_idx"] == full[f"{AT}mlp.up_proj.g_idx"]).all()
            assert (
                got[f"{AT}self_attn.qkv_proj.g_idx"] == full[f"{AT}self_attn.v_proj.g_idx"]
            ).all()


@pytest.mark.parametrize("method", ["gptq", "awq"])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_heads_are_cut_by_heads_and_key_heads_replicated(method, tp):
    found, full = ranks(*packed(method, bias=True), Degrees(tp=tp))
    for rank, got in enumerate(found):
        for end, each in (("qweight", 1 if method == "gptq" else PACK), ("qzeros", PACK)):
            q, k, v = (full[f"{AT}self_attn.{part}_proj.{end}"] for part in "qkv")
            head, kv = 16 // each, max(tp // 2, 1)
            mine = slice(rank * q.shape[1] // tp, (rank + 1) * q.shape[1] // tp)
            keys = 2 * head // min(tp, 2)
            own = slice(rank // kv * keys, rank // kv * keys + keys)
            expected = np.concatenate([q[:, mine], k[:, own], v[:, own]], axis=1)
            assert (got[f"{AT}self_attn.qkv_proj.{end}"] == expected).all()
        o = f"{AT}self_attn.o_proj."
        assert (got[f"{o}bias"] == full[f"{o}bias"]).all()
        assert got[f"{AT}self_attn.qkv_proj.bias"].shape == ((4 // tp + 2 * max(2 // tp, 1)) * 16,)


@pytest.mark.parametrize("method", ["gptq", "awq"])
@pytest.mark.parametrize("degrees", [Degrees(tp=2), Degrees(tp=2, ep=2)])
def test_experts_are_stacked(method, degrees):
    found, full = ranks(*packed(method, experts=4), degrees)
    for rank, got in enumerate(found):
        local = range(rank * 2, rank * 2 + 2) if degrees.ep > 1 else range(4)
        for end in ("qweight", "qzeros", "scales"):
            w13, w2 = [], []
            for expert in local:
                at = f"{AT}mlp.experts.{expert}."
                parts = [full[f"{at}{part}_proj.{end}"] for part in ("gate", "up")]
                down = full[f"{at}down_proj.{end}"]
                if degrees.ep == 1:
                    parts = [share(one, 1, rank, 2) for one in parts]
                    down = share(down, 0, rank, 2)
                w13.append(np.concatenate(parts, axis=1))
                w2.append(down)
            assert (got[f"{AT}mlp.experts.w13_{end}"] == np.stack(w13)).all()
            assert (got[f"{AT}mlp.experts.w2_{end}"] == np.stack(w2)).all()


@pytest.mark.parametrize("change", [{"desc_act": True}, {"group_size": -1}])
def test_scales_of_a_row_cut_are_whole_where_groups_are_not_in_order(change):
    found, full = ranks(*packed("gptq", **change), Degrees(tp=2))
    down = f"{AT}mlp.down_proj."
    for rank, got in enumerate(found):
        assert (got[f"{down}qweight"] == share(full[f"{down}qweight"], 0, rank, 2)).all()
        for end in ("scales", "qzeros"):
            assert (got[f"{down}{end}"] == full[f"{down}{end}"]).all()


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("gptq", r"mlp.*qzeros.*share of the matrix, 4 of 128, isn't divisible by the 8 "),
        ("awq", r"mlp.*qweight.*share of the matrix, 4 of 128, isn't divisible by the 8 "),
    ],
)
def test_a_share_that_cuts_a_packed_element_is_refused_with_both_numbers(method, said):
    """32 ranks: 4 rows of 128 for each, and 8 are packed in one int32."""
    tensors, config = packed(method)
    only = {name: one for name, one in tensors.items() if ".gate_proj." in name}
    with pytest.raises(IndivisibleError, match=said):
        ranks(only, config, Degrees(tp=32))


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_a_share_that_cuts_a_group_is_refused_with_both_numbers(method):
    """16 ranks: 8 inputs of 128 for each, and 16 share a scale."""
    tensors, config = packed(method)
    only = {name: one for name, one in tensors.items() if ".mlp.down_proj." in name}
    with pytest.raises(IndivisibleError, match=r"share of the matrix, 8 of 128, .* by the 16 "):
        ranks(only, config, Degrees(tp=16))


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (
            {"quant_method": "autoround"},
            ConfigError,
            "expected quant_method gptq or awq.*autoround",
        ),
        ({"bits": 3}, ConfigError, "expected 2, 4 or 8"),
        ({"bits": "4"}, ConfigError, "bits: expected 1 to 32, found '4'"),
        ({"bits": None}, ConfigError, "found None"),
        ({"bits": 8}, PlanError, r"doesn't follow that of its matrix.*bits 8"),
        ({"group_size": 32}, PlanError, r"doesn't follow that of its matrix.*group_size 32"),
    ],
)
def test_a_packing_that_config_json_does_not_tell_rightly(change, error, said):
    tensors, config = packed("gptq")
    config["quantization_config"] |= change
    with pytest.raises(error, match=said):
        ranks(tensors, config, Degrees(tp=2))


@pytest.mark.parametrize("method", [None, "mystery"])
def test_whole_numbers_of_an_unexamined_method_are_told(method):
    tensors, config = decoder()
    if method:
        config["quantization_config"] = {"quant_method": method}
    name = f"{AT}mlp.up_proj.weight"
    assert not model_of(manifest(tensors, config)).notes
    tensors[name] = ("int8", tensors[name])
    tensors[f"{AT}mlp.gate_proj.weight"] = ("int8", tensors[f"{AT}mlp.gate_proj.weight"])
    (note,) = model_of(manifest(tensors, config)).notes
    assert "2 weights of whole numbers" in note
    assert (f"quant_method '{method}'" if method else "names no quant_method") in note
    config["quantization_config"] = {"quant_method": "compressed-tensors"}
    assert not model_of(manifest(tensors, config)).notes
