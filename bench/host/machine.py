"""Whether this is a virtual machine or a container, and which system runs in it."""

from __future__ import annotations

import re

from bench.host.cpu import flags, parse_cpuinfo
from loaders.system.files import Root, is_directory, text, under, word
from loaders.system.mounts import mount_for, read_mounts

# Words of the firmware's tables (DMI), in the order of the search: the first match names it.
_PRODUCTS = (
    ("VMware", "vmware"),
    ("VirtualBox", "virtualbox"),
    ("innotek", "virtualbox"),
    ("Google Compute Engine", "google compute engine"),
    ("Amazon EC2", "amazon ec2"),
    ("OpenStack", "openstack"),
    ("Alibaba Cloud", "alibaba cloud"),
    ("HVM domU", "xen"),
    ("Xen", "xen"),
    ("Parallels", "parallels"),
    ("BHYVE", "bhyve"),
    ("Apple Virtualization", "apple virtualization"),
    ("KVM", "kvm"),
    ("QEMU", "qemu"),
    ("Bochs", "bochs"),
)
_GROUPS = (
    ("kubepods", "kubernetes"),
    ("libpod", "podman"),
    ("docker", "docker"),
    ("containerd", "containerd"),
    ("lxc", "lxc"),
    ("machine.slice/systemd-nspawn", "systemd-nspawn"),
)

_MARKERS = (
    ("/run/.containerenv", "podman"),
    ("/.dockerenv", "docker"),
    ("/.singularity.d", "apptainer"),
)


def virtual(root: Root = "/") -> str | None:
    """The hypervisor's or cloud's name, "unnamed hypervisor" if only its presence shows, None on
    bare metal or where nothing tells."""
    if "control_d" in (text(under(root, "/proc/xen/capabilities")) or ""):
        return None  # Xen's own host system, which has the disks
    present = flags(parse_cpuinfo(text(under(root, "/proc/cpuinfo")) or ""))
    # Only x86 has a flag for it, and there its absence is the answer: the tables of a cloud's bare
    # machines carry the same names as those of its virtual ones.
    x86 = present is not None and "fpu" in present
    if x86 and present is not None and "hypervisor" not in present:
        return None
    named = _by_firmware(root) or word(under(root, "/sys/hypervisor/type"))
    if named is not None:
        return named
    compatible = text(under(root, "/proc/device-tree/hypervisor/compatible"))
    if compatible:
        return compatible.replace("\0", " ").strip()
    return "unnamed hypervisor" if x86 else None


def _by_firmware(root: Root) -> str | None:
    product = text(under(root, "/sys/class/dmi/id/product_name")) or ""
    vendor = text(under(root, "/sys/class/dmi/id/sys_vendor")) or ""
    if re.search(r"\.metal\b", product):
        return None
    if vendor.startswith("Microsoft") and product == "Virtual Machine":
        return "hyper-v"
    for pattern, name in _PRODUCTS:
        if pattern in product or pattern in vendor:
            return name
    return None


def container(root: Root = "/") -> str | None:
    """The kind of container this runs in; None outside, or where nothing tells."""
    if is_directory(under(root, "/run/secrets/kubernetes.io")) or is_directory(
        under(root, "/var/run/secrets/kubernetes.io")
    ):
        return "kubernetes"
    groups = text(under(root, "/proc/1/cgroup")) or ""
    for pattern, name in _GROUPS:
        if pattern in groups:
            return name
    for marker, name in _MARKERS:
        if under(root, marker).exists() and not _sees_whole_system(root):
            return name
    return word(under(root, "/run/systemd/container"))


def _sees_whole_system(root: Root) -> bool:
    """A virtual machine's disk made from a container image still has the image's marker files. But
    there process 2 is the kernel's, and the root isn't layered."""
    mount = mount_for("/", read_mounts(root))
    layered = mount is None or mount.fs_type == "overlay"
    return text(under(root, "/proc/2/comm")) == "kthreadd" and not layered


def system(root: Root = "/") -> str | None:
    """The distribution's name and version, from os-release."""
    for path in ("/etc/os-release", "/usr/lib/os-release"):
        for line in (text(under(root, path)) or "").splitlines():
            key, _, value = line.partition("=")
            if key == "PRETTY_NAME":
                return value.strip().strip("\"'") or None
    return None
