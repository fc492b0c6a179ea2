"""Each rule against what it says in the engine's words, on made-up tensors that aren't square."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from loaders.slicing.build import plan_rank, plans
from loaders.slicing.errors import IndivisibleError, PlanError
from loaders.slicing.model import model_of
from loaders.slicing.placement import local_experts, stage_layers
from loaders.slicing.plan import Degrees
from tests.tiny_plans import carried_out, decoder, latent, manifest, mlp, names, numbered, pieces_of

AT = "model.layers.0."


def filled(tensors, config, degrees, rank, **how):
    checkpoint = manifest(tensors, config)
    plan = plan_rank(model_of(checkpoint), degrees, rank, **how)
    return carried_out(plan, numbered(checkpoint)), numbered(checkpoint)


def test_c40_heads_that_the_ranks_do_not_divide_are_refused_with_both_numbers():
    for heads, tp in ((6, 4), (52, 8), (3, 2)):
        with pytest.raises(IndivisibleError, match=rf"{heads} attention heads.*tp {tp}"):
            plan_rank(model_of(manifest(*decoder(heads=heads, kv=heads, dim=4))), Degrees(tp=tp), 0)


@pytest.mark.parametrize(("kv", "tp"), [(4, 3), (6, 4), (2, 3), (3, 4), (4, 6)])
def test_kv_heads_that_neither_divide_nor_are_divided_are_refused(kv, tp):
    made = manifest(*decoder(heads=12 * kv, kv=kv))
    with pytest.raises(IndivisibleError) as error:
        plan_rank(model_of(made), Degrees(tp=tp), 0)
    assert str(kv) in str(error.value)
    assert str(tp) in str(error.value)


@pytest.mark.parametrize(("tp", "kv"), [(1, 2), (2, 2), (4, 2), (8, 2), (8, 1), (4, 4), (2, 8)])
def test_split_qkv_is_stacked_and_kv_heads_are_replicated(tp, kv):
    tensors, config = decoder(heads=8, kv=kv, dim=3, bias=True)
    for rank in range(tp):
        got, full = filled(tensors, config, Degrees(tp=tp), rank)
        for end in ("weight", "bias"):
            q, k, v = (full[f"{AT}self_attn.{part}_proj.{end}"] for part in "qkv")
            if tp <= kv:
                mine = [np.split(one, tp)[rank] for one in (k, v)]
            else:
                mine = [np.split(one, kv)[rank // (tp // kv)] for one in (k, v)]
            want = np.concatenate([np.split(q, tp)[rank], *mine])
            assert (got[f"{AT}self_attn.qkv_proj.{end}"] == want).all()


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_c42_a_fused_qkv_is_split_by_its_sections(tp):
    """Stored fused, it must give what the same rows give when they are stored apart."""
    apart, config = decoder(heads=8, kv=2, dim=1, hidden=5)
    fused = {n: s for n, s in apart.items() if "self_attn" not in n and "mlp" not in n}
    fused |= {
        f"{AT}self_attn.qkv_proj.weight": (12, 5),
        f"{AT}mlp.gate_up_proj.weight": (16, 5),
        f"{AT}mlp.down_proj.weight": (5, 8),
    }
    for rank in range(tp):
        got, full = filled(fused, config, Degrees(tp=tp), rank)
        q, k, v = np.split(full[f"{AT}self_attn.qkv_proj.weight"], [8, 10])
        kv = rank if tp == 2 else rank // (tp // 2) if tp > 2 else slice(None)
        want = [np.split(q, tp)[rank], k[kv].reshape(-1, 5), v[kv].reshape(-1, 5)]
        assert (got[f"{AT}self_attn.qkv_proj.weight"] == np.concatenate(want)).all()
        gate, up = np.split(full[f"{AT}mlp.gate_up_proj.weight"], 2)
        both = np.concatenate([np.split(gate, tp)[rank], np.split(up, tp)[rank]])
        assert (got[f"{AT}mlp.gate_up_proj.weight"] == both).all()


def test_c52_row_parallel_cuts_columns_and_leaves_its_bias_whole():
    tensors, config = decoder(hidden=8, heads=8, kv=2, dim=2, bias=True)
    got, full = filled(tensors, config, Degrees(tp=4), 3)
    o = full[f"{AT}self_attn.o_proj.weight"]
    assert o.shape == (8, 16)
    assert (got[f"{AT}self_attn.o_proj.weight"] == o[:, 12:16]).all()
    assert (got[f"{AT}self_attn.o_proj.bias"] == full[f"{AT}self_attn.o_proj.bias"]).all()


@pytest.mark.parametrize(("vocab", "tp"), [(101, 2), (32001, 2), (128, 4), (65, 8), (1, 64)])
def test_c45_the_vocabulary_is_padded_to_64_and_what_is_padded_is_told(vocab, tp):
    tensors, config = decoder(vocab=vocab, heads=64, kv=64, dim=1, hidden=2, inter=64)
    plan = list(plans(model_of(manifest(tensors, config)), Degrees(tp=tp)))
    padded = -(-vocab // 64) * 64
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        own = [next(p for p in one.parameters if p.name == name) for one in plan]
        assert {one.shape for one in own} == {(padded // tp, 2)}
        assert sum(one.padding for one in own) == (padded - vocab) * 2
        ends = pieces_of(plan, name)
        assert ends[0][1] == 0
        assert ends[-1][2] == vocab
        assert all(a[2] == b[1] for a, b in pairwise(ends))
    kept = sum(one.kept_bytes for one in plan)
    assert sum(one.parameter_bytes for one in plan) - kept == (padded - vocab) * 2 * 2 * 2


def test_a_padded_vocabulary_that_ranks_do_not_divide_is_refused():
    tensors, config = decoder(vocab=101, heads=3, kv=3, inter=9)
    with pytest.raises(IndivisibleError, match=r"padded to 128.*tp 3"):
        plan_rank(model_of(manifest(tensors, config)), Degrees(tp=3), 0)
    with pytest.raises(PlanError, match=r"101 rows.*vocab_size is 102"):
        plan_rank(model_of(manifest(tensors, {**config, "vocab_size": 102})), Degrees(), 0)


def test_a_tied_head_is_kept_by_nobody_and_the_last_stage_has_the_embedding_too():
    tensors, config = decoder(layers=4, tied=False, vocab=64)
    model = model_of(manifest(tensors, {**config, "tie_word_embeddings": True}))
    assert "tied" in model.skipped["lm_head.weight"]
    kept = [names(plan) for plan in plans(model, Degrees(pp=3))]
    assert ["model.embed_tokens.weight" in one for one in kept] == [True, False, True]
    assert ["model.norm.weight" in one for one in kept] == [False, False, True]
    untied = [names(plan) for plan in plans(model_of(manifest(tensors, config)), Degrees(pp=3))]
    assert ["model.embed_tokens.weight" in one for one in untied] == [True, False, False]
    assert ["lm_head.weight" in one for one in untied] == [False, False, True]


@pytest.mark.parametrize(
    ("layers", "pp", "sizes"),
    [(61, 4, [15, 15, 16, 15]), (64, 3, [21, 22, 21]), (5, 4, [1, 1, 2, 1]), (7, 4, [2, 2, 2, 1])],
)
def test_layers_that_are_left_over_go_to_the_last_stages_but_one(layers, pp, sizes):
    bounds = [stage_layers(layers, pp, stage) for stage in range(pp)]
    assert [b - a for a, b in bounds] == sizes
    assert bounds[0][0] == 0
    assert all(a[1] == b[0] for a, b in pairwise(bounds))
    with pytest.raises(PlanError, match=f"{layers} layers.*{layers + 1} stages"):
        stage_layers(layers, layers + 1, 0)


@pytest.mark.parametrize(("experts", "ways"), [(30, 8), (128, 6), (3, 8), (8, 8), (1, 1), (256, 7)])
def test_c46_every_expert_is_somewhere_once_and_ranks_differ_by_one_at_most(experts, ways):
    for placement in ("linear", "round_robin"):
        own = [list(local_experts(experts, ways, r, placement=placement)) for r in range(ways)]
        assert sorted(id for some in own for id in some) == list(range(experts))
        assert max(map(len, own)) - min(map(len, own)) <= 1
    own = [list(local_experts(experts, ways, rank)) for rank in range(ways)]
    assert [len(some) for some in own] == sorted(map(len, own), reverse=True)


def test_c46_older_engines_give_all_that_is_left_over_to_the_last_rank():
    own = [local_experts(30, 8, rank, remainder="last") for rank in range(8)]
    assert [len(some) for some in own] == [3] * 7 + [9]
    assert list(own[7]) == list(range(21, 30))


@pytest.mark.parametrize("degrees", [Degrees(tp=2), Degrees(dp=2), Degrees(tp=2, dp=3)])
def test_experts_without_ep_are_cut_over_tp_times_dp(degrees):
    tensors, config = decoder(experts=3, moe=12)
    for rank in range(degrees.world):
        got, full = filled(tensors, config, degrees, rank)
        w13, w2 = (got[f"{AT}mlp.experts.{name}_weight"] for name in ("w13", "w2"))
        for expert in range(3):
            at = f"{AT}mlp.experts.{expert}."
            halves = (full[f"{at}{part}_proj.weight"] for part in ("gate", "up"))
            want = [np.split(one, degrees.expert_ways)[rank] for one in halves]
            assert (w13[expert] == np.concatenate(want)).all()
            down = np.split(full[f"{at}down_proj.weight"], degrees.expert_ways, axis=1)[rank]
            assert (w2[expert] == down).all()


@pytest.mark.parametrize("placement", ["linear", "round_robin"])
def test_experts_under_ep_are_whole_and_stacked_in_the_order_of_their_ids(placement):
    tensors, config = decoder(experts=7, moe=5)
    degrees = Degrees(tp=2, dp=2, ep=4)
    for rank in range(4):
        got, full = filled(tensors, config, degrees, rank, placement=placement)
        ids = [rank, rank + 4][: 2 if rank < 3 else 1]
        if placement == "linear":
            ids = [[0, 1], [2, 3], [4, 5], [6]][rank]
        for slot, expert in enumerate(ids):
            at = f"{AT}mlp.experts.{expert}."
            want = [full[f"{at}{part}_proj.weight"] for part in ("gate", "up")]
            assert (got[f"{AT}mlp.experts.w13_weight"][slot] == np.concatenate(want)).all()
            assert (got[f"{AT}mlp.experts.w2_weight"][slot] == full[f"{at}down_proj.weight"]).all()
        assert len(got[f"{AT}mlp.experts.w2_weight"]) == len(ids)


@pytest.mark.parametrize("degrees", [Degrees(tp=2), Degrees(tp=2, ep=2), Degrees(dp=3, ep=3)])
@pytest.mark.parametrize("placement", ["linear", "round_robin"])
def test_experts_stored_as_one_tensor_give_what_single_ones_give(degrees, placement):
    tensors, config = decoder(experts=4, moe=6, hidden=10)
    single = {name: shape for name, shape in tensors.items() if ".experts." not in name}
    stacked = {
        **single,
        f"{AT}mlp.experts.gate_up_proj": (4, 12, 10),
        f"{AT}mlp.experts.down_proj": (4, 10, 6),
        f"{AT}mlp.experts.gate_up_proj_scale_inv": (4, 12, 1),
        f"{AT}mlp.experts.down_proj_scale_inv": (4, 10, 1),
    }
    for rank in range(degrees.world):
        got, full = filled(stacked, config, degrees, rank, placement=placement)
        ids = list(local_experts(4, degrees.ep, rank, placement=placement))
        gate, up = np.split(full[f"{AT}mlp.experts.gate_up_proj"], 2, axis=1)
        scale = np.split(full[f"{AT}mlp.experts.gate_up_proj_scale_inv"], 2, axis=1)
        down = full[f"{AT}mlp.experts.down_proj"]
        if degrees.ep == 1:
            ids = list(range(4))
            gate, up, *scale = (np.split(one, 2, axis=1)[rank] for one in (gate, up, *scale))
            down = np.split(down, 2, axis=2)[rank]
        w13 = got[f"{AT}mlp.experts.w13_weight"]
        assert (w13 == np.concatenate([gate[ids], up[ids]], axis=1)).all()
        scales = got[f"{AT}mlp.experts.w13_weight_scale_inv"]
        assert (scales == np.concatenate([one[ids] for one in scale], axis=1)).all()
        assert (got[f"{AT}mlp.experts.w2_weight"] == down[ids]).all()
        whole = full[f"{AT}mlp.experts.down_proj_scale_inv"][ids]
        assert (got[f"{AT}mlp.experts.w2_weight_scale_inv"] == whole).all()


@pytest.mark.parametrize("q_rank", [6, None])
def test_c49_latent_projections_are_whole_and_up_projections_cut(q_rank):
    tensors, config = latent(q_rank=q_rank)
    got, full = filled(tensors, config, Degrees(tp=4), 3)
    attention = f"{AT}self_attn."
    down = full[f"{attention}kv_a_proj_with_mqa.weight"]
    if q_rank:
        both = np.concatenate([full[f"{attention}q_a_proj.weight"], down])
        assert (got[f"{attention}fused_qkv_a_proj.weight"] == both).all()
    else:
        assert (got[f"{attention}kv_a_proj_with_mqa.weight"] == down).all()
    for name in ("q_b_proj" if q_rank else "q_proj", "kv_b_proj"):
        want = np.split(full[f"{attention}{name}.weight"], 4)[3]
        assert (got[f"{attention}{name}.weight"] == want).all()
    o = full[f"{attention}o_proj.weight"]
    assert (got[f"{attention}o_proj.weight"] == np.split(o, 4, axis=1)[3]).all()
    shared = f"{LAST}mlp.shared_experts."
    gate, up = (full[f"{shared}{part}_proj.weight"] for part in ("gate", "up"))
    want = np.concatenate([np.split(one, 4)[3] for one in (gate, up)])
    assert (got[f"{shared}gate_up_proj.weight"] == want).all()
    assert got[f"{LAST}mlp.gate.e_score_correction_bias"].shape == (6,)


LAST = "model.layers.1."


def test_draft_layers_are_left_out_and_told():
    model = model_of(manifest(*latent(layers=2, draft=1)))
    assert model.notes == ()
    skipped = {name for name in model.skipped if name.startswith("model.layers.2.")}
    assert f"{LAST[:-2]}2.eh_proj.weight" in skipped
    assert not any("layers.2." in name for name in names(plan_rank(model, Degrees(), 0)))
    tensors, config = latent(layers=2, draft=1)
    (note,) = model_of(manifest(tensors, {**config, "num_nextn_predict_layers": 0})).notes
    assert "2 layers" in note


def test_mixtral_w1_is_the_gate_w3_up_and_w2_down():
    tensors, config = decoder(experts=2, moe=6, arch="MixtralForCausalLM")
    renamed = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
    moved = {}
    for name, shape in tensors.items():
        for old, new in renamed.items():
            name = name.replace(old, new)
        moved[name.replace("mlp.", "block_sparse_moe.")] = shape
    got, full = filled(moved, config, Degrees(tp=2), 1)
    at = f"{AT}block_sparse_moe.experts."
    want = np.concatenate([np.split(full[f"{at}1.{name}.weight"], 2)[1] for name in ("w1", "w3")])
    assert (got[f"{at}w13_weight"][1] == want).all()
    assert (got[f"{at}w2_weight"][1] == full[f"{at}1.w2.weight"][:, 3:]).all()


@pytest.mark.parametrize(
    ("degrees", "said"),
    [
        (Degrees(tp=2, ep=4), "ep 4 isn't tp 2 x dp 1 = 2"),
        (Degrees(tp=0), "tp: expected 1"),
        (Degrees(pp=2), "1 layers.*2 stages"),
        (Degrees(tp=4), "tp 4 is greater than the number of experts, 3"),
        (Degrees(tp=2, dp=2), r"6 rows can't be divided by tp 2 x dp 2 = 4"),
    ],
)
def test_degrees_that_an_engine_refuses(degrees, said):
    with pytest.raises(PlanError, match=said):
        plan_rank(model_of(manifest(*decoder(experts=3, moe=6))), degrees, 0)


def test_more_ranks_than_anybody_has_are_refused_at_once():
    tensors, config = decoder()
    with pytest.raises(PlanError, match="dp 1000000000 = 2,000,000,000 ranks: expected at most"):
        plan_rank(model_of(manifest(tensors, config)), Degrees(tp=2, dp=10**9), 0)


@pytest.mark.parametrize("degrees", [Degrees(tp=0), Degrees(pp=-1), Degrees(dp=0), Degrees(ep=0)])
def test_no_ranks_are_refused(degrees):
    with pytest.raises(PlanError, match="expected 1 or more"):
        list(plans(model_of(manifest(*decoder())), degrees))


def test_ep_of_a_model_without_experts_is_refused():
    with pytest.raises(PlanError, match="no experts"):
        plan_rank(model_of(manifest(*decoder())), Degrees(tp=2, ep=2), 0)


def test_parts_of_two_dtypes_are_refused_with_their_names():
    """c61, c62: half of a fused layer, or some of the experts, left unquantised."""
    tensors, config = decoder(experts=2, moe=4)
    for name in ("self_attn.q_proj", "mlp.experts.1.up_proj"):
        changed = {**tensors, f"{AT}{name}.weight": ("int8", tensors[f"{AT}{name}.weight"])}
        with pytest.raises(PlanError, match=f"{name}.weight is int8"):
            plan_rank(model_of(manifest(changed, config)), Degrees(), 0)


def test_what_is_stored_twice_is_refused():
    tensors, config = decoder()
    tensors[f"{AT}mlp.gate_up_proj.weight"] = (16, 12)
    with pytest.raises(PlanError, match="twice"):
        plan_rank(model_of(manifest(tensors, config)), Degrees(), 0)


def test_mlp_widths_that_ranks_do_not_divide_are_refused_with_both_numbers():
    with pytest.raises(IndivisibleError, match=r"gate_proj.weight: 10 rows.*tp 4"):
        plan_rank(model_of(manifest(*decoder(inter=10))), Degrees(tp=4), 0)
    assert mlp("", 1, 2)["down_proj.weight"] == (1, 2)
