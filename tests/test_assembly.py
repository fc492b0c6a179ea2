"""Checkpoint -> parameters on the host: every way gives what slices and cat give."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from tiny_assembly import bytes_of, expected, planned, written

from loaders import registry
from loaders.assembly.alongside import alongside
from loaders.assembly.cutting import Cutting, touch
from loaders.assembly.overlapped import overlapped
from loaders.assembly.staged import read_alone, staged
from loaders.assembly.stock import stock
from loaders.assembly.values import Options, host_targets
from loaders.checkpoint.manifest import Checkpoint
from loaders.contract import Loader
from loaders.device.cpu import HostDevice
from loaders.slicing.plan import Parameter

LOADERS = [
    name
    for name, entry in registry.entries().items()
    if entry.cls is not None
    and "safetensors" in entry.cls.formats
    and entry.cls.place == "file"
    and registry.unavailable(entry) is None
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return written(tmp_path_factory.mktemp("assembly") / "model")


@pytest.mark.parametrize("way", [stock, overlapped])
@pytest.mark.parametrize(("tp", "rank"), [(1, 0), (2, 0), (2, 1), (4, 3)])
def test_parameters_are_what_slices_and_cat_give(
    checkpoint: Checkpoint, way, tp: int, rank: int
) -> None:
    parameters = planned(checkpoint, tp, rank)
    done = way(checkpoint, parameters, HostDevice(), Options(block_bytes=4096, readers=3))
    assert bytes_of(parameters, done.targets) == expected(checkpoint, tp, rank)


@pytest.mark.parametrize("way", [staged, alongside])
@pytest.mark.parametrize("name", LOADERS)
def test_any_loader_fills_them_stage_by_stage_and_overlapped(
    checkpoint: Checkpoint, name: str, way
) -> None:
    parameters = planned(checkpoint, 2, 1)
    loader = registry.get(name)(threads=2)
    done = way(loader, checkpoint, parameters, HostDevice(), Options(readers=2))
    assert bytes_of(parameters, done.targets) == expected(checkpoint, 2, 1)
    assert read_alone(registry.get(name)(threads=2), checkpoint).targets == []


@pytest.mark.parametrize("way", [staged, alongside])
def test_a_tensor_that_comes_in_rows_goes_where_it_belongs(checkpoint: Checkpoint, way) -> None:
    class InRows(Loader):
        name, summary, formats = "in-rows", "", frozenset({"safetensors"})
        ownership = "owned"

        def load(self, checkpoint, stamp):
            return registry.get("safetensors-eager")().load(checkpoint, stamp)

        def load_rows(self, checkpoint, stamp):
            every = list(self.load(checkpoint, stamp))
            cut = [(name, part) for name, tensor in every for part in reversed(_halves(tensor))]
            for name, (first, rows) in cut[::-1]:  # parts of others come between: none is in order
                yield name, first, rows

    parameters = planned(checkpoint, 2, 1)
    done = way(InRows(), checkpoint, parameters, HostDevice(), Options(readers=2))
    assert bytes_of(parameters, done.targets) == expected(checkpoint, 2, 1)


def _halves(tensor: torch.Tensor) -> list[tuple[int, torch.Tensor]]:
    middle = tensor.shape[0] // 3
    return [(0, tensor[:middle]), (middle, tensor[middle:])]


def test_what_fails_while_slicing_ends_the_load_and_its_threads(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self, name, first, rows):
        raise ValueError(f"no place for {name}")

    monkeypatch.setattr(Cutting, "add", broken)
    before = threading.active_count()
    loader = registry.get("safetensors-eager")()
    with pytest.raises(ValueError, match="no place for"):
        alongside(loader, checkpoint, planned(checkpoint, 1), HostDevice(), Options())
    assert threading.active_count() == before


class Stamps:
    """Says which stages were stamped, and that none was within another."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.within = False

    @contextmanager
    def __call__(self, stage: str):
        assert not self.within
        self.within = True
        self.seen.append(stage)
        yield
        self.within = False


def test_stages_are_stamped_one_at_a_time_on_the_calling_thread(checkpoint: Checkpoint) -> None:
    parameters = planned(checkpoint, 2)
    stamps = Stamps()
    loader = registry.get("parallel")(threads=2)
    staged(loader, checkpoint, parameters, HostDevice(), Options(stamp=stamps))
    assert stamps.seen[0] == "allocate"
    assert set(stamps.seen[1:]) == {"slice"}


def test_a_loader_that_leaves_a_tensor_out_is_an_error(checkpoint: Checkpoint) -> None:
    class Short(Loader):
        name, summary, formats = "short", "", frozenset({"safetensors"})
        ownership = "owned"

        def load(self, checkpoint, stamp):
            every = list(registry.get("safetensors-eager")().load(checkpoint, stamp))
            yield from every[1:]

    for way in (staged, alongside):
        with pytest.raises(ValueError, match="didn't yield 1 tensor"):
            way(Short(), checkpoint, planned(checkpoint, 1), HostDevice(), Options())


def test_memory_for_nothing_for_one_number_and_from_a_page_on() -> None:
    sizes = [(), (0, 3), (5,), (2, 2, 2)]
    parameters = [
        Parameter(name=f"p{n}", kind="norms", dtype="float32", shape=shape, pieces=())
        for n, shape in enumerate(sizes)
    ]
    targets = host_targets(parameters)
    assert [tuple(one.shape) for one in targets] == sizes
    assert all(one.data_ptr() % 4096 == 0 for one in targets if one.numel())


def test_every_page_is_touched_whatever_the_strides() -> None:
    assert touch(torch.ones(3, dtype=torch.uint8)) == 2
    assert touch(torch.ones((64, 4096), dtype=torch.uint8)[:, ::2]) > 0
    assert touch(torch.empty(0)) == 0


def test_a_file_that_is_shorter_than_planned_ends_the_load_and_its_threads(tmp_path: Path) -> None:
    checkpoint = written(tmp_path / "model")
    path = Path(checkpoint.files[0].path)
    path.write_bytes(path.read_bytes()[:-3000])
    before = threading.active_count()
    for way in (stock, overlapped):
        with pytest.raises(Exception, match="expected at least"):
            way(checkpoint, planned(checkpoint, 1), HostDevice(), Options())
    assert threading.active_count() == before
