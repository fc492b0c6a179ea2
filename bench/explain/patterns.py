"""The lines that bound a cold start, with the versions of vLLM that print them.

One row for each wording. `needle` is a literal of the line: a block of a log is searched for all
needles first, and only lines that have one are looked at. Rows share needles where they can, for
each one costs another search.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_N = r"(\d+(?:,\d+)*(?:\.\d+)?)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    name: str
    needle: bytes
    regex: re.Pattern[str]
    versions: str = ""


def _row(name: str, needle: str, regex: str, versions: str = "") -> Pattern:
    return Pattern(name=name, needle=needle.encode(), regex=re.compile(regex), versions=versions)


PATTERNS: tuple[Pattern, ...] = (
    # who starts, with what
    _row(
        "engine",
        " LLM engine",
        r"nitializing an? (?:(V[01]) )?LLM engine(?: \(v?([^)\s]+)\))?"
        r"(?: with config:? ?(.*))?",
        "all",
    ),
    _row("server_version", "ersion ", r"API server version:? v?(\d+\.\S+)", "0.3+"),
    _row("banner", "ersion ", r"[\u2580-\u259f].*\bversion v?(\d+\.\d\S*)", "0.30+"),
    _row(
        "arguments",
        "args: ",
        r"\b(?:non-default |engine |server )?args: ((?:\w*\(|\{).*)",
        "Namespace(...) to 0.8; non-default args 0.9+",
    ),
    _row("platform", "latform", r"(?:[Dd]etected platform|Platform plugin) (\w+)", "0.6.4+"),
    _row(
        "assigned", "is assigned as", r"rank (\d+) in world size (\d+) is assigned as (.*)", "0.8+"
    ),
    # weights
    _row(
        "load_begin",
        "Starting ",
        r"Starting to load model (\S+?)(?:\.\.\.|\s|$)",
        "0.4+, once a node since 0.13",
    ),
    _row("load_begin", "Loading model from scratch", r"Loading model from scratch", "0.10"),
    _row(
        "download",
        "downloading weights",
        rf"Time spent downloading weights for (.*?): {_N} s",
        "0.8+, from 0.5 s up",
    ),
    _row(
        "file_system",
        "Filesystem type",
        r"Filesystem type for checkpoints: (\S+?)\. Checkpoint "
        rf"size: {_N} GiB\. Available RAM: {_N} GiB",
        "0.20+",
    ),
    _row(
        "no_prefetch",
        "uto-prefetch",
        r"(Auto-prefetch is disabled.*|.*[Ss]kipping auto-prefetch"
        r".*)",
        "0.20+",
    ),
    _row(
        "prefetched",
        "Prefetching checkpoint files",
        r"Prefetching checkpoint files.*finished in "
        rf"{_N} ?s",
        "0.18+",
    ),
    _row(
        "bar",
        "shards",
        r"(?P<what>Loading \w+ checkpoint shards(?: \(\w+\))?|Multi-thread "
        r"loading (?:\w+ checkpoint )?shards): +(?P<percent>\d+)%[^|]*\|(?:[^|\[]*\|)? *"
        r"(?P<done>[\d.,]+)\w?/(?P<total>[\d.,]+)(?P<unit>\w?) *\[(?P<elapsed>\d+(?::\d\d)+)<",
        "0.5+; (eager) and Multi-thread 0.10.2+",
    ),
    _row(
        "bar",
        "safetensors using",
        r"(?P<what>Loading safetensors using [\w: ]+?(?: loader)?): +"
        r"(?P<percent>\d+)%[^|]*\|(?:[^|\[]*\|)? *(?P<done>[\d.,]+)\w?/(?P<total>[\d.,]+)"
        r"(?P<unit>\w?) *\[(?P<elapsed>\d+(?::\d\d)+)<",
        "Run:ai 0.6.6+, Fastsafetensor 0.8.3-0.23, InstantTensor 0.18+",
    ),
    _row("drafter", "draft", r"Loading (?:the )?(?:drafter|draft) model", "0.9+"),
    _row("init_model", " took ", rf"Initializing model took {_N} s", "0.32+"),
    _row("weights_took", " took ", rf"Loading weights took {_N} ?s", "0.8+"),
    _row(
        "weights_took",
        " took ",
        rf"Loading model weights took {_N} ?s(?!\w*B)",
        "vllm-ascend's RFork loader",
    ),
    _row(
        "weights_size",
        " took ",
        rf"Loading model weights took {_N} ?(Gi?B)",
        "0.4-0.7.3; vllm-ascend: all",
    ),
    _row(
        "model_took",
        " took ",
        rf"Model loading took {_N} ?(Gi?B)(?: memory)?(?:,? and|,) {_N} ?s",
        "GB 0.8.0-0.8.2, GiB 0.8.3-0.11, GiB memory 0.13+",
    ),
    _row(
        "load_total",
        "load_model total time",
        rf"load_model total time: {_N} ?s",
        "vllm-ascend 0.13+",
    ),
    _row(
        "online_quantisation",
        " took ",
        rf"Online quantization as part of model loading took {_N} s",
        "0.33",
    ),
    # memory
    _row("profiling", " takes ", rf"Memory profiling takes {_N} s", "0.6.6-0.10.2"),
    _row(
        "profiling", "profiling results: duration", rf"profiling results: duration={_N} s", "0.6.4"
    ),
    _row("profiling", " took ", rf"profiling/warmup run took {_N} s", "0.18+"),
    _row(
        "available",
        "KV cache",
        r"Available KV cache memory: (-?\d+(?:\.\d+)?) GiB",
        "0.9.2+; vllm-ascend 0.18+",
    ),
    _row(
        "available_bytes",
        "vailable memory: ",
        r"Available memory: (-?\d+), total memory: (\d+)",
        "vllm-ascend 0.7.3-0.13",
    ),
    _row(
        "blocks",
        " blocks: ",
        r"# (\w+) blocks: (\d+(?:,\d+)*)(?:, # \w+ blocks: (\d+(?:,\d+)*))?",
        "v0 all; v1 0.6.6-0.7.3; device's name 0.7.3-0.11",
    ),
    _row("blocks", "num_gpu_blocks", r"(num_gpu_blocks) is:? (\d+(?:,\d+)*)()", "0.8.5+"),
    _row(
        "override",
        "num_gpu_blocks",
        r"Overriding num_gpu_blocks=(\d+(?:,\d+)*) with num_gpu_blocks_override=(\d+(?:,\d+)*)",
        "all",
    ),
    _row(
        "tokens",
        "KV cache",
        r"\w+ KV cache size: (\d+(?:,\d+)*) tokens",
        "GPU 0.8-0.27; the device's name 0.28+",
    ),
    # graphs, compiling
    _row(
        "capture_begin",
        "apturing",
        r"Capturing (the model for CUDA|cudagraphs for decoding|\w+ graphs?)",
        "all",
    ),
    _row(
        "capture_end",
        "apturing",
        rf"Graph capturing finished in {_N} secs?(?:, took (-?\d+(?:\.\d+)?) (GiB|MiB))?",
        "0.4.2+",
    ),
    _row("compile", " takes ", rf"torch\.compile takes {_N} s in total", "0.6.6-0.16"),
    _row("compile", " took ", rf"torch\.compile took {_N} s in total", "0.18+"),
    _row(
        "init_engine",
        " took ",
        rf"init engine(?: \([^)]*\))? took {_N} ?s\w*"
        rf"(?: \(compilation: {_N} s)?",
        "0.6.6+; with compilation 0.20+",
    ),
    # ready
    _row("server", "Starting ", r"Starting vLLM (?:API )?server(?: \d+)? on", "0.7+"),
    _row("ready", "Application startup complete", r"Application startup complete", "all"),
    _row("ready", "Uvicorn running on", r"Uvicorn running on", "all"),
    _row("at_work", "Processed prompts", r"Processed prompts:", "offline, all"),
    _row("at_work", "throughput", r"[Aa]vg generation throughput", "all"),
)
