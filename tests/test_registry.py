"""Loaders are found, and what can't run is a row with its reason."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.commands.loaders import command
from loaders import registry
from loaders.contract import Loader
from loaders.example import Example

ROOT = Path(__file__).parent.parent


Outside = Callable[..., dict[str, registry.Entry]]


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Outside]:
    """outside(name=source, ...): a package from outside whose entry points name `attr` in a module
    of that source. Returns the registry's rows."""

    def add(**sources: str) -> dict[str, registry.Entry]:
        points = []
        for name, source in sources.items():
            (tmp_path / f"outside_{name}.py").write_text(source)
            points.append(EntryPoint(name=name, value=f"outside_{name}:Attr", group=registry.GROUP))
        monkeypatch.setattr(registry, "entry_points", lambda group: points)
        registry.entries.cache_clear()
        return registry.entries()

    monkeypatch.syspath_prepend(tmp_path)
    yield add
    monkeypatch.undo()
    registry.entries.cache_clear()
    for name in [name for name in sys.modules if name.startswith("outside_")]:
        del sys.modules[name]


GOOD = """
from loaders.contract import Loader
class Attr(Loader):
    name = "theirs"
    summary = "from outside"
    formats = frozenset({"safetensors"})
    ownership = "owned"
    def load(self, checkpoint, stamp):
        yield from ()
"""


def test_a_loader_from_outside_is_found(outside: Outside) -> None:
    found = outside(anything=GOOD)
    assert found["theirs"].cls.summary == "from outside"
    assert registry.unavailable(found["theirs"]) is None
    assert registry.get("theirs") is found["theirs"].cls


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        pytest.param("import no_such_module", "ModuleNotFoundError.*no_such_module", id="import"),
        pytest.param("x = 1", "AttributeError", id="no attribute"),
        pytest.param("raise RuntimeError('no driver')", "RuntimeError: no driver", id="raises"),
        pytest.param("import sys; sys.exit(3)", "SystemExit: 3", id="exits"),
        pytest.param("def", "SyntaxError", id="syntax"),
        pytest.param("Attr = 5", "is not a Loader class", id="no class"),
        pytest.param("class Attr: name = 'x'", "is not a Loader class", id="other class"),
        pytest.param(GOOD.replace("    name", "    nome"), "doesn't define name", id="no name"),
        pytest.param(GOOD.replace("def load", "def lood"), r"define load\(\)", id="no load"),
        pytest.param(
            GOOD.replace(
                "class Attr", "from loaders.registry import register\n@register\nclass Attr"
            ).replace('"theirs"', '"example"'),
            "two loaders are named 'example'",
            id="registers a name of ours",
        ),
    ],
)
def test_a_broken_one_is_a_skipped_row_and_takes_none_along(
    outside: Outside,
    source: str,
    reason: str,
) -> None:
    found = outside(bad=source, good=GOOD)
    assert found["bad"].cls is None
    assert re.search(reason, registry.unavailable(found["bad"]) or "")
    assert found["theirs"].cls is not None
    assert found["example"].cls is Example
    with pytest.raises(RuntimeError, match="loader bad: "):
        registry.get("bad")


def test_a_name_of_ours_stays_ours(outside: Outside) -> None:
    found = outside(one=GOOD.replace("theirs", "example"), example="raise RuntimeError('broken')")
    assert found["example"].cls is Example
    assert "taken" in found["example#2"].reason
    assert "broken" in found["example#3"].reason


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(KeyError, match=r"no loader is named 'nope'; there are: .*parallel"):
        registry.get("nope")


@pytest.mark.parametrize("module", ["no_such_module", "no_such.module", "json.nothing"])
def test_a_missing_module_is_the_reason(module: str) -> None:
    class Needy(Example):
        requires = ("json", module)

    entry = registry.Entry(name="needy", cls=Needy)
    assert registry.unavailable(entry) == f"needs {module}, which is not installed"


def test_two_loaders_of_one_name_are_an_error() -> None:
    class Other(Example):
        pass

    with pytest.raises(ValueError, match="two loaders are named 'example'"):
        registry.register(Other)
    assert registry.register(Example) is Example


def test_the_command_lists_every_loader_as_json() -> None:
    done = CliRunner().invoke(command, ["--json"])
    assert done.exit_code == 0
    rows = {row["name"]: row for row in json.loads(done.output)["loaders"]}
    assert set(rows) == set(registry.entries())
    parallel = rows["parallel"]
    assert parallel["available"] is True
    assert parallel["reason"] is None
    assert parallel["formats"] == ["safetensors"]
    assert parallel["ownership"] == "owned"
    assert parallel["options"] == {
        "ahead_mib": 256, "block_mib": 16, "direct": True, "pages": "host", "readers": 0,
    }  # fmt: skip
    assert parallel["variants"] == [{}, {"pages": "huge"}]
    assert parallel["threaded"] is True
    assert rows["dummy"]["synthetic"] is True
    assert rows["dummy"]["formats"] == []
    for row in rows.values():
        assert row["available"] == (row["reason"] is None)


def test_the_command_shows_options_and_reasons(outside: Outside) -> None:
    outside(
        bad="raise RuntimeError('no driver')",
        good=GOOD.replace("name =", "requires = ('no_such_module',)\n    name ="),
    )
    lines = CliRunner().invoke(command).output.splitlines()
    assert "    skipped: import failed: RuntimeError: no driver" in lines
    assert "    skipped: needs no_such_module, which is not installed" in lines
    assert any('block_mib=16; direct=true; pages="host"; readers=0;' in line for line in lines)
    assert "    opens no file; owned memory" in lines


def test_an_installed_package_brings_its_loader(tmp_path: Path) -> None:
    """The real way in: a distribution's metadata on the path, one sound and one broken entry."""
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[coldload.loaders]\nfine = theirs_module:Attr\nbroken = theirs_gone:Attr\n"
    )
    (tmp_path / "theirs_module.py").write_text(GOOD)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", "from bench.cli import main; main(['loaders', '--json'])"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)["loaders"]}
    assert rows["theirs"]["available"]
    assert not rows["broken"]["available"]
    assert "theirs_gone" in rows["broken"]["reason"]


def test_the_contracts_defaults_hold_for_every_loader() -> None:
    for entry in registry.entries().values():
        if entry.cls is None:
            continue
        assert issubclass(entry.cls, Loader)
        assert "\n" not in entry.cls.summary
        assert entry.cls.name == entry.name
        assert entry.cls.variants
        for variant in entry.cls.variants:
            entry.cls(2, **variant)


def test_the_help_of_all_commands_does_not_wait_for_torch() -> None:
    code = (
        "import sys\nfrom bench.cli import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, stdout=subprocess.DEVNULL)
