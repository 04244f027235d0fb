"""Damage to bytes, texts and JSON values, drawn from a seeded generator; values that nobody expects."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np

TEXTS = (
    *("", " ", "0", "1", "2", "3", "-1", "-0", "+3", "1e3", "1.5", "1e308", "1e400", "-1e-320", "nan", "inf"),
    *("-inf", "true", "None", "1_000", "0x10", "²", "١٢", "9" * 20, "9" * 5000, "10T", "2K", "1-9999999999"),
    *("=", ":", ",", ",,", "n=", "n=1,n=2", "%s", "{}", "é", "\udcff", "a" * 10_000, "../x", "-", "--", "\0"),
)
"""Texts for sizes, numbers, names and paths."""

BYTES = (
    *(text.encode(errors="replace") for text in TEXTS),
    *(b"\xff", b"\r", b"\n", b"%", b"\x1f\x8b", b"1D+3"),
)


def odd_value(draw: random.Random) -> Any:
    """Draw a value of a type or size that an argument does not expect."""
    return draw.choice(
        (
            *(None, True, False, 0, 1, -1, 2, 7, 10**30, -(10**30), 2**63),
            *(0.5, -0.0, 1e308, 5e-324, 3j, 1 + 0j),
            *(float("nan"), float("inf"), "", "SA", "3", b"SA", (), [], {}, [1, 2], {"n": 3}, slice(3), ...),
            *(np.float32(3), np.int64(3), np.array(3), np.array([1.0, 2.0]), np.zeros((0, 0)), np.bool(True)),
            *(np.eye(3), np.array(["x"]), np.array([None]), object(), len, draw.choice(TEXTS)),
        )
    )


def damaged(draw: random.Random, data: bytes) -> bytes:
    """Change bytes at one to three places: cut, repeat, insert, flip, or replace a word."""
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(data) + 1)
        end = at + draw.choice((0, 1, 1, 2, 8, 50))
        match draw.randrange(7):
            case 0:
                data = data[:at]
            case 1:
                data = data[:at] + data[end:]
            case 2:
                data = data[:end] + data[at:]
            case 3:
                data = data[:at] + draw.choice(BYTES) + data[at:]
            case 4 if at < len(data):
                data = data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]
            case 5:
                data = data[:at] + draw.randbytes(draw.randint(1, 8)) + data[end:]
            case _:
                words = list(re.finditer(rb"[^\s=,:]+", data[:4000]))
                if words:
                    word = draw.choice(words)
                    data = data[: word.start()] + draw.choice(BYTES) + data[word.end() :]
    return data


def altered(draw: random.Random, value: Any) -> Any:
    """Replace, remove or rename one node of a JSON value."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        name = draw.choice(sorted(value))
        match draw.randrange(10):
            case 0:
                return {key: value[key] for key in value if key != name}
            case 1:
                return {draw.choice(TEXTS[:40]) if key == name else key: value[key] for key in value}
        return value | {name: altered(draw, value[name])}
    if isinstance(value, list) and value and draw.random() < 0.8:
        at = draw.randrange(len(value))
        return [*value[:at], *([altered(draw, value[at])] if draw.random() < 0.8 else []), *value[at + 1 :]]
    return draw.choice(
        (
            *(None, True, False, 0, 1, -1, 3, 2**31, 10**30, -(10**30), 0.5, 1e308, -1e308, 1e-320),
            *(float("nan"), float("inf"), "", "x", "1", [], {}, [[[]]], {"a": {"b": []}}, [0, 1], "9" * 5000),
        )
    )


def altered_array(draw: random.Random, array: np.ndarray) -> np.ndarray:
    """Replace an array by one of another shape, type or content."""
    match draw.randrange(9):
        case 0:
            return array[:-1] if array.ndim else array[None]
        case 1:
            return array.reshape(-1)
        case 2:
            return array[..., None]
        case 3:
            return array.astype(draw.choice(("float32", "complex128", "int64", "bool", "float16", "S4")))
        case 4:
            return np.zeros(draw.choice(((), (0,), (1, 0), (3, 3), (1, 1, 1))), array.dtype)
        case 5:
            return np.full_like(array, draw.choice((0, 1)))
        case 6 if array.dtype.kind in "fc":
            return np.full_like(array, draw.choice((np.nan, np.inf, 1e308 if array.itemsize >= 8 else 1e38)))
        case 7 if array.dtype.kind in "fc":
            return np.asarray(array * array.dtype.type(draw.choice((-1, 0.5, 2, 1e-30))))
        case _:
            return np.ascontiguousarray(array[::-1]) if array.ndim else array
