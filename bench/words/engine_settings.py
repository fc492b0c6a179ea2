"""What to set in the engine to load as a loader of this suite does.

Facts of vLLM as they were read in its releases (config/load.py, default_loader.py, weight_utils.py,
runai_streamer_loader.py), up to 0.33. "Since" is the first release looked at that has it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

Version = tuple[int, ...]

NEWEST: Version = (0, 33)
"""Up to which the facts here were read."""

_SINCE = re.compile(r"(?:^since|\bin) (\d+(?:\.\d+)+)")

NOT_AVAILABLE = "not available in the engine (vLLM 0.33)"
_NO_STRATEGY = "together with a load strategy other than lazy refused since 0.24"
_PT_ONLY = (
    "reads *.pt only: for *.bin take --load-format hf (0.20 and later; auto before), where no "
    "*.safetensors lies beside"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """`flags` as on vLLM's command line, `since` its versions in words, `caveat` how the engine's
    own way differs from what was measured."""

    flags: str
    since: str
    caveat: str = ""

    @property
    def first(self) -> Version:
        """The first version that has all of the flags."""
        return max(version_of(found) for found in _SINCE.findall(self.since))

    def __str__(self) -> str:
        return f"{self.flags} ({'; '.join(filter(None, [self.since, self.caveat]))})"


def version_of(text: str) -> Version:
    """`0.22.1` as (0, 22, 1). ValueError for what is no version."""
    return tuple(int(part) for part in text.split("."))


def flags_for(
    loader: str, options: Mapping[str, bool | int | str], threads: int, engine: Version = NEWEST
) -> Setting | None:
    """The setting, None where this version of the engine has no such way."""
    setting = _setting(loader, options, threads)
    return setting if isinstance(setting, Setting) and setting.first <= engine else None


def engine_setting(loader: str, options: Mapping[str, bool | int | str], threads: int) -> str:
    """One phrase for the loader with these options (name -> value, those left out are the loader's
    defaults) and reader threads: vLLM's flags and the versions that take them, or that the engine
    has no such way, in words that begin with NOT_AVAILABLE."""
    setting = _setting(loader, options, threads)
    return str(setting) if isinstance(setting, Setting) else f"{NOT_AVAILABLE}{setting}"


def _setting(loader: str, options: Mapping[str, bool | int | str], threads: int) -> Setting | str:
    match loader:
        case "safetensors-mmap":
            return Setting(
                flags="--load-format safetensors --safetensors-load-strategy lazy",
                since="since 0.10.2",
                caveat="what the engine does anyway where it doesn't prefetch by itself",
            )
        case "safetensors-eager":
            return Setting(
                flags="--load-format safetensors --safetensors-load-strategy eager",
                since="since 0.10.2",
            )
        case "safetensors-prefetch":
            return _prefetch(options, threads)
        case "safetensors-threads":
            return _multithread("safetensors", threads)
        case "safetensors-pread":
            return ": it opens safetensors files as mappings only"
        case "pt":
            if options.get("mmap"):
                return ": it calls torch.load without mmap"
            return Setting(
                flags="--load-format pt",
                since="since 0.4.2, weights_only since 0.8.5",
                caveat=_PT_ONLY,
            )
        case "pt-threads":
            return _multithread("pt", threads, _PT_ONLY)
        case "remote":
            return (
                ": it downloads first, but for --load-format runai_streamer (since 0.6.6), which "
                "reads s3://, gs:// and az:// itself"
            )
        case "npcache":
            return Setting(
                flags="--load-format npcache",
                since="since 0.4.2",
                caveat="fails on bfloat16, which numpy lacks",
            )
        case "dummy":
            return Setting(
                flags="--load-format dummy", since="since 0.4.2", caveat="random weights"
            )
        case "fastsafetensors":
            return Setting(
                flags="--load-format fastsafetensors",
                since="since 0.8.5",
                caveat="there into device memory; what was measured is its CPU path",
            )
        case "instanttensor":
            return Setting(flags="--load-format instanttensor", since="since 0.18", caveat="CUDA")
        case "runai-streamer":
            return _runai(options, threads)
        case "tensorizer":
            return Setting(
                flags="--load-format tensorizer --model-loader-extra-config "
                f"{_json(num_readers=threads, tensorizer_uri='PATH')}",
                since="since 0.4.2",
                caveat="needs the model serialised by vLLM's own script",
            )
    return ""


def _prefetch(options: Mapping[str, bool | int | str], threads: int) -> Setting:
    flags = "--load-format safetensors --safetensors-load-strategy prefetch"
    flags += f" --safetensors-prefetch-num-threads {threads}"
    block = int(options.get("block_mib", 16)) << 20
    return Setting(
        flags=f"{flags} --safetensors-prefetch-block-size {block}",
        since="the strategy in 0.18 and later, the numbers in 0.22.1 and later",
        caveat="not together with enable_multithread_load: refused since 0.24",
    )


def _multithread(load_format: str, threads: int, caveat: str = "") -> Setting:
    config = _json(enable_multithread_load=True, num_threads=threads)
    return Setting(
        flags=f"--load-format {load_format} --model-loader-extra-config {config}",
        since='since 0.10.2; a real boolean: the string "true" is refused since 0.24',
        caveat="; ".join(
            filter(
                None, ["together with a load strategy other than lazy refused since 0.24", caveat]
            )
        ),
    )


def _runai(options: Mapping[str, bool | int | str], threads: int) -> Setting:
    ring = int(options.get("ring_mib", 0))
    limit = {"memory_limit": ring << 20} if ring else {}
    return Setting(
        flags="--load-format runai_streamer --model-loader-extra-config "
        f"{_json(concurrency=threads, **limit)}",
        since="since 0.6.6",
        caveat="the engine clones every tensor on top",
    )


def _json(**values: bool | int | str) -> str:
    """Quoted for a shell. json.dumps writes booleans as JSON has them, which the engine demands."""
    return f"'{json.dumps(values)}'"
