"""Every registered loader yields what the manifest says, byte for byte, and cleans up."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from tiny_loaders import (
    LACKING,
    Stamps,
    file_bytes,
    many_shards,
    tensor_bytes,
    tricky,
)
from tiny_snapshot import write_plain

from bench.ground.convert import convert_to_tensorizer
from loaders.checkpoint.manifest import Checkpoint
from loaders.checkpoint.npcache_write import write_npcache
from loaders.checkpoint.read import open_checkpoint
from loaders.contract import Loader
from loaders.dummy import Dummy
from loaders.io.errors import LoadError
from loaders.parallel import Parallel
from tests.tiny_contract import (
    READERS,
    READY,
    leaves_nothing,  # noqa: F401 - a fixture
    names,
)

VARIANTS = [
    pytest.param(cls, threads, dict(options), id=f"{cls.name}-{threads}-{dict(options)}")
    for cls in READERS
    for threads in ([1, 2, 8] if cls.threaded else [1])
    for options in [*cls.variants, *([{"block_mib": 1}] if "block_mib" in cls.options else [])]
]


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
    elif format == "snapshot":
        write_plain(checkpoint, tensors, folder)
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
