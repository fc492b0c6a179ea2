"""Disk -> ring -> device on the cpu, and the arithmetic of it. What holds for devices that work on
their own is in tests/simulated/check_pipeline.py."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_loaders import Raw, checkpoint_of, many_shards, noise, tricky, write_shard
from tiny_pipeline import wrong
from tiny_ring import laps

from loaders.checkpoint.manifest import Checkpoint, TensorSpec, WeightFile
from loaders.device.cpu import HostDevice
from loaders.io.chunks import plan_chunks
from loaders.io.errors import LoadError, TruncatedError
from loaders.io.sources import Residents
from loaders.pipeline.overlap import IN_FLIGHT, PipelineOptions, run_pipeline
from loaders.pipeline.plan import parts_of, plan_shards
from loaders.pipeline.stages import hidden, over_bound, sequential, slowest

PAGE = 4096
SMALL = PipelineOptions(readers=3, block_bytes=PAGE, slots=5)


def options(**given: object) -> PipelineOptions:
    return dataclasses.replace(SMALL, **given)


@pytest.mark.parametrize("block", [PAGE, 16 * PAGE, 16 << 20])
@pytest.mark.parametrize("readers", [1, 3])
@pytest.mark.parametrize("direct", [False, True])
def test_every_tensor_arrives_whole(tmp_path: Path, block: int, readers: int, direct: bool) -> None:
    checkpoint = tricky(tmp_path)
    given = PipelineOptions(readers=readers, block_bytes=block, direct=direct)
    done = run_pipeline(checkpoint, HostDevice(), given)
    assert wrong(done, checkpoint) == []
    assert done.nbytes == checkpoint.tensor_bytes
    assert (done.device, done.copies_are, done.pinned) == ("cpu", "memory copy", False)


@pytest.mark.parametrize("slots", [1, 2, 7])
def test_a_ring_of_any_size_goes_round(tmp_path: Path, slots: int) -> None:
    checkpoint = laps(tmp_path, shards=2, tensors=4, nbytes=60_001)
    done = run_pipeline(checkpoint, HostDevice(), options(slots=slots))
    assert wrong(done, checkpoint) == []
    assert done.ring_bytes == slots * PAGE


def test_the_ring_does_not_grow_with_the_checkpoint_and_is_no_larger_than_it(
    tmp_path: Path,
) -> None:
    checkpoint = many_shards(tmp_path, count=3, nbytes=100)
    done = run_pipeline(checkpoint, HostDevice(), PipelineOptions(block_bytes=PAGE))
    assert done.ring_bytes == 3 * PAGE
    assert PipelineOptions(readers=2).ring_slots == 2 + IN_FLIGHT


def test_blocks_of_the_page_cache_and_around_it(tmp_path: Path) -> None:
    checkpoint = tricky(tmp_path)
    done = run_pipeline(checkpoint, HostDevice(), options(open_source=Residents().open))
    assert wrong(done, checkpoint) == []


def test_the_stages_alone_move_the_same_blocks(tmp_path: Path) -> None:
    checkpoint = tricky(tmp_path)
    both = run_pipeline(checkpoint, HostDevice(), SMALL)
    read = run_pipeline(checkpoint, HostDevice(), SMALL, "read")
    copy = run_pipeline(checkpoint, HostDevice(), SMALL, "copy")
    assert read.tensors == copy.tensors == []
    assert (read.copies, copy.copies) == (0, both.copies)
    assert read.device_seconds is None
    assert copy.device_seconds is not None
    assert {read.ring_bytes, copy.ring_bytes} == {both.ring_bytes}


@pytest.mark.parametrize("stage", ["both", "read", "copy"])
def test_a_checkpoint_without_a_byte(tmp_path: Path, stage: str) -> None:
    specs = write_shard(tmp_path / "e.safetensors", {"e": Raw("BF16", [0, 4], b"")})
    for checkpoint in (
        checkpoint_of(tmp_path, {"e.safetensors": specs}),
        checkpoint_of(tmp_path, {}),
    ):
        done = run_pipeline(checkpoint, HostDevice(), SMALL, stage)
        assert (done.copies, done.nbytes) == (0, 0)
        if stage == "both":
            assert wrong(done, checkpoint) == []


# --- what fails ---


def no_feed_is_left() -> bool:
    return not [each for each in threading.enumerate() if each.name.startswith("feed-")]


def test_a_file_that_was_cut_off_is_named(tmp_path: Path) -> None:
    checkpoint = tricky(tmp_path)
    path = Path(checkpoint.files[1].path)
    path.write_bytes(path.read_bytes()[:-4097])
    for stage in ("both", "read"):
        with pytest.raises(TruncatedError, match=r"a-2\.safetensors: expected at least"):
            run_pipeline(checkpoint, HostDevice(), SMALL, stage)
        assert no_feed_is_left()


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    checkpoint = many_shards(tmp_path, count=5)
    Path(checkpoint.files[3].path).unlink()
    with pytest.raises(FileNotFoundError, match=r"s-003\.safetensors"):
        run_pipeline(checkpoint, HostDevice(), SMALL)
    assert no_feed_is_left()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"offset": None}, r"tensor 'w' isn't contiguous"),
        ({"dtype": "float3_x"}, r"tensor 'w'"),
        ({"shape": (9,)}, r"tensor 'w' is float32 \[9\], expected 36 bytes, found 32"),
    ],
)
def test_a_tensor_that_cannot_be_loaded_is_named(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    (spec,) = write_shard(tmp_path / "x.safetensors", {"w": Raw("F32", [8], noise(32, 1))})
    checkpoint = checkpoint_of(tmp_path, {"x.safetensors": [dataclasses.replace(spec, **change)]})
    with pytest.raises(LoadError, match=said):
        run_pipeline(checkpoint, HostDevice(), SMALL)


@pytest.mark.parametrize("given", [{"readers": 0}, {"slots": -1}, {"block_bytes": 100}])
def test_options_that_cannot_work_are_refused(given: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        PipelineOptions(**given)


# --- arithmetic ---


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 5000)), max_size=30),
    st.integers(0, 9000),
    st.sampled_from([PAGE, 3 * PAGE]),
    st.booleans(),
)
def test_blocks_hold_every_byte_of_every_tensor_once(
    pieces: list[tuple[int, int]], start: int, block: int, tied: bool
) -> None:
    specs, offset = [], start
    for number, (gap, nbytes) in enumerate(pieces):
        offset += gap
        specs.append(spec_at(f"t{number}", offset, nbytes))
        offset += nbytes
    if tied and specs:  # one that lies over all others, as in a file of views
        specs.append(spec_at("tied", start, max(offset - start, 1)))
    checkpoint = Checkpoint(
        root="r",
        origin="r",
        format="safetensors",
        files=(WeightFile(name="f", path="f", size=offset + 1),),
        tensors=tuple(specs),
    )
    shards = plan_shards(checkpoint, PAGE)
    at = [0] * len(specs)
    for chunk in plan_chunks([shard.span for shard in shards], block):
        for part in parts_of(chunk, shards[chunk.span]):
            assert part.start == at[part.tensor]
            assert 0 <= part.position <= part.position + part.nbytes <= chunk.length
            spec = specs[part.tensor]
            assert spec.offset is not None
            assert chunk.offset + part.position == spec.offset + part.start
            at[part.tensor] += part.nbytes
    assert at == [spec.nbytes for spec in specs]
    assert all(shard.span.offset % PAGE == 0 for shard in shards)


def spec_at(name: str, offset: int, nbytes: int) -> TensorSpec:
    return TensorSpec(
        name=name, dtype="uint8", shape=(nbytes,), file="f", offset=offset, nbytes=nbytes
    )


@given(st.dictionaries(st.text(min_size=1), st.floats(0, 1e6), min_size=1))
def test_no_pipeline_is_faster_than_its_slowest_stage(stages: dict[str, float]) -> None:
    name, bound = slowest(stages)
    assert stages[name] == bound == max(stages.values())
    assert bound <= sequential(stages) or sequential(stages) == pytest.approx(bound)
    ratio = over_bound(bound, stages)
    assert ratio is None if bound == 0 else ratio == 1.0


def test_the_arithmetic_of_overlap_by_hand() -> None:
    stages = {"read": 2.0, "copy": 1.0}
    assert (sequential(stages), slowest(stages)) == (3.0, ("read", 2.0))
    assert over_bound(2.2, stages) == pytest.approx(1.1)
    assert hidden(2.0, stages) == 1.0
    assert hidden(3.0, stages) == 0.0
    assert hidden(3.5, stages) == -0.5
    assert hidden(2.0, {"read": 2.0}) is None
    assert over_bound(1.0, {"read": 0.0}) is None
    with pytest.raises(ValueError, match="no stage"):
        slowest({})
