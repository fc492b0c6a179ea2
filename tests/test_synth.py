"""Synthetic checkpoints: their numbers, shards and files."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from bench.synth import files as files_module
from bench.synth.content import BLOCK, block_of, stream
from bench.synth.shapes import DTYPES, FP8, config_of
from bench.synth.write import make_checkpoint, split
from loaders.checkpoint.read import open_checkpoint
from tests.tiny_synth import MIB, digests, make, names_in, tensor

# --- content ---


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_are_finite_normal_and_incompressible(dtype: str) -> None:
    raw = bytearray(block_of(tensor(dtype, MIB), 0, 0))
    values = torch.frombuffer(raw, dtype=getattr(torch, dtype)).float()
    assert torch.isfinite(values).all()
    if dtype != FP8:  # an fp8 weight uses its whole range, its block scale brings it down
        assert 1.5 < values.abs().max() < 2
        assert values.abs().min() >= 2.0**-63
    assert 0.4 < (values < 0).float().mean() < 0.6
    assert len(zlib.compress(bytes(raw), 9)) > 0.93 * len(raw)


def test_block_scales_are_small_and_positive() -> None:
    raw = bytearray(block_of(tensor("float32", 1000, "x.weight_scale_inv"), 0, 0))
    values = torch.frombuffer(raw, dtype=torch.float32)
    assert values.min() >= 2.0**-14
    assert values.max() < 2.0**-13


def test_no_two_blocks_tensors_or_seeds_are_alike() -> None:
    blocks = [
        bytes(block_of(tensor("bfloat16", BLOCK, name), seed, index))
        for name, seed, index in [("w", 0, 0), ("w", 0, 1), ("w", 1, 0), ("v", 0, 0)]
    ]
    assert [len(block) for block in blocks] == [BLOCK] * 4
    assert len(set(blocks)) == 4


def test_content_stays_the_same_between_versions() -> None:
    """Checkpoints are told by shape, size and seed, also where another version made them."""
    parts = [bytes(block_of(tensor(dtype, 1001), 7, 0)) for dtype in DTYPES]
    assert [len(part) for part in parts] == [2002, 2002, 4004, 1001]
    assert hashlib.sha256(b"".join(parts)).hexdigest() == GOLDEN


GOLDEN = "7498eade23ec8170af7092bfbdcb475b81b0df02426d7565721b97d0fd1e0109"


@pytest.mark.parametrize("ahead", [0, 1, 7])
def test_the_stream_is_in_order_however_far_it_runs_ahead(ahead: int) -> None:
    tensors = [tensor("bfloat16", BLOCK, "a"), tensor("float32", 3, "b"), tensor(FP8, 9, "c")]
    expected = [block_of(tensors[0], 0, 0), block_of(tensors[0], 0, 1)]
    expected += [block_of(tensors[1], 0, 0), block_of(tensors[2], 0, 0)]
    with ThreadPoolExecutor(3) as pool:
        assert list(stream(tensors, 0, pool, ahead)) == expected


# --- shards ---


@given(
    sizes=st.lists(st.integers(min_value=1, max_value=1000), min_size=1, max_size=60),
    data=st.data(),
)
def test_shards_are_whole_runs_and_balanced(sizes: list[int], data: st.DataObject) -> None:
    tensors = [tensor(FP8, size, f"t{number:03d}") for number, size in enumerate(sizes)]
    shards = data.draw(st.integers(min_value=1, max_value=len(sizes)))
    groups = split(tensors, shards)
    assert len(groups) == shards
    assert all(groups)
    assert [one for group in groups for one in group] == tensors
    for group in groups:
        assert sum(one.nbytes for one in group) <= sum(sizes) / shards + max(sizes)


@pytest.mark.parametrize("shards", [-1, 0, 4])
def test_a_number_of_shards_that_cannot_be_is_refused(shards: int) -> None:
    with pytest.raises(ValueError, match=f"{shards} shards .* 3 tensors .* 1 to 3"):
        split([tensor(FP8, 1)] * 3, shards)


# --- files ---


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize(("shape", "dtype"), [("llama-3.1-8b", None), ("deepseek-v3", None)])
def test_safetensors_files_are_those_of_the_library(
    tmp_path: Path, shape: str, dtype: str | None, shards: int
) -> None:
    made = make(tmp_path / "made", shape=shape, dtype=dtype, shards=shards, size=2 * MIB)
    for name, size in made.files.items():
        ours = tmp_path / "made" / name
        with safe_open(ours, framework="pt") as opened:
            assert opened.metadata() == {"format": "pt"}
        save_file(load_file(ours), tmp_path / "library", metadata={"format": "pt"})
        assert ours.read_bytes() == (tmp_path / "library").read_bytes()
        assert ours.stat().st_size == size
        assert int.from_bytes(ours.read_bytes()[:8], "little") % 8 == 0


@pytest.mark.parametrize("zip64", [False, True])
def test_torch_files_are_as_torch_save_writes_them(
    tmp_path: Path, zip64: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the 2 GiB limit moved, so that the form for large storages is tried, too."""
    if zip64:
        monkeypatch.setattr(files_module, "_ZIP64", 0)
    made = make(tmp_path / "made", shape="deepseek-v3", form="pt", size=2 * MIB)
    for name in made.files:
        path = tmp_path / "made" / name
        mapped = torch.load(path, weights_only=True, mmap=True)
        loaded = torch.load(path, weights_only=True)
        assert {one.dtype for one in loaded.values()} == {
            torch.bfloat16,
            torch.float32,
            torch.float8_e4m3fn,
        }
        for key, value in loaded.items():
            assert mapped[key].data_ptr() % 64 == 0
            assert torch.equal(mapped[key].view(torch.uint8), value.view(torch.uint8))
            assert value.untyped_storage().nbytes() == value.nbytes
        torch.save(loaded, tmp_path / name)
        with zipfile.ZipFile(path) as ours, zipfile.ZipFile(tmp_path / name) as theirs:
            assert ours.testzip() is None
            pickled = f"{path.stem}/data.pkl"
            assert ours.read(pickled) == theirs.read(pickled)


@pytest.mark.parametrize(
    ("form", "shards", "names"),
    [
        ("safetensors", 1, ["model.safetensors"]),
        ("safetensors", 2, ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                            "model.safetensors.index.json"]),
        ("pt", 1, ["pytorch_model.bin"]),
        ("pt", 2, ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin",
                   "pytorch_model.bin.index.json"]),
        ("npcache", 2, ["np"]),
    ],
)  # fmt: skip
def test_file_names_are_those_that_engines_look_for(
    tmp_path: Path, form: str, shards: int, names: list[str]
) -> None:
    made = make(tmp_path / "made", form=form, shards=shards)
    entries = names_in(tmp_path / "made")
    assert entries == sorted(["coldload.json", "config.json", *names])
    assert list(made.files) == [name for name in names if name.endswith(("safetensors", "bin"))]
    assert names_in(tmp_path) == ["made"]


def test_the_index_says_where_each_tensor_is(tmp_path: Path) -> None:
    made = make(tmp_path / "made", shards=3)
    index = json.loads((tmp_path / "made" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == made.tensor_bytes
    assert len(index["weight_map"]) == made.tensors
    for name in made.files:
        with safe_open(tmp_path / "made" / name, framework="pt") as opened:
            held = set(opened.keys())
        assert held == {key for key, file in index["weight_map"].items() if file == name}


@pytest.mark.parametrize("form", ["safetensors", "pt", "npcache"])
@pytest.mark.parametrize("shape", ["llama-3.1-8b", "deepseek-v3", "mixtral-8x7b"])
def test_what_is_made_is_sound(tmp_path: Path, shape: str, form: str) -> None:
    made = make(tmp_path / "made", shape=shape, form=form, size=4 * MIB)
    checkpoint = open_checkpoint(str(tmp_path / "made"), format=form)
    assert checkpoint.problems == ()
    assert checkpoint.ignored == ()
    assert checkpoint.tensor_bytes == made.tensor_bytes
    assert len(checkpoint.tensors) == made.tensors
    assert checkpoint.config == config_of(made.shape)
    assert checkpoint.file_bytes <= 1.1 * 4 * MIB


def test_same_seed_same_bytes_whatever_the_format_and_shards(tmp_path: Path) -> None:
    ways = [("safetensors", 1), ("safetensors", 5), ("pt", 1), ("pt", 3), ("npcache", 1)]
    found = []
    for form, shards in ways:
        folder = tmp_path / f"{form}{shards}"
        make(folder, shape="deepseek-v3", form=form, shards=shards)
        found.append(digests(folder))
    assert all(one == found[0] for one in found)
    assert len(found[0]) == make(tmp_path / "again", shape="deepseek-v3").tensors
    make(tmp_path / "other", shape="deepseek-v3", seed=1)
    other = digests(tmp_path / "other")
    assert all(other[name] != digest for name, digest in found[0].items())


def test_tied_weights_hold_the_same_numbers(tmp_path: Path) -> None:
    make(tmp_path / "tied", shape="qwen3-0.6b")
    tied = digests(tmp_path / "tied")
    assert tied["lm_head.weight"] == tied["model.embed_tokens.weight"]
    make(tmp_path / "untied", shape="qwen3-32b")
    untied = digests(tmp_path / "untied")
    assert untied["lm_head.weight"] != untied["model.embed_tokens.weight"]


def test_another_dtype_is_stored_and_stated(tmp_path: Path) -> None:
    make(tmp_path / "half", dtype="float16", shards=1)
    stored = load_file(tmp_path / "half" / "model.safetensors")
    assert {one.dtype for one in stored.values()} == {torch.float16}
    assert json.loads((tmp_path / "half" / "config.json").read_text())["torch_dtype"] == "float16"


def test_it_says_of_itself_that_it_is_made_up(tmp_path: Path) -> None:
    make(tmp_path / "made", seed=5)
    how = json.loads((tmp_path / "made" / "coldload.json").read_text())
    assert (how["shape"], how["seed"], how["size"]) == ("qwen3-0.6b", 5, MIB)
    assert how["dims"]["head_dim"] == 128


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    for form in ("safetensors", "pt", "npcache"):
        seen: list[tuple[int, int]] = []
        made = make_checkpoint(
            "llama-3.1-8b", tmp_path / form, size=9 * MIB, shards=2, format=form, dtype=None,
            seed=0, progress=lambda done, total, seen=seen: seen.append((done, total)),
        )  # fmt: skip
        assert seen[0] == (0, made.tensor_bytes)
        assert seen[-1] == (made.tensor_bytes, made.tensor_bytes)
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_memory_stays_bounded(tmp_path: Path) -> None:
    """A fifth of the checkpoint's size, whatever that is: the blocks in flight."""
    code = (
        "import resource, sys\n"
        "from bench.synth import write\n"
        "write.effective_cores = lambda: 2\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "make = lambda where, size: write.make_checkpoint('llama-3.1-8b', where, size=size,\n"
        "    shards=1, format='safetensors', dtype=None, seed=0, progress=lambda d, t: None)\n"
        "make(sys.argv[1] + '/warm', 1 << 20)\n"
        "before = peak()\n"
        "make(sys.argv[1] + '/large', 320 << 20)\n"
        "print(peak() - before)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert int(run.stdout) * 1024 < 64 * MIB
