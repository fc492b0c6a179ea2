"""Times of log lines. Engines print no year, some loggers no date, containers a zone.

Only differences matter, so a time is seconds since the start of the year (or day) in which the log
begins, and a step back by more than half a year (half a day) is the next one.
"""

from __future__ import annotations

import calendar
import re
from dataclasses import dataclass, field
from typing import Literal

Family = Literal["engine", "container", "clock"]

DAY = 86_400.0
_BEFORE_MONTH = (0, 0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)
_MONTHS = {name: number for number, name in enumerate(calendar.month_abbr) if name}
_ZONE = re.compile(r"([+-])(\d\d):?(\d\d)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """A printed time. `family` is who stamped: the engine with a date, a container (or syslog)
    around it, or a logger that prints the time of day alone. `seconds` counts from the start of
    the year, or of the day."""

    family: Family
    seconds: float
    leap: bool | None = None


def dated(
    family: Family, date: str, time: str, fraction: str | None = None, zone: str | None = None
) -> Stamp | None:
    """The stamp of `[YYYY-]MM-DD` (or `Mon D`) and `HH:MM:SS`; None if it's no date or no time."""
    seconds = time_of_day(time, fraction)
    parts = date.replace("/", "-").split("-") if "-" in date or "/" in date else date.split()
    year = int(parts.pop(0)) if len(parts) == 3 else None
    month = _MONTHS.get(parts[0].title()) if parts[0].isalpha() else int(parts[0])
    day = int(parts[1])
    if seconds is None or month is None or not 1 <= month <= 12 or not 1 <= day <= 31:
        return None
    # A log without a year that shows a 29th of February is of a leap year; others are taken for
    # common years, since a start-up over that night is likelier than one that lasts a day more.
    leap = calendar.isleap(year) if year else (True if (month, day) == (2, 29) else None)
    days = _BEFORE_MONTH[month] + day - 1
    if zone and (shift := _ZONE.fullmatch(zone)):
        minutes = int(shift[2]) * 60 + int(shift[3])
        seconds -= (1 if shift[1] == "+" else -1) * minutes * 60
    after_february = month > 2
    return Stamp(
        family=family,
        seconds=days * DAY + seconds + (DAY if after_february and leap else 0.0),
        leap=leap,
    )


def of_day(time: str, fraction: str | None = None) -> Stamp | None:
    seconds = time_of_day(time, fraction)
    return None if seconds is None else Stamp(family="clock", seconds=seconds)


def time_of_day(time: str, fraction: str | None = None) -> float | None:
    hours, minutes, seconds = (int(part) for part in time.split(":"))
    if hours > 23 or minutes > 59 or seconds > 60:
        return None
    part = float(f"0.{fraction}") if fraction else 0.0
    return hours * 3600.0 + minutes * 60 + seconds + part


def elapsed(text: str) -> int:
    """Seconds of a progress bar's `MM:SS` or `H:MM:SS`."""
    total = 0
    for part in text.split(":"):
        total = total * 60 + int(part)
    return total


@dataclass(slots=True)
class Clock:
    """Puts the stamps of one log, in the order of its lines, on one axis for each family. Lines of
    several processes may be a little out of order: they keep their own times."""

    _last: dict[Family, float] = field(default_factory=dict)
    _offset: dict[Family, float] = field(default_factory=dict)
    _leap: bool = False

    def place(self, stamp: Stamp) -> float:
        family = stamp.family
        seconds = stamp.seconds
        if stamp.leap is None and family == "engine" and self._leap and seconds >= 59 * DAY:
            seconds += DAY
        self._leap = self._leap or bool(stamp.leap)
        period = DAY if family == "clock" else (366 if self._leap else 365) * DAY
        offset = self._offset.get(family, 0.0)
        last = self._last.get(family)
        found = seconds + offset
        if last is not None and found < last - period / 2:
            self._offset[family] = offset + period
            found += period
        elif last is not None and found > last + period / 2 and offset:
            return found - period  # a late line of last year
        self._last[family] = found
        return found
