"""What loaders do with damaged files, missing memory, unknown dtypes and many shards."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_loaders import (
    Raw,
    Stamps,
    checkpoint_of,
    noise,
    tensor_bytes,
    write_shard,
)

from loaders.checkpoint.dtypes import BY_CODE
from loaders.contract import Loader
from loaders.dummy import Dummy
from loaders.io.errors import LoadError, TruncatedError
from loaders.safetensors_eager import SafetensorsEager
from tests.tiny_contract import (
    READERS,
    ROOT,
    leaves_nothing,  # noqa: F401 - a fixture
    names,
    one_big_tensor,
)

REALLY_READ = [cls for cls in READERS if cls.ownership != "mapped"]


def test_c82_more_shards_than_open_files(tmp_path: Path) -> None:
    """C82: 64 shards under a limit of 40 open files; each loader closes a file after use."""
    script = f"""
import resource, sys
sys.path[:0] = {[str(ROOT), str(ROOT / "tests")]!r}
from pathlib import Path
from tiny_loaders import Stamps, file_bytes, many_shards, tensor_bytes
from loaders.registry import entries, unavailable
checkpoint = many_shards(Path({str(tmp_path)!r}))
specs = {{spec.name: spec for spec in checkpoint.tensors}}
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
for entry in entries().values():
    if unavailable(entry) is None and "safetensors" in entry.cls.formats:
        tensors = entry.cls(8).load(checkpoint, Stamps())
        kept = {{name: tensor.clone() for name, tensor in tensors}}
        assert set(kept) == set(specs), entry.name
        for name, tensor in kept.items():
            assert tensor_bytes(tensor) == file_bytes(checkpoint, specs[name]), entry.name
        print(entry.name)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {cls.name for cls in READERS}


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize("cls", names(REALLY_READ))
def test_c39_a_file_cut_off_since_it_was_examined(cls: type[Loader], tmp_path: Path) -> None:
    """C39: those that read say so, with the file, what was expected and what was found."""
    checkpoint = one_big_tensor(tmp_path)
    size = checkpoint.files[0].size
    os.truncate(checkpoint.files[0].path, size - 4097)
    with pytest.raises(TruncatedError, match=r"big\.safetensors") as caught:
        list(cls(2).load(checkpoint, Stamps()))
    assert (caught.value.expected, caught.value.found) == (size, size - 4097)
    assert str(size) in str(caught.value)
    assert str(size - 4097) in str(caught.value)


@pytest.mark.parametrize("cls", names([cls for cls in READERS if cls.ownership == "mapped"]))
def test_c39_a_mapped_file_cut_off_ends_by_signal(cls: type[Loader], tmp_path: Path) -> None:
    """C39: a mapping can't report it. The process dies by SIGBUS, which is why each measurement
    has a process of its own."""
    checkpoint = one_big_tensor(tmp_path)
    script = f"""
import os, sys
sys.path[:0] = {[str(ROOT), str(ROOT / "tests")]!r}
from pathlib import Path
from tests.tiny_contract import one_big_tensor
from tiny_loaders import Stamps, tensor_bytes
from loaders.registry import get
checkpoint = one_big_tensor(Path({str(tmp_path)!r}))
[(name, tensor)] = get({cls.name!r})().load(checkpoint, Stamps())
os.truncate(checkpoint.files[0].path, 8192)
tensor_bytes(tensor)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == -7, done.stderr
    assert checkpoint.tensor_bytes == 1 << 20


@pytest.mark.parametrize("cls", names(READERS))
def test_c39_a_broken_file_is_named(cls: type[Loader], tmp_path: Path) -> None:
    """C39: shorter than its header says when it is opened: an error of ours names the file, for
    every loader (the library alone says "incomplete metadata" and not of which file)."""
    checkpoint = one_big_tensor(tmp_path)
    os.truncate(checkpoint.files[0].path, 5000)
    with pytest.raises(LoadError, match=r"big\.safetensors"):
        list(cls().load(checkpoint, Stamps()))


def test_c39_no_room_for_a_file(tmp_path: Path) -> None:
    """C39: too little address space to map or to read into: an error with the file or the size,
    never a bare MemoryError. (fastsafetensors dies by a signal there: tests/test_peers.py.)"""
    subjects = [cls.name for cls in READERS if cls.name not in {"example", "fastsafetensors"}]
    specs = write_shard(tmp_path / "big.safetensors", {"w": Raw("U8", [1], b"x")})
    checkpoint = checkpoint_of(tmp_path, {"big.safetensors": specs})
    size = 1 << 30
    text = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    path = Path(checkpoint.files[0].path)
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    os.truncate(path, 8 + len(text) + size)  # sparse
    script = f"""
import resource, sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from loaders.checkpoint.read import open_checkpoint
from loaders.registry import get
from contextlib import nullcontext
checkpoint = open_checkpoint({str(tmp_path)!r})
loaders = [get(name)(2) for name in {subjects!r}]
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), used + (256 << 20)))
for loader in loaders:
    try:
        list(loader.load(checkpoint, lambda phase: nullcontext()))
    except Exception as error:
        assert "big.safetensors" in str(error) or "{size}"[:4] in str(error), repr(error)
        print(loader.name)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == set(subjects)


@pytest.mark.parametrize("code", ["F8_E8M0", "F4"])
@pytest.mark.parametrize("cls", names(READERS))
def test_c17_new_eight_and_four_bit_types(cls: type[Loader], code: str, tmp_path: Path) -> None:
    """C17: exactly what the manifest says (F4 is two values a byte), or an error that names tensor
    and dtype; never a bare KeyError."""
    raw = Raw(code, [2, 8], noise(16 if code == "F8_E8M0" else 8, 5))
    specs = write_shard(tmp_path / "x.safetensors", {"fine": Raw("U8", [1], b"a"), "new": raw})
    checkpoint = checkpoint_of(tmp_path, {"x.safetensors": specs})
    if cls is SafetensorsEager or (cls.name, code) == ("safetensors-pread", "F4"):
        with pytest.raises(LoadError, match=rf"x\.safetensors.*'new' is {specs[1].dtype}"):
            list(cls().load(checkpoint, Stamps()))
        return
    found = {name: tensor.clone() for name, tensor in cls().load(checkpoint, Stamps())}
    assert str(found["new"].dtype) == f"torch.{specs[1].dtype}"
    assert tuple(found["new"].shape) == specs[1].shape
    assert tensor_bytes(found["new"]) == raw.data


@pytest.mark.parametrize("code", [code for code in BY_CODE if not code.startswith("F6")])
@pytest.mark.parametrize("cls", names(READERS))
def test_c17_what_it_refuses_beforehand_is_what_it_cannot_load(
    cls: type[Loader], code: str, tmp_path: Path
) -> None:
    """C17: known from the manifest alone, before a clock runs, and the same words as while loading;
    what isn't refused loads."""
    file = "model-rank-0-part-0.safetensors"  # a name that every one of them takes
    raw = Raw(code, [2, 8], bytes(16 * BY_CODE[code].bits // 8))
    specs = write_shard(tmp_path / file, {"fine": Raw("U8", [1], b"a"), "new": raw})
    checkpoint = checkpoint_of(tmp_path, {file: specs})
    reason = cls().refuses(checkpoint)
    if reason is None:
        assert len(list(cls().load(checkpoint, Stamps()))) == 2
        return
    for part in (file, "'new'", BY_CODE[code].name, "may"):
        assert part in reason
    with pytest.raises(LoadError) as caught:
        list(cls().load(checkpoint, Stamps()))
    assert str(caught.value) == reason


@pytest.mark.parametrize("cls", names([*READERS, Dummy]))
def test_c18_a_dtype_that_this_torch_lacks(
    cls: type[Loader], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C18: unsigned 16-bit before torch 2.3, say: named with its tensor before a file is opened."""
    specs = write_shard(tmp_path / "x.safetensors", {"odd.one": Raw("U16", [2], b"abcd")})
    checkpoint = checkpoint_of(tmp_path, {"x.safetensors": specs})
    monkeypatch.delattr(torch, "uint16")
    with pytest.raises(LoadError, match=r"'odd\.one'.*'uint16'.*torch"):
        list(cls().load(checkpoint, Stamps()))
