"""Which device it was, on which link and at which memory: what a figure is worthless without.

CUDA's facts come from torch and, where it is installed, nvidia-ml-py; Ascend's from torch_npu;
those of the link from /sys/bus/pci where the device's address is known. The rest is null.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from loaders.device.accelerator import Accelerator
from loaders.device.faults import RAISED
from loaders.device.interface import Device
from loaders.system.files import Root, listed, number, text, under

# PCIe's transfer rates a lane, in GT/s, by generation: PCI Express Base Specification.
_GENERATIONS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
_HUAWEI = "0x19e5"
_PROCESSING = "0x1200"  # PCI class of processing accelerators, which its displays aren't


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """`runtime` is CUDA's or CANN's version, `total_bytes` the device's memory. PCIe links slow
    down when idle: `generation` and `width` are those now, `max_...` what both ends can do."""

    kind: str
    index: int
    name: str
    simulated: bool
    driver: str | None = None
    runtime: str | None = None
    total_bytes: int | None = None
    pci_address: str | None = None
    generation: int | None = None
    width: int | None = None
    max_generation: int | None = None
    max_width: int | None = None
    numa_node: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A PCI device's link and memory node, as /sys has them; None for what it doesn't say."""

    generation: int | None = None
    width: int | None = None
    max_generation: int | None = None
    max_width: int | None = None
    numa_node: int | None = None


def identity(device: Device, root: Root = "/") -> Identity:
    """What is known of a device. `root`: where /sys is; a fake tree in tests. Never raises for a
    fact that can't be had."""
    plain = Identity(
        kind=device.kind, index=device.index, name=device.name, simulated=device.simulated
    )
    if not isinstance(device, Accelerator):
        return plain
    nvml = None if device.simulated or device.kind != "cuda" else _nvml()
    address = None if device.simulated else _address(device, root)
    link = pci_link(address, root) if address else Link()
    told = _nvml_link(nvml, address) if nvml is not None and address else Link()
    return Identity(
        kind=device.kind,
        index=device.index,
        name=device.name,
        simulated=device.simulated,
        driver=_nvml_driver(nvml),
        runtime=_runtime(device),
        total_bytes=_known(lambda: device.memory().total),
        pci_address=address,
        generation=told.generation or link.generation,
        width=told.width or link.width,
        max_generation=told.max_generation or link.max_generation,
        max_width=told.max_width or link.max_width,
        numa_node=link.numa_node,
    )


def pci_link(address: str, root: Root = "/") -> Link:
    """The link of the PCI device at `address` ("0000:3b:00.0")."""
    folder = under(root, "/sys/bus/pci/devices") / address.lower()
    node = number(folder / "numa_node")
    return Link(
        generation=_generation(folder / "current_link_speed"),
        width=_width(folder / "current_link_width"),
        max_generation=_generation(folder / "max_link_speed"),
        max_width=_width(folder / "max_link_width"),
        numa_node=node if node is not None and node >= 0 else None,
    )


def _generation(path: Path) -> int | None:
    speed = (text(path) or "").partition(" ")[0]  # "16.0 GT/s PCIe"; older kernels: "8 GT/s"
    return _GENERATIONS.get(speed if "." in speed else f"{speed}.0")


def _width(path: Path) -> int | None:
    lanes = number(path)
    return lanes if lanes and lanes < 255 else None  # 0 and 255: no link, or not told


def _address(device: Accelerator, root: Root) -> str | None:
    """The device's PCI address. torch tells it for CUDA; Ascend's numbers can't be told from the
    order on the bus, except where there is only one."""
    properties = _known(lambda: device.module.get_device_properties(device.index))
    bus = getattr(properties, "pci_bus_id", None)
    if isinstance(bus, int):
        domain = int(getattr(properties, "pci_domain_id", 0))
        slot = int(getattr(properties, "pci_device_id", 0))
        return f"{domain:04x}:{bus:02x}:{slot:02x}.0"
    if device.kind != "npu":
        return None
    base = under(root, "/sys/bus/pci/devices")
    found = [name for name in listed(base) if _is_ascend(base / name)]
    return found[0] if len(found) == 1 else None


def _is_ascend(folder: Path) -> bool:
    kind = (text(folder / "class") or "")[:6]
    return text(folder / "vendor") == _HUAWEI and kind == _PROCESSING


def _runtime(device: Accelerator) -> str | None:
    version: Any = torch.version
    if device.simulated:
        return None
    if device.kind == "cuda":
        found = version.cuda or getattr(version, "hip", None)
    else:
        found = getattr(version, "cann", None)  # set by torch_npu
    return None if found is None else str(found)


def _known(ask: Any) -> Any:
    """The answer, or None where the backend has none."""
    try:
        return ask()
    except (*RAISED, TypeError, ValueError):
        return None
    except Exception as error:
        if type(error).__module__.split(".")[0] in ("pynvml", "loaders"):
            return None
        raise


def _nvml() -> Any | None:
    """nvidia-ml-py, started; None where it isn't installed or finds no driver."""
    try:
        module: Any = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        module.nvmlInit()
    except module.NVMLError:
        return None
    return module


def _nvml_driver(module: Any | None) -> str | None:
    found = None if module is None else _known(module.nvmlSystemGetDriverVersion)
    return found.decode() if isinstance(found, bytes) else found


def _nvml_link(module: Any, address: str) -> Link:
    # By address: NVML doesn't know of CUDA_VISIBLE_DEVICES, so its numbers are other ones.
    handle = _known(lambda: module.nvmlDeviceGetHandleByPciBusId(address.encode()))
    if handle is None:
        return Link()
    return Link(
        generation=_known(lambda: module.nvmlDeviceGetCurrPcieLinkGeneration(handle)),
        width=_known(lambda: module.nvmlDeviceGetCurrPcieLinkWidth(handle)),
        max_generation=_known(lambda: module.nvmlDeviceGetMaxPcieLinkGeneration(handle)),
        max_width=_known(lambda: module.nvmlDeviceGetMaxPcieLinkWidth(handle)),
    )
