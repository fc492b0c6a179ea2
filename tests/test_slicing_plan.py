"""Plans of all ranks together: nothing lost, nothing doubled, every byte accounted for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from loaders.checkpoint.manifest import Checkpoint
from loaders.slicing.build import plan_rank, plans
from loaders.slicing.errors import PlanError
from loaders.slicing.model import model_of
from loaders.slicing.plan import Degrees, byte_run, place_of
from loaders.slicing.sizes import all_ranks, count
from tests.tiny_plans import carried_out, decoder, latent, manifest, numbered

# Two in three of the random degrees are such that an engine refuses them.
FILTERED = [HealthCheck.filter_too_much]


@st.composite
def models(draw: st.DrawFn) -> Checkpoint:
    if draw(st.booleans()):
        made = latent(
            layers=draw(st.integers(1, 5)),
            heads=draw(st.sampled_from([2, 4, 6])),
            q_rank=draw(st.sampled_from([None, 6])),
            experts=draw(st.integers(2, 9)),
            draft=draw(st.integers(0, 1)),
        )
    else:
        kv = draw(st.sampled_from([1, 2, 3, 4]))
        made = decoder(
            layers=draw(st.integers(1, 5)),
            heads=kv * draw(st.sampled_from([1, 2, 4])),
            kv=kv,
            dim=draw(st.sampled_from([2, 3])),
            inter=draw(st.sampled_from([8, 12])),
            vocab=draw(st.sampled_from([5, 64, 101, 192])),
            bias=draw(st.booleans()),
            tied=draw(st.booleans()),
            experts=draw(st.sampled_from([0, 3, 8])),
            moe=draw(st.sampled_from([4, 12])),
            shared=draw(st.booleans()),
        )
        if made[1].get("num_experts") is None:
            made = ({k: v for k, v in made[0].items() if "shared_expert" not in k}, made[1])
    return manifest(*made)


@st.composite
def ways(draw: st.DrawFn) -> Degrees:
    tp, dp = draw(st.sampled_from([1, 2, 3, 4, 6, 8])), draw(st.sampled_from([1, 2, 3]))
    ep = draw(st.sampled_from([1, tp * dp]))
    return Degrees(tp=tp, dp=dp, ep=ep, pp=draw(st.integers(1, 3)))


@given(
    models(),
    ways(),
    st.sampled_from(["linear", "round_robin"]),
    st.sampled_from(["spread", "last"]),
)
@settings(max_examples=60, deadline=None, suppress_health_check=FILTERED)
def test_shards_of_all_ranks_cover_everything_and_add_up(checkpoint, degrees, placement, remainder):
    model = model_of(checkpoint)
    how = {"placement": placement, "remainder": remainder}
    try:
        every = list(plans(model, degrees, **how))
    except PlanError:
        assume(False)
    sources = numbered(checkpoint)
    seen = np.zeros(sum(len(one.ravel()) for one in sources.values()), dtype=int)
    claimed = np.zeros_like(seen)
    for plan in every:
        filled = carried_out(plan, sources)  # asserts ranges inside and no overlap
        for name, values in filled.items():
            np.add.at(seen, values[values >= 0], 1)
            pieces = [p for q in plan.parameters if q.name == name for p in q.pieces]
            for piece in pieces:
                source = sources[piece.tensor]
                block = source if not source.ndim else source.take(
                    range(piece.start, piece.stop), axis=piece.dim
                )  # fmt: skip
                assert ((claimed[block] == 0) | (claimed[block] == piece.replicas)).all()
                claimed[block] = piece.replicas
    assert (seen == claimed).all(), "replicas are as many as there are"
    for name, values in sources.items():
        assert (seen[values] == 0).all() if name in model.skipped else (seen[values] > 0).all(), (
            name
        )
    # The counted sums are those of the pieces.
    for plan, sizes in zip(every, all_ranks(count(model, checkpoint), degrees, **how), strict=True):
        assert sizes.place == plan.place
        assert sizes.layers == plan.layers
        assert sizes.kept == plan.kept_bytes
        assert sizes.kept + sizes.padding == plan.parameter_bytes
        kinds: dict[str, int] = {}
        for parameter in plan.parameters:
            kinds[parameter.kind] = kinds.get(parameter.kind, 0) + parameter.kept_bytes
        assert {k: v for k, v in sizes.by_kind.items() if v} == {
            k: v for k, v in kinds.items() if v
        }
        assert sizes.kept <= sizes.touched <= sizes.read_all + 4096 * 1000
        assert sizes.read_filtered <= sizes.read_all
    assert sum(plan.kept_bytes for plan in every) == 2 * seen.sum()


@given(models(), ways())
@settings(max_examples=30, deadline=None, suppress_health_check=FILTERED)
def test_byte_runs_are_the_elements_of_the_pieces(checkpoint, degrees):
    model = model_of(checkpoint)
    specs = {spec.name: spec for spec in checkpoint.tensors}
    sources = numbered(checkpoint)
    try:
        plan = plan_rank(model, degrees, degrees.world - 1)
    except PlanError:
        assume(False)
    for parameter in plan.parameters:
        for piece in parameter.pieces:
            spec, source = specs[piece.tensor], sources[piece.tensor]
            run = byte_run(spec, piece)
            assert spec.offset <= run.offset
            assert run.offset + run.span <= spec.offset + spec.nbytes
            assert run.nbytes == 2 * piece.elements
            flat = source.ravel()
            got = []
            for number in range(run.count):
                start = (run.offset - spec.offset + number * run.stride) // 2
                got.append(flat[start : start + run.length // 2])
            want = source.take(range(piece.start, piece.stop), axis=piece.dim)
            assert (np.concatenate(got) == want.ravel()).all()
            if piece.dim == 0:
                assert run.count == 1, "a cut of dim 0 is one range"


def test_ranks_count_tp_fastest_then_pp_then_dp():
    degrees = Degrees(tp=2, pp=3, dp=2, ep=4)
    places = [place_of(rank, degrees) for rank in range(12)]
    assert [(one.dp, one.pp, one.tp) for one in places[:7]] == [
        (0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (0, 2, 0), (0, 2, 1), (1, 0, 0)
    ]  # fmt: skip
    assert [one.ep for one in places if one.pp == 1] == [0, 1, 2, 3]
    for rank in (-1, 12):
        with pytest.raises(ValueError, match="0 to 11"):
            place_of(rank, degrees)


def test_c44_every_rank_has_its_own_slice():
    """A rank that falls back to 0 would give shapes that are right and values that aren't."""
    checkpoint = manifest(*decoder())
    sources = numbered(checkpoint)
    both = [carried_out(plan, sources) for plan in plans(model_of(checkpoint), Degrees(tp=2))]
    name = "model.layers.0.mlp.down_proj.weight"
    assert not (both[0][name] == both[1][name]).any()
    assert (np.concatenate([one[name] for one in both], axis=1) == sources[name]).all()


def test_byte_run_refuses_what_is_not_the_tensors():
    checkpoint = manifest(*decoder())
    plan = plan_rank(model_of(checkpoint), Degrees(tp=2), 0)
    piece = plan.parameters[0].pieces[0]
    with pytest.raises(ValueError, match="not of"):
        byte_run(checkpoint.tensors[3], piece)
