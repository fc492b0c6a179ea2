"""What stands before a log line's text: colours, container and cluster prefixes, process names,
level, time, source file. Engines change it with every release, so it is searched, not matched from
the start of the line."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from bench.explain.clock import Stamp, dated, of_day

_ESCAPES = re.compile(r"\x1b\[[0-9;:?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.?")
_LEVEL = r"(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL|TRACE|SUCCESS)"
_HEAD = 400
"""Characters in which a prefix ends: an engine's line quoted within another isn't its own."""

# vLLM's own form: LEVEL [YYYY-]MM-DD HH:MM:SS[.mmm] [file.py:123] text, without brackets in v0
_ENGINE = re.compile(
    rf"(?P<level>{_LEVEL}):?\s+(?P<date>(?:\d{{4}}-)?\d\d-\d\d) (?P<time>\d\d:\d\d:\d\d)"
    r"(?:[.,](?P<fraction>\d+))?\s+(?:\[[^\]\s]{1,200}\]|[\w./-]{1,200}:\d+\])\s?"
)
# Python's logging and its kin: 2025-02-11 10:38:28[,123] - INFO - name - text (in any order)
_LOGGING = re.compile(
    r"\[?(?P<date>\d{4}[-/]\d\d[-/]\d\d) (?P<time>\d\d:\d\d:\d\d)(?:[.,](?P<fraction>\d+))?\]?"
)
_ISO = re.compile(
    r"\[?(?P<date>\d{4}-\d\d-\d\d)T(?P<time>\d\d:\d\d:\d\d)(?:[.,](?P<fraction>\d+))?"
    r"(?P<zone>Z|[+-]\d\d:?\d\d)?\]?(?: (?:stdout|stderr) [FP])?\s?"
)
_SYSLOG = re.compile(r"(?P<date>[A-Z][a-z]{2} [ \d]\d) (?P<time>\d\d:\d\d:\d\d) \S+ [^\s:]+: ")
_TIME = re.compile(r"\[?(?P<time>\d\d:\d\d:\d\d)(?:[.,](?P<fraction>\d+))?\]?(?=\s)")
_AFTER_TIME = re.compile(
    rf"(?:\s*(?:[-|:]\s+)?\[?(?P<level>{_LEVEL})\]?(?=[\s\]:|-]|$)|\s+[-|]\s+[\w.:<>-]+(?=\s+[-|]\s))"
)
_AROUND = re.compile(
    r"\[pod/[^\]\s]+\]\s|\[rank\d+\]:\s?|[|│]\s|\[\d+,\d+\]<std\w+>:\s?|[\w.-]+\s+\|\s|\.+(?=[A-Z(\[])|[^\S\n]+"
)
_GROUP = re.compile(
    r"\((?P<name>[A-Za-z][\w. =-]{0,60}?)?\s?pid=(?P<pid>\d+)(?:,\s*ip=(?P<ip>[\w.:]+))?\)\s?"
)
_BARE_LEVEL = re.compile(rf"(?P<level>{_LEVEL}):?\s+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line without its prefix. `process` is the innermost name (`Worker_TP0`, `EngineCore_DP0`,
    `VllmWorker rank=0`; "" where only a pid is shown, None without any), `names` all of them;
    `engine_like` whether the prefix is one that engines print."""

    text: str
    process: str | None = None
    pid: str | None = None
    ip: str | None = None
    names: tuple[str, ...] = ()
    level: str | None = None
    engine: Stamp | None = None
    container: Stamp | None = None
    clock: Stamp | None = None
    engine_like: bool = False

    @property
    def stamps(self) -> tuple[Stamp, ...]:
        return tuple(stamp for stamp in (self.engine, self.container, self.clock) if stamp)


def split(raw: bytes) -> Line:
    """The parts of one line. Never raises; what is no UTF-8 is replaced."""
    text = raw.decode("utf-8", "replace")
    container: Stamp | None = None
    if text.startswith('{"') and '"log"' in text[:4000]:
        text, when = _docker_json(text)
        if found := _ISO.match(when):
            container = dated("container", found["date"], found["time"], found["fraction"])
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    if found := _ISO.search(text, 0, 160):
        if not _ENGINE.match(text):
            stamp = dated(
                "container", found["date"], found["time"], found["fraction"], found["zone"]
            )
            container = stamp or container
            text = text[: found.start()] + text[found.end() :]
    elif found := _SYSLOG.match(text):
        container = dated("container", found["date"], found["time"])
        text = text[found.end() :]
    if found := _ENGINE.search(text, 0, _HEAD):
        head, rest = text[: found.start()], text[found.end() :]
        groups = list(_GROUP.finditer(head))
        stamp = dated("engine", found["date"], found["time"], found["fraction"])
        return _line(rest, groups, found["level"], engine=stamp, container=container, like=True)
    return _other(text, container)


def _other(text: str, container: Stamp | None) -> Line:
    """A line that isn't of the engine's own form: its parts are taken off one after another."""
    groups: list[re.Match[str]] = []
    engine = clock = None
    level = None
    while True:
        if found := _AROUND.match(text):
            text = text[found.end() :]
        elif (found := _GROUP.match(text)) and len(groups) < 8:
            groups.append(found)
            text = text[found.end() :]
        elif level is None and (found := _BARE_LEVEL.match(text)):
            level = found["level"]
            text = text[found.end() :]
        elif engine is None and (found := _LOGGING.match(text)):
            engine = dated("engine", found["date"], found["time"], found["fraction"])
            text, level = _after_time(text[found.end() :])
        elif clock is None and engine is None and (found := _TIME.match(text)):
            clock = of_day(found["time"], found["fraction"])
            text, level = _after_time(text[found.end() :])
        else:
            break
    like = any(_ours(group["name"]) for group in groups)
    return _line(text, groups, level, engine=engine, container=container, clock=clock, like=like)


def _after_time(text: str) -> tuple[str, str | None]:
    """Level and logger's name behind a time, in either order, between dashes, bars or brackets."""
    level = None
    for _ in range(3):
        found = _AFTER_TIME.match(text)
        if not found:
            break
        level = found["level"] or level
        text = text[found.end() :]
    return text.lstrip(" -|:\t"), level


def _line(
    text: str,
    groups: list[re.Match[str]],
    level: str | None,
    *,
    engine: Stamp | None,
    container: Stamp | None,
    clock: Stamp | None = None,
    like: bool,
) -> Line:
    last = groups[-1] if groups else None
    return Line(
        text=text.rstrip(" \t\r\n│"),
        process=(last["name"] or "").strip() if last else None,
        pid=last["pid"] if last else None,
        ip=last["ip"] if last else None,
        names=tuple((group["name"] or "").strip() for group in groups),
        level="WARNING" if level == "WARN" else level,
        engine=engine,
        container=container,
        clock=clock,
        engine_like=like,
    )


def _ours(name: str | None) -> bool:
    return bool(
        name and re.match(r"EngineCore|CoreEngine|A[Pp][Ii]Server|Worker_|VllmWorker", name)
    )


def _docker_json(text: str) -> tuple[str, str]:
    """The line and its time, of Docker's json-file form."""
    try:
        found = json.loads(text)
        return str(found["log"]), str(found.get("time", ""))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return text, ""
