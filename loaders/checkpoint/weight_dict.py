"""Which of the tensors in a saved object are the weights: one answer for manifest and loader.

Training code saves more than weights: {"model": ..., "optimizer": ..., "step": 7}. The rules:

1. A dict with tensors under names like a parameter's ("layer.0.weight", "weight", "bias") is a
   state dict itself. A "module." in front of names (DataParallel) is left as it is.
2. Else the first of WEIGHT_KEYS that holds a dict with tensors in it is gone into, as often as
   that is so ({"model": {"state_dict": ...}}).
3. Else all tensors of the dict count, nested ones too (a Megatron file, {"encoder": {...}}), apart
   from the entries whose name says that they are training state.

Nested names are joined with ".", list items go by their position, int keys by their digits.
Optimizer states are told by their content too ({"state": ..., "param_groups": ...}). Numbers,
strings and None are passed over; tensors that don't count are returned as `skipped`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

# In the order of preference; moving averages last, because an engine loads the weights proper.
WEIGHT_KEYS = (
    "state_dict",
    "model_state_dict",
    "model_state",
    "model",
    "module",
    "weights",
    "net",
    "network",
    "params",
    "generator_state_dict",
    "ema_state_dict",
    "model_ema",
    "params_ema",
    "ema",
)
_TRAINING = re.compile(
    r"(^|[_\-])(optimizers?|optim|opt|adam|(lr)?schedulers?|(grad|loss)?scalers?|amp|rng|random"
    r"|callbacks|loops|samplers?|dataloaders?|hparams|args|config|cfg)([_\-]|\d*$)",
    re.IGNORECASE,
)
_RNG = re.compile(r"(^|_)(rng|random)_states?", re.IGNORECASE)
_KEY_OF = "<key of type "
_MAX_DEPTH = 64
_MAX_VISITS = 2_000_000


class WeightDictError(Exception):
    """There is no weight dict: a problem's code and its sentence."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights(Generic[T]):
    """`tensors` by name; `path` is where they lay ("" at the top, else "state_dict"); `skipped` are
    the tensors that don't count as weights, by the path of the entry that holds them."""

    tensors: dict[str, T]
    path: str
    skipped: dict[str, list[T]]


def find_weights(saved: object, kind: type[T]) -> Weights[T]:
    """The weights in what a torch.save file holds. `kind` is the class that tensors have: real ones
    in a loader, descriptions in the manifest. Raises WeightDictError if there are none."""
    if isinstance(saved, kind):
        raise WeightDictError(
            "no-weight-dict", "holds one bare tensor; a checkpoint is a dict of names and tensors"
        )
    if not isinstance(saved, Mapping):
        raise WeightDictError(
            "no-weight-dict",
            f"holds a {type(saved).__name__}; a checkpoint is a dict of names and tensors",
        )
    path: list[str] = []
    skipped: dict[str, list[T]] = {}
    level: Mapping[object, object] = saved
    while (key := _inner(level, kind)) is not None and len(path) < _MAX_DEPTH:
        for other, value in level.items():
            if other != key:
                _skip(skipped, [*path, _label(other)], value, kind)
        path.append(key)
        inner = level[key]
        assert isinstance(inner, Mapping)
        level = inner
    tensors = _flatten(level, kind, path, skipped)
    if not tensors:
        where = ", ".join(skipped)
        if skipped and all(_KEY_OF in entry for entry in skipped):
            raise WeightDictError(
                "no-weight-dict",
                f"its tensors stand under keys that are no names ({where}); a checkpoint is a dict "
                "of names and tensors: save it again so",
            )
        if skipped or _is_optimizer(level):
            raise WeightDictError(
                "not-weights",
                f"holds training state only ({where or 'an optimizer'}), no weights: leave it out",
            )
        raise WeightDictError("no-tensors", "holds a dict without any tensor")
    return Weights(tensors=tensors, path=".".join(path), skipped=skipped)


def _inner(level: Mapping[object, object], kind: type[T]) -> str | None:
    """The key to go into, or None where the level itself is the weight dict."""
    for key, value in level.items():
        if isinstance(value, kind) and isinstance(key, str) and _is_parameter(key):
            return None
    for known in WEIGHT_KEYS:
        value = level.get(known)
        if isinstance(value, Mapping) and not _is_optimizer(value) and _tensors_in(value, kind):
            return known
    return None


def _is_parameter(name: str) -> bool:
    return "." in name or name in ("weight", "bias")


def _is_optimizer(value: object) -> bool:
    return isinstance(value, Mapping) and "state" in value and "param_groups" in value


def _flatten(
    top: Mapping[object, object], kind: type[T], path: list[str], skipped: dict[str, list[T]]
) -> dict[str, T]:
    """Every tensor below `top` by its joined name, in the order of the file. Training state is left
    out: by name where `top` is the whole file, by content everywhere."""
    found: dict[str, T] = {}
    todo: list[tuple[tuple[str, ...], object]] = [((), top)]
    visits = 0
    while todo:
        names, value = todo.pop()
        visits += 1
        if visits > _MAX_VISITS or len(names) > _MAX_DEPTH:
            raise WeightDictError("too-deep", "nests dicts or lists without end; no checkpoint")
        if isinstance(value, kind):
            name = ".".join(names)
            if len(names) == 1 and _RNG.search(name) and not _is_parameter(name):
                skipped[".".join([*path, name])] = [value]
            elif name in found:
                raise WeightDictError(
                    "duplicate-tensor", f"two entries have the name {name[:200]!r}"
                )
            else:
                found[name] = value
        elif names and _is_optimizer(value):
            _skip(skipped, [*path, *names], value, kind)
        elif isinstance(value, (Mapping, list, tuple)):
            if not path and len(names) == 1 and _TRAINING.search(names[0]):
                _skip(skipped, list(names), value, kind)
                continue
            if not names and _is_optimizer(value):
                for key, inside in _items(value):
                    _skip(skipped, [*path, _label(key)], inside, kind)
                continue
            children = []
            for key, inside in _items(value):
                if _nameable(key):
                    children.append(((*names, str(key)), inside))
                else:
                    _skip(skipped, [*path, *names, _label(key)], inside, kind)
            todo.extend(reversed(children))
    return found


def _items(value: object) -> Iterator[tuple[object, object]]:
    if isinstance(value, Mapping):
        return iter(value.items())
    assert isinstance(value, list | tuple)
    return iter(enumerate(value))


def _nameable(key: object) -> bool:
    return isinstance(key, str) or (isinstance(key, int) and not isinstance(key, bool))


def _label(key: object) -> str:
    return str(key)[:100] if _nameable(key) else f"{_KEY_OF}{type(key).__name__}>"


def _skip(skipped: dict[str, list[T]], path: list[str], value: object, kind: type[T]) -> None:
    tensors = _tensors_in(value, kind)
    if tensors:
        skipped.setdefault(".".join(path), []).extend(tensors)


def _tensors_in(value: object, kind: type[T]) -> list[T]:
    """All tensors at or below `value`, each container looked at once."""
    tensors: list[T] = []
    seen: set[int] = set()
    todo = [value]
    while todo:
        value = todo.pop()
        if isinstance(value, kind):
            tensors.append(value)
        elif isinstance(value, (Mapping, list, tuple)) and id(value) not in seen:
            seen.add(id(value))
            todo.extend(inside for _, inside in _items(value))
    return tensors
