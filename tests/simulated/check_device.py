"""The device interface on a device that works on its own, and every way in which it fails."""

from __future__ import annotations

import gc
import json
import sys
from dataclasses import asdict

import pytest
import torch
from simulated_npu import streams
from simulated_npu.memory import POISON, pinned_bytes
from simulated_npu.settings import settings
from simulated_npu.streams import held
from tiny_device import noise

from loaders.device.discover import device_texts, open_device
from loaders.device.faults import DeviceError
from loaders.device.identity import identity
from loaders.device.interface import Device
from loaders.device.pinned import _child, pinned_each, pinned_or_ordinary, probe_pin

MIB = 1 << 20


def test_it_is_found_and_is_called_simulated() -> None:
    settings.devices = 3
    assert device_texts() == ["npu:0", "npu:1", "npu:2"]
    for text, index in [("auto", 0), ("npu", 0), ("npu:2", 2)]:
        device = open_device(text)
        assert (device.kind, device.index, device.text) == ("npu", index, f"npu:{index}")
        assert device.name.startswith("simulated")
        assert device.simulated
        told = json.loads(json.dumps(asdict(identity(device))))
        assert told["simulated"] is True
        assert told["name"].startswith("simulated")
        assert told["pci_address"] is told["numa_node"] is told["driver"] is None


def test_what_is_missing_is_one_clear_error() -> None:
    with pytest.raises(DeviceError, match=r"npu:4: there is no such device; there is npu:0, and"):
        open_device("npu:4")
    settings.devices = 2
    with pytest.raises(DeviceError, match="there is npu:0 to npu:1, and cpu"):
        open_device("npu:2")
    with pytest.raises(DeviceError, match=r"cuda: ") as caught:
        open_device("cuda")
    assert caught.value.code in ("missing", "not-compiled", "no-driver")
    settings.devices = 0
    assert device_texts() == []
    assert open_device("auto").kind == "cpu"
    with pytest.raises(DeviceError, match="torch_npu isn't installed") as caught:
        open_device("npu")
    assert caught.value.code == "missing"


def test_one_that_is_there_and_cannot_be_started_is_an_error_also_for_auto() -> None:
    settings.fail = {"allocate": "1"}
    with pytest.raises(DeviceError, match=r"npu:0: starting it failed: there isn't enough memory"):
        open_device("auto")


def test_opening_it_pays_for_the_first_copy() -> None:
    """torch imports its distributed tensors when a device of this kind is first copied to."""
    for text in ("npu", "auto"):
        settings.tries = {}
        open_device(text)
        assert settings.tries["copy"] == 1
        assert "torch.distributed.tensor" in sys.modules
    settings.tries, settings.fail = {}, {"copy": "1"}
    with pytest.raises(DeviceError, match=r"npu:0: copying 1 bytes failed"):
        open_device("npu")


def test_a_copy_is_there_only_after_it_was_waited_for(device: Device) -> None:
    host = device.empty_pinned(5000)
    host.tensor.copy_(noise(5000, 1))
    target = device.empty(5000)
    with held():
        device.copy_(target, host.tensor, non_blocking=True)
        assert set(target.cpu().tolist()) == {POISON}
    device.synchronize()
    assert torch.equal(target.cpu(), host.tensor)


def test_pinned_memory_that_is_changed_too_early_arrives_changed(device: Device) -> None:
    host = device.empty_pinned(1000)
    target = device.empty(1000)
    with held():
        device.copy_(target, host.tensor, non_blocking=True)
        host.tensor.fill_(7)
    device.synchronize()
    assert set(target.cpu().tolist()) == {7}


def test_pageable_memory_is_free_again_when_the_call_returns(device: Device) -> None:
    source, target = noise(1000, 2), device.empty(1000)
    wanted = source.clone()
    with held():
        device.copy_(target, source, non_blocking=True)
        source.fill_(7)
    device.synchronize()
    assert torch.equal(target.cpu(), wanted)


def test_a_blocking_copy_is_there_when_it_returns(device: Device) -> None:
    source, target = noise(1000, 3), device.empty(1000)
    device.copy_(target, source)
    assert torch.equal(target.cpu(), source)


def test_a_mark_is_reached_after_what_was_queued_before_it(device: Device) -> None:
    settings.rate = 100 * MIB
    host, target = device.empty_pinned(MIB), device.empty(MIB)
    host.tensor.copy_(noise(MIB, 4))
    stream = device.stream()
    before, after, never = device.event(), device.event(), device.event()
    with held(), device.on(stream):
        before.mark(stream)
        device.copy_(target, host.tensor, non_blocking=True)
        after.mark(stream)
        with pytest.raises(DeviceError, match="hasn't reached") as caught:
            after.seconds_since(before)
        assert caught.value.code == "not-reached"
    after.wait()
    assert torch.equal(target.cpu(), host.tensor)
    assert after.seconds_since(before) >= MIB / settings.rate
    never.wait()  # nothing was queued: nothing to wait for
    with pytest.raises(DeviceError, match="hasn't reached"):
        after.seconds_since(never)


def test_a_side_stream_is_not_the_current_one(device: Device) -> None:
    side = device.stream()
    assert device.current_stream() is not side
    with device.on(side):
        assert device.current_stream() is side
    assert device.current_stream() is not side


def test_views_of_its_memory_share_it(device: Device) -> None:
    whole = device.empty(64)
    device.copy_(whole, noise(64, 5))
    part = whole.narrow(0, 8, 32).view(torch.float32).view(2, 4)
    device.copy_(whole.narrow(0, 8, 32), noise(32, 6))
    assert torch.equal(part.cpu().view(torch.uint8).reshape(-1), noise(32, 6))


def test_memory_figures_follow_what_is_allocated(device: Device) -> None:
    gc.collect()
    before = device.memory()
    assert before.total == settings.memory
    kept = device.empty(3 * MIB)
    during = device.memory()
    assert during.allocated == (before.allocated or 0) + 3 * MIB
    assert during.free == during.total - during.allocated
    assert during.peak is not None
    assert during.peak >= during.allocated
    del kept
    assert device.memory().allocated == before.allocated


def test_pinned_memory_says_what_was_asked_and_what_was_got(device: Device) -> None:
    before = pinned_bytes()
    host = device.empty_pinned(5000)
    assert (host.asked, host.got, host.pinned) == (5000, 8192, True)
    assert host.tensor.shape == (5000,)
    assert pinned_bytes() == before + 5000
    part = host.part(8, 16)
    del host
    assert pinned_bytes() == before + 5000  # a view keeps it
    del part
    assert pinned_bytes() == before


# --- what fails ---


def test_device_memory_that_runs_out_is_named(device: Device) -> None:
    with pytest.raises(
        DeviceError, match=r"npu:0: allocating 2147483648 bytes.*out of memory"
    ) as c:
        device.empty(2 << 30)
    assert c.value.code == "no-memory"
    assert device.empty(8).nbytes == 8  # and the next one works


def test_a_copy_that_is_refused_is_named(device: Device) -> None:
    target = device.empty(8)
    settings.fail = {"copy": "1"}
    with pytest.raises(DeviceError, match=r"npu:0: copying 8 bytes failed.*507899"):
        device.copy_(target, noise(8, 7))


def test_a_device_that_is_lost_says_so_when_it_is_waited_for_and_from_then_on(
    device: Device,
) -> None:
    target, host = device.empty(8), device.empty_pinned(8)
    settings.fail = {"lost": "1"}
    with held():
        device.copy_(target, host.tensor, non_blocking=True)  # nothing is known yet
    for what in (device.synchronize, lambda: device.empty(8), device.memory):
        with pytest.raises(DeviceError, match="lost") as caught:
            what()
        assert caught.value.code == "lost"
    streams.reset()


@pytest.mark.parametrize("nbytes", [1, 5000])
def test_c69_a_failed_pin_falls_back_to_pageable_memory_and_says_so(
    device: Device, nbytes: int
) -> None:
    settings.fail = {"pin": "1"}
    host = pinned_or_ordinary(device, nbytes)
    assert (host.pinned, host.asked, host.got) == (False, nbytes, 0)
    assert host.tensor.nbytes == nbytes
    assert host.reason is not None
    assert "aclrtMallocHost" in host.reason
    assert pinned_or_ordinary(device, nbytes).pinned  # the first try only was to fail


def test_after_one_refusal_no_other_pin_is_tried(device: Device) -> None:
    settings.fail = {"pin": "2"}
    found = pinned_each(device, [10, 20, 30, 40])
    assert [each.pinned for each in found] == [True, False, False, False]
    assert settings.tries["pin"] == 2


def test_c72_nothing_is_pinned_for_no_bytes(device: Device) -> None:
    settings.fail = {"pin": "always"}
    assert pinned_or_ordinary(device, 0).tensor.nbytes == 0
    assert "pin" not in settings.tries


def test_c70_a_child_tries_first_and_what_happens_to_it_stays_there(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = probe_pin("npu:0", 5000)
    assert (found.ok, found.asked, found.got, found.reason) == (True, 5000, 8192, None)
    monkeypatch.setenv("SIMULATED_NPU_FAIL", "pin:crash")
    found = probe_pin("npu:0", 5000)
    assert not found.ok
    assert "ended with signal 9" in (found.reason or "")
    host = pinned_or_ordinary(device, 5000, found)
    assert (host.pinned, host.reason) == (False, found.reason)
    assert "pin" not in settings.tries  # this process never tried, and is sound
    device.synchronize()


def test_c70_a_child_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMULATED_NPU_FAIL", "pin:hang")
    found = probe_pin("npu:0", 64, timeout=0.3)
    assert not found.ok
    assert found.reason == "a child process that pinned 64 bytes gave no answer in 0.3 s"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("npu:7", "npu:7: there is no such device"),
        ("npu:0", "aclrtMallocHost"),
        ("tpu", "expected"),
    ],
)
def test_what_a_child_finds_is_one_line(
    capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    """The child's part, here in this process."""
    settings.fail = {"pin": "always"}
    assert _child(text, 64) == 1
    (line,) = capsys.readouterr().out.splitlines()
    told = json.loads(line)
    assert told["ok"] is False
    assert said in told["reason"]
