"""Accelerators, as the PCI bus and the drivers' files show them: no driver library is loaded."""

from __future__ import annotations

import re
from pathlib import Path

from loaders.system.files import Root, listed, number, text, under, word

VENDORS = {
    "10de": "NVIDIA",
    "1002": "AMD",
    "8086": "Intel",
    "19e5": "Huawei",
    "1da3": "Habana",
    "1ed2": "FuriosaAI",
    "1e52": "Tenstorrent",
    "cabc": "Cambricon",
}
# Huawei's numbers for the Ascend processors; its management controller is 1711, a plain display.
_ASCEND = {"d100": "Ascend 310", "d500": "Ascend 310P", "d801": "Ascend 910"}
_DISPLAY = ("0x0300", "0x0380")
_COMPUTE = ("0x0302", "0x1200")  # 3D controller, processing accelerator
_GRAPHICS_VENDORS = frozenset({"10de", "1002", "8086"})
_NVIDIA_VERSION = re.compile(r"Kernel Module(?:\s+for\s+\S+)?\s+(\d+(?:\.\d+)+)")
_NODES = re.compile(r"(?:nvidia|davinci)\d+|kfd")


def accelerators(root: Root = "/") -> list[dict[str, object]]:
    """Each PCI device that computes: address, vendor, ids, name where it is known, link and NUMA
    node. Plain displays (a server's management controller) aren't listed."""
    base = under(root, "/sys/bus/pci/devices")
    found = [_device(base / address, root) for address in listed(base)]
    return [device for device in found if device is not None]


def _device(folder: Path, root: Root) -> dict[str, object] | None:
    vendor = (text(folder / "vendor") or "").removeprefix("0x")
    device = (text(folder / "device") or "").removeprefix("0x")
    kind = (text(folder / "class") or "")[:6]
    ascend = vendor == "19e5" and (device in _ASCEND or device.startswith("d80"))
    graphics = kind in _DISPLAY and vendor in _GRAPHICS_VENDORS
    if not (kind in _COMPUTE or graphics or ascend):
        return None
    node = number(folder / "numa_node")
    return {
        "address": folder.name,
        "vendor": VENDORS.get(vendor, vendor or None),
        "vendor_id": vendor or None,
        "device_id": device or None,
        "name": _nvidia_name(folder.name, root) or (_ASCEND.get(device) if ascend else None),
        "link_speed": _known(text(folder / "current_link_speed")),
        "link_width": _width(folder / "current_link_width"),
        "max_link_speed": _known(text(folder / "max_link_speed")),
        "max_link_width": _width(folder / "max_link_width"),
        "numa_node": node if node is not None and node >= 0 else None,
    }


def _nvidia_name(address: str, root: Root) -> str | None:
    content = text(under(root, f"/proc/driver/nvidia/gpus/{address}/information")) or ""
    for line in content.splitlines():
        key, _, value = line.partition(":")
        if key == "Model":
            return value.strip() or None
    return None


def _known(speed: str | None) -> str | None:
    return None if not speed or speed.startswith("Unknown") else speed


def _width(path: Path) -> int | None:
    lanes = number(path)
    return lanes if lanes and lanes < 255 else None  # 0 and 255: no link, or not told


def drivers(root: Root = "/") -> dict[str, str | None]:
    """Versions of the kernel drivers that are loaded."""
    nvidia = _NVIDIA_VERSION.search(text(under(root, "/proc/driver/nvidia/version")) or "")
    return {
        "nvidia": nvidia[1] if nvidia else None,
        "amdgpu": word(under(root, "/sys/module/amdgpu/version")),
    }


def device_nodes(root: Root = "/") -> list[str]:
    """The accelerators' device files that this process can see: in a container often fewer than the
    bus has devices."""
    return [f"/dev/{name}" for name in listed(under(root, "/dev")) if _NODES.fullmatch(name)]
