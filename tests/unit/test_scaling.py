"""Intensity scaling: against float64 NumPy, back again, and where there is nothing to scale."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hyperslab.errors import SampleError
from hyperslab.torch.scaling import (
    Constants,
    Percentiles,
    Scaling,
    Window,
    ZScore,
    apply_scaling,
    invert,
)
from hyperslab.torch.values.facts import DatasetFacts, nonempty_slices

NAN, INF = math.nan, math.inf


def facts_of(volume: np.ndarray) -> DatasetFacts:
    """Facts by NumPy alone; slices along axis 0."""
    wide = volume.astype("f8")
    return DatasetFacts(
        low=wide.min(axis=(1, 2)),
        high=wide.max(axis=(1, 2)),
        mean=float(wide.mean()),
        std=float(wide.std()),
        quantiles={q: float(np.percentile(wide, q)) for q in (1.0, 5.0, 99.0, 99.5)},
    )


def reference(volume: np.ndarray, scaling: Scaling) -> np.ndarray:
    """What the words say, in float64."""
    wide = volume.astype("f8")
    if isinstance(scaling, ZScore):
        return (wide - wide.mean()) / wide.std()
    if isinstance(scaling, Percentiles):
        lo, hi = np.percentile(wide, [scaling.lo, scaling.hi])
    else:
        lo, hi = scaling.lo, scaling.hi
    low, high = scaling.out
    scaled = low + (wide - lo) / (hi - lo) * (high - low)
    return np.clip(scaled, low, high) if scaling.clamp else scaled


def volume(*, center: float = 300.0, spread: float = 200.0, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).normal(center, spread, (5, 12, 9))
    return drawn.astype("f4")


SCALINGS = [
    Percentiles(),
    Percentiles(5, 99.5, out=(0.0, 255.0)),
    Percentiles(clamp=False),
    Window(-160, 240),
    Window(0.0, 500.0, out=(0.0, 1.0), clamp=False),
    ZScore(),
]


@pytest.mark.parametrize("scaling", SCALINGS, ids=repr)
@pytest.mark.parametrize("center", [0.0, 300.0, -1e6])  # of which float32 has 0.06 at best
def test_a_case_scales_as_numpy_does(scaling: Scaling, center: float) -> None:
    data = volume(center=center)
    constants = scaling.constants(facts_of(data))
    x = torch.from_numpy(data.copy())[:, None]
    apply_scaling(x, [constants] * len(x))
    wide = data.astype("f8")
    bound = np.abs(constants.multiply * (wide - constants.subtract)) + abs(constants.add)
    error = np.abs(x[:, 0].numpy() - reference(data, scaling))
    assert (error <= 4 * 2.0**-23 * bound + 1e-12).all()
    assert x.std() > 0 or center == -1e6  # a window far away may well be flat


@given(
    subtract=st.floats(-1e6, 1e6),
    multiply=st.floats(1e-3, 1e3),
    add=st.floats(-10, 10),
    values=st.lists(st.floats(-1e6, 1e6, width=32), min_size=4, max_size=4),
)
def test_the_stated_tolerance_holds(
    subtract: float, multiply: float, add: float, values: list[float]
) -> None:
    row = Constants(subtract=subtract, multiply=multiply, add=add)
    x = torch.tensor(values).reshape(1, 1, 2, 2)
    apply_scaling(x, [row])
    moved = (np.array(values) - subtract) * multiply
    error = np.abs(x.numpy().ravel() - (moved + add))
    assert (error <= 4 * 2.0**-23 * (np.abs(moved) + abs(add)) + 1e-30).all()


def test_every_sample_of_a_batch_has_its_own_constants() -> None:
    volumes = [volume(center=c, spread=s, seed=i) for i, (c, s) in enumerate([(0, 1), (900, 50)])]
    rows = [Percentiles().constants(facts_of(v)) for v in volumes]
    order = [1, 0, 0, 1, 1]
    batch = torch.stack([torch.from_numpy(volumes[c][i])[None] for i, c in enumerate(order)])
    apply_scaling(batch, [rows[c] for c in order])
    for i, c in enumerate(order):
        expected = reference(volumes[c], Percentiles())[i]
        np.testing.assert_allclose(batch[i, 0].numpy(), expected, atol=2e-6)


def test_a_slice_is_scaled_as_its_whole_case() -> None:
    data = volume()
    rows = [Percentiles().constants(facts_of(data))]
    whole = torch.from_numpy(data.copy())[:, None]
    apply_scaling(whole, rows * len(whole))
    crop = torch.from_numpy(data[2:3, 3:7, 1:5].copy())[:, None]
    apply_scaling(crop, rows)
    assert torch.equal(crop[0, 0], whole[2, 0, 3:7, 1:5])


def test_context_channels_share_the_constants_of_their_sample() -> None:
    x = torch.arange(24.0).reshape(2, 3, 2, 2)
    rows = [Window(0, 12, out=(0, 12)), Window(12, 24, out=(0, 120))]
    apply_scaling(x, [row.constants() for row in rows])
    expected = torch.cat([torch.arange(12.0), 10 * torch.arange(12.0)]).reshape(2, 3, 2, 2)
    torch.testing.assert_close(x, expected)


def test_it_works_in_place_on_any_strides() -> None:
    base = torch.arange(36.0).reshape(1, 1, 6, 6)
    x = base[..., ::2, 1::2]
    apply_scaling(x, [Constants(subtract=1.0, multiply=2.0, add=5.0)])
    assert base[0, 0, 0].tolist() == [0.0, 5.0, 2.0, 9.0, 4.0, 13.0]
    assert base[0, 0, 1].tolist() == [6.0, 7.0, 8.0, 9.0, 10.0, 11.0]


def test_other_floating_dtypes_scale_in_their_own() -> None:
    x = torch.tensor([0.1, 1e6 + 0.1], dtype=torch.float64).reshape(1, 1, 1, 2)
    apply_scaling(x, [Constants(subtract=0.1, multiply=1.0, add=0.0)])
    assert x.ravel().tolist() == [0.0, 1e6 + 0.1 - 0.1]


@pytest.mark.parametrize("scaling", [Window(-1, 1), Window(-1, 1, clamp=False)])
def test_nan_stays_and_infinity_is_clamped(scaling: Window) -> None:
    x = torch.tensor([NAN, INF, -INF, 0.5]).reshape(1, 1, 2, 2)
    apply_scaling(x, [scaling.constants()])
    ends = (1.0, -1.0) if scaling.clamp else (INF, -INF)
    assert math.isnan(x[0, 0, 0, 0])
    assert x.ravel()[1:].tolist() == [*ends, 0.5]


# A fact for every way of having no spread: one value, no value, one that float32 cannot stretch.
FLAT = [
    DatasetFacts(mean=7.0, std=0.0, quantiles={1.0: 7.0, 99.0: 7.0}),
    DatasetFacts(mean=NAN, std=NAN, quantiles={1.0: NAN, 99.0: NAN}),
    DatasetFacts(mean=7.0, std=1e-50, quantiles={1.0: 7.0, 99.0: 7.0 + 1e-50}),
    DatasetFacts(mean=0.0, std=1e-50, quantiles={1.0: 0.0, 99.0: 1e-50}),
    DatasetFacts(mean=INF, std=INF, quantiles={1.0: -1e308, 99.0: 1e308}),
]


@pytest.mark.parametrize("facts", FLAT)
@pytest.mark.parametrize(
    ("scaling", "constant"),
    [
        (Percentiles(), -1.0),
        (Percentiles(out=(3.0, 4.0), clamp=False), 3.0),
        (ZScore(), 0.0),
    ],
)
def test_a_case_without_spread_becomes_one_value(
    facts: DatasetFacts, scaling: Scaling, constant: float
) -> None:
    constants = scaling.constants(facts)
    x = torch.tensor([7.0, 0.0, -3e38, INF, -INF, NAN]).reshape(1, 1, 2, 3)
    apply_scaling(x, [constants])
    assert x.ravel()[:5].tolist() == [constant] * 5
    assert math.isnan(x.ravel()[5])
    back = invert(x, constants).ravel()
    only = facts.mean if isinstance(scaling, ZScore) else facts.quantiles[1.0]
    assert back[:5].tolist() == [7.0 if only == 7.0 else 0.0] * 5
    assert math.isnan(back[5])


def test_hounsfield_units_come_back_to_the_unit() -> None:
    units = torch.arange(-1024, 3072, dtype=torch.float32).reshape(1, 1, 64, 64)
    x, constants = units.clone(), Window(-1000, 2000).constants()
    apply_scaling(x, [constants])
    back = invert(x, constants)
    assert (back.dtype, back.shape) == (torch.float32, units.shape)
    np.testing.assert_array_equal(back.round(), units.clamp(-1000, 2000))
    assert (back - units.clamp(-1000, 2000)).abs().max() < 1e-3
    assert x.max() == 1.0  # `values` are left alone


@pytest.mark.parametrize("scaling", [Percentiles(clamp=False), ZScore()], ids=repr)
def test_what_is_not_clamped_comes_back(scaling: Scaling) -> None:
    data = volume(center=1e5)
    constants = scaling.constants(facts_of(data))
    x = torch.from_numpy(data.copy())[:, None]
    apply_scaling(x, [constants] * len(x))
    back = invert(x, constants)[:, 0].numpy()
    spacing = np.spacing(np.float32(1e5))
    assert np.abs(back - data).max() <= spacing
    wide = torch.linspace(-3, 3, 7, dtype=torch.float64)
    there = invert(wide, constants)
    again = (there - constants.subtract) * constants.multiply + constants.add
    torch.testing.assert_close(again, wide, rtol=0, atol=1e-9)


def test_what_each_needs() -> None:
    assert (Percentiles(2, 98).quantiles, Percentiles().needs_facts) == ((2.0, 98.0), True)
    assert (Window(0, 1).quantiles, Window(0, 1).needs_facts) == ((), False)
    assert (ZScore().quantiles, ZScore().needs_facts) == ((), True)
    assert Window(0, 1).constants(None) == Window(0, 1).constants()


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Percentiles(99, 1), "in percent"),
        (lambda: Percentiles(-1, 99), "in percent"),
        (lambda: Percentiles(1, 101), "in percent"),
        (lambda: Percentiles(NAN, 99), "in percent"),
        (lambda: Percentiles(out=(1, -1)), "lower one first"),
        (lambda: Percentiles(out=(0, INF)), "finite"),
        (lambda: Window(2, 2), "lower one"),
        (lambda: Window(NAN, 2), "finite"),
        (lambda: Window(0, INF), "finite"),
        (lambda: Window(0, 1, out=(1, 1)), "lower one first"),
        (lambda: Percentiles().constants(None), "facts"),
        (lambda: ZScore().constants(None), "facts"),
        (lambda: ZScore().constants(DatasetFacts()), "mean and std"),
        (lambda: Percentiles(2, 98).constants(FLAT[0]), r"quantiles \(2.0, 98.0\)"),
        (lambda: apply_scaling(torch.zeros(2, 1, 1, 1), []), "2 samples"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        make()


def test_damage_and_integers_cannot_be_scaled() -> None:
    damaged = DatasetFacts(damage="c.h5: /MR/p1, chunk (0, 0, 1) ...")
    for scaling in (Percentiles(), ZScore()):
        with pytest.raises(SampleError, match=r"/MR/p1, chunk \(0, 0, 1\)"):
            scaling.constants(damaged)
    with pytest.raises(SampleError, match="/MR/p1"):
        nonempty_slices(damaged, threshold=0)
    with pytest.raises(SampleError, match="int64"):
        apply_scaling(torch.zeros(1, 1, 1, 1, dtype=torch.int64), [Window(0, 1).constants()])


def test_an_empty_batch_is_left_alone() -> None:
    apply_scaling(torch.empty(0, 1, 4, 4), [])


def test_empty_slices_are_those_without_a_value_above_the_threshold() -> None:
    facts = DatasetFacts(high=np.array([0.0, 1.0, NAN, -2.0, 0.5]))
    assert nonempty_slices(facts, threshold=0).tolist() == [False, True, False, False, True]
    assert nonempty_slices(facts, threshold=0.5).tolist() == [False, True, False, False, False]
    assert nonempty_slices(facts, threshold=-3).tolist() == [True, True, False, True, True]
