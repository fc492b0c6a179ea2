"""What a file's name says about it: weights, a leftover, something of the training.

Pure functions on names. Which files are weights follows vLLM 0.33 (weight_utils,
default_loader): globs `*.safetensors`, `*.bin`, `*.pt`, the first that matches; names that end in
training_args.bin, optimizer.bin, optimizer.pt, scheduler.pt or scaler.pt are no weights. Added
here: the same kinds under the names that accelerate, PEFT, ggml and OpenVINO give them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from loaders.checkpoint.listing import natural

PATTERNS: Final = (".safetensors", ".bin", ".pt")
STANDARD_INDEX: Final = {
    ".safetensors": ("model.safetensors.index.json", "consolidated.safetensors.index.json"),
    ".bin": ("pytorch_model.bin.index.json",),
    ".pt": (),
}
_PARTIAL: Final = (".incomplete", ".part", ".partial", ".crdownload", ".aria2", ".download", ".tmp")
_WEIGHT_LIKE: Final = (
    *PATTERNS,
    *_PARTIAL,
    ".pth",
    ".ckpt",
    ".gguf",
    ".ggml",
    ".h5",
    ".msgpack",
    ".onnx",
    ".npz",
    ".ot",
    ".tar",
    ".pkl",
)
_TRAINING = re.compile(
    r"(training_args|optimizer|optim_states|scheduler|scaler|rng_state|random_states?)"
    r"([_-]\d+)*(-of-\d+)?\.(bin|pt|safetensors)$",
    re.IGNORECASE,
)
_ADAPTER = re.compile(r"^(adapter_(model|weights)|pytorch_lora_weights)\b", re.IGNORECASE)
_SHARD = re.compile(r"^(?P<stem>.*?)(?P<number>\d+)-of-(?P<total>\d+)(?P<rest>.*)$")
_RANK = re.compile(r"^model-(?:pp-(\d+)-tp|rank)-(\d+)-part-")


def suffix_of(name: str) -> str | None:
    """The pattern of weights that the name matches, or None. A glob skips hidden names."""
    if name.startswith("."):
        return None
    return next((suffix for suffix in PATTERNS if name.endswith(suffix)), None)


def why_not_weights(name: str) -> str | None:
    """Why a file of a matching suffix is not the model's weights, or None if it may be."""
    if _TRAINING.search(name):
        return "state of the training run, not weights"
    if _ADAPTER.match(name):
        return "an adapter (LoRA), not the model's own weights"
    if name.startswith("ggml"):
        return "a ggml file (whisper.cpp, llama.cpp), not torch"
    if name.startswith("openvino_"):
        return "an OpenVINO file, not torch"
    return None


def is_consolidated(name: str) -> bool:
    """Whether it is of Mistral's and Meta's own layout, which often lies beside the other one."""
    return name.startswith("consolidated")


def partial_of(name: str) -> str | None:
    """The name that an unfinished download will have in the end, or None if it is none."""
    for suffix in _PARTIAL:
        if name.lower().endswith(suffix):
            return name[: -len(suffix)]
    return None


def looks_like_weights(name: str) -> bool:
    """Whether someone might take the file for weights, so that leaving it out needs a reason."""
    return name.lower().endswith(_WEIGHT_LIKE) and not name.endswith(".json")


def index_names(names: Iterable[str], suffix: str) -> list[str]:
    """The index files for a suffix, the engines' own first: `model.safetensors.index.json`, then
    Mistral's, then others (variants: model.safetensors.index.fp16.json)."""
    pattern = re.compile(re.escape(f"{suffix}.index.") + r"(.+\.)?json$")
    found = {name for name in names if pattern.search(name) and not name.startswith(".")}
    standard = [name for name in STANDARD_INDEX[suffix] if name in found]
    return standard + sorted(found - set(standard), key=natural)


@dataclass(frozen=True, slots=True)
class ShardSet:
    """What the files `STEM<number>-of-<total>REST` have in common."""

    stem: str
    total: int
    rest: str

    def __str__(self) -> str:
        return f"{self.stem}*-of-{self.total:05d}{self.rest}"


def shard_of(name: str) -> tuple[ShardSet, int] | None:
    """The set that a shard belongs to and its number, or None if the name tells none."""
    match = _SHARD.match(name)
    if match is None:
        return None
    group = ShardSet(match["stem"], int(match["total"]), match["rest"])
    return group, int(match["number"])


def missing_numbers(total: int, present: set[int]) -> tuple[int, list[int]]:
    """(how many, the first ten) of the shard numbers that a set lacks. Numbers run from 1, or from
    0 where there is a 0. `total` comes from a file name and may be absurd."""
    first = 0 if 0 in present else 1
    within = sum(1 for number in present if first <= number < first + total)
    lacking: list[int] = []
    number = first
    while number < first + total and len(lacking) < 10:
        if number not in present:
            lacking.append(number)
        number += 1
    return total - within, lacking


def rank_of(name: str) -> tuple[int, int] | None:
    """(pipeline stage, rank) in the name of a pre-sharded file (vLLM's sharded_state), or None;
    without stages the first is 0."""
    match = _RANK.match(name)
    return (int(match[1] or 0), int(match[2])) if match else None
