"""The rules by definition: against the library, at the edges, and as properties."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loaders.quantise import reference
from loaders.quantise.activations import static_activation, weight_scale_from
from loaders.quantise.cast import cast
from loaders.quantise.errors import loss
from loaders.quantise.faults import (
    BadScaleError,
    CastOverflowError,
    NonFiniteError,
    QuantiseError,
)
from loaders.quantise.reference import dequantise, granularity_of, quantise
from loaders.quantise.schemes import SCHEMES, SchemeError, scale_shape, scheme
from tests.tiny_quantised import weight

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
CT = [name for name, one in SCHEMES.items() if one.rule.name.startswith("ct-")]
FP32 = [name for name in SCHEMES if name not in CT]


def raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8)


def by_library(tensor: torch.Tensor, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """What compressed-tensors makes of a weight, from its own observations on. Without a zero
    point: adding one of 0 does nothing but turn -0.0 into 0.0."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library = pytest.importorskip("compressed_tensors.quantization")
        from compressed_tensors.quantization.lifecycle.forward import quantize
        from compressed_tensors.quantization.utils import calculate_qparams
        from compressed_tensors.quantization.utils.helpers import maybe_pad_tensor_for_block_quant

    one = scheme(name)
    block = {"block_structure": [128, 128]} if one.granularity == "block" else {}
    kind = "int" if one.rule.stored == "int8" else "float"
    arguments = library.QuantizationArgs(
        num_bits=8, type=kind, symmetric=True, strategy=one.granularity, **block
    )
    seen, dims = tensor, None
    if one.granularity == "channel":
        dims = (1,)
    elif one.granularity == "block":
        padded = maybe_pad_tensor_for_block_quant(tensor, (128, 128))
        rows, columns = (length // 128 for length in padded.shape)
        seen, dims = padded.reshape(rows, 128, columns, 128), (1, 3)
    keep = one.granularity == "channel"
    low = seen.amin(dim=dims, keepdim=keep) if dims else seen.amin()
    high = seen.amax(dim=dims, keepdim=keep) if dims else seen.amax()
    scale, _ = calculate_qparams(low, high, arguments)
    values = quantize(tensor, scale, None, arguments, dtype=arguments.pytorch_dtype())
    return values, scale


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CT)
def test_ct_rules_equal_the_library_bit_for_bit(name: str, dtype: torch.dtype) -> None:
    tensor = weight(200, 260, dtype=dtype)
    tensor[3], tensor[4] = 0, tensor[4] * 1e-4
    tensor[5, 0], tensor[6, 1] = 8.0, -8.0
    expected, scale = by_library(tensor, name)
    found = quantise(tensor, scheme(name))
    assert torch.equal(raw(found.values), raw(expected))
    assert torch.equal(found.scale.reshape(-1), scale.reshape(-1))
    assert found.scale.dtype == dtype


def test_absmax127_in_numbers() -> None:
    tensor = torch.tensor([[127.0, -127.0, 0.5, 1.5, -2.5], [1.0, -0.5, 0.0, 0.25, 2.0]])
    found = quantise(tensor, scheme("int8-channel-127"))
    assert found.values[0].tolist() == [127, -127, 0, 2, -2]
    assert found.scale[:, 0].tolist() == [1.0, pytest.approx(2 / 127)]
    assert found.scale.dtype == torch.float32
    assert found.values.dtype == torch.int8


def test_ct_int8_reaches_minus_128_and_clamps_127_5() -> None:
    found = quantise(torch.tensor([[127.5, -127.5, 1.5, 2.5]]), scheme("int8-channel"))
    assert found.values.tolist() == [[127, -128, 2, 2]]


@pytest.mark.parametrize("name", SCHEMES)
def test_c53_rows_of_zeros(name: str) -> None:
    tensor = weight(4, 8)
    tensor[2] = 0
    one = scheme(name)
    found = quantise(tensor, one)
    assert torch.isfinite(found.scale).all()
    assert (found.scale > 0).all()
    assert (found.values[2].float() == 0).all()
    assert found.counts.zero == (1 if one.granularity == "channel" else 0)
    nothing = quantise(torch.zeros(4, 8, dtype=torch.bfloat16), one)
    assert nothing.counts.zero == nothing.scale.numel()
    assert (nothing.values.float() == 0).all()


@pytest.mark.parametrize("name", FP32)
def test_c54_small_float16_rows_keep_their_values(name: str) -> None:
    tensor = weight(4, 8, dtype=torch.float16)
    tensor[:] = torch.tensor([1e-6, -1e-6, 5e-7, 0, 1e-6, 1e-6, 1e-6, 6e-8])
    found = quantise(tensor, scheme(name))
    assert (found.counts.zero, found.counts.underflowed) == (0, 0)
    back = dequantise(found.values, found.scale)
    assert torch.allclose(back, tensor.float(), rtol=0.07, atol=5e-9)


@pytest.mark.parametrize("value", [1e-45, 1e-40, 1e-38])
def test_c54_subnormal_float32_rows_are_no_nan(value: float) -> None:
    found = quantise(torch.full((2, 4), value), scheme("int8-channel-127"))
    assert torch.isfinite(found.scale).all()
    assert (found.scale > 0).all()
    assert (found.values >= 0).all()
    if value == 1e-45:
        assert found.counts.underflowed == 2


def test_c54_the_ct_rule_loses_them_as_the_library_does_and_counts_it() -> None:
    tensor = torch.full((3, 8), 1e-6, dtype=torch.float16)
    found = quantise(tensor, scheme("int8-channel"))
    expected, scale = by_library(tensor, "int8-channel")
    assert torch.equal(found.values, expected)
    assert torch.equal(found.scale, scale)
    assert (found.values == 0).all()
    assert (found.counts.zero, found.counts.underflowed) == (0, 3)


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_c55_non_finite_weights_are_named_and_counted(name: str, value: float) -> None:
    tensor = weight(5, 8)
    tensor[3, 2] = tensor[4, 0] = value
    with pytest.raises(NonFiniteError, match=r"'layer\.weight': expected finite") as caught:
        quantise(tensor, scheme(name), name="layer.weight")
    nan = value != value
    assert (caught.value.nans, caught.value.infs) == ((2, 0) if nan else (0, 2))
    assert caught.value.row == 3


def test_c55_one_of_each() -> None:
    tensor = weight(4, 8)
    tensor[0, 0], tensor[1, 1], tensor[2, 2] = float("nan"), float("inf"), -float("inf")
    with pytest.raises(NonFiniteError, match="1 NaN and 2 infinite of 32, in 3 rows, the first 0"):
        quantise(tensor, scheme("int8-channel"))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0.0, -1.0])
def test_c55_scales_from_a_file_are_examined(bad: float) -> None:
    values = torch.ones(3, 8, dtype=torch.int8)
    scale = torch.tensor([[1.0], [bad], [1.0]])
    with pytest.raises(BadScaleError, match="'w': expected finite scales above 0, found 1 other"):
        dequantise(values, scale, name="w")


def test_c56_overflow_into_float16_is_named_and_counted() -> None:
    tensor = torch.tensor([70000.0, -70000.0, 65504.0, 1e-30, 1.0], dtype=torch.bfloat16)
    with pytest.raises(CastOverflowError, match=r"'w': 3 values beyond") as caught:
        cast(tensor, torch.float16, name="w")  # bfloat16 rounds 65504 to 65536
    assert caught.value.overflowed == 3
    assert cast(tensor[3:], torch.float16, name="w").tolist() == [0.0, 1.0]
    infinite = torch.tensor([float("inf"), 1.0])
    assert cast(infinite, torch.float16, name="w")[0] == float("inf")
    values, scale = torch.full((1, 2), 127, dtype=torch.int8), torch.tensor([[1000.0]])
    with pytest.raises(CastOverflowError, match="'w': 2 values"):
        dequantise(values, scale, torch.float16, name="w")
    assert dequantise(values, scale, torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["fp8-channel", "fp8-tensor", "fp8-block", "fp8-channel-fp32"])
def test_c64_e4m3_saturates(name: str) -> None:
    rule = scheme(name).rule
    quotients = torch.tensor([448.0, 460.0, -460.0, 1e9, 464.0, -1e9])
    found = reference.stored(quotients, rule)
    assert found.float().tolist() == [448.0, 448.0, -448.0, 448.0, 448.0, -448.0]
    values = quantise(weight(130, 140), scheme(name)).values.float()
    assert values.isfinite().all()
    assert values.abs().max() == 448


def test_c16_scales_of_shape_none_and_one_are_the_same() -> None:
    values = torch.ones(3, 8, dtype=torch.int8)
    one, none = torch.tensor([0.5]), torch.tensor(0.5)
    assert torch.equal(dequantise(values, one), dequantise(values, none))
    assert torch.equal(dequantise(values[:1], torch.tensor([[0.5]])), torch.full((1, 8), 0.5))
    with pytest.raises(QuantiseError, match="fit no weight"):
        granularity_of((3, 8), (8, 1))


@pytest.mark.parametrize("shape", [(0, 8), (4, 0), (0, 0)])
@pytest.mark.parametrize("name", SCHEMES)
def test_c15_empty_weights(name: str, shape: tuple[int, int]) -> None:
    found = quantise(torch.zeros(shape, dtype=torch.bfloat16), scheme(name))
    assert found.values.shape == shape
    assert tuple(found.scale.shape) == scale_shape(shape, scheme(name).granularity)


def test_what_cant_be_quantised_is_said() -> None:
    with pytest.raises(QuantiseError, match=r"w: expected a weight of .*found int8"):
        quantise(torch.ones(2, 2, dtype=torch.int8), scheme("int8-channel"), name="w")
    with pytest.raises(QuantiseError, match=r"found \(2, 2, 2\)"):
        quantise(torch.ones(2, 2, 2), scheme("int8-channel"))
    with pytest.raises(SchemeError, match="there are: int8-channel"):
        scheme("int4")


def test_c60_static_layers_without_weight_scale() -> None:
    scale = torch.tensor([0.25, 0.5, 2.0])
    product = scale * 0.125
    bits = product.view(torch.int32).to(torch.int64)
    for deq in (product, bits, bits | (7 << 40)):
        found = weight_scale_from(deq, torch.tensor([0.125]), layer="l")
        assert torch.equal(found, scale[:, None])
    with pytest.raises(QuantiseError, match=r"l\.deq_scale: expected float32 or int64"):
        weight_scale_from(bits.to(torch.int16), torch.tensor([0.125]), layer="l")
    with pytest.raises(BadScaleError, match=r"l\.deq_scale"):
        weight_scale_from(torch.zeros(3, dtype=torch.int64), torch.tensor([1.0]), layer="l")


def test_static_activation_scales_are_read_never_invented() -> None:
    tensors = {"l.input_scale": torch.tensor(0.5), "l.input_offset": torch.tensor([3.0])}
    found = static_activation(tensors, "l")
    assert (found.scale.tolist(), found.offset) == ([0.5], torch.tensor([3.0]))
    assert static_activation({"l.input_scale": torch.tensor([0.5])}, "l").offset is None
    with pytest.raises(QuantiseError, match=r"l\.input_scale, and the checkpoint has none"):
        static_activation({}, "l")
    with pytest.raises(QuantiseError, match="expected one value"):
        static_activation({"l.input_scale": torch.ones(2)}, "l")


def test_loss_finds_the_worst_channel() -> None:
    tensor = weight(6, 64, dtype=torch.float32)
    tensor[4, 0] = 5.0  # an outlier: the rest of its row has few steps left
    found = quantise(tensor, scheme("int8-channel-127"))
    report = loss(tensor, found.values, found.scale)
    back = dequantise(found.values, found.scale)
    assert report.worst_channel == 4 or report.worst_error > 0
    expected = (back - tensor).norm() / tensor.norm()
    assert report.relative_error == pytest.approx(float(expected), rel=1e-5)
    by_row = (back - tensor).norm(dim=1) / tensor.norm(dim=1)
    assert report.worst_channel == int(by_row.argmax())
    assert report.worst_error == pytest.approx(float(by_row.max()), rel=1e-5)
    zeros = torch.zeros(2, 4)
    assert loss(zeros, torch.zeros(2, 4, dtype=torch.int8), torch.ones(2, 1)).relative_error == 0
    broken = loss(zeros, torch.ones(2, 4, dtype=torch.int8), torch.ones(2, 1))
    assert broken.relative_error == float("inf")


finite = st.floats(-1000, 1000, width=32)
matrices = st.integers(1, 5).flatmap(
    lambda columns: st.lists(
        st.lists(finite, min_size=columns, max_size=columns), min_size=1, max_size=5
    )
)


@given(rows=matrices, name=st.sampled_from(sorted(SCHEMES)), dtype=st.sampled_from(DTYPES))
def test_values_are_within_a_step_of_the_weight(
    rows: list[list[float]], name: str, dtype: torch.dtype
) -> None:
    tensor = torch.tensor(rows).to(dtype)
    one = scheme(name)
    found = quantise(tensor, one)
    assert tuple(found.scale.shape) == scale_shape(tuple(tensor.shape), one.granularity)
    scale = reference.expanded(found.scale, tensor.shape, one.granularity).double()
    exact, back = tensor.double(), found.values.double() * scale
    # int8: half a step, or all of the one that 127.5 was clamped by; e4m3: 2^-4 of the value. And
    # the roundings of the rule's own precision.
    precision = torch.finfo(found.scale.dtype).eps
    slack = 1.0 if one.rule.stored == "int8" else 2**-9
    relative = 0.0 if one.rule.stored == "int8" else 2**-4
    bound = slack * scale + (relative + 2 * precision) * exact.abs()
    lost = found.counts.underflowed > 0 or bool(
        (found.scale < torch.finfo(found.scale.dtype).tiny).any()
    )
    assert lost or bool(((exact - back).abs() <= bound).all())


@given(rows=matrices, name=st.sampled_from(sorted(SCHEMES)))
def test_negating_a_weight_negates_its_values(rows: list[list[float]], name: str) -> None:
    tensor = torch.tensor(rows)
    one, other = quantise(tensor, scheme(name)), quantise(-tensor, scheme(name))
    assert torch.equal(one.scale, other.scale)
    ends = one.values.float().abs() >= 127  # int8 isn't symmetric there
    same = one.values.float() == -other.values.float()
    assert bool((same | (ends & (scheme(name).rule.low == -128))).all())


@given(rows=matrices, name=st.sampled_from(sorted(SCHEMES)), power=st.integers(-6, 6))
def test_powers_of_two_only_move_the_scale(rows: list[list[float]], name: str, power: int) -> None:
    tensor = torch.tensor(rows)
    tensor = torch.where(tensor.abs() < 1e-20, 0.0, tensor)
    one, other = quantise(tensor, scheme(name)), quantise(tensor * 2.0**power, scheme(name))
    assert torch.equal(one.values.float(), other.values.float())
