"""Which line says why a start-up failed: the root cause, not the last line.

A failing worker prints a traceback; the processes above it then print their own, which say only
that something below failed. The root cause is the first exception that says something by itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Literal

Kind = Literal["profiling_failed", "pool_too_small", "bad_checkpoint", "bad_option", "other"]
Stage = Literal["start", "weights", "profiling", "capture", "server"]

NEEDLES: tuple[bytes, ...] = (
    b"rror", b"xception", b"died", b"Segmentation fault", b"Killed", b"core dumped", b"SIGKILL",
    b"Input should be", b"terminate called", b"failed to start",
)  # fmt: skip
LATER: tuple[bytes, ...] = (
    b"EngineDeadError", b"died unexpectedly", b"Failed core proc", b"fatal error",
    b"OutOfMemoryError", b"out of memory", b"Engine loop has died", b"Background loop",
    b"Segmentation fault", b"Fatal Python error", b"SIGKILL", b"CUDA error", b"terminate called",
)  # fmt: skip
"""What is looked for once the engine is ready."""
SHUTDOWN: tuple[bytes, ...] = (b"shutdown triggered", b"Shutting down", b"received signal=")

LONGEST = 600
_MOST_SOURCES = 256
_MOST_EACH = 8  # of one source, so that a noisy process takes nobody else's place

_EXCEPTION = re.compile(
    r"(?:[A-Za-z_][\w.]*\.)?(?P<name>[A-Z]\w*?(?:Error|Exception|Interrupt|Exit|Timeout)|Exception)"
    r"(?::\s?(?P<text>.*))?"
)
_USAGE = re.compile(r"(?:[\w./-]+(?: \w+)?): error: (?P<text>.+)")
_DEATH = re.compile(
    r"(?:.*\bline \d+: +\d+ )?Killed\b|(?:.*\b)?Segmentation fault|Fatal Python error: |"
    r".*\bcore dumped\b|terminate called |.*\bdied with <?Signals\.|.*\bSIGKILL\b|"
    r"(?:EngineCore|WorkerProc) failed to start|.*\bdied unexpectedly|"
    r".*\bWorker \S+ (?:pid \d+ )?died"
)
_DETAIL = re.compile(r"(?:Value error, |Input should be |Assertion failed, ).*")
_GENERIC = re.compile(
    r"Engine core initialization failed|EngineCore (?:failed|encountered)|Failed core proc|"
    r"WorkerProc (?:initialization )?failed|Engine process (?:failed|\(pid)|background process|"
    r"See (?:root cause|stack trace)|EngineDeadError|Engine ?loop|Background loop|\bdied\b|"
    r"SystemExit|CalledProcessError|ProcessExitedException|ChildProcessError|RayTaskError|"
    r"RayActorError|ActorDiedError|WorkerCrashedError|KeyboardInterrupt|CancelledError|ZMQError|"
    r"BrokenPipeError|BrokenProcessPool|Connection (?:reset|closed|refused)|EOFError$|cancelled$|"
    r"remote process exited|DistNetworkError|Watchdog caught"
)
_AGAIN = "During handling of the above exception, another exception occurred"

_KINDS: tuple[tuple[Kind, str], ...] = (
    ("profiling_failed", r"Error in memory profiling|not properly cleaned up|"
     r"during memory profiling|memory profiling (?:failed|error)"),
    ("pool_too_small", r"No available memory for the cache blocks|max(?:imum)? seq(?:uence)? len.*"
     r"(?:larger|greater) than the maximum number of tokens|To serve at least one request|"
     r"larger than the available KV cache|KV cache is needed|num_gpu_blocks\b.*(?:small|insuffic)"
     r"|not enough (?:memory|space).*(?:KV|cache)|insufficient.*KV cache"),
    ("bad_option", r"\berror: (?:argument|unrecognized|the following|ambiguous)|unrecognized argum|"
     r"invalid choice|ValidationError|validation error|Unexpected extra config keys|must be a bool|"
     r"enable_multithread_load|safetensors_load_strategy|[Ll]oad format .* (?:is )?not support|"
     r"User-specified max_model_len|divisible by|[Uu]nknown quantization|Value error, |"
     r"Quantization method specified|only supported on GPUs with compute|Input should be|"
     r"not (?:a )?supported (?:for|by|quantization|dtype)|Cannot use .* (?:with|together)|"
     r"is not a local folder and is not a valid model|Invalid repository ID|RepositoryNotFound|"
     r"HFValidationError|[Ww]orld size .* (?:larger|greater|exceeds)|data type .* unknown|"
     r"[Uu]nknown (?:dtype|load.format)|required GPUs exceeds|greater than the number of experts|"
     r"num_threads must be|extra config is not supported|unexpected keyword argument|"
     r"Incorrect path_or_model_id|gpu_memory_utilization must be|"
     r"max_num_batched_tokens .*(?:smaller|less) than"),
    ("bad_checkpoint", r"SafetensorError|HeaderTooLarge|header|MetadataIncomplete|incomplete "
     r"metadata|not fully covered|[Cc]annot find any model weights|referenced in index but missing|"
     r"not initialized from checkpoint|Missing keys?\b|[Uu]nexpected key|size mismatch|"
     r"no module or parameter named|Unpickling|PytorchStreamReader|invalid load key|"
     r"Could not find checkpoint files|shape.*mismatch|mismatch.*shape|checkpoint (?:is )?corrupt|"
     r"does not appear to have (?:a file|files) named|Ran out of input|failed finding central dir|"
     r"[Bb]ad magic number|loaded_weight|is not (?:a )?valid (?:JSON|safetensors)|"
     r"JSONDecodeError|No safetensors|unexpected EOF|might be corrupted|Unable to load weights|"
     r"Unrecognized model in|Error no file named|"
     r"\b(?:FileNotFound|OS|IO)Error: .*\.(?:safetensors|bin|pt|pth|index\.json)\b"),
)  # fmt: skip
KINDS = tuple((kind, re.compile(pattern)) for kind, pattern in _KINDS)
_PROFILING = "Error in memory profiling"
_UNEXPECTED = re.compile(
    r"(?:\w+\.)*(?:KeyError|AssertionError|IndexError)\b|"
    r"RuntimeError: .*(?:must match the size|exceeds dimension size|shape '.*' is invalid)"
)
_MEMORY = re.compile(r"out of memory|OutOfMemory|OOM")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """`text` is the message without prefix and without the module of the exception's class, `whole`
    as it stands in the log; `generic` if it says only that something else failed."""

    text: str
    whole: str
    line: int
    kind: Kind
    stage: Stage
    generic: bool


@dataclass(slots=True)
class Failures:
    """Candidates, one chain for each process. What a process went on after wasn't fatal."""

    _found: list[Failure] = field(default_factory=list)
    _sources: list[str] = field(default_factory=list)
    _again: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, source: str, text: str, level: str | None, line: int, stage: Stage) -> None:
        """Looks at one line of the process `source`."""
        if level not in (None, "ERROR", "CRITICAL", "FATAL"):
            return
        if _AGAIN in text:
            self._again.add(source)
            return
        found = failure_in(text, line, stage)
        if found is None:
            return
        mine = [at for at, name in enumerate(self._sources) if name == source]
        if mine and (_DETAIL.match(found.text) or source in self._again) and not found.generic:
            # what went wrong while an error was handled, and the line below a validation error,
            # say more than the first line did
            self._again.discard(source)
            self._found[mine[-1]] = replace(found, kind=_better(found, self._found[mine[-1]]))
        elif not _DETAIL.match(found.text) and self._has_room(found, mine):
            self._found.append(found)
            self._sources.append(source)

    def _has_room(self, found: Failure, mine: list[int]) -> bool:
        """Whether one more is kept of a source of which those at `mine` are: always the first that
        says something by itself, since that is what `root` looks for."""
        if not mine:
            return len(set(self._sources)) < _MOST_SOURCES
        telling = any(not self._found[at].generic for at in mine)
        return len(mine) < _MOST_EACH or not (telling or found.generic)

    def went_on(self, source: str) -> None:
        """The process reached something later: what it had printed was handled."""
        if source in self._sources:
            kept = [at for at, name in enumerate(self._sources) if name != source]
            self._found = [self._found[at] for at in kept]
            self._sources = [self._sources[at] for at in kept]

    def engine_began(self) -> None:
        """An engine is only begun after all that its server had to do before: none of what was
        printed until then was fatal."""
        self._found.clear()
        self._sources.clear()

    def root(self) -> Failure | None:
        """The first that says something by itself, else the first of all."""
        telling = [found for found in self._found if not found.generic]
        return next(iter(telling or self._found), None)


def failure_in(text: str, line: int, stage: Stage) -> Failure | None:
    """The failure that a line states, or None."""
    text = text.strip()
    if found := _EXCEPTION.fullmatch(text[:20_000]):
        said = (found["text"] or "").strip()
        shown = f"{found['name']}: {said}" if said else found["name"]
        if _PROFILING in said:
            shown = _PROFILING  # what follows is worded differently by each release
    elif (found := _USAGE.fullmatch(text)) or _DETAIL.match(text) or _DEATH.match(text):
        shown = text
    else:
        return None
    return Failure(
        text=shown[:LONGEST],
        whole=text[:LONGEST],
        line=line,
        kind=kind_of(text, stage),
        stage=stage,
        generic=bool(_GENERIC.search(text)),
    )


def kind_of(text: str, stage: Stage) -> Kind:
    """What kind of failure a message is. Memory that runs out between the weights and the pool ran
    out in the profiling run."""
    for kind, pattern in KINDS:
        if pattern.search(text):
            return kind
    if _MEMORY.search(text):
        return "profiling_failed" if stage == "profiling" else "other"
    if stage == "weights" and _UNEXPECTED.match(text):
        return "bad_checkpoint"  # a name or a shape that the model's loader didn't expect
    if stage == "start" and re.match(r"(?:Value|Type)Error: (?!Free memory)", text):
        return "bad_option"  # nothing was opened yet: what it refuses is what it was told
    return "other"


def _better(found: Failure, before: Failure) -> Kind:
    return before.kind if found.kind == "other" else found.kind
