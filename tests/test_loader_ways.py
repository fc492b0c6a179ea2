"""What single loaders promise beyond the contract: options, stamps, laziness, prefetching."""

from __future__ import annotations

import ast
import os
import threading
from pathlib import Path

import pytest
import torch
from tiny_loaders import (
    Raw,
    Stamps,
    checkpoint_of,
    many_shards,
    noise,
    tensor_bytes,
    tricky,
    write_shard,
)

from loaders.checkpoint.manifest import Checkpoint
from loaders.contract import Loader, OptionError
from loaders.dummy import Dummy
from loaders.example import Example
from loaders.io.errors import LoadError
from loaders.parallel import Parallel
from loaders.safetensors_eager import SafetensorsEager
from loaders.safetensors_mmap import SafetensorsMmap
from loaders.safetensors_prefetch import SafetensorsPrefetch
from loaders.safetensors_threads import SafetensorsThreads
from loaders.system import memory
from tests.tiny_contract import (
    ROOT,
    leaves_nothing,  # noqa: F401 - a fixture
    names,
    one_big_tensor,
)


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
        checkpoint = one_big_tensor(folder)
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
    monkeypatch.setattr("loaders.safetensors_prefetch.read_away", lambda *_: started.set())
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

    monkeypatch.setattr("loaders.safetensors_prefetch.read_away", refuse)
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
