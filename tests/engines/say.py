"""Lines as vLLM 0.32 prints them, for scripts that behave like an engine."""

from __future__ import annotations

import sys
import time

WORKER = "(Worker pid=7)"


def say(text: str, stream: object = None) -> None:
    out = stream or sys.stdout
    out.write(text + "\n")
    out.flush()


def info(text: str, who: str = "(EngineCore pid=6)") -> None:
    say(f"{who} INFO {time.strftime('%m-%d %H:%M:%S')} [core.py:1] {text}")


def error(text: str, who: str = WORKER) -> None:
    say(f"{who} ERROR {time.strftime('%m-%d %H:%M:%S')} [multiproc_executor.py:953] {text}")


def begin(model: str = "models/tiny", *, eager: bool = False, load_format: str = "auto") -> None:
    info(f"non-default args: {{'model_tag': '{model}', 'max_model_len': 512}}", "(APIServer pid=5)")
    info(
        f"Initializing a V1 LLM engine (v0.32.0) with config: model='{model}', "
        f"dtype=torch.bfloat16, max_seq_len=512, load_format={load_format}, "
        f"tensor_parallel_size=1, enforce_eager={eager}"
    )
    info(f"Starting to load model {model}...", WORKER)


def weights() -> None:
    info("Loading weights took 0.10 seconds", WORKER)
    info("Model loading took 1.25 GiB memory and 0.120000 seconds", WORKER)


def pool() -> None:
    info("Available KV cache memory: 1.00 GiB", WORKER)
    info("GPU KV cache size: 32,768 tokens, Maximum concurrency for 512 tokens per request: 64.00x")


def warm() -> None:
    info("Graph capturing finished in 1 secs, took 0.10 GiB", WORKER)
    info("init engine (profile, create kv cache, warmup model) took 0.50 s")


def ready() -> None:
    info("Starting vLLM server on http://127.0.0.1:1", "(APIServer pid=5)")
    say("(APIServer pid=5) INFO:     Application startup complete.", sys.stderr)


def start() -> None:
    """A whole start."""
    begin()
    weights()
    pool()
    warm()
    ready()


def serve() -> None:
    """Serves until it's interrupted, which is the end of a well-behaved server."""
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        say("(APIServer pid=5) INFO:     Shutting down")
