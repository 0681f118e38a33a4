"""Access patterns: what they mean, and how many chunks they meet."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperslab.access import Access, chunk_shape_for, chunks_touched, parse_access, slab_shape
from hyperslab.errors import SelectionError


@pytest.mark.parametrize(
    ("text", "ndim", "window"),
    [
        ("[:, :, k]", 3, (None, None, 1)),
        ("[k]", 3, (1, None, None)),
        ("[..., k]", 4, (None, None, None, 1)),
        ("[k, ..., 5]", 4, (1, None, None, 1)),
        ("[...]", 2, (None, None)),
        ("[]", 2, (None, None)),
        ("[ T , c,z ]", 5, (1, 1, 1, None, None)),
        ("[k, 64w, 32w]", 3, (1, 64, 32)),
        ("patch 96x96x96", 3, (96, 96, 96)),
        ("Tile 512x512", 4, (1, 1, 512, 512)),
        ("plane", 4, (1, 1, None, None)),
        ("plane", 2, (None, None)),
        ("whole", 3, (None, None, None)),
    ],
)
def test_patterns(text: str, ndim: int, window: tuple[int | None, ...]) -> None:
    assert parse_access(text, ndim) == Access(text=text, window=window)


@pytest.mark.parametrize(
    ("text", "ndim"),
    [
        ("[:, :, k]", 2),
        ("[..., ...]", 3),
        ("[k", 2),
        ("patch 96x96x96", 2),
        ("patch 0x4", 2),
        ("patch", 2),
        ("[0w]", 1),
        ("[1:5]", 1),
        ("", 2),
        ("slices", 2),
    ],
)
def test_nonsense_is_refused_with_examples(text: str, ndim: int) -> None:
    with pytest.raises(SelectionError, match=r"does not fit a dataset of .*Patterns look like"):
        parse_access(text, ndim)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Access, tuple[int, ...], tuple[int, ...]]:
    ndim = draw(st.integers(1, 3))
    shape = tuple(draw(st.integers(1, 12)) for _ in range(ndim))
    chunks = tuple(draw(st.integers(1, 12)) for _ in range(ndim))
    window = tuple(draw(st.none() | st.integers(1, 14)) for _ in range(ndim))
    return Access(text="", window=window), shape, chunks


@given(cases())
def test_chunks_are_counted_at_every_place(
    case: tuple[Access, tuple[int, ...], tuple[int, ...]],
) -> None:
    access, shape, chunks = case
    region = access.region(shape)
    expected = 1.0
    for size, extent, chunk in zip(region, shape, chunks, strict=True):
        counts = [
            len({i // chunk for i in range(start, start + size)})
            for start in range(extent - size + 1)
        ]
        expected *= sum(counts) / len(counts)
    assert chunks_touched(access, shape, chunks) == pytest.approx(expected)
    slab = slab_shape(access, shape, chunks)
    assert all(r <= s <= n for r, s, n in zip(region, slab, shape, strict=True))


@given(cases(), st.integers(1, 8), st.integers(1, 4000))
def test_chosen_chunks_lie_inside_a_request(
    case: tuple[Access, tuple[int, ...], tuple[int, ...]], itemsize: int, target: int
) -> None:
    access, shape, _ = case
    region = access.region(shape)
    chunk = chunk_shape_for(access, shape, itemsize, target_nbytes=target)
    assert all(1 <= c <= r for c, r in zip(chunk, region, strict=True))
    assert math.prod(chunk) * itemsize <= target or max(chunk) == 1
    if math.prod(region) * itemsize <= target:
        assert chunk == region


def test_nothing_is_touched_of_nothing() -> None:
    assert chunks_touched(parse_access("whole", 2), (0, 5), (1, 1)) == 0
