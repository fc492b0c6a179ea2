"""What somebody sees who has only the command line: every command and every error names the next
step, and a half-installed accelerator is one clear error."""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import bench.commands
from bench.cli import NEXT, main

ROOT = Path(__file__).parent.parent
COMMANDS = sorted(
    module.name.replace("_", "-") for module in pkgutil.iter_modules(bench.commands.__path__)
)
LIBRARY = "libhccl.so: cannot open shared object file: No such file or directory"


def test_every_command_has_a_next_step_and_none_is_of_a_command_that_is_gone() -> None:
    assert sorted(NEXT) == COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_what_comes_next(name: str) -> None:
    for _ in range(2):  # the same when asked again
        done = CliRunner().invoke(main, [name, "--help"])
        assert done.exit_code == 0
        letters = "".join(done.output.split())  # it is wrapped, also within --benchmark-only
        assert letters.count("".join(NEXT[name].split())) == 1


@pytest.mark.parametrize("args", [[], ["--help"], ["-h"]])
def test_the_command_alone_names_the_first_steps(args: list[str]) -> None:
    done = CliRunner().invoke(main, args)
    for step in ("coldload explain", "pytest --benchmark-only", "coldload advise", *COMMANDS):
        assert step in done.output
    assert "..." not in done.output.partition("Commands:")[2]  # no command's one line is cut off


@pytest.mark.parametrize("broken", ["report", "plan-run"])
def test_a_broken_command_hides_none_of_the_others(
    monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    module = f"bench.commands.{broken.replace('-', '_')}"
    monkeypatch.setitem(sys.modules, module, None)  # importing it raises ImportError
    listed = CliRunner().invoke(main, ["--help"])
    assert listed.exit_code == 0
    assert all(name in listed.output for name in COMMANDS)
    (line,) = (one for one in listed.output.splitlines() if one.split()[:1] == [broken])
    assert line.endswith("(can't be used here: call it for the reason)")
    for args in ([broken], [broken, "--help"], [broken, "x", "--json"]):
        done = CliRunner().invoke(main, args)
        assert done.exit_code == 2
        assert f"coldload {broken} can't be used here: " in done.output
        assert "the other commands stand" in done.output
    assert CliRunner().invoke(main, ["runs", "--help"]).exit_code == 0


@pytest.mark.parametrize("args", [["no-such"], ["check"], ["check", "--no-such", "x"], ["report"]])
def test_wrong_usage_says_where_help_is(args: list[str]) -> None:
    done = CliRunner().invoke(main, args)
    assert done.exit_code == 2
    assert "--help" in done.output


@pytest.fixture(scope="module")
def half_installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment with a package like torch_npu without CANN: torch loads it, and it raises."""
    site = tmp_path_factory.mktemp("site")
    info = site / "torch_npu-2.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-npu\nVersion: 2.9\n")
    (info / "entry_points.txt").write_text("[torch.backends]\ntorch_npu = torch_npu:_autoload\n")
    (site / "torch_npu.py").write_text(f"raise ImportError({LIBRARY!r})\n")
    env = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}
    env.pop("TORCH_DEVICE_BACKEND_AUTOLOAD", None)
    return env


def said(env: dict[str, str], *args: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, *args], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("code", "args"),
    [
        (2, ["-c", "from bench.cli import main; main()", "loaders"]),
        (4, ["-m", "pytest", "-p", "no:cacheprovider", "--benchmark-only"]),
        (4, ["-m", "pytest", "-p", "no:cacheprovider", "tests/test_stats.py"]),
    ],
)
def test_a_half_installed_accelerator_is_one_clear_error(
    half_installed: dict[str, str], code: int, args: list[str]
) -> None:
    found, text = said(half_installed, *args)
    assert found == code
    assert "torch can't be imported, because the backend torch_npu" in text
    assert "set_env.sh" in text
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in text
    assert "Traceback" not in text
    assert len(text.strip().splitlines()) == 1


def test_without_the_backend_it_goes_on(half_installed: dict[str, str]) -> None:
    env = {**half_installed, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    code, text = said(env, "-c", "from bench.cli import main; main()", "loaders")
    assert (code, "safetensors-mmap" in text) == (0, True)
