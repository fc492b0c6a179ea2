"""From the options of `coldload ranks` to a course that can be run: all refusals come from here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.ground.groundwork import make_room
from bench.ground.prepare import copy_model, make_shape, shape_folder
from bench.ground.storages import Storage, default_place, name_storages
from bench.measuring.cores import effective_cores
from bench.ranks.course import Course, Say
from bench.ranks.job import WAYS, Job, Way
from bench.ranks.team import Nodes
from bench.run.limits import raise_nofile
from bench.run.run_dir import check_run_dir, run_folder
from bench.settings import Settings, SettingsError, StorageChoice
from bench.sizes import SizeError, format_size, parse_size
from bench.synth.shapes import shape_names
from loaders.checkpoint.hf_cache import repo_id
from loaders.checkpoint.manifest import Checkpoint
from loaders.checkpoint.read import local_path, open_checkpoint
from loaders.checkpoint.resolve import Resolved, resolve_model
from loaders.device.discover import device_texts
from loaders.device.faults import DeviceError
from loaders.device.interface import KINDS
from loaders.store.address import is_address, masked
from loaders.system.memory import available_bytes

SLOWEST = 10e6
LEAST = 60.0
"""A case may take so many seconds, and one more for so many bytes of the files."""

TOUCHED = 1 << 30
LEAST_THREADS = 2


def make_ready(model: str, given: Mapping[str, Any], say: Say) -> tuple[Course, Path]:
    """The course and the folder for its records. SettingsError, PlanError and those of reading or
    making a checkpoint."""
    nodes = _nodes(given)
    kind = _kind(given["device"], nodes)
    check_run_dir(given["run_dir"])
    storage, checkpoint, name = _data(model, given, nodes, say)
    raise_nofile(len(checkpoint.files) + 256)
    threads = given["threads"] or max(LEAST_THREADS, effective_cores() // nodes.nproc)
    ways = ways_of(given["ways"])
    course = Course(
        job=Job(
            checkpoint=checkpoint,
            world=nodes.world,
            ep=given["ep"],
            kind=kind,
            threads=threads,
            touch_bytes=min(checkpoint.tensor_bytes, TOUCHED, available_bytes() // 4)
            // nodes.nproc,
            timeout=given["timeout"] or LEAST + checkpoint.file_bytes / SLOWEST,
            course=json.dumps([ways, given["passes"], given["seed"]]),
        ),
        nodes=nodes,
        storage=storage,
        model=name,
        ways=ways,
        passes=given["passes"],
        seed=given["seed"],
        say=say,
    )
    _check_memory(course)
    folder = _folder(given["run_dir"], nodes)
    course.log = folder / "ranks.log"
    return course, folder


def ways_of(asked: Sequence[str]) -> list[Way]:
    """In their own order, each once; all of them for none, or for `all`."""
    return [way for way in WAYS if not asked or way in asked or "all" in asked]


def _nodes(given: Mapping[str, Any]) -> Nodes:
    count, rank, endpoint = given["nnodes"], given["node_rank"], given["rdzv_endpoint"]
    if not rank < count:
        raise SettingsError(f"--node-rank={rank}: expected 0 to {count - 1} of {count} nodes")
    if (count > 1) != (endpoint is not None):
        raise SettingsError(
            "--rdzv-endpoint: expected with --nnodes above 1, the same HOST:PORT of node 0 on every"
            " node; and with one node not at all"
        )
    if endpoint is not None:
        host, colon, port = endpoint.rpartition(":")
        if not (host and colon and port.isdecimal() and 0 < int(port) < 65536):
            raise SettingsError(f"--rdzv-endpoint={endpoint}: expected HOST:PORT")
    return Nodes(nproc=given["nproc"] or 2, count=count, rank=rank, endpoint=endpoint)


def _kind(device: str, nodes: Nodes) -> str:
    if device not in KINDS:
        kinds = ", ".join(sorted(KINDS))
        raise SettingsError(f"--device={device}: expected one of {kinds}; each rank takes one")
    if device == "cpu":
        return device
    try:
        there = [text for text in device_texts() if text.startswith(f"{device}:")]
    except DeviceError as error:
        raise SettingsError(f"--device={device}: {error}") from error
    if len(there) < nodes.nproc:
        raise SettingsError(
            f"--device={device}: {nodes.nproc} ranks need a device each, {len(there)} found here; "
            "lower --nproc, or load into host memory with --device=cpu"
        )
    return device


def _data(
    model: str, given: Mapping[str, Any], nodes: Nodes, say: Say
) -> tuple[Storage, Checkpoint, str]:
    """Where the model lies, once it lies on the storage that was asked for."""
    if is_address(model):
        raise SettingsError(
            f"{masked(model)}: expected a folder, a Hub id or a built-in shape: ranks share a "
            "storage of this host"
        )
    found = resolve_model(model, shapes=shape_names())
    choice = given["storage"]
    choices = (StorageChoice(label=None, path=choice),) if choice else ()
    (storage,) = name_storages(choices, default_place(model, shape_names()))
    assert isinstance(storage, Storage), "an address was refused above"
    folder, name = _folder_of(found, storage, given, nodes, say)
    checkpoint = open_checkpoint(folder, origin=model)
    if checkpoint.format != "safetensors":
        raise SettingsError(
            f"{model}: expected safetensors, found {checkpoint.format}: the ways map and cut files"
        )
    storage.examine(Path(max(checkpoint.files, key=lambda file: file.size).path))
    return storage, checkpoint, name


def _folder_of(
    found: Resolved, storage: Storage, given: Mapping[str, Any], nodes: Nodes, say: Say
) -> tuple[str, str]:
    several = "several nodes would write it at once: make it before, and name its folder as MODEL"
    if found.shape is not None:
        try:
            size = parse_size(given["size"])
        except SizeError as error:
            raise SettingsError(f"--size: {error}") from error
        folder = shape_folder(storage.data, found.shape, size, None)
        if not (folder / "safetensors").exists():
            if nodes.count > 1:
                raise SettingsError(f"{found.shape}: {several}")
            make_room(storage)
            say(f"making {found.shape}, {format_size(size)}")
            make_shape(folder, found.shape, size, "safetensors", lambda done, total: None)
        return str(folder / "safetensors"), found.shape
    path = str(found.path)
    name = found.text if found.kind == "hub" else repo_id(path) or Path(path).resolve().name
    if given["storage"] is None:
        return path, name
    if nodes.count > 1:
        raise SettingsError(f"--storage: {several}")
    make_room(storage)
    say(f"copying {name} to {storage.label}")
    return str(copy_model(open_checkpoint(path), storage.data, lambda done, total: None)), name


def _check_memory(course: Course) -> None:
    """PlanError where the model can't be divided; SettingsError where the ranks' parameters don't
    fit into this host's memory."""
    own = course.job.parameters(course.nodes.own)
    need = sum(one.nbytes for plan in own for one in plan)
    if course.job.kind == "cpu" and need > available_bytes():
        raise SettingsError(
            f"{course.nodes.nproc} ranks keep {format_size(need)} here, "
            f"{format_size(available_bytes())} of memory are free; take more nodes or a smaller "
            "--size"
        )


def _folder(given: str | None, nodes: Nodes) -> Path:
    if given is not None:
        return Path(local_path(given))
    folder = run_folder(Settings(size=1, seed=0))
    return folder if nodes.count == 1 else folder.with_name(f"{folder.name}-node{nodes.rank}")
