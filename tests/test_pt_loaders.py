"""`pt` and `pt-threads`: what they yield, own, note and raise."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_torch import Stamps, named, no_stamp, pt_checkpoint, raw, save

from loaders.checkpoint.manifest import Checkpoint
from loaders.contract import Loader, OptionError
from loaders.io.errors import LoadError
from loaders.pt import Pt
from loaders.pt_threads import PtThreads

LOADERS = pytest.mark.parametrize(
    "loader",
    [lambda: Pt(), lambda: Pt(mmap=True), lambda: PtThreads(threads=1), lambda: PtThreads(3)],
    ids=["pt", "pt-mmap", "pt-threads-1", "pt-threads-3"],
)
FORMS = pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])


def agrees(checkpoint: Checkpoint, loader: Loader) -> dict[str, torch.Tensor]:
    """Loads it and compares with the manifest: names, dtypes, shapes, bytes where stated."""
    assert checkpoint.errors == ()
    found = named(loader.load(checkpoint, no_stamp))
    assert set(found) == {spec.name for spec in checkpoint.tensors}
    for spec in checkpoint.tensors:
        tensor = found[spec.name]
        assert tensor.is_contiguous()
        assert not tensor.requires_grad
        assert tensor.view(-1).view(torch.uint8).numel() == spec.nbytes
        assert type(tensor) is torch.Tensor
        assert str(tensor.dtype) == f"torch.{spec.dtype}"
        assert (tuple(tensor.shape), tensor.nbytes) == (spec.shape, spec.nbytes)
        if spec.offset is not None:
            data = Path(checkpoint.file(spec.file).path).read_bytes()
            assert raw(tensor) == data[spec.offset : spec.offset + spec.nbytes]
    return found


@LOADERS
@FORMS
def test_all_kinds_of_tensors(tmp_path: Path, loader: type[Loader], legacy: bool) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    one = {
        "a": base,
        "slice": base[1:],
        "t": base.t(),
        "wide": base[:1].expand(5, 4),
        "scalar": torch.tensor(1.5),
        "empty": torch.empty(0, 8),
        "flags": torch.tensor([True, False]),
        "bf16": torch.ones(3, dtype=torch.bfloat16),
        "complex": torch.tensor([1 + 2j]),
        "conj": torch.tensor([1 + 2j]).conj(),
        "column": base[:, :1][:1],
        "odd stride": base[::2][:1, 0],
        "strideless": torch.from_numpy(np.empty(0, "<f4")),
        "strideless2": torch.from_numpy(np.empty((3, 0), "<f4")),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "step": 3,
    }
    if not legacy:
        one["fp8"] = torch.ones(3).to(torch.float8_e4m3fn)
        one["u16"] = torch.ones(3, dtype=torch.int32).to(torch.uint16)
    two = {"state_dict": {"z": torch.rand(5)}, "optimizer": {"m": torch.rand(50)}}
    paths = [save(one, tmp_path / "x1.bin", legacy=legacy), save(two, tmp_path / "x2.bin")]
    found = agrees(pt_checkpoint(*paths), loader())
    assert torch.equal(found["t"], base.t())
    assert torch.equal(found["wide"], base[:1].expand(5, 4))
    assert found["conj"].tolist() == [1 - 2j]
    assert not found["conj"].is_conj()
    assert torch.equal(found["z"], two["state_dict"]["z"])


@LOADERS
def test_c30_manifest_and_loader_pick_the_same(tmp_path: Path, loader: type[Loader]) -> None:
    w = {"a.weight": torch.rand(4), "b.bias": torch.rand(2)}
    moments = {0: {"exp_avg": torch.rand(4), "exp_avg_sq": torch.rand(4)}}
    shapes = {
        "state_dict": {"state_dict": w, "step": 1},
        "deep": {"model": {"module": w}, "optimizer": moments, "rng_state": torch.zeros(8)},
        "flat": {**w, "optimizer": {"state": moments, "param_groups": []}},
        "nets": {"g": {"x": w["a.weight"]}, "d": [w["b.bias"], {"y": torch.ones(1)}]},
        "ints": {0: torch.ones(1), 5: torch.ones(2)},
    }
    for name, saved in shapes.items():
        agrees(pt_checkpoint(save(saved, tmp_path / f"{name}.pt")), loader())


@LOADERS
def test_c26_views_are_not_copied(tmp_path: Path, loader: type[Loader]) -> None:
    big = torch.arange(1000.0)
    saved = {"a": big[:10], "b": big[10:20], "tied": big[:10]}
    found = agrees(pt_checkpoint(save(saved, tmp_path / "x.pt")), loader())
    assert len({tensor.untyped_storage().data_ptr() for tensor in found.values()}) == 1
    assert found["a"].data_ptr() == found["tied"].data_ptr()


def test_c27_legacy_files_are_read_without_mapping(tmp_path: Path) -> None:
    path = save({"w": torch.ones(4)}, tmp_path / "model.pth.tar", legacy=True)
    checkpoint = pt_checkpoint(path)
    loader = Pt(mmap=True)
    assert loader.memory_bytes(checkpoint) == path.stat().st_size
    agrees(checkpoint, loader)
    (note,) = loader.notes
    assert "mmap refused" in note
    assert "model.pth.tar" in note
    assert loader.ownership == "owned"
    quiet = Pt()
    agrees(checkpoint, quiet)
    assert quiet.notes == []


def test_c27_one_legacy_shard_among_others(tmp_path: Path) -> None:
    paths = [save({"a": torch.ones(4)}, tmp_path / "1.bin", legacy=True)]
    paths.append(save({"b": torch.ones(4)}, tmp_path / "2.bin"))
    loader = Pt(mmap=True)
    agrees(pt_checkpoint(*paths), loader)
    assert len(loader.notes) == 1
    assert loader.ownership == "mapped"


def test_c28_the_path_is_a_str(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    real = torch.load

    def spy(path: object, **options: object) -> object:
        seen.append((type(path), options["mmap"], options["weights_only"]))
        return real(path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(torch, "load", spy)
    checkpoint = pt_checkpoint(save({"w": torch.ones(4)}, tmp_path / "x.pt"))
    for loader in (Pt(), Pt(mmap=True), PtThreads()):
        agrees(checkpoint, loader)
    assert seen == [(str, False, True), (str, True, True), (str, False, True)]


def test_ownership_stamps_and_memory(tmp_path: Path) -> None:
    base = torch.ones(1000)
    path = save({"w": base, "s": base.reshape(10, 100).t()}, tmp_path / "x.pt")
    checkpoint = pt_checkpoint(path)
    assert (Pt().ownership, Pt(mmap=True).ownership, Pt.ownership) == ("owned", "mapped", "owned")
    size = path.stat().st_size
    assert Pt().memory_bytes(checkpoint) == size + 4000  # the strided view becomes a copy
    assert Pt(mmap=True).memory_bytes(checkpoint) == 4000
    assert PtThreads().memory_bytes(checkpoint) == size + 4000
    read, mapped = Stamps(), Stamps()
    named(Pt().load(checkpoint, read))
    named(Pt(mmap=True).load(checkpoint, mapped))
    assert len(mapped.seen) == len(read.seen) + 1  # torch.load is reading, or only opening
    with pytest.raises(OptionError):
        Pt(mmap="yes")


@LOADERS
def test_a_broken_file_is_named(tmp_path: Path, loader: type[Loader]) -> None:
    good = save({"a": torch.ones(4)}, tmp_path / "good.bin")
    bad = save({"b": torch.ones(4)}, tmp_path / "bad.bin")
    checkpoint = pt_checkpoint(good, bad)
    for content in (
        bad.read_bytes()[:300],
        b"",
        b"\x80\x02N.",
        b"<html>",
        b"\x80\x02cos\nsystem\n.",
    ):
        bad.write_bytes(content)
        with pytest.raises(LoadError, match=r"bad\.bin"):
            named(loader().load(checkpoint, no_stamp))
    save(torch.ones(3), bad)
    with pytest.raises(LoadError, match=r"bad\.bin: holds one bare tensor"):
        named(loader().load(checkpoint, no_stamp))
    save({"b": torch.eye(2).to_sparse()}, bad)
    with pytest.raises(LoadError, match=r"bad\.bin: tensor 'b'"):
        named(loader().load(checkpoint, no_stamp))
    save({"b": torch.empty(2, device="meta")}, bad)
    with pytest.raises(LoadError, match=r"bad\.bin: tensor 'b'"):
        named(loader().load(checkpoint, no_stamp))
    bad.unlink()
    with pytest.raises((LoadError, FileNotFoundError), match=r"bad\.bin"):
        named(loader().load(checkpoint, no_stamp))


def test_an_error_does_not_wait_for_the_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [save({f"w{i}": torch.ones(4)}, tmp_path / f"{i}.bin") for i in range(6)]
    checkpoint = pt_checkpoint(*paths)
    paths[1].write_bytes(b"PK\x03\x04 cut off")
    release = threading.Event()
    real = torch.load

    def slow(path: str, **options: object) -> object:
        if not path.endswith("1.bin"):
            assert release.wait(30)
        return real(path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(torch, "load", slow)
    try:
        with pytest.raises(LoadError, match=r"1\.bin"):
            named(PtThreads(threads=2).load(checkpoint, no_stamp))
        assert not release.is_set()
    finally:
        release.set()
    wait_for_threads()


def test_leaving_early_stops_the_pool(tmp_path: Path) -> None:
    paths = [save({f"w{i}": torch.ones(4)}, tmp_path / f"{i}.bin") for i in range(8)]
    items = PtThreads(threads=2).load(pt_checkpoint(*paths), no_stamp)
    next(items)
    items.close()  # type: ignore[attr-defined]
    wait_for_threads()


def wait_for_threads() -> None:
    for _ in range(500):
        if not any(t.name.startswith("torch-load") for t in threading.enumerate()):
            return
        time.sleep(0.01)
    pytest.fail("a reader thread is left behind")
