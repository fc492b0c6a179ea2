"""Checkpoint -> parameters, on a device that copies on its own."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from simulated_npu import streams
from simulated_npu.memory import pinned_bytes
from simulated_npu.settings import settings
from simulated_npu.streams import held
from tiny_assembly import bytes_of, expected, planned, written

from loaders import registry
from loaders.assembly.overlapped import overlapped
from loaders.assembly.staged import staged
from loaders.assembly.stock import stock
from loaders.assembly.values import Options
from loaders.device.accelerator import AcceleratorEvent
from loaders.device.faults import DeviceError
from loaders.device.interface import Device
from loaders.slicing.plan import Parameter, Piece

PAGE = 4096
SMALL = Options(readers=2, block_bytes=PAGE, slots=3)


@pytest.mark.parametrize("options", [SMALL, Options()], ids=["small", "default"])
@pytest.mark.parametrize(("tp", "rank"), [(1, 0), (2, 1), (4, 3)])
@pytest.mark.parametrize("way", [stock, overlapped])
def test_parameters_are_what_slices_and_cat_give(
    device: Device, tmp_path: Path, way, tp: int, rank: int, options: Options
) -> None:
    checkpoint = written(tmp_path / "model")
    parameters = planned(checkpoint, tp, rank)
    done = way(checkpoint, parameters, device, options)
    assert {target.device.type for target in done.targets} == {"npu"}
    assert bytes_of(parameters, done.targets) == expected(checkpoint, tp, rank)


@pytest.mark.parametrize("name", ["safetensors-mmap", "parallel", "direct"])
def test_staged_loaders_arrive_too(device: Device, tmp_path: Path, name: str) -> None:
    checkpoint = written(tmp_path / "model")
    parameters = planned(checkpoint, 2, 1)
    done = staged(registry.get(name)(threads=2), checkpoint, parameters, device, Options())
    assert done.pinned
    assert bytes_of(parameters, done.targets) == expected(checkpoint, 2, 1)


def test_rows_that_lie_apart_in_the_parameter_too(device: Device, tmp_path: Path) -> None:
    """As experts that are stored [in, out]: gate and up side by side."""
    checkpoint = written(tmp_path / "model")
    names = [f"model.layers.0.mlp.{part}_proj.weight" for part in ("gate", "up")]
    rows, columns = next(one.shape for one in checkpoint.tensors if one.name == names[0])
    pieces = tuple(
        Piece(tensor=name, dim=1, start=8, stop=24, shape=(rows, 16), at=(0, 16 * n), replicas=1)
        for n, name in enumerate(names)
    )
    parameter = Parameter(
        name="w", kind="experts", dtype="bfloat16", shape=(rows, 32), pieces=pieces
    )
    for options in (SMALL, Options()):
        host = stock(checkpoint, [parameter], device, options).targets
        ours = overlapped(checkpoint, [parameter], device, options).targets
        assert bytes_of([parameter], ours) == bytes_of([parameter], host)
    assert columns > 24


def test_the_rings_are_bounded_and_go_back(device: Device, tmp_path: Path) -> None:
    checkpoint = written(tmp_path / "model")
    before = pinned_bytes()
    done = overlapped(checkpoint, planned(checkpoint, 2), device, SMALL)
    assert done.ring_bytes == 6 * PAGE  # three to read into, three to put rows together in
    assert pinned_bytes() == before
    assert overlapped(checkpoint, planned(checkpoint, 1), device, SMALL).ring_bytes == 3 * PAGE


@pytest.mark.parametrize("tp", [1, 2])
def test_a_slot_that_is_used_again_too_early_gives_wrong_bytes(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tp: int
) -> None:
    """The sabotage: nobody waits for the marks."""
    checkpoint = written(tmp_path / "model")
    parameters = planned(checkpoint, tp)
    monkeypatch.setattr(AcceleratorEvent, "wait", lambda self: None)
    waits = device.synchronize
    calls: list[int] = []

    def synchronize() -> None:
        calls.append(1)
        if len(calls) > 1:  # the first is for the targets
            streams.gate.set()
        waits()

    monkeypatch.setattr(device, "synchronize", synchronize)
    with held():
        streams.gate.set()
        targets = overlapped(checkpoint, parameters, _Gated(device), SMALL).targets
    assert bytes_of(parameters, targets) != expected(checkpoint, tp, 0)


class _Gated:
    """The device, whose copies are held back once its memory is there."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def __getattr__(self, name: str) -> object:
        return getattr(self._device, name)

    def stream(self) -> object:
        streams.gate.clear()
        return self._device.stream()


@pytest.mark.parametrize("what", ["copy:1", "copy:20", "lost:1", "lost:20", "allocate:5"])
def test_a_failure_of_the_device_is_one_named_error(
    device: Device, tmp_path: Path, what: str
) -> None:
    checkpoint = written(tmp_path / "model")
    settings.tries, settings.fail = {}, dict([what.split(":")])
    with pytest.raises(DeviceError, match=r"^npu:0: "):
        overlapped(checkpoint, planned(checkpoint, 2), device, SMALL)
    assert not [each for each in threading.enumerate() if each.name.startswith("feed-")]


def test_c69_without_pinned_memory_it_goes_through_pageable_and_says_so(
    device: Device, tmp_path: Path
) -> None:
    checkpoint = written(tmp_path / "model")
    parameters = planned(checkpoint, 2, 1)
    settings.fail = {"pin": "1"}
    done = overlapped(checkpoint, parameters, device, SMALL)
    assert not done.pinned
    assert any("not pinned" in note for note in done.notes)
    assert bytes_of(parameters, done.targets) == expected(checkpoint, 2, 1)
