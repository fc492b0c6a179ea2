"""The processor: model, sockets, cores, NUMA nodes, and the instructions that loading can use."""

from __future__ import annotations

import re
from pathlib import Path

from loaders.system.files import Root, cpu_list, listed, number, text, under
from loaders.system.memory import parse_meminfo

# Conversion and quantisation speed depend on these; the rest of the long list doesn't matter here.
FLAGS = frozenset(
    {
        "avx",
        "avx2",
        "avx512f",
        "avx512bw",
        "avx512_vnni",
        "avx512_bf16",
        "avx512_fp16",
        "avx_vnni",
        "amx_tile",
        "amx_bf16",
        "amx_int8",
        "f16c",
        "fma",
        "asimd",
        "asimdhp",
        "asimddp",
        "fphp",
        "bf16",
        "i8mm",
        "sve",
        "sve2",
        "svebf16",
        "svei8mm",
    }
)

# arm64 kernels print numbers only (MIDR_EL1). Names as in Arm's and util-linux' lists.
_ARM_PARTS = {
    (0x41, 0xD0C): "Arm Neoverse-N1",
    (0x41, 0xD40): "Arm Neoverse-V1",
    (0x41, 0xD49): "Arm Neoverse-N2",
    (0x41, 0xD4F): "Arm Neoverse-V2",
    (0x48, 0xD01): "HiSilicon TaiShan-v110 (Kunpeng 920)",
    (0xC0, 0xAC3): "Ampere-1",
}
_NODE = re.compile(r"node(\d+)")


def parse_cpuinfo(content: str) -> list[dict[str, str]]:
    """/proc/cpuinfo as one dict for each processor, keys as written."""
    processors: list[dict[str, str]] = []
    for line in content.splitlines():
        key, colon, value = line.partition(":")
        key = key.strip()
        if not colon:
            continue
        if key == "processor" or not processors:
            processors.append({})
        processors[-1][key] = value.strip()
    return [processor for processor in processors if "processor" in processor]


def model(processors: list[dict[str, str]]) -> str | None:
    """The processor's name; on arm64 from implementer and part, as numbers if they have no name
    here; None if nothing tells."""
    for processor in processors:
        name = processor.get("model name") or processor.get("cpu model")
        if name:
            return name
        implementer, part = processor.get("CPU implementer"), processor.get("CPU part")
        if implementer and part:
            known = _ARM_PARTS.get((int(implementer, 16), int(part, 16)))
            return known or f"implementer {implementer}, part {part}"
    return None


def flags(processors: list[dict[str, str]]) -> set[str] | None:
    """All instruction flags of the first processor; None if the kernel lists none."""
    for processor in processors:
        listing = processor.get("flags") or processor.get("Features")
        if listing:
            return set(listing.split())
    return None


def cpu_facts(root: Root = "/") -> dict[str, object]:
    """Counts are of the processors that are online in the whole system."""
    processors = parse_cpuinfo(text(under(root, "/proc/cpuinfo")) or "")
    base = under(root, "/sys/devices/system/cpu")
    online = _online(base, processors)
    sockets, cores = _topology(base, online, processors)
    present = flags(processors)
    return {
        "model": model(processors),
        "sockets": sockets,
        "cores": cores,
        "threads": len(online) or None,
        "flags": None if present is None else sorted(present & FLAGS),
        "governor": text(base / "cpu0/cpufreq/scaling_governor"),
        "numa_nodes": numa_nodes(root),
    }


def _online(base: Path, processors: list[dict[str, str]]) -> list[int]:
    listing = text(base / "online")
    if listing:
        return cpu_list(listing)
    return [int(p["processor"]) for p in processors if p["processor"].isdecimal()]


def _topology(
    base: Path, online: list[int], processors: list[dict[str, str]]
) -> tuple[int | None, int | None]:
    """(sockets, cores). A package of -1 is a virtual machine or an arm64 firmware that didn't say.
    Core numbers repeat in each package and on arm64 in each cluster of it, so cores are counted by
    which threads share one."""
    packages: set[int] = set()
    cores: set[str] = set()
    for cpu in online:
        topology = base / f"cpu{cpu}" / "topology"
        package = number(topology / "physical_package_id")
        if package is not None and package >= 0:
            packages.add(package)
        siblings = text(topology / "core_cpus_list") or text(topology / "thread_siblings_list")
        if siblings:
            cores.add(siblings)
    if packages or cores:
        return len(packages) or None, len(cores) or None
    pairs = [(p.get("physical id"), p.get("core id")) for p in processors]
    known = {pair for pair in pairs if None not in pair}
    return len({package for package, _ in known}) or None, len(known) or None


def numa_nodes(root: Root = "/") -> list[dict[str, object]]:
    """Each NUMA node's number, CPUs (as the kernel writes the list) and memory in bytes."""
    base = under(root, "/sys/devices/system/node")
    nodes: list[dict[str, object]] = []
    numbers = [int(match[1]) for name in listed(base) if (match := _NODE.fullmatch(name))]
    for node in sorted(numbers):
        directory = base / f"node{node}"
        meminfo = re.sub(r"(?m)^Node \d+ ", "", text(directory / "meminfo") or "")
        memory = parse_meminfo(meminfo)
        nodes.append(
            {
                "node": node,
                "cpus": text(directory / "cpulist"),
                "memory_bytes": memory.get("MemTotal"),
                "free_bytes": memory.get("MemFree"),
            }
        )
    return nodes
