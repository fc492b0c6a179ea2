"""Quantised while loading, or offline before: both ways come to the same bytes, on every rank."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from loaders.checkpoint.read import open_checkpoint
from loaders.quantise import reference
from loaders.quantise.faults import NonFiniteError
from loaders.quantise.layout import from_nz
from loaders.quantise.schemes import scheme
from loaders.slicing.errors import PlanError
from loaders.slicing.plan import Degrees, Parameter, Piece
from loaders.w8a8 import windows as windows_module
from loaders.w8a8.fill import largest_of_rows
from loaders.w8a8.plan import first_row, needed, shares_of
from loaders.w8a8.windows import Windows
from tests.tiny_slicing import manifest_of
from tests.tiny_w8a8 import Pair, both, quantised, run_offline, run_online, way


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return both(tmp_path_factory.mktemp("dense"))


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return both(tmp_path_factory.mktemp("experts"), "qwen3-30b-a3b", size=8 << 20)


def same(one, other) -> None:
    assert one.state.keys() == other.state.keys()
    for name, tensor in one.state.items():
        right = other.state[name]
        assert (tensor.dtype, tensor.shape) == (right.dtype, right.shape), name
        assert torch.equal(tensor, right), name


@pytest.mark.parametrize("layout", ["nz", "transpose", "view"])
@pytest.mark.parametrize(("tp", "rank"), [(1, 0), (2, 0), (2, 1)])
def test_both_ways_come_to_the_same_bytes(dense: Pair, layout: str, tp: int, rank: int) -> None:
    how = way(layout)
    found = [
        run(source, Degrees(tp=tp), rank, how)
        for run, source in zip((run_online, run_offline), dense, strict=True)
    ]
    same(*found)
    assert found[1].fetched < found[0].fetched


@pytest.mark.parametrize("degrees", [Degrees(tp=2), Degrees(tp=2, ep=2), Degrees()])
def test_experts_come_to_the_same_bytes(experts: Pair, degrees: Degrees) -> None:
    rank = degrees.tp - 1
    one = run_online(experts[0], degrees, rank, way())
    same(one, run_offline(experts[1], degrees, rank, way()))
    stacked = [name for name in one.state if name.endswith("experts.w2_weight")]
    assert stacked
    assert all(one.state[name].ndim == 5 for name in stacked)


def test_a_row_cut_has_the_scales_of_whole_rows(dense: Pair) -> None:
    """Scales found on a rank's slice alone would be smaller."""
    from safetensors.torch import load_file

    source = dense[0]
    full = {n: t for file in source.files for n, t in load_file(file.path).items()}
    name = next(one for one in full if one.endswith("down_proj.weight"))
    right = reference.quantise(full[name], scheme("int8-channel"))
    found = run_online(source, Degrees(tp=2), 1, way("nz")).state
    assert torch.equal(found[f"{name}_scale"], right.scale)
    half = full[name].shape[1] // 2
    values = from_nz(found[name], (half, len(full[name]))).t()
    assert torch.equal(values, right.values[:, half:])


def test_c64_a_row_of_zeros_and_one_whose_maximum_is_elsewhere(tmp_path: Path) -> None:
    source = rewritten(tmp_path, zero_rows)
    same(
        run_online(source, Degrees(tp=2), 0, way()),
        run_offline(quantised(source, tmp_path / "q"), Degrees(tp=2), 0, way()),
    )


def test_nan_outside_the_slice_is_an_error_all_the_same(tmp_path: Path) -> None:
    source = rewritten(tmp_path, one_nan)
    with pytest.raises(NonFiniteError, match="down_proj"):
        run_online(source, Degrees(tp=2), 0, way())


def zero_rows(tensor: torch.Tensor) -> None:
    tensor[0] = 0
    tensor[1, : tensor.shape[1] // 2] = 0  # of the first rank's part nothing is left
    tensor[2] = 1e-40


def one_nan(tensor: torch.Tensor) -> None:
    tensor[1, -1] = float("nan")


def rewritten(folder: Path, change):
    from safetensors.torch import load_file, save_file

    source, _ = both(folder / "made")
    for file in source.files:
        tensors = load_file(file.path)
        for name, tensor in tensors.items():
            if name.endswith("down_proj.weight"):
                change(tensor)
        save_file(tensors, file.path, metadata={"format": "pt"})
    return open_checkpoint(source.root)


@given(
    arrays.arrays(
        "float32", st.tuples(st.integers(1, 9), st.integers(1, 40)), elements=st.floats(width=32)
    ),
    st.sampled_from([torch.bfloat16, torch.float16, torch.float32]),
)
def test_the_largest_of_rows_is_exact(values, dtype) -> None:
    weight = torch.from_numpy(values).to(dtype)
    out = torch.empty(len(weight), 1, dtype=dtype)
    largest_of_rows(weight, out)
    assert torch.equal(out, weight.abs().amax(dim=1, keepdim=True)) or bool(weight.isnan().any())
    assert torch.equal(out.isnan()[:, 0], weight.isnan().any(dim=1))


@given(st.integers(0, 20_000), st.integers(1, 20_000), st.integers(1, 3))
def test_windows_give_the_bytes_of_a_range(offset: int, length: int, threads: int) -> None:
    path = Path(__file__)
    data = path.read_bytes()
    offset = min(offset, len(data) - 1)
    length = min(length, len(data) - offset)
    with Windows(threads=threads) as windows:
        found = windows.read(str(path), offset, length)
        assert found.tobytes() == data[offset : offset + length]
        assert windows.nbytes == length
        with pytest.raises(ValueError, match="at most"):
            windows.read(str(path), 0, windows_module.WINDOW + 1)


def test_small_windows_change_nothing(dense: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and copies are cut wherever a window ends."""
    whole = run_online(dense[0], Degrees(tp=2), 1, way())
    for module in ("loaders.w8a8.fill", "loaders.w8a8.windows"):
        monkeypatch.setattr(f"{module}.WINDOW", 12_345)
    same(run_online(dense[0], Degrees(tp=2), 1, way()), whole)


def piece(tensor: str, dim: int, start: int, shape: tuple[int, ...], at: tuple[int, ...]) -> Piece:
    stop = start + shape[dim]
    return Piece(tensor=tensor, dim=dim, start=start, stop=stop, shape=shape, at=at, replicas=1)


def parameter(shape: tuple[int, ...], *pieces: Piece, padding: int = 0) -> Parameter:
    return Parameter(
        name="p", kind="k", dtype="bfloat16", shape=shape, pieces=pieces, padding=padding
    )


def specs_of(**tensors: tuple[int, ...]):
    made = manifest_of({name: (shape, "bfloat16") for name, shape in tensors.items()})
    return {spec.name: spec for spec in made.tensors}


def test_shares_go_by_the_cut() -> None:
    specs = specs_of(a=(8, 4), b=(8, 4), n=(4,))
    column = parameter((4, 4), piece("a", 0, 4, (4, 4), (0, 0)))
    row = parameter((8, 2), piece("b", 1, 2, (8, 2), (0, 0)))
    norm = parameter((4,), piece("n", 0, 0, (4,), (0,)))
    shares = shares_of([column, row, norm], specs, frozenset({"a", "b"}))
    assert (shares.by_rows, shares.within_rows, shares.plain) == ((column,), (row,), (norm,))
    assert needed([column, row, norm], specs).divided == 4 * 4 * 2
    assert needed([column, row, norm], specs).whole == 8 * 4 * 2 + 4 * 2


def test_what_is_quantised_in_part_or_padded_is_refused() -> None:
    specs = specs_of(a=(8, 4), b=(8, 4))
    two = parameter((8, 4), piece("a", 0, 0, (4, 4), (0, 0)), piece("b", 0, 0, (4, 4), (4, 0)))
    with pytest.raises(PlanError, match="only a part"):
        shares_of([two], specs, frozenset("a"))
    padded = parameter((9, 4), piece("a", 0, 0, (8, 4), (0, 0)), padding=4)
    with pytest.raises(PlanError, match="only a part"):
        shares_of([padded], specs, frozenset("a"))


@given(st.integers(0, 5), st.integers(0, 7))
def test_rows_of_stacked_experts_lie_below_each_other(expert: int, row: int) -> None:
    stack = parameter((6, 8, 4), piece("a", 0, 0, (1, 4), (expert, row, 0)))
    assert first_row(stack, stack.pieces[0]) == expert * 8 + row
