"""What kind of failure a log's root cause is, over the wordings of engines and libraries."""

from __future__ import annotations

import io
import random
from typing import Any

import pytest

from bench.explain.build import build
from bench.explain.failures import Failures
from bench.explain.parse import parse
from bench.explain.record import ColdStart
from bench.explain.savings import Rates, savings
from bench.explain.timeline import Timeline

BEGUN = """\
(APIServer pid=1) INFO 10-02 05:10:00 [api_server.py:1839] vLLM API server version 0.11.0
(EngineCore_DP0 pid=7) INFO 10-02 05:10:15 [core.py:77] Initializing a V1 LLM engine (v0.11.0) \
with config: model='/m/x', dtype=torch.bfloat16, tensor_parallel_size=1
"""
LOADING = """\
(EngineCore_DP0 pid=7) INFO 10-02 05:10:30 [gpu_model_runner.py:2602] Starting to load model /m/x...
Loading safetensors checkpoint shards:   0% Completed | 0/6 [00:00<?, ?it/s]
"""
LOADED = """\
(EngineCore_DP0 pid=7) INFO 10-02 05:10:40 [gpu_model_runner.py:2653] Model loading took 14.9 GiB \
and 9.5 seconds
"""


def failed(message: str, before: str = BEGUN + LOADING) -> dict[str, Any]:
    worker = "(EngineCore_DP0 pid=7) ERROR 10-02 05:10:41 [core.py:708] "
    log = (
        f"{before}{worker}EngineCore failed to start.\n"
        f"{worker}Traceback (most recent call last):\n{worker}{message}\n"
        f"(EngineCore_DP0 pid=7) {message}\n"
        "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause "
        "above. Failed core proc(s): {}\n"
    )
    return build(parse(io.BytesIO(log.encode()).read)).to_json()


@pytest.mark.parametrize(
    "message",
    [
        "FileNotFoundError: [Errno 2] No such file or directory: '/m/x/model-00003-of-00006"
        ".safetensors'",
        'FileNotFoundError: No such file or directory: "/m/x/model-00003-of-00006.safetensors"',
        "FileNotFoundError: Weight files referenced in index but missing: {'a.safetensors'}",
        "OSError: [Errno 5] Input/output error: '/m/x/model-00003-of-00006.safetensors'",
        "OSError: Unable to load weights from pytorch checkpoint file for '/m/x/pytorch_model.bin'",
        "RuntimeError: Cannot find any model weights with `/m/x`",
        "RuntimeError: unexpected EOF, expected 3249104 more bytes. The file might be corrupted.",
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central "
        "directory",
        "RuntimeError: The size of tensor a (4096) must match the size of tensor b (2048) at "
        "non-singleton dimension 0",
        "RuntimeError: start (0) + length (1024) exceeds dimension size (512).",
        "ValueError: Following weights were not initialized from checkpoint: {'a.weight'}",
        "KeyError: 'model.layers.0.self_attn.qkv_proj.weight_scale'",
        "AssertionError: Attempted to load weight (torch.Size([8])) into a parameter of [4]",
    ],
)
def test_c113_files_that_are_at_fault(message: str) -> None:
    found = failed(message)
    assert (found["failure_kind"], found["failure"]) == ("bad_checkpoint", message)


@pytest.mark.parametrize(
    "message",
    [
        "ValueError: num_threads must be a positive integer, got 0",
        "ValueError: Load format `foo` is not supported",
        "ValueError: Unknown load_format: foo",
        "ValueError: World size (8) is larger than the number of available GPUs (4) in this node.",
        "ValueError: The number of required GPUs exceeds the total number of available GPUs in the "
        "placement group.",
        "ValueError: Tensor parallel size 256 is greater than the number of experts 128.",
        "ValueError: Model loader extra config is not supported for load format dummy",
        "TypeError: EngineArgs.__init__() got an unexpected keyword argument 'foo'",
    ],
)
def test_options_that_are_refused_while_the_model_is_made(message: str) -> None:
    assert failed(message)["failure_kind"] == "bad_option"


def test_what_is_refused_before_anything_was_opened_is_an_option() -> None:
    assert failed("ValueError: spam must be eggs", BEGUN)["failure_kind"] == "bad_option"
    assert failed("ValueError: spam must be eggs")["failure_kind"] == "other"
    low = "ValueError: Free memory on device (3.2/79.1 GiB) on startup is less than desired"
    assert failed(low, BEGUN)["failure_kind"] == "other"  # that is the card's state


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB", "profiling_failed"),
        ("AssertionError: Error in memory profiling. Initial free memory 1", "profiling_failed"),
        ("ValueError: No available memory for the cache blocks. Try", "pool_too_small"),
        ("RuntimeError: CUDA error: device-side assert triggered", "other"),
    ],
)
def test_c109_failures_between_weights_and_pool(message: str, kind: str) -> None:
    assert failed(message, BEGUN + LOADING + LOADED)["failure_kind"] == kind


def test_lines_of_a_torchrun_rank_are_its_own_lines() -> None:
    log = BEGUN + LOADING + LOADED + (
        "[rank0]: Traceback (most recent call last):\n[rank0]:   File \"w.py\", line 1, in f\n"
        "[rank0]: ValueError: The model's max seq len (8192) is larger than the maximum number of "
        "tokens that can be stored in KV cache (1920).\n"
    )  # fmt: skip
    found = build(parse(io.BytesIO(log.encode()).read))
    assert (found.status, found.failure_kind) == ("failed", "pool_too_small")
    assert (found.failure or "").startswith("ValueError: The model's max seq len (8192)")


def test_a_time_is_found_among_many_lines_without_one() -> None:
    """Colons and bars' times are no times of day that a line begins with."""
    filler = "std::vector<int>::at(7) [12:34:56<00:00:01, 3it/s] " + "x" * 200 + "\n"
    log = filler * 300 + BEGUN + filler * 300 + LOADING + filler * 300
    ready = "(APIServer pid=1) INFO 10-02 05:12:00 [a.py:1] any line\n" + filler * 20
    ready += "INFO:     Application startup complete.\n"
    for size in (4096, 65_536, 1 << 20):
        source = io.BytesIO((log + ready).encode())
        found = build(parse(lambda _, source=source, size=size: source.read(size)))
        assert found.phases.startup_wall_secs == 120


def test_savings_come_from_measured_rates_of_the_same_bytes() -> None:
    """60 s for 30 GB; this host reads them at 3 GB/s as the engine does, at 6 GB/s at best: the
    reading is 10 s of the 60 s, and the better way takes 5 s less."""
    start = ColdStart()
    start = ColdStart(phases=type(start.phases)(weights_seconds=60.0))
    times = Timeline(wall=None, stages=(), unexplained=None)
    rates = Rates(best=6.0, best_name="direct", current=3.0, current_name="mmap", run="r")
    rows = {one.remedy: one for one in savings(start, times, 30e9, rates)}
    assert rows["faster storage"].expected == 10.0
    assert rows["more threads, or another load path"].expected == 5.0
    unknown = Rates(best=6.0, best_name="direct", current=None, current_name=None, run="r")
    rows = {one.remedy: one for one in savings(start, times, 30e9, unknown)}
    assert rows["faster storage"].expected is None
    assert rows["more threads, or another load path"].expected == 55.0


@pytest.mark.parametrize("seed", range(4))
def test_savings_never_exceed_what_they_touch(seed: int) -> None:
    draw = random.Random(seed).uniform
    start = ColdStart(phases=type(ColdStart().phases)(weights_seconds=draw(0.1, 100)))
    times = Timeline(wall=None, stages=(), unexplained=None)
    rates = Rates(
        best=draw(0.1, 10), best_name="a", current=draw(0.1, 10), current_name="b", run="r"
    )
    for one in savings(start, times, draw(1, 1e12), rates):
        assert one.expected is None or 0 <= one.expected <= (one.at_most or 0)


def test_a_noisy_process_takes_nobody_elses_place() -> None:
    """However many exceptions one process handles, the failure of another is kept."""
    failures = Failures()
    for number in range(1000):
        failures.add("server", f"ValueError: handled {number}", "ERROR", number, "start")
    failures.add("engine", "RuntimeError: the real one", "ERROR", 2000, "weights")
    failures.went_on("server")
    root = failures.root()
    assert root is not None
    assert (root.text, root.line) == ("RuntimeError: the real one", 2000)


def test_what_says_something_is_kept_after_any_number_that_doesnt() -> None:
    failures = Failures()
    for number in range(1000):
        failures.add(
            "engine", "RuntimeError: Engine core initialization failed.", "ERROR", number, "start"
        )
    failures.add("engine", "SafetensorError: header too large", "ERROR", 2000, "weights")
    root = failures.root()
    assert root is not None
    assert root.line == 2000


def test_processes_without_end_take_a_bounded_place() -> None:
    failures = Failures()
    for number in range(1000):
        for _ in range(20):
            failures.add(f"worker {number}", "ValueError: no", "ERROR", number, "start")
    assert len(failures._found) == len(failures._sources) <= 256 * 8
