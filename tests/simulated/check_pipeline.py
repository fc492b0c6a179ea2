"""Disk -> ring -> device, on a device that copies on its own."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from simulated_npu import streams
from simulated_npu.memory import pinned_bytes
from simulated_npu.settings import settings
from simulated_npu.streams import held
from tiny_loaders import tricky
from tiny_pipeline import wrong
from tiny_ring import laps

from loaders.device.accelerator import Accelerator, AcceleratorEvent
from loaders.device.faults import DeviceError
from loaders.device.interface import Device
from loaders.device.pinned import PinProbe
from loaders.pipeline.overlap import PipelineOptions, run_pipeline

PAGE = 4096
SMALL = PipelineOptions(readers=2, block_bytes=PAGE, slots=4)


def no_feed_is_left() -> bool:
    return not [each for each in threading.enumerate() if each.name.startswith("feed-")]


@pytest.mark.parametrize("rate", [0, 100 << 20])
@pytest.mark.parametrize("slots", [1, 4])
def test_every_tensor_arrives_whole_through_a_bounded_ring(
    device: Device, tmp_path: Path, slots: int, rate: int
) -> None:
    settings.rate = rate
    checkpoint = tricky(tmp_path)
    before, during = pinned_bytes(), []
    options = PipelineOptions(
        readers=2,
        block_bytes=16 * PAGE,
        slots=slots,
        ready=lambda: during.append(pinned_bytes()),
    )
    done = run_pipeline(checkpoint, device, options)
    assert wrong(done, checkpoint) == []
    assert during == [before + slots * 16 * PAGE]
    assert (done.simulated, done.pinned, done.ring_bytes) == (True, True, slots * 16 * PAGE)
    assert (done.pinned_got or 0) >= done.ring_bytes
    assert any("resident" in note for note in done.notes)
    assert pinned_bytes() == before
    assert done.device_seconds is not None
    if rate:
        assert min(done.seconds, done.device_seconds) >= done.nbytes / rate * (1 - 1e-6)


def test_reading_goes_on_while_copies_are_in_flight(device: Device, tmp_path: Path) -> None:
    """No copy is done, and yet every slot is filled: then the readers wait for the marks."""
    checkpoint = laps(tmp_path, shards=1, tensors=2, nbytes=20_000)
    read: list[str] = []
    everything = threading.Event()

    class Counting:
        def __init__(self, path: str) -> None:
            self._file = Path(path).open("rb")  # noqa: SIM115  it is closed by close()
            self.notes: list[str] = []

        def read(self, into: memoryview, offset: int, needed: int) -> None:
            read.append(threading.current_thread().name)
            self._file.seek(offset)
            into[:needed] = self._file.read(needed)
            if len(read) == 4:
                everything.set()

        def close(self) -> None:
            self._file.close()

    def open_gate() -> None:
        everything.wait()
        streams.gate.set()

    opener = threading.Thread(target=open_gate)
    options = PipelineOptions(readers=1, block_bytes=PAGE, slots=4, open_source=Counting)
    targets_are_there = PipelineOptions(
        readers=1,
        block_bytes=PAGE,
        slots=4,
        open_source=options.open_source,
        ready=lambda: (streams.gate.clear(), opener.start(), None)[2],
    )
    done = run_pipeline(checkpoint, device, targets_are_there)
    opener.join()
    assert wrong(done, checkpoint) == []
    assert len(read) > 4


def test_a_slot_that_is_refilled_too_early_gives_wrong_bytes(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sabotage: readers don't wait for the marks. The link is slow, the disk is not."""
    checkpoint = laps(tmp_path, shards=1, tensors=2, nbytes=60_001)
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
        done = run_pipeline(checkpoint, device, SMALL)
    assert wrong(done, checkpoint)


def test_a_missing_synchronise_is_told(tmp_path: Path) -> None:
    class Deaf(Accelerator):
        def synchronize(self) -> None:
            return None

    checkpoint = tricky(tmp_path)
    with held(), pytest.raises(DeviceError, match="it wasn't waited for"):
        run_pipeline(checkpoint, Deaf("npu", 0), PipelineOptions())


def test_c69_without_pinned_memory_it_goes_through_pageable_and_says_so(
    device: Device, tmp_path: Path
) -> None:
    checkpoint = tricky(tmp_path)
    settings.fail = {"pin": "1"}
    done = run_pipeline(checkpoint, device, SMALL)
    assert wrong(done, checkpoint) == []
    assert (done.pinned, done.pinned_got) == (False, 0)
    assert any(note.startswith("not pinned, copied from pageable") for note in done.notes)
    probe = PinProbe(ok=False, asked=1, reason="the child said no")
    done = run_pipeline(checkpoint, device, PipelineOptions(probe=probe))
    assert wrong(done, checkpoint) == []
    assert settings.tries["pin"] == 1


@pytest.mark.parametrize("what", ["copy:1", "copy:9", "lost:1", "lost:9", "allocate:5"])
def test_a_failure_of_the_device_is_one_named_error(
    device: Device, tmp_path: Path, what: str
) -> None:
    checkpoint = tricky(tmp_path)
    settings.tries, settings.fail = {}, dict([what.split(":")])
    with pytest.raises(DeviceError, match=r"^npu:0: ") as caught:
        run_pipeline(checkpoint, device, SMALL)
    assert caught.value.code == ("no-memory" if what.startswith("allocate") else "lost")
    assert no_feed_is_left()


def test_a_failure_of_the_disk_leaves_no_copy_behind(device: Device, tmp_path: Path) -> None:
    checkpoint = tricky(tmp_path)
    path = Path(checkpoint.files[-1].path)
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(Exception, match="expected at least"):
        run_pipeline(checkpoint, device, SMALL)
    assert no_feed_is_left()
    device.synchronize()


@pytest.mark.parametrize("stage", ["read", "copy"])
def test_the_stages_alone(device: Device, tmp_path: Path, stage: str) -> None:
    checkpoint = tricky(tmp_path)
    both = run_pipeline(checkpoint, device, SMALL)
    settings.tries, settings.fail = {}, {"copy": "1"} if stage == "read" else {}
    done = run_pipeline(checkpoint, device, SMALL, stage)
    assert done.copies == (0 if stage == "read" else both.copies)
    assert (done.device_seconds is None) == (stage == "read")
