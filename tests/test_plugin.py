"""What pytest collects and refuses: options, the matrix, unit tests apart from benches."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny_runs import Done, run_pytest, tries

FEW = ("--loader=example", "--loader=safetensors-mmap", "--passes=2")
BAD = {
    "--passes=0": "--passes=0: expected a whole number from 1",
    "--passes=-3": "--passes=-3",
    "--passes=2.5": "--passes=2.5",
    "--threads=0": "--threads=0: expected a whole number",
    "--threads=1,,2": "expected a whole number",
    "--threads=many": "--threads=many",
    "--budget=0": "--budget=0: expected a time such as 180s",
    "--budget=-5s": "--budget=-5s",
    "--budget=soon": "--budget=soon",
    "--size=0": "--size=0",
    "--size=big": "--size=big: not a size",
    "--size=-1GiB": "--size=-1GiB",
    "--cache=hot": "--cache=hot: expected cold, warm, both, or a list with shares",
    "--seed=x": "--seed=x: expected a whole number",
    "--loader=nope": "no such loader; there are: ",
    "--loader=": "no such loader",
    "--loader=pt:mmap": "expected name:option=value, found 'mmap'",
    "--loader=pt:mmap=yes": "mmap must be bool, got str ('yes')",
    "--loader=pt:mmap=1": "mmap must be bool, got int",
    "--loader=pt:speed=9": "pt has no option 'speed' (it has: mmap)",
    "--storage=s3://me:secret@bucket/x": (
        "--storage=s3://***@bucket/x: a store is measured with --model at it, nothing is written "
        "there: --model=s3://***@bucket/x"
    ),
    "--storage=x:https://me:secret@host/x?sig=secret": "--storage=https://***@host/x?***: a store",
    "--storage=nosuch://me:secret@host/x": "nosuch://: fsspec knows no such store",
    "--storage=simplecache::s3://me:secret@host/x": "chained addresses aren't read",
    "--storage=/no/such/place": "expected a folder, found nothing there",
    "--storage=README.md": "expected a folder, found a file there",
    "--storage=": "--storage=: expected a folder",
    "--storage=~nobody-of-this-name/x": "expected a folder, found nothing there",
    f"--storage=/{'x' * 300}": "ame too long",
    "--model=nosuch://me:secret@host/x": "nosuch://: fsspec knows no such store",
    "--run-dir=README.md": "--run-dir=",
}


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Done]:
    place = tmp_path_factory.mktemp("run")
    (place / "records.jsonl").write_text("{}\n")
    commands = {
        **{option: [option] for option in BAD},
        "one label": [f"--storage=a:{place}", f"--storage=a:{place}"],
        "a run": [f"--run-dir={place}"],
    }
    done = tries(
        [["--benchmark-only", "--collect-only", "-q", *each] for each in commands.values()]
    )
    assert (place / "records.jsonl").read_text() == "{}\n"
    return dict(zip(commands, done, strict=True))


@pytest.mark.parametrize("option", BAD)
def test_a_bad_option_is_refused_in_one_clear_line(refused: dict[str, Done], option: str) -> None:
    done = refused[option]
    assert done.code == pytest.ExitCode.USAGE_ERROR
    said = [line for line in done.text.splitlines() if line.strip()]
    assert len(said) == 1
    assert said[0].startswith("ERROR: ")
    assert BAD[option] in said[0]
    assert "secret" not in said[0]


def test_two_storages_of_one_label_are_refused(refused: dict[str, Done]) -> None:
    assert refused["one label"].code == pytest.ExitCode.USAGE_ERROR
    assert "two storages have one label" in refused["one label"].text


def test_a_run_folder_that_holds_a_run_is_refused(refused: dict[str, Done]) -> None:
    assert refused["a run"].code == pytest.ExitCode.USAGE_ERROR
    assert "holds a run already" in refused["a run"].text


def ids(text: str) -> list[str]:
    return [line for line in text.splitlines() if "::" in line]


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Ids by what was asked for; collecting must leave nothing in the storage."""
    place = tmp_path_factory.mktemp("storage")
    only = ["--benchmark-only", "--collect-only", "-q", f"--storage={place}"]
    run = f"--run-dir={place / 'run'}"
    asked = {
        "tests": ["--collect-only", "-q"],
        "matrix": [*only, *FEW, "--seed=1", run],
        "matrix again": [*only, *FEW, "--seed=1"],
        "other seed": [*only, *FEW, "--seed=2"],
        "no seed": [*only, *FEW],
        "everything": [*only, "--passes=1"],
        "selected": [*only, *FEW, "-k", "safetensors-mmap and cold and not twin"],
        "threads": [*only, "--loader=parallel", "--threads=1,2", "--passes=1"],
        "cold": [*only, *FEW, "--cache=cold"],
        "two storages": [*only, *FEW, f"--storage={place}"],
        "given label": [*only, *FEW, f"--storage=ext4:{place}", f"--storage=x:{place}"],
        "options": [*only, "--loader=pt:mmap=true", "--passes=1"],
        "twice": [*only, "--loader=pt", "--loader=pt:mmap=true", "--passes=1"],
        "smoke": ["bench", "--benchmark-disable", "--collect-only", "-q", *FEW],
    }
    done = tries([*asked.values()])
    found = {name: ids(one.text) for name, one in zip(asked, done, strict=True)}
    assert list(place.iterdir()) == []
    return found


def test_bare_pytest_lists_tests_and_no_bench(collected: dict[str, list[str]]) -> None:
    assert len(collected["tests"]) > 100
    assert all(name.startswith("tests/") for name in collected["tests"])


def test_benchmark_only_lists_benches_and_no_test(collected: dict[str, list[str]]) -> None:
    assert all(name.startswith("bench/") for name in collected["matrix"])


def test_every_loader_that_there_is_stands_in_the_matrix(collected: dict[str, list[str]]) -> None:
    text = "\n".join(collected["everything"])
    for loader in (
        *("safetensors-mmap", "safetensors-eager", "safetensors-prefetch", "safetensors-threads"),
        *("parallel", "pt-mmap=true", "pt-mmap=false", "pt-threads", "npcache", "dummy", "example"),
    ):
        assert f"bench_disk_to_host[{loader}-" in text
    for ceiling in ("direct-ring", "cache-ring", "owned-read", "memory-copy", "first-touch"):
        assert f"bench_ceiling[{ceiling}-" in text


def by_pass(names: list[str]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for name in names:
        case, _, number = name.rstrip("]").rpartition("-pass")
        found.setdefault(int(number), []).append(case)
    return found


def test_c78_the_pass_is_outermost_and_all_contestants_interleave_in_it(
    collected: dict[str, list[str]],
) -> None:
    names = collected["matrix"]
    numbers = [int(name.rstrip("]").rpartition("-pass")[2]) for name in names]
    assert numbers == sorted(numbers)
    passes = by_pass(names)
    assert sorted(passes) == [1, 2]
    assert sorted(passes[1]) == sorted(passes[2])
    for cases in passes.values():  # ceilings and loaders, cold and warm, are mixed
        kinds = ["ceiling" if "bench_ceiling" in case else "loader" for case in cases]
        assert kinds not in (sorted(kinds), sorted(kinds, reverse=True))


def test_c78_every_loader_has_the_same_cache_states(collected: dict[str, list[str]]) -> None:
    cases = by_pass(collected["matrix"])[1]
    loaders = [case for case in cases if "disk_to_host" in case]
    cold = {case.replace("-cold-", "-X-") for case in loaders if "-cold-" in case}
    warm = {case.replace("-warm-", "-X-") for case in loaders if "-warm-" in case}
    assert cold == warm
    assert len(cold) + len(warm) == len(loaders)


def test_c78_each_pass_has_its_own_order_and_the_seed_repeats_it(
    collected: dict[str, list[str]],
) -> None:
    passes = by_pass(collected["matrix"])
    assert passes[1] != passes[2]
    assert collected["matrix"] == collected["matrix again"]
    assert collected["matrix"] != collected["other seed"]
    assert collected["matrix"] != collected["no seed"]
    assert sorted(collected["matrix"]) == sorted(collected["no seed"])


def test_k_selects_by_loader_and_cache_state(collected: dict[str, list[str]]) -> None:
    assert len(collected["selected"]) == 2
    for name in collected["selected"]:
        assert "bench_disk_to_host[safetensors-mmap-cold-" in name


def test_cache_leaves_the_other_state_out(collected: dict[str, list[str]]) -> None:
    assert any("-cold-" in name for name in collected["cold"])
    assert not any("-warm-" in name for name in collected["cold"])


def test_threads_make_a_case_each(collected: dict[str, list[str]]) -> None:
    found = [name for name in collected["threads"] if "[parallel-" in name and "=" not in name]
    assert len([name for name in found if "-t1-" in name]) == 2
    assert len([name for name in found if "-t2-" in name]) == 2
    assert len(found) == 4


def test_a_loader_with_an_option_is_that_variant_alone(collected: dict[str, list[str]]) -> None:
    text = "\n".join(collected["options"])
    assert "[pt-mmap=true-cold-" in text
    assert "mmap=false" not in text


def test_what_is_asked_for_twice_is_measured_once(collected: dict[str, list[str]]) -> None:
    names = collected["twice"]
    assert len(set(names)) == len(names)
    assert any("[pt-mmap=false-" in name for name in names)


def test_storages_of_one_file_system_have_labels_of_their_own(
    collected: dict[str, list[str]],
) -> None:
    for asked in ("two storages", "given label"):
        names = collected[asked]
        assert len(set(names)) == len(names)
        plain = [name for name in names if "[example-cold-" in name and "pass1" in name]
        storages = 2 if asked == "two storages" else 3
        assert len(plain) == storages


def test_smoke_is_one_pass(collected: dict[str, list[str]]) -> None:
    assert collected["smoke"]
    assert all(name.endswith("-pass1]") for name in collected["smoke"])


@pytest.mark.parametrize("option", ["--storage", "--model", "--run-dir"])
def test_a_path_behind_a_space_never_passes_as_a_run(tmp_path: Path, option: str) -> None:
    """pytest takes the path for one of its own, moves its root there and loses the plug-in."""
    done = run_pytest("--benchmark-only", option, tmp_path)
    assert done.code == pytest.ExitCode.USAGE_ERROR
    assert f"unrecognized arguments: {option}" in done.text
    assert list(tmp_path.iterdir()) == []


def test_a_run_in_which_nothing_was_selected_fails() -> None:
    done = run_pytest("--benchmark-only", "-k", "nothing_of_this_name")
    assert done.code == 1
    assert "Nothing was measured" in done.text


def test_benchmark_only_on_the_tests_fails() -> None:
    done = run_pytest("--benchmark-only", "tests/test_sizes.py")
    assert done.code == 1
    assert "Nothing was measured" in done.text
    assert " passed" not in done.text
