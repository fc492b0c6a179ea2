"""A simulated accelerator: `npu` without hardware, for tests alone. It is never fast or slow: what
it takes is what it was told to take, and its name begins with "simulated".

With this folder's parent in PYTHONPATH, `import torch` loads it as it loads torch_npu, through the
entry-point group `torch.backends`, in child processes too. It stands on parts of torch that change
without notice, so it is made for one version (TORCH) and leaves any other alone.
"""

from __future__ import annotations

TORCH = "2.13"


def fits(version: str) -> bool:
    """Whether the simulation works with that version of torch."""
    return version.split("+")[0].rpartition(".")[0] == TORCH


def autoload() -> None:
    """Registers the device as `npu`. Called at the end of `import torch`."""
    import torch

    if not fits(torch.__version__):
        return
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    from simulated_npu import memory, module

    _setup_privateuseone_for_python_backend("npu", module.module())
    memory.register()
