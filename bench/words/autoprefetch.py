"""Whether the engine would prefetch by itself here: vLLM's own rule, as of 0.33."""

from __future__ import annotations

from bench.sizes import format_size

NETWORK = frozenset({"nfs", "nfs4", "lustre"})
"""The file systems that the engine takes for a network's, exactly these (0.33)."""

_LIKE_A_NETWORK = frozenset(
    {"ceph", "virtiofs", "9p", "cifs", "smb3", "gpfs", "beegfs", "wekafs", "glusterfs"}
)
_PERCENT = 90


def autoprefetch(fs_type: str, checkpoint_bytes: int, available_bytes: int) -> str:
    """One sentence: what vLLM does with safetensors files when --safetensors-load-strategy isn't
    given. `fs_type` is that of the mount of the first file, `checkpoint_bytes` the size of all
    files, `available_bytes` what this process may still take (MemAvailable, or less under a memory
    limit).

    The rule: prefetch where the type is one of NETWORK and the files are at most 90 % of the
    available memory. It doesn't ask what is cached already.
    """
    size, room = format_size(checkpoint_bytes), format_size(available_bytes)
    forced = "--safetensors-load-strategy prefetch"
    if fs_type not in NETWORK:
        text = f"vLLM wouldn't prefetch by itself here: {fs_type or 'this file system'} isn't one "
        text += f"that it takes for a network's ({', '.join(sorted(NETWORK))})"
        if fs_type in _LIKE_A_NETWORK or fs_type.startswith("fuse"):
            text += f", though it may well be one; {forced} does it"
        return f"{text}."
    if checkpoint_bytes * 100 <= available_bytes * _PERCENT:
        return (
            f"vLLM (0.20 and later) prefetches by itself here: {fs_type}, and {size} of files are "
            f"within {_PERCENT} % of the {room} available; --safetensors-load-strategy lazy "
            "prevents it."
        )
    return (
        f"vLLM wouldn't prefetch by itself here, and warns: {fs_type}, but {size} of files are "
        f"over {_PERCENT} % of the {room} available; {forced} would push out what it just read."
    )
