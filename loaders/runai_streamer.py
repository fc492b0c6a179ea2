"""Run:ai Model Streamer on local files: its own threads or asynchronous reads into its buffers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, ClassVar

import torch

from loaders.checkpoint.manifest import Checkpoint
from loaders.contract import Loader, OptionValue, Ownership, Stamp
from loaders.io.errors import LoadError
from loaders.io.library import older_than, require_whole, translated, unknown_code
from loaders.io.tensors import by_file, require_dtypes
from loaders.registry import register


@register
class RunaiStreamer(Loader):
    """SafetensorsStreamer.stream_files, get_tensors; `threads` is RUNAI_STREAMER_CONCURRENCY.

    With `ring_mib` 0 each tensor is the caller's to keep (the library's `owned=True`): its buffers
    are never written to again, and in all they are as large as the checkpoint. Otherwise it streams
    through reused buffers of that many MiB (RUNAI_STREAMER_MEMORY_LIMIT, `owned=False`), and a
    tensor is gone with the next one. vLLM clones each tensor on top, which is left out here."""

    name = "runai-streamer"
    summary = "Run:ai Model Streamer: asynchronous reads into its own buffers, kept or reused"
    formats = frozenset({"safetensors"})
    ownership: Ownership = "owned"
    options: ClassVar[Mapping[str, OptionValue]] = {"ring_mib": 0}
    variants = ({}, {"ring_mib": 512})
    threaded = True
    requires = ("runai_model_streamer",)

    def __init__(self, threads: int = 1, **given: OptionValue) -> None:
        super().__init__(threads, **given)
        if self.settings["ring_mib"]:
            self.require_positive("ring_mib")
            self.ownership = "borrowed"

    @classmethod
    def unusable(cls) -> str | None:
        return older_than("runai-model-streamer", "0.17")  # whose tensors tell who owns them

    def refuses(self, checkpoint: Checkpoint) -> str | None:
        from runai_model_streamer.safetensors_streamer.safetensors_pytorch import (
            safetensors_to_torch_dtype,
        )

        return unknown_code(checkpoint, safetensors_to_torch_dtype, "the Run:ai streamer")

    def load(self, checkpoint: Checkpoint, stamp: Stamp) -> Iterator[tuple[str, torch.Tensor]]:
        from runai_model_streamer import SafetensorsStreamer

        require_dtypes(checkpoint)
        if (reason := self.refuses(checkpoint)) is not None:
            raise LoadError(reason)
        paths = [file.path for file, _ in by_file(checkpoint)]
        if not paths:
            return
        where = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
        with stamp("open"):
            require_whole(checkpoint)
        streamer: Any = SafetensorsStreamer()
        limits = self._limits(checkpoint)
        with translated("runai-streamer", where), _environment(limits):
            streamer.__enter__()
        try:
            # it reads the headers and the first tensors meanwhile, so it isn't all opening
            with translated("runai-streamer", where), _environment(limits):
                streamer.stream_files(paths, owned=self.ownership == "owned")
            with closing(streamer.get_tensors()) as tensors:
                while True:
                    with translated("runai-streamer", where):
                        item = next(tensors, None)
                    if item is None:
                        return
                    yield item
                    del item
        finally:
            streamer.__exit__(None, None, None)

    def _limits(self, checkpoint: Checkpoint) -> dict[str, str]:
        limits = {"RUNAI_STREAMER_CONCURRENCY": str(self.threads)}
        ring = int(self.settings["ring_mib"]) << 20
        if ring == 0:
            return limits  # its own bound, 40 GB, doesn't matter where no buffer is used twice
        largest = max((spec.nbytes for spec in checkpoint.tensors), default=0)
        if largest > ring:
            self.note(f"ring of {largest} bytes instead of {ring}: the largest tensor needs it")
        limits["RUNAI_STREAMER_MEMORY_LIMIT"] = str(max(ring, largest))
        return limits


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """The library takes its limits from nowhere else, and only while it starts a stream."""
    before = {key: os.environ.get(key) for key in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value
