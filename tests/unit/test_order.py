"""Orders of an epoch: pure arithmetic, so every promise can be counted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperslab.torch.order.batches import assign_batches, count_batches
from hyperslab.torch.order.order import (
    Slabs,
    block_order,
    block_samples,
    cut_slabs,
    full_order,
    mixing,
    share,
    slab_depth,
)


def cut(n_slices: list[int], depths: list[tuple[int, ...]], nbytes: list[int]) -> Slabs:
    """Cut cases of which every slice is a sample."""
    return cut_slabs(
        np.repeat(np.arange(len(n_slices)), n_slices),
        np.concatenate([np.arange(n) for n in n_slices]),
        np.array([slab_depth(n, depth) for n, depth in zip(n_slices, depths, strict=True)]),
        np.array(nbytes),
    )


@st.composite
def slab_sets(draw: st.DrawFn) -> Slabs:
    n_slices = draw(st.lists(st.integers(1, 40), min_size=1, max_size=8))
    depths = [tuple(draw(st.lists(st.integers(1, 12), min_size=1, max_size=3))) for _ in n_slices]
    nbytes = draw(st.lists(st.integers(1, 50), min_size=len(n_slices), max_size=len(n_slices)))
    return cut(n_slices, depths, nbytes)


@given(
    slab_sets(), st.integers(0, 9), st.integers(0, 9), st.integers(0, 900), st.integers(1, 5),
    st.booleans(),
)  # fmt: skip
def test_ranks_cover_an_epoch_equally(
    slabs: Slabs, seed: int, epoch: int, window: int, world_size: int, drop: bool
) -> None:
    n = slabs.n_samples
    orders = [
        block_order(
            slabs, seed=seed, epoch=epoch, window_nbytes=window, rank=rank,
            world_size=world_size, drop=drop,
        )
        for rank in range(world_size)
    ]  # fmt: skip
    lengths = {order.samples.size for order in orders}
    assert lengths == {n // world_size if drop else -(-n // world_size)}
    seen = np.bincount(np.concatenate([o.samples for o in orders]), minlength=n)
    if drop:
        assert seen.max(initial=0) <= 1
        assert (seen == 0).sum() == n % world_size
    else:
        assert seen.min() >= 1
        assert seen.sum() - n == -n % world_size


@given(slab_sets(), st.integers(0, 9), st.integers(0, 900))
def test_each_slab_enters_once_and_the_window_keeps_its_budget(
    slabs: Slabs, epoch: int, window: int
) -> None:
    order = block_order(slabs, seed=1, epoch=epoch, window_nbytes=window)
    assert sorted(order.slab.tolist()) == list(range(slabs.case.size))
    assert (slabs.of_sample()[order.samples] == order.slab[order.part]).all()
    left = np.bincount(order.part)
    sizes = slabs.nbytes[order.slab]
    there: set[int] = set()
    entered = order.entered.tolist()
    for i, part in enumerate(order.part.tolist()):
        there |= {p for p, when in enumerate(entered) if when == i}
        assert part in there
        assert len(there) <= 2 or sizes[list(there)].sum() <= window
        left[part] -= 1
        if not left[part]:
            there.remove(part)


def test_orders_depend_on_seed_and_epoch_only() -> None:
    slabs = cut([30, 30], [(5,), (5,)], [1, 1])

    def order(seed: int, epoch: int) -> list[int]:
        return block_order(slabs, seed=seed, epoch=epoch, window_nbytes=20).samples.tolist()

    np.random.seed(0)  # noqa: NPY002 - the legacy state must not matter
    first = order(0, 0)
    np.random.seed(7)  # noqa: NPY002
    assert order(0, 0) == first
    assert len({tuple(order(s, e)) for s in range(3) for e in range(3)}) == 9
    kwargs = {"seed": 0, "rank": 0, "world_size": 1, "drop": False}
    assert full_order(60, epoch=1, shuffle=False, **kwargs).tolist() == list(range(60))
    full = [full_order(60, epoch=e, shuffle=True, **kwargs).tolist() for e in (0, 1)]
    assert full[0] != full[1]
    assert sorted(full[0]) == sorted(full[1]) == list(range(60))


def test_slabs_end_where_all_inputs_chunks_end() -> None:
    slabs = cut([12, 7], [(4, 2), (3, 5)], [10, 1])
    assert slabs.first.tolist() == [0, 4, 8, 12, 19]  # the second case's chunks never agree
    assert slabs.case.tolist() == [0, 0, 0, 1]
    assert slabs.nbytes.tolist() == [40, 40, 40, 7]


@pytest.mark.parametrize("drop", [False, True])
def test_shares_of_nothing_are_empty(drop: bool) -> None:
    assert share(0, 1, 2, drop=drop).size == 0


def test_mixing_tells_good_from_bad() -> None:
    slabs = cut([40] * 20, [(10,)] * 20, [1] * 20)
    n = slabs.n_samples
    random = mixing(np.random.default_rng(0).permutation(n), slabs, 32)
    ordered = mixing(np.arange(n), slabs, 32)
    block = mixing(block_order(slabs, seed=0, epoch=0, window_nbytes=300).samples, slabs, 32)
    assert 0.95 < random.distance < 1.05
    assert ordered.distance < 0.05
    assert ordered.cases_per_batch < 3 < block.cases_per_batch <= random.cases_per_batch
    assert block.distance > 0.7


@given(slab_sets(), st.integers(0, 9), st.integers(1, 4), st.booleans())
def test_a_rank_s_samples_are_known_without_mixing_them(
    slabs: Slabs, epoch: int, world_size: int, drop: bool
) -> None:
    for rank in range(world_size):
        options = {"seed": 1, "epoch": epoch, "rank": rank, "world_size": world_size, "drop": drop}
        mixed = block_order(slabs, window_nbytes=50, **options).samples
        assert sorted(block_samples(slabs, **options)) == sorted(mixed)


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 7), st.booleans())
def test_batches_are_of_one_kind_and_in_order(
    kinds: list[int], batch_size: int, drop_last: bool
) -> None:
    kind = np.array(kinds, np.int64)
    batch = assign_batches(kind, batch_size, drop_last=drop_last)
    n = count_batches(kind, batch_size, drop_last=drop_last)
    assert sorted(set(batch.tolist()) - {-1}) == list(range(n))
    ends = []
    for number in range(n):
        members = np.flatnonzero(batch == number)
        assert len(set(kind[members].tolist())) == 1
        assert len(members) == batch_size or not drop_last
        ends.append((len(members) < batch_size, members[-1]))
    assert ends == sorted(ends)
    for value in set(kinds):  # of each kind, in the order of the visits, and fewer than a batch out
        mine = batch[kind == value]
        kept = mine[mine >= 0]
        assert (np.diff(kept) >= 0).all()
        assert mine.size - kept.size == (mine.size % batch_size if drop_last else 0)


def test_alike_samples_make_consecutive_batches() -> None:
    batch = assign_batches(np.zeros(7, np.int64), 3, drop_last=False)
    assert batch.tolist() == [0, 0, 0, 1, 1, 1, 2]
