"""What an engine was started with: from its line of arguments, else from its line of configuration.

Both are Python's way of printing objects (`{'model': 'x'}`, `Namespace(model='x')`, `model='x',
dtype=torch.bfloat16`), cut off at times, with objects inside that no parser reads; so the top level
is split at its commas and the values are taken as they stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

MOST = 400
"""Settings of one line that are kept."""

# record field -> names it has in arguments and configuration, the first that says something counts
NAMES: Mapping[str, tuple[str, ...]] = {
    "model": ("model_tag", "model", "model_path"),
    "dtype": ("dtype",),
    "quantization": ("quantization",),
    "tensor_parallel_size": ("tensor_parallel_size", "tp_size", "tp"),
    "pipeline_parallel_size": ("pipeline_parallel_size", "pp_size", "pp"),
    "data_parallel_size": ("data_parallel_size", "dp_size", "dp"),
    "gpu_memory_utilization": ("gpu_memory_utilization",),
    "load_format": ("load_format",),
    "max_model_len": ("max_model_len", "max_seq_len"),
    "max_num_batched_tokens": ("max_num_batched_tokens",),
    "max_num_seqs": ("max_num_seqs",),
    "block_size": ("block_size",),
    "swap_space": ("swap_space",),
    "enforce_eager": ("enforce_eager",),
    "max_seq_len_to_capture": ("max_seq_len_to_capture",),
    "num_gpu_blocks_override": ("num_gpu_blocks_override",),
    "seed": ("seed",),
}
_NUMBERS = frozenset(NAMES) - {"model", "dtype", "quantization", "load_format", "enforce_eager"}
_KEY = re.compile(r"\s*(?:'([^']{1,80})'\s*:|\"([^\"]{1,80})\"\s*:|([A-Za-z_][\w.-]{0,79})\s*=)\s*")


def pairs(text: str) -> dict[str, str]:
    """Top-level keys and values, as printed, of `{...}`, `Name(...)` or `a=1, b=2`; as far as the
    text goes. Never raises."""
    text = text.strip()
    if found := re.match(r"(?:[\w.]*\(|\{)", text):
        text = text[found.end() :]
    kept: dict[str, str] = {}
    for part in _parts(text):
        if (found := _KEY.match(part)) and len(kept) < MOST:
            key = (found[1] or found[2] or found[3]).lstrip("-").replace("-", "_")
            kept.setdefault(key, part[found.end() :].strip())
    return kept


def _parts(text: str) -> Iterator[str]:
    """Pieces between the commas outside of all brackets and quotes; ends with the first bracket
    that closes what isn't open."""
    depth, quote, start, escaped = 0, "", 0, False
    for at, sign in enumerate(text):
        if quote:
            if escaped:
                escaped = False
            elif sign == "\\":
                escaped = True
            elif sign == quote:
                quote = ""
        elif sign in "'\"":
            quote = sign
        elif sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth -= 1
            if depth < 0:
                yield text[start:at]
                return
        elif sign == "," and depth == 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]


def plain(value: str) -> Any:
    """A printed value as a number, a bool, None or a text: `torch.bfloat16` and `LoadFormat.AUTO`
    without what they belong to, `<Enum.X: 'x'>` as what it holds."""
    value = value.strip()
    if found := re.fullmatch(r"<[\w.]+: (.*)>", value):
        value = found[1]
    if len(value) > 1 and value[0] in "'\"" and value[-1] == value[0]:
        return value[1:-1]
    if value in ("None", "null", ""):
        return None
    if value in ("True", "true", "False", "false"):
        return value in ("True", "true")
    for number in (int, float):
        try:
            return number(value)
        except ValueError:
            continue
    if found := re.fullmatch(r"(?:torch|LoadFormat|ModelDType)\.(\w+)", value):
        return found[1] if value.startswith("torch.") else found[1].lower()
    return value


def setting(field: str, printed: Mapping[str, str]) -> Any:
    """The value of a record's field among printed settings, or None. What only says that the engine
    shall choose (`dtype=auto`) says nothing, except for the load format."""
    for name in NAMES[field]:
        value = plain(printed[name]) if name in printed else None
        if value is None or (value == "auto" and field != "load_format"):
            continue
        if field in _NUMBERS and (isinstance(value, bool) or not isinstance(value, (int, float))):
            continue
        if field == "enforce_eager" and not isinstance(value, bool):
            continue
        if field in ("model", "dtype", "quantization", "load_format"):
            return str(value).removeprefix("torch.")
        return value
    return None
