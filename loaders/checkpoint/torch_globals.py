"""The names that a torch.save pickle may use, and what each of them makes."""

from __future__ import annotations

from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Callable
from typing import Never

from loaders.checkpoint.dtypes import BY_NAME
from loaders.checkpoint.torch_values import (
    Global,
    RefusedError,
    Storage,
    StoredTensor,
    width,
)

_STORAGES: dict[str, str | None] = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
    "QInt8Storage": "qint8",
    "QUInt8Storage": "quint8",
    "QInt32Storage": "qint32",
    "QUInt4x2Storage": "quint4x2",
    "QUInt2x4Storage": "quint2x4",
    "UntypedStorage": None,
}
_DTYPES = {f"torch.{name}" for name in BY_NAME}
_PLAIN = {
    "collections.OrderedDict",
    "collections.Counter",
    "torch.nn.parameter.Parameter",
    "torch.serialization._get_layout",
    "torch.Size",
    "torch.Tensor",
    "torch.device",
    "_codecs.encode",
    "builtins.bytearray",
    "builtins.set",
    "builtins.complex",
    "torch._utils._rebuild_device_tensor_from_numpy",
    *(f"torch.{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)),
    *(f"torch.{name}" for name in ("bits8", "bits16", "bits1x8", "bits2x4", "bits4x2")),
    *(f"torch.{name}" for name in ("qint8", "quint8", "qint32", "quint4x2", "quint2x4")),
    *(f"torch.per_tensor_{kind}" for kind in ("affine", "symmetric")),
    *(f"torch.per_channel_{kind}" for kind in ("affine", "symmetric", "affine_float_qparams")),
}


def lookup(module: str, name: str) -> Global:
    """The name, if `torch.load(weights_only=True)` allows it; RefusedError if not."""
    if (module, name) in NAME_MAPPING:  # names of Python 2
        module, name = NAME_MAPPING[(module, name)]
    module = IMPORT_MAPPING.get(module, module)
    path = f"{module}.{name}"
    if path in CALLS or path in _PLAIN or path in _DTYPES:
        return Global(path)
    if module in ("torch", "torch.cuda", "torch.storage") and name in _STORAGES:
        return Global(path)
    if module.startswith("torch.") and name.endswith("Tensor"):
        hint = "; a tensor subclass: save its plain tensors"
    elif module.startswith("torch.nn"):
        hint = "; a whole model: save model.state_dict() instead"
    else:
        hint = ""
    raise RefusedError(
        "unsafe-pickle",
        f"the pickle names {path[:200]}, which would execute code on load; "
        f"torch.load(weights_only=True) refuses it{hint}. If it holds weights and you trust it, "
        "load it once with weights_only=False and save its tensors alone",
    )


def stored_dtype(kind: Global) -> str | None:
    """The element type of a storage class, None for untyped bytes."""
    name = kind.path.rpartition(".")[2]
    if name not in _STORAGES:
        raise TypeError("storage class")
    return _STORAGES[name]


def _dims(value: object) -> tuple[int, ...]:
    if not isinstance(value, tuple | list) or len(value) > 1000:
        raise TypeError("shape or stride")
    if not all(type(size) is int and 0 <= size < 2**63 for size in value):
        raise ValueError("shape or stride")
    return tuple(value)


def _strided(
    storage: object, offset: object, size: object, stride: object, dtype: str | None = None
) -> StoredTensor:
    if not isinstance(storage, Storage) or type(offset) is not int or offset < 0:
        raise TypeError("tensor")
    if storage.dtype is None and storage.legacy:
        raise RefusedError(
            "legacy-untyped",
            "a tensor of a newer dtype (float8, uint16, ...) in the legacy format, which "
            "torch.load can't read: save again without _use_new_zipfile_serialization=False",
        )
    shape, steps = _dims(size), _dims(stride)
    if len(shape) != len(steps):
        raise ValueError("shape and stride differ in length")
    # untyped storages are plain bytes where the pickle doesn't say otherwise, as in torch
    kind = dtype or storage.dtype or "uint8"
    return StoredTensor(
        dtype=kind,
        shape=shape,
        stride=steps,
        offset=offset + storage.first,
        storage=storage,
        odd=None if width(kind) else f"{kind} tensor",
    )


def _tensor(storage: object, offset: object, size: object, stride: object) -> StoredTensor:
    return _strided(storage, offset, size, stride)


def _tensor_v2(
    storage: object,
    offset: object,
    size: object,
    stride: object,
    requires_grad: object,
    hooks: object,
    metadata: object = None,
) -> StoredTensor:
    return _marked(_strided(storage, offset, size, stride), metadata)


def _tensor_v3(
    storage: object,
    offset: object,
    size: object,
    stride: object,
    requires_grad: object,
    hooks: object,
    dtype: object,
    metadata: object = None,
) -> StoredTensor:
    if not isinstance(dtype, Global):
        raise TypeError("dtype")
    name = dtype.path.removeprefix("torch.")
    return _marked(_strided(storage, offset, size, stride, name), metadata)


def _marked(tensor: StoredTensor, metadata: object) -> StoredTensor:
    """Metadata are {"conj": True, "neg": True}: bits that change what the bytes mean."""
    if not (isinstance(metadata, dict) and any(metadata.values())):
        return tensor
    return StoredTensor(
        dtype=tensor.dtype,
        shape=tensor.shape,
        stride=tensor.stride,
        offset=tensor.offset,
        storage=tensor.storage,
        odd=tensor.odd,
        lazy=True,
    )


def _same(data: object, *rest: object) -> StoredTensor:
    """nn.Parameter and its kind: the tensor inside is what counts."""
    if not isinstance(data, StoredTensor):
        raise TypeError("tensor inside a parameter")
    return data


def _odd(what: str) -> Callable[..., StoredTensor]:
    def rebuild(*arguments: object) -> StoredTensor:
        inner = [item for item in arguments if isinstance(item, tuple)]
        flat = [item for group in (arguments, *inner) for item in group]
        # odd tensors inside odd ones don't exist, and nesting them would make a bomb
        parts = tuple(i for i in flat if isinstance(i, StoredTensor) and i.odd is None)
        return StoredTensor(odd=what, parts=parts)

    return rebuild


def _from_type(function: object, kind: object, arguments: object, state: object) -> StoredTensor:
    """A tensor with attributes. The kind is torch.Tensor or a Parameter: others have no name in
    the table and were refused when mentioned."""
    if not isinstance(function, Global) or not isinstance(arguments, tuple):
        raise TypeError("rebuild function")
    call = CALLS.get(function.path)
    if call is None or call is _from_type:
        raise RefusedError("unsafe-pickle", f"the pickle rebuilds a tensor with {function.path}")
    made = call(*arguments)
    if not isinstance(made, StoredTensor):
        raise TypeError("rebuilt tensor")
    return made


def _old_class(*arguments: object) -> Never:
    raise RefusedError(
        "unsupported-pickle",
        "a tensor in the form of torch before 0.2: load it with an old torch and save it again",
    )


CALLS: dict[str, Callable[..., object]] = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor_v2,
    "torch._utils._rebuild_tensor_v3": _tensor_v3,
    "torch._utils._rebuild_parameter": _same,
    "torch._utils._rebuild_parameter_with_state": _same,
    "torch._utils._rebuild_qtensor": _odd("quantised tensor"),
    "torch._utils._rebuild_sparse_tensor": _odd("sparse tensor"),
    "torch._utils._rebuild_nested_tensor": _odd("nested tensor"),
    "torch._utils._rebuild_meta_tensor_no_storage": _odd("meta tensor (shape without data)"),
    "torch._utils._rebuild_wrapper_subclass": _odd("tensor subclass without storage"),
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": _odd("tensor of a special device"),
    "torch._tensor._rebuild_from_type_v2": _from_type,
    "torch.nn.parameter.Parameter": _same,
    "torch.Tensor": _old_class,
    "torch.Size": lambda sizes=(): _dims(sizes),
}
