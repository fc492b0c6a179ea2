"""Which of pytest's items are benches, and whether a session has any."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def measures(config: pytest.Config) -> bool:
    """Whether this session has benches: asked for by option, or by naming their folder."""
    if config.getoption("benchmark_only", False) or config.getoption("benchmark_disable", False):
        return True
    return any(is_bench(Path(str(arg).split("::")[0])) for arg in named(config))


def named(config: pytest.Config) -> list[str]:
    return config.args if config.args_source is pytest.Config.ArgsSource.ARGS else []


def is_bench(path: Path) -> bool:
    return within(path, ROOT / "bench")


def within(path: Path, folder: Path) -> bool:
    resolved = path.resolve()
    return resolved == folder or folder in resolved.parents


def is_measured(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and "measure" in item.fixturenames


def is_empty(item: pytest.Item) -> bool:
    """Whether it stands for a phase without cases in this run: pytest would call it skipped."""
    if not isinstance(item, pytest.Function) or "measure" not in item.fixturenames:
        return False
    return not isinstance(item.callspec.params["case"], str)


def phase_of(item: pytest.Item) -> str:
    assert isinstance(item, pytest.Function)
    return str(item.function.__name__).removeprefix("bench_")
