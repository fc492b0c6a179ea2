"""Scales, offsets and biases follow their weights."""

from __future__ import annotations

import numpy as np
import pytest

from loaders.slicing.build import plan_rank
from loaders.slicing.errors import IndivisibleError, PlanError
from loaders.slicing.model import model_of
from loaders.slicing.plan import Degrees
from tests.tiny_plans import carried_out, decoder, manifest, numbered

AT = "model.layers.0."
FP8 = {"quant_method": "fp8", "weight_block_size": [4, 4]}


def filled(tensors, config, degrees, rank):
    checkpoint = manifest(tensors, config)
    sources = numbered(checkpoint)
    return carried_out(plan_rank(model_of(checkpoint), degrees, rank), sources), sources


def with_scales(tensors, scale, end="weight_scale"):
    """A scale beside every linear weight, of the shape that `scale` makes of the weight's."""
    found = dict(tensors)
    for name, shape in tensors.items():
        if "_proj" in name and name.endswith(".weight"):
            found[f"{name.removesuffix('weight')}{end}"] = scale(shape)
    return found


def blocks(shape):
    return tuple(-(-size // 4) for size in shape)


@pytest.mark.parametrize("end", ["weight_scale", "weight_offset"])
def test_c48_per_channel_scales_are_cut_with_columns_and_whole_with_rows(end):
    tensors, config = decoder(heads=4, kv=2, hidden=8)
    tensors = with_scales(tensors, lambda shape: (shape[0], 1), end)
    got, full = filled(tensors, config, Degrees(tp=2), 1)
    parts = [full[f"{AT}self_attn.{part}_proj.{end}"] for part in "qkv"]
    want = np.concatenate([np.split(one, 2)[1] for one in parts])
    assert (got[f"{AT}self_attn.qkv_proj.{end}"] == want).all()
    o = full[f"{AT}self_attn.o_proj.{end}"]
    assert (got[f"{AT}self_attn.o_proj.{end}"] == o).all()


def test_c48_group_scales_are_cut_with_the_input():
    tensors, config = decoder(hidden=8, heads=8, kv=8, dim=8)
    tensors[f"{AT}self_attn.o_proj.weight_scale"] = (8, 2)
    for rank in range(2):
        got, full = filled(tensors, config, Degrees(tp=2), rank)
        want = full[f"{AT}self_attn.o_proj.weight_scale"][:, rank : rank + 1]
        assert (got[f"{AT}self_attn.o_proj.weight_scale"] == want).all()


@pytest.mark.parametrize(
    ("columns", "groups", "tp"), [(96, 3, 2), (11008, 86, 4), (11008, 32, 64), (928, 29, 2)]
)
def test_c47_a_cut_inside_a_group_is_refused_with_both_numbers(columns, groups, tp):
    tensors, config = decoder(heads=64, kv=64, dim=1, inter=columns, vocab=64)
    tensors[f"{AT}mlp.down_proj.weight_scale"] = (12, groups)
    with pytest.raises(IndivisibleError) as error:
        plan_rank(model_of(manifest(tensors, config)), Degrees(tp=tp), 0)
    assert f"{columns // tp} of {columns}" in str(error.value)
    assert f"the {columns // groups} that share" in str(error.value)


@pytest.mark.parametrize("scalar", [(), (1,)])
def test_scalars_are_one_for_each_original_matrix(scalar):
    tensors, config = decoder(experts=2, moe=4)
    for end in ("weight_scale", "input_scale"):
        tensors = with_scales(tensors, lambda shape: scalar, end)
    got, full = filled(tensors, config, Degrees(tp=2), 1)
    for end in ("weight_scale", "input_scale"):
        want = [full[f"{AT}self_attn.{part}_proj.{end}"].item() for part in "qkv"]
        assert got[f"{AT}self_attn.qkv_proj.{end}"].tolist() == want
        want = [
            [full[f"{AT}mlp.experts.{expert}.{part}_proj.{end}"].item() for part in ("gate", "up")]
            for expert in range(2)
        ]
        assert got[f"{AT}mlp.experts.w13_{end}"].tolist() == want
        assert got[f"{AT}mlp.experts.w2_{end}"].shape == (2, *scalar)


def test_block_scales_are_cut_in_blocks():
    tensors, config = decoder(hidden=16, heads=4, kv=2, dim=4, inter=16)
    tensors = with_scales(tensors, blocks, "weight_scale_inv")
    config["quantization_config"] = FP8
    for rank in range(2):
        got, full = filled(tensors, config, Degrees(tp=2), rank)
        parts = [full[f"{AT}mlp.{part}_proj.weight_scale_inv"] for part in ("gate", "up")]
        want = np.concatenate([np.split(one, 2)[rank] for one in parts])
        assert (got[f"{AT}mlp.gate_up_proj.weight_scale_inv"] == want).all()
        down = np.split(full[f"{AT}mlp.down_proj.weight_scale_inv"], 2, axis=1)[rank]
        assert (got[f"{AT}mlp.down_proj.weight_scale_inv"] == down).all()


@pytest.mark.parametrize("inter", [12, 20])
def test_a_share_that_is_no_multiple_of_the_block_is_refused(inter):
    tensors, config = decoder(hidden=16, heads=4, kv=4, dim=4, inter=inter)
    tensors = with_scales(tensors, blocks, "weight_scale_inv")
    with pytest.raises(IndivisibleError, match=f"{inter // 2} of {inter}.*the 4 that share"):
        filled(tensors, {**config, "quantization_config": FP8}, Degrees(tp=2), 0)


def test_the_last_block_may_be_part_of_one():
    tensors, config = decoder(hidden=10, heads=2, kv=2, dim=4, inter=8)
    tensors = with_scales(tensors, blocks, "weight_scale_inv")
    got, _ = filled(tensors, {**config, "quantization_config": FP8}, Degrees(tp=2), 1)
    assert got[f"{AT}self_attn.o_proj.weight_scale_inv"].shape == (3, 1)


def test_ascend_static_w8a8_beside_a_column_and_a_row_layer():
    tensors, config = decoder(heads=4, kv=2, hidden=8)
    for name, shape in list(tensors.items()):
        if "_proj" in name:
            at, rows = name.removesuffix("weight"), shape[0]
            tensors |= {f"{at}deq_scale": (rows,), f"{at}quant_bias": (rows,)}
            tensors |= {f"{at}input_scale": (1,), f"{at}input_offset": (1,)}
    got, full = filled(tensors, {**config, "quantize": "w8a8"}, Degrees(tp=2), 1)
    for end in ("deq_scale", "quant_bias"):
        parts = [full[f"{AT}mlp.{part}_proj.{end}"] for part in ("gate", "up")]
        want = np.concatenate([np.split(one, 2)[1] for one in parts])
        assert (got[f"{AT}mlp.gate_up_proj.{end}"] == want).all()
        assert (got[f"{AT}mlp.down_proj.{end}"] == full[f"{AT}mlp.down_proj.{end}"]).all()
    assert got[f"{AT}mlp.gate_up_proj.input_scale"].shape == (2,)


def test_packed_weights_are_cut_in_packed_columns():
    tensors, config = decoder(hidden=8, heads=4, kv=4, dim=4, inter=64)
    for name, shape in list(tensors.items()):
        if "_proj" in name:
            at = name.removesuffix("weight")
            del tensors[name]
            tensors[f"{at}weight_packed"] = ("int32", (shape[0], shape[1] // 8))
            tensors[f"{at}weight_scale"] = (shape[0], max(1, shape[1] // 16))
            tensors[f"{at}weight_shape"] = ("int64", (2,))
    got, full = filled(tensors, config, Degrees(tp=2), 1)
    packed = full[f"{AT}mlp.down_proj.weight_packed"]
    assert (got[f"{AT}mlp.down_proj.weight_packed"] == packed[:, 4:]).all()
    scale = full[f"{AT}mlp.down_proj.weight_scale"]
    assert (got[f"{AT}mlp.down_proj.weight_scale"] == scale[:, 2:]).all()


def test_a_scale_of_another_shape_or_without_its_weight_is_refused():
    tensors, config = decoder()
    with pytest.raises(PlanError, match=r"\[5, 1\] doesn't follow.*\[8, 12\]"):
        filled({**tensors, f"{AT}mlp.up_proj.weight_scale": (5, 1)}, config, Degrees(tp=2), 0)
    del tensors[f"{AT}mlp.up_proj.weight"]
    with pytest.raises(PlanError, match=r"up_proj.weight beside it"):
        filled({**tensors, f"{AT}mlp.up_proj.bias": (8,)}, config, Degrees(tp=2), 0)
