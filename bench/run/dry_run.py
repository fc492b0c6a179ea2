"""What `--collect-only` and `--plan` print: a line for each case, and what the run would take."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from bench.ground.storages import Place
from bench.record.cases import Case
from bench.run.forecast import case_lines, forecast, lines_of
from bench.settings import Settings
from loaders.checkpoint.text import printable

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter


def tell(
    reporter: TerminalReporter,
    settings: Settings,
    places: Sequence[Place],
    cases: Sequence[Case],
    *,
    everything: bool,
    as_json: bool = False,
) -> None:
    """`everything`: the cases too; `as_json`: one line of JSON alone. Errors as of `forecast`."""
    reporter.write_line("")
    if as_json:
        reporter.write_line(json.dumps(document(settings, places, cases)))
        return
    for line in case_lines(cases, places) if everything else ():
        reporter.write_line(printable(line))
    for line in lines_of(forecast(settings, places, cases), cases, settings.passes):
        reporter.write_line(printable(line))


def document(settings: Settings, places: Sequence[Place], cases: Sequence[Case]) -> dict[str, Any]:
    """{model, size, passes, cases, seconds, before, written, read, notes}: what Forecast holds, and
    the cases with all that makes them ones. Errors as of `forecast`."""
    found = asdict(forecast(settings, places, cases))
    return {**found, "passes": settings.passes, "cases": [asdict(case) for case in cases]}
