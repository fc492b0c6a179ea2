"""Dimensions as small integer expressions over named ones: "heads*head_dim", "kv_rank+rope_dim"."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import cache

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


class DimensionError(ValueError):
    """An expression that isn't one, or one over a name that there is no dimension for."""


def evaluate(expression: str, dims: Mapping[str, int]) -> int:
    """The value of `expression`: whole numbers, names of `dims`, + - * // and parentheses, nothing
    else. DimensionError names what can't be used."""
    return _value(_parse(expression), expression, dims)


@cache
def _parse(expression: str) -> ast.expr:
    try:
        return ast.parse(expression, mode="eval").body
    except SyntaxError as error:
        raise DimensionError(f"dimension {expression!r} is not an expression") from error


def _value(node: ast.expr, expression: str, dims: Mapping[str, int]) -> int:
    if isinstance(node, ast.Name):
        if node.id not in dims:
            known = ", ".join(dims)
            raise DimensionError(
                f"dimension {expression!r}: there is no {node.id!r}; there are: {known}"
            )
        return dims[node.id]
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _value(node.left, expression, dims), _value(node.right, expression, dims)
        if isinstance(node.op, ast.FloorDiv) and right == 0:
            raise DimensionError(f"dimension {expression!r} divides by zero")
        return _OPERATORS[type(node.op)](left, right)
    raise DimensionError(
        f"dimension {expression!r}: {ast.unparse(node)!r} is not allowed; only whole numbers, "
        "names, + - * // and parentheses are"
    )
