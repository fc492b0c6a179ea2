"""What is known of each kind of file system. A new one is a row of the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Family = Literal["local", "network", "memory", "fuse", "overlay", "unknown"]
ColdKind = Literal["ok", "memory", "own-cache", "server-cache", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystem:
    """`charges_reader`: whether bytes fetched show up in read_bytes of the reader's /proc/<pid>/io,
    as far as the kernel's source says so without exception."""

    family: Family
    cold: ColdKind
    charges_reader: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Coldness:
    """Whether emptying the page cache makes a file cold: `kind` for programs, `words` to show."""

    kind: ColdKind
    words: str


def _row(family: Family, cold: ColdKind, charges_reader: bool) -> FileSystem:
    return FileSystem(family=family, cold=cold, charges_reader=charges_reader)


# Block file systems are charged in submit_bio, in the reader's context. NFS charges read-ahead and
# direct reads itself (fs/nfs/read.c, direct.c). SMB and Ceph did until netfs moved the charge to a
# worker thread, so they count as not charged. ZFS, FUSE, 9p and Lustre charge nobody.
_BLOCK = _row("local", "ok", True)
_NETWORK = _row("network", "server-cache", False)
_NFS = _row("network", "server-cache", True)
_MEMORY = _row("memory", "memory", False)
_KNOWN: dict[str, FileSystem] = {
    **dict.fromkeys(("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "jfs", "reiserfs"), _BLOCK),
    **dict.fromkeys(("vfat", "exfat", "ntfs3", "iso9660", "udf"), _BLOCK),
    **dict.fromkeys(("squashfs", "erofs", "bcachefs"), _row("local", "ok", False)),
    "zfs": _row("local", "own-cache", False),
    "fuseblk": _row("fuse", "ok", False),  # ntfs-3g and the like, on a local block device
    "overlay": _row("overlay", "ok", True),
    **dict.fromkeys(("nfs", "nfs4"), _NFS),
    **dict.fromkeys(("cifs", "smb3", "smbfs", "ceph", "lustre", "afs", "ocfs2", "gfs2"), _NETWORK),
    **dict.fromkeys(("gpfs", "beegfs", "beegfs_nodev", "wekafs", "panfs", "dpc"), _NETWORK),
    # Shared by a hypervisor, whose page cache stands between.
    **dict.fromkeys(("virtiofs", "9p", "vboxsf", "vmhgfs"), _NETWORK),
    **dict.fromkeys(("tmpfs", "ramfs", "hugetlbfs", "devtmpfs", "rootfs"), _MEMORY),
}
# Behind FUSE anything may stand; nearly always it is a network client with a cache of its own.
_FUSE = _row("fuse", "server-cache", False)
_UNKNOWN = _row("unknown", "unknown", False)


def describe(fs_type: str) -> FileSystem:
    """The row for a type as mountinfo writes it ("nfs4", "fuse.ceph", "ext4")."""
    if fs_type in _KNOWN:
        return _KNOWN[fs_type]
    if fs_type.startswith(("fuse.", "fuseblk.")) or fs_type == "fuse":
        return _FUSE
    return _UNKNOWN


def charges_reader(fs_type: str) -> bool:
    """Whether bytes that the file system fetches are charged to the reading process. Where not,
    bytes from the device are unknown, never 0. An overlay charges when what lies below does:
    `bench.measuring.deviceread.reader_is_charged` tries it."""
    return describe(fs_type).charges_reader


def coldness(fs_type: str, *, device: str | None = None, virtual: str | None = None) -> Coldness:
    """Whether a file there can be made cold by emptying this system's page cache.

    Args:
        fs_type: as in mountinfo.
        device: name of the block device ("loop3", "nvme0n1"), where there is one.
        virtual: the hypervisor, if this is a virtual machine.
    """
    kind = describe(fs_type).cold
    if kind == "memory":
        words = f"{fs_type} lives in memory: it can't be cold"
    elif kind == "server-cache":
        words = f"cold here, but {fs_type} may be answered from a server's or client's own cache"
    elif kind == "own-cache":
        words = f"{fs_type} keeps a cache of its own, which stays filled"
    elif kind == "unknown":
        words = f"whether {fs_type} keeps a cache of its own isn't known"
    elif device is not None and device.startswith("loop"):
        kind = "own-cache"
        words = f"{device} is a file on another file system, whose cache stays filled"
    elif virtual is not None:
        words = "cold in the guest: the host below may still have it cached"
    else:
        words = "cold"
    return Coldness(kind=kind, words=words)
