"""What runs within the engine's own process, with its Python: loading as the engine does it, timed.

The engine's worker imports it by the name of its worker extension, before it loads a model. It then
stands around the engine's own loading of weights: makes memory alike, empties the page cache of the
files, lets the engine load, and tells seconds and a digest of every parameter. Then it ends
the start. It knows nothing of this project: the engine's environment lacks what that needs.

Source: vLLM 0.32, worker_extension_cls (v1/worker/worker_base.py), default_loader.load_weights.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import time
from pathlib import Path
from typing import Any

REPORT = "COLDLOAD_ENGINE_REPORT"
FILES = "COLDLOAD_ENGINE_FILES"


class Extension:
    """Nothing is added to the worker; importing this module is what it is for."""


def evict(paths: list[str]) -> None:
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def touch_and_free(nbytes: int) -> None:
    """Touches fresh memory and gives it back, so that whoever loads next finds as many pages that
    the host has behind it, whoever loaded before."""
    with mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        for start in range(0, nbytes, mmap.PAGESIZE):
            memory[start] = 1


def fetched() -> int:
    """Bytes that this process had fetched from a device."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("read_bytes"):
            return int(line.split()[1])
    return 0


def digests(named: list[tuple[str, Any]]) -> dict[str, str]:
    """{name: "dtype [shape] digest"} of contiguous tensors on the host."""
    import torch

    found = {}
    for name, tensor in named:
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        digest = hashlib.blake2b(flat, digest_size=16).hexdigest()
        found[name] = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)} {digest}"
    return found


def stand_around(loader: Any) -> None:
    """Replaces the loader's load_weights by one that times it and then ends the process."""
    import torch

    original = loader.load_weights

    def load_weights(self: Any, model: Any, *given: Any) -> None:
        files = json.loads(os.environ[FILES])
        touch_and_free(sum(Path(file).stat().st_size for file in files))
        evict(files)
        before, began = fetched(), time.perf_counter()
        original(self, model, *given)
        seconds = time.perf_counter() - began
        report = {
            "seconds": seconds,
            "said": self.counter_after_loading_weights - self.counter_before_loading_weights,
            "fetched": fetched() - before,
            "threads": torch.get_num_threads(),
            "cores": sorted(os.sched_getaffinity(0)),
            "digests": digests(list(model.named_parameters())),
        }
        place = Path(os.environ[REPORT])
        place.with_suffix(".part").write_text(json.dumps(report))
        place.with_suffix(".part").rename(place)
        os._exit(0)  # what comes after loading isn't compared

    loader.load_weights = load_weights


if REPORT in os.environ:
    from vllm.model_executor.model_loader.default_loader import (  # type: ignore[import-not-found]
        DefaultModelLoader,
    )

    stand_around(DefaultModelLoader)
