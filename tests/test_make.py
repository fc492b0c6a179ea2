"""`coldload make`: all or nothing, and the command."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.cli import main
from bench.synth import write as write_module
from bench.synth.place import MakeError, PlaceError, new_folder
from bench.synth.shapes import FP8, ShapeError, load_shape
from bench.synth.write import Made, make_checkpoint
from loaders.checkpoint.read import open_checkpoint
from loaders.system.space import free_bytes
from tests.tiny_synth import MIB, make, names_in, quiet

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
        assert "while writing; what was written has been removed. Free some" in run.stderr
        assert "Traceback" not in run.stderr
        assert "Exception ignored" not in run.stderr
        assert names_in(tmp_path) == []


def test_a_folders_name_reaches_no_terminal_as_it_is(run: CliRunner, tmp_path: Path) -> None:
    dest = str(tmp_path / "red\x1b[31m")
    for code in (0, 2):  # made, then refused because it is there
        done = run.invoke(main, ["make", "qwen3-0.6b", dest, "--size", "1MiB"])
        assert done.exit_code == code
        assert "red\\x1b[31m" in done.output
        assert "\x1b" not in done.output


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
