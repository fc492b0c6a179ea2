"""The pytest edge: options, the matrix of cases, a sample an item, the table in the end.

`pytest` runs the tests and measures nothing; `pytest --benchmark-only` measures and runs no test;
`pytest bench --benchmark-disable` is the smoke mode. The pass is the outermost parameter, so that
contestants interleave; in what pytest-benchmark shows and saves, a case stands once, with its
passes as rounds.
"""

from __future__ import annotations

import signal
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from pytest_benchmark.logger import PytestBenchmarkWarning

from bench import saved
from bench.given import losses
from bench.ground import groundwork
from bench.ground.ready import Ground
from bench.ground.storages import Place, Store, default_place, name_storages, staged_place
from bench.items import ROOT, is_bench, is_empty, is_measured, measures, named, phase_of, within
from bench.measuring.children import ChildError
from bench.measuring.cores import effective_cores
from bench.options import add_options, found_device, only_planned, planned_as_json, settings_of
from bench.page.terminal import render
from bench.phases.stage import stage_cases
from bench.record.cases import Case
from bench.record.records import RECORDS, read_run
from bench.run import matrix
from bench.run.dry_run import tell
from bench.run.progress import ProgressLine
from bench.run.run_dir import check_run_dir
from bench.run.session import Session
from bench.settings import Settings, SettingsError
from bench.synth.shapes import shape_names
from loaders import registry
from loaders.checkpoint.hf_cache import repo_id
from loaders.checkpoint.manifest import CheckpointError, UnreadableError
from loaders.checkpoint.resolve import Resolved, resolve_model
from loaders.checkpoint.text import printable

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

NOTHING_MEASURED = 1
BROKEN = 1
"""Exit status where the checkpoint has a fault, or the run broke off; where something is asked for
that can't be had, it is pytest's for wrong usage."""


class Bench:
    """What one pytest session knows: settings, storages, the cases, and the run once it began."""

    def __init__(self, config: pytest.Config) -> None:
        self.settings: Settings = settings_of(config)
        self.cores = effective_cores()
        self.device = found_device(self.settings.device)
        self.storages: list[Place] = name_storages(
            self.settings.storages, default_place(self.settings.model, shape_names())
        )
        stage = self.settings.stage
        if stage is not None:
            self.storages.append(staged_place(stage, self.storages, self.settings.caches))
        stores = [place.label for place in self.storages if isinstance(place, Store)]
        folders = [place.label for place in self.storages if place.label not in stores]
        entries = registry.entries()
        every = [
            *matrix.ceiling_cases(self.settings, folders, self.cores),
            *matrix.loader_cases(self.settings, entries, folders, self.cores, stores),
            *stage_cases(self.storages, self.settings.caches),
            *matrix.phase_cases(self.settings, folders, self.cores, self.device),
        ]
        self.cases: dict[tuple[str, str], Case] = {
            (case.phase, case.test_id): case for case in every
        }
        self.session: Session | None = None
        self.refused: str | None = None
        self.differences: list[str] = []
        self.asked: Counter[str] = Counter()
        self.measured: Counter[str] = Counter()
        self.first_stats: dict[str, Any] = {}
        self.progress = ProgressLine(None)

    @property
    def nothing_measured(self) -> bool:
        """Whether none of what was asked for was measured. Ceilings alone are nothing, unless only
        they were asked for."""
        phases = self.asked.keys() - {"ceiling"} or {"ceiling"}
        return not any(self.measured[phase] for phase in phases)


BENCH = pytest.StashKey[Bench]()


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    if not measures(config):
        return
    try:
        config.stash[BENCH] = Bench(config)
        check_run_dir(config.stash[BENCH].settings.run_dir)
    except (SettingsError, UnreadableError, OSError) as error:
        said = "\n".join(printable(line) for line in str(error).splitlines())
        raise pytest.UsageError(said) from error
    if only_planned(config):
        config.option.collectonly = True
    if not config.option.collectonly:
        for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: what was measured is shown
            signal.signal(number, signal.default_int_handler)
    if config.getoption("benchmark_compare", None):
        config.option.benchmark_quiet = False  # the comparison stands in its table, nowhere else
    # What pytest-benchmark warns of (nothing to compare with, nothing to save) fails no run: not
    # while it is configured, which is now, and not later.
    warnings.filterwarnings("default", category=PytestBenchmarkWarning)
    config.addinivalue_line(
        "filterwarnings", "default::pytest_benchmark.logger.PytestBenchmarkWarning"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Keeps measuring and testing apart where no path was named."""
    if named(config):
        return None
    if is_bench(collection_path) and BENCH not in config.stash:
        return True
    only = config.getoption("benchmark_only", False)
    if only and within(collection_path, ROOT / "tests"):
        return True
    return None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "measure" not in metafunc.fixturenames:
        return
    state = metafunc.config.stash[BENCH]
    phase = metafunc.function.__name__.removeprefix("bench_")
    names = [name for of, name in state.cases if of == phase]
    passes = range(1, state.settings.passes + 1)
    metafunc.parametrize("case", names)
    metafunc.parametrize(
        "run_pass", list(passes), ids=[f"pass{n}" for n in passes], scope="session"
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Benches pass by pass, each pass in its own shuffled order; tests keep theirs."""
    state = config.stash.get(BENCH, None)
    if state is None:
        return
    if any(map(is_empty, items)):
        items[:] = [item for item in items if not is_empty(item)]
    passes = {
        index: int(str(item.callspec.params["run_pass"]))
        for index, item in enumerate(items)
        if isinstance(item, pytest.Function) and "measure" in item.fixturenames
    }
    others = [item for index, item in enumerate(items) if index not in passes]
    items[:] = others + matrix.walk(items, passes, state.settings.seed)


@pytest.hookimpl(wrapper=True)
def pytest_collection_finish(session: pytest.Session) -> Iterator[None]:
    """Of benches that are only listed: a line for each case, and what the run would take, in place
    of an item for each pass. With -q the items' ids, as pytest has them."""
    config, items = session.config, session.items[:]
    state = config.stash.get(BENCH, None)
    reporter: TerminalReporter | None = config.pluginmanager.getplugin("terminalreporter")
    planned = only_planned(config)
    if state is not None and not config.option.collectonly:
        state.progress = ProgressLine(reporter)
        state.asked.update(phase_of(item) for item in items if is_measured(item))
        if reporter is not None and all(map(is_measured, items)):
            reporter.showfspath = False  # files alternate from item to item: progress tells
    quiet = config.option.verbose < 0 and not planned
    if state is None or reporter is None or quiet or not config.option.collectonly:
        return (yield)
    session.items[:] = [item for item in items if not is_measured(item)]
    try:
        yield
    finally:
        session.items[:] = items
    chosen = {id(_case_of(state, item)) for item in items if is_measured(item)}
    cases = [case for case in state.cases.values() if id(case) in chosen]  # in their own order
    try:
        as_json = planned_as_json(config)
        tell(
            reporter,
            state.settings,
            state.storages,
            cases,
            everything=not planned,
            as_json=as_json,
        )
    except groundwork.REFUSALS as error:
        reporter.write_line(f"coldload: {printable(str(error))}", red=True)
        _refuse(state, error)


def pytest_report_teststatus(
    report: pytest.TestReport, config: pytest.Config
) -> tuple[str, str, str] | None:
    """No dot for a sample: the progress line tells."""
    if BENCH in config.stash and "[" in report.nodeid and is_bench(ROOT / report.nodeid):
        if report.when == "call" and report.passed:
            return "passed", "", "PASSED"
        if report.skipped:
            return "skipped", "", "SKIPPED"
    return None


def pytest_benchmark_update_machine_info(
    config: pytest.Config, machine_info: dict[str, Any]
) -> None:
    state = config.stash.get(BENCH, None)
    if state is not None:
        saved.add_facts(machine_info, state.storages, state.cores)


@pytest.hookimpl(tryfirst=True)
def pytest_benchmark_compare_machine_info(
    config: pytest.Config, machine_info: dict[str, Any], compared_benchmark: dict[str, Any]
) -> None:
    """Keeps what differs for the summary. pytest-benchmark's own hook then finds no difference: it
    would print both machines whole, and crash where the saved runs lie outside this folder."""
    state = config.stash.get(BENCH, None)
    if state is not None:
        state.differences += saved.differences(machine_info, compared_benchmark["machine_info"])
        compared_benchmark["machine_info"] = machine_info


@pytest.fixture(scope="session")
def coldload_session(request: pytest.FixtureRequest) -> Iterator[Session]:
    """The run: the ground is laid when the first sample is due."""
    state = request.config.stash[BENCH]
    items = [item for item in request.session.items if is_measured(item)]
    cases = list(dict.fromkeys(_case_of(state, item) for item in items))
    try:
        found = _resolve(request.config, state.settings.model)
        session = state.session = Session(state.settings, state.storages)
    except groundwork.REFUSALS as error:
        _refuse(state, error)
    try:
        try:
            ground = _lay(found, state, session, cases)
            session.start(ground, cases, state.progress.say)
        except groundwork.REFUSALS as error:
            _refuse(state, error)
        state.progress.start(len(items))
        yield session
    finally:
        state.progress.finish()
        session.close()


def _refuse(state: Bench, error: Exception, status: int = pytest.ExitCode.USAGE_ERROR) -> NoReturn:
    """Ends the session, once for all of its items; the summary says why."""
    state.refused = str(error) or type(error).__name__
    pytest.exit("the run can't go on", BROKEN if isinstance(error, CheckpointError) else status)


def _case_of(state: Bench, item: pytest.Item) -> Case:
    assert isinstance(item, pytest.Function)
    return state.cases[phase_of(item), str(item.callspec.params["case"])]


def _lay(found: Resolved, state: Bench, session: Session, cases: list[Case]) -> Ground:
    means = groundwork.Means(
        settings=state.settings,
        storages=state.storages,
        cases=cases,
        server=session.server,
        work=session.work,
        say=state.progress.say,
    )
    if found.shape is not None:
        return groundwork.lay_shape(found.shape, means)
    if found.address is not None:
        return groundwork.lay_address(found.address, means)
    assert found.path is not None
    name = found.text if found.kind == "hub" else repo_id(found.path)
    name = name or Path(found.path).resolve().name
    return groundwork.lay_model(name, Path(found.path), means)


def _resolve(config: pytest.Config, model: str) -> Resolved:
    capture = config.pluginmanager.getplugin("capturemanager")
    # A download shows its own progress bar.
    with capture.global_and_fixture_disabled() if capture else nullcontext():
        return resolve_model(model, shapes=shape_names())


@pytest.fixture
def measure(
    request: pytest.FixtureRequest, benchmark: Any, run_pass: int, coldload_session: Session
) -> Callable[[str], None]:
    """Measures a case once. The test is skipped, or fails, as its sample says."""
    state = request.config.stash[BENCH]
    case = _case_of(state, request.node)
    key = f"bench_{case.phase}[{case.test_id}]"
    benchmark.name, benchmark.param = key, case.test_id
    benchmark.fullname = f"{request.node.nodeid.split('::')[0]}::{key}"
    benchmark.params = {"case": case.test_id}

    def take(_: str) -> None:
        title = f"{case.title} {case.cache if case.cache != 'none' else ''}"
        state.progress.sample(case.phase, run_pass, state.settings.passes, title)
        try:
            sample = coldload_session.measure(
                case, run_pass, lambda run: benchmark.pedantic(run, rounds=1, iterations=1)
            )
        except (OSError, ChildError) as error:  # no samples can be taken or kept: stop here
            benchmark.has_error = True
            _refuse(state, error, BROKEN)
        benchmark.extra_info.update(case=sample.case, bytes=sample.bytes)
        if sample.status != "ok":
            benchmark.has_error = True
        saved.merge(request.config, state.first_stats, benchmark, key, sample)
        if sample.status == "skipped":
            pytest.skip(sample.reason or "")
        if sample.status != "ok":
            pytest.fail(sample.reason or "", pytrace=False)
        state.measured[case.phase] += 1

    return take


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A run that was asked to measure and measured nothing has failed."""
    config = session.config
    state = config.stash.get(BENCH, None)
    if state is None or config.option.collectonly or not config.getoption("benchmark_only", False):
        return
    nothing = {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}
    if state.nothing_measured and exitstatus in nothing:
        session.exitstatus = NOTHING_MEASURED


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    state = config.stash.get(BENCH, None)
    if state is None or config.option.collectonly:
        return
    if state.session is not None and (state.session.run_dir / RECORDS).exists():
        run = read_run(state.session.run_dir, skip_broken=True)
        if (lost := losses(run)) is not None:
            terminalreporter.write_line(printable(lost), yellow=True)
        if run.plan is not None:
            width = terminalreporter._tw.fullwidth if terminalreporter.isatty else None
            terminalreporter.write(render(run, width=width, colour=terminalreporter.hasmarkup))
    if state.differences:
        terminalreporter.write_line(
            f"Compared with a run on another machine or storage: {'; '.join(state.differences)}.",
            yellow=True,
        )
    if state.refused is not None:
        terminalreporter.write_line(f"coldload: {state.refused}", red=True)
    elif state.nothing_measured and config.getoption("benchmark_only", False):
        terminalreporter.write_line(
            "Nothing was measured. See the reasons with -rs; coldload loaders lists what can run.",
            red=True,
        )
