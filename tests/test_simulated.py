"""Every path for `npu`, and for devices that work on their own, against the simulated one.

It replaces a part of torch, so its checks run in a process of their own; what fails there stands in
this test's output.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
SITE = HERE / "simulated"
CHECKS = sorted(path.name for path in SITE.glob("check_*.py"))
PINNED = "2.13"  # simulated_npu.TORCH, which isn't importable here


@pytest.mark.skipif(
    torch.__version__.split("+")[0].rpartition(".")[0] != PINNED,
    reason=f"the simulated device is made for torch {PINNED}, this is {torch.__version__}",
)
@pytest.mark.skipif(
    torch.accelerator.current_accelerator() is not None,
    reason="torch has an accelerator here, and holds no second one: the simulated can't be added",
)
def test_on_the_simulated_device() -> None:
    env = {key: value for key, value in os.environ.items() if not key.startswith("SIMULATED_NPU")}
    env.pop("TORCH_DEVICE_BACKEND_AUTOLOAD", None)
    env["PYTHONPATH"] = os.pathsep.join([str(SITE), str(HERE), str(HERE.parent)])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header"]
    done = subprocess.run(
        [*command, "-o", "python_files=check_*.py", str(SITE)],
        cwd=HERE.parent,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 100, done.stdout


def test_the_checks_are_there_and_the_version_is_the_simulated_devices() -> None:
    assert len(CHECKS) >= 3
    assert f'TORCH = "{PINNED}"' in (SITE / "simulated_npu/__init__.py").read_text()


def test_other_versions_of_torch_are_left_alone() -> None:
    """The simulation registers nothing with a torch that it wasn't made for."""
    program = (
        "import torch, simulated_npu\n"
        "assert not simulated_npu.fits('2.12.1') and not simulated_npu.fits('2.130.0')\n"
        "assert simulated_npu.fits('2.13.0+cpu') and simulated_npu.fits('2.13.4')\n"
        "torch.__version__ = '2.14.0'\n"
        "simulated_npu.autoload()\n"
        "assert torch.accelerator.current_accelerator() is None or "
        "torch.accelerator.current_accelerator().type != 'npu'\n"
    )
    env = {**os.environ, "PYTHONPATH": str(SITE), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
