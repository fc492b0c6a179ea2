"""Sabotaged loaders: each is a recorded failure with a clear reason, never a lost run, and the next
honest sample on the same server is sound."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.measuring.children import Server
from bench.record.records import Writer, read_run
from tests.tiny_bench import OUTSIDE, Ground, gone, wait_until


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return Ground.lay(tmp_path_factory.mktemp("sabotage"))


@pytest.fixture(scope="module")
def only_server(ground: Ground) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(OUTSIDE))
        server = Server(ground.work / "children.log")
        yield server
        server.close()


@pytest.fixture
def server(only_server: Server, ground: Ground) -> Iterator[Server]:
    yield only_server
    _assert_sound(only_server, ground)


def _assert_sound(server: Server, ground: Ground) -> None:
    sample = ground.sample(server, ground.job("honest"))
    assert (sample.status, sample.reason) == ("ok", None)
    assert sample.verified is True
    assert sample.bytes == ground.payload


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("untouched", {}, r"wrong bytes arrived in the timed load"),
    ("wrong-byte", {"tensor": 0}, r"wrong bytes arrived in the timed load"),
    ("wrong-byte", {"tensor": -1, "byte": -1}, r"wrong bytes arrived in the timed load"),
    ("wrong-byte", {"tensor": 5, "byte": 77}, r"wrong bytes arrived in the timed load"),
    ("wrong-byte", {"when": "timed"}, r"wrong bytes arrived in the timed load"),
    ("wrong-byte", {"when": "untimed"}, r"other bytes than the untimed one"),
    ("permuted-when-timed", {"lanes": 1 << 20}, r"wrong bytes arrived in the timed load"),
    ("permuted-when-timed", {}, r"wrong bytes \(digest \w{32} expected, \w{32} found\)"),
    ("skips", {}, r"1 tensor\(s\) missing: [\w.]+$"),
    ("twice", {}, r"1 tensor\(s\) yielded twice: [\w.]+$"),
    ("surplus", {}, r"1 tensor\(s\) not in the checkpoint: lm_head\.bonus$"),
    ("twice-for-another", {}, r"came once more.*untimed.*1 tensor\(s\) came in the timed load"),
    ("one-buffer", {}, r"its memory changed after it was handed out"),
    ("one-buffer", {"ownership": "mapped"}, r"lies in the memory of [\w.]+, which is still in use"),
    ("reads-ahead", {}, r"its memory changed before|wrong bytes|other bytes"),
    ("no-such-ownership", {}, r"no such ownership: 'stolen'"),
    ("form", {"how": "dtype"}, r": bfloat16 \[.*\] expected, float16 \[.*\] yielded"),
    ("form", {"how": "shape"}, r": bfloat16 \[.*\] expected, bfloat16 \[1, .*\] yielded"),
    ("form", {"how": "transposed"}, r"expected, bfloat16 .* not contiguous \(strides"),
    ("form", {"how": "strided"}, r"expected, bfloat16 .* not contiguous \(strides"),
    ("form", {"how": "meta"}, r"expected a strided tensor in host memory, got .* on meta"),
    ("form", {"how": "sparse"}, r"expected a strided tensor in host memory, got .*sparse_coo"),
    ("form", {"how": "subclass"}, r"expected a torch.Tensor, got sabotaged.Liar"),
    ("form", {"how": "numpy"}, r"expected a torch.Tensor, got numpy.ndarray"),
    ("form", {"how": "none"}, r"expected a torch.Tensor, got builtins.NoneType"),
    ("form", {"how": "resized"}, r"got one whose storage holds 0"),
    ("no-pairs", {}, r"expected \(name, tensor\) from the loader, got Tensor"),
    ("no-iterator", {}, r"'NoneType' object is not iterable"),
    ("odd-names", {}, r"expected a tensor's name, got \['"),
    ("ends", {"how": "raises"}, r"^RuntimeError: the disk said no$"),
    ("ends", {"how": "raises", "when": "untimed"}, r"untimed load raised RuntimeError: the disk"),
    ("ends", {"how": "base"}, r"^Boom: not an Exception$"),
    ("ends", {"how": "system_exit"}, r"^SystemExit: 0$"),
    ("ends", {"how": "os_exit"}, r"ended with exit code 0 without a result; its output is in /"),
    ("ends", {"how": "os_exit", "when": "untimed"}, r"ended with exit code 0 without a result"),
    ("ends", {"how": "segfault"}, r"the child ended by SIGSEGV"),
    ("ends", {"how": "aborts"}, r"the child ended by SIGABRT"),
    ("ends", {"how": "killed"}, r"the child ended by SIGKILL \(out of memory, or killed from"),
    ("ends", {"how": "realtime_signal"}, r"the child ended by signal 37"),
    ("ends", {"how": "hangs", "timeout": 0.5}, r"no answer within 0.5 s; the child was killed"),
    ("ends", {"how": "hangs_deaf", "timeout": 0.5}, r"no answer within 0.5 s; the child was"),
    ("ends", {"how": "becomes_another"}, r"gave up its channel but went on, and was killed"),
    ("ends", {"how": "closes_everything"}, r"ended with exit code 1 without a result"),
    ("stamps", {"how": "nested"}, r"stamp 'allocate' within stamp 'open': they don't nest"),
    ("stamps", {"how": "across"}, r"was yielded within stamp 'open'"),
    ("raises-when-made", {}, r"LookupError: 'no accelerator of that kind'|no accelerator of that"),
    ("broken-import", {}, r"import failed: ModuleNotFoundError: .*sabotaged_and_gone"),
    ("broken-name", {}, r"import failed: AttributeError: .*Nothing"),
    ("not-there-at-all", {}, r"no loader is named 'not-there-at-all'"),
]


@pytest.mark.parametrize(
    ("loader", "options", "reason"),
    WRONG,
    ids=["-".join(map(str, [name, *given.values()])) for name, given, _ in WRONG],
)
def test_c79_a_sabotaged_loader_is_a_failure_with_its_reason(
    only_server: Server, ground: Ground, loader: str, options: dict[str, Any], reason: str
) -> None:
    sample = ground.sample(only_server, ground.job(loader, **options))
    assert sample.status == "failed"
    assert sample.verified is not True
    assert sample.reason is not None
    assert re.search(reason, sample.reason), sample.reason
    assert "\n" not in sample.reason
    if loader == "ends":
        _assert_sound(only_server, ground)


def test_c39_a_mapped_file_that_is_cut_short_ends_the_child_alone(
    server: Server, ground: Ground
) -> None:
    sample = ground.sample(server, ground.job("cut-file"))
    assert sample.status == "failed"
    assert "SIGBUS (a mapped file was cut short, or its storage failed)" in (sample.reason or "")


def test_c66_a_lazy_mapping_pays_for_its_faults(server: Server, ground: Ground) -> None:
    if not ground.charged:
        pytest.skip("this file system doesn't charge the reader for what it fetches")
    sample = ground.sample(server, ground.job("lazy", cache="cold"))
    assert (sample.status, sample.reason, sample.verified) == ("ok", None, True)
    assert sample.cache.state == "cold"
    assert sample.cache.device_read_bytes is not None
    assert sample.cache.device_read_bytes >= ground.payload
    assert sample.bytes == ground.payload
    assert sample.major_faults
    assert sample.seconds.consume is not None
    assert sample.seconds.consume > 0


def test_a_loader_that_reads_before_the_clock_is_not_called_cold(
    server: Server, ground: Ground
) -> None:
    """What is resident is looked at once more when the child is ready."""
    job = ground.job("honest", cache="cold")
    hear = job.residency.resident_fraction
    looked: list[float | None] = []

    class Early:
        def resident_fraction(self, paths: list[Path]) -> float | None:
            for path in paths:
                path.read_bytes()
            looked.append(hear(paths))
            return looked[-1]

        resident_bytes = job.residency.resident_bytes

    sample = ground.sample(server, dataclasses.replace(job, residency=Early()))
    if looked[-1] is None:
        pytest.skip("residency can't be known here")
    assert sample.cache.state == "mixed"


@pytest.mark.parametrize("how", ["spawn", "fork"])
def test_what_a_loader_starts_does_not_stay_behind(
    server: Server, ground: Ground, tmp_path: Path, how: str
) -> None:
    pids = tmp_path / "pids"
    sample = ground.sample(server, ground.job("leaves-process", how=how, pids=str(pids)))
    assert (sample.status, sample.reason) == ("ok", None)
    assert wait_until(lambda: gone(int(pids.read_text())))


def test_a_grandchild_does_not_hide_the_end_of_the_child(
    server: Server, ground: Ground, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    job = ground.job("leaves-process", how="fork-and-die", pids=str(pids), timeout=300)
    sample = ground.sample(server, job)
    assert "ended with exit code 3 without a result" in (sample.reason or "")
    assert wait_until(lambda: gone(int(pids.read_text())))


def test_only_the_measured_process_is_heard(server: Server, ground: Ground) -> None:
    sample = ground.sample(server, ground.job("doubles"))
    assert (sample.status, sample.reason) == ("ok", None)


@pytest.mark.parametrize("loader", ["leaves-threads", "chatters"])
def test_noise_is_harmless(server: Server, ground: Ground, loader: str) -> None:
    sample = ground.sample(server, ground.job(loader))
    assert (sample.status, sample.reason, sample.verified) == ("ok", None, True)


def test_stamps_of_another_thread_are_refused(server: Server, ground: Ground) -> None:
    sample = ground.sample(server, ground.job("stamps", how="thread"))
    assert sample.status == "ok"  # the other thread's stamp was refused and counted nothing
    seconds = sample.seconds
    assert seconds.allocate == 0


def test_a_loader_that_kills_the_fork_server_costs_one_sample(
    server: Server, ground: Ground
) -> None:
    sample = ground.sample(server, ground.job("ends", how="kills_the_server"))
    assert sample.status == "failed"
    assert "the fork server is gone (exit -9)" in (sample.reason or "")


def test_a_failed_sample_is_written_and_read_like_any_other(
    server: Server, ground: Ground, tmp_path: Path
) -> None:
    sample = ground.sample(server, ground.job("wrong-byte"))
    writer = Writer(tmp_path)
    writer.append(sample.to_json())
    writer.close()
    assert read_run(tmp_path).samples == (sample,)
    assert json.loads(writer.path.read_text())["verified"] is False


def test_files_that_are_gone_fail_the_sample_only(
    server: Server, ground: Ground, tmp_path: Path
) -> None:
    victim = Ground.lay(tmp_path)
    job = victim.job("honest", cache="cold")
    victim.ready.paths[0].unlink()
    sample = victim.sample(server, job)
    assert sample.status == "failed"
    assert str(victim.ready.paths[0]) in (sample.reason or "")


def test_files_that_changed_since_they_were_examined_fail(
    server: Server, ground: Ground, tmp_path: Path
) -> None:
    victim = Ground.lay(tmp_path)
    path = victim.ready.paths[-1]
    path.write_bytes(path.read_bytes()[:-100])
    for loader in ("example", "parallel", "safetensors-mmap"):
        sample = victim.sample(server, victim.job(loader))
        assert sample.status == "failed", loader
        assert sample.reason
