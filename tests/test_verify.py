"""What a load must have yielded, and what is wrong with what it did yield."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import xxhash

from bench.measuring import verify
from bench.measuring.consume import byte_sum, placed_sum
from bench.measuring.verify import Reference, Seen, faults_of, read_reference, shared_memory
from loaders.checkpoint.manifest import Checkpoint
from loaders.io.errors import TruncatedError
from loaders.io.tensors import tensor_over
from tests.tiny_loaders import file_bytes, tricky

Kept = list[tuple[Seen, torch.Tensor]]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return tricky(tmp_path)


def kept(checkpoint: Checkpoint) -> Kept:
    """An honest load of everything."""
    pairs = []
    for spec in checkpoint.tensors:
        tensor = tensor_over(bytearray(file_bytes(checkpoint, spec)), 0, spec)
        pairs.append((Seen.of(spec.name, tensor, byte_sum(tensor)), tensor))
    return pairs


def faults(checkpoint: Checkpoint, load: Kept, *, made_up: bool = False) -> list[str]:
    reference = read_reference(checkpoint)
    seen = [one for one, _ in load]
    return faults_of(seen, load, checkpoint, reference, made_up=made_up)


def test_an_honest_load_has_no_fault(checkpoint: Checkpoint) -> None:
    assert faults(checkpoint, kept(checkpoint)) == []
    assert faults(checkpoint, kept(checkpoint)[::-1]) == []  # in any order


def test_the_reference_is_of_the_bytes_in_the_files(checkpoint: Checkpoint) -> None:
    reference = read_reference(checkpoint)
    for spec in checkpoint.tensors:
        data = file_bytes(checkpoint, spec)
        assert reference.digests[spec.name] == xxhash.xxh3_128_hexdigest(data)
        assert reference.sums[spec.name] == placed_sum(memoryview(data))


def test_the_reference_is_the_same_for_any_block(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = read_reference(checkpoint)
    monkeypatch.setattr(verify, "BLOCK", 128 << 10)
    assert read_reference(checkpoint) == whole


def test_the_reference_maps_nothing_and_keeps_no_file_open(checkpoint: Checkpoint) -> None:
    """A page of a mapped file can't be evicted, and a failing storage would end the runner."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    read_reference(checkpoint)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert checkpoint.root not in Path("/proc/self/maps").read_text()


def test_c39_a_file_that_shrank_is_an_error_with_its_name(checkpoint: Checkpoint) -> None:
    path = Path(checkpoint.files[1].path)
    size = path.stat().st_size
    os.truncate(path, size - 1)
    with pytest.raises(TruncatedError, match=f"{path.name}: expected at least {size} bytes"):
        read_reference(checkpoint)


def test_empty_files_and_tensors_without_an_offset(tmp_path: Path) -> None:
    checkpoint = tricky(tmp_path)
    (tmp_path / "empty").touch()
    nothing = replace(checkpoint.files[0], name="empty", path=str(tmp_path / "empty"), size=0)
    strided = replace(checkpoint.tensors[0], offset=None)
    checkpoint = replace(
        checkpoint,
        files=(*checkpoint.files, nothing),
        tensors=(strided, *checkpoint.tensors[1:]),
    )
    reference = read_reference(checkpoint)
    assert strided.name not in reference.digests
    assert len(reference.digests) == len(checkpoint.tensors) - 1
    assert reference.digest_faults(strided.name, torch.ones(1)) == []


def test_missing_surplus_and_twice(checkpoint: Checkpoint) -> None:
    load = kept(checkpoint)
    extra = torch.ones(2)
    more = (Seen.of("head.bonus", extra, byte_sum(extra)), extra)
    found = faults(checkpoint, [*load[5:], load[6], more])
    assert found[0].startswith("5 tensor(s) missing: 00.F64, 01.F16, 02.BF16, ...")
    assert found[1] == "1 tensor(s) not in the checkpoint: head.bonus"
    assert found[2] == f"1 tensor(s) yielded twice: {load[6][0].name}"
    assert faults(checkpoint, [])[0].startswith(f"{len(load)} tensor(s) missing")


@pytest.mark.parametrize("place", [0, -1, "middle"])
def test_one_wrong_byte_in_any_tensor(checkpoint: Checkpoint, place: int | str) -> None:
    for number, (right, tensor) in enumerate(kept(checkpoint)):
        if not tensor.nbytes:
            continue
        load = kept(checkpoint)
        wrong = load[number][1].reshape(-1).view(torch.uint8)
        wrong[tensor.nbytes // 2 if place == "middle" else int(place)] ^= 0x40
        load[number] = (replace(right, byte_sum=byte_sum(wrong)), load[number][1])
        assert faults(checkpoint, load) == [f"{right.name}: wrong bytes arrived in the timed load"]


def test_bytes_in_other_places_of_the_same_sum(checkpoint: Checkpoint) -> None:
    load = kept(checkpoint)
    number = next(n for n, (one, _) in enumerate(load) if one.name == "y.big")
    lanes = load[number][1].view(-1).view(torch.int64)[:1024]  # within one block of the sum
    lanes.copy_(lanes.flip(0))
    (fault,) = faults(checkpoint, load)
    assert fault.startswith("y.big: wrong bytes (digest ")


def test_memory_that_changed_after_it_was_handed_out(checkpoint: Checkpoint) -> None:
    load = kept(checkpoint)
    load[3][1].view(-1).view(torch.uint8)[0] ^= 1
    (fault,) = faults(checkpoint, load)
    assert fault.startswith(f"{load[3][0].name}: its memory changed after it was handed out")
    assert "`borrowed`" in fault


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.view(torch.float16), "bfloat16 [1024, 1030] expected, float16 [1024, 1030]"),
        (lambda t: t.view(1030, 1024), "bfloat16 [1024, 1030] expected, bfloat16 [1030, 1024]"),
        (lambda t: t.view(-1), "bfloat16 [1024, 1030] expected, bfloat16 [1054720] yielded"),
        (lambda t: t.t().contiguous().t(), "[1024, 1030] not contiguous (strides [1, 1024])"),
        (lambda t: t._neg_view(), "a conjugation or negation that isn't carried out yet"),
    ],
)
def test_another_form_of_the_same_bytes(checkpoint: Checkpoint, change: object, words: str) -> None:
    load = kept(checkpoint)
    number = next(n for n, (one, _) in enumerate(load) if one.name == "y.big")
    tensor = change(load[number][1])  # type: ignore[operator]
    load[number] = (Seen.of("y.big", tensor, load[number][0].byte_sum), tensor)
    found = faults(checkpoint, load)
    assert len(found) == 1
    assert words in found[0]


def test_a_dtype_that_no_torch_has_is_a_fault_and_no_crash(checkpoint: Checkpoint) -> None:
    odd = replace(checkpoint.tensors[0], dtype="float6_e2m3")
    found = faults(replace(checkpoint, tensors=(odd, *checkpoint.tensors[1:])), kept(checkpoint))
    assert found == ["00.F64: float6_e2m3 [3, 2] expected, float64 [3, 2] yielded"]


def test_made_up_contents_are_not_compared_but_their_form_is(checkpoint: Checkpoint) -> None:
    load = kept(checkpoint)
    load = [(replace(one, byte_sum=byte_sum(t.fill_(0))), t) for one, t in load]
    assert faults(checkpoint, load, made_up=True) == []
    assert len(faults(checkpoint, load)) == verify.SHOWN
    assert "missing" in faults(checkpoint, load[1:], made_up=True)[0]


def test_without_a_reference_names_and_forms_are_compared(checkpoint: Checkpoint) -> None:
    load = kept(checkpoint)
    seen = [one for one, _ in load]
    assert faults_of(seen, [], checkpoint, None, made_up=False) == []
    assert faults_of(seen[1:], [], checkpoint, None, made_up=False) != []


def test_only_the_first_faults_are_named(checkpoint: Checkpoint) -> None:
    load = [(replace(one, byte_sum=1, dtype="int3"), tensor) for one, tensor in kept(checkpoint)]
    assert len(faults(checkpoint, load)) == verify.SHOWN


def test_one_memory_for_two_tensors(checkpoint: Checkpoint) -> None:
    load = kept(checkpoint)
    big = next(tensor for one, tensor in load if one.name == "y.big")
    inside = big.view(-1)[10:20]
    crowded = [*load, (Seen.of("00.F64", inside, 0), inside)]
    (fault,) = shared_memory(crowded, checkpoint)
    assert fault == "00.F64: lies in the memory of y.big, which is still in use"
    assert shared_memory(load, checkpoint) == []
    assert shared_memory([], checkpoint) == []


def test_tied_tensors_may_share_memory(checkpoint: Checkpoint) -> None:
    tensors = tuple(
        replace(spec, file="a.bin", storage="7" if spec.name in {"y.big", "tail"} else None)
        for spec in checkpoint.tensors
    )
    tied = replace(checkpoint, tensors=tensors)
    big = torch.ones(1000)
    pairs = [(Seen.of(name, big, 0), big) for name in ("y.big", "tail")]
    assert shared_memory(pairs, tied) == []
    pairs.append((Seen.of("m.odd_f32", big, 0), big))
    assert shared_memory(pairs, tied) != []


def test_a_name_is_text() -> None:
    with pytest.raises(TypeError, match="expected a tensor's name, got 3"):
        Seen.of(3, torch.ones(1), 0)  # type: ignore[arg-type]


def test_a_digest_that_is_not_the_references() -> None:
    tensor = torch.ones(2)
    reference = Reference(digests={"a": "0" * 32}, sums={})
    (fault,) = reference.digest_faults("a", tensor)
    assert fault.startswith(f"a: wrong bytes (digest {'0' * 32} expected, ")
    assert reference.digest_faults("b", tensor) == []
