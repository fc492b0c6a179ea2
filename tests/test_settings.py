"""The options of a run: every bad one is one clear error, before anything is opened."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.settings import (
    DEFAULT_BUDGET,
    SMOKE_SIZE,
    LoaderChoice,
    Settings,
    SettingsError,
    StorageChoice,
    parse_loader,
    parse_settings,
)

GIB = 1 << 30


def parsed(smoke: bool = False, **given: Any) -> Settings:
    return parse_settings(given, smoke=smoke, seed=7)


def test_nothing_is_needed() -> None:
    settings = parsed()
    assert settings == Settings(size=GIB, seed=7)
    assert settings.model == "llama-3.1-8b"
    assert settings.caches == ("cold", "warm")
    assert (settings.passes, settings.budget) == (3, 180.0)
    nothing = dict.fromkeys(["model", "storage", "loader", "cache", "threads", "passes", "size"])
    assert parsed(**nothing) == settings


def test_everything() -> None:
    settings = parsed(
        model="org/name",
        storage=["nvme:/mnt/a", "/mnt/b"],
        loader=["pt", "parallel:block_mib=4,huge=true"],
        cache="cold",
        threads="1,2, 4,2",
        passes="8",
        size="1.5GB",
        budget="10m",
        run_dir="out",
        drop_caches=True,
        full=True,
    )
    assert settings == Settings(
        model="org/name",
        storages=(
            StorageChoice(label="nvme", path="/mnt/a"),
            StorageChoice(label=None, path="/mnt/b"),
        ),
        loaders=(
            LoaderChoice(name="pt", options=None),
            LoaderChoice(name="parallel", options={"block_mib": 4, "huge": True}),
        ),
        caches=("cold",),
        threads=(1, 2, 4),
        passes=8,
        sized=True,
        size=1_500_000_000,
        budget=600.0,
        run_dir="out",
        drop_caches=True,
        full=True,
        seed=7,
    )


BAD: list[tuple[str, Any, str]] = [
    ("cache", "lukewarm", r"--cache=lukewarm: expected cold, warm, both, or a list with shares"),
    ("cache", "Cold", r"--cache=Cold: expected"),
    ("cache", "cold,", r"--cache=cold,: expected"),
    ("cache", "101%", r"--cache=101%: expected"),
    ("cache", "-5%", r"--cache=-5%: expected"),
    ("cache", "2.5%", r"--cache=2.5%: expected"),
    ("cache", "50", r"--cache=50: expected"),
    ("cache", "50 %", r"--cache=50 %: expected"),
    ("cache", "50%@", r"--cache=50%@: expected"),
    ("cache", "50%@much", r"--cache=50%@much: expected"),
    ("size", "banana", r"--size=banana: not a size: 'banana'"),
    ("size", "0", r"--size=0: not a size"),
    ("size", "-1GiB", r"--size=-1GiB: not a size"),
    ("passes", "0", r"--passes=0: expected a whole number from 1"),
    ("passes", "-3", r"--passes=-3: expected"),
    ("passes", "three", r"--passes=three: expected"),
    ("passes", "1.5", r"--passes=1.5: expected"),
    ("passes", "", r"--passes=: expected"),
    ("passes", "9" * 5000, r"--passes=9+: expected"),
    ("threads", "0", r"--threads=0: expected a whole number from 1"),
    ("threads", "1,,2", r"--threads=: expected a whole number"),
    ("threads", "1;2", r"--threads=1;2: expected"),
    ("threads", "all", r"--threads=all: expected"),
    ("budget", "soon", r"--budget=soon: expected a time such as 180s or 10m"),
    ("budget", "0s", r"--budget=0s: expected a time"),
    ("budget", "-5s", r"--budget=-5s: expected a time"),
    ("budget", "5 d", r"--budget=5 d: expected a time"),
    ("budget", "inf", r"--budget=inf: expected a time"),
    ("budget", "", r"--budget=: expected a value"),
    ("storage", ["nvme:"], r"--storage=nvme:: expected a folder, or a label and a folder"),
    ("storage", [""], r"--storage=: expected a folder"),
    ("storage", ["a:/x", "a:/y"], r"--storage: two storages have one label \(a, a\)"),
    ("loader", ["pt:mmap"], r"--loader=pt:mmap: expected name:option=value, found 'mmap'"),
    ("loader", ["pt:mmap=true,mmap=false"], r"--loader=pt:mmap=true,mmap=false: mmap is given twi"),
]


@pytest.mark.parametrize(("option", "value", "reason"), BAD, ids=lambda value: str(value)[:30])
@pytest.mark.parametrize("smoke", [False, True], ids=["run", "smoke"])
def test_a_bad_option_is_one_clear_error(option: str, value: Any, reason: str, smoke: bool) -> None:
    with pytest.raises(SettingsError, match=reason) as caught:
        parsed(smoke, **{option: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "caches"),
    [
        ("cold", ("cold",)),
        ("both", ("cold", "warm")),
        ("cold,warm", ("cold", "warm")),
        ("50%", ("50%",)),
        ("cold,25%,50%,75%,warm", ("cold", "25%", "50%", "75%", "warm")),
        ("0%,50%,100%,cold", ("cold", "50%", "warm")),
        ("50%,50%@1MiB", ("50%", "50%@1MiB")),
    ],
)
def test_cache_states(text: str, caches: tuple[str, ...]) -> None:
    assert parsed(cache=text).caches == caches


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("180", 180), ("180s", 180), ("1.5m", 90), ("10min", 600), ("2h", 7200), (None, 180)],
)
def test_budgets(text: str | None, seconds: float) -> None:
    assert parsed(budget=text).budget == seconds
    assert DEFAULT_BUDGET == 180


@pytest.mark.parametrize(
    ("text", "label", "path"),
    [
        ("/mnt/nvme", None, "/mnt/nvme"),
        ("nvme:/mnt/x", "nvme", "/mnt/x"),
        ("nvme-1.b_c:relative/x", "nvme-1.b_c", "relative/x"),
        ("/mnt/with:colon", None, "/mnt/with:colon"),
        ("x:/mnt/with:colon", "x", "/mnt/with:colon"),
        ("./x:y", None, "./x:y"),
        (".", None, "."),
        ("s3://bucket/x", None, "s3://bucket/x"),
        ("https://user:word@host:80/x", None, "https://user:word@host:80/x"),
        ("x:https://user:word@host:80/x?a=b:c://d", "x", "https://user:word@host:80/x?a=b:c://d"),
        ("simplecache::s3://b", None, "simplecache::s3://b"),
    ],
)
def test_storage_labels(text: str, label: str | None, path: str) -> None:
    assert parsed(storage=[text]).storages == (StorageChoice(label=label, path=path),)


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("pt", "pt", None),
        ("pt:", "pt", {}),
        ("pt:mmap=true", "pt", {"mmap": True}),
        ("pt:mmap=false,", "pt", {"mmap": False}),
        ("x:n=4,m=-1,text=a=b,empty=", "x", {"n": 4, "m": -1, "text": "a=b", "empty": ""}),
        ("x:path=/a:b", "x", {"path": "/a:b"}),
        ("x:t=True,f=1.5,h=0x10", "x", {"t": "True", "f": "1.5", "h": "0x10"}),
    ],
)
def test_loader_options(text: str, name: str, options: dict[str, Any] | None) -> None:
    choice = parse_loader(text)
    assert choice == LoaderChoice(name=name, options=options)
    if options:
        assert [type(value) for value in (choice.options or {}).values()] == [
            type(value) for value in options.values()
        ]


def test_smoke_mode_is_small_and_short() -> None:
    settings = parsed(smoke=True, size="100GiB", passes="8")
    assert (settings.size, settings.passes, settings.smoke) == (SMOKE_SIZE, 1, True)


@given(
    st.dictionaries(
        st.sampled_from(["cache", "size", "passes", "threads", "budget"]), st.text(max_size=12)
    )
)
def test_any_text_is_taken_or_refused(given_options: dict[str, str]) -> None:
    try:
        settings = parsed(**given_options)
    except SettingsError:
        return
    assert settings.size >= 1
    assert settings.passes >= 1
    assert settings.budget > 0


@given(st.text(max_size=20))
def test_any_loader_text_is_taken_or_refused(text: str) -> None:
    try:
        choice = parse_loader(text)
    except SettingsError:
        return
    assert text.startswith(choice.name)


@pytest.mark.parametrize("option", ["model", "stage", "device", "cache", "size", "run_dir", "tp"])
def test_an_empty_value_is_no_default(option: str) -> None:
    """As `--stage=$FAST` gives it where the variable isn't set."""
    with pytest.raises(SettingsError, match=f"^--{option.replace('_', '-')}=: expected a value"):
        parse_settings({option: ""}, smoke=False, seed=0)
