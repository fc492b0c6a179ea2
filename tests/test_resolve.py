"""What `--model` means. Nothing here touches the network: snapshot_download is replaced."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants

from loaders.checkpoint.manifest import UnreadableError
from loaders.checkpoint.resolve import resolve_model
from tests import tiny

SHAPES = ("llama-3.1-8b", "llama-3.1-70b", "qwen3-0.6b", "mixtral-8x7b")
ONE = tiny.raw_file({"w": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}, b"x")
TWO = tiny.raw_file({"v": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}, b"x")


class Hub:
    """A repository, and a cache folder that fills as patterns ask for it."""

    def __init__(self, cache: Path, files: dict[str, bytes]) -> None:
        self.cache, self.files = cache, files
        self.calls: list[dict[str, Any]] = []
        self.reachable = True

    def snapshot_download(self, repo_id: str, **given: Any) -> str:
        self.calls.append({"repo_id": repo_id, **given})
        if given["local_files_only"]:
            if not self.cache.exists():
                raise FileNotFoundError("no snapshot in the cache")
            return str(self.cache)
        if not self.reachable:
            raise ConnectionError("the Hub is out of reach\nsecond line")
        self.cache.mkdir(exist_ok=True)
        for name, content in self.files.items():
            wanted = any(fnmatch(name, pattern) for pattern in given["allow_patterns"])
            ignored = any(fnmatch(name, pattern) for pattern in given["ignore_patterns"])
            if wanted and not ignored:
                (self.cache / name).parent.mkdir(exist_ok=True)
                (self.cache / name).write_bytes(content)
        return str(self.cache)

    @property
    def got(self) -> set[str]:
        return {str(path.relative_to(self.cache)) for path in self.cache.rglob("*.*")}

    @property
    def went_online(self) -> bool:
        return any(not call["local_files_only"] for call in self.calls)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    made = Hub(tmp_path / "cache", {"config.json": b"{}", "model.safetensors": ONE})
    monkeypatch.setattr(huggingface_hub, "snapshot_download", made.snapshot_download)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    monkeypatch.chdir(tmp_path)
    return made


@pytest.mark.parametrize("offline", ["1", "0"])
def test_c89_an_existing_path_never_asks_the_hub(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", offline)
    (tmp_path / "org" / "name").mkdir(parents=True)
    (tmp_path / "qwen3-0.6b").mkdir()
    for text in ("org/name", "./org/name", str(tmp_path / "org"), "qwen3-0.6b"):
        found = resolve_model(text, shapes=SHAPES)
        assert (found.kind, found.text) == ("path", text)
        assert found.path == str((tmp_path / text).resolve())
    assert not hub.calls


def test_a_file_and_a_dangling_link_are_paths(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(ONE)
    (tmp_path / "link").symlink_to("gone")
    assert resolve_model("m.safetensors", shapes=SHAPES).kind == "path"
    assert resolve_model("link", shapes=SHAPES).kind == "path"


def test_the_home_folder_is_expanded(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    assert resolve_model("~/model", shapes=SHAPES).path == str(tmp_path / "model")


def test_a_shape_by_its_name(hub: Hub) -> None:
    found = resolve_model("qwen3-0.6b", shapes=SHAPES)
    assert (found.kind, found.shape, found.path) == ("shape", "qwen3-0.6b", None)
    assert not hub.calls


@pytest.mark.parametrize(
    ("text", "meant"),
    [("llama-3.1-8B", "llama-3.1-8b"), ("qwen3-06b", "qwen3-0.6b"), ("mixtral", "mixtral-8x7b")],
)
def test_near_misses_are_named(hub: Hub, text: str, meant: str) -> None:
    with pytest.raises(UnreadableError, match=f"did you mean.*{meant}"):
        resolve_model(text, shapes=SHAPES)
    assert not hub.calls


def test_without_a_near_miss_all_shapes_are_named(hub: Hub) -> None:
    with pytest.raises(UnreadableError) as caught:
        resolve_model("zzz", shapes=SHAPES)
    assert all(shape in str(caught.value) for shape in SHAPES)


@pytest.mark.parametrize("text", ["/no/such", "./org/name", "~/org", "a/b/c", "../x/y"])
def test_what_looks_like_a_path_is_never_a_hub_id(hub: Hub, text: str) -> None:
    with pytest.raises(UnreadableError):
        resolve_model(text, shapes=SHAPES)
    assert not hub.calls


def test_an_address_is_taken_as_it_is(hub: Hub) -> None:
    found = resolve_model("s3://b/m", shapes=SHAPES)
    assert (found.kind, found.address, found.path) == ("url", "s3://b/m", None)
    assert not hub.calls


def test_a_hub_id_in_the_cache_stays_offline(hub: Hub) -> None:
    hub.cache.mkdir()
    (hub.cache / "model.safetensors").write_bytes(ONE)
    found = resolve_model("org/name", shapes=SHAPES)
    assert (found.kind, found.path) == ("hub", str(hub.cache))
    assert not hub.went_online


def test_a_hub_id_is_downloaded_without_what_is_not_read(hub: Hub) -> None:
    hub.files |= {
        "README.md": b"#",
        "tokenizer.json": b"{}",
        "pytorch_model.bin": b"x",
        "consolidated.safetensors": ONE,
        "adapter_model.safetensors": ONE,
        "original/consolidated.00.pth": b"x",
        "onnx/model.onnx": b"x",
        "sub/model.safetensors": ONE,
    }
    found = resolve_model("org/name", shapes=SHAPES)
    assert found.path == str(hub.cache)
    assert hub.got == {"config.json", "tokenizer.json", "model.safetensors"}


def test_only_what_the_index_names_is_downloaded(hub: Hub, tmp_path: Path) -> None:
    index = tmp_path / "i"
    index.mkdir()
    names = [tiny.shard_name(1, 2), tiny.shard_name(2, 2)]
    path = tiny.write_index(index, {"w": names[0], "v": names[1]})
    hub.files = {
        path.name: path.read_bytes(),
        names[0]: ONE,
        names[1]: TWO,
        "consolidated.safetensors": ONE,
        "extra.safetensors": ONE,
    }
    resolve_model("org/name", shapes=SHAPES)
    assert hub.got == {path.name, *names}


def test_mistrals_layout_is_downloaded_if_there_is_no_other(hub: Hub) -> None:
    hub.files = {"params.json": b"{}", "consolidated.safetensors": ONE}
    resolve_model("org/name", shapes=SHAPES)
    assert "consolidated.safetensors" in hub.got


def test_torch_files_are_downloaded_if_there_are_no_safetensors(hub: Hub) -> None:
    hub.files = {"config.json": b"{}", "pytorch_model.bin": b"x", "training_args.bin": b"x"}
    resolve_model("org/name", shapes=SHAPES)
    assert hub.got == {"config.json", "pytorch_model.bin"}


def test_an_incomplete_cache_is_completed(hub: Hub) -> None:
    hub.cache.mkdir()
    (hub.cache / "config.json").write_text("{}")
    resolve_model("org/name", shapes=SHAPES)
    assert "model.safetensors" in hub.got


def test_an_incomplete_cache_is_returned_where_the_hub_is_out_of_reach(hub: Hub) -> None:
    hub.cache.mkdir()
    hub.reachable = False
    assert resolve_model("org/name", shapes=SHAPES).path == str(hub.cache)


def test_c89_offline_and_not_in_the_cache_names_the_cache(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UnreadableError) as caught:
        resolve_model("org/name", shapes=SHAPES)
    assert "models--org--name" in str(caught.value)
    assert str(constants.HF_HUB_CACHE) in str(caught.value)
    assert "HF_HUB_OFFLINE" in str(caught.value)
    assert not hub.went_online


def test_c89_offline_and_incomplete_in_the_cache(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.cache.mkdir()
    assert resolve_model("org/name", shapes=SHAPES).path == str(hub.cache)
    assert not hub.went_online


def test_a_hub_out_of_reach_is_one_error_with_its_reason(hub: Hub) -> None:
    hub.reachable = False
    with pytest.raises(UnreadableError) as caught:
        resolve_model("org/llama-3.1-8b", shapes=SHAPES)
    text = str(caught.value)
    assert "ConnectionError: the Hub is out of reach" in text
    assert "did you mean llama-3.1-8b" in text
    assert "models--org--llama-3.1-8b" in text


def test_a_revision_is_passed_on(hub: Hub) -> None:
    resolve_model("org/name@v1.0", shapes=SHAPES)
    assert {(call["repo_id"], call["revision"]) for call in hub.calls} == {("org/name", "v1.0")}
