"""The loader `remote`: the right bytes, in order, no more than needed, and one error at the end."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from servers import Server, misbehaving, nginx, s3
from tiny_loaders import Stamps, file_bytes, tensor_bytes, tricky
from tiny_remote import Counting, counting, many, no_proxies, put  # noqa: F401 - fixtures

from loaders.checkpoint.manifest import Checkpoint
from loaders.checkpoint.read import open_checkpoint
from loaders.contract import OptionError
from loaders.io.errors import LoadError, TruncatedError
from loaders.remote import Remote

pytestmark = pytest.mark.usefixtures("no_proxies")

FAST = {"wait_ms": 1, "retries": 2}


@pytest.fixture
def local(tmp_path: Path) -> Checkpoint:
    folder = tmp_path / "model"
    folder.mkdir()
    return tricky(folder)


def served(checkpoint: Checkpoint) -> dict[str, bytes]:
    return {f"m/{file.name}": Path(file.path).read_bytes() for file in checkpoint.files} | {
        "m/model.safetensors.index.json": index_of(checkpoint)
    }


def index_of(checkpoint: Checkpoint) -> bytes:
    return json.dumps(
        {"weight_map": {spec.name: spec.file for spec in checkpoint.tensors}}
    ).encode()


def loaded(loader: Remote, checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    return dict(loader.load(checkpoint, Stamps()))


def check(found: dict[str, torch.Tensor], local: Checkpoint) -> None:
    assert set(found) == {spec.name for spec in local.tensors}
    for spec in local.tensors:
        assert tensor_bytes(found[spec.name]) == file_bytes(local, spec), spec.name
        assert list(found[spec.name].shape) == list(spec.shape)


@pytest.mark.parametrize("threads", [1, 4])
def test_http_from_nginx(local: Checkpoint, tmp_path: Path, threads: int) -> None:
    root = tmp_path / "root"
    (root / "m").mkdir(parents=True)
    for name, content in served(local).items():
        (root / name).write_bytes(content)
    with nginx(root, tmp_path / "nginx") as address:
        checkpoint = open_checkpoint(f"{address}/m")
        loader = Remote(threads=threads, chunk_mib=1)
        check(loaded(loader, checkpoint), local)
    assert loader.counts["retries"] == 0
    assert loader.counts["bytes"] <= local.file_bytes
    assert loader.counts["requests"] >= 3
    assert loader.counts["wait_us"] <= loader.counts["busy_us"]


def test_user_and_password_for_nginx(local: Checkpoint, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "m").mkdir(parents=True)
    for name, content in served(local).items():
        (root / name).write_bytes(content)
    with nginx(root, tmp_path / "nginx", user="me:s3cret word") as address:
        given = address.replace("://", "://me:s3cret%20word@")
        checkpoint = open_checkpoint(f"{given}/m")
        assert "s3cret" not in checkpoint.origin + checkpoint.root
        check(loaded(Remote(threads=2), checkpoint), local)


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_through_fsspec(local: Checkpoint, scheme: str) -> None:
    if scheme == "file":
        address = f"file://{local.root}"
    else:
        address = "memory://through/fsspec"
        for name, content in served(local).items():
            fsspec.filesystem("memory").pipe_file(f"/through/fsspec/{name[2:]}", content)
    checkpoint = open_checkpoint(address)
    loader = Remote(threads=3, chunk_mib=1)
    check(loaded(loader, checkpoint), local)
    assert loader.counts["bytes"] <= local.file_bytes


def test_s3_from_motos_stand_in(local: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """moto stands in for S3 here: the interface is its, speed and failures are not."""
    with s3(monkeypatch, "bucket") as store:
        for name, content in served(local).items():
            store.put(name, content)
        checkpoint = open_checkpoint(f"{store.address}/m")
        loader = Remote(threads=3, chunk_mib=1)
        check(loaded(loader, checkpoint), local)
        assert loader.counts["bytes"] <= local.file_bytes


@pytest.mark.parametrize("threads", [1, 4])
def test_c87_requests_in_offset_order_and_no_byte_too_many(
    counting: type[Counting],  # noqa: F811
    threads: int,
) -> None:
    """C87: no read-ahead, no jumps: manifest and load together fetch payload and headers."""
    files = many()
    put(files)
    checkpoint = open_checkpoint("counting://m")
    headers = sum(length for _, _, length in counting.asked)
    assert headers == checkpoint.file_bytes - checkpoint.tensor_bytes
    del counting.asked[:]
    loader = Remote(threads=threads, chunk_mib=1)
    assert len(loaded(loader, checkpoint)) == 24
    fetched = sum(length for _, _, length in counting.asked)
    assert fetched == loader.counts["bytes"]
    assert headers + fetched <= checkpoint.file_bytes * 1.01
    assert loader.counts["requests"] == len(counting.asked) == 4
    starts = [start for _, start, _ in counting.asked]
    if threads == 1:
        assert starts == sorted(starts)
    assert len(set(starts)) == len(starts)


def test_c87_over_http_too() -> None:
    files = many()
    with misbehaving(files) as server:
        checkpoint = open_checkpoint(f"{server.address}/m")
        del server.asked[:]
        before = server.sent
        loader = Remote(threads=1, chunk_mib=1)
        loaded(loader, checkpoint)
    spans = server.ranges()
    assert spans == sorted(spans)
    assert all(after[0] == first[1] + 1 for first, after in itertools.pairwise(spans))
    assert server.sent - before == loader.counts["bytes"] == checkpoint.tensor_bytes


def test_requests_run_at_the_same_time() -> None:
    with misbehaving(many(), delay=0.1) as server:
        checkpoint = open_checkpoint(f"{server.address}/m")
        server.most_running = 0
        loaded(Remote(threads=3, chunk_mib=1), checkpoint)
    assert server.most_running == 3


def open_then(server: Server, **behaviour: Any) -> Checkpoint:
    """The manifest, read while the server still behaves."""
    checkpoint = open_checkpoint(f"{server.address}/m")
    for name, value in behaviour.items():
        setattr(server.behaviour, name, value)
    del server.asked[:]
    return checkpoint


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_refused_for_now_is_asked_again(status: int) -> None:
    files = many()
    with misbehaving(files) as server:
        checkpoint = open_then(server, fail=2, status=status, retry_after="0")
        loader = Remote(threads=1, chunk_mib=1, **FAST)
        found = loaded(loader, checkpoint)
    assert len(found) == 24
    assert loader.counts["retries"] == 2
    assert loader.counts["requests"] == len(server.asked) == 4 + 2


def test_a_cut_request_is_resumed_where_it_was_cut() -> None:
    files = many()
    with misbehaving(files) as server:
        checkpoint = open_then(server, cut=2, cut_after=1000)
        loader = Remote(threads=1, chunk_mib=1, **FAST)
        found = loaded(loader, checkpoint)
    whole = files["m/model.safetensors"]
    data = b"".join(tensor_bytes(found[spec.name]) for spec in checkpoint.tensors)
    assert data == whole[len(whole) - checkpoint.tensor_bytes :]
    assert loader.counts["retries"] == 2
    assert loader.counts["bytes"] == checkpoint.tensor_bytes
    first, second, third = server.ranges()[:3]
    assert [second[0] - first[0], third[0] - second[0]] == [1000, 1000]


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        ({"fail": 99, "status": 503}, "HTTP 503"),
        ({"cut": 99, "cut_after": 10}, "bytes early"),
        ({"stall": 99}, "no answer in time"),
        ({"length_off": 7, "cut": 99, "cut_after": 10}, "bytes early"),
    ],
)
def test_retries_end_in_one_error_that_names_everything(
    behaviour: dict[str, Any], said: str
) -> None:
    with misbehaving(many(3, 3000)) as server:
        checkpoint = open_then(server, **behaviour)
        loader = Remote(threads=2, chunk_mib=1, timeout=1, **FAST)
        with pytest.raises(LoadError) as caught:
            loaded(loader, checkpoint)
    text = str(caught.value)
    assert f"{server.address}/m/model.safetensors" in text
    assert "bytes " in text
    assert "3 attempts" in text
    assert said in text
    assert loader.counts["retries"] == 2
    assert len(server.asked) == 3


def test_a_content_length_that_is_too_large_costs_nothing() -> None:
    files = many(3, 3000)
    with misbehaving(files) as server:
        checkpoint = open_then(server, length_off=100)
        found = loaded(Remote(threads=1, **FAST), checkpoint)
    data = b"".join(tensor_bytes(found[spec.name]) for spec in checkpoint.tensors)
    assert data == files["m/model.safetensors"][-checkpoint.tensor_bytes :]


def test_a_content_length_that_is_too_small_is_an_error_and_no_wrong_byte() -> None:
    with misbehaving(many(3, 3000)) as server:
        checkpoint = open_then(server, length_off=-100)
        with pytest.raises(LoadError, match="100 bytes early"):
            loaded(Remote(threads=1, **FAST), checkpoint)


def test_a_server_that_ignores_ranges_is_refused_at_once() -> None:
    with misbehaving(many()) as server:
        checkpoint = open_then(server, ranges=False)
        loader = Remote(threads=2, chunk_mib=1, **FAST)
        with pytest.raises(LoadError, match="ignores range requests"):
            loaded(loader, checkpoint)
    assert len(server.asked) <= 2
    assert loader.counts["bytes"] == 0


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        ({"shift": 1}, "the server answers with"),
        ({"fail": 99, "status": 403}, "no permission"),
        ({"fail": 99, "status": 404}, "no such file"),
        ({"fail": 99, "status": 400}, "HTTP 400"),
    ],
)
def test_what_will_not_pass_is_not_asked_again(behaviour: dict[str, Any], said: str) -> None:
    with misbehaving(many(3, 3000)) as server:
        checkpoint = open_then(server, **behaviour)
        with pytest.raises(LoadError, match=said):
            loaded(Remote(threads=1, **FAST), checkpoint)
    assert len(server.asked) == 1


def test_a_file_that_shrank_since() -> None:
    with misbehaving(many()) as server:
        checkpoint = open_then(server)
        server.files["m/model.safetensors"] = server.files["m/model.safetensors"][:2_000_000]
        with pytest.raises(TruncatedError, match="found 2000000; the file was cut off"):
            loaded(Remote(threads=2, chunk_mib=1, **FAST), checkpoint)


def test_a_server_that_sends_less_at_a_time_costs_requests_and_no_retries() -> None:
    with misbehaving(many(3, 30_000)) as server:
        checkpoint = open_then(server, most=10_000)
        loader = Remote(threads=1, **FAST)
        assert len(loaded(loader, checkpoint)) == 3
    assert loader.counts["requests"] == 3
    assert loader.counts["retries"] == 0


def test_redirects_are_remembered_and_followed_without_the_password() -> None:
    with misbehaving({f"moved/{name[2:]}": b"" for name in many()}) as first:
        files = {f"there/{name[2:]}": body for name, body in many().items()}
        with misbehaving(files) as second:
            first.behaviour.moved = f"{second.address}/there".replace("127.0.0.1", "localhost")
            address = f"{first.address}/moved/model.safetensors"
            checkpoint = open_checkpoint(address.replace("://", "://me:secret@"))
            del first.asked[:], second.asked[:]
            loader = Remote(threads=1, chunk_mib=1)
            assert len(loaded(loader, checkpoint)) == 24
    assert len(first.asked) == 1
    assert len(second.asked) == 4
    assert all(first.auth)
    assert not any(second.auth)


def test_nothing_secret_is_in_the_message() -> None:
    with misbehaving(many(3, 3000), user="me:tops3cret") as server:
        address = server.address.replace("://", "://me:tops3cret@")
        checkpoint = open_checkpoint(f"{address}/m/model.safetensors?X-Signature=abc123")
        server.behaviour.fail, server.behaviour.status = 99, 500
        with pytest.raises(LoadError) as caught:
            loaded(Remote(threads=1, **FAST), checkpoint)
    text = f"{caught.value}{checkpoint.origin}{checkpoint.root}"
    assert "tops3cret" not in text
    assert "abc123" not in text
    assert "***@" in text


def test_leaving_early_ends_the_threads_at_once() -> None:
    with misbehaving(many()) as server:
        checkpoint = open_then(server, only="model", stall=0)
        loader = Remote(threads=2, chunk_mib=1, **FAST)
        running = loader.load(checkpoint, Stamps())
        next(running)
        server.behaviour.stall = 99
        running.close()  # type: ignore[attr-defined]
        assert not [one for one in threading.enumerate() if one.name.startswith("remote")]


def test_options() -> None:
    with pytest.raises(OptionError, match="chunk_mib must be at least 1"):
        Remote(chunk_mib=0)
    with pytest.raises(OptionError, match="retries"):
        Remote(retries=-1)
    assert Remote(retries=0).settings["retries"] == 0


def test_nothing_to_load(tmp_path: Path) -> None:
    empty = Checkpoint(root="", origin="", format="safetensors", files=(), tensors=())
    assert list(Remote().load(empty, Stamps())) == []
