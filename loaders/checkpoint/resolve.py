"""What the user means by `--model`: an address, a path, the name of a built-in shape, or a Hub id.

In that order, and the first three never touch the network here: an existing folder is a folder
even when it is named like a Hub id, and HF_HUB_OFFLINE has nothing to forbid there.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

from loaders.checkpoint import names
from loaders.checkpoint.index import read_index
from loaders.checkpoint.listing import list_folder
from loaders.checkpoint.manifest import NoWeightsError, UnreadableError
from loaders.checkpoint.read import examine, local_path
from loaders.checkpoint.text import listed, shown
from loaders.store.address import is_address

_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.\-]*/[A-Za-z0-9][\w.\-]*$")
_TRUE: Final = {"1", "ON", "YES", "TRUE"}
# Patterns of what names.why_not_weights leaves out.
_NO_WEIGHTS: Final = [
    "adapter_*",
    "pytorch_lora_weights*",
    "*training_args.bin",
    "*optimizer*",
    "*scheduler*",
    "*scaler.*",
    "*rng_state*",
    "ggml*",
    "openvino_*",
]


class _Fetch(Protocol):
    """Downloads what matches `patterns` and none of `ignore`; returns the snapshot's folder."""

    def __call__(self, patterns: list[str], ignore: list[str], *, local: bool) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """`text` is what was given. `path` is a local folder or file (kinds "path" and "hub"),
    `shape` the name of a built-in shape, `address` where a store has the model (kind "url")."""

    kind: Literal["path", "shape", "hub", "url"]
    text: str
    path: str | None = None
    shape: str | None = None
    address: str | None = None


def resolve_model(text: str, *, shapes: Collection[str]) -> Resolved:
    """Finds out what `text` names. `shapes` are the names of the built-in shapes.

    A Hub id ("org/name", or "org/name@revision") is looked for in the cache first; what is missing
    there is downloaded, with a progress bar, unless HF_HUB_OFFLINE is set: only the weight files
    that would be read, and *.json. UnreadableError, with near misses and the places looked at, if
    nothing is found.
    """
    if is_address(text):
        return Resolved(kind="url", text=text, address=text)
    place = local_path(text)
    if os.path.lexists(place):
        return Resolved(kind="path", text=text, path=place)
    if text in shapes:
        return Resolved(kind="shape", text=text, shape=text)
    repo, _, revision = text.partition("@")
    if not _HUB_ID.match(repo) or ".." in repo or text.startswith((".", "/", "~")):
        raise UnreadableError(_nothing_found(text, shapes))
    folder = _from_hub(repo, revision or None, shapes)
    return Resolved(kind="hub", text=text, path=folder)


def _from_hub(repo: str, revision: str | None, shapes: Collection[str]) -> str:
    # Imported here: it takes a while, and a local path must not depend on it.
    import huggingface_hub
    from huggingface_hub import constants

    def fetch(patterns: list[str], ignore: list[str], *, local: bool) -> str:
        return str(
            huggingface_hub.snapshot_download(
                repo,
                revision=revision,
                allow_patterns=patterns,
                ignore_patterns=["*/*", *ignore],  # original/, onnx/: never read, so never fetched
                local_files_only=local,
            )
        )

    everything = [f"*{suffix}" for suffix in names.PATTERNS] + ["*.json"]
    cached: str | None = None
    reason: Exception | None = None
    try:
        cached = fetch(everything, [], local=True)
    except Exception as error:  # its classes moved between releases; the reason is shown
        reason = error
    offline = _offline(constants)
    if cached is not None and (offline or _sound(cached)):
        return cached
    if not offline:
        try:
            return _download(fetch)
        except Exception as error:  # network, permission, disk: all end in one message
            if cached is not None:
                return cached  # its faults are named when it is examined
            reason = error
    cache = Path(constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}"
    said = "HF_HUB_OFFLINE is set, so it isn't downloaded; " if offline else ""
    lines = str(reason).strip().splitlines() or [""]
    raise UnreadableError(
        f"{_nothing_found(repo, shapes)}\n  not in the Hugging Face cache either: {cache}\n"
        f"  {said}{type(reason).__name__}: {shown(lines[0])}"
    ) from reason


def _download(fetch: _Fetch) -> str:
    """Fetches the small files, then those weights that select.py would choose among the
    repository's: what the index names; without one, the first suffix that there is."""
    folder = fetch(["*.json"], [], local=False)
    for suffix in names.PATTERNS:
        for name in names.STANDARD_INDEX[suffix]:
            if (Path(folder) / name).is_file():
                index, _ = read_index(f"{folder}/{name}", name)
                if index is not None:
                    return fetch(["*.json", *sorted(index.files)], [], local=False)
        # The publisher's own copy lies beside in some repositories: only if there is no other.
        for ignore in (["consolidated*", *_NO_WEIGHTS], _NO_WEIGHTS):
            folder = fetch(["*.json", f"*{suffix}"], ignore, local=False)
            if any(names.suffix_of(item.name) == suffix for item in list_folder(folder)):
                return folder
    return folder


def _sound(folder: str) -> bool:
    try:
        return not examine(folder).errors
    except (NoWeightsError, UnreadableError):
        return False


def _offline(constants: object) -> bool:
    """As huggingface_hub decides it, and as the environment says now: the library reads it once."""
    said = (os.environ.get(name, "") for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    return bool(getattr(constants, "HF_HUB_OFFLINE", False)) or any(
        value.upper() in _TRUE for value in said
    )


def _nothing_found(text: str, shapes: Collection[str]) -> str:
    lower = {shape.lower(): shape for shape in shapes}
    last = text.lower().rsplit("/", 1)[-1]
    near = difflib.get_close_matches(text.lower(), lower, n=3, cutoff=0.5)
    near += [name for name in difflib.get_close_matches(last, lower, n=3) if name not in near]
    hint = f"; did you mean {listed(lower[name] for name in near)}?" if near else ""
    known = "" if near or not shapes else f"; the shapes are {listed(sorted(shapes), 20)}"
    what = "no such file or folder"
    if not text.startswith((".", "/", "~")):
        what += ", no built-in shape, and no model of that Hub id (org/name) could be had"
    return f"{shown(text)}: {what}{hint}{known}"
