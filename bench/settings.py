"""The options of a run, checked before anything is opened. Pure values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.record.cachestate import share_of
from bench.sizes import parse_size

DEFAULT_MODEL = "llama-3.1-8b"
DEFAULT_SIZE = "1GiB"
DEFAULT_PASSES = 3
DEFAULT_TP = 8
DEFAULT_RANKS = (2, 4)
SMOKE_TP = 2
"""A checkpoint of a few MiB has few heads."""
DEFAULT_BUDGET = 180.0
SMOKE_SIZE = 16 << 20
CACHES = {"cold": ("cold",), "warm": ("warm",), "both": ("cold", "warm")}


class SettingsError(ValueError):
    """An option that can't be used: which, what was found, what it takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageChoice:
    """A folder or an address to measure at, and the name it gets in records; None until its file
    system, or the address's scheme, names it."""

    label: str | None
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderChoice:
    """`name`, or `name:option=value,...`; `options` is None for all of the loader's variants."""

    name: str
    options: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a run was asked for; sizes in bytes, budget in seconds."""

    model: str = DEFAULT_MODEL
    storages: tuple[StorageChoice, ...] = ()
    loaders: tuple[LoaderChoice, ...] = ()
    caches: tuple[str, ...] = ("cold", "warm")
    threads: tuple[int, ...] = ()
    passes: int = DEFAULT_PASSES
    size: int
    sized: bool = False
    budget: float = DEFAULT_BUDGET
    run_dir: str | None = None
    drop_caches: bool = False
    full: bool = False
    smoke: bool = False
    seed: int
    stage: str | None = None
    device: str = "auto"
    tp: int = DEFAULT_TP
    tp_given: bool = False
    ep: bool = False
    ranks: tuple[int, ...] = ()
    named: tuple[str, ...] = ()


def parse_settings(given: Mapping[str, Any], *, smoke: bool, seed: int) -> Settings:
    """From the options as text, each None (a list: empty) where it wasn't given. SettingsError."""
    for name, value in given.items():
        if value == "":  # of a shell variable that is empty, as a rule: nothing is guessed from it
            option = f"--{name.replace('_', '-')}"
            raise SettingsError(f"{option}=: expected a value; without one leave {option} out")
    size_text = given.get("size") or DEFAULT_SIZE
    try:
        size = parse_size(size_text)
    except ValueError as error:
        raise SettingsError(f"--size={size_text}: {error}") from error
    passes = _positive("--passes", given.get("passes"), DEFAULT_PASSES)
    return Settings(
        model=given.get("model") or DEFAULT_MODEL,
        storages=_storages(given.get("storage") or []),
        loaders=tuple(parse_loader(text) for text in given.get("loader") or []),
        caches=parse_caches(given.get("cache") or "both"),
        threads=_counts("--threads", given.get("threads")),
        passes=1 if smoke else passes,
        size=SMOKE_SIZE if smoke else size,
        sized=bool(given.get("size")),
        budget=_seconds(given.get("budget")),
        run_dir=given.get("run_dir"),
        drop_caches=bool(given.get("drop_caches")),
        full=bool(given.get("full")),
        smoke=smoke,
        seed=seed,
        stage=given.get("stage") or None,
        device=given.get("device") or "auto",
        tp=_positive("--tp", given.get("tp"), SMOKE_TP if smoke else DEFAULT_TP),
        tp_given=given.get("tp") is not None,
        ep=bool(given.get("ep")),
        ranks=_counts("--ranks", given.get("ranks")),
        named=tuple(given.get("named") or ()),
    )


def parse_caches(text: str) -> tuple[str, ...]:
    """`cold`, `warm`, `both`, or a list of these and of shares: `cold,25%,50%,warm`. 0% is cold,
    100% is warm."""
    found: list[str] = []
    for part in text.split(","):
        one = {"0%": "cold", "100%": "warm"}.get(part, part)
        if one in CACHES:
            found += CACHES[one]
        elif share_of(one) is not None:
            found.append(one)
        else:
            raise SettingsError(
                f"--cache={text}: expected cold, warm, both, or a list with shares of the files in "
                "the page cache, such as cold,25%,50%,warm"
            )
    return tuple(dict.fromkeys(found))


def parse_loader(text: str) -> LoaderChoice:
    """`pt`, or `pt:mmap=true,...`. A value is a bool (true/false), an int or else text."""
    name, colon, rest = text.partition(":")
    if not colon:
        return LoaderChoice(name=name, options=None)
    options: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise SettingsError(f"--loader={text}: expected name:option=value, found {part!r}")
        if key in options:
            raise SettingsError(f"--loader={text}: {key} is given twice")
        options[key] = _value(value)
    return LoaderChoice(name=name, options=options)


def _value(text: str) -> Any:
    if text in {"true", "false"}:
        return text == "true"
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text


def _storages(texts: Sequence[str]) -> tuple[StorageChoice, ...]:
    choices = []
    for text in texts:
        # https://host/x is no label and a folder; x:https://host/x is a label and an address.
        pattern = r"([\w.-]+):(\w[\w+.-]*:.*)" if "://" in text else r"([\w.-]+):(.*)"
        labelled = re.fullmatch(pattern, text, re.ASCII)
        label, path = labelled.groups() if labelled else (None, text)
        if not path:
            raise SettingsError(f"--storage={text}: expected a folder, or a label and a folder")
        choices.append(StorageChoice(label=label, path=path))
    labels = [choice.label for choice in choices if choice.label]
    if len(set(labels)) != len(labels):
        raise SettingsError(f"--storage: two storages have one label ({', '.join(labels)})")
    return tuple(choices)


def _counts(option: str, text: str | None) -> tuple[int, ...]:
    if not text:
        return ()
    counts = tuple(_positive(option, part, 0) for part in text.split(","))
    return tuple(dict.fromkeys(counts))


def _positive(option: str, text: object, default: int) -> int:
    if text is None:
        return default
    if not re.fullmatch(r"\s*[1-9][0-9]{0,8}\s*", str(text)):
        raise SettingsError(f"{option}={text}: expected a whole number from 1")
    return int(str(text))


def _seconds(text: object) -> float:
    if text is None:
        return DEFAULT_BUDGET
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(s|m|min|h)?", str(text))
    if not found or float(found[1]) == 0:
        raise SettingsError(f"--budget={text}: expected a time such as 180s or 10m")
    return float(found[1]) * {"s": 1, None: 1, "m": 60, "min": 60, "h": 3600}[found[2]]
