"""Whole runs of models in stores, as a user starts them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from servers import free_port, misbehaving, nginx, s3

from bench.settings import DEFAULT_MODEL
from tests.test_plugin_runs import make_model, only_clocks
from tests.tiny_runs import Done, records, run_pytest, samples, tries

SMOKE = ("bench", "--benchmark-disable")
DIRECT = {"no_proxy": "127.0.0.1", "PATH": "/no/programs/here"}
WORD, SIGN = "s3cr3t-word", "s3cr3t-sign"
TRACE = "Traceback"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("root")
    make_model(root / "model", "safetensors")
    return root


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}


# From nginx, which asks for a password, and staged to a disk, in one run.


@pytest.fixture(scope="module")
def web(root: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, Path]:
    place = tmp_path_factory.mktemp("web")
    (place / "disk").mkdir()
    with nginx(root, place / "nginx", user=f"me:{WORD}") as address:
        url = f"{address.replace('//', f'//me:{WORD}@')}/model?sig={SIGN}"
        done = run_pytest(
            *("--benchmark-only", "--passes=1", "-v", "-rs", f"--model={url}"),
            *(f"--storage=web:{url}", f"--storage=disk:{place / 'disk'}"),
            *("--loader=remote", "--loader=safetensors-mmap", "--cache=warm"),
            *(f"--run-dir={place / 'run'}", f"--benchmark-json={place / 'saved.json'}"),
            env=DIRECT,
        )
    return done, place


def test_a_model_is_measured_at_its_address(web: tuple[Done, Path], root: Path) -> None:
    done, place = web
    only_clocks(done, place / "run")
    found = [one for one in samples(place / "run") if one["loader"] == "remote"]
    assert len({one["case"] for one in found}) == 2  # the A/A pair
    for one in found:
        assert re.fullmatch(
            r"disk_to_host/remote/(twin=true|-)/model/[^/]+/bfloat16/t\d+/none/cpu/tp1/web",
            one["case"],
        )
        assert (one["storage"]["label"], one["storage"]["file_system"]) == ("web", "http")
        assert (one["storage"]["mount"], one["storage"]["device"]) == (None, None)
        assert (one["model"], one["threads"] >= 16) == ("model", True)
        assert (one["cache"]["requested"], one["cache"]["state"]) == ("none", "none")
        assert (one["cache"]["resident_before"], one["cache"]["device_read_bytes"]) == (None, None)
        assert (one["verified"], one["bytes"]) == (True, one["size"])
        counts = one["details"]["counts"]
        assert (counts["requests"], counts["retries"]) == (2, 0)
        assert counts["bytes"] >= one["bytes"]


def test_it_is_measured_on_the_disk_that_it_is_staged_to(
    web: tuple[Done, Path], root: Path
) -> None:
    _, place = web
    (staged,) = (place / "disk" / ".coldload").iterdir()
    assert staged.name.startswith("model-")
    assert content(staged) == content(root / "model")
    found = [one for one in samples(place / "run") if one["loader"] == "safetensors-mmap"]
    assert {one["storage"]["label"] for one in found} == {"disk"}
    assert {one["cache"]["requested"] for one in found} == {"warm"}
    assert all(one["verified"] for one in found)


def test_no_ceiling_and_no_look_belongs_to_an_address(web: tuple[Done, Path]) -> None:
    run = web[1] / "run"
    host = records(run)[1]
    assert host["stores"] == {"web": "http"}
    assert host["first_look"].keys() == host["host"]["storage"].keys() == {"disk"}
    of_ceilings = {
        one["storage"]["label"] if one["storage"] else None
        for one in samples(run)
        if one["phase"] == "ceiling"
    }
    assert of_ceilings == {"disk", None}
    assert "skipped" not in {one["status"] for one in samples(run) if one["loader"] != "fio"}


def test_the_report_says_what_cold_means_there_and_how_was_asked(web: tuple[Done, Path]) -> None:
    text = " ".join(web[0].text.split())
    assert "web: a store (http)" in text
    assert "web, remote: cold can't be had: nothing is cached here" in text
    if "remote on web" in text:  # it isn't where its clocks disagreed
        assert re.search(r"remote on web: \S+ GB/s in 2 requests of up to 16 MiB, \d+ at a", text)
        assert "Retries in 1 pass: 0." in text


def test_no_secret_is_shown_or_written_down(web: tuple[Done, Path]) -> None:
    done, place = web
    assert "***@127.0.0.1" in done.text
    assert "***@127.0.0.1" in records(place / "run")[1]["command"]
    written = [path for path in place.rglob("*") if path.is_file() and "nginx" not in path.parts]
    assert len(written) >= 4
    for path in written:
        assert b"s3cr3t" not in path.read_bytes(), path
        assert "s3cr3t" not in str(path)
    assert "s3cr3t" not in done.text


# From a file system through fsspec, beside the same on a disk.


@pytest.fixture(scope="module")
def filed(root: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, Path]:
    place = tmp_path_factory.mktemp("filed")
    (place / "disk").mkdir()
    make_model(place / "model", "safetensors")
    return again(place, "run"), place


def again(place: Path, run: str) -> Done:
    url = f"file://{place / 'model'}"
    return run_pytest(
        *(*SMOKE, f"--model={url}", f"--storage={url}", f"--storage=disk:{place / 'disk'}"),
        *("-k", "remote or example", f"--run-dir={place / run}"),
        env=DIRECT,
    )


def test_any_store_that_fsspec_has(filed: tuple[Done, Path]) -> None:
    done, place = filed
    assert done.code == 0, done.text
    found = samples(place / "run")
    assert {(one["loader"], one["storage"]["label"]) for one in found} == {
        ("remote", "file"),
        ("example", "disk"),
    }
    assert all(one["verified"] for one in found)
    assert "file, remote: files of this host, through fsspec; they aren't made cold" in done.text


def test_a_staged_copy_of_other_bytes_is_refused(filed: tuple[Done, Path]) -> None:
    _, place = filed
    shard = next((place / "model").glob("*.safetensors"))
    raw = bytearray(shard.read_bytes())
    raw[-1] ^= 1
    shard.write_bytes(raw)
    done = again(place, "second")
    assert done.code == pytest.ExitCode.USAGE_ERROR
    assert "was staged before and holds other bytes than the store now; delete it" in done.text
    assert TRACE not in done.text


def test_s3_from_a_stand_in(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3(monkeypatch, "bucket") as store:
        for path in (root / "model").iterdir():
            store.put(f"deep/model/{path.name}", path.read_bytes())
        done = run_pytest(
            *(*SMOKE, f"--model={store.address}/deep/model", "-k", "remote and not twin"),
            f"--run-dir={tmp_path / 'run'}",
            env=DIRECT,
        )
    assert done.code == 0, done.text
    *_, found = samples(tmp_path / "run")
    assert (found["status"], found["verified"], found["model"]) == ("ok", True, "model")
    assert (found["storage"]["label"], found["storage"]["file_system"]) == ("s3", "s3")
    assert found["details"]["counts"]["requests"] == 2


# Servers that misbehave.


def test_a_store_that_refuses_for_now_is_asked_again_and_that_is_counted(
    root: Path, tmp_path: Path
) -> None:
    files = {f"m/{path.name}": path.read_bytes() for path in (root / "model").iterdir()}
    with misbehaving(files, each=True, only=".safetensors") as server:
        done = run_pytest(
            *(*SMOKE, f"--model={server.address}/m", "--loader=remote:wait_ms=1"),
            *("-k", "remote and not twin", f"--run-dir={tmp_path / 'run'}"),
            env=DIRECT,
        )
    assert done.code == 0, done.text
    found = samples(tmp_path / "run")
    assert sum(one["details"]["counts"]["retries"] for one in found) == 2  # one for each shard
    assert found[-1]["verified"] is True
    assert "503" not in done.text


@pytest.fixture(scope="module")
def refused(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Done, Path]]:
    place = tmp_path_factory.mktemp("refused")
    dead = f"http://me:{WORD}@127.0.0.1:{free_port()}/model?sig={SIGN}"
    here = f"file://{root / 'model'}"
    full = place / "full"
    full.mkdir()
    (full / ".coldload").write_text("in the way")
    commands = {
        "dead": ["--benchmark-only", f"--model={dead}"],
        "empty": ["--benchmark-only", f"--model=file://{place}"],
        "full": ["--benchmark-only", f"--model={here}", f"--storage={full}"],
        "misfit": ["--benchmark-only", f"--model={here}", "--loader=example", "-rs"],
        "elsewhere": ["--benchmark-only", f"--model={here}", f"--storage=file://{place}"],
        "shape": ["--benchmark-only", f"--model={DEFAULT_MODEL}", f"--storage={here}"],
    }
    runs = {name: place / name for name in commands} | {"full": place / "other"}
    done = tries([[*each, f"--run-dir={runs[name]}"] for name, each in commands.items()], DIRECT)
    return {name: (one, runs[name]) for name, one in zip(commands, done, strict=True)}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("dead", r"coldload: http://\*\*\*@127.0.0.1:\d+/model\S*: .*gave up after 6 attempts"),
        ("empty", r"coldload: .*no weights"),
        ("full", r"coldload: .*test data can't be put there"),
        ("elsewhere", r"ERROR: --storage=file://\S+: a store is measured with --model at it"),
        ("shape", r"ERROR: --storage=file://\S+: a store is measured with --model at it"),
    ],
    ids=["dead", "empty", "full", "elsewhere", "shape"],
)
def test_what_cannot_be_had_is_one_clear_error(
    refused: dict[str, tuple[Done, Path]], name: str, said: str
) -> None:
    done, run = refused[name]
    assert done.code == pytest.ExitCode.USAGE_ERROR, done.text
    assert len(re.findall(said, done.text)) == 1, done.text
    assert TRACE not in done.text
    assert "s3cr3t" not in done.text
    assert not run.exists()


def test_a_loader_of_folders_is_skipped_at_an_address(
    refused: dict[str, tuple[Done, Path]],
) -> None:
    done, run = refused["misfit"]
    assert done.code == 1
    reasons = {one["reason"] for one in samples(run) if one["loader"] == "example"}
    assert reasons == {
        "reads folders of this host; name one with --storage= to have the model copied there"
    }
