"""The engine's own setting for each winner of a run, or that it has none."""

from __future__ import annotations

from bench.record.records import StorageRecord
from bench.record.summary import rows
from bench.words.engine_settings import NOT_AVAILABLE
from bench.words.for_engine import for_the_engine
from tests.tiny_report import NET, load, made_run

STORE = StorageRecord(label="s3", file_system="s3")


def said(*samples) -> list[str]:
    return for_the_engine(rows(made_run(*samples)))


def test_each_storage_and_state_has_its_winner() -> None:
    found = said(
        load("safetensors-eager", 2.0),
        load("safetensors-mmap", 1.0),
        load("safetensors-mmap", 3.0, cache="warm"),
        load("safetensors-eager", 1.0, storage=NET),
    )
    assert [one.partition(": ")[0] for one in found] == [
        "In vLLM, for safetensors-eager, the fastest cold on net and cold on nvme",
        "In vLLM, for safetensors-mmap, the fastest warm on nvme",
    ]


def test_what_the_engine_lacks_is_said_with_the_best_that_it_has() -> None:
    first, second = said(
        load("adaptive", 3.0, ownership="borrowed"),
        load("pt-threads", 2.0, threads=4),
        load("pt", 1.0, options={"mmap": False}),
    )
    assert first == f"In vLLM, for adaptive, the fastest cold on nvme: {NOT_AVAILABLE}."
    assert second.startswith(
        "Of what vLLM has, pt-threads with 4 threads is the fastest cold on nvme: --load-format pt "
        """--model-loader-extra-config '{"enable_multithread_load": true, "num_threads": 4}'"""
    )


def test_a_store_has_its_own() -> None:
    (one,) = said(load("remote", 1.0, threads=16, storage=STORE, cache="none"))
    assert one.startswith(
        f"In vLLM, for remote with 16 threads, the fastest from s3: {NOT_AVAILABLE}"
    )
    assert "--load-format runai_streamer" in one


def test_what_was_not_as_asked_wins_nothing() -> None:
    assert said(load("pt", 9.0, state="mixed"), load("pt", 9.0, cache="50%", state="mixed")) == []
    assert said(load("pt", 9.0, options={"twin": True})) == []


def test_braces_in_a_strangers_name_do_no_harm() -> None:
    (one,) = said(load("a{0}{x}b", 1.0))
    assert "for a{0}{x}b, the fastest cold on nvme" in one
