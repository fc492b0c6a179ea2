"""The ways to a device on the cpu, where the device is a second buffer of host memory; what holds
for devices that work on their own is in tests/simulated/check_transfer.py."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tiny_device import mix, noise, wrong
from tiny_loaders import file_bytes, tricky

from loaders.checkpoint.manifest import Checkpoint
from loaders.device.cpu import HostDevice
from loaders.device.discover import open_device
from loaders.device.faults import DeviceError
from loaders.device.interface import raw_bytes
from loaders.io.errors import TruncatedError
from loaders.transfer.mapping import mapped_tensors
from loaders.transfer.several import transfer_to_all
from loaders.transfer.values import CLOCKS_SLACK, Options, Seconds, clocks_agree
from loaders.transfer.ways import WAYS

ROOT = Path(__file__).parent.parent
SMALL = Options(slots=3, slot_bytes=1024, bucket_bytes=2048, packers=2)


@pytest.mark.parametrize("options", [SMALL, Options()], ids=["small", "default"])
@pytest.mark.parametrize("way", WAYS)
def test_every_byte_arrives_in_memory_of_its_own(way: str, options: Options) -> None:
    host = mix()
    done = WAYS[way](open_device("cpu"), host, options)
    assert wrong(done.tensors, host) == []
    for _, tensor in host:
        raw_bytes(tensor).fill_(0)
    assert wrong(done.tensors, mix()) == []  # it was a copy


@pytest.mark.parametrize("way", WAYS)
def test_on_the_cpu_it_is_called_a_memory_copy_and_nothing_is_pinned(way: str) -> None:
    done = WAYS[way](HostDevice(), mix(), Options())
    assert (done.device, done.copies_are, done.simulated) == ("cpu", "memory copy", False)
    assert (done.pinned, done.pinned_got or 0) == (False, 0)
    asks = way not in ("pageable", "mapped")
    said = ["not pinned, copied from pageable memory: cpu: the device is host memory: there is"]
    assert [note[: len(said[0])] for note in done.notes] == (said if asks else [])
    assert (done.seconds.pin is not None) == asks


@pytest.mark.parametrize("way", WAYS)
def test_empty_checkpoints_and_empty_tensors_arrive(way: str) -> None:
    for host in ([], [("e", torch.empty(0, 3, dtype=torch.bfloat16))]):
        done = WAYS[way](HostDevice(), host, SMALL)
        assert wrong(done.tensors, host) == []
        assert done.copies == 0


@pytest.mark.parametrize("way", WAYS)
def test_a_tensor_without_one_run_of_bytes_is_refused_by_name(way: str) -> None:
    host = [("fine", noise(8, 1)), ("turned", torch.zeros(3, 4).t())]
    with pytest.raises(ValueError, match=r"tensor 'turned': .*isn't contiguous"):
        WAYS[way](HostDevice(), host, SMALL)


@pytest.mark.parametrize("way", WAYS)
def test_the_clock_starts_when_all_is_ready(way: str) -> None:
    called: list[int] = []
    options = Options(ready=lambda: called.append(1))
    WAYS[way](HostDevice(), mix(), options)
    assert called == [1]


def test_several_devices_on_the_cpu_share_nothing() -> None:
    host = mix()
    done = transfer_to_all([HostDevice(), HostDevice()], host, WAYS["coalesced"], SMALL, bind=True)
    for each in done.each:
        assert wrong(each.tensors, host) == []
    assert done.nbytes == 2 * done.each[0].nbytes
    assert done.seconds >= max(each.seconds.transfer for each in done.each)
    assert all("NUMA node isn't known" in note for note in done.notes)


def test_a_bound_thread_runs_at_its_devices_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = min(os.sched_getaffinity(0))
    folder = tmp_path / "sys/devices/system/node/node1"
    folder.mkdir(parents=True)
    (folder / "cpulist").write_text(f"{core}\n")
    monkeypatch.setattr(
        "loaders.transfer.several.identity", lambda device, root: SimpleNamespace(numa_node=1)
    )
    seen: list[set[int]] = []
    options = Options(ready=lambda: seen.append(os.sched_getaffinity(0)))
    before = os.sched_getaffinity(0)
    devices, host = [HostDevice(), HostDevice()], mix()
    done = transfer_to_all(devices, host, WAYS["whole"], options, bind=True, root=tmp_path)
    assert (done.bound, done.notes) == ((True, True), ())
    assert seen == [{core}]  # once for all, in one of the threads
    done = transfer_to_all(devices, host, WAYS["whole"], options, bind=False, root=tmp_path)
    assert (done.bound, done.notes) == ((False, False), ())
    assert seen[1:] == [before]
    assert os.sched_getaffinity(0) == before


def test_what_goes_wrong_when_all_are_ready_is_raised() -> None:
    def refuse() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        transfer_to_all([HostDevice()] * 3, mix(), WAYS["whole"], Options(ready=refuse), bind=False)


# --- mapped pages ---


def test_mapped_tensors_are_the_files_bytes_also_after_the_transfer(tmp_path: Path) -> None:
    checkpoint = tricky(tmp_path)
    with mapped_tensors(checkpoint) as host:
        assert [name for name, _ in host] == [spec.name for spec in checkpoint.tensors]
        done = WAYS["mapped"](HostDevice(), host, Options())
    assert done.notes == ()  # only an NPU needs staging
    for (_, tensor), spec in zip(done.tensors, checkpoint.tensors, strict=True):
        assert bytes(raw_bytes(tensor).numpy()) == file_bytes(checkpoint, spec)


def test_a_file_that_was_cut_off_is_named_before_it_is_mapped(tmp_path: Path) -> None:
    checkpoint: Checkpoint = tricky(tmp_path)
    path = Path(checkpoint.files[1].path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(TruncatedError, match=r"a-2\.safetensors"), mapped_tensors(checkpoint):
        pass


def test_a_tensor_outlives_the_mapping_that_it_lies_in(tmp_path: Path) -> None:
    checkpoint = tricky(tmp_path)
    with mapped_tensors(checkpoint) as host:
        kept = dict(host)["y.big"]
    spec = next(spec for spec in checkpoint.tensors if spec.name == "y.big")
    assert bytes(raw_bytes(kept).numpy()) == file_bytes(checkpoint, spec)


# --- what can't work ---


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"slots": 0}, "slots must be at least 1, got 0"),
        ({"slot_bytes": 63}, "slot_bytes must be at least 64"),
        ({"bucket_bytes": 511}, "bucket_bytes must be at least 512"),
        ({"packers": 0}, "packers must be at least 1"),
        ({"slots": 2, "packers": 2}, "2 slots for 2 packers: expected at least 3"),
    ],
)
def test_options_that_cannot_work_are_refused(given: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Options(**given)


def test_c69_memory_that_is_not_there_is_named() -> None:
    with pytest.raises(DeviceError, match=r"^cpu: allocating \d+ bytes failed: there isn't enough"):
        HostDevice().empty(1 << 60)


def test_clocks_agree_within_what_the_host_sees_more() -> None:
    def agree(host: float, device: float) -> bool:
        return clocks_agree(Seconds(allocate=0.0, transfer=host, device=device))

    assert agree(1.0, 0.96)
    assert not agree(1.0, 0.9)
    assert not agree(0.9, 1.0)
    assert agree(CLOCKS_SLACK, 0.0)  # tiny transfers: all of it is queueing
    assert not agree(0.0, 1.0)


# --- calls that some backends accept and ignore stay off these paths ---

BANNED = {"data_ptr", "pin_memory", "is_pinned", "record_stream"}
BANNED_OF_TORCH = {"Stream", "Event"}
ADAPTERS = {"loaders/device/pinned.py": {"pin_memory"}}  # the one place that pins


def banned_uses(path: Path) -> set[str]:
    """The banned attributes, keyword arguments and names that a file uses."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            of_torch = isinstance(node.value, ast.Name) and node.value.id == "torch"
            of_accelerator = (
                isinstance(node.value, ast.Attribute) and node.value.attr == "accelerator"
            )
            if node.attr in BANNED or (of_torch and node.attr in BANNED_OF_TORCH):
                found.add(node.attr)
            if of_accelerator and node.attr not in FINDS:
                found.add(f"accelerator.{node.attr}")
        elif isinstance(node, ast.keyword) and node.arg in BANNED:
            found.add(node.arg)
        elif isinstance(node, ast.ImportFrom) and node.module == "torch":
            found.update({alias.name for alias in node.names} & BANNED_OF_TORCH)
        elif isinstance(node, ast.Constant) and node.value in BANNED:
            found.add(str(node.value))  # getattr(tensor, "data_ptr")
    return found


FINDS = {"current_accelerator", "is_available", "device_count"}
PATHS = [
    path
    for pattern in ("device", "transfer", "pipeline")
    for path in sorted((ROOT / "loaders" / pattern).glob("*.py"))
]


@pytest.mark.parametrize("path", PATHS, ids=[str(path.relative_to(ROOT)) for path in PATHS])
def test_device_calls_go_through_the_adapter(path: Path) -> None:
    allowed = ADAPTERS.get(str(path.relative_to(ROOT)), set())
    assert banned_uses(path) - allowed == set()


def test_the_lint_sees_every_form_of_it(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text(
        "import torch\nfrom torch import Event\n"
        "torch.Stream()\nx.data_ptr()\ntorch.empty(1, pin_memory=True)\nx.pin_memory()\n"
        "torch.accelerator.synchronize()\ngetattr(x, 'record_stream')\nx.is_pinned()\n"
    )
    assert banned_uses(path) == {
        "Event", "Stream", "data_ptr", "pin_memory", "accelerator.synchronize", "record_stream",
        "is_pinned",
    }  # fmt: skip
    path.write_text("module.Stream(device)\nmodule.Event()\ntorch.accelerator.device_count()\n")
    assert banned_uses(path) == set()
