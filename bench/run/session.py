"""A run: measures each case in each pass and writes every sample down at once."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.ground.prepare import Prepared
from bench.ground.probe import ceiling_options
from bench.ground.ready import Ground, prepared_for, problems_of
from bench.ground.staging import remove_new
from bench.ground.storages import Place, Storage, Store
from bench.host.facts import host_facts
from bench.measuring import fio
from bench.measuring.children import Server
from bench.measuring.cores import effective_cores
from bench.measuring.surroundings import Surroundings
from bench.phases.table import PHASES
from bench.progress import Say
from bench.record.cachestate import share_of
from bench.record.cases import Case
from bench.record.records import SCHEMA, CacheRecord, Sample, Seconds, Writer
from bench.run.budget import spent
from bench.run.limits import raise_nofile
from bench.run.run_dir import run_folder
from bench.run.sampling import Job, Timed, take
from bench.settings import Settings
from bench.sizes import format_size
from loaders import registry
from loaders.contract import Loader, OptionValue
from loaders.store.address import HTTP, masked
from loaders.system.memory import available_bytes
from loaders.system.residency import UNKNOWN

MEMORY_SPARE = 512 << 20
"""Memory left to everything else when it is decided whether a loader may hold a checkpoint."""

RECYCLED = 4 << 30
"""The most memory that is touched and freed before a sample. As much as most checkpoints here have:
where a host is given free memory back (free page reporting), less would leave the rest of an owned
load to chance."""

WORK = ".work"
"""Folder within the run's, for what children need as files; gone when the run is closed."""

COPY_BYTES = 256 << 20
SLOWEST = 10e6
"""Bytes per second below which a child counts as hanging."""

SLOWEST_LINK = 1e6
PATIENCE = 300
"""The same for a store, and seconds for requests that are tried again: a loader gives up itself."""


class Session:
    """One run. Made with the ground laid; `measure` each case in each pass, then `close`."""

    def __init__(self, settings: Settings, storages: Sequence[Place]) -> None:
        self.settings = settings
        self.storages = {storage.label: storage for storage in storages}
        self.cores = effective_cores()
        self.run_dir = run_folder(settings)
        self.writer = Writer(self.run_dir)
        try:
            self.server = Server(self.run_dir / "children.log")
        except BaseException:
            self.writer.close()
            self._tidy()
            raise
        self.surroundings = Surroundings()
        self.work = self.run_dir / WORK
        self.work.mkdir(exist_ok=True)
        self._ground: Ground | None = None
        self._deadline: float | None = None

    @property
    def ground(self) -> Ground:
        assert self._ground is not None, "the ground is laid before anything is measured"
        return self._ground

    def start(self, ground: Ground, cases: Sequence[Case], say: Say) -> None:
        """Writes the plan and the host down; from here on the budget runs."""
        self._ground = ground
        shards = max(len(ready.checkpoint.files) for ready in ground.prepared.values())
        raise_nofile(shards * 2 + 256)
        for ready in ground.prepared.values():
            self.server.preload("bench.measuring.child:manifest", path=str(ready.manifest_path))
            self.server.preload("bench.measuring.child:reference", path=str(ready.reference_path))
        for phase in {case.phase for case in cases} & PHASES.keys():
            if (imports := PHASES[phase].preload) is not None:
                self.server.preload(imports)
        for place in self.storages.values():  # importing s3fs takes a second, and is no loading
            if isinstance(place, Store) and (scheme := place.record.file_system) not in HTTP:
                self.server.preload("loaders.store.backend:imported", scheme=scheme)
        settings = self.settings
        self.writer.append(
            {
                "kind": "plan",
                "schema": SCHEMA,
                "started": datetime.now(UTC).isoformat(timespec="seconds"),
                "model": ground.model,
                "size": ground.size,
                "dtype": ground.dtype,
                "passes": settings.passes,
                "seed": settings.seed,
                "budget": settings.budget if ground.bounded else None,
                "smoke": settings.smoke,
                "notes": ground.notes,
                "cases": [self.case_id(case) for case in cases],
            }
        )
        folders = [place for place in self.storages.values() if isinstance(place, Storage)]
        paths = {storage.label: storage.path for storage in folders}
        self.writer.append(
            {
                "kind": "host",
                "schema": SCHEMA,
                "command": shlex.join([Path(sys.argv[0]).name, *map(masked, sys.argv[1:])]),
                "cores": self.cores,
                "host": host_facts(paths),
                "stores": {
                    label: self.storages[label].record.file_system
                    for label in sorted(ground.stores)
                },
                "first_look": ground.looks,
                "coldness": {s.label: s.coldness for s in self.storages.values()},
                "residency": {s.label: s.residency.method for s in self.storages.values()},
            }
        )
        if ground.bounded:
            self._deadline = time.monotonic() + settings.budget
        say(
            f"measuring {len(cases)} cases x {settings.passes} passes, {ground.model} "
            f"{ground.size_text}; about {ground.expected_seconds:.0f} s"
        )

    def case_id(self, case: Case) -> str:
        ground = self.ground
        return case.case_id(model=ground.model, size=ground.size_text, dtype=ground.dtype)

    def measure(self, case: Case, number: int, timed: Timed) -> Sample:
        """One sample of a case: taken, or skipped with its reason; on disk when this returns."""
        began = time.perf_counter()
        reason = self._reason_to_skip(case)
        if reason is not None:
            sample = self._blank(case, number, "skipped", reason)
        elif case.loader == "fio" and case.phase == "ceiling":
            sample = self._fio(case, number, timed)
        else:
            job = self._job(case, number)
            sample = take(self.server, job, timed, lambda bad: self.writer.append(bad.to_json()))
        sample = replace(sample, wall_seconds=time.perf_counter() - began)
        self.writer.append(sample.to_json())
        return sample

    def close(self) -> None:
        self.server.close()
        self.surroundings.close()
        self.writer.close()
        shutil.rmtree(self.work, ignore_errors=True)
        for place in self.storages.values():
            if not isinstance(place, Storage):
                continue
            if place.staged is not None:
                remove_new(place.data, place.staged)
            elif place.cold_kind == "memory":
                shutil.rmtree(place.data, ignore_errors=True)  # it would go on taking memory
        self._tidy()

    def _tidy(self) -> None:
        """A run that was refused before its first line leaves no folder that looks like a run."""
        for path in (self.run_dir / "children.log", self.writer.path):
            if path.exists() and path.stat().st_size == 0:
                path.unlink()
        if not any(self.run_dir.iterdir()):
            self.run_dir.rmdir()

    def _reason_to_skip(self, case: Case) -> str | None:
        if self._deadline is not None and time.monotonic() > self._deadline:
            return spent(self.settings.budget)
        storage = self.storages.get(case.storage or "")
        part = share_of(case.cache) is not None
        if storage is not None and storage.cold_kind == "memory" and (part or case.cache == "cold"):
            return storage.coldness
        if part and storage is not None and storage.residency.method is None:
            return "what is in the page cache can't be told here, so no share of it can be made"
        if case.phase == "ceiling":
            if case.loader == "fio" and not fio.installed():
                return "fio isn't installed"
            if case.loader == "fio" and not self._fio_files(case):
                return f"no file of {format_size(fio.BLOCK)} or more, which is fio's block here"
            if case.loader == "owned-read":
                ready = self.ground.prepared[case.storage or "", self.ground.main]
                return _memory_short(ready.checkpoint.file_bytes)
            return None
        if case.phase in PHASES:
            return self._reason_of_phase(case)
        assert case.storage is not None
        reason = problems_of(case.loader, self.ground, case.storage)
        if reason is not None:
            return reason
        ready = prepared_for(case.loader, self.ground, case.storage)
        try:
            loader = registry.get(case.loader)(threads=case.threads or 1, **case.options)
            refused = loader.refuses(ready.checkpoint)
            need = loader.memory_bytes(ready.checkpoint)
        except Exception:  # a stranger's loader: it is made again in its child, which records why
            return None
        return refused or _memory_short(need)

    def _reason_of_phase(self, case: Case) -> str | None:
        ready = self._source(case)
        if ready is None:
            return "works on a folder's files; name one with --storage="
        phase = PHASES[case.phase]
        reason = phase.refuses(case, ready)
        if reason is not None:
            return reason
        need = phase.memory_bytes(case, ready)
        return _memory_short(need, "its tensors lie in memory", "take a smaller --size")

    def _source(self, case: Case) -> Prepared | None:
        """What a phase works on: the model on its storage, or on the first folder where it matters
        not from where it came; None where the run has no folder."""
        labels = [label for label in self.storages if label in self.ground.looks]
        label = case.storage or next(iter(labels), None)
        if label is None:
            return None
        made = self.ground.prepared.get((label, PHASES[case.phase].form(case) or self.ground.main))
        return made or self.ground.prepared.get((label, self.ground.main))

    def _blank(self, case: Case, number: int, status: Any, reason: str | None) -> Sample:
        storage = self.storages.get(case.storage or "")
        return Sample(
            case=self.case_id(case),
            phase=case.phase,
            loader=case.loader,
            options={**case.options, **({"twin": True} if case.twin else {})},
            threads=case.threads,
            model=self.ground.model,
            size=self.ground.size,
            dtype=self.ground.dtype,
            storage=storage.record if storage else None,
            device=case.device,
            layout=case.layout,
            pass_number=number,
            status=status,
            reason=reason,
            smoke=self.settings.smoke,
            cache=CacheRecord(requested=case.cache),
        )

    def _job(self, case: Case, number: int) -> Job:
        storage = self.storages.get(case.storage or "")
        common: dict[str, Any] = {"cores": self.cores, "touch_bytes": self._recycled()}
        synthetic, tuned = False, {}
        if case.phase == "ceiling":
            target = "bench.measuring.ceilings:measure"
            ready = self.ground.prepared[storage.label, self.ground.main] if storage else None
            args = {
                **common,
                "reader": case.loader,
                "manifest_path": str(ready.manifest_path) if ready else None,
                "reference_path": str(ready.reference_path) if ready else None,
                "options": self._ceiling_options(case),
            }
        elif case.phase in PHASES:
            phase = PHASES[case.phase]
            target = phase.target
            source = self._source(case)
            assert source is not None, "a case without a source is skipped"
            ready = source if case.storage else None  # what the page cache is set for
            args = {
                **common,
                "way": case.loader,
                "options": dict(case.options),
                "threads": case.threads or self.cores,
                "device": case.device,
                "layout": case.layout,
                "manifest_path": str(source.manifest_path),
                "reference_path": str(source.reference_path),
                **phase.args(case, self.settings),
            }
        else:
            assert case.storage is not None
            ready = prepared_for(case.loader, self.ground, case.storage)
            target = "bench.measuring.child:disk_to_host"
            cls = registry.get(case.loader)
            synthetic = cls.synthetic
            tuned = self._tuned(case, cls)
            args = {
                **common,
                "loader": case.loader,
                "options": {**tuned, **case.options},
                "threads": case.threads or 1,
                "manifest_path": str(ready.manifest_path),
                "reference_path": str(ready.reference_path),
            }
        return Job(
            case=case,
            blank=self._blank(case, number, "failed", None),
            target=target,
            args=args,
            prepared=ready,
            residency=storage.residency if storage else UNKNOWN,
            charged=storage.charged if storage else None,
            timeout=PATIENCE + self.ground.size / SLOWEST_LINK
            if case.storage in self.ground.stores
            else 60 + self.ground.size / SLOWEST,
            drop_host_cache=self.settings.drop_caches,
            synthetic=synthetic,
            proves=case.phase in PHASES,
            tuned=tuned,
            surroundings=self.surroundings,
        )

    def _tuned(self, case: Case, cls: type[Loader]) -> dict[str, OptionValue]:
        """What the first look found, for the options that the loader leaves to it. Readers only
        where the user named no thread counts; the kind of pages only for a ring, which is small
        and soon used again. Fresh huge pages for a whole checkpoint are another matter: where a
        machine's host has to find them first, they can be slower than small ones."""
        assert case.storage is not None
        if case.storage in self.ground.stores:
            return {}
        look = self.ground.looks[case.storage]["cache" if case.cache == "warm" else "direct"]
        found: dict[str, OptionValue] = {
            "block_mib": look["block"] >> 20,
            "pages": look["pages"],
            "readers": look["threads"],
        }
        if self.settings.threads or self.settings.full:
            del found["readers"]
        if cls.ownership != "borrowed":
            del found["pages"]
        allowed = cls.tunable_with(case.options)
        return {name: value for name, value in found.items() if name in allowed}

    def _ceiling_options(self, case: Case) -> dict[str, Any]:
        if case.storage is None:
            nbytes = min(self.ground.size, COPY_BYTES)
            return {**case.options, "bytes": nbytes}
        asked = {**case.options, "cache": case.cache}
        return ceiling_options(self.ground.looks[case.storage], case.loader, asked)

    def _recycled(self) -> int:
        return min(self.ground.size, RECYCLED, available_bytes() // 4)

    def _fio_files(self, case: Case) -> list[str]:
        assert case.storage is not None
        ready = self.ground.prepared[case.storage, self.ground.main]
        return [file.path for file in ready.checkpoint.files if file.size >= fio.BLOCK]

    def _fio(self, case: Case, number: int, timed: Timed) -> Sample:
        assert case.storage is not None
        blank = self._blank(case, number, "failed", None)
        files = self._fio_files(case)
        results: list[fio.FioResult] = []
        try:
            timed(lambda: results.append(fio.run(files, 60 + self.ground.size / SLOWEST)))
        except fio.FioError as error:
            return replace(blank, reason=str(error))
        found = results[0]
        return replace(
            blank,
            status="ok",
            bytes=found.nbytes,
            seconds=Seconds(read=found.seconds, total=found.seconds),
            runner_seconds=found.seconds,
            details={"engine": found.engine, "consumed": False},
        )


def _memory_short(
    need: int,
    why: str = "holds the whole checkpoint",
    instead: str = "what is `mapped` or `borrowed` can be measured",
) -> str | None:
    """Why what needs so much memory can't run here, or None. What is free is said in coarse
    steps, so that it is one reason and not one for each sample."""
    have = max(available_bytes() - MEMORY_SPARE, 0)
    if need <= have:
        return None
    step = max(64 << 20, need // 8)
    return (
        f"{why}: {format_size(need)} of memory needed, about "
        f"{format_size(have // step * step)} free; {instead}"
    )
