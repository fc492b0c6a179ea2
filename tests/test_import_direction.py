"""Imports point one way. One row of LAYERS per rule, so that a rule is a line, not a test."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# The parts of bench/ that do things, which its values and reports know nothing of.
WORKING = {
    "bench.measuring.child",
    "bench.measuring.children",
    "bench.measuring.ceilings",
    "bench.ground.groundwork",
    "bench.plugin",
    "bench.ground.prepare",
    "bench.ground.probe",
    "bench.run.sampling",
    "bench.run.session",
}

# What of loaders/ does things; names, addresses and texts remain.
LOADING = {
    "loaders.contract",
    "loaders.io",
    "loaders.registry",
    "loaders.system",
}

# (files that the rule is about, modules that they may not import, at any depth, and why)
LAYERS = [
    ("loaders/**/*.py", {"bench", "pytest", "tests"}, "loaders know nothing of who measures them"),
    ("loaders/checkpoint/manifest.py", {"loaders", "torch"}, "the manifest is values alone"),
    (
        "loaders/checkpoint/*.py",
        {"loaders.io", "loaders.contract", "loaders.registry"},
        "what lies on disk is known before any loader",
    ),
    (
        "loaders/io/*.py",
        {"loaders.contract", "loaders.registry"},
        "the reading engine serves loaders and ceilings alike",
    ),
    (
        "loaders/contract.py",
        {"loaders.io", "loaders.registry"},
        "a contract stands below its users",
    ),
    ("bench/progress.py", {"bench", "loaders", "torch", "pytest"}, "who waits is told in words"),
    ("loaders/registry.py", {"loaders.io"}, "the registry knows loaders by their contract alone"),
    (
        "loaders/store/*.py",
        {"loaders.checkpoint", "loaders.io", "loaders.contract", "loaders.registry", "torch"},
        "a store is asked without any loader",
    ),
    (
        "loaders/system/*.py",
        {"loaders.io", "loaders.contract", "loaders.registry", "torch"},
        "what the system says is asked without any loader",
    ),
    (
        "loaders/device/*.py",
        {
            "loaders.checkpoint",
            "loaders.io",
            "loaders.contract",
            "loaders.registry",
            "loaders.transfer",
            "loaders.pipeline",
        },
        "a device knows nothing of what is copied to it",
    ),
    (
        "loaders/device/faults.py",
        {"torch", "loaders"},
        "a torch that can't be imported must be explained without it",
    ),
    (
        "loaders/transfer/*.py",
        {"loaders.contract", "loaders.registry", "loaders.pipeline"},
        "transfers start from tensors, whoever loaded them",
    ),
    *[
        (f"loaders/slicing/{name}.py", {"torch", "loaders.io"}, "a plan is arithmetic")
        for name in (
            "blocks",
            "build",
            "config",
            "copies",
            "engines",
            "errors",
            "fetch",
            "match",
            "model",
            "placement",
            "plan",
            "rules",
            "sizes",
        )
    ],
    (
        "loaders/quantise/*.py",
        {"loaders.contract", "loaders.registry", "loaders.slicing", "loaders.device"},
        "a quantiser takes tensors, whoever loaded them",
    ),
    (
        "loaders/snapshot/*.py",
        {"loaders.registry", "loaders.restore", "loaders.sharded_state"},
        "a snapshot is made without its loaders",
    ),
    (
        "loaders/snapshot/format.py",
        {"torch", "loaders.io", "loaders.contract", "loaders.slicing", "loaders.quantise"},
        "a file's header is read without what made it",
    ),
    (
        "loaders/w8a8/*.py",
        {"loaders.contract", "loaders.registry"},
        "a way to a rank's weights, whoever asks for it",
    ),
    ("loaders/w8a8/plan.py", {"torch", "loaders.io"}, "what is cut how is arithmetic"),
    ("loaders/transfer/plan.py", {"torch", "loaders"}, "which bytes go together is arithmetic"),
    ("loaders/pipeline/stages.py", {"torch", "loaders"}, "what stages tell is arithmetic"),
    (
        "bench/record/*.py",
        {"torch", "pytest", "loaders", *WORKING},
        "what a run writes down is values and arithmetic",
    ),
    *[
        (f"bench/{name}.py", {"torch", "pytest", "loaders", *WORKING}, "values and arithmetic")
        for name in ("settings", "sizes", "run/budget")
    ],
    (
        "bench/plan/*.py",
        {"torch", "pytest", "bench.run", "bench.words", *LOADING, *WORKING},
        "a plan needs no run",
    ),
    (
        "bench/words/*.py",
        {
            *("torch", "pytest", "bench.run", "bench.advice", "bench.page", "bench.pictures"),
            *(*LOADING, *WORKING),
        },
        "sentences are made from records only, and stand below what sets them",
    ),
    *[
        (f"bench/{room}/*.py", {"torch", "pytest", *LOADING, *WORKING}, "pages read records only")
        for room in ("advice", "compare", "page", "pictures")
    ],
    (
        "bench/measuring/*.py",
        {"pytest", "bench.plugin", "bench.options", "bench.run", "bench.words", "bench.phases"},
        "one sample is measured without knowing the run",
    ),
    *[
        (
            f"bench/{room}/*.py",
            {"pytest", "bench.plugin", "bench.options", "bench.words", "bench.page"},
            "pytest and what is told of a run stand above it",
        )
        for room in ("ground", "run")
    ],
    (
        "bench/host/*.py",
        {"torch", "pytest", "bench.run.session"},
        "host facts come from the system",
    ),
    (
        "bench/explain/*.py",
        {"torch", "pytest", "bench.watch", *LOADING, *WORKING},
        "a log is read without measuring anything",
    ),
    (
        "bench/watch/*.py",
        {"torch", "pytest", "loaders.contract", "loaders.registry", *WORKING},
        "watching is cheap and measures somebody else's processes",
    ),
    *[
        (f"bench/watch/{name}.py", {"loaders", *WORKING}, "arithmetic and texts")
        for name in ("makeup", "samples", "stages", "variants")
    ],
    (
        "bench/phases/*.py",
        {
            "pytest",
            "bench.run.session",
            "bench.plugin",
            "bench.run.sampling",
            "bench.page.terminal",
        },
        "a phase knows its work, not who orders it",
    ),
    *[
        (
            f"bench/ranks/{name}.py",
            {"torch", "pytest", *LOADING, *WORKING},
            "arithmetic, words and tables know nothing of processes",
        )
        for name in ("failure", "merge", "show", "times")
    ],
    (
        "bench/synth/*.py",
        {"pytest", "bench.run.session", "bench.measuring.child"},
        "making isn't measuring",
    ),
    ("bench/commands/*.py", {"pytest", "bench.plugin"}, "commands look, pytest measures"),
]


def imported(path: Path) -> set[str]:
    """Every module that a file imports, absolute, whatever function or branch the import is in."""
    package = list(path.relative_to(ROOT).with_suffix("").parts[:-1])
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from a import b` may import the module a.b
            found.update({module, *(f"{module}.{alias.name}" for alias in node.names)})
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
            found.update(
                argument.value
                for argument in node.args
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
            )
    return found


def forbidden(modules: set[str], banned: set[str]) -> set[str]:
    return {
        module
        for module in modules
        if any(module == name or module.startswith(f"{name}.") for name in banned)
    }


@pytest.mark.parametrize(("pattern", "banned", "why"), LAYERS, ids=[row[0] for row in LAYERS])
def test_imports_point_one_way(pattern: str, banned: set[str], why: str) -> None:
    files = sorted(ROOT.glob(pattern))
    assert files, f"no file matches {pattern}: the rule guards nothing"
    wrong = {
        f"{path.relative_to(ROOT)} imports {module}"
        for path in files
        for module in forbidden(imported(path), banned)
    }
    assert not wrong, why


def test_imports_of_every_kind_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("test_import_direction.ROOT", tmp_path)
    path = tmp_path / "loaders/io/x.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "import bench.record.stats as s\n"
        "def f():\n"
        "    from bench.record import records\n"
        "    from .. import contract\n"
        "    from . import sibling\n"
        "    import importlib; importlib.import_module('pytest.thing')\n"
    )
    found = imported(path)
    assert {
        "bench.record.stats",
        "bench.record.records",
        "loaders.contract",
        "loaders.io.sibling",
    } <= found
    assert forbidden(found, {"bench", "pytest", "loaders.contract"}) == {
        "bench.record",
        "bench.record.stats",
        "bench.record.records",
        "loaders.contract",
        "pytest.thing",
    }
    assert forbidden({"benchmark.x"}, {"bench"}) == set()
