"""Every registered loader yields what the manifest says, byte for byte, and cleans up."""

from __future__ import annotations

import ast
import json
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tiny_loaders import (
    LACKING,
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

from bench.convert import convert_to_tensorizer
from loaders.checkpoint.dtypes import BY_CODE
from loaders.checkpoint.manifest import Checkpoint
from loaders.checkpoint.npcache_write import write_npcache
from loaders.checkpoint.read import open_checkpoint
from loaders.contract import Loader, OptionError
from loaders.dummy import Dummy
from loaders.example import Example
from loaders.io.errors import LoadError, TruncatedError
from loaders.parallel import Parallel
from loaders.registry import entries, unavailable
from loaders.safetensors_eager import SafetensorsEager
from loaders.safetensors_mmap import SafetensorsMmap
from loaders.safetensors_prefetch import SafetensorsPrefetch
from loaders.safetensors_threads import SafetensorsThreads
from loaders.system import memory

ROOT = Path(__file__).parent.parent
READY = {name: entry.cls for name, entry in entries().items() if unavailable(entry) is None}
# Formats that more than one loader reads are compared here; the others have files of their own.
READERS = [cls for cls in READY.values() if cls is not None and "safetensors" in cls.formats]
REALLY_READ = [cls for cls in READERS if cls.ownership != "mapped"]
VARIANTS = [
    pytest.param(cls, threads, dict(options), id=f"{cls.name}-{threads}-{dict(options)}")
    for cls in READERS
    for threads in ([1, 2, 8] if cls.threaded else [1])
    for options in [*cls.variants, *([{"block_mib": 1}] if "block_mib" in cls.options else [])]
]


def names(classes: list[type[Loader]]) -> list[object]:
    return [pytest.param(cls, id=cls.name) for cls in classes]


def open_files() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


@pytest.fixture
def leaves_nothing() -> Iterator[None]:
    """No thread and no open file may outlive the load."""
    before = open_files()
    alive = threading.active_count()
    yield
    assert threading.active_count() == alive
    assert open_files() == before


def test_all_of_ours_can_run_here() -> None:
    assert set(READY) >= {
        "dummy",
        "example",
        "parallel",
        "safetensors-eager",
        "safetensors-mmap",
        "safetensors-prefetch",
        "safetensors-threads",
    }


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize(("cls", "threads", "options"), VARIANTS)
def test_yields_the_manifest_and_the_files_bytes(
    cls: type[Loader], threads: int, options: dict[str, bool | int | str], tmp_path: Path
) -> None:
    """C15 (zero-size tensors), C16 (scalars), C18 (unsigned and other dtypes), C79 (digests equal
    at unaligned headers and tensors): the same for every loader."""
    checkpoint = tricky(tmp_path, LACKING.get(cls.name, ()))
    specs = {spec.name: spec for spec in checkpoint.tensors}
    seen = set()
    for name, tensor in cls(threads, **options).load(checkpoint, Stamps()):
        assert name not in seen
        seen.add(name)
        assert str(tensor.dtype) == f"torch.{specs[name].dtype}"
        assert tuple(tensor.shape) == specs[name].shape
        assert tensor.is_contiguous()
        assert tensor.device.type == "cpu"
        assert tensor_bytes(tensor) == file_bytes(checkpoint, specs[name])
        del tensor
    assert seen == set(specs)


def rewritten(checkpoint: Checkpoint, format: str, folder: Path) -> Checkpoint:
    """The same tensors in another format, examined as a user's would be."""
    tensors = dict(Parallel(2).load(checkpoint, Stamps()))
    if format == "pt":
        half = len(tensors) // 2
        for number, names_in in enumerate([list(tensors)[:half], list(tensors)[half:]]):
            path = folder / f"pytorch_model-{number + 1:05}-of-00002.bin"
            torch.save({name: tensors[name] for name in names_in}, path)
    elif format == "npcache":
        write_npcache(iter(tensors.items()), str(folder))
    elif format == "tensorizer":
        convert_to_tensorizer(checkpoint, folder / "converted")
        folder /= "converted"
    return open_checkpoint(folder)


@pytest.mark.parametrize(
    ("cls", "format"),
    [
        pytest.param(cls, format, id=f"{cls.name}-{format}")
        for cls in READY.values()
        if cls is not None
        for format in sorted(cls.formats)
    ],
)
def test_all_formats_give_the_same_tensors(cls: type[Loader], format: str, tmp_path: Path) -> None:
    """Every loader in every format that it reads, from manifests that were really read."""
    before = set(threading.enumerate())
    original = tmp_path / "original"
    folder = tmp_path / "rewritten"
    original.mkdir()
    folder.mkdir()
    made = tricky(original, LACKING.get(cls.name, ()))
    checkpoint = made if format == "safetensors" else rewritten(made, format, folder)
    if format == "safetensors":
        checkpoint = open_checkpoint(original)
        assert {spec.name: spec for spec in checkpoint.tensors} == {
            spec.name: spec for spec in made.tensors
        }
    assert checkpoint.format == format
    # Borrowed ones are gone with the next.
    found = {name: tensor.clone() for name, tensor in cls(2).load(checkpoint, Stamps())}
    assert set(found) == {spec.name for spec in made.tensors}
    for spec in made.tensors:
        assert str(found[spec.name].dtype) == f"torch.{spec.dtype}"
        assert tuple(found[spec.name].shape) == spec.shape
        assert tensor_bytes(found[spec.name]) == file_bytes(made, spec)
    for thread in set(threading.enumerate()) - before:
        thread.join(60)  # torch.load can't be interrupted: its pool may end a little later
        assert not thread.is_alive()


@pytest.mark.parametrize("cls", names([cls for cls in READERS if cls.ownership == "owned"]))
def test_owned_tensors_stay_when_the_iterator_is_gone(cls: type[Loader], tmp_path: Path) -> None:
    checkpoint = tricky(tmp_path, LACKING.get(cls.name, ()))
    tensors = dict(cls(2).load(checkpoint, Stamps()))
    for file in checkpoint.files:
        Path(file.path).write_bytes(b"\xff" * file.size)
    original = tmp_path / "again"
    original.mkdir()
    again = tricky(original, LACKING.get(cls.name, ()))
    for spec in again.tensors:
        assert tensor_bytes(tensors[spec.name]) == file_bytes(again, spec)


@pytest.mark.parametrize("cls", names(READERS))
def test_a_loader_can_load_twice(cls: type[Loader], tmp_path: Path) -> None:
    """A measurement loads a second time, untimed, with the same object."""
    checkpoint = tricky(tmp_path, LACKING.get(cls.name, ()))
    loader = cls(2)
    first = {name: tensor_bytes(tensor) for name, tensor in loader.load(checkpoint, Stamps())}
    assert first == {
        name: tensor_bytes(tensor) for name, tensor in loader.load(checkpoint, Stamps())
    }


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize("cls", names(READERS))
@pytest.mark.parametrize("taken", [0, 1, 20])
def test_closed_half_way_leaves_no_threads_and_no_files(
    cls: type[Loader], taken: int, tmp_path: Path
) -> None:
    iterator = cls(4).load(many_shards(tmp_path), Stamps())
    for _ in range(taken):
        next(iterator)
    iterator.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("cls", names([*READERS, Dummy]))
def test_nothing_is_opened_before_it_is_iterated(cls: type[Loader], tmp_path: Path) -> None:
    checkpoint = many_shards(tmp_path, count=2)
    for file in checkpoint.files:
        Path(file.path).unlink()
    iterator = cls(2).load(checkpoint, Stamps())
    if cls.formats:
        with pytest.raises((LoadError, OSError), match=r"s-00\d\.safetensors"):
            list(iterator)
    else:
        assert len(list(iterator)) == 2


def test_c82_more_shards_than_open_files(tmp_path: Path) -> None:
    """C82: 64 shards under a limit of 40 open files; each loader closes a file after use."""
    script = f"""
import resource, sys
sys.path[:0] = {[str(ROOT), str(ROOT / "tests")]!r}
from pathlib import Path
from tiny_loaders import Stamps, file_bytes, many_shards, tensor_bytes
from loaders.registry import entries, unavailable
checkpoint = many_shards(Path({str(tmp_path)!r}))
specs = {{spec.name: spec for spec in checkpoint.tensors}}
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
for entry in entries().values():
    if unavailable(entry) is None and "safetensors" in entry.cls.formats:
        tensors = entry.cls(8).load(checkpoint, Stamps())
        kept = {{name: tensor.clone() for name, tensor in tensors}}
        assert set(kept) == set(specs), entry.name
        for name, tensor in kept.items():
            assert tensor_bytes(tensor) == file_bytes(checkpoint, specs[name]), entry.name
        print(entry.name)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {cls.name for cls in READERS}


def _one_big_tensor(folder: Path) -> Checkpoint:
    tensor = {"w": Raw("U8", [1 << 20], noise(1 << 20, 1))}
    return checkpoint_of(
        folder, {"big.safetensors": write_shard(folder / "big.safetensors", tensor)}
    )


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize("cls", names(REALLY_READ))
def test_c39_a_file_cut_off_since_it_was_examined(cls: type[Loader], tmp_path: Path) -> None:
    """C39: those that read say so, with the file, what was expected and what was found."""
    checkpoint = _one_big_tensor(tmp_path)
    size = checkpoint.files[0].size
    os.truncate(checkpoint.files[0].path, size - 4097)
    with pytest.raises(TruncatedError, match=r"big\.safetensors") as caught:
        list(cls(2).load(checkpoint, Stamps()))
    assert (caught.value.expected, caught.value.found) == (size, size - 4097)
    assert str(size) in str(caught.value)
    assert str(size - 4097) in str(caught.value)


@pytest.mark.parametrize("cls", names([cls for cls in READERS if cls.ownership == "mapped"]))
def test_c39_a_mapped_file_cut_off_ends_by_signal(cls: type[Loader], tmp_path: Path) -> None:
    """C39: a mapping can't report it. The process dies by SIGBUS, which is why each measurement
    has a process of its own."""
    checkpoint = _one_big_tensor(tmp_path)
    script = f"""
import os, sys
sys.path[:0] = {[str(ROOT), str(ROOT / "tests")]!r}
from pathlib import Path
from test_loaders import _one_big_tensor
from tiny_loaders import Stamps, tensor_bytes
from loaders.registry import get
checkpoint = _one_big_tensor(Path({str(tmp_path)!r}))
[(name, tensor)] = get({cls.name!r})().load(checkpoint, Stamps())
os.truncate(checkpoint.files[0].path, 8192)
tensor_bytes(tensor)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == -7, done.stderr
    assert checkpoint.tensor_bytes == 1 << 20


@pytest.mark.parametrize("cls", names(READERS))
def test_c39_a_broken_file_is_named(cls: type[Loader], tmp_path: Path) -> None:
    """C39: shorter than its header says when it is opened: an error of ours names the file, for
    every loader (the library alone says "incomplete metadata" and not of which file)."""
    checkpoint = _one_big_tensor(tmp_path)
    os.truncate(checkpoint.files[0].path, 5000)
    with pytest.raises(LoadError, match=r"big\.safetensors"):
        list(cls().load(checkpoint, Stamps()))


def test_c39_no_room_for_a_file(tmp_path: Path) -> None:
    """C39: too little address space to map or to read into: an error with the file or the size,
    never a bare MemoryError. (fastsafetensors dies by a signal there: tests/test_peers.py.)"""
    subjects = [cls.name for cls in READERS if cls.name not in {"example", "fastsafetensors"}]
    specs = write_shard(tmp_path / "big.safetensors", {"w": Raw("U8", [1], b"x")})
    checkpoint = checkpoint_of(tmp_path, {"big.safetensors": specs})
    size = 1 << 30
    text = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    path = Path(checkpoint.files[0].path)
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    os.truncate(path, 8 + len(text) + size)  # sparse
    script = f"""
import resource, sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from loaders.checkpoint.read import open_checkpoint
from loaders.registry import get
from contextlib import nullcontext
checkpoint = open_checkpoint({str(tmp_path)!r})
loaders = [get(name)(2) for name in {subjects!r}]
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), used + (256 << 20)))
for loader in loaders:
    try:
        list(loader.load(checkpoint, lambda phase: nullcontext()))
    except Exception as error:
        assert "big.safetensors" in str(error) or "{size}"[:4] in str(error), repr(error)
        print(loader.name)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == set(subjects)


@pytest.mark.parametrize("code", ["F8_E8M0", "F4"])
@pytest.mark.parametrize("cls", names(READERS))
def test_c17_new_eight_and_four_bit_types(cls: type[Loader], code: str, tmp_path: Path) -> None:
    """C17: exactly what the manifest says (F4 is two values a byte), or an error that names tensor
    and dtype; never a bare KeyError."""
    raw = Raw(code, [2, 8], noise(16 if code == "F8_E8M0" else 8, 5))
    specs = write_shard(tmp_path / "x.safetensors", {"fine": Raw("U8", [1], b"a"), "new": raw})
    checkpoint = checkpoint_of(tmp_path, {"x.safetensors": specs})
    if cls is SafetensorsEager or (cls.name, code) == ("safetensors-pread", "F4"):
        with pytest.raises(LoadError, match=rf"x\.safetensors.*'new' is {specs[1].dtype}"):
            list(cls().load(checkpoint, Stamps()))
        return
    found = {name: tensor.clone() for name, tensor in cls().load(checkpoint, Stamps())}
    assert str(found["new"].dtype) == f"torch.{specs[1].dtype}"
    assert tuple(found["new"].shape) == specs[1].shape
    assert tensor_bytes(found["new"]) == raw.data


@pytest.mark.parametrize("code", [code for code in BY_CODE if not code.startswith("F6")])
@pytest.mark.parametrize("cls", names(READERS))
def test_c17_what_it_refuses_beforehand_is_what_it_cannot_load(
    cls: type[Loader], code: str, tmp_path: Path
) -> None:
    """C17: known from the manifest alone, before a clock runs, and the same words as while loading;
    what isn't refused loads."""
    raw = Raw(code, [2, 8], bytes(16 * BY_CODE[code].bits // 8))
    specs = write_shard(tmp_path / "x.safetensors", {"fine": Raw("U8", [1], b"a"), "new": raw})
    checkpoint = checkpoint_of(tmp_path, {"x.safetensors": specs})
    reason = cls().refuses(checkpoint)
    if reason is None:
        assert len(list(cls().load(checkpoint, Stamps()))) == 2
        return
    for part in ("x.safetensors", "'new'", BY_CODE[code].name, "may"):
        assert part in reason
    with pytest.raises(LoadError) as caught:
        list(cls().load(checkpoint, Stamps()))
    assert str(caught.value) == reason


@pytest.mark.parametrize("cls", names([*READERS, Dummy]))
def test_c18_a_dtype_that_this_torch_lacks(
    cls: type[Loader], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C18: unsigned 16-bit before torch 2.3, say: named with its tensor before a file is opened."""
    specs = write_shard(tmp_path / "x.safetensors", {"odd.one": Raw("U16", [2], b"abcd")})
    checkpoint = checkpoint_of(tmp_path, {"x.safetensors": specs})
    monkeypatch.delattr(torch, "uint16")
    with pytest.raises(LoadError, match=r"'odd\.one'.*'uint16'.*torch"):
        list(cls().load(checkpoint, Stamps()))


@pytest.mark.parametrize("cls", names([SafetensorsPrefetch, Parallel]))
def test_options_are_strict(cls: type[Loader]) -> None:
    with pytest.raises(OptionError, match="block_mib must be int, got str"):
        cls(2, block_mib="16")
    with pytest.raises(OptionError, match="block_mib must be int, got bool"):
        cls(2, block_mib=True)
    with pytest.raises(OptionError, match="block_mib must be at least 1, got 0"):
        cls(2, block_mib=0)
    with pytest.raises(OptionError, match="no option 'blok'"):
        cls(2, blok=1)
    with pytest.raises(OptionError, match="threads must be an int from 1 on, got 0"):
        cls(0)


def test_a_string_is_no_bool() -> None:
    """The engines' own wording; there "false" once switched the option on."""
    with pytest.raises(OptionError, match="direct must be bool, got str"):
        Parallel(2, direct="true")


def test_stamps_tell_opening_from_allocating(tmp_path: Path) -> None:
    checkpoint = tricky(tmp_path)
    expected = {
        SafetensorsMmap: {"open"},
        SafetensorsEager: {"open"},
        SafetensorsPrefetch: {"open"},
        SafetensorsThreads: {"open"},
        Parallel: {"allocate"},
        Dummy: {"allocate"},
        Example: {"open", "allocate"},
    }
    for cls, phases in expected.items():
        stamps = Stamps()
        for _ in cls(2).load(checkpoint, stamps):
            assert not stamps.open, f"{cls.name} yields inside a stamp"
        assert set(stamps.entered) == phases, cls.name


def test_lazy_loaders_read_nothing_by_themselves(tmp_path: Path) -> None:
    """What an engine's log calls loading shards is making views: the bytes of a mapped tensor
    change with the file, so they weren't read yet."""
    for number, cls in enumerate([SafetensorsMmap, SafetensorsThreads]):
        folder = tmp_path / str(number)
        folder.mkdir()
        checkpoint = _one_big_tensor(folder)
        spec = checkpoint.tensors[0]
        [(_, tensor)] = cls(2).load(checkpoint, Stamps())
        with Path(checkpoint.files[0].path).open("r+b") as file:
            file.seek((spec.offset or 0) + 500_000)
            file.write(bytes(range(256)))
        assert tensor_bytes(tensor)[500_000:500_256] == bytes(range(256))


def test_parallel_yields_before_later_files_are_read(tmp_path: Path) -> None:
    """The tensors of a good first file arrive although a later one is missing."""
    checkpoint = many_shards(tmp_path, count=3, nbytes=3 << 20)
    gate = threading.Event()
    path = Path(checkpoint.files[2].path)
    path.unlink()
    os.mkfifo(path)  # opening it blocks until somebody writes

    held: list[int] = []

    def release() -> None:
        gate.wait(60)
        held.append(os.open(path, os.O_WRONLY))

    writer = threading.Thread(target=release)
    writer.start()
    iterator = Parallel(2, block_mib=1).load(checkpoint, Stamps())
    assert next(iterator)[0] == "layer.0.w"
    assert next(iterator)[0] == "layer.1.w"
    gate.set()
    with pytest.raises((OSError, LoadError), match=r"s-002\.safetensors"):
        next(iterator)
    writer.join()
    os.close(held[0])


def test_parallel_notes_and_copies_what_would_lie_unaligned(tmp_path: Path) -> None:
    """C79: vector code may not read a number across its alignment; mapped loaders hand it out as
    the engines do, ours copies it and says so."""
    checkpoint = tricky(tmp_path)
    loader = Parallel(2)
    for _, tensor in loader.load(checkpoint, Stamps()):
        step = tensor.dtype.itemsize // (2 if tensor.dtype.is_complex else 1)
        assert tensor.data_ptr() % step == 0
    assert [note for note in loader.notes if "copied" in note]
    aligned = tmp_path / "aligned"
    aligned.mkdir()
    specs = write_shard(aligned / "x.safetensors", {"w": Raw("U8", [64], noise(64, 1))}, pad=5)
    quiet = Parallel(2)
    list(quiet.load(checkpoint_of(aligned, {"x.safetensors": specs}), Stamps()))
    assert quiet.notes == []


def test_parallel_refuses_a_shape_that_its_bytes_dont_fill(tmp_path: Path) -> None:
    specs = write_shard(tmp_path / "x.safetensors", {"w": Raw("F32", [3], b"12345678")})
    checkpoint = checkpoint_of(tmp_path, {"x.safetensors": specs})
    with pytest.raises(LoadError, match="expected 12 bytes, found 8"):
        list(Parallel().load(checkpoint, Stamps()))


def test_parallel_gives_a_files_memory_back_with_its_tensors(tmp_path: Path) -> None:
    """A consumer that drops tensors holds one file's memory, not the whole checkpoint's."""
    checkpoint = many_shards(tmp_path, count=4, nbytes=8 << 20)

    def resident() -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    before, tensor = resident(), None
    for _, tensor in Parallel(1).load(checkpoint, Stamps()):  # noqa: B007
        pass
    assert tensor is not None
    assert resident() - before < 24 << 20


@pytest.mark.parametrize("limit", ["268435456", "max"])
def test_c76_prefetch_stays_within_the_memory_limit(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C76: in a group of 256 MiB, files of more than 90 % of that aren't read ahead: each page
    would push out one that came before it. The load itself goes on, and a note says why."""
    checkpoint = many_shards(tmp_path, count=3)
    large = Checkpoint(
        root=checkpoint.root,
        origin=checkpoint.origin,
        format="safetensors",
        files=(
            type(checkpoint.files[0])(
                name=checkpoint.files[0].name, path=checkpoint.files[0].path, size=250 << 20
            ),
        ),
        tensors=checkpoint.tensors[:1],
    )
    root = fake_root(tmp_path / "root", v2=limit)
    monkeypatch.setattr("loaders.safetensors_prefetch.available", lambda: memory.available(root))
    started = threading.Event()
    monkeypatch.setattr("loaders.safetensors_prefetch._read_away", lambda *_: started.set())
    loader = SafetensorsPrefetch(2)
    iterator = loader.load(large, Stamps())
    next(iterator)
    if limit == "max":
        assert started.wait(60)
    assert list(iterator) == []
    if limit == "max":
        assert loader.notes == []
    else:
        assert not started.is_set()
        assert "nothing prefetched" in loader.notes[0]
        assert "sys/fs/cgroup/pod" in loader.notes[0]


def fake_root(root: Path, *, v2: str | None = None, v1: str | None = None) -> Path:
    """A host with 64 GiB available whose process is in group /pod/app."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(
        "MemTotal: 99999999 kB\nMemFree: 1 kB\nMemAvailable: 67108864 kB\n"
    )
    lines = ""
    if v2 is not None:
        lines += "0::/pod/app\n"
        folder = root / "sys/fs/cgroup/pod/app"
        folder.mkdir(parents=True)
        (folder / "memory.max").write_text("max\n")
        (folder / "memory.current").write_text("4096\n")
        (folder.parent / "memory.max").write_text(f"{v2}\n")
        (folder.parent / "memory.current").write_text("104857600\n")
        (folder.parent / "memory.stat").write_text("anon 1\ninactive_file 52428800\n")
    if v1 is not None:
        lines += "4:cpu,memory:/not/in/this/container\n"
        folder = root / "sys/fs/cgroup/memory"
        folder.mkdir(parents=True)
        (folder / "memory.limit_in_bytes").write_text(f"{v1}\n")
        (folder / "memory.usage_in_bytes").write_text("104857600\n")
    (root / "proc/self/cgroup").write_text(lines + "1:name=systemd:/\n")
    return root


def test_c76_available_memory_is_the_least_of_all_bounds(tmp_path: Path) -> None:
    """C76: v2 and v1, a limit on an enclosing group, "max", v1's huge number for none, a path that
    isn't there in the container, no control groups at all."""
    found = memory.available(fake_root(tmp_path / "v2", v2=str(256 << 20)))
    assert found.nbytes == (256 - 100 + 50) << 20
    assert found.bound.endswith("sys/fs/cgroup/pod")
    found = memory.available(fake_root(tmp_path / "v1", v1=str(256 << 20)))
    assert found.nbytes == (256 - 100) << 20
    assert found.bound.endswith("sys/fs/cgroup/memory")
    for name, kind in {
        "a": {"v2": "max"},
        "b": {"v1": "9223372036854771712"},
        "c": {"v2": None},
    }.items():
        found = memory.available(fake_root(tmp_path / name, **kind))
        assert (found.nbytes, found.bound) == (64 << 30, "MemAvailable")
    root = fake_root(tmp_path / "full", v2=str(50 << 20))
    assert memory.available(root).nbytes == 0
    (root / "proc/self/cgroup").unlink()
    assert memory.available(root).bound == "MemAvailable"
    assert memory.available().nbytes > 0


def test_prefetch_failures_are_noted_and_not_fatal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = threading.Event()

    def refuse(path: str, *_: object) -> None:
        refused.set()
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("loaders.safetensors_prefetch._read_away", refuse)
    checkpoint = many_shards(tmp_path, count=2)
    loader = SafetensorsPrefetch(2)
    iterator = loader.load(checkpoint, Stamps())
    next(iterator)
    assert refused.wait(60)
    assert len(list(iterator)) == 1
    assert loader.notes
    assert all("Permission denied" in note for note in loader.notes)


def test_prefetch_reads_every_file_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = many_shards(tmp_path, count=3, nbytes=(5 << 20) + 17)
    read: dict[str, int] = {}
    preadv, name = os.preadv, "/proc/self/fd/{}"

    def counting(fd: int, buffers: list[bytearray], offset: int) -> int:
        got = preadv(fd, buffers, offset)
        path = str(Path(name.format(fd)).readlink())
        read[path] = read.get(path, 0) + got
        return got

    monkeypatch.setattr("loaders.safetensors_prefetch.os.preadv", counting)
    iterator = SafetensorsPrefetch(3, block_mib=2).load(checkpoint, Stamps())
    next(iterator)
    deadline = threading.Event()
    while sum(read.values()) < checkpoint.file_bytes:
        assert not deadline.wait(0.01)
    assert read == {file.path: file.size for file in checkpoint.files}
    iterator.close()  # type: ignore[attr-defined]


def test_dummy_opens_no_file_and_repeats_itself(tmp_path: Path) -> None:
    checkpoint = tricky(tmp_path)
    for file in checkpoint.files:
        Path(file.path).unlink()
    assert Dummy.synthetic
    first, second = (dict(Dummy().load(checkpoint, Stamps())) for _ in range(2))
    for spec in checkpoint.tensors:
        tensor = first[spec.name]
        assert (f"torch.{tensor.dtype}".split(".")[-1], tuple(tensor.shape)) == (
            spec.dtype,
            spec.shape,
        )
        assert tensor_bytes(tensor) == tensor_bytes(second[spec.name])
        assert tensor_bytes(tensor) == b"" or spec.nbytes == len(tensor_bytes(tensor))


def test_dummy_fills_as_engines_do() -> None:
    from loaders.dummy import fill

    for dtype, bound in {
        torch.bfloat16: 1e-3,
        torch.float16: 1e-3,
        torch.float32: 1e-3,
        torch.float64: 1e-3,
        torch.float8_e4m3fn: 1.0,
        torch.float8_e5m2: 1.0,
    }.items():
        tensor = torch.empty(64, 33, dtype=dtype)
        fill(tensor)
        wide = tensor.double()
        assert wide.abs().max() <= bound * 1.01
        assert wide.abs().max() > bound / 2
        assert wide.min() < 0 < wide.max()
    whole = torch.empty(4096, dtype=torch.int8)
    fill(whole)
    assert (int(whole.min()), int(whole.max())) == (-128, 127)
    for dtype in (torch.int32, torch.int64, torch.bool, torch.complex64):
        tensor = torch.ones(7, dtype=dtype)
        fill(tensor)
        assert tensor_bytes(tensor) == bytes(tensor.nbytes)
    scale = torch.empty(5, dtype=torch.float8_e8m0fnu)
    fill(scale)
    assert scale.float().tolist() == [1.0] * 5
    packed = torch.empty(512, dtype=torch.float4_e2m1fn_x2)
    fill(packed)
    assert len(set(tensor_bytes(packed))) > 100
    fill(torch.empty(0, 3))
    fill(torch.empty((), dtype=torch.float8_e4m3fn))


def test_eager_counts_the_file_and_its_copies(tmp_path: Path) -> None:
    checkpoint = tricky(tmp_path)
    largest = max(file.size for file in checkpoint.files)
    assert SafetensorsEager().memory_bytes(checkpoint) == checkpoint.tensor_bytes + largest
    assert SafetensorsMmap().memory_bytes(checkpoint) == 0
    assert Parallel().memory_bytes(checkpoint) == checkpoint.tensor_bytes


def test_the_teaching_loader_is_short() -> None:
    lines = (ROOT / "loaders/example.py").read_text().splitlines()
    assert len(lines) < 60
    assert sum("#" in line for line in lines) >= 5


def test_every_loader_is_one_file_with_one_class() -> None:
    for path in (ROOT / "loaders").glob("*.py"):
        if path.name in {"__init__.py", "contract.py", "registry.py"}:
            continue
        tree = ast.parse(path.read_text())
        registered = [
            node
            for node in tree.body
            if isinstance(node, ast.ClassDef)
            and any(getattr(mark, "id", "") == "register" for mark in node.decorator_list)
        ]
        assert len(registered) == 1, path
