"""Checkpoint -> parameters on the host: every way gives what slices and cat give."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from tiny_assembly import bytes_of, expected, planned, written

from loaders import registry
from loaders.assembly.overlapped import overlapped
from loaders.assembly.staged import staged, touch
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


@pytest.mark.parametrize("name", LOADERS)
def test_any_loader_can_be_staged(checkpoint: Checkpoint, name: str) -> None:
    parameters = planned(checkpoint, 2, 1)
    loader = registry.get(name)(threads=2)
    done = staged(loader, checkpoint, parameters, HostDevice(), Options(readers=2))
    assert bytes_of(parameters, done.targets) == expected(checkpoint, 2, 1)


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

    with pytest.raises(ValueError, match="didn't yield 1 tensor"):
        staged(Short(), checkpoint, planned(checkpoint, 1), HostDevice(), Options())


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
