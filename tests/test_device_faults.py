"""Faults of devices are told from the texts that torch and drivers raise. No device here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from loaders.device.faults import (
    DeviceError,
    chain_text,
    code_of,
    device_error,
    explain_import,
    raise_named,
)

ROOT = Path(__file__).parent.parent

TEXTS = [
    ("old-driver", "The NVIDIA driver on your system is too old (found version 11040)."),
    ("old-driver", "CUDA driver version is insufficient for CUDA runtime version"),
    (
        "old-driver",
        "Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display "
        "driver / cuda driver combination",
    ),
    ("old-driver", "the driver version does not match the runtime"),
    ("no-driver", "Found no NVIDIA driver on your system. Please check that you have a GPU"),
    ("no-driver", "libcuda.so.1: cannot open shared object file: No such file or directory"),
    ("no-driver", "CUDA error: no CUDA-capable device is detected"),
    ("not-compiled", "Torch not compiled with CUDA enabled"),
    ("busy", "CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
    ("busy", "CUDA error: all CUDA-capable devices are busy or unavailable"),
    ("busy", "error=46 : something"),
    ("no-such-number", "CUDA error: invalid device ordinal"),
    ("no-such-number", "NPU function error: SetDevice(id), error code is 107001"),
    ("not-ready", "Error 802: system not yet initialized"),
    ("not-ready", "NPU function error: c10_npu::SetDevice(id), error code is 507033"),
    ("forked", "Cannot re-initialize CUDA in forked subprocess. Use the 'spawn' start method"),
    ("lost", "NVML: GPU is lost"),
    ("lost", "CUDA error: unspecified launch failure"),
    ("lost", "CUDA error: uncorrectable ECC error encountered"),
    ("lost", "NPU function error: aclrtSynchronizeDevice, error code is 507018"),
    ("no-memory", "CUDA out of memory. Tried to allocate 2.00 GiB."),
    ("no-memory", "NPU out of memory. Tried to allocate 20.00 GiB"),
    ("no-memory", "CUDA error: out of memory"),
    ("half-installed", "libhccl.so: cannot open shared object file: No such file or directory"),
    ("half-installed", "libcudart.so.12: cannot open shared object file: No such file"),
    ("half-installed", "/usr/lib/libatb.so: undefined symbol: _ZN3Mki"),
    ("half-installed", "Failed to load the backend extension: torch_npu. You can disable"),
    ("half-installed", "Two accelerators cannot be used at the same time in PyTorch: npu and npu"),
    ("unknown", "something else entirely"),
]


@pytest.mark.parametrize(("code", "text"), TEXTS)
def test_a_text_names_its_fault(code: str, text: str) -> None:
    assert code_of(text) == code
    error = device_error(RuntimeError(text), "cuda:1", "opening it")
    assert error.code == code
    assert str(error).startswith("cuda:1: opening it failed: ")
    assert text.splitlines()[0] in str(error)


def test_only_the_first_line_of_what_was_said_is_repeated() -> None:
    said = "\nCUDA error: out of memory\nCUDA kernel errors might be reported later\nCompile with"
    error = device_error(RuntimeError(said), "cuda:0", "copying 8 bytes")
    assert "CUDA error: out of memory" in str(error)
    assert "\n" not in str(error)


def test_a_named_error_stays_what_it_is() -> None:
    named = DeviceError("lost", "x")
    assert device_error(named, "cuda:0", "y") is named


def test_an_error_without_a_text_is_told_by_its_kind() -> None:
    assert "MemoryError" in str(device_error(MemoryError(), "cpu", "allocating"))


def test_the_named_error_is_caused_by_the_first_one() -> None:
    cause = RuntimeError("CUDA error: out of memory")
    with pytest.raises(DeviceError) as caught:
        raise_named(cause, "cuda:0", "copying")
    assert caught.value.__cause__ is cause


def backend_failure(cause: BaseException) -> RuntimeError:
    error = RuntimeError(
        "Failed to load the backend extension: torch_npu. "
        "You can disable extension auto-loading with TORCH_DEVICE_BACKEND_AUTOLOAD=0."
    )
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("cause", "mended_by"),
    [
        (ImportError("libhccl.so: cannot open shared object file"), ["libhccl.so", "set_env.sh"]),
        (ImportError("libascendcl.so: cannot open shared object file"), ["libascendcl.so", "CANN"]),
        (
            ImportError("libascend_hal.so: cannot open shared object file"),
            ["libascend_hal.so", "driver", "LD_LIBRARY_PATH"],
        ),
        (RuntimeError("ASCEND_HOME_PATH is not set"), ["ASCEND_HOME_PATH", "set_env.sh"]),
        (ImportError("libtorch_npu.so: undefined symbol: _ZN3c10"), ["version that fits"]),
        (AttributeError("module 'torch_npu' has no attribute '_autoload'"), ["version that fits"]),
    ],
)
def test_a_half_installed_backend_is_named_with_what_mends_it(
    cause: BaseException, mended_by: list[str]
) -> None:
    said = explain_import(backend_failure(cause))
    assert said is not None
    for part in ["torch_npu", "TORCH_DEVICE_BACKEND_AUTOLOAD=0", str(cause), *mended_by]:
        assert part in said


def test_a_missing_torch_is_not_called_a_half_installed_device() -> None:
    assert explain_import(ModuleNotFoundError("No module named 'torch'")) is None


def test_a_missing_cuda_library_at_import_is_explained() -> None:
    error = OSError("libcudart.so.12: cannot open shared object file: No such file or directory")
    said = explain_import(error)
    assert said is not None
    assert "libcudart.so.12" in said
    assert "CUDA runtime" in said


def test_a_chain_that_runs_in_circles_ends() -> None:
    one, two = RuntimeError("one"), RuntimeError("two")
    one.__cause__, two.__cause__ = two, one
    assert chain_text(one) == "RuntimeError: one\nRuntimeError: two"


def test_a_backend_that_breaks_import_torch_is_explained_in_real(tmp_path: Path) -> None:
    """A package like torch_npu without CANN: its entry point makes `import torch` itself fail."""
    info = tmp_path / "torch_npu_like-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-npu-like\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[torch.backends]\ntorch_npu = torch_npu_like:_autoload")
    (tmp_path / "torch_npu_like.py").write_text(
        "raise ImportError('libhccl.so: cannot open shared object file: No such file')\n"
    )
    program = (
        "from loaders.device.faults import explain_import\n"
        "try:\n    import torch\n"
        "except RuntimeError as error:\n    print(explain_import(error))\n"
    )
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    env.pop("TORCH_DEVICE_BACKEND_AUTOLOAD", None)
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    assert "torch_npu" in done.stdout
    assert "libhccl.so comes with CANN" in done.stdout
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in done.stdout


def test_the_package_and_its_faults_do_without_torch() -> None:
    program = "import sys, loaders.device.faults; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
