"""The index of a sharded checkpoint: which tensor lies in which file, and whether that is true.

Format: {"metadata": {"total_size": bytes}, "weight_map": {tensor: file}}, as transformers writes
it. vLLM 0.26 and later refuse an index that names absent files; here it is also said which tensors
those files should have held, and whether they lie elsewhere.

Problem codes: index-unreadable, index-invalid, index-duplicate, index-path (the index by itself);
index-file-absent, index-stale, index-tensor-absent, index-wrong-shard, index-tensor-unlisted,
index-size, tied-assumed, duplicate-tensor, two-copies (the index against the files).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from loaders.checkpoint import strict_json
from loaders.checkpoint.manifest import Problem
from loaders.checkpoint.regular import opened, read_at
from loaders.checkpoint.sniff import HEAD_BYTES, foreign
from loaders.checkpoint.text import count, listed, quoted, shown

MAX_JSON: Final = 256_000_000  # 100,000 tensors take about 10 MB


# What model families call the two ends of the vocabulary.
_OUTPUTS = ("lm_head.weight", "embed_out.weight", "output.weight", "output_projection.weight")
_INPUTS = (
    "embed_tokens.weight",
    "wte.weight",
    "word_embeddings.weight",
    "embed_in.weight",
    "tok_embeddings.weight",
    "shared.weight",
    "embedding.weight",
    "embeddings.weight",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """`name` is the index file's; `weight_map` tensor -> file name, each a plain name within the
    folder; `total_size` the bytes it claims, None if it doesn't; `unplaced` are tensors that it
    names without a file (some writers do so for tied weights)."""

    name: str
    weight_map: Mapping[str, str]
    total_size: int | None
    files: frozenset[str]
    unplaced: tuple[str, ...] = ()


def read_json(path: str, name: str) -> tuple[Any, list[Problem]]:
    """A small JSON file's value, or None and what is wrong with it (code index-unreadable or
    index-invalid, lfs-pointer, not-weights)."""

    try:
        with opened(path) as (fd, size):
            if size > MAX_JSON:
                text = f"{size:,} bytes, more than {MAX_JSON:,} can't be one"
                return None, [_bad(name, "index-invalid", text)]
            raw = read_at(fd, 0, size)
    except OSError as error:
        text = f"can't be read: {shown(error.strerror or error)}"
        return None, [_bad(name, "index-unreadable", text)]
    return parse_json(raw, name)


def parse_json(raw: bytes, name: str) -> tuple[Any, list[Problem]]:
    """The value of a small JSON file's bytes, or None and what is wrong with them."""
    try:
        return strict_json.loads(raw), []
    except strict_json.StrictJsonError as error:
        other = foreign(raw[:HEAD_BYTES], len(raw))
        # Broken JSON is text too: only say what it is if that is something else by its start.
        if other is not None and not raw.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"[")):
            return None, [_bad(name, *other)]
        text = f"is not valid JSON ({error}); download it again"
        return None, [_bad(name, "index-invalid", text)]


def _bad(name: str, code: str, text: str, tensor: str | None = None) -> Problem:
    return Problem(code=code, file=name, tensor=tensor, message=f"{shown(name)}: {text}")


def read_index(path: str, name: str) -> tuple[Index | None, list[Problem]]:
    """The index, or None where it can't be used, with what is wrong in it."""
    root, problems = read_json(path, name)
    return (None, problems) if problems else parse_index(root, name)


def parse_index(root: Any, name: str) -> tuple[Index | None, list[Problem]]:
    """The index that a JSON value is, or None where it can't be used, with what is wrong in it."""
    problems: list[Problem] = []
    bad = partial(_bad, name)
    weight_map = root.get("weight_map") if isinstance(root, dict) else None
    if not isinstance(weight_map, dict):
        text = 'has no "weight_map" object (tensor name -> file name), so it can\'t be used'
        return None, [bad("index-invalid", text)]
    if not weight_map:
        return None, [bad("index-invalid", "its weight_map is empty, so it can't be used")]
    if isinstance(weight_map, strict_json.Repeated):
        problems += _repeated(weight_map, bad)
    placed: dict[str, str] = {}
    unplaced: list[str] = []
    for tensor, file in weight_map.items():
        if file is None or file == "":
            unplaced.append(tensor)
        elif not isinstance(file, str):
            text = f"tensor {quoted(tensor)}: its file must be a string, found {shown(file)}"
            problems.append(bad("index-invalid", text, tensor))
        elif (why := _unsafe(file)) is not None:
            text = f"tensor {quoted(tensor)}: file {quoted(file)} {why}; refused"
            problems.append(bad("index-path", text, tensor))
        else:
            placed[tensor] = file
    total, fault = _total_size(root)
    if fault is not None:
        warning = f"{shown(name)}: {fault}"
        problems.append(Problem(code="index-size", file=name, message=warning, severity="warning"))
    index = Index(
        name=name,
        weight_map=placed,
        total_size=total,
        files=frozenset(placed.values()),
        unplaced=tuple(unplaced),
    )
    return (index if placed else None), problems


def _repeated(weight_map: strict_json.Repeated, bad: Any) -> list[Problem]:
    places: dict[str, set[Any]] = {}
    for tensor, file in weight_map.pairs:
        places.setdefault(tensor, set()).add(str(file))
    return [
        bad(
            "index-duplicate",
            f"tensor {quoted(tensor)} stands more than once: in {listed(sorted(files))}",
            tensor,
        )
        for tensor in weight_map.keys_repeated
        if (files := places[tensor])
    ]


def _unsafe(file: str) -> str | None:
    parts = file.replace("\\", "/").split("/")
    if "\0" in file:
        return "holds a zero byte"
    if ".." in parts:
        return "leads out of the checkpoint's folder"
    if file.startswith(("/", "\\")) or (len(file) > 1 and file[1] == ":"):
        return "is an absolute path"
    if "\\" in file:
        return "holds a backslash"
    if not parts[-1] or parts[-1] == ".":
        return "is no file name"
    return None


def _total_size(root: Mapping[str, Any]) -> tuple[int | None, str | None]:
    metadata = root.get("metadata")
    if not isinstance(metadata, dict) or "total_size" not in metadata:
        return None, None
    value = metadata["total_size"]
    if type(value) is float and value.is_integer():
        value = int(value)  # some writers sum in floating point
    if type(value) is int and value >= 0:
        return value, None
    return None, f"metadata.total_size should be a number of bytes, found {shown(value)[:40]}"


def absent_files(index: Index, present: Iterable[str]) -> set[str]:
    """The files that the index names and the folder lacks."""
    return set(index.files) - set(present)


def tensors_placed_in(index: Index, files: set[str]) -> list[str]:
    """The tensors that the index places in those files."""
    return [tensor for tensor, file in index.weight_map.items() if file in files]


def absence(index: Index, absent: set[str], elsewhere: Mapping[str, str]) -> Problem:
    """The problem of an index that names absent files. `elsewhere` maps every tensor found in any
    file that is there to that file: where that covers all of them, the index is merely stale."""
    tensors = tensors_placed_in(index, absent)
    lost = [tensor for tensor in tensors if tensor not in elsewhere]
    files = sorted(absent)
    what = f"{shown(index.name)}: names {count(len(files), 'file')} not in the folder"
    if not lost:
        text = (
            f"{what} ({listed(files)}), but all {count(len(tensors), 'tensor')} that it places "
            "there were found in files that are: the index is stale, left over from another save"
        )
        return Problem(code="index-stale", file=index.name, message=text, severity="warning")
    sub = " (files in sub-folders are not read)" if any("/" in file for file in files) else ""
    text = (
        f"{what}: {listed(files)}{sub}; {count(len(lost), 'tensor')} in them found nowhere else: "
        f"{listed(lost)}; copy or download the missing files"
    )
    return Problem(code="index-file-absent", file=index.name, tensor=lost[0], message=text)


def against_headers(
    index: Index,
    found: Mapping[str, str],
    names_in: Mapping[str, set[str]],
    config: Mapping[str, Any] | None,
) -> list[Problem]:
    """The index against the headers of the files that could be read, both ways.

    `found` maps each tensor to the first file that holds it, `names_in` each file whose header
    was read to the names in it. Tensors of other files are not told here again.
    """
    problems: list[Problem] = []
    for tensor, file in index.weight_map.items():
        names = names_in.get(file)
        if names is None or tensor in names:
            continue
        where = f"{shown(index.name)}: tensor {quoted(tensor)}"
        if tensor in found:
            text = f"{where} should be in {shown(file)}, found in {shown(found[tensor])}"
            problems.append(_at("index-wrong-shard", file, tensor, text))
            continue
        problems += _missing(where, file, tensor, found, config, index.name)
    for tensor in index.unplaced:
        if tensor not in found:
            where = f"{shown(index.name)}: tensor {quoted(tensor)}"
            problems += _missing(where, None, tensor, found, config, index.name)
    unplaced = set(index.unplaced)
    for tensor, file in found.items():
        if tensor not in index.weight_map and tensor not in unplaced:
            text = (
                f"{shown(file)}: tensor {quoted(tensor)} is in the file, but "
                f"{shown(index.name)} doesn't name it; one of the two is from another save"
            )
            problems.append(_at("index-tensor-unlisted", file, tensor, text))
    return problems


def _missing(
    where: str,
    file: str | None,
    tensor: str,
    found: Mapping[str, str],
    config: Mapping[str, Any] | None,
    index: str,
) -> list[Problem]:
    """`file` is where the index places it, None where it says nothing."""
    tied = tied_to_embedding(tensor, found, config)
    if tied is True:
        return []
    if tied is None:
        text = (
            f"{where} is absent from {shown(file or 'every file')}; taken as tied to the input "
            "embedding, because config.json doesn't say tie_word_embeddings"
        )
        return [_at("tied-assumed", file or index, tensor, text, warning=True)]
    if file is None:
        text = f"{where} is named without a file, and no file has it; write the checkpoint again"
    else:
        text = (
            f"{where} should be in {shown(file)}, which has no such tensor, nor has any other "
            "file; save or download that file again"
        )
    return [_at("index-tensor-absent", file or index, tensor, text)]


def tied_to_embedding(
    tensor: str, found: Iterable[str], config: Mapping[str, Any] | None
) -> bool | None:
    """Whether an absent tensor is an output embedding that shares the input embedding's memory
    and is therefore dropped at saving. None where config.json is there and leaves
    tie_word_embeddings to the model class's default (transformers' own default is true)."""
    if config is None or not tensor.endswith(_OUTPUTS):
        return False
    if not any(name.endswith(_INPUTS) for name in found):
        return False
    parts = [config, config.get("text_config"), config.get("llm_config")]
    stated = [
        part["tie_word_embeddings"]
        for part in parts
        if isinstance(part, Mapping) and isinstance(part.get("tie_word_embeddings"), bool)
    ]
    return any(stated) if stated else None


def against_total(index: Index, totals: set[int]) -> list[Problem]:
    """metadata.total_size against the bytes found (`totals`: each for itself, and shared once)."""
    if index.total_size is None or index.total_size in totals:
        return []
    text = (
        f"{shown(index.name)}: metadata.total_size is {index.total_size:,}, but the tensors found "
        f"take {listed(f'{total:,}' for total in sorted(totals))} bytes"
    )
    return [Problem(code="index-size", file=index.name, message=text, severity="warning")]


def _at(code: str, file: str, tensor: str, text: str, *, warning: bool = False) -> Problem:
    return Problem(
        code=code,
        file=file,
        tensor=tensor,
        message=text,
        severity="warning" if warning else "error",
    )
