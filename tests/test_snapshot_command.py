"""`coldload snapshot` and `coldload check` of what it made: what files meet, each told by name."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tiny_snapshot import flip, model, snapshot
from tiny_synth import make, names_in

import bench.snapshot.make as make_module
from bench.cli import main
from bench.synth.place import MakeError
from loaders.checkpoint.read import open_checkpoint
from loaders.snapshot.format import HEAD
from tests.tiny_runs import private_mount

START = [sys.executable, "-c", "from bench.cli import main; main()", "snapshot"]
TWO = "rank-{}-of-00002.snapshot"
WRITTEN = {"snapshot": "*.snapshot", "sharded-state": "*.safetensors"}


@pytest.fixture
def run() -> CliRunner:
    return CliRunner()


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """A folder with a model `m` and a snapshot `s` of it for tp 2."""
    snapshot(model(tmp_path / "m"), tmp_path / "s", 2)
    return tmp_path


def check(run: CliRunner, *args: str | Path) -> tuple[Result, dict[str, Any]]:
    done = run.invoke(main, ["check", *map(str, args), "--json"])
    return done, json.loads(done.stdout)


def problem_codes(document: dict[str, Any]) -> list[str]:
    return [one["code"] for one in document["problems"] if one["severity"] == "error"]


def test_made_and_examined(run: CliRunner, tmp_path: Path) -> None:
    make(tmp_path / "m", shape="mixtral-8x7b")
    args = [str(tmp_path / "m"), str(tmp_path / "s"), "--tp", "2", "--ep", "2"]
    done = run.invoke(main, ["snapshot", *args, "--json"])
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["ok"]
    assert document["layout"] == {"tp": 2, "pp": 1, "ep": 2}
    assert [one["rank"] for one in document["ranks"]] == [0, 1]
    assert [one["name"] for one in document["files"]] == [TWO.format("00000"), TWO.format("00001")]
    assert 0 <= document["digest_seconds"] <= document["seconds"]
    done, found = check(
        run, tmp_path / "s", "--verify", "--tp", "2", "--ep", "2", "--source", args[0]
    )
    assert done.exit_code == 0
    assert found["format"] == "snapshot"
    assert found["snapshot"]["source"]["name"] == "m"
    done = run.invoke(main, ["check", str(tmp_path / "s")])
    assert "rank 0 of tp 2, pp 1, ep 2; not quantised, plain layout, pre-processing" in done.stdout


def test_a_sentence_for_people_says_how_to_measure_it(run: CliRunner, tmp_path: Path) -> None:
    make(tmp_path / "m")
    for form, end in (("snapshot", "s-snapshot"), ("sharded-state", "part-0.safetensors")):
        dest = tmp_path / f"s-{form}"
        args = ["snapshot", str(tmp_path / "m"), str(dest), "--tp", "2", "--format", form]
        done = run.invoke(main, args)
        assert done.exit_code == 0, done.stderr
        measured = done.stdout.split("--model=")[1].strip()
        assert measured.endswith(end)
        assert run.invoke(main, ["check", measured]).exit_code == 0
    card = json.loads((tmp_path / "s-sharded-state" / "coldload.json").read_text())
    assert card["layout"] == {"tp": 2, "pp": 1, "ep": 1}
    assert card["processing"] == "pre"


@pytest.mark.parametrize(
    "asked", [("--tp", "1"), ("--tp", "4"), ("--pp", "2"), ("--ep", "2"), ("--rank", "1")]
)
def test_another_layout_than_asked(asked: tuple[str, str], run: CliRunner, pair: Path) -> None:
    done, document = check(run, pair / "s", *asked)
    assert done.exit_code == 1
    assert problem_codes(document) == ["other-layout"]
    text = document["problems"][0]["message"]
    assert "made for tp 2, pp 1, ep 1" in text
    assert f"asked for was {asked[0][2:]} {asked[1]}" in text


def test_another_source(run: CliRunner, pair: Path) -> None:
    """Other bytes under the same names, and another model altogether."""
    make(pair / "fine-tuned", seed=7)
    make(pair / "other", shape="llama-3.1-8b")
    for name, what in (
        ("fine-tuned", "its bytes are others"),
        ("other", "names, dtypes or shapes"),
    ):
        done, document = check(run, pair / "s", "--source", pair / name)
        assert done.exit_code == 1
        assert problem_codes(document) == ["other-source"]
        assert what in document["problems"][0]["message"]
    # the same tensors cut into other files, or in another format, are the same source
    make(pair / "resharded", shards=5)
    make(pair / "torch", form="pt")
    for name in ("m", "resharded", "torch"):
        assert check(run, pair / "s", "--source", pair / name)[0].exit_code == 0


def test_a_source_that_cannot_be_read(run: CliRunner, pair: Path) -> None:
    (pair / "empty").mkdir()
    make(pair / "cut")
    path = pair / "cut" / "model-00001-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    for name, code in (("nowhere", 2), ("empty", 3), ("cut", 1)):
        done, document = check(run, pair / "s", "--source", pair / name)
        assert (done.exit_code, document["ok"]) == (code, False)
        assert name in document["error"]


def test_a_flipped_bit_is_found_when_looked_for(run: CliRunner, pair: Path) -> None:
    """In every parameter of every rank, at its first byte and at its last."""
    assert check(run, pair / "s", "--verify")[0].exit_code == 0
    for rank in ("00000", "00001"):
        path = pair / "s" / TWO.format(rank)
        tensors = open_checkpoint(path).tensors
        for spec in (tensors[0], tensors[len(tensors) // 2], tensors[-1]):
            assert spec.offset is not None
            for at in (spec.offset, spec.offset + spec.nbytes - 1):
                flip(path, at)
                assert check(run, pair / "s")[0].exit_code == 0  # headers alone can't tell
                done, document = check(run, pair / "s", "--verify")
                assert done.exit_code == 1
                assert problem_codes(document) == ["checksum-mismatch"]
                assert document["problems"][0]["tensor"] == spec.name
                assert document["problems"][0]["file"] == path.name
                flip(path, at)
    assert check(run, pair / "s", "--verify")[0].exit_code == 0


def test_flipped_bits_between_the_parameters(run: CliRunner, pair: Path) -> None:
    """Nobody loads those zeros, but storage that changes them changes others as well."""
    path = pair / "s" / TWO.format("00000")
    spec = next(one for one in open_checkpoint(path).tensors if one.nbytes % 4096)
    end = (spec.offset or 0) + spec.nbytes
    for at in (end, -(-end // 4096) * 4096 - 1):
        flip(path, at)
        done, document = check(run, pair / "s", "--verify")
        assert done.exit_code == 1
        assert problem_codes(document) == ["checksum-mismatch"]
        assert f"the zeros behind {spec.name}" in document["problems"][0]["message"]
        flip(path, at)
    assert check(run, pair / "s", "--verify")[0].exit_code == 0


@pytest.mark.parametrize("part", [0.0, 0.01, 0.5, 0.999])
def test_half_written(part: float, run: CliRunner, pair: Path) -> None:
    path = pair / "s" / TWO.format("00001")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(part * len(whole))])
    done, document = check(run, pair / "s")
    assert done.exit_code == 1
    assert problem_codes(document) == ["half-written"]
    assert document["problems"][0]["file"] == path.name
    path.write_bytes(bytes(HEAD.size) + whole[HEAD.size :])  # all there but for its last write
    assert problem_codes(check(run, path)[1]) == ["half-written"]


def test_another_version(run: CliRunner, pair: Path) -> None:
    for rank in ("00000", "00001"):
        flip(pair / "s" / TWO.format(rank), 8)
    done, document = check(run, pair / "s")
    assert done.exit_code == 1
    assert problem_codes(document) == ["other-version", "other-version"]


def test_ranks_of_different_snapshots(run: CliRunner, pair: Path) -> None:
    source = open_checkpoint(pair / "m")
    other = model(pair / "seven", seed=7)
    snapshot(other, pair / "other-source", 2)
    snapshot(source, pair / "other-state", 2, quantise="int8-channel")
    name = TWO.format("00001")
    mine = (pair / "s" / name).read_bytes()
    for folder in ("other-source", "other-state"):
        (pair / "s" / name).write_bytes((pair / folder / name).read_bytes())
        assert problem_codes(check(run, pair / "s")[1]) == ["mixed-snapshots"]
    (pair / "s" / name).write_bytes(mine)
    (pair / "s" / TWO.format("00000")).write_bytes(mine)  # the same rank twice
    assert problem_codes(check(run, pair / "s")[1]) == ["rank-mismatch"]


def test_questions_about_snapshots_need_one(run: CliRunner, pair: Path) -> None:
    done, document = check(run, pair / "m", "--verify")
    assert done.exit_code == 2
    assert "is safetensors without its coldload.json" in document["error"]


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (["{m}", "{s}"], 2, "never overwritten"),
        (["{m}", "{new}", "--tp", "7"], 2, "divi"),
        (["{m}", "{new}", "--rank", "2"], 2, "expected 0 to 0"),
        (["{m}", "{new}", "--rank", "x"], 2, "a number or all"),
        (["{m}", "{new}", "--layout", "nz"], 2, "add --quantise"),
        (["{m}", "{new}", "--part-size", "much"], 2, "much"),
        (["{nothing}", "{new}"], 3, "no weights"),
        (["{nowhere}", "{new}"], 2, "no such file"),
        (["{m}", "s3://bucket/there"], 2, "an address"),
        (["{noconfig}", "{new}"], 1, "config.json"),
        (["{s}", "{new}"], 2, "snapshot already"),
    ],
)
def test_refusals(args: list[str], code: int, text: str, run: CliRunner, pair: Path) -> None:
    (pair / "nothing").mkdir()
    make(pair / "noconfig")
    (pair / "noconfig" / "config.json").unlink()
    names = ("m", "s", "new", "nothing", "nowhere", "noconfig")
    real = [one.format(**{name: pair / name for name in names}) for one in args]
    done = run.invoke(main, ["snapshot", *real, "--json"])
    assert done.exit_code == code, done.output
    document = json.loads(done.stdout)
    assert text in document["error"]
    assert not document["ok"]
    assert "Traceback" not in done.stderr
    assert names_in(pair) == ["m", "noconfig", "nothing", "s"]


def test_weights_that_cannot_be_quantised_leave_nothing(
    run: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantisers = make_module.Quantisers
    monkeypatch.setattr(make_module, "Quantisers", lambda one, compiled: quantisers(one, False))
    source = model(tmp_path / "m", dtype="float16")
    spec = next(one for one in source.tensors if one.name.endswith("down_proj.weight"))
    with Path(source.file(spec.file).path).open("r+b") as file:
        file.seek(spec.offset or 0)
        file.write(b"\xff\x7f")  # a NaN
    args = ["snapshot", str(tmp_path / "m"), str(tmp_path / "s"), "--quantise", "int8-tensor-127"]
    done = run.invoke(main, args)
    assert done.exit_code == 1
    assert "1 NaN" in done.stderr
    assert names_in(tmp_path) == ["m"]


def test_too_little_space_is_said_before_anything_is_written(tmp_path: Path) -> None:
    source = model(tmp_path / "m")
    request = make_module.Request()
    with pytest.raises(MakeError, match=r"needs .* and 0 B .* are free"):
        make_module.make_snapshot(
            source,
            tmp_path / "s",
            request,
            name="m",
            progress=lambda done, total: None,
            free=lambda folder: 0,
        )
    assert names_in(tmp_path) == ["m"]


@pytest.mark.parametrize("form", ["snapshot", "sharded-state"])
def test_a_file_that_may_not_grow(form: str, tmp_path: Path) -> None:
    """A real refusal by the kernel in the middle of a file, as a full disk is."""
    make(tmp_path / "m", size=4 << 20)
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
    start = [START[0], "-c", limit + START[2], "snapshot"]
    done = subprocess.run(
        [*start, str(tmp_path / "m"), str(tmp_path / "s"), "--format", form],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "while writing; what was written has been removed" in done.stderr
    assert "Traceback" not in done.stderr
    assert names_in(tmp_path) == ["m"]


def test_a_disk_that_fills_up_meanwhile(tmp_path: Path) -> None:
    """A file system of 1 MiB on which somebody else takes the room once space was looked at."""
    mount = private_mount(f"mount -t tmpfs -o size=1m none {tmp_path / 'disk'}")
    if mount is None:
        pytest.skip("no file system may be mounted here")
    make(tmp_path / "m", size=4 << 20)
    (tmp_path / "disk").mkdir()
    code = (
        "import sys\nimport bench.snapshot.make as make_module\n"
        "from bench.synth.place import new_folder\n"
        "make_module.new_folder = lambda dest, need, free: new_folder(dest, 0, free)\n"
        "from bench.cli import main\nfrom pathlib import Path\n"
        "try:\n    main()\nfinally:\n    print(sorted(p.name for p in Path(sys.argv[3]).parent"
        ".iterdir()))"
    )
    done = subprocess.run(
        [*mount, sys.executable, "-c", code, "snapshot", str(tmp_path / "m"),
         str(tmp_path / "disk" / "s")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "No space left on device while writing; what was written has been removed" in done.stderr
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("number", "code", "left"),
    [
        (signal.SIGINT, 130, False),
        (signal.SIGTERM, 143, False),
        (signal.SIGHUP, 129, False),
        (signal.SIGKILL, -9, True),
    ],
)
@pytest.mark.parametrize("form", ["snapshot", "sharded-state"])
def test_ended_while_writing(
    form: str, number: signal.Signals, code: int, left: bool, run: CliRunner, tmp_path: Path
) -> None:
    """What is left of a killed one is no snapshot, and goes with the next try."""
    make(tmp_path / "m", size=64 << 20)
    args = [str(tmp_path / "m"), str(tmp_path / "s"), "--tp", "2", "--format", form]
    child = subprocess.Popen([*START, *args], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (found := list(tmp_path.glob(f".s.incomplete-*/{WRITTEN[form]}"))):
        assert child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.002)
    child.send_signal(number)
    assert child.wait(60) == code
    assert not (tmp_path / "s").exists()
    if left:
        (folder,) = tmp_path.glob(".s.incomplete-*")
        if form == "snapshot":
            assert problem_codes(check(run, folder)[1])[0] in {"half-written", "rank-mismatch"}
        assert run.invoke(main, ["snapshot", *args]).exit_code == 0
    assert names_in(tmp_path) == (["m", "s"] if left else ["m"])
    assert found
