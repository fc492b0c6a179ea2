"""The options that pytest gets, and from them the settings of the run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from bench import settings as parsing
from bench.run.run_dir import default_seed
from bench.settings import Settings, SettingsError
from loaders.checkpoint.read import local_path
from loaders.device.discover import find_device
from loaders.device.faults import DeviceError, DeviceTextError

if TYPE_CHECKING:
    import pytest

NAMED = r"bench_(\w+)\.py"
"""What in an argument names a phase: then all of its cases are measured."""

GROUP = "coldload", "coldload: how fast do weights load here"
# name -> (how pytest takes it, help); all optional
OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "model": (
        {},
        "a checkpoint's folder, file or address (https://, s3://, ...), a Hub id, or a built-in "
        "shape (default: "
        f"{parsing.DEFAULT_MODEL})",
    ),
    "storage": (
        {"action": "append"},
        "a folder on the storage to measure, or label:folder; repeatable; also the model's own "
        "address, beside folders. Write --storage=/mnt/x, with the equals sign (default: where the "
        "model lies, or here)",
    ),
    "loader": (
        {"action": "append"},
        "a loader, or loader:option=value,...; repeatable (default: every one that can run)",
    ),
    "stage": (
        {},
        "a folder (local disk, /dev/shm) that the model is copied to first: what the copy takes, "
        "and from how many loads on it pays",
    ),
    "cache": (
        {},
        "cold, warm or both (default: both); also shares of the files that are in the page cache, "
        "as in cold,25%%,50%%,warm",
    ),
    "threads": ({}, "thread counts, such as 1,2,4 (default: the cores this process may use)"),
    "device": ({}, "cpu, cuda, cuda:1, npu, ... (default: auto, the accelerator or else cpu)"),
    "tp": (
        {},
        f"tensor-parallel degree that weights are sliced for (default: {parsing.DEFAULT_TP})",
    ),
    "ep": ({"action": "store_true"}, "experts are spread over the ranks, whole (expert parallel)"),
    "ranks": (
        {},
        "how many ranks load from one storage at once, such as 2,4 (default: none, because each "
        "sample starts torchrun; 2,4 with --full, or where bench/bench_ranks.py is named)",
    ),
    "passes": ({}, f"how often the matrix is walked (default: {parsing.DEFAULT_PASSES})"),
    "size": ({}, f"size of a made-up checkpoint (default: {parsing.DEFAULT_SIZE})"),
    "budget": (
        {},
        f"time that a run of a built-in shape may take; its size is halved until it fits (default: "
        f"{parsing.DEFAULT_BUDGET:.0f}s)",
    ),
    "run-dir": ({}, "where the records go (default: runs/<UTC time>)"),
    "seed": ({}, "of the shuffled orders (default: another one in each run)"),
    "drop-caches": (
        {"action": "store_true"},
        "drop the whole host's page cache before each cold sample (needs root)",
    ),
    "plan": (
        {"action": "store_true"},
        "say how long the run would take, what it would write and read, and measure nothing; "
        "--collect-only lists its cases as well",
    ),
    "plan-json": (
        {"action": "store_true"},
        "as --plan, as one line of JSON; coldload plan-run --json prints it alone",
    ),
    "full": (
        {"action": "store_true"},
        "every case of every phase: also thread counts from 1 to four times the cores",
    ),
}


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup(*GROUP)
    for name, (how, text) in OPTIONS.items():
        group.addoption(f"--{name}", dest=_dest(name), help=text, **how)


def settings_of(config: pytest.Config) -> Settings:
    """SettingsError for a value that can't be used."""
    given = {name.replace("-", "_"): config.getoption(_dest(name)) for name in OPTIONS}
    seed, _, _ = (given.pop(name) for name in ("seed", "plan", "plan_json"))
    if seed is not None and not str(seed).isdecimal():
        raise parsing.SettingsError(f"--seed={seed}: expected a whole number")
    if given["run_dir"]:
        given["run_dir"] = local_path(given["run_dir"])  # shells leave the ~ of --run-dir=~/x
    given["named"] = [found for arg in config.args for found in re.findall(NAMED, str(arg))]
    if not given["ranks"] and "ranks" in given["named"]:
        given["ranks"] = ",".join(map(str, parsing.DEFAULT_RANKS))
    disabled = config.getoption("benchmark_disable", False)
    return parsing.parse_settings(
        given,
        smoke=bool(disabled and not config.getoption("benchmark_enable", False)),
        seed=default_seed() if seed is None else int(seed),
    )


def only_planned(config: pytest.Config) -> bool:
    """Whether the run is only to be told of, in words or as JSON."""
    return bool(config.getoption(_dest("plan"))) or planned_as_json(config)


def planned_as_json(config: pytest.Config) -> bool:
    return bool(config.getoption(_dest("plan-json")))


def found_device(text: str) -> str:
    """The device of `--device` as records name it: `cpu`, `cuda:0`, ... None is started here: that
    is for the children. SettingsError for one that isn't there or can't be used."""
    try:
        return find_device(text)
    except (DeviceTextError, DeviceError) as error:
        raise SettingsError(f"--device={text}: {error}") from error


def _dest(name: str) -> str:
    return f"coldload_{name.replace('-', '_')}"
