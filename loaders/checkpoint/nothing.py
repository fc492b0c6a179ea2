"""The text of "no weights here": what is there instead, and what would read it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loaders.checkpoint import names
from loaders.checkpoint.index import read_index
from loaders.checkpoint.listing import Item, list_folder
from loaders.checkpoint.manifest import NoWeightsError, UnreadableError
from loaders.checkpoint.text import count, listed, shown

_READERS = {
    ".safetensors": "the safetensors loaders read them: --format safetensors",
    ".bin": "the loaders pt and pt-threads read them: --format pt",
    ".pt": "the loaders pt and pt-threads read them: --format pt",
    ".pth": "the loader pt reads one if its own path is given",
    ".ckpt": "the loader pt reads one if its own path is given",
    ".tensors": "the loader tensorizer reads them: --format tensorizer",
    ".snapshot": "the loader snapshot reads them: --format snapshot",
    ".tar": "the loader pt reads a .pth.tar if its own path is given",
    ".gguf": "llama.cpp's format, which no loader here reads; get the safetensors version",
    ".ggml": "llama.cpp's old format, which no loader here reads",
    ".h5": "TensorFlow's format, which no loader here reads",
    ".msgpack": "Flax's format, which no loader here reads",
    ".onnx": "ONNX, which no loader here reads",
    ".npz": "NumPy's format, which no loader here reads",
    ".ot": "rust-bert's format, which no loader here reads",
}


def nothing_here(folder: str, items: Sequence[Item], asked: str) -> NoWeightsError:
    """The error for a folder without weights of the format asked for ("auto": of any)."""
    what = "no weights" if asked == "auto" else f"no weights of format {asked}"
    lines = [f"{shown(folder)}: {what} in this folder"]
    if not items:
        lines.append("  the folder is empty")
    lines += [f"  {line}" for line in _describe(folder, items)]
    return NoWeightsError("\n".join(lines))


def _describe(folder: str, items: Sequence[Item]) -> list[str]:
    lines = []
    by_suffix: dict[str, list[str]] = {}
    partial: list[str] = []
    adapters: list[str] = []
    training: list[str] = []
    rest: list[str] = []
    folders: list[Item] = []
    for item in items:
        name = item.name
        suffix = names.suffix_of(name) or next(
            (end for end in _READERS if name.lower().endswith(end)), None
        )
        why = names.why_not_weights(name) if names.suffix_of(name) else None
        if item.kind == "folder":
            folders.append(item)
        elif names.partial_of(name) is not None:
            partial.append(name)
        elif why is not None:
            (adapters if "adapter" in why else training).append(name)
        elif suffix is not None and not name.startswith("."):
            by_suffix.setdefault(suffix, []).append(name)
        else:
            rest.append(name)
    for suffix, found in by_suffix.items():
        files = f"{count(len(found), f'{suffix} file')} ({listed(found, 3)})"
        lines.append(f"{files}: {_READERS[suffix]}")
    if partial:
        lines.append(f"unfinished downloads ({listed(partial, 3)}): download them again")
    for place, size in _hidden_partials(folder):
        lines.append(f"an unfinished download ({size:,} bytes so far) in {shown(place)}: resume it")
    if adapters:
        lines.append(f"an adapter only ({listed(adapters, 3)}): give the base model's folder")
    if training:
        lines.append(f"training state, not weights: {listed(training, 3)}")
    lines += _indexes(folder, [item.name for item in items])
    for item in folders:
        inside = _weights_in(item)
        if inside:
            lines.append(f"sub-folder {shown(item.name)}/ holds {inside}: give its path")
    if rest:
        lines.append(f"other files: {listed(rest)}")
    empty = [item.name for item in folders if not _weights_in(item)]
    if empty:
        lines.append(f"other folders: {listed(empty)}")
    return lines


def _hidden_partials(folder: str) -> list[tuple[str, int]]:
    """Where the Hub's client keeps what it hasn't finished: beside a local folder's files, or
    among the blobs of its cache."""
    found = []
    for place in (Path(folder, ".cache", "huggingface", "download"), Path(folder, "../../blobs")):
        if place.is_dir() and (place.name == "download" or Path(folder).parent.name == "snapshots"):
            entries = [item for item in list_folder(str(place)) if item.kind == "file"]
            sizes = [item.size for item in entries if item.name.endswith(".incomplete")]
            if sizes:
                found.append((str(place), sum(sizes)))
    return found


def _indexes(folder: str, present: Sequence[str]) -> list[str]:
    """Indexes whose shards are absent altogether: a download of the small files only."""
    lines = []
    for suffix in names.PATTERNS:
        for name in names.index_names(present, suffix):
            index, _ = read_index(f"{folder}/{name}", name)
            if index is not None:
                files = sorted(index.files)
                lines.append(
                    f"{shown(name)} names {count(len(files), 'file')} ({listed(files, 3)}), "
                    "none of which is here: copy or download them"
                )
    return lines


def _weights_in(item: Item) -> str | None:
    try:
        inner = list_folder(item.path)
    except UnreadableError:
        return None  # a folder that can't be listed is named among the others
    for suffix in names.PATTERNS:
        found = [entry for entry in inner if names.suffix_of(entry.name) == suffix]
        if found:
            return count(len(found), f"{suffix} file")
    if item.name == "np" and any(entry.name == "weight_names.json" for entry in inner):
        return "an npcache (--format npcache on the folder above it)"
    return None
