"""The start-up logs of cases C95 to C117 and of real engines, each with its expected record."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from bench.explain.build import build
from bench.explain.parse import parse

LOGS = Path(__file__).parent / "logs"
NAMES = sorted(path.stem for path in LOGS.glob("*.log"))


def record(data: bytes, **given: str) -> dict[str, Any]:
    return build(parse(io.BytesIO(data).read), given).to_json()


def flat(found: dict[str, Any]) -> dict[str, Any]:
    return {**{key: value for key, value in found.items() if key != "phases"}, **found["phases"]}


@pytest.mark.parametrize("name", NAMES)
def test_c95_to_c117_every_expected_field_of_every_log(name: str) -> None:
    expected = json.loads((LOGS / f"{name}.json").read_text())
    expected.pop("notes", None)
    found = flat(record((LOGS / f"{name}.log").read_bytes()))
    assert {key: found[key] for key in expected} == expected


OWN = json.loads((LOGS / "own/expected.json").read_text())


@pytest.mark.parametrize("name", sorted(OWN))
def test_every_field_of_logs_of_the_same_kinds(name: str) -> None:
    """Derived by hand; what isn't stated is null, {} or []."""
    found = flat(record((LOGS / f"own/{name}.log").read_bytes()))
    found.pop("evidence")
    found["weights_gb_by_worker"] = sorted(found["weights_gb_by_worker"].values())
    stated = {key: value for key, value in found.items() if value not in (None, [])}
    assert stated == {key: value for key, value in OWN[name].items() if value is not None}
