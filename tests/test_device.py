"""The device interface without an accelerator: names, the host as a device, finding and identity.
What holds for devices that work on their own is in tests/simulated/check_device.py."""

from __future__ import annotations

import os
import subprocess
import sys
import types
import warnings
from pathlib import Path

import pytest
import torch

from loaders.device import discover, pinned
from loaders.device.accelerator import Accelerator
from loaders.device.cpu import HostDevice
from loaders.device.discover import device_texts, open_device
from loaders.device.faults import DeviceError, DeviceTextError
from loaders.device.identity import identity, pci_link
from loaders.device.interface import Wanted, parse_device
from loaders.device.numa import bindable, bound_to, node_cores
from loaders.device.pinned import PinProbe, ordinary, pinned_or_ordinary, probe_pin, take_pinned


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("cpu", Wanted(kind="cpu")),
        ("auto", Wanted(kind="auto")),
        ("cuda", Wanted(kind="cuda")),
        ("cuda:0", Wanted(kind="cuda", index=0)),
        ("cuda:12", Wanted(kind="cuda", index=12)),
        ("npu:3", Wanted(kind="npu", index=3)),
    ],
)
def test_devices_are_named_as_in_torch(text: str, wanted: Wanted) -> None:
    assert parse_device(text) == wanted


@pytest.mark.parametrize(
    "text",
    ["", "gpu", "CUDA", "cuda:", "cuda:-1", "cuda:01", "cuda:1.5", "cuda: 1", "npu:x", "cpu:1",
     "auto:0", "xpu", "cuda:0\n", "cuda,npu"],
)  # fmt: skip
def test_a_text_that_names_no_device_is_refused_with_those_that_do(text: str) -> None:
    with pytest.raises(DeviceTextError, match=r"expected auto, cpu, cuda, cuda:N, npu or npu:N"):
        open_device(text)


def test_the_host_is_a_device_without_anything_to_wait_for() -> None:
    device = open_device("cpu")
    target, source = device.empty(10), torch.arange(10, dtype=torch.uint8)
    first, last = device.event(), device.event()
    with pytest.raises(DeviceError, match="never set"):
        last.seconds_since(first)
    stream = device.stream()
    with device.on(stream):
        first.mark(stream)
        device.copy_(target, source, non_blocking=True)
        last.mark(stream)
    last.wait()
    device.synchronize()
    assert torch.equal(target, source)
    assert last.seconds_since(first) >= 0
    assert device.memory().total is None
    with pytest.raises(DeviceError, match="nothing to pin"):
        device.empty_pinned(10)
    with pytest.raises(DeviceError, match=r"cpu: copying 9 bytes failed"):
        device.copy_(target, source[:9])


# --- finding ---


def pretend(
    monkeypatch: pytest.MonkeyPatch, kind: str | None, count: int = 1, *, available: bool = True
) -> None:
    found = None if kind is None else types.SimpleNamespace(type=kind)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: found)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: available)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)


def test_auto_is_the_cpu_where_there_is_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, available in [(None, True), ("cuda", False), ("mps", True)]:
        pretend(monkeypatch, kind, available=available)
        assert open_device("auto").text == "cpu"
        assert open_device("auto").notes == ()
        assert device_texts() == []


def test_auto_tells_why_an_accelerator_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch warns of a driver that is too old, and says that no device is available."""
    pretend(monkeypatch, "cuda")

    def look() -> bool:
        warnings.warn("CUDA initialization: The NVIDIA driver is too old\nmore", stacklevel=2)
        return False

    monkeypatch.setattr(torch.accelerator, "is_available", look)
    (note,) = open_device("auto").notes
    assert note == "no accelerator is used: CUDA initialization: The NVIDIA driver is too old"


def test_a_number_that_is_not_there_is_told_with_those_that_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend(monkeypatch, "cuda", 4)
    with pytest.raises(DeviceError, match=r"cuda:4: there is no such device; .*cuda:0 to cuda:3"):
        open_device("cuda:4")
    assert device_texts() == ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (AssertionError("Torch not compiled with CUDA enabled"), "not-compiled", "without it"),
        (RuntimeError("Found no NVIDIA driver on your system."), "no-driver", "no driver"),
        (RuntimeError("The NVIDIA driver on your system is too old"), "old-driver", "older than"),
        (RuntimeError("what is this"), "missing", "there is no such device; there is cpu"),
    ],
)
def test_why_there_is_no_cuda(
    monkeypatch: pytest.MonkeyPatch, raised: Exception, code: str, said: str
) -> None:
    def refuse(*given: object, **more: object) -> None:
        raise raised

    pretend(monkeypatch, None)
    monkeypatch.setattr(discover.torch, "empty", refuse)
    with pytest.raises(DeviceError, match=said) as caught:
        open_device("cuda")
    assert caught.value.code == code


def test_why_there_is_no_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "cuda")
    monkeypatch.setattr(discover.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DeviceError, match=r"there is cuda and cpu; torch_npu isn't installed"):
        open_device("npu")
    monkeypatch.setattr(discover.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    with pytest.raises(DeviceError, match=r"not loaded, because of TORCH_DEVICE_BACKEND_AUTOLOAD"):
        open_device("npu")
    monkeypatch.delenv("TORCH_DEVICE_BACKEND_AUTOLOAD")
    with pytest.raises(DeviceError, match=r"shows no device: look at `npu-smi info`"):
        open_device("npu")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "busy"),
        ("CUDA driver version is insufficient for CUDA runtime version", "old-driver"),
        ("Error 802: system not yet initialized", "not-ready"),
    ],
)
@pytest.mark.parametrize("asked", ["auto", "cuda", "cuda:0"])
def test_a_device_that_cannot_be_started_is_named_and_never_replaced(
    monkeypatch: pytest.MonkeyPatch, asked: str, text: str, code: str
) -> None:
    def refuse(device: torch.device) -> None:
        raise RuntimeError(text)

    pretend(monkeypatch, "cuda")
    monkeypatch.setattr(torch, "get_device_module", refuse)
    with pytest.raises(DeviceError, match=r"^cuda:0: starting it failed") as caught:
        open_device(asked)
    assert caught.value.code == code


# --- identity ---


def fake_bus(root: Path, address: str, **facts: str) -> None:
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    for name, value in facts.items():
        (folder / name).write_text(f"{value}\n")


@pytest.mark.parametrize(
    ("speed", "generation"),
    [("2.5 GT/s PCIe", 1), ("8 GT/s", 3), ("16.0 GT/s PCIe", 4), ("32.0 GT/s PCIe", 5),
     ("64.0 GT/s PCIe", 6), ("Unknown", None), ("", None)],
)  # fmt: skip
def test_the_generation_of_a_link_follows_from_its_rate(
    tmp_path: Path, speed: str, generation: int | None
) -> None:
    fake_bus(tmp_path, "0000:3b:00.0", current_link_speed=speed, current_link_width="16")
    assert pci_link("0000:3B:00.0", tmp_path).generation == generation
    assert pci_link("0000:3b:00.0", tmp_path).width == 16


@pytest.mark.parametrize(("node", "known"), [("1", 1), ("0", 0), ("-1", None)])
def test_a_node_of_minus_one_is_not_known(tmp_path: Path, node: str, known: int | None) -> None:
    fake_bus(tmp_path, "0000:3b:00.0", numa_node=node, current_link_width="255")
    link = pci_link("0000:3b:00.0", tmp_path)
    assert (link.numa_node, link.width, link.max_width) == (known, None, None)


def accelerator(kind: str, module: object, name: str = "Some GPU") -> Accelerator:
    made = object.__new__(Accelerator)
    made.kind, made.index, made.text, made.name = kind, 0, f"{kind}:0", name
    made.module, made.simulated = module, name.startswith("simulated")
    return made


def cuda_module() -> types.SimpleNamespace:
    properties = types.SimpleNamespace(pci_bus_id=0x3B, pci_device_id=0, pci_domain_id=0)
    return types.SimpleNamespace(
        get_device_properties=lambda index: properties,
        mem_get_info=lambda index: (5, 80),
        memory_allocated=lambda index: 1,
        max_memory_allocated=lambda index: 2,
    )


def test_cuda_is_identified_by_its_address_on_the_bus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # not installed
    fake_bus(
        tmp_path, "0000:3b:00.0", current_link_speed="16.0 GT/s PCIe", current_link_width="8",
        max_link_speed="32.0 GT/s PCIe", max_link_width="16", numa_node="1",
    )  # fmt: skip
    found = identity(accelerator("cuda", cuda_module()), tmp_path)
    assert (found.name, found.simulated, found.pci_address) == ("Some GPU", False, "0000:3b:00.0")
    assert (found.generation, found.width, found.max_generation, found.max_width) == (4, 8, 5, 16)
    assert (found.numa_node, found.total_bytes, found.driver) == (1, 80, None)


class NvmlError(Exception):
    __module__ = "pynvml"


def fake_nvml(monkeypatch: pytest.MonkeyPatch, **changes: object) -> list[bytes]:
    asked: list[bytes] = []

    def handle(address: bytes) -> str:
        asked.append(address)
        return "handle"

    functions = {
        "NVMLError": NvmlError,
        "nvmlInit": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: b"570.1",
        "nvmlDeviceGetHandleByPciBusId": handle,
        "nvmlDeviceGetCurrPcieLinkGeneration": lambda handle: 5,
        "nvmlDeviceGetCurrPcieLinkWidth": lambda handle: 16,
        "nvmlDeviceGetMaxPcieLinkGeneration": lambda handle: 5,
        "nvmlDeviceGetMaxPcieLinkWidth": lambda handle: 16,
        **changes,
    }
    module = types.ModuleType("pynvml")
    for name, function in functions.items():
        setattr(module, name, function)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return asked


def refuse_nvml(*given: object) -> None:
    raise NvmlError("not supported")


def test_nvml_is_asked_by_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake_nvml(monkeypatch)
    found = identity(accelerator("cuda", cuda_module()), tmp_path)
    assert asked == [b"0000:3b:00.0"]
    assert (found.driver, found.generation, found.width) == ("570.1", 5, 16)


@pytest.mark.parametrize("what", ["nvmlInit", "nvmlDeviceGetHandleByPciBusId"])
def test_what_nvml_refuses_is_null(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    fake_nvml(monkeypatch, **{what: refuse_nvml})
    found = identity(accelerator("cuda", cuda_module()), tmp_path)
    assert found.generation is None
    assert found.total_bytes == 80


def test_one_ascend_on_the_bus_is_the_npu_and_two_are_not_told_apart(tmp_path: Path) -> None:
    module = cuda_module()
    module.get_device_properties = lambda index: types.SimpleNamespace(name="x")
    facts = {"vendor": "0x19e5", "class": "0x120000", "numa_node": "3"}
    fake_bus(tmp_path, "0000:c1:00.0", **facts)
    fake_bus(tmp_path, "0000:01:00.0", vendor="0x19e5", **{"class": "0x030000"})  # its display
    assert identity(accelerator("npu", module), tmp_path).numa_node == 3
    fake_bus(tmp_path, "0000:c2:00.0", **facts)
    found = identity(accelerator("npu", module), tmp_path)
    assert found.numa_node is found.pci_address is None


def test_the_identity_of_a_simulated_device_says_so_and_has_no_hardware(tmp_path: Path) -> None:
    fake_bus(tmp_path, "0000:c1:00.0", vendor="0x19e5", numa_node="3", **{"class": "0x120000"})
    found = identity(accelerator("npu", cuda_module(), name="simulated NPU"), tmp_path)
    assert found.simulated is True
    assert found.pci_address is found.numa_node is found.runtime is None


def test_the_host_has_no_link() -> None:
    found = identity(HostDevice())
    assert (found.kind, found.name, found.simulated) == ("cpu", "host memory", False)
    assert found.pci_address is None


# --- memory nodes ---


def fake_node(root: Path, node: int, cores: str) -> None:
    folder = root / f"sys/devices/system/node/node{node}"
    folder.mkdir(parents=True)
    (folder / "cpulist").write_text(f"{cores}\n")


def test_a_thread_is_bound_to_the_usable_cores_of_a_node(tmp_path: Path) -> None:
    own = sorted(os.sched_getaffinity(0))
    fake_node(tmp_path, 0, f"{own[0]},4000-4001")
    fake_node(tmp_path, 1, "4000-4001")
    fake_node(tmp_path, 2, "nonsense")
    assert node_cores(0, tmp_path) == {own[0], 4000, 4001}
    cores, reason = bindable(0, tmp_path)
    assert (cores, reason) == ({own[0]}, None)
    with bound_to(cores):
        assert os.sched_getaffinity(0) == {own[0]}
    assert sorted(os.sched_getaffinity(0)) == own
    with bound_to(frozenset()):
        assert sorted(os.sched_getaffinity(0)) == own
    assert "may use none of the cores of NUMA node 1" in (bindable(1, tmp_path)[1] or "")
    for node in (2, 3):
        assert f"no cores of NUMA node {node}" in (bindable(node, tmp_path)[1] or "")
    assert "isn't known" in (bindable(None, tmp_path)[1] or "")


# --- pinned memory ---


def test_ordinary_memory_begins_at_a_page_and_says_why_it_is_not_pinned() -> None:
    host = ordinary(5001, "for a reason")
    assert (host.asked, host.got, host.pinned, host.reason) == (5001, 0, False, "for a reason")
    assert host.tensor.shape == (5001,)
    assert host.tensor.numpy().ctypes.data % 4096 == 0
    assert pinned_or_ordinary(HostDevice(), 8).reason == f"cpu: {HOST}"
    with pytest.raises(DeviceError, match="there isn't enough memory"):
        ordinary(1 << 60, "x")


HOST = "the device is host memory: there is nothing to pin"


def test_what_the_allocator_took_is_told_from_its_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = iter([100, 8292])
    module = types.SimpleNamespace(host_memory_stats=lambda: {"active_bytes.current": next(sums)})
    made = torch.empty(5000, dtype=torch.uint8)
    monkeypatch.setattr(pinned.torch, "empty", lambda *given, **more: made)
    assert take_pinned(module, 5000).got == 8192
    assert take_pinned(types.SimpleNamespace(), 5000).got is None


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ('print(\'{"ok": true, "got": 64, "reason": null}\')', None),
        ('print(\'noise\'); print(\'{"ok": false, "got": null, "reason": "no"}\')', "no"),
        ("import sys; sys.exit('it broke')", "ended with exit 1: it broke"),
        ("print('[1]')", "ended with exit 0: no message"),
        ("import os; os.kill(os.getpid(), 6)", "ended with signal 6"),
    ],
)
def test_c70_whatever_a_child_says_or_does_is_an_answer(
    monkeypatch: pytest.MonkeyPatch, program: str, reason: str | None
) -> None:
    real = subprocess.run

    def run(command: list[str], **given: object) -> object:
        assert command[1:] == ["-m", "loaders.device.pinned", "cuda:0", "64"]
        return real([sys.executable, "-c", program], **given)

    monkeypatch.setattr(pinned.subprocess, "run", run)
    found = probe_pin("cuda:0", 64)
    assert found.ok == (reason is None)
    assert (reason is None and found.got == 64) or (reason or "") in (found.reason or "")


def test_c70_no_child_at_all_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object, **more: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(pinned.subprocess, "run", refuse)
    assert "no child process could be started" in (probe_pin("cuda:0", 64).reason or "")


def test_no_child_is_asked_for_the_host() -> None:
    assert probe_pin("cpu", 64) == PinProbe(ok=False, asked=64, reason=HOST)
