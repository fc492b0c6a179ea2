"""The manifest of torch.save files: what it says, and that it survives what it is given."""

from __future__ import annotations

import argparse
import collections
import io
import os
import pickle
import struct
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from tiny_torch import DTYPES, LEGACY_DTYPES, codes, manifest, of_bytes, pt_checkpoint, raw, save

from loaders.checkpoint import torch_pickle
from loaders.checkpoint.torch_values import RefusedError

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


def repack(path, change=None, compress=(), leave_out=(), add=None):  # type: ignore[no-untyped-def]
    """Writes a torch zip again with records changed, compressed, left out or added."""
    with zipfile.ZipFile(path) as old:
        records = [(name, old.read(name)) for name in old.namelist()]
    with zipfile.ZipFile(path, "w") as new:
        for name, data in records:
            short = name.partition("/")[2]
            if short in leave_out:
                continue
            kind = zipfile.ZIP_DEFLATED if short in compress else zipfile.ZIP_STORED
            new.writestr(name, (change or {}).get(short, lambda d: d)(data), kind)
        for short, data in (add or {}).items():
            new.writestr(records[0][0].partition("/")[0] + "/" + short, data)


# --- C30: nested files -----------------------------------------------------------------------


def nested(weights: dict[str, torch.Tensor]) -> dict[str, object]:
    moments = {i: {"exp_avg": w * 0, "exp_avg_sq": w * 0} for i, w in enumerate(weights.values())}
    return {
        "optimizer": {"state": moments, "param_groups": [{"lr": 0.1, "params": [0, 1]}]},
        "step": 7,
        "loss": None,
        "name": "run",
        "rng_state": torch.zeros(64, dtype=torch.uint8),
    }


@FORMS
@pytest.mark.parametrize(
    "key", ["state_dict", "model_state_dict", "model", "module", "weights", "net", "ema"]
)
def test_c30_nested_weights(tmp_path: Path, legacy: bool, key: str) -> None:
    weights = {"a.weight": torch.rand(8, 8), "b.weight": torch.rand(8)}
    path = save({**nested(weights), key: weights}, tmp_path / "x.pt", legacy=legacy)
    specs, (warning,) = manifest(path)
    assert sorted(spec.name for spec in specs) == ["a.weight", "b.weight"]
    assert warning.severity == "warning"
    assert warning.code == "not-weights"
    for part in ("optimizer (4 tensors, 576 bytes)", "rng_state (1 tensor, 64 bytes)", repr(key)):
        assert part in warning.message


def names(path: Path) -> list[str]:
    return sorted(spec.name for spec in manifest(path)[0])


def test_c30_the_order_of_known_keys_and_depth(tmp_path: Path) -> None:
    w, v = torch.ones(2), torch.ones(3)
    assert names(save({"ema": {"e": v}, "model": {"m": w}}, tmp_path / "a.pt")) == ["m"]
    assert names(save({"model": {"state_dict": {"m.x": w}}}, tmp_path / "b.pt")) == ["m.x"]
    # a name like a parameter's makes the level a state dict itself
    flat = {"model": {"x": w}, "head.weight": v, "optimizer": {"m": w}}
    assert names(save(flat, tmp_path / "c.pt")) == ["head.weight", "model.x"]
    # an empty known key, or one without tensors, isn't gone into
    assert names(save({"model": {}, "net": {"lr": 1}, "w": w}, tmp_path / "d.pt")) == ["w"]
    # Megatron's nesting, a list of stages, integer keys
    deep = {"model": {"language_model": {"embedding": {"weight": w}}, "stages": [{"w": v}, v]}}
    assert names(save(deep, tmp_path / "e.pt")) == [
        "language_model.embedding.weight",
        "stages.0.w",
        "stages.1",
    ]
    assert names(save({0: w, 1: v}, tmp_path / "f.pt")) == ["0", "1"]
    # two networks under names that nobody knows: both count, their optimizers don't
    gan = {
        "generator": {"weight": w},
        "discriminator": {"weight": v},
        "generator_optimizer": {"state": {0: {"m": w}}, "param_groups": []},
        "optim": {"moments": [w, v]},
        "lr_scheduler": {"last": w},
        "grad_scaler": {"scale": w},
        "cuda_rng_state": w,
    }
    path = save(gan, tmp_path / "g.pt")
    assert names(path) == ["discriminator.weight", "generator.weight"]
    assert codes(path) == ["not-weights"]


def test_c30_data_parallel_prefixes_stay(tmp_path: Path) -> None:
    path = save({"module.a.weight": torch.ones(2)}, tmp_path / "x.pt")
    assert names(path) == ["module.a.weight"]


def test_c30_optimizer_names_inside_a_model_are_weights(tmp_path: Path) -> None:
    inner = {"scaler": torch.ones(1), "scheduler.weight": torch.ones(2), "opt.bias": torch.ones(3)}
    assert names(save(inner, tmp_path / "a.pt")) == sorted(inner)
    assert names(save({"state_dict": inner}, tmp_path / "b.pt")) == sorted(inner)


def test_c30_odd_keys_are_warned_about(tmp_path: Path) -> None:
    path = save({"a": torch.ones(2), (1, "x"): torch.ones(4), None: 3}, tmp_path / "x.pt")
    specs, (warning,) = manifest(path)
    assert [spec.name for spec in specs] == ["a"]
    assert "<key of type tuple> (1 tensor, 16 bytes)" in warning.message


@pytest.mark.parametrize(
    ("saved", "code"),
    [
        ({}, "no-tensors"),
        ({"epoch": 3, "name": "x", "nothing": None}, "no-tensors"),
        ({"model": {}}, "no-tensors"),
        (torch.ones(3), "no-weight-dict"),
        (torch.nn.Parameter(torch.ones(3)), "no-weight-dict"),
        ([torch.ones(3), torch.ones(2)], "no-weight-dict"),
        ((torch.ones(3),), "no-weight-dict"),
        (7, "no-weight-dict"),
        (None, "no-weight-dict"),
        ("text", "no-weight-dict"),
        (torch.ones(2).untyped_storage(), "no-weight-dict"),
        ({"state": {0: {"step": torch.ones(1)}}, "param_groups": []}, "not-weights"),
        ({"optimizer": {"m": torch.ones(1)}, "step": 3}, "not-weights"),
        ({"a": {"b": torch.ones(1)}, "a.b": torch.ones(2)}, "duplicate-tensor"),
        ({1: torch.ones(1), "1": torch.ones(2)}, "duplicate-tensor"),
    ],
)
def test_c30_c31_files_without_a_weight_dict(tmp_path: Path, saved: object, code: str) -> None:
    path = save(saved, tmp_path / "x.bin")
    specs, problems = manifest(path)
    assert specs == []
    assert [p.code for p in problems] == [code]
    assert problems[0].message.startswith("x.bin: ")


# --- C31 and other pickles -------------------------------------------------------------------


class Arguments:
    """Stands for transformers' TrainingArguments."""

    learning_rate = 0.1


class Subclass(torch.Tensor):
    pass


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.system, ("touch was-executed",)


@FORMS
@pytest.mark.parametrize(
    "saved",
    [
        argparse.Namespace(lr=0.1),
        Arguments(),
        {"w": torch.ones(2), "args": argparse.Namespace(lr=0.1)},
        {"w": torch.ones(2), "best": np.float64(0.5)},
        {"w": torch.ones(2), "array": np.ones(3)},
        torch.nn.Linear(2, 2),
        {"model": torch.nn.Linear(2, 2)},
        {"w": torch.ones(2).as_subclass(Subclass)},
        {"w": Bomb()},
    ],
    ids=lambda saved: type(saved).__name__,
)
def test_c31_what_would_execute_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: object, legacy: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    path = save(saved, tmp_path / "training_args.bin", legacy=legacy)
    specs, (problem,) = manifest(path)
    assert (specs, problem.code) == ([], "unsafe-pickle")
    assert "weights_only=True" in problem.message
    assert not Path("was-executed").exists()
    with pytest.raises(pickle.UnpicklingError):
        torch.load(str(path), weights_only=True)


@FORMS
def test_c31_other_pickle_protocols(tmp_path: Path, legacy: bool) -> None:
    path = save({"w": torch.ones(2)}, tmp_path / "x.pt", legacy=legacy, pickle_protocol=4)
    assert codes(path) in (["unsupported-pickle"], ["not-weights"])
    path = save({"w": torch.ones(2)}, tmp_path / "y.pt", legacy=legacy, pickle_protocol=3)
    assert (names(path), codes(path)) == (["w"], [])


@FORMS
def test_everything_that_weights_only_allows_is_passed_over(tmp_path: Path, legacy: bool) -> None:
    leaves = {
        "w": torch.ones(2),
        "set": {1, 2},
        "bytes": b"abc",
        "array": bytearray(b"x"),
        "large": 2**80,
        "negative": -(2**40),
        "complex": 1j,
        "counter": collections.Counter([1, 1]),
        "dtype": torch.float16,
        "device": torch.device("cpu"),
        "size": torch.Size([1, 2]),
        "layout": torch.strided,
        "flags": (True, False, None, 1.5, [], (), {}),
        "ordered": collections.OrderedDict(a=1),
    }
    if not legacy:
        leaves["storage"] = torch.ones(2).untyped_storage()
    path = save(leaves, tmp_path / "x.pt", legacy=legacy)
    torch.load(str(path), weights_only=True)
    assert (names(path), codes(path)) == (["w"], [])


@FORMS
@pytest.mark.filterwarnings("ignore")
def test_tensors_that_are_no_plain_arrays(tmp_path: Path, legacy: bool) -> None:
    tensors = {
        "quantised": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
        "channels": torch.quantize_per_channel(
            torch.ones(2, 2), torch.ones(2), torch.zeros(2), 0, torch.qint8
        ),
        "coo": torch.eye(3).to_sparse(),
        "csr": torch.eye(3).to_sparse_csr(),
        "meta": torch.empty(3, device="meta"),
        "plain": torch.ones(2),
    }
    path = save(tensors, tmp_path / "x.pt", legacy=legacy)
    specs, problems = manifest(path)
    assert [spec.name for spec in specs] == ["plain"]
    assert {p.tensor: p.code for p in problems} == dict.fromkeys(
        ["quantised", "channels", "coo", "csr", "meta"], "unsupported-tensor"
    )
    assert "sparse tensor" in next(p.message for p in problems if p.tensor == "coo")


def test_legacy_file_with_a_dtype_that_torch_cannot_read_back(tmp_path: Path) -> None:
    path = save({"w": torch.ones(2).to(torch.float8_e4m3fn)}, tmp_path / "x.pt", legacy=True)
    assert codes(path) == ["legacy-untyped"]
    with pytest.raises(AttributeError):
        torch.load(str(path), weights_only=True)


# --- C35: byte order -------------------------------------------------------------------------


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


# --- damage ----------------------------------------------------------------------------------


@FORMS
def test_truncated_anywhere(tmp_path: Path, legacy: bool) -> None:
    path = save({"a": torch.ones(8), "b": torch.ones(5)}, tmp_path / "x.pt", legacy=legacy)
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        specs, problems = manifest(path)
        if length == 0:
            assert [p.code for p in problems] == ["empty-file"]
        assert [p.severity for p in problems] == ["error"], length
        assert specs == []


@FORMS
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_damaged_bytes_never_raise(tmp_path: Path, legacy: bool, data: st.DataObject) -> None:
    path = tmp_path / "x.pt"
    original = save({"a": torch.ones(8), "b.c": torch.ones(2, 2).t()}, path, legacy=legacy)
    broken = bytearray(original.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(broken)
    specs, problems = manifest(path)
    assert specs or problems
    for spec in specs:
        assert spec.offset is None or 0 <= spec.offset <= len(broken) - spec.nbytes


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
def test_pickles_of_random_bytes(code: bytes) -> None:
    try:
        torch_pickle.unpickle(io.BytesIO(b"\x80\x02" + code))
    except RefusedError as error:
        assert error.code  # noqa: PT017


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        (b"", "empty-file", "0 bytes"),
        (b"\0" * 4096, "not-weights", "zero bytes"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4\n",
            "lfs-pointer",
            "git lfs pull",
        ),
        (b"<!DOCTYPE html><html></html>", "not-weights", "web page"),
        (b'{"error": "not found"}', "not-weights", "text"),
        (b"\x1f\x8b\x08\x00" + b"x" * 40, "not-weights", "gzip"),
        (b"GGUF\x03\0\0\0" + b"x" * 40, "not-weights", "GGUF"),
        (b"\x93NUMPY\x01\0" + b"x" * 40, "not-weights", "NumPy"),
        (b"\x7fELF" + bytes(range(1, 40)), "not-weights", "first bytes"),
        (pickle.dumps({"w": [1.0]}, protocol=2), "not-weights", "not written by torch.save"),
        (pickle.dumps(np.ones(3), protocol=2), "not-weights", "none of torch.save"),
        (pickle.dumps({"w": 1}, protocol=5), "not-weights", "none of torch.save"),
    ],
)
def test_other_things_under_the_name(tmp_path: Path, content: bytes, code: str, said: str) -> None:
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(content)
    specs, (problem,) = manifest(path)
    assert (specs, problem.code) == ([], code)
    assert said in problem.message


@pytest.mark.parametrize("count", [1, 50])
def test_safetensors_under_the_name(tmp_path: Path, count: int) -> None:
    """With 50 tensors the header's length begins as a pickle does in some files."""
    save_file({f"w{i}": torch.ones(2) for i in range(count)}, tmp_path / "x.bin")
    (problem,) = manifest(tmp_path / "x.bin")[1]
    assert "safetensors" in problem.message
    header = b'{"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
    (tmp_path / "y.bin").write_bytes(struct.pack("<Q", 128) + header.ljust(128))
    (problem,) = manifest(tmp_path / "y.bin")[1]
    assert "safetensors" in problem.message


def test_c27_a_real_tar(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.bin", "w") as tar:
        for name in ("storages", "tensors", "pickle"):
            tar.addfile(tarfile.TarInfo(name))
    assert codes(tmp_path / "x.bin") == ["tar-archive"]


@FORMS
def test_c27_pth_tar_is_only_a_name(tmp_path: Path, legacy: bool) -> None:
    path = save({"w": torch.ones(2)}, tmp_path / "model.pth.tar", legacy=legacy)
    assert (names(path), codes(path)) == (["w"], [])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)), tmp_path / "x.pt")
    assert codes(tmp_path / "x.pt") == ["torchscript"]


def test_other_zip_archives(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.ones(3))
    (problem,) = manifest(tmp_path / "x.npz")[1]
    assert problem.code == "not-weights"
    assert "a.npy" in problem.message
    with zipfile.ZipFile(tmp_path / "none.pt", "w"):
        pass
    assert len(codes(tmp_path / "none.pt")) == 1


def test_changed_zip_archives(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    weights = {"a": torch.ones(8), "b": torch.ones(8)}

    def made(**how: object) -> list[str]:
        save(weights, path)
        repack(path, **how)
        return codes(path)

    assert made(compress=["data/1"]) == ["compressed-record"]
    assert made(compress=["data.pkl"]) == ["compressed-record"]
    assert made(leave_out=["data/1"]) == ["missing-storage"]
    assert made(change={"data/1": lambda d: d[:-4]}) == ["storage-size"]
    assert made(change={"data/1": lambda d: d + b"more"}) == ["storage-size"]
    assert made(leave_out=["data.pkl"]) == ["not-weights"]
    with pytest.warns(UserWarning, match="Duplicate"):
        assert made(add={"data/1": b"x"}) == ["duplicate-record"]
    save(weights, path)
    data = bytearray(path.read_bytes())
    data[data.index(b"rebuild_tensor")] ^= 1
    path.write_bytes(data)
    assert codes(path) == ["corrupt-archive"]


def test_a_tensor_beyond_its_storage(tmp_path: Path) -> None:
    path = save({"w": torch.ones(200)}, tmp_path / "x.pt")
    # BININT1 200 is the storage's size and then the shape; only the shape is changed
    data = b"K\xc8\x85"
    repack(path, change={"data.pkl": lambda d: d.replace(data, b"K\xc9\x85")})
    assert codes(path) == ["out-of-bounds"]


def test_unusual_paths(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.bin")
    for name in ("pipe.bin", "absent.bin", "."):
        assert codes(tmp_path / name) == ["unreadable-file"]
    for name in ("ünï code.pt", "new\nline.pt", "a.b.c.bin"):
        path = save({"w": torch.ones(2)}, tmp_path / name)
        check_against_torch(path, {"w": torch.ones(2)})


def zip_of(pickled: bytes, path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", pickled)
        archive.writestr("x/version", "3\n")
    return path


def long_binput(index: int) -> bytes:
    return b"r" + struct.pack("<I", index)


@pytest.mark.parametrize(
    "code",
    [
        b"]" * 1_000_000 + b"a" * 999_999 + b".",  # lists in lists
        b")" + b"\x85" * 1_000_000 + b"0.",  # tuples in tuples, then POP
        b"}" + b")" + b"\x85" * 300_000 + b"K\x01s.",  # as a key: hashing would overflow the stack
        b"}" + b")q\x00" + b"h\x00\x86q\x00" * 5000 + b"K\x01s.",
        b"]q\x00" + b"h\x00h\x00\x86q\x00" * 5000 + b".",  # doubles with each step
        b"}(X\x01\x00\x00\x00m]q\x00" + b"h\x00h\x00\x86q\x00" * 60 + b"u.",
        b"}q\x00X\x01\x00\x00\x00ah\x00sX\x01\x00\x00\x00bh\x00s.",  # holds itself, twice
        b"N" + long_binput(0xFFFFFFFF) + b".",  # a memo of 4 billion places
        b"X\xff\xff\xff\xff" + b"a" * 100,
        b"(" * 1_000_000 + b".",
        b"ccollections\nOrderedDict\n(]q\x00(" + b"K\x01K\x02\x86" * 10_000 + b"e"
        b"tq\x01R" + b"ccollections\nOrderedDict\nh\x01R" * 10_000 + b".",
    ],
    ids=range(11),
)
def test_pickle_bombs_end(tmp_path: Path, code: bytes) -> None:
    specs, problems = manifest(zip_of(b"\x80\x02" + code, tmp_path / "bomb.pt"))
    assert specs == []
    assert len(problems) == 1


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
