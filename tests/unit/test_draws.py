"""The counter-based generator: its published answers, its addresses, and its evenness."""

from __future__ import annotations

import numpy as np
import pytest

from hyperslab.torch.draws import philox4x32, stream_number, uniform, uniforms

M32 = 0xFFFFFFFF


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


# From `kat_vectors` of Random123, the reference implementation of the paper: counter, key, answer.
KNOWN = [
    (
        "00000000 00000000 00000000 00000000",
        "00000000 00000000",
        "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    ),
    (
        "ffffffff ffffffff ffffffff ffffffff",
        "ffffffff ffffffff",
        "408f276d 41c83b0e a20bc7c6 6d5451fd",
    ),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


def one_philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 of one counter in plain integers."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & M32, (p0 >> 32) ^ c3 ^ k1, p0 & M32
        k0, k1 = (k0 + 0x9E3779B9) & M32, (k1 + 0xBB67AE85) & M32
    return [c0, c1, c2, c3]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_known_answers(counter: str, key: str, answer: str) -> None:
    k0, k1 = words(key)
    got = philox4x32(np.array([words(counter)], np.uint64).T, (k0, k1))
    assert got[:, 0].tolist() == words(answer)
    assert one_philox(words(counter), words(key)) == words(answer)


def test_many_counters_at_once_equal_one_at_a_time() -> None:
    rng = np.random.default_rng(0)
    counter = rng.integers(0, 1 << 32, (4, 200), dtype=np.uint64)
    before = counter.copy()
    got = philox4x32(counter, (0x12345678, 0x9ABCDEF0))
    assert np.array_equal(counter, before)
    for column in range(200):
        expected = one_philox(counter[:, column].tolist(), [0x12345678, 0x9ABCDEF0])
        assert got[:, column].tolist() == expected


@pytest.mark.parametrize("seed", [0, 5, (0xDEADBEEF << 32) | 7])
@pytest.mark.parametrize("sample", [0, 9, (0xABCD << 32) | 0x12345678])
def test_each_number_is_where_the_docs_say(seed: int, sample: int) -> None:
    """The addresses must never change: a resumed training depends on them."""
    epoch, stream, n = 3, stream_number("RandomFlip"), 7
    got = uniform(seed, epoch, [sample], stream, n)[0]
    for j in range(n):
        block = j // 2
        counter = [sample & M32, (sample >> 32) | (block << 16), epoch, stream]
        drawn = one_philox(counter, [seed & M32, seed >> 32])
        high, low = drawn[2 * (j % 2)], drawn[2 * (j % 2) + 1]
        assert got[j] == ((high >> 5) * 2**26 + (low >> 6)) / 2**53


def test_numbers_do_not_depend_on_the_batch() -> None:
    ids = np.random.default_rng(1).permutation(1000)
    whole = uniform(1, 2, ids, 3, 5)
    assert whole.shape == (1000, 5)
    assert whole.dtype == np.float64
    parts = [uniform(1, 2, part, 3, 5) for part in np.array_split(ids, 7)]
    assert np.array_equal(whole, np.concatenate(parts))
    assert np.array_equal(whole[np.argsort(ids)], uniform(1, 2, range(1000), 3, 5))
    assert np.array_equal(whole[:, :2], uniform(1, 2, ids.astype(np.uint16), 3, 2))


def test_several_streams_at_once_equal_one_at_a_time() -> None:
    streams = [(5, 3), (0, 0), (1 << 31, 8), (6, 1)]
    for (stream, n), drawn in zip(streams, uniforms(1, 2, [4, 9], streams), strict=True):
        assert np.array_equal(drawn, uniform(1, 2, [4, 9], stream, n))
        assert drawn.shape == (2, n)
    assert uniforms(1, 2, [4, 9], []) == []
    assert uniform(1, 2, [], 3, 4).shape == (0, 4)


def test_every_part_of_the_address_matters() -> None:
    base = {"seed": 1, "epoch": 2, "ids": [3], "stream": 4, "n": 4}
    changes = [
        {},
        {"seed": 2},
        {"seed": 1 | 1 << 32},
        {"epoch": 3},
        {"ids": [4]},
        {"ids": [3 | 1 << 32]},
        {"stream": 5},
    ]
    drawn = [uniform(**{**base, **change})[0] for change in changes]  # type: ignore[arg-type]
    assert len(set(np.concatenate(drawn).tolist())) == 4 * len(changes)


@pytest.mark.parametrize("over", ["samples", "epochs", "streams", "draws"])
def test_numbers_are_even_and_uncorrelated(over: str) -> None:
    n = 40_000
    if over == "samples":
        u = uniform(0, 0, np.arange(n), 1, 1)[:, 0]
    elif over == "draws":
        u = uniform(0, 0, [7], 1, n)[0]
    elif over == "epochs":
        u = np.concatenate([uniform(0, e, np.arange(200), 1, 1)[:, 0] for e in range(200)])
    else:
        u = np.stack(uniforms(0, 0, np.arange(200), [(s, 1) for s in range(200)])).ravel()
    assert u.min() >= 0
    assert u.max() < 1
    counts = np.bincount((u * 100).astype(int), minlength=100)
    chi2 = ((counts - n / 100) ** 2 / (n / 100)).sum()
    assert 50 < chi2 < 160  # 99 degrees of freedom: beyond 5 in 10,000 on either side
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 4 / np.sqrt(n)


def test_stream_number_is_a_fixed_function_of_the_label() -> None:
    assert stream_number("123456789") == 0xCBF43926  # CRC-32's published check value


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"seed": -1}, ValueError, r"seed is -1; it may be 0 to 2\*\*64 - 1"),
        ({"seed": 1 << 64}, ValueError, "seed"),
        ({"seed": 0.5}, TypeError, "float"),
        ({"epoch": 1 << 32}, ValueError, "epoch"),
        ({"stream": -1}, ValueError, "stream"),
        ({"n": -1}, ValueError, "n is -1"),
        ({"n": 131_073}, ValueError, "131072"),
        ({"ids": [-1, 4]}, ValueError, "ids run from -1 to 4"),
        ({"ids": [1 << 48]}, ValueError, "ids run"),
        ({"ids": 4}, ValueError, r"shape \(\)"),
        ({"ids": [0.5]}, TypeError, "float64"),
    ],
)
def test_refusals(change: dict[str, object], error: type[Exception], message: str) -> None:
    given = {"seed": 0, "epoch": 0, "ids": [1], "stream": 0, "n": 1} | change
    with pytest.raises(error, match=message):
        uniform(**given)  # type: ignore[arg-type]
