"""What is wrong with a device, told from the texts that torch and drivers raise.

No torch in here: one of the faults is that `import torch` itself fails, when a half-installed
backend is loaded along with it (`torch.backends` entry points, torch 2.5 and later).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

NOT_AUTOLOADED = "TORCH_DEVICE_BACKEND_AUTOLOAD=0"

# What torch and its backends raise for a device: torch.OutOfMemoryError and torch.AcceleratorError
# are RuntimeErrors, "not compiled with CUDA" is an AssertionError.
RAISED = (RuntimeError, AssertionError, OSError, MemoryError, ImportError, AttributeError)


class DeviceError(Exception):
    """A device can't be used. `code` is one of those in FAULTS, "missing" or "unknown"; the text
    says which device, what was being done, what was found and what to do."""

    def __init__(self, code: str, text: str) -> None:
        self.code = code
        super().__init__(text)


class DeviceTextError(ValueError):
    """A device was named in a way that means nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A kind of fault: how its texts look, what it is, and what mends it."""

    code: str
    looks: re.Pattern[str]
    what: str
    mend: str


def _fault(code: str, looks: str, what: str, mend: str) -> Fault:
    return Fault(code=code, looks=re.compile(looks, re.I), what=what, mend=mend)


FAULTS = (
    _fault(
        "half-installed",
        r"failed to load the backend extension|undefined symbol|_autoload\b"
        r"|two accelerators cannot be used|failed to verify the opp"
        r"|lib(?!cuda\.so)[\w-]+\.so[.\d]*: cannot open shared object",
        "its software is installed in part, or in parts that don't fit each other",
        "",  # see _mend_installation: it depends on what is missing
    ),
    _fault(
        "old-driver",
        r"driver on your system is too old|driver version is insufficient"
        r"|unsupported display driver|forward compatibility was attempted"
        r"|driver[^.\n]{0,40}(?:does not|doesn't|not) match|driver[^.\n]{0,40}mismatch",
        "the driver is older than the runtime that torch was built with, or doesn't fit it",
        "update the driver, or install a torch that was built for an older runtime",
    ),
    _fault(
        "no-driver",
        r"found no nvidia driver|libcuda\.so[.\d]*: cannot open|no cuda-capable device"
        r"|no nvidia driver|can't initialize nvml",
        "there is no driver, or it shows this process no device",
        "load the driver; in a container, pass the device on (`--gpus`, or /dev/davinci*); look at "
        "CUDA_VISIBLE_DEVICES and ASCEND_RT_VISIBLE_DEVICES",
    ),
    _fault(
        "not-compiled",
        r"not (?:compiled|linked) with (?:\w+ )?(?:cuda|support|npu)",
        "the installed torch is built without it",
        "install a torch build for this accelerator",
    ),
    _fault(
        "busy",
        r"busy or unavailable|exclusive|cudaErrorDevicesUnavailable|error\s*[=(]\s*46\b",
        "another process holds it, or it is in exclusive mode",
        "end the other process (`nvidia-smi`, `npu-smi info`), or let it be shared "
        "(`nvidia-smi -c DEFAULT`)",
    ),
    _fault(
        "no-such-number",
        r"invalid device ordinal|invalid device id|error code is 107001",
        "it has no device of this number",
        "count them, and look at CUDA_VISIBLE_DEVICES and ASCEND_RT_VISIBLE_DEVICES",
    ),
    _fault(
        "not-ready",
        r"system not yet initialized|failed to start the device|error code is 507033",
        "the device, or the service that its links need, hasn't started",
        "start the service (nvidia-fabricmanager on hosts with NVSwitch), or look into the "
        "device's log (`nvidia-smi`, `npu-smi info`)",
    ),
    _fault(
        "forked",
        r"re-?initialize \w+ in forked subprocess|bad.fork",
        "this process was forked from one that already used it",
        "start the process afresh (multiprocessing's `spawn` or `forkserver`)",
    ),
    _fault(
        "lost",
        r"device (?:is |was )?lost|gpu is lost|fallen off the bus|uncorrectable ecc"
        r"|unspecified launch failure|heartbeat|illegal memory access|error code is 507\d\d\d",
        "it failed while it was at work",
        "look into the kernel's log for it (`dmesg`); it may need a reset",
    ),
    _fault(
        "no-memory",
        r"out of memory|(?:cannot|can't|unable to) allocate|can't map|\bMemoryError\b",
        "there isn't enough memory",
        "take a smaller checkpoint or smaller slots, or end what else uses the memory",
    ),
)

# Libraries by the part of the Ascend software that brings them.
_DRIVER_LIBRARIES = ("libascend_hal", "libdrvdsmi", "libdcmi")
_CANN = "source /usr/local/Ascend/ascend-toolkit/set_env.sh"


def code_of(text: str) -> str:
    """The code of the fault that a text is about; "unknown" if none of them."""
    return next((fault.code for fault in FAULTS if fault.looks.search(text)), "unknown")


def chain_text(error: BaseException) -> str:
    """The texts of an error and of those that led to it, the outermost first."""
    texts: list[str] = []
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        texts.append(f"{type(link).__name__}: {link}".removesuffix(": "))
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return "\n".join(texts)


def device_error(error: BaseException, device: str, doing: str) -> DeviceError:
    """The named error for whatever was raised about `device` ("cuda:1") while `doing` ("copying 4
    bytes"). A DeviceError stays as it is."""
    if isinstance(error, DeviceError):
        return error
    text = chain_text(error)
    said = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    fault = next((fault for fault in FAULTS if fault.looks.search(text)), None)
    if fault is None:
        return DeviceError("unknown", f"{device}: {doing} failed: {type(error).__name__}: {said}")
    mend = fault.mend or _mend_installation(text)
    return DeviceError(fault.code, f"{device}: {doing} failed: {fault.what} ({said}); {mend}")


def raise_named(error: BaseException, device: str, doing: str) -> NoReturn:
    """Raises `device_error`, caused by the error."""
    raise device_error(error, device, doing) from error


def explain_import(error: BaseException) -> str | None:
    """Why `import torch` failed, where a device's half-installed software is the reason, and what
    mends it: one line. None where torch itself is missing or broken in another way."""
    text = chain_text(error)
    if code_of(text) != "half-installed":
        return None
    backend = re.search(r"backend extension: ([\w.-]+?)\.?(?:\s|$)", text)
    name = f"the backend {backend[1]}" if backend else "a backend of it"
    last = text.splitlines()[-1]
    return f"torch can't be imported, because {name} can't be loaded ({last}); " + (
        _mend_installation(text)
    )


def _mend_installation(text: str) -> str:
    library = re.search(r"(lib[\w-]+\.so[.\d]*): cannot open shared object", text)
    variable = re.search(r"\b(ASCEND_\w+|CUDA_HOME|LD_LIBRARY_PATH)\b", text)
    advice: list[str] = []
    if library is not None and library[1].startswith(_DRIVER_LIBRARIES):
        advice.append(
            f"{library[1]} comes with the NPU driver: it must be in LD_LIBRARY_PATH "
            "(/usr/local/Ascend/driver/lib64/driver)"
        )
    elif library is not None and re.match(r"lib(cuda|cu[a-z]+|nv)", library[1]):
        advice.append(f"{library[1]} comes with the CUDA runtime: install torch again with it")
    elif library is not None:
        advice.append(f"{library[1]} comes with CANN: `{_CANN}` puts it into LD_LIBRARY_PATH")
    elif variable is not None:
        advice.append(f"{variable[1]} isn't right: `{_CANN}` sets it")
    else:
        advice.append("install the backend in the version that fits this torch")
    advice.append(f"{NOT_AUTOLOADED} goes on without the backend")
    return "; ".join(advice)
