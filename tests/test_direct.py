"""The loader `direct`: a bounded ring, borrowed tensors, every way a file system can refuse."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest
from tiny_loaders import (
    Raw,
    Stamps,
    checkpoint_of,
    file_bytes,
    many_shards,
    noise,
    tensor_bytes,
    tricky,
    write_shard,
)
from tiny_ring import MIB, device_bytes, evict, laps

from bench.measuring.child import Stopwatch, load_once
from bench.measuring.verify import faults_of, read_reference
from loaders.adaptive import Adaptive
from loaders.checkpoint.manifest import Checkpoint
from loaders.contract import OptionError
from loaders.direct import Direct
from loaders.io import readers
from loaders.io.errors import LoadError, TruncatedError
from loaders.io.sources import DirectSource

BOTH = [pytest.param(Direct, id="direct"), pytest.param(Adaptive, id="adaptive")]
SMALL = {"ring_mib": 1, "block_mib": 1}


def assert_right(loader: Direct, checkpoint: Checkpoint) -> None:
    names = []
    for spec, (name, tensor) in zip(
        checkpoint.tensors, loader.load(checkpoint, Stamps()), strict=True
    ):
        names.append(name)
        assert name == spec.name
        assert tensor_bytes(tensor) == file_bytes(checkpoint, spec)
    assert names == [spec.name for spec in checkpoint.tensors]


@pytest.mark.parametrize("threads", [1, 3, 8])
@pytest.mark.parametrize("pages", ["huge", "4k"])
@pytest.mark.parametrize("cls", BOTH)
def test_consumed_in_time_every_byte_is_right(
    cls: type[Direct], pages: str, threads: int, tmp_path: Path
) -> None:
    """Many laps of a ring that holds a few tensors, in the order of files and offsets."""
    assert_right(cls(threads, pages=pages, **SMALL), laps(tmp_path))


@pytest.mark.parametrize("cls", BOTH)
def test_a_slow_consumer_finds_its_tensor_untouched(cls: type[Direct], tmp_path: Path) -> None:
    """Readers run ahead, but never into what the consumer still has."""
    checkpoint = laps(tmp_path, shards=2, tensors=6)
    iterator = cls(4, **SMALL).load(checkpoint, Stamps())
    for spec, (_, tensor) in zip(checkpoint.tensors, iterator, strict=True):
        time.sleep(0.005)
        assert tensor_bytes(tensor) == file_bytes(checkpoint, spec)


@pytest.mark.parametrize("cls", BOTH)
def test_a_tensor_held_too_long_shows_other_bytes(cls: type[Direct], tmp_path: Path) -> None:
    """What `borrowed` means: touching it stays safe, but its memory is used again."""
    checkpoint = laps(tmp_path)
    held = [tensor for _, tensor in cls(2, **SMALL).load(checkpoint, Stamps())]
    changed = [
        tensor_bytes(tensor) != file_bytes(checkpoint, spec)
        for tensor, spec in zip(held, checkpoint.tensors, strict=True)
    ]
    assert changed[0]
    assert sum(changed) > len(changed) // 2
    assert not changed[-1]  # nothing came after it
    span = max(tensor.data_ptr() + tensor.nbytes for tensor in held)
    assert span - min(tensor.data_ptr() for tensor in held) <= 4 * MIB


def test_a_loader_that_calls_its_ring_owned_is_caught(tmp_path: Path) -> None:
    class Liar(Direct):
        ownership = "owned"

    checkpoint = laps(tmp_path)
    reference = read_reference(checkpoint)
    for cls, expected in ((Liar, True), (Direct, False)):
        load = load_once(cls(2, **SMALL), checkpoint, Stopwatch())
        faults = faults_of(load.seen, load.kept, checkpoint, reference, made_up=False)
        assert any("changed after it was handed out" in fault for fault in faults) is expected
        assert bool(faults) is expected


@pytest.mark.parametrize("cls", BOTH)
def test_c16_c79_tricky_tensors_in_a_tiny_ring(cls: type[Direct], tmp_path: Path) -> None:
    """C16, C79: scalars, empties, odd offsets; a tensor that is larger than the ring asked for."""
    checkpoint = tricky(tmp_path)
    loader = cls(2, **SMALL)
    assert_right(loader, checkpoint)
    assert [
        note for note in loader.notes if "instead of 1 for a-2.safetensors: tensor 'y.big'" in note
    ]
    assert [note for note in loader.notes if "copied" in note]
    assert loader.memory_bytes(checkpoint) < 6 * MIB


def test_a_tensor_far_larger_than_the_ring(tmp_path: Path) -> None:
    raws = {"small": Raw("U8", [3], b"abc"), "giant": Raw("U8", [9 * MIB + 5], noise(9437189, 1))}
    raws |= {f"after.{n}": Raw("U8", [MIB], noise(MIB, n)) for n in range(4)}
    specs = write_shard(tmp_path / "x.safetensors", raws)
    assert_right(Direct(3, **SMALL), checkpoint_of(tmp_path, {"x.safetensors": specs}))


@pytest.mark.parametrize("cls", BOTH)
def test_gaps_between_tensors_arent_read(cls: type[Direct], tmp_path: Path) -> None:
    """A selection of tensors: of 26 MB only what is asked for leaves the storage."""
    whole = laps(tmp_path, shards=1, tensors=26, nbytes=MIB)
    chosen = whole.tensors[3::8]
    checkpoint = Checkpoint(
        root=whole.root,
        origin=whole.origin,
        format="safetensors",
        files=whole.files,
        tensors=chosen,
    )
    evict(whole.files[0].path)
    before = device_bytes()
    assert len(list(cls(2, **SMALL).load(checkpoint, Stamps()))) == len(chosen)
    assert device_bytes() - before <= checkpoint.tensor_bytes * 1.02 + 65536


def test_c77_refused_at_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C77: the bytes come through the page cache instead, and the record says so."""
    checkpoint = laps(tmp_path)
    real = os.open

    def fake(path: str, flags: int, *rest: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument", path)
        return real(path, flags, *rest)

    monkeypatch.setattr(readers.os, "open", fake)
    for cls in (Direct, Adaptive):
        loader = cls(2, **SMALL)
        assert_right(loader, checkpoint)
        assert [note for note in loader.notes if "not read directly: open with O_DIRECT" in note]


@pytest.mark.parametrize("answer", [errno.EINVAL, errno.EOPNOTSUPP, 0, 100])
def test_c77_refused_at_read(answer: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C77: open takes O_DIRECT; the read fails, brings nothing, or ends inside a block."""
    checkpoint = laps(tmp_path, shards=2)
    for file in checkpoint.files:
        evict(file.path)
    real = os.preadv

    def fake(fd: int, views: list[memoryview], offset: int, *rest: int) -> int:
        flags = int(Path(f"/proc/self/fdinfo/{fd}").read_text().split("flags:")[1].split()[0], 8)
        if not flags & os.O_DIRECT:
            return real(fd, views, offset, *rest)
        if answer in (errno.EINVAL, errno.EOPNOTSUPP):
            raise OSError(answer, os.strerror(answer))
        with Path(f"/proc/self/fd/{fd}").open("rb") as plain:
            plain.seek(offset)
            return plain.readinto(views[0][:answer])

    monkeypatch.setattr(readers.os, "preadv", fake)
    loader = Direct(3, **SMALL)
    assert_right(loader, checkpoint)
    assert [note for note in loader.notes if "not read directly: read with O_DIRECT" in note]


def test_a_device_with_blocks_larger_than_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its alignment isn't the plan's: the ends go through a block of their own."""
    checkpoint = laps(tmp_path, shards=1)
    monkeypatch.setattr(readers, "_direct_alignment", lambda fd: (512, 65536))
    loader = Direct(2, **SMALL)
    assert_right(loader, checkpoint)


def test_c39_a_file_that_shrank_names_itself(tmp_path: Path) -> None:
    """C39: cut off in the middle, at a page, and to nothing, between examination and load."""
    for cut in (0, 4096, 3 * MIB, 3 * MIB + 7):
        checkpoint = laps(tmp_path, shards=2)
        os.truncate(checkpoint.files[1].path, cut)
        for cls in (Direct, Adaptive):
            with pytest.raises(TruncatedError, match=r"r-1\.safetensors") as caught:
                list(cls(2, **SMALL).load(checkpoint, Stamps()))
            assert caught.value.found == cut
            assert caught.value.expected > cut


@pytest.mark.parametrize("cls", BOTH)
def test_an_error_in_a_reader_ends_the_load_and_every_thread(
    cls: type[Direct], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = laps(tmp_path)
    real = os.preadv

    def failing(fd: int, views: list[memoryview], offset: int, *rest: int) -> int:
        if offset > 2 * MIB:
            raise OSError(errno.EIO, "Input/output error")
        return real(fd, views, offset, *rest)

    alive = threading.active_count()
    monkeypatch.setattr(readers.os, "preadv", failing)
    with pytest.raises(OSError, match=r"r-0\.safetensors") as caught:
        list(cls(4, **SMALL).load(checkpoint, Stamps()))
    assert caught.value.errno == errno.EIO
    assert threading.active_count() == alive


def test_the_next_files_are_open_before_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slow opens (network file systems) don't hold the reads up: files are opened ahead, a few."""
    checkpoint = many_shards(tmp_path, count=8, nbytes=2 * MIB)
    opened: list[str] = []

    class Slow(DirectSource):
        def __init__(self, path: str) -> None:
            opened.append(path)
            super().__init__(path)

    monkeypatch.setattr(Direct, "open_source", lambda self: Slow)
    iterator = Direct(1, **SMALL).load(checkpoint, Stamps())
    next(iterator)
    deadline = time.monotonic() + 60
    while len(opened) < 3 and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.05)
    assert 3 <= len(opened) <= 6
    list(iterator)
    assert opened == [file.path for file in checkpoint.files]


def test_the_whole_load_needs_the_ring_and_no_more(tmp_path: Path) -> None:
    checkpoint = laps(tmp_path, shards=4, tensors=16, nbytes=MIB)
    loader = Direct(2, **SMALL)

    def resident() -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    before = resident()
    most = max(resident() - before for _ in loader.load(checkpoint, Stamps()))
    assert most < loader.memory_bytes(checkpoint) + 4 * MIB
    assert loader.memory_bytes(checkpoint) <= 5 * MIB


def test_no_memory_for_the_ring_names_the_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(nbytes: int, *, huge: bool) -> None:
        raise MemoryError("can't map")

    monkeypatch.setattr("loaders.io.borrowed.allocate", none)
    with pytest.raises(LoadError, match=r"r-0\.safetensors: tensor '0\.8' of 500777 bytes"):
        list(Direct(1, **SMALL).load(laps(tmp_path, shards=1), Stamps()))


def test_what_the_host_refuses_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loaders.io.buffers._advise", lambda *_: "MADV_HUGEPAGE: Invalid argument")
    loader = Direct(1, **SMALL)
    list(loader.load(laps(tmp_path, shards=1), Stamps()))
    assert [note for note in loader.notes if "MADV_HUGEPAGE: Invalid argument" in note]


@pytest.mark.parametrize("cls", BOTH)
def test_options_are_strict(cls: type[Direct]) -> None:
    with pytest.raises(OptionError, match="pages must be huge or 4k, got '2m'"):
        cls(2, pages="2m")
    with pytest.raises(OptionError, match="readers must be at least 0"):
        cls(2, readers=-1)
    with pytest.raises(OptionError, match="ring_mib must be at least 0, got -1"):
        cls(2, ring_mib=-1)
    with pytest.raises(OptionError, match="rows must be bool, got int"):
        cls(2, rows=1)
    with pytest.raises(OptionError, match="block_mib must be int, got str"):
        cls(2, block_mib="4")


@pytest.mark.parametrize("cls", BOTH)
def test_readers_override_threads(cls: type[Direct], tmp_path: Path) -> None:
    checkpoint = laps(tmp_path)

    def at_work(loader: Direct) -> int:
        iterator = loader.load(checkpoint, Stamps())
        next(iterator)
        names = [thread.name for thread in threading.enumerate()]
        iterator.close()  # type: ignore[attr-defined]
        return sum(name.startswith("refill-") for name in names)

    assert at_work(cls(2, **SMALL)) == 2
    assert at_work(cls(2, readers=5, **SMALL)) == 5
    assert cls.tunable <= set(cls.options)
    assert cls.tunable_with({}) == cls.tunable - {"readers"}
    assert cls.tunable_with({"rows": True}) == cls.tunable
