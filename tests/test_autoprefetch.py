"""vLLM's rule for prefetching by itself, for a path."""

from __future__ import annotations

import pytest

from bench.words.autoprefetch import autoprefetch

GIB = 1 << 30


@pytest.mark.parametrize("fs_type", ["nfs", "nfs4", "lustre"])
def test_network_and_room(fs_type: str) -> None:
    text = autoprefetch(fs_type, 9 * GIB, 10 * GIB)  # exactly 90 % still fits
    assert "prefetches by itself here" in text
    assert fs_type in text


@pytest.mark.parametrize("fs_type", ["nfs", "nfs4", "lustre"])
@pytest.mark.parametrize(("size", "room"), [(9 * GIB + 1, 10 * GIB), (16 * GIB, GIB), (1, 0)])
def test_network_without_room(fs_type: str, size: int, room: int) -> None:
    text = autoprefetch(fs_type, size, room)
    assert "wouldn't prefetch" in text
    assert "over 90 %" in text


@pytest.mark.parametrize(
    "fs_type", ["ceph", "virtiofs", "fuse.sshfs", "fuse.s3fs", "fuse", "gpfs", "cifs", "9p"]
)
def test_networks_that_the_engine_doesnt_know(fs_type: str) -> None:
    text = autoprefetch(fs_type, GIB, 100 * GIB)
    assert "wouldn't prefetch" in text
    assert f"{fs_type} isn't one" in text
    assert "--safetensors-load-strategy prefetch" in text


@pytest.mark.parametrize("fs_type", ["ext4", "xfs", "tmpfs", "overlay", "btrfs", "nfsd", "", "NFS"])
def test_local_ones_and_names_that_only_look_alike(fs_type: str) -> None:
    text = autoprefetch(fs_type, GIB, 100 * GIB)
    assert "wouldn't prefetch" in text
    assert "may well be one" not in text


def test_it_is_one_sentence() -> None:
    for fs_type in ("nfs", "ext4", "ceph"):
        for room in (1, 1 << 40):
            text = autoprefetch(fs_type, GIB, room)
            assert text.endswith(".")
            assert "\n" not in text
