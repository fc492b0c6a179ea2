"""Every way from host tensors to a device that works on its own: the bytes, the clocks, and what
becomes of it when something is missing or fails."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from simulated_npu import streams
from simulated_npu.memory import pinned_bytes
from simulated_npu.settings import settings
from simulated_npu.streams import held
from tiny_device import mix, noise, wrong
from tiny_loaders import file_bytes, tricky

from loaders.device.accelerator import Accelerator, AcceleratorEvent
from loaders.device.discover import open_device
from loaders.device.faults import DeviceError
from loaders.device.interface import Device, raw_bytes
from loaders.device.pinned import PinProbe
from loaders.transfer.mapping import mapped_tensors
from loaders.transfer.several import transfer_to_all
from loaders.transfer.values import Options
from loaders.transfer.ways import WAYS

SMALL = Options(slots=3, slot_bytes=1024, bucket_bytes=2048, packers=2)
QUEUED = ["pinned", "pinned-ring", "coalesced", "whole"]
RINGS = ["pinned-ring", "coalesced"]


@pytest.mark.parametrize("options", [SMALL, Options()], ids=["small", "default"])
@pytest.mark.parametrize("way", WAYS)
def test_every_byte_arrives(device: Device, way: str, options: Options) -> None:
    host = mix()
    done = WAYS[way](device, host, options)
    assert wrong(done.tensors, host) == []
    assert {tensor.device.type for _, tensor in done.tensors} == {"npu"}
    assert done.nbytes == sum(tensor.nbytes for _, tensor in host)
    assert (done.way, done.device, done.simulated) == (way, "npu:0", True)
    assert done.copies_are == "host to device"
    assert done.pinned == (way in QUEUED)
    if done.pinned:
        assert done.seconds.pin is not None
        assert (done.pinned_got or 0) >= done.pinned_asked > 0
    assert not [note for note in done.notes if "pinned" in note]


@pytest.mark.parametrize("host", [[], [("e", torch.empty(0, 4))]], ids=["none", "empty"])
@pytest.mark.parametrize("way", WAYS)
def test_c72_nothing_but_empty_tensors(
    device: Device, way: str, host: list[tuple[str, torch.Tensor]]
) -> None:
    settings.fail = {"copy": "1"}
    done = WAYS[way](device, host, Options())
    assert wrong(done.tensors, host) == []
    assert (done.copies, done.nbytes) == (0, 0)


@pytest.mark.parametrize("way", WAYS)
def test_both_clocks_see_the_whole_transfer(device: Device, way: str) -> None:
    host = mix(1 << 20)
    settings.rate = 20 << 20
    done = WAYS[way](device, host, Options())
    least = done.nbytes / settings.rate  # the simulated link takes no less
    assert done.seconds.transfer >= least
    assert done.seconds.device >= least * (1 - 1e-6)
    assert done.seconds.transfer == done.ended - done.started
    assert done.seconds.transfer >= done.seconds.device


class Deaf(Accelerator):
    """Never waits for the device."""

    def synchronize(self) -> None:
        return None


class Sure(AcceleratorEvent):
    """Takes a mark that isn't reached for one that took no time."""

    def seconds_since(self, earlier: object) -> float:
        return 0.0


@pytest.mark.parametrize("way", QUEUED)
def test_a_way_that_does_not_wait_is_told_by_the_marks(way: str) -> None:
    deaf = Deaf("npu", 0)
    with held(), pytest.raises(DeviceError, match="it wasn't waited for"):
        WAYS[way](deaf, mix(), Options())


@pytest.mark.parametrize("way", QUEUED)
def test_a_missing_synchronise_gives_wrong_bytes_and_a_wrong_time(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The sabotage that this whole device is for: both safeguards taken away."""
    deaf, host = Deaf("npu", 0), mix()
    settings.rate = 1 << 30
    moved = streams.link(0).free_at
    monkeypatch.setattr(deaf, "event", lambda: Sure("npu:0", streams.Event(True)))
    with held():
        done = WAYS[way](deaf, host, Options())
        assert set(wrong(done.tensors, host)) == {name for name, each in host if each.nbytes}
        # The clock has stopped, and the link hasn't moved a byte.
        assert done.ended >= done.started
        assert streams.link(0).free_at == moved
    streams.synchronize(0)
    assert streams.link(0).free_at > done.ended
    assert wrong(done.tensors, host) == []


@pytest.mark.parametrize("way", RINGS)
def test_a_slot_that_is_filled_too_early_gives_wrong_bytes(
    monkeypatch: pytest.MonkeyPatch, device: Device, way: str
) -> None:
    """The slot's mark isn't waited for: other bytes are in it when its copy's turn comes."""
    monkeypatch.setattr(AcceleratorEvent, "wait", lambda self: None)
    waits = device.synchronize
    monkeypatch.setattr(
        device, "synchronize", lambda: (None if allocating() else streams.gate.set(), waits())[1]
    )
    allocated: list[int] = []

    def allocating() -> bool:
        allocated.append(1)
        return len(allocated) == 1

    host = mix()
    with held():
        done = WAYS[way](device, host, SMALL)
    assert "large" in wrong(done.tensors, host)


@pytest.mark.parametrize("way", RINGS)
@pytest.mark.parametrize(("slots", "packers"), [(2, 1), (3, 2), (8, 3)])
def test_a_ring_is_bounded_whatever_it_carries(
    device: Device, way: str, slots: int, packers: int
) -> None:
    host = mix()
    before, seen = pinned_bytes(), []
    options = Options(
        slots=slots, packers=packers, slot_bytes=1024, bucket_bytes=1024,
        ready=lambda: seen.append(pinned_bytes()),
    )  # fmt: skip
    done = WAYS[way](device, host, options)
    assert wrong(done.tensors, host) == []
    assert seen == [before + slots * 1024]
    assert done.pinned_asked == slots * 1024
    assert pinned_bytes() == before


def test_a_ring_is_no_larger_than_what_it_carries(device: Device) -> None:
    done = WAYS["pinned-ring"](device, [("a", noise(100, 1))], Options(slots=4, slot_bytes=4096))
    assert done.pinned_asked == 4096


def test_coalesced_tensors_are_few_copies_and_views(device: Device) -> None:
    host = mix(1000)
    each, together = (
        WAYS["pinned"](device, host, Options()),
        WAYS["coalesced"](device, host, Options()),
    )
    assert together.copies == 1
    assert each.copies == sum(1 for _, tensor in host if tensor.nbytes)
    whole = WAYS["whole"](device, host, Options())
    assert whole.copies == 1


# --- mapped pages ---


def test_on_npu_mapped_pages_are_staged_and_it_is_said(device: Device, tmp_path: Path) -> None:
    checkpoint = tricky(tmp_path)
    with mapped_tensors(checkpoint) as host:
        staged = WAYS["mapped"](device, host, Options())
        direct = WAYS["mapped"](device, host, Options(stage_mapped=False))
        for done in (staged, direct):
            assert wrong(done.tensors, host) == []
        for (_, tensor), spec in zip(staged.tensors, checkpoint.tensors, strict=True):
            assert bytes(raw_bytes(tensor).cpu().numpy()) == file_bytes(checkpoint, spec)
    assert staged.seconds.faults is not None
    assert "went through resident memory" in staged.notes[0]
    assert direct.seconds.faults is None
    assert "directly, as asked" in direct.notes[0]


# --- what fails ---


@pytest.mark.parametrize("way", QUEUED)
def test_c69_without_pinned_memory_it_starts_from_pageable_and_says_so(
    device: Device, way: str
) -> None:
    host = mix()
    settings.fail = {"pin": "1"}
    done = WAYS[way](device, host, SMALL)
    assert wrong(done.tensors, host) == []
    assert not done.pinned
    assert done.pinned_asked > 0
    assert done.pinned_got == 0
    (note,) = done.notes
    assert note.startswith("not pinned, copied from pageable memory: npu:0: pinning")


@pytest.mark.parametrize("way", QUEUED)
def test_c70_where_the_child_could_not_pin_this_process_does_not_try(
    device: Device, way: str
) -> None:
    host = mix()
    probe = PinProbe(ok=False, asked=1, reason="the child said no")
    done = WAYS[way](device, host, Options(probe=probe))
    assert wrong(done.tensors, host) == []
    assert done.notes == ("not pinned, copied from pageable memory: the child said no",)
    assert "pin" not in settings.tries


@pytest.mark.parametrize("what", ["copy:1", "copy:3", "lost:1", "lost:3", "allocate:3"])
@pytest.mark.parametrize("way", [way for way in WAYS if way not in ("coalesced", "whole")])
def test_a_failure_is_one_named_error_and_leaves_nothing_behind(
    device: Device, way: str, what: str
) -> None:
    settings.tries, settings.fail = {}, dict([what.split(":")])
    codes = {"copy": "lost", "lost": "lost", "allocate": "no-memory"}
    with pytest.raises(DeviceError, match=r"^npu:0: ") as caught:
        WAYS[way](device, mix(), SMALL)
    assert caught.value.code == codes[what.split(":")[0]]
    del caught
    assert not [each for each in threading.enumerate() if each.name.startswith("packer")]
    assert pinned_bytes() == 0


@pytest.mark.parametrize("what", ["copy", "lost", "allocate"])
@pytest.mark.parametrize("way", ["coalesced", "whole"])
def test_a_failure_of_the_only_copy_is_named(device: Device, way: str, what: str) -> None:
    settings.tries, settings.fail = {}, {what: "1"}
    with pytest.raises(DeviceError, match=r"^npu:0: "):
        WAYS[way](device, mix(), Options())


def test_what_fails_while_packing_is_raised(
    monkeypatch: pytest.MonkeyPatch, device: Device
) -> None:
    def broken(*given: object) -> None:
        raise OSError(5, "the mapping's disk is gone")

    monkeypatch.setattr("loaders.transfer.slots.pack", broken)
    with pytest.raises(OSError, match="disk is gone"):
        WAYS["pinned-ring"](device, mix(), SMALL)


# --- several devices ---


@pytest.mark.parametrize("bind", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_several_devices_get_it_all_at_once(way: str, bind: bool) -> None:
    settings.devices = 3
    devices = [open_device(f"npu:{index}") for index in range(3)]
    host = mix()
    done = transfer_to_all(devices, host, WAYS[way], SMALL, bind=bind)
    assert [each.device for each in done.each] == ["npu:0", "npu:1", "npu:2"]
    for index, each in enumerate(done.each):
        assert wrong(each.tensors, host) == []
        assert {tensor.device.index for _, tensor in each.tensors} == {index}
        assert each.seconds.transfer <= done.seconds
    assert done.nbytes == 3 * done.each[0].nbytes
    assert done.bound == (False, False, False)  # the simulated one is at no node
    said = [f"npu:{index}: not bound: the device's NUMA node isn't known" for index in range(3)]
    assert list(done.notes) == (said if bind else [])


def test_none_starts_before_all_are_ready() -> None:
    settings.devices = 2
    devices = [open_device("npu:0"), open_device("npu:1")]
    settings.rate = 10 << 20
    done = transfer_to_all(devices, mix(400_000), WAYS["whole"], Options(), bind=False)
    one, other = done.each
    assert one.started < other.ended
    assert other.started < one.ended


def test_the_first_error_of_any_device_is_raised_and_none_waits_for_it() -> None:
    settings.devices = 3
    devices = [open_device(f"npu:{index}") for index in range(3)]
    settings.tries = {}
    settings.fail = {"allocate": "7"}
    with pytest.raises(DeviceError, match="out of memory"):
        transfer_to_all(devices, mix(), WAYS["pageable"], Options(), bind=False)


def test_no_device_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="no device"):
        transfer_to_all([], mix(), WAYS["whole"], Options(), bind=False)
