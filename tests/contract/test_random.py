"""Random blocks: the numbers depend on the seed and the row alone, wherever they are made."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockvec import BlockVector
from blockvec.backends import backend_for
from tests.contract.blocks import DTYPES, Guarded, Layout, dtypes, host, on, seeds


@given(st.integers(0, 300), st.integers(0, 9), dtypes, st.integers(0, 300), seeds)
def test_any_partition_of_the_rows_gives_the_same_numbers(
    device: str, K: int, M: int, dtype: str, cut: int, seed: int
) -> None:
    cut = min(cut, K)
    whole = BlockVector.random(K, M, dtype, rng=seed, device=device)
    upper = BlockVector.random(cut, M, dtype, rng=seed, device=device)
    lower = BlockVector.random(K - cut, M, dtype, rng=seed, first_row=cut, device=device)
    assert np.array_equal(host(whole), np.concatenate([host(upper), host(lower)]))


@given(st.integers(0, 300), st.integers(0, 9), dtypes, st.integers(0, 2**40), seeds)
def test_uniform_numbers_are_those_of_numpy_everywhere(
    device: str, K: int, M: int, dtype: str, offset: int, seed: int
) -> None:
    parts = 2 if np.dtype(dtype).kind == "c" else 1
    stream = np.random.Philox(key=seed)
    stream.advance(offset // 4)
    numbers = np.random.Generator(stream).random(offset % 4 + K * M * parts)[offset % 4 :]
    if np.dtype(dtype).itemsize == 4 * parts:
        numbers = np.floor(numbers * 2.0**24) / 2.0**24
    expected = (2 * numbers - 1).astype(np.zeros(0, dtype).real.dtype).view(dtype).reshape(K, M)
    out = on(device, np.full((K, M), np.nan, dtype))
    backend_for(device).fill_random(out, seed, offset)
    assert np.array_equal(host(out), expected)


@pytest.mark.parametrize("key", [0, 2**63 - 1, 2**63, 2**64 - 1])
def test_every_key_is_a_stream_of_numpys_generator(device: str, key: int) -> None:
    out = on(device, np.empty((70001, 3)))
    backend_for(device).fill_random(out, key, 0)
    expected = 2 * np.random.Generator(np.random.Philox(key=key)).random(out.shape) - 1
    assert np.array_equal(host(out), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_view_is_filled_and_nothing_beside_it(device: str, dtype: str) -> None:
    frame = Guarded(np.zeros((501, 3), dtype), device, Layout(2, 1))
    backend_for(device).fill_random(frame.block.array, 7, 5)
    plain = on(device, np.zeros((501, 3), dtype))
    backend_for(device).fill_random(plain, 7, 5)
    assert np.array_equal(host(frame.block), host(plain))
    assert frame.is_untouched_outside()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("distribution", "moments"), [("uniform", (1 / 3, 4 / 45)), ("normal", (1, 2))]
)  # the variances of a number and of its square
def test_numbers_have_the_moments_of_their_distribution(
    device: str, distribution: str, moments: tuple[float, float], dtype: str
) -> None:
    V = host(BlockVector.random(200000, 2, dtype, rng=3, distribution=distribution, device=device))
    for part in (V.real, V.imag) if V.dtype.kind == "c" else (V,):
        assert np.isfinite(part).all()
        assert distribution == "normal" or (part.min() >= -1 and part.max() < 1)
        # Six standard deviations of the mean and of the second moment of so many numbers.
        assert abs(part.mean()) < 6 * np.sqrt(moments[0] / part.size)
        assert abs((part.astype(float) ** 2).mean() - moments[0]) < 6 * np.sqrt(moments[1] / part.size)


def test_generators_move_on_and_seeds_repeat(device: str) -> None:
    rng = np.random.default_rng(5)
    first, second = (host(BlockVector.random(50, 2, rng=rng, device=device)) for _ in range(2))
    assert not np.array_equal(first, second)
    assert np.array_equal(first, host(BlockVector.random(50, 2, rng=5, device=device)))
