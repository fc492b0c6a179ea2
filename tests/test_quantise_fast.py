"""The fast quantiser: equal to the reference bit for bit, compiled and not, and small."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loaders.quantise import kernels, reference
from loaders.quantise.fast import Output, Quantiser, allocate
from loaders.quantise.faults import NonFiniteError, QuantiseError
from loaders.quantise.schemes import SCHEMES, Scheme, scheme
from tests.tiny_quantised import weight

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# One of each rule and each granularity; the others compile the same kernels with other numbers.
COMPILED = ["int8-channel", "int8-channel-127", "fp8-tensor", "fp8-block-fp32"]
can_compile = pytest.mark.skipif(
    kernels.no_compiler(torch.device("cpu")) is not None, reason="no C++ compiler here"
)


def same(quantiser: Quantiser, tensor: torch.Tensor, one: Scheme) -> None:
    out = allocate(tuple(tensor.shape), tensor.dtype, one)
    out.values.view(torch.uint8).fill_(77)
    counts = quantiser(tensor, out)
    expected = reference.quantise(tensor, one)
    assert torch.equal(out.values.view(torch.uint8), expected.values.view(torch.uint8))
    assert torch.equal(out.scale, expected.scale)
    assert counts == expected.counts


def hard(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Rows of zeros, tiny ones, subnormal ones and ones with an outlier among ordinary ones."""
    tensor = weight(*shape, dtype=dtype, seed=seed)
    if shape[0] > 8:
        tensor[1] = 0
        tensor[2] *= 1e-3
        tensor[3] = (tensor[3].float() * 1e-37).to(dtype)
        tensor[4] = (tensor[4].float() * 1e-4).to(dtype)
        tensor[5, 0], tensor[6, -1] = 7.5, -7.5
        tensor[7] = tensor[7].abs()
    return tensor


@pytest.fixture(scope="module")
def compiled() -> dict[str, Quantiser]:
    return {name: Quantiser(scheme(name), torch.bfloat16) for name in COMPILED}


@pytest.mark.parametrize("power", [-30, -8, -1, 0, 7])
def test_every_bfloat16_quotient_is_rounded_as_a_cast_rounds_it(power: int) -> None:
    significands = torch.arange(128, 256, dtype=torch.float32)
    signs = torch.tensor([1.0, -1.0]).reshape(2, 1, 1)
    weights = signs * significands.reshape(1, -1, 1) * 2.0**power
    quotients = weights * (1 / significands)
    expected = weights.bfloat16() / significands.bfloat16()
    assert torch.equal(kernels.to_eight_bits(quotients), expected.float())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SCHEMES)
def test_row_blocks_equal_the_reference(name: str, dtype: torch.dtype) -> None:
    one = scheme(name)
    quantiser = Quantiser(one, dtype, compiled=False)
    assert (quantiser.how, quantiser.compile_seconds) == ("row blocks", 0.0)
    for shape in ((1, 1), (3, 5), (130, 257), (300, 128), (0, 4), (4, 0)):
        same(quantiser, hard(*shape, dtype=dtype), one)


@can_compile
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_equals_the_reference(name: str, compiled: dict[str, Quantiser]) -> None:
    one, quantiser = scheme(name), compiled[name]
    assert quantiser.how == "torch.compile", quantiser.reason
    assert quantiser.compile_seconds > 0
    for shape in ((1, 1), (3, 5), (200, 256), (131, 384), (512, 100), (64, 1030)):
        same(quantiser, hard(*shape, dtype=torch.bfloat16), one)


@can_compile
def test_compiling_is_over_before_the_first_weight(compiled: dict[str, Quantiser]) -> None:
    with torch.compiler.set_stance("fail_on_recompile"):
        for name, quantiser in compiled.items():
            for shape in ((128, 256), (256, 512), (300, 1024), (1000, 384)):
                same(quantiser, hard(*shape, dtype=torch.bfloat16), scheme(name))
            buffer = torch.zeros(2, 300 * 512, dtype=torch.bfloat16)
            for shape in ((300, 512), (160, 256)):
                view = buffer[1, : shape[0] * shape[1]].view(shape)
                view.copy_(hard(*shape, dtype=torch.bfloat16))
                same(quantiser, view, scheme(name))
                same(quantiser, view[:140], scheme(name))


def test_a_slice_by_columns(compiled: dict[str, Quantiser]) -> None:
    tensor = hard(256, 512, dtype=torch.bfloat16)
    for name, quantiser in compiled.items():
        same(quantiser, tensor[:, 128:384], scheme(name))
        same(quantiser, tensor[64:192], scheme(name))


@can_compile
def test_every_bfloat16_quotient_comes_out_as_by_division() -> None:
    """The reciprocal in the compiled kernel: all significands of weight and scale, at the ends of
    the range of normal scales and in its middle."""
    numbers = torch.arange(128, 256, dtype=torch.float32)
    for power in (-60, 0, 60):
        weights = (numbers[None, :] * 2.0**power).expand(128, 128)
        scales = numbers[:, None] * 2.0**power
        exact = (weights / scales).to(torch.bfloat16)
        assert torch.equal((weights * (1 / scales)).to(torch.bfloat16), exact)


@given(
    rows=st.lists(
        st.lists(st.floats(-65504, 65504, width=16), min_size=3, max_size=3),
        min_size=1,
        max_size=6,
    ),
    name=st.sampled_from(sorted(SCHEMES)),
    dtype=st.sampled_from(DTYPES),
)
@settings(max_examples=60)
def test_any_weights(rows: list[list[float]], name: str, dtype: torch.dtype) -> None:
    one = scheme(name)
    same(Quantiser(one, dtype, compiled=False), torch.tensor(rows).to(dtype), one)


@pytest.mark.parametrize("bad", [float("nan"), -float("inf")])
@pytest.mark.parametrize("name", COMPILED)
def test_c55_non_finite_weights(name: str, bad: float, compiled: dict[str, Quantiser]) -> None:
    tensor = weight(256, 256)
    tensor[200, 3] = bad
    out = allocate((256, 256), tensor.dtype, scheme(name))
    for quantiser in (compiled[name], Quantiser(scheme(name), tensor.dtype, compiled=False)):
        with pytest.raises(NonFiniteError, match=r"'l\.weight'.* the first 200"):
            quantiser(tensor, out, name="l.weight")


def test_wrong_use_is_refused() -> None:
    one = scheme("int8-channel")
    quantiser = Quantiser(one, torch.bfloat16, compiled=False)
    out = allocate((4, 8), torch.bfloat16, one)
    with pytest.raises(ValueError, match=r"this quantiser is for torch\.bfloat16"):
        quantiser(torch.zeros(4, 8), out)
    with pytest.raises(ValueError, match="isn't for a weight"):
        quantiser(weight(5, 8), out)
    with pytest.raises(ValueError, match="isn't for a weight"):
        quantiser(weight(4, 8), Output(values=out.values, scale=torch.empty(1)))
    with pytest.raises(QuantiseError, match="2 dimensions"):
        quantiser(torch.zeros(2, 4, 8, dtype=torch.bfloat16), out)


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    quantiser = Quantiser(scheme("int8-channel"), torch.bfloat16)
    assert quantiser.how == "row blocks"
    assert "no C++ compiler" in str(quantiser.reason)
    monkeypatch.setenv("CXX", "icpx")
    assert "icpx" in str(kernels.no_compiler(torch.device("cpu")))
    assert kernels.no_compiler(torch.device("cuda")) is None


def test_a_compiler_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: object) -> None:
        raise RuntimeError("Python.h: no such file\nand much more")

    monkeypatch.setattr("loaders.quantise.kernels.fused", broken)
    monkeypatch.setattr("loaders.quantise.kernels.no_compiler", lambda device: None)
    quantiser = Quantiser(scheme("int8-channel"), torch.bfloat16)
    assert quantiser.how == "row blocks"
    assert (
        quantiser.reason == "compiling failed: RuntimeError: Python.h: no such file and much more"
    )
    same(quantiser, weight(64, 512), scheme("int8-channel"))


_TEMPORARIES = """
import sys, torch
from pathlib import Path
from loaders.quantise.fast import Quantiser, allocate
from loaders.quantise.schemes import scheme

def kib(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key))

weight = torch.full((8192, 4096), 0.01, dtype=torch.bfloat16)
for name in sys.argv[1:]:
    one = scheme(name)
    out = allocate((8192, 4096), weight.dtype, one)
    out.values.view(torch.uint8).fill_(1)
    quantiser = Quantiser(one, weight.dtype, compiled=False)
    small = torch.full((512, 512), 0.01, dtype=torch.bfloat16)
    quantiser(small, allocate((512, 512), small.dtype, one))  # torch's threads and their stacks
    Path("/proc/self/clear_refs").write_text("5")
    before = kib("VmRSS")
    quantiser(weight, out)
    print((kib("VmHWM") - before) * 1024 / (weight.numel() * 2))
"""


def test_temporaries_stay_below_5_percent() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _TEMPORARIES, "int8-channel-127", "int8-tensor", "fp8-block"],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent.parent,
    )
    assert max(map(float, done.stdout.split())) < 0.05, done.stdout
