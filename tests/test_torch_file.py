"""The manifest of torch.save files agrees with what torch.load makes of them."""

from __future__ import annotations

import pickle
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_torch import (
    DTYPES,
    LEGACY_DTYPES,
    codes,
    manifest,
    of_bytes,
    pt_checkpoint,
    raw,
    repack,
    save,
    zip_of,
)

FORMS = pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])


def check_against_torch(path: Path, weights: dict[str, torch.Tensor]) -> None:
    """Names, dtypes, shapes and, where an offset is stated, the very bytes."""
    specs, problems = manifest(path)
    assert [p for p in problems if p.severity == "error"] == []
    assert {spec.name for spec in specs} == set(weights)
    data = path.read_bytes()
    for spec in specs:
        tensor = weights[spec.name]
        assert spec.dtype == str(tensor.dtype).removeprefix("torch.")
        assert spec.shape == tuple(tensor.shape)
        assert spec.nbytes == tensor.numel() * tensor.element_size()
        if spec.offset is None:
            assert not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg()
        else:
            assert data[spec.offset : spec.offset + spec.nbytes] == raw(tensor)


@st.composite
def saved_dicts(draw: st.DrawFn, dtypes: tuple[torch.dtype, ...]) -> dict[str, torch.Tensor]:
    """Dicts of tensors, some of them views of others: slices, transposed, expanded, tied."""
    tensors: dict[str, torch.Tensor] = {}
    names = draw(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=6, unique=True))
    for name in names:
        name = name.encode("utf-8", "ignore").decode() or "x"
        earlier = [t for t in tensors.values() if t.dim() > 0 and t.numel() > 0]
        if earlier and draw(st.booleans()):
            base = draw(st.sampled_from(earlier))
            how = draw(st.sampled_from(["slice", "transpose", "same", "row", "expand", "step"]))
            view = {
                "slice": lambda base=base: base[base.shape[0] // 2 :],
                "transpose": lambda base=base: base.transpose(0, -1),
                "same": lambda base=base: base,
                "row": lambda base=base: base[-1],
                "expand": lambda base=base: base.unsqueeze(0).expand(2, *base.shape),
                "step": lambda base=base: base[::2],
            }[how]()
        else:
            dtype = draw(st.sampled_from(dtypes))
            shape = draw(st.lists(st.integers(0, 4), max_size=3))
            width = torch.empty((), dtype=dtype).element_size()
            size = int(np.prod(shape, dtype=int)) * width
            high = 1 if dtype is torch.bool else 255
            bits = draw(st.lists(st.integers(0, high), min_size=size, max_size=size))
            view = of_bytes(bits, dtype, shape)
        tensors["w." + name] = view
    return tensors


@FORMS
@given(data=st.data())
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_manifest_agrees_with_torch(tmp_path: Path, data: st.DataObject, legacy: bool) -> None:
    tensors = data.draw(saved_dicts(LEGACY_DTYPES if legacy else DTYPES))
    path = save(tensors, tmp_path / "x.pt", legacy=legacy)
    check_against_torch(path, torch.load(str(path), weights_only=True))


@FORMS
def test_c15_c16_empty_tensors_and_scalars(tmp_path: Path, legacy: bool) -> None:
    tensors = {
        "empty": torch.empty(0),
        "rows": torch.empty(0, 8),
        "columns": torch.empty(4, 0),
        "scalar": torch.tensor(2.5),
        "one": torch.tensor([2.5]),
        "last": torch.empty(0, dtype=torch.bfloat16),
    }
    check_against_torch(save(tensors, tmp_path / "x.bin", legacy=legacy), tensors)
    alone = {"only": torch.empty(0)}
    check_against_torch(save(alone, tmp_path / "y.bin", legacy=legacy), alone)


@FORMS
def test_c26_views_of_a_large_storage(tmp_path: Path, legacy: bool) -> None:
    big = torch.arange(1000.0)
    path = save({"a": big[:10], "b": big[10:20]}, tmp_path / "x.pt", legacy=legacy)
    found = pt_checkpoint(path)
    a, b = found.tensors
    assert a.storage == b.storage is not None
    assert (a.storage_nbytes, b.storage_nbytes) == (4000, 4000)
    assert (found.tensor_bytes, found.storage_bytes) == (80, 4000)
    assert found.file_bytes >= 4000
    assert (a.offset, b.offset) != (None, None)
    assert b.offset == (a.offset or 0) + 40
    check_against_torch(path, {"a": big[:10], "b": big[10:20]})


@FORMS
def test_c26_tied_tensors_are_both_listed(tmp_path: Path, legacy: bool) -> None:
    weight = torch.rand(4, 4)
    path = save({"emb.weight": weight, "head.weight": weight}, tmp_path / "x.pt", legacy=legacy)
    found = pt_checkpoint(path)
    assert len({spec.storage for spec in found.tensors}) == 1
    assert len({spec.offset for spec in found.tensors}) == 1
    assert (found.tensor_bytes, found.storage_bytes) == (128, 64)


@FORMS
def test_strided_and_conjugate_views_have_no_offset(tmp_path: Path, legacy: bool) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    number = torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64)
    tensors = {
        "t": base.t(),
        "e": base[:1].expand(5, 4),
        "c": number.conj(),
        "n": number.clone().conj().imag,
    }
    assert tensors["n"].is_neg()
    path = save(tensors, tmp_path / "x.pt", legacy=legacy)
    specs, problems = manifest(path)
    assert problems == []
    assert [spec.offset for spec in specs] == [None] * 4
    check_against_torch(path, torch.load(str(path), weights_only=True))


@FORMS
def test_parameters_and_attributes(tmp_path: Path, legacy: bool) -> None:
    with_state = torch.nn.Parameter(torch.ones(2))
    with_state.note = "kept by torch"  # type: ignore[attr-defined]
    with_attribute = torch.ones(3)
    with_attribute.note = 1  # type: ignore[attr-defined]
    tensors = {
        "p": torch.nn.Parameter(torch.rand(3, 2)),
        "frozen": torch.nn.Parameter(torch.rand(2), requires_grad=False),
        "state": with_state,
        "attribute": with_attribute,
    }
    check_against_torch(save(tensors, tmp_path / "x.pt", legacy=legacy), tensors)


@FORMS
def test_state_dict_with_metadata(tmp_path: Path, legacy: bool) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    state = model.state_dict()
    assert hasattr(state, "_metadata")
    check_against_torch(save(state, tmp_path / "x.pt", legacy=legacy), dict(state))


@FORMS
def test_tensors_of_other_devices_are_listed(tmp_path: Path, legacy: bool) -> None:
    """The location tag is a string of the same length in the same place."""
    path = save({"w": torch.ones(4)}, tmp_path / "x.pt", legacy=legacy)
    if legacy:
        data = path.read_bytes()
        at = data.index(b"X\x03\x00\x00\x00cpu")
        path.write_bytes(data[:at] + b"X\x06\x00\x00\x00cuda:0" + data[at + 8 :])
    else:
        repack(path, change={"data.pkl": lambda d: d.replace(cpu_tag, cuda_tag)})
    specs, problems = manifest(path)
    assert (problems, specs[0].shape) == ([], (4,))
    check_against_torch(path, torch.load(str(path), weights_only=True, map_location="cpu"))


cpu_tag, cuda_tag = b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0"


def test_c35_byteorder_record(tmp_path: Path) -> None:
    path = save({"w": torch.ones(2)}, tmp_path / "x.pt")
    assert codes(path) == []
    repack(path, change={"byteorder": lambda _: b"big"})
    assert codes(path) == ["byte-order"]
    assert "big-endian" in manifest(path)[1][0].message
    repack(path, change={"byteorder": lambda _: b"middle"})
    assert codes(path) == ["byte-order"]
    repack(path, leave_out=["byteorder"])  # before torch 2.1: little-endian
    assert codes(path) == []


def test_c35_big_endian_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save({"w": torch.ones(2)}, tmp_path / "x.pt")
    monkeypatch.setattr(sys, "byteorder", "big")
    assert codes(path) == []  # little-endian as stated: torch.load swaps there
    repack(path, change={"byteorder": lambda _: b"big"})
    specs, problems = manifest(path)
    assert (problems, specs[0].offset) == ([], None)  # not little-endian, so no offset


def test_python_2_pickles(tmp_path: Path) -> None:
    """Byte strings as names, items as an argument of OrderedDict, __builtin__ for builtins."""
    one = (
        b"ctorch._utils\n_rebuild_tensor_v2\n((U\x07storagectorch\nFloatStorage\n"
        b"U\x010U\x03cpuK\x02tQK\x00K\x02\x85K\x01\x85\x89ccollections\nOrderedDict\n]\x85RtR"
    )
    code = b"ccollections\nOrderedDict\n](](U\x01w" + one + b"ee\x85R."
    path = zip_of(b"\x80\x02" + code, tmp_path / "old.pt")
    repack(path, add={"data/0": struct.pack("<2f", 1, 2)})
    check_against_torch(path, torch.load(str(path), weights_only=True))


def test_storage_views_of_old_legacy_files(tmp_path: Path) -> None:
    """(key of the view, its first element, its length) behind the storage's own description."""
    code = (
        b"\x80\x02}(X\x01\x00\x00\x00wctorch._utils\n_rebuild_tensor\n((U\x07storage"
        b"ctorch\nFloatStorage\nU\x0210U\x06cuda:0K\x06(U\x0211K\x02K\x04ttQK\x01K\x03\x85K\x01\x85"
        b"tRu."
    )
    parts = [pickle.dumps(o, 2) for o in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})]
    data = struct.pack("<q6f", 6, *range(6))
    path = tmp_path / "old.pth"
    path.write_bytes(b"".join([*parts, code, pickle.dumps(["10"], 2), data]))
    tensors = torch.load(str(path), weights_only=True, map_location="cpu")
    assert tensors["w"].tolist() == [3, 4, 5]
    check_against_torch(path, tensors)


def test_many_tensors_take_linear_time(tmp_path: Path) -> None:
    one = torch.ones(1)
    path = save({f"layer.{i}.weight": one for i in range(5000)}, tmp_path / "x.pt")
    assert len(manifest(path)[0]) == 5000
