"""The manifest of a checkpoint in a store: the same rules as in a folder, and nothing more read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fsspec
import pytest
from click.testing import CliRunner
from servers import free_port, misbehaving, nginx, s3
from tiny import layout, raw_file, shard_name, write_index, write_sharded, write_tensors
from tiny_remote import Counting, counting, no_proxies, put  # noqa: F401 - fixtures

from bench.commands.check import command
from loaders.checkpoint.manifest import NoWeightsError, UnreadableError
from loaders.checkpoint.read import examine, open_checkpoint
from loaders.store import backend
from loaders.store.errors import StoreError
from loaders.store.ranges import Ranges

TWO = [{"a": ("F32", [4]), "b": ("BF16", [3, 2])}, {"c": ("I8", [5])}]


pytestmark = pytest.mark.usefixtures("no_proxies")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loaders.store.ranges.LONGEST_WAIT", 0.01)


def files_of(folder: Path, below: str = "m") -> dict[str, bytes]:
    return {f"{below}/{path.name}": path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_sharded(tmp_path / "m", TWO)
    (tmp_path / "m/config.json").write_text('{"model_type": "tiny"}')
    return tmp_path / "m"


def same(remote: Any, local: Any) -> None:
    assert remote.tensors == local.tensors
    assert [(file.name, file.size) for file in remote.files] == [
        (file.name, file.size) for file in local.files
    ]
    assert remote.config == local.config
    assert [one.code for one in remote.problems] == [one.code for one in local.problems]


@pytest.mark.parametrize("what", ["m", "m/", "m/model.safetensors.index.json"])
def test_http_has_what_the_index_names(folder: Path, tmp_path: Path, what: str) -> None:
    with nginx(tmp_path, tmp_path / "nginx") as address:
        remote = open_checkpoint(f"{address}/{what}")
        same(remote, open_checkpoint(folder))
        assert all(file.path.startswith(f"{address}/m/") for file in remote.files)


def test_a_folder_in_s3(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """moto's server stands in for S3."""
    with s3(monkeypatch, "bucket") as store:
        for name, content in files_of(folder, "deep/m").items():
            store.put(name, content)
        for what in ("deep/m", "deep/m/", "deep/m/model.safetensors.index.json"):
            same(open_checkpoint(f"{store.address}/{what}"), open_checkpoint(folder))
        with pytest.raises(UnreadableError, match="no such file or folder"):
            examine(f"{store.address}/other")
        with pytest.raises(UnreadableError, match="no such file or folder"):
            examine("s3://nobucket/m")
        with pytest.raises(NoWeightsError, match="no weights"):
            examine(f"{store.address}/deep")


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_a_folder_through_fsspec(folder: Path, scheme: str) -> None:
    address = f"file://{folder}"
    if scheme == "memory":
        address = "memory://manifest/m"
        for name, content in files_of(folder, "manifest/m").items():
            fsspec.filesystem("memory").pipe_file(f"/{name}", content)
    same(open_checkpoint(address), open_checkpoint(folder))


@pytest.mark.parametrize("length", [99_993, 99_994, 100_000, 100_001])
def test_c37_headers_of_any_length_are_read_exactly(
    counting: type[Counting],  # noqa: F811
    length: int,
) -> None:
    """C37: 8 bytes, then N, whatever N; nothing behind them is fetched."""
    header, size = layout({"a": ("U8", [300_000])})
    pad = length - len(json.dumps(header))
    put({"m/model.safetensors": raw_file(header, bytes(size), pad=pad)})
    checkpoint = open_checkpoint("counting://m")
    assert checkpoint.tensors[0].offset == 8 + length
    assert [(start, got) for _, start, got in counting.asked] == [(0, 8), (8, length)]


@pytest.mark.parametrize("length", [99_994, 100_001])
def test_c37_over_http(length: int) -> None:
    """The first byte for the size, then 8, then N."""
    header, size = layout({"a": ("U8", [300_000])})
    pad = length - len(json.dumps(header))
    files = {"m/model.safetensors": raw_file(header, bytes(size), pad=pad)}
    with misbehaving(files) as server:
        open_checkpoint(f"{server.address}/m/model.safetensors")
    asked = [
        text
        for path, text in server.asked
        if path in files  # config.json is looked for as well
    ]
    assert asked == ["bytes=0-0", "bytes=0-7", f"bytes=8-{length + 7}"]


def test_shards_in_natural_order_wherever_they_lie(tmp_path: Path) -> None:
    shards = [{f"t{number}": ("U8", [4])} for number in range(12)]
    write_sharded(tmp_path / "m", shards)
    for number in range(12):  # without the zeros that make both orders one
        old, new = shard_name(number + 1, 12), f"m-{number + 1}-of-12.safetensors"
        (tmp_path / "m" / old).rename(tmp_path / "m" / new)
    write_index(
        tmp_path / "m", {f"t{number}": f"m-{number + 1}-of-12.safetensors" for number in range(12)}
    )
    with misbehaving(files_of(tmp_path / "m")) as server:
        by_http = [file.name for file in open_checkpoint(f"{server.address}/m").files]
    by_file = [file.name for file in open_checkpoint(f"file://{tmp_path}/m").files]
    assert by_http == by_file == [f"m-{number}-of-12.safetensors" for number in range(1, 13)]


def faults(folder: Path) -> tuple[list[str], list[str], list[str]]:
    """Codes of what is wrong: here, through fsspec, over HTTP."""
    with misbehaving(files_of(folder)) as server:
        places = [str(folder), f"file://{folder}", f"{server.address}/m"]
        here, there, web = (examine(place) for place in places)
    return tuple(  # type: ignore[return-value]
        sorted(problem.code for problem in one.problems) for one in (here, there, web)
    )


def test_the_same_faults_as_in_a_folder(folder: Path) -> None:
    second = folder / shard_name(2, 2)
    good = second.read_bytes()
    second.write_bytes(good[:-2])
    assert faults(folder) == (["truncated-file"],) * 3
    second.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    assert faults(folder) == (["lfs-pointer"],) * 3
    second.write_bytes(b"")
    assert faults(folder) == (["empty-file"],) * 3
    second.write_bytes(good[:5])
    assert faults(folder) == (["header-truncated"],) * 3
    second.unlink()
    assert faults(folder) == (["index-file-absent"],) * 3
    second.write_bytes(good)
    (folder / "config.json").write_text("{")
    assert faults(folder) == (["config-invalid"],) * 3
    (folder / "model.safetensors.index.json").write_text("<html>no</html>")
    codes = [examine(str(folder)), examine(f"file://{folder}")]
    assert [one.problems[0].code for one in codes] == ["not-weights"] * 2


def test_a_single_file_and_names_that_need_quoting(tmp_path: Path) -> None:
    name = "a b#c%41.safetensors"
    write_tensors(tmp_path / "m" / name, {"a": ("F32", [4])})
    write_index(tmp_path / "m", {"a": name})
    with nginx(tmp_path, tmp_path / "nginx") as address:
        assert open_checkpoint(f"{address}/m").files[0].name == name
        one = open_checkpoint(f"{address}/m/a%20b%23c%2541.safetensors")
        assert one.files[0].name == name
    assert open_checkpoint(f"file://{tmp_path}/m/{name}").files[0].name == name


def test_an_index_that_leads_elsewhere_is_refused(folder: Path) -> None:
    write_index(folder, {"a": "../other.safetensors", "c": shard_name(2, 2)})
    with misbehaving(files_of(folder)) as server:
        checkpoint = examine(f"{server.address}/m")
        assert "index-path" in [problem.code for problem in checkpoint.errors]
        assert not [path for path, _ in server.asked if "other" in path]


def test_nothing_there() -> None:
    with misbehaving({}) as server:
        with pytest.raises(NoWeightsError, match="can't list"):
            examine(f"{server.address}/m")
        with pytest.raises(UnreadableError, match="no such file"):
            examine(f"{server.address}/m/model.safetensors")
        server.files["m/model.bin"] = b"x"
        with pytest.raises(NoWeightsError, match=r"only \*.safetensors"):
            examine(f"{server.address}/m/model.bin")


def test_refused_everywhere_is_said_as_refused() -> None:
    with (
        misbehaving({}, fail=99, status=403) as server,
        pytest.raises(UnreadableError, match="HTTP 403"),
    ):
        examine(f"{server.address}/m")


def test_a_server_without_ranges_is_told_so(folder: Path) -> None:
    with (
        misbehaving(files_of(folder), ranges=False) as server,
        pytest.raises(UnreadableError, match="ignores range requests"),
    ):
        examine(f"{server.address}/m")


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(UnreadableError, match=r"127\.0\.0\.1.*gave up after 6 attempts"):
        examine(f"http://127.0.0.1:{free_port()}/m/model.safetensors")


def test_busy_servers_are_asked_again(folder: Path) -> None:
    with misbehaving(files_of(folder), fail=3) as server:
        assert not open_checkpoint(f"{server.address}/m").problems


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("nosuch://x/y", "fsspec knows no such store"),
        ("simplecache::memory://x", "chained addresses"),
        ("http:///x.safetensors", "no host"),
        ("http://127.0.0.1:99999999/x.safetensors", "[Pp]ort"),
        ("://x", "expected an address"),
    ],
)
def test_addresses_that_are_none(address: str, said: str) -> None:
    with pytest.raises(UnreadableError, match=said):
        examine(address)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec_module = backend.imported("memory")

    def absent(scheme: str) -> Any:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec_module, "get_filesystem_class", absent)
    with pytest.raises(UnreadableError, match=r"needs the package s3fs.*pip install s3fs"):
        examine("s3://bucket/m")


def test_other_formats_and_checksums_are_for_folders(folder: Path) -> None:
    with pytest.raises(UnreadableError, match="local folders only"):
        examine(f"file://{folder}", format="pt")
    with pytest.raises(UnreadableError, match="checksums"):
        examine(f"file://{folder}", verify_blobs=True)


def test_no_credentials_for_s3_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """moto's server stands in for S3."""
    with s3(monkeypatch, "bucket"):
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
        monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
        with pytest.raises(UnreadableError, match="AWS_ACCESS_KEY_ID"):
            examine("s3://bucket/m")


def test_the_command_takes_addresses_and_shows_no_password(folder: Path) -> None:
    with misbehaving(files_of(folder), user="me:tops3cret") as server:
        address = server.address.replace("://", "://me:tops3cret@") + "/m"
        for options in ([], ["--json"]):
            result = CliRunner().invoke(command, [address, *options])
            assert result.exit_code == 0, result.output
            assert "tops3cret" not in result.output
            assert "***@" in result.output
        for wrong in (f"{address}/none.safetensors", f"{address}/none"):
            result = CliRunner().invoke(command, [wrong, "--json"])
            assert result.exit_code == (2 if wrong.endswith("s") else 3)
            assert "tops3cret" not in result.output


def test_a_stopped_reader_asks_no_more() -> None:
    ranges = Ranges("memory://stopped")
    ranges.stop()
    with pytest.raises(StoreError) as caught:
        ranges.read("memory://stopped/x", 0, 4)
    assert caught.value.kind == "stopped"
    ranges.close()


def test_an_empty_file_on_a_real_server(folder: Path, tmp_path: Path) -> None:
    (folder / shard_name(2, 2)).write_bytes(b"")
    with nginx(tmp_path, tmp_path / "nginx") as address:
        checkpoint = examine(f"{address}/m")
    assert [problem.code for problem in checkpoint.errors] == ["empty-file"]
