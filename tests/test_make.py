"""`coldload make` and what it is made of: content, files, and all or nothing."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
import time
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from bench.cli import main
from bench.synth import files as files_module
from bench.synth import write as write_module
from bench.synth.content import BLOCK, block_of, stream
from bench.synth.place import MakeError, PlaceError, free_bytes, new_folder
from bench.synth.shapes import DTYPES, FP8, ShapeError, ShapeTensor, config_of, load_shape
from bench.synth.write import Made, make_checkpoint, split
from loaders.checkpoint.read import open_checkpoint

MIB = 2**20


def quiet(done: int, total: int) -> None:
    pass


def make(
    dest: Path,
    *,
    shape: str = "qwen3-0.6b",
    size: int | None = MIB,
    shards: int = 2,
    form: str = "safetensors",
    dtype: str | None = None,
    seed: int = 0,
) -> Made:
    return make_checkpoint(
        shape, dest, size=size, shards=shards, format=form, dtype=dtype, seed=seed, progress=quiet
    )


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def digests(folder: Path) -> dict[str, str]:
    """Of every tensor's bytes, by name, whatever the format."""
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(path)
    for path in sorted(folder.glob("*.bin")):
        tensors |= torch.load(path, weights_only=True)
    found = {
        name: hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy()).hexdigest()
        for name, tensor in tensors.items()
    }
    if (folder / "np").exists():
        checkpoint = open_checkpoint(str(folder), format="npcache")
        paths = {file.name: file.path for file in checkpoint.files}
        for spec in checkpoint.tensors:
            raw = Path(paths[spec.file]).read_bytes()[spec.offset :]
            found[spec.name] = hashlib.sha256(raw).hexdigest()
    return found


def tensor(dtype: str, length: int, name: str = "w") -> ShapeTensor:
    return ShapeTensor(name=name, dtype=dtype, shape=(length,), content=name)


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


# --- all or nothing ---


def test_an_existing_place_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    before = names_in(tmp_path)
    for name in before:
        with pytest.raises(PlaceError, match=f"{name} exists already.*remove it"):
            make(tmp_path / name)
    assert names_in(tmp_path) == before
    assert (tmp_path / "full" / "precious").read_text() == "x"


def test_a_place_that_is_taken_meanwhile_is_not_touched(tmp_path: Path) -> None:
    def race(done: int, total: int) -> None:
        (tmp_path / "made").mkdir(exist_ok=True)

    with pytest.raises(PlaceError, match="exists already"):
        make_checkpoint(
            "qwen3-0.6b", tmp_path / "made", size=MIB, shards=1, format="safetensors", dtype=None,
            seed=0, progress=race,
        )  # fmt: skip
    assert names_in(tmp_path) == ["made"]
    assert names_in(tmp_path / "made") == []


@pytest.mark.parametrize("form", ["safetensors", "pt", "npcache"])
@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError, SystemExit])
def test_an_interruption_leaves_nothing_behind(
    tmp_path: Path, form: str, stop: type[BaseException]
) -> None:
    def stopping(done: int, total: int) -> None:
        if done > total / 2:
            raise stop

    with pytest.raises(stop):
        make_checkpoint(
            "llama-3.1-8b", tmp_path / "new" / "parents" / "made", size=9 * MIB, shards=2,
            format=form, dtype=None, seed=0, progress=stopping,
        )  # fmt: skip
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("form", ["safetensors", "pt", "npcache"])
def test_a_failed_write_is_one_clear_error(
    tmp_path: Path, form: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def failing(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(MakeError) as caught:
        make(tmp_path / "made", form=form)
    monkeypatch.undo()
    assert not isinstance(caught.value, PlaceError)
    assert os.strerror(code) in str(caught.value)
    assert "removed" in str(caught.value)
    assert names_in(tmp_path) == []


def test_free_space_is_checked_first_with_need_and_have(tmp_path: Path) -> None:
    def ask(free: int | None) -> Made:
        return make_checkpoint(
            "qwen3-0.6b", tmp_path / "made", size=MIB, shards=1, format="safetensors", dtype=None,
            seed=0, progress=quiet, free=lambda folder: free,
        )  # fmt: skip

    with pytest.raises(MakeError, match=r"needs .* bytes\), and 1\.00 MiB \(1048576 bytes\) are"):
        ask(MIB)
    assert names_in(tmp_path) == []
    made = ask(None)  # a file system that doesn't say
    assert made.tensor_bytes <= MIB


def test_the_need_covers_what_is_written(tmp_path: Path) -> None:
    """Each format's files must fit into what was checked, or the check is no use."""
    for form in ("safetensors", "pt", "npcache"):
        asked: list[int] = []
        with pytest.raises(MakeError) as caught:
            make_checkpoint(
                "deepseek-v3", tmp_path / form, size=3 * MIB, shards=4, format=form, dtype=None,
                seed=0, progress=quiet, free=lambda folder: 0,
            )  # fmt: skip
        asked.append(int(str(caught.value).split(" bytes)")[0].rsplit("(", 1)[1]))
        make(tmp_path / form, shape="deepseek-v3", form=form, size=3 * MIB, shards=4)
        written = sum(
            path.stat().st_size for path in (tmp_path / form).rglob("*") if path.is_file()
        )
        assert written <= asked[0]


def test_a_file_system_without_blocks_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    found = os.statvfs("/")
    none = os.statvfs_result([*found[:2], 0, 0, 0, *found[5:]])
    monkeypatch.setattr(os, "statvfs", lambda folder: none)
    assert free_bytes(Path("/")) is None


def test_a_place_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(PlaceError, match=r"file is not a folder"):
        make(tmp_path / "file" / "made")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(PlaceError, match=r"not writable"):
        make(tmp_path / "made")
    monkeypatch.undo()
    with pytest.raises(PlaceError, match=r"can't be made there"):
        make(Path("/proc/coldload-made"))
    with pytest.raises(PlaceError, match=r"can't be made there"):
        make(tmp_path / "a" / ("n" * 300))
    assert names_in(tmp_path) == ["file"]


def test_a_new_folder_is_as_readable_as_others(tmp_path: Path) -> None:
    with new_folder(tmp_path / "made", 0) as folder:
        (folder / "x").write_text("x")
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o777 & ~mask


# --- the command ---


@pytest.fixture(name="run")
def _run() -> CliRunner:
    return CliRunner()


def test_the_command_makes_a_checkpoint(run: CliRunner, tmp_path: Path) -> None:
    dest = str(tmp_path / "made")
    result = run.invoke(main, ["make", "llama-3.1-8b", dest, "--size", "2MiB", "--shards", "3"])
    assert result.exit_code == 0
    assert "llama-3.1-8b" in result.stdout
    assert "layers 4 of 32" in result.stdout
    assert len(list((tmp_path / "made").glob("*.safetensors"))) == 3
    assert open_checkpoint(dest).problems == ()


@pytest.mark.parametrize("form", ["safetensors", "pt", "npcache"])
def test_json_is_one_document(run: CliRunner, tmp_path: Path, form: str) -> None:
    arguments = ["make", "deepseek-v3", str(tmp_path / "made"), "--size", "2MiB", "--json"]
    result = run.invoke(main, [*arguments, "--format", form])
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["ok"] is True
    assert document["tensor_bytes"] <= 2 * MIB
    assert document["dtype"] == FP8
    assert len(document["files"]) == (0 if form == "npcache" else 4)
    assert document["scaled"]["layers"] == 61
    again = run.invoke(main, arguments)
    assert again.exit_code == 2
    assert json.loads(again.stdout)["ok"] is False
    assert "exists already" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["llama-3-8b"], "Did you mean llama-3.1-8b"),
        (["qwen3-0.6b", "--size", "9GiB"], "1.40 GiB"),
        (["qwen3-0.6b", "--size", "1KiB"], "can't be smaller than"),
        (["qwen3-0.6b", "--size", "big"], "--size: not a size: 'big'"),
        (["qwen3-0.6b", "--size", "1MiB", "--shards", "9999"], "9999 shards"),
        (["qwen3-0.6b", "--format", "gguf"], "safetensors"),
        (["qwen3-0.6b", "--dtype", "int4"], "bfloat16"),
        ([], "SHAPE"),
    ],
)
def test_wrong_usage_is_exit_2_and_names_the_way_out(
    run: CliRunner, tmp_path: Path, arguments: list[str], text: str
) -> None:
    shape, *rest = arguments or [None]
    given = [] if shape is None else [shape, str(tmp_path / "made"), *rest]
    result = run.invoke(main, ["make", *given])
    assert result.exit_code == 2
    assert text in result.stderr
    assert "Traceback" not in result.output
    assert names_in(tmp_path) == []


def test_a_failed_write_is_exit_1_and_an_interruption_130(
    run: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["make", "qwen3-0.6b", str(tmp_path / "made"), "--size", "1MiB"]

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(write_module, "write_safetensors", full)
    result = run.invoke(main, arguments)
    assert result.exit_code == 1
    assert "No space left on device" in result.stderr

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(write_module, "write_safetensors", interrupted)
    result = run.invoke(main, arguments)
    assert result.exit_code == 130
    assert "nothing was left behind" in result.stderr
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_the_middle_cleans_up(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    command = [sys.executable, "-c", "from bench.cli import main; main()", "make", "llama-3.1-8b"]
    child = subprocess.Popen(
        [*command, str(tmp_path / "made"), "--size", "700MiB"], stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".made.incomplete-*/*.safetensors")):
        assert child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    child.send_signal(number)
    assert child.wait(60) == code
    assert names_in(tmp_path) == []


def test_a_file_size_limit_is_reported_and_nothing_is_left(tmp_path: Path) -> None:
    """A real refusal by the kernel in the middle of a file, as a full disk is."""
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "from bench.cli import main; main()"
    )
    for form in ("safetensors", "pt", "npcache"):
        run = subprocess.run(
            [sys.executable, "-c", code, "make", "llama-3.1-8b", str(tmp_path / "made"),
             "--size", "16MiB", "--format", form],
            capture_output=True, text=True,
        )  # fmt: skip
        assert run.returncode == 1
        assert "while writing" in run.stderr
        assert "Traceback" not in run.stderr
        assert "Exception ignored" not in run.stderr
        assert names_in(tmp_path) == []


def test_making_safetensors_does_not_wait_for_torch(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom bench.cli import main\n"
        "main(['make', 'qwen3-0.6b', sys.argv[1], '--size', '1MiB'], standalone_mode=False)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "made")], check=True)


def test_unknown_formats_and_dtypes_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'gguf'.*safetensors, pt, npcache"):
        make(tmp_path / "made", form="gguf")
    with pytest.raises(ShapeError, match="'int8'"):
        make(tmp_path / "made", dtype="int8")
    assert names_in(tmp_path) == []


def test_the_whole_shape_is_what_is_published_in_size(tmp_path: Path) -> None:
    """Too large to write here: the plan of it, through the check for free space."""
    for name in ("qwen3-0.6b", "deepseek-v3"):
        published = load_shape(name).published.elements
        with pytest.raises(MakeError) as caught:
            make_checkpoint(
                name, tmp_path / "made", size=None, shards=4, format="safetensors", dtype=None,
                seed=0, progress=quiet, free=lambda folder: 0,
            )  # fmt: skip
        need = int(str(caught.value).split(" bytes)")[0].rsplit("(", 1)[1])
        width = {"bfloat16": 2, FP8: 1, "float32": 4}
        stored = sum(count * width[dtype] for dtype, count in published.items())
        assert stored < need < 1.02 * stored
