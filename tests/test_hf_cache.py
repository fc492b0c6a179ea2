"""Hugging Face's cache layout: links into blobs, refs, checksums."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from loaders.checkpoint.hf_cache import repo_id
from loaders.checkpoint.manifest import NoWeightsError, UnreadableError
from loaders.checkpoint.read import examine, open_checkpoint
from tests import tiny

CONTENT = tiny.raw_file({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}, b"1234")


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    return tiny.write_hf_cache(tmp_path, {"model.safetensors": CONTENT})


def blob_of(snapshot: Path) -> Path:
    return (snapshot / "model.safetensors").resolve()


def test_c24_links_are_followed_and_the_size_is_the_targets(snapshot: Path) -> None:
    (file,) = open_checkpoint(snapshot).files
    assert file.size == len(CONTENT)
    assert file.name == "model.safetensors"
    assert Path(file.path).read_bytes() == CONTENT


@pytest.mark.parametrize("given", ["repository", "snapshots", "snapshot"])
def test_c24_any_folder_of_the_repository_will_do(snapshot: Path, given: str) -> None:
    folders = {
        "snapshot": snapshot,
        "snapshots": snapshot.parent,
        "repository": snapshot.parent.parent,
    }
    assert open_checkpoint(folders[given]).root == str(snapshot)


def test_a_model_in_the_cache_has_the_repositorys_name_not_its_hash(
    snapshot: Path, tmp_path: Path
) -> None:
    repository = snapshot.parent.parent
    link = tmp_path / "current"
    link.symlink_to(snapshot)
    for place in (
        repository,
        repository / "snapshots",
        snapshot,
        Path(f"{snapshot}/"),
        snapshot / "model.safetensors",
        blob_of(snapshot),
        link,
    ):
        name = repo_id(str(place))
        assert name is not None
        assert f"models--{name.replace('/', '--')}" == repository.name
        assert "/" in name


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/x/models--gpt2/snapshots/0a", "gpt2"),
        ("/x/models--org--a--b/snapshots/0a/m.safetensors", "org/a--b"),
        ("/x/models--org--name", "org/name"),
        ("/x/models--org--name/other/0a", None),
        ("/x/models--org--name/snapshots/0a/deep/er", None),
        ("/x/datasets--org--name/snapshots/0a", None),
        ("/x/models--/snapshots/0a", None),
        ("/x/llama/snapshots/0a", None),
        ("/", None),
    ],
)
def test_names_of_repositories(path: str, name: str | None) -> None:
    assert repo_id(path) == name


def test_c24_a_dangling_link_names_its_target(snapshot: Path) -> None:
    target = blob_of(snapshot)
    target.unlink()
    (problem,) = examine(snapshot).errors
    assert problem.code == "blob-missing"
    assert f"blob missing: ../../blobs/{target.name}" in problem.message
    with pytest.raises(UnreadableError, match="blob missing"):
        examine(snapshot / "model.safetensors")


def test_c24_only_the_snapshots_were_mounted(snapshot: Path) -> None:
    shutil.rmtree(snapshot.parent.parent / "blobs")
    assert [p.code for p in examine(snapshot.parent.parent).errors] == ["blob-missing"]


def test_c24_a_link_that_leads_to_itself(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to("model.safetensors")
    assert [p.code for p in examine(tmp_path).errors] == ["blob-missing"]


def test_c24_a_dangling_shard_beside_an_index(tmp_path: Path) -> None:
    tiny.write_sharded(tmp_path, [{"a": ("U8", [1])}, {"b": ("U8", [1])}])
    shard = tmp_path / tiny.shard_name(2, 2)
    shard.unlink()
    shard.symlink_to("../../blobs/" + "0" * 64)
    (problem,) = examine(tmp_path).errors
    assert (problem.code, problem.file) == ("blob-missing", shard.name)


def test_c24_a_dangling_index_is_a_fault(snapshot: Path) -> None:
    (snapshot / "model.safetensors.index.json").symlink_to("../../blobs/gone")
    assert [p.code for p in examine(snapshot).errors] == ["blob-missing"]


def test_the_snapshot_that_main_names_is_taken(snapshot: Path) -> None:
    shutil.copytree(snapshot, snapshot.parent / "older", symlinks=True)
    repository = snapshot.parent.parent
    assert open_checkpoint(repository).root == str(snapshot)
    (repository / "refs" / "main").write_text("gone")
    with pytest.raises(UnreadableError, match="older"):
        open_checkpoint(repository)
    (repository / "refs" / "main").unlink()
    with pytest.raises(UnreadableError, match="older"):
        open_checkpoint(repository)
    shutil.rmtree(snapshot.parent / "older")
    assert open_checkpoint(repository).root == str(snapshot)


def test_a_repository_without_any_snapshot(snapshot: Path) -> None:
    shutil.rmtree(snapshot)
    with pytest.raises(NoWeightsError, match="without any snapshot"):
        examine(snapshot.parent.parent)


def test_c33_an_unfinished_download_in_the_clients_own_folders(
    snapshot: Path, tmp_path: Path
) -> None:
    blob_of(snapshot).rename(blob_of(snapshot).with_suffix(".incomplete"))
    (snapshot / "model.safetensors").unlink()
    with pytest.raises(NoWeightsError, match="unfinished download"):
        examine(snapshot)
    local = tmp_path / "local" / ".cache" / "huggingface" / "download"
    local.mkdir(parents=True)
    (local / "abc.incomplete").write_bytes(b"12345")
    with pytest.raises(NoWeightsError, match=r"unfinished download \(5 bytes"):
        examine(tmp_path / "local")


def test_a_plain_folder_with_a_snapshots_folder_is_no_cache(tmp_path: Path) -> None:
    tiny.write_tensors(tmp_path / "model.safetensors", {"w": ("U8", [1])})
    (tmp_path / "snapshots").mkdir()
    assert open_checkpoint(tmp_path).root == str(tmp_path)


def test_c25_a_blob_altered_in_place_is_found_by_its_checksum(snapshot: Path) -> None:
    assert not examine(snapshot, verify_blobs=True).problems
    blob_of(snapshot).write_bytes(CONTENT[:-1] + b"5")
    assert not examine(snapshot).problems  # headers alone can't tell
    (problem,) = examine(snapshot, verify_blobs=True).errors
    assert problem.code == "checksum-mismatch"
    assert hashlib.sha256(CONTENT).hexdigest() in problem.message
    assert hashlib.sha256(CONTENT[:-1] + b"5").hexdigest() in problem.message


def test_c25_a_blob_named_by_gits_digest(snapshot: Path) -> None:
    link = snapshot / "model.safetensors"
    digest = hashlib.sha1(b"blob %d\0" % len(CONTENT) + CONTENT).hexdigest()
    blob_of(snapshot).rename(blob_of(snapshot).with_name(digest))
    link.unlink()
    link.symlink_to(f"../../blobs/{digest}")
    assert not examine(snapshot, verify_blobs=True).problems
    blob_of(snapshot).write_bytes(CONTENT[:-1] + b"5")
    assert [p.code for p in examine(snapshot, verify_blobs=True).errors] == ["checksum-mismatch"]


def test_c25_a_download_to_a_local_folder_keeps_its_digest(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(CONTENT)
    records = tmp_path / ".cache" / "huggingface" / "download"
    records.mkdir(parents=True)
    digest = hashlib.sha256(CONTENT).hexdigest()
    (records / "model.safetensors.metadata").write_text(f"0123\n{digest}\n1700000000.0\n")
    read: list[int] = []
    assert not examine(tmp_path, verify_blobs=True, on_bytes=read.append).problems
    assert sum(read) == len(CONTENT)
    (tmp_path / "model.safetensors").write_bytes(CONTENT[:-1] + b"5")
    assert [p.code for p in examine(tmp_path, verify_blobs=True).errors] == ["checksum-mismatch"]


def test_c25_a_file_without_a_known_checksum_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(CONTENT)
    (problem,) = examine(tmp_path, verify_blobs=True).problems
    assert (problem.code, problem.severity) == ("checksum-unknown", "warning")
