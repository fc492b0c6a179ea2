"""Options that a version of the engine ignores or refuses, as its releases were read (vLLM up to
0.33, config/load.py and default_loader.py)."""

from __future__ import annotations

from collections.abc import Iterator

from bench.explain.build import printed_settings
from bench.explain.findings import Finding
from bench.explain.settings import pairs, plain
from bench.explain.state import State

_GONE = {"gguf": (0, 24), "bitsandbytes": (0, 28), "ipc_cache": (0, 32)}
_KNOWN = {"enable_multithread_load", "num_threads", "enable_weights_track"}


def refused(state: State, version: tuple[int, ...]) -> Iterator[Finding]:
    """Findings about the options of the arguments line, for this version."""
    event = state.one("arguments")
    if event is None:
        return
    printed, _ = printed_settings(state)
    line = (event.moment.line,)
    extra = pairs(str(plain(printed.get("model_loader_extra_config", ""))) or "")
    strategy = plain(printed.get("safetensors_load_strategy", ""))
    threads = extra.get("enable_multithread_load", "")
    told = f"vLLM {'.'.join(map(str, version)) or 'of unknown version'}"
    strict = version >= (0, 24)
    if threads and threads not in ("True", "False", "true", "false"):
        yield Finding(
            code="option_type",
            text=f"enable_multithread_load is {threads}, a text and no bool: {told} "
            + ("refuses it" if strict else 'takes any text for true, "false" too'),
            evidence=line,
            next_step="Write it without quotes: "
            "--model-loader-extra-config '{\"enable_multithread_load\": true}'.",
        )
    on = threads not in ("", "False", "false", "0")
    if on and strategy not in (None, "lazy"):
        yield Finding(
            code="option_conflict",
            text=f"threads over the shards together with safetensors_load_strategy={strategy}: "
            f"{told} " + ("refuses both together" if strict else "ignores the strategy"),
            evidence=line,
            next_step="Choose one of them; `coldload` measures both.",
        )
    if on and version and version < (0, 10, 2):
        yield Finding(
            code="option_unknown",
            text=f"enable_multithread_load is known since 0.10.2, not to {told}",
            evidence=line,
            next_step="Update the engine, or leave the option out.",
        )
    if on and plain(printed.get("enable_ep_weight_filter", "")) is True:
        yield Finding(
            code="option_ignored",
            text="threads over the shards ignore enable_ep_weight_filter: every rank takes all "
            "experts",
            evidence=line,
            next_step="Leave the threads out where experts are spread over many ranks.",
        )
    yield from _format(plain(printed.get("load_format", "")), set(extra), version, told, line)


def _format(
    load_format: object,
    extra: set[str],
    version: tuple[int, ...],
    told: str,
    line: tuple[int, ...],
) -> Iterator[Finding]:
    name = str(load_format or "auto").lower()
    if name in _GONE and version >= _GONE[name]:
        yield Finding(
            code="option_unknown",
            text=f"load format {name} is no longer in {told}",
            evidence=line,
            next_step="Install the plug-in that brings it, or convert the checkpoint.",
        )
    if name in ("auto", "hf", "safetensors", "pt", "mistral") and extra - _KNOWN:
        yield Finding(
            code="option_unknown",
            text=f"model_loader_extra_config holds {', '.join(sorted(extra - _KNOWN))[:80]}, which "
            f"load format {name} doesn't know: {told} refuses it",
            evidence=line,
            next_step="Its keys are enable_multithread_load, num_threads and enable_weights_track.",
        )
