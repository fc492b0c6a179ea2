"""Pictures of made-up runs: what they show, that they are sound SVG, that names do no harm."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from bench.pictures.album import KINDS, album, albums, pictures_of
from bench.pictures.curves import MOST, Point, curve_picture
from bench.pictures.stages import REST, parts_of
from bench.pictures.style import DARK, Picture, file_name
from bench.record.records import Run, Sample, Seconds
from bench.record.summary import phases_of
from tests.tiny_report import NET, STRANGER, ceiling, load, made_run

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "]]>--><svg onload=alert(1)>",
    "&lt;b&gt; & more",
    "$\\frac{1}{0}$ and $",
    "\x00\x1b[31m\n\u202e",
    "模型-\U0001f600",
    STRANGER,
]


def run_of(*samples: Sample) -> Run:
    return made_run(*samples)


def named(pictures: list[Picture]) -> dict[str, Picture]:
    return {picture.name: picture for picture in pictures}


def texts(picture: Picture) -> list[str]:
    """All words drawn in it."""
    return [element.text or "" for element in ET.fromstring(picture.svg).iter(f"{SVG}text")]


def several() -> Run:
    """Two loaders in both states over three passes, with ceilings."""
    return run_of(
        *[ceiling("owned-read", 2.0, number) for number in (1, 2, 3)],
        *[load("parallel", 1.0 + number / 10, number, threads=2) for number in (1, 2, 3)],
        *[load("pt", 0.5, number) for number in (1, 2, 3)],
        *[load("parallel", 4.0, number, threads=2, cache="warm") for number in (1, 2, 3)],
        *[load("pt", 0.6, number, cache="warm") for number in (1, 2, 3)],
    )


def test_a_run_gives_rates_stages_and_cold_against_warm() -> None:
    found = named(pictures_of(several(), []))
    assert list(found) == [
        "rate-nvme-cold",
        "rate-nvme-warm",
        "stages-nvme-cold",
        "stages-nvme-warm",
        "cold-warm-nvme",
    ]
    rate = found["rate-nvme-cold"]
    assert "ceiling 2.00 GB/s" in rate.text
    assert "parallel, 2 threads 1.20 GB/s (1.10 to 1.30)" in rate.text
    assert {"Rate: nvme, cold", "GB/s", "parallel, 2 threads", "ceiling 2.00"} <= set(texts(rate))
    assert "seconds" in texts(found["stages-nvme-cold"])
    assert "1.20 → 4.00, 3.3 x" in texts(found["cold-warm-nvme"])


def test_every_pass_is_a_dot() -> None:
    def dots(passes: int) -> int:
        samples = [load("pt", 0.5 + number / 10, number) for number in range(passes)]
        svg = pictures_of(run_of(*samples), [])[0].svg
        points = re.search(r'id="[^"]*PathCollection_1".*?</g>\s*</g>', svg, re.S)
        assert points is not None
        return points[0].count("<use ")

    assert [dots(1), dots(3), dots(8)] == [1, 3, 8]


def test_the_same_values_give_the_same_file() -> None:
    once, again = album([several()]), album([several()])
    assert [picture.svg for picture in once] == [picture.svg for picture in again]
    assert "dc:date" not in once[0].svg


def test_each_has_its_text_and_stands_alone() -> None:
    for picture in album([several()]):
        root = ET.fromstring(picture.svg)
        assert root.get("role") == "img"
        by_id = {element.get("id"): element.text for element in root.iter()}
        assert root.get("aria-labelledby") == f"{picture.name}-title {picture.name}-desc"
        assert by_id[f"{picture.name}-title"] == picture.title
        assert by_id[f"{picture.name}-desc"] == picture.text
        assert picture.text
        links = re.findall(r'(?:href|src)="([^"]*)"|url\(([^)]*)\)', picture.svg)
        assert all((one or other).startswith("#") for one, other in links)


def test_ids_are_unique_over_all_pictures_of_a_page() -> None:
    pictures = album([several(), several()])
    assert len({picture.name for picture in pictures}) == len(pictures)
    ids = [i for picture in pictures for i in re.findall(r'\bid="([^"]*)"', picture.svg)]
    assert len(set(ids)) == len(ids)
    for picture in pictures:
        targets = re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', picture.svg)
        assert {one or other for one, other in targets} <= set(ids)


def test_every_colour_has_its_dark_partner() -> None:
    for picture in album([several()]):
        body = picture.svg.split("</style>", 1)[1]
        used = {colour.lower() for colour in re.findall(r"#[0-9a-fA-F]{6}\b", body)}
        assert used <= DARK.keys(), used - DARK.keys()
    assert len(set(DARK.values())) == len(DARK)


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_strangers_are_only_words(name: str) -> None:
    storage = replace(NET, label=name)
    run = run_of(
        load(name, 1.0, storage=storage, threads=1),
        load(name, 2.0, storage=storage, threads=2),
        load(name, 3.0, storage=storage, threads=2, cache="warm", options={name: name}),
    )
    for picture in album([run]):
        root = ET.fromstring(picture.svg)
        allowed = {"svg", "title", "desc", "style", "defs", "g", "path", "use", "text", "clipPath"}
        allowed |= {"rect", "tspan"}
        assert {element.tag.removeprefix(SVG) for element in root.iter()} <= allowed
        assert not any(key.startswith("on") for element in root.iter() for key in element.attrib)
        assert re.fullmatch(r"[a-z0-9-]+", picture.name)


def test_labels_that_no_file_name_tells_apart_give_files_of_their_own() -> None:
    run = run_of(
        *[load("pt", 1.0, n, storage=replace(NET, label=label)) for n in (1, 2) for label in "/:"]
    )
    names = [picture.name for picture in album([run])]
    assert len(set(names)) == len(names) == 4


def test_phases_to_come_are_pictured_without_new_code() -> None:
    whole = Seconds(read=1.0, slice=0.5, quantise=2.0, layout=0.25, transfer=0.5, total=4.5)
    run = run_of(
        load("parallel", 1.0),
        load("way-one", 1.0, storage=None, cache="none", phase="assemble", seconds=whole),
        load("way-two", 1.0, storage=None, cache="none", phase="unheard_of", seconds=whole),
    )
    assert phases_of(run) == ["disk_to_host", "assemble", "unheard_of"]
    found = {picture.title: picture for picture in pictures_of(run, [])}
    assert "Rate: unheard of" in found
    stages = found["Seconds by stage: assembling"]
    assert "quantise 2.00 s" in stages.text
    assert "other 0.25 s" in stages.text
    assert {"read", "slice", "quantise", "layout", "transfer", REST} <= set(texts(stages))


def test_stages_that_overlapped_leave_nothing_over() -> None:
    assert parts_of({"read": 2.0, "transfer": 1.5, "total": 2.1}) == {"read": 2.0, "transfer": 1.5}
    assert parts_of({"open": 0.0, "read": 1.0, "total": 1.5}) == {"read": 1.0, REST: 0.5}
    assert parts_of({"total": 1.0}) == {REST: 1.0}


def test_curves_of_threads_sizes_and_residency() -> None:
    threads = run_of(*[load("parallel", 0.5 * n, threads=n) for n in (1, 2, 4)])
    curve = named(album([threads]))["threads-nvme-cold"]
    assert curve.text == "parallel: 1 0.50 GB/s, 2 1.00 GB/s, 4 2.00 GB/s."

    small = run_of(replace(load("pt", 1.0), bytes=1 << 28, seconds=Seconds(total=0.5)))
    large = run_of(replace(load("pt", 1.0), bytes=1 << 30, seconds=Seconds(total=1.0)))
    sizes = named(album([small, large]))["sizes-nvme-cold"]
    assert sizes.text == "pt: 256MiB 0.54 GB/s, 1GiB 1.07 GB/s."

    between = load("pt", 2.0, cache="mixed")
    partly = replace(between.cache, resident_before=0.5)
    residency = run_of(
        load("pt", 1.0), replace(between, cache=partly), load("pt", 4.0, cache="warm")
    )
    found = named(album([residency]))["residency-nvme"]
    assert found.text == "pt: 0 % 1.00 GB/s, 50 % 2.00 GB/s, 100 % 4.00 GB/s."


def test_one_size_one_thread_count_or_two_states_are_no_curve() -> None:
    names = named(album([several(), several()]))
    assert not any(name.startswith(("sizes", "threads", "residency")) for name in names)


def test_a_curve_shows_the_fastest_and_says_what_it_left_out() -> None:
    points = {
        f"loader {n}": [Point(at=1, rates=[n]), Point(at=2, rates=[n])] for n in range(1, MOST + 4)
    }
    made = curve_picture(points, name="n", title="t", unit="u", tick=str)
    assert made is not None
    assert "3 slower ones are left out" in made.text
    assert f"loader {MOST + 3}" in texts(made)
    assert "loader 1" not in texts(made)


def test_ranks_first_and_last_done() -> None:
    done = {"ranks": [{"rank": 0, "done": 2.0}, {"rank": 1, "done": 3.0}, {"rank": 2, "done": 2.5}]}
    run = run_of(load("read-all", 1.0, phase="ranks", details=done, layout="tp3"))
    ranks = named(pictures_of(run, []))["ranks"]
    assert ranks.text == (
        "read-all, cold, 3 ranks: first rank done 2.00 seconds, last rank done 3.00 seconds."
    )


def test_samples_in_another_state_are_not_pictured_as_asked() -> None:
    run = run_of(load("pt", 9.0, state="mixed"), load("pt", 1.0, 2), load("eager", 2.0, 2))
    assert "9.00" not in named(pictures_of(run, []))["rate-nvme-cold"].text


def test_a_run_with_nothing_measured_has_no_picture() -> None:
    assert album([run_of()]) == []


@pytest.mark.parametrize(
    ("parts", "expected"),
    [(("Rate", "nvme:/x"), "rate-nvme-x"), (("..", "/"), "picture"), (("a" * 99,), "a" * 80)],
)
def test_file_names(parts: tuple[str, ...], expected: str) -> None:
    assert file_name(*parts) == expected


def test_who_waits_is_told_how_far_the_pictures_are() -> None:
    told: list[tuple[int, int]] = []
    albums([several(), several()], lambda done, total: told.append((done, total)))
    assert told == [(number, 2 * KINDS + 1) for number in range(1, 2 * KINDS + 2)]
