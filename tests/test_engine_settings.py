"""The engine's own setting for each loader of this suite."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from bench.words.engine_settings import NOT_AVAILABLE, engine_setting
from loaders.registry import entries

FORMATS = {
    "safetensors-mmap": "safetensors",
    "safetensors-eager": "safetensors",
    "safetensors-prefetch": "safetensors",
    "safetensors-threads": "safetensors",
    "pt": "pt",
    "pt-threads": "pt",
    "npcache": "npcache",
    "dummy": "dummy",
    "fastsafetensors": "fastsafetensors",
    "instanttensor": "instanttensor",
    "runai-streamer": "runai_streamer",
    "tensorizer": "tensorizer",
}


def flags(text: str) -> dict[str, str]:
    """The command line in a setting's text, as a shell would split it."""
    words = shlex.split(re.split(r" \((?:since|the strategy)", text)[0])
    return dict(zip(words[::2], words[1::2], strict=True))


@pytest.mark.parametrize(("loader", "load_format"), FORMATS.items())
def test_the_load_format_and_the_versions_are_named(loader: str, load_format: str) -> None:
    text = engine_setting(loader, {}, 8)
    assert flags(text)["--load-format"] == load_format
    assert re.search(r"\b0\.\d+", text)


@pytest.mark.parametrize("loader", ["parallel", "direct", "adaptive", "example", "other"])
def test_ours_are_not_available_in_the_engine(loader: str) -> None:
    assert engine_setting(loader, {"block_mib": 4}, 8) == NOT_AVAILABLE


def test_from_a_store_the_engine_has_another_way() -> None:
    text = engine_setting("remote", {}, 16)
    assert text.startswith(NOT_AVAILABLE)
    assert "--load-format runai_streamer (since 0.6.6)" in text


@pytest.mark.parametrize("loader", ["pt", "pt-threads"])
def test_pt_reads_no_bin_files_in_the_engine(loader: str) -> None:
    assert "for *.bin take --load-format hf (0.20 and later" in engine_setting(loader, {}, 2)


def test_ways_of_a_library_that_the_engine_doesnt_use() -> None:
    assert engine_setting("pt", {"mmap": True}, 1).startswith(NOT_AVAILABLE)
    assert engine_setting("safetensors-pread", {}, 1).startswith(NOT_AVAILABLE)
    assert "--load-format pt" in engine_setting("pt", {"mmap": False}, 1)


@pytest.mark.parametrize("loader", ["safetensors-threads", "pt-threads"])
def test_booleans_are_real_ones(loader: str) -> None:
    """The engine refuses the string "true" since 0.24 and took "false" for true before."""
    text = engine_setting(loader, {}, 12)
    config = json.loads(flags(text)["--model-loader-extra-config"])
    assert config == {"enable_multithread_load": True, "num_threads": 12}
    assert "0.24" in text


def test_strategies_and_their_numbers() -> None:
    lazy, eager = (flags(engine_setting(f"safetensors-{way}", {}, 4)) for way in ("mmap", "eager"))
    assert lazy["--safetensors-load-strategy"] == "lazy"
    assert eager["--safetensors-load-strategy"] == "eager"
    prefetch = flags(engine_setting("safetensors-prefetch", {"block_mib": 4}, 3))
    assert prefetch["--safetensors-load-strategy"] == "prefetch"
    assert prefetch["--safetensors-prefetch-num-threads"] == "3"
    assert prefetch["--safetensors-prefetch-block-size"] == str(4 << 20)
    assert "enable_multithread_load" in engine_setting("safetensors-prefetch", {}, 3)  # never both


def test_runai_takes_threads_and_ring() -> None:
    kept = flags(engine_setting("runai-streamer", {}, 16))["--model-loader-extra-config"]
    assert json.loads(kept) == {"concurrency": 16}
    ring = flags(engine_setting("runai-streamer", {"ring_mib": 512}, 16))
    assert json.loads(ring["--model-loader-extra-config"])["memory_limit"] == 512 << 20


def test_every_loader_here_has_an_answer() -> None:
    for name in entries():
        text = engine_setting(name, {}, 2)
        assert text
        assert "\n" not in text
