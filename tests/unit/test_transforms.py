"""Batched transforms against NumPy and SciPy, sample by sample; and who shares whose draws."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import resource_sharer
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage
from scipy.interpolate import BSpline
from torch.utils.data import DataLoader, Dataset

from hyperslab.errors import OutputError, SampleError
from hyperslab.torch import transforms as T
from hyperslab.torch.transforms import Compose, Transform, warp

# Of bilinear interpolation in float32 against SciPy's in float64, for values around [-1, 1]: the
# coordinates carry seven digits, of 64 pixels.
TOLERANCE = 2e-5

ALL: dict[str, Callable[[], Transform]] = {
    "flip": T.RandomFlip,
    "half turn": lambda: T.RandomFlip(both=True),
    "rotate": T.RandomRotate90,
    "misalign": lambda: T.Misalign(("A", "B"), pixels=3, degrees=4, p=0.7),
    "motion": lambda: T.MotionArtifact("A", p=0.7),
    "elastic": lambda: T.Elastic(p=0.7),
    "clamp": lambda: T.Clamp(-0.5, 0.5),
    "random crop": lambda: T.RandomCrop(20),
    "center crop": lambda: T.CenterCrop((20, 24)),
    "swap": T.Swap,
    "random swap": lambda: T.Swap(p=0.5),
    "window": lambda: T.Window(-1, 1, out=(0, 1)),
    "z-score": lambda: T.ZScore(0.2, 0.5),
}


def smooth(n: int, height: int, width: int, seed: int = 0, channels: int = 1) -> torch.Tensor:
    """Return images with something in them at every scale: float32, (n, channels, H, W)."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((n, channels, height, width))
    blurred = ndimage.gaussian_filter(noise, (0, 0, 1, 1))
    return torch.from_numpy(blurred.astype(np.float32))


def labels(n: int, height: int, width: int, seed: int = 0) -> torch.Tensor:
    """Return masks with the labels 0, 2 and 5: int64, (n, 1, H, W)."""
    rng = np.random.default_rng(seed)
    field = ndimage.gaussian_filter(rng.standard_normal((n, 1, height, width)), (0, 0, 2, 2))
    return torch.from_numpy(np.array([0, 2, 5])[np.digitize(field, [-0.05, 0.05])])


def make_batch(n: int = 6, height: int = 32, width: int = 32, **more: Any) -> dict[str, Any]:
    return {
        "A": smooth(n, height, width, seed=1),
        "B": smooth(n, height, width, seed=2),
        "M": labels(n, height, width, seed=3),
        "case": [f"p{i:03}" for i in range(n)],
        "slice": torch.arange(n),
        "sample": torch.arange(100, 100 + n),
        **more,
    }


def equal(one: dict[str, Any], two: dict[str, Any]) -> bool:
    return list(one) == list(two) and all(
        torch.equal(a, b) and a.dtype == b.dtype if isinstance(a, torch.Tensor) else a == b
        for a, b in zip(one.values(), two.values(), strict=True)
    )


def take(batch: dict[str, Any], rows: list[int]) -> dict[str, Any]:
    return {
        k: v[rows] if isinstance(v, torch.Tensor) else [v[i] for i in rows]
        for k, v in batch.items()
    }


def sample(batch: dict[str, Any], row: int) -> dict[str, Any]:
    return {k: v[row] for k, v in batch.items()}


@pytest.fixture(params=list(ALL))
def transform(request: pytest.FixtureRequest) -> Transform:
    return ALL[request.param]()


# ---- what holds for each of them -----------------------------------------------------------------


def test_a_batch_is_its_samples(transform: Transform) -> None:
    batch = make_batch()
    done = transform(batch, seed=4, epoch=2)
    for row in range(6):
        alone = transform(sample(batch, row), seed=4, epoch=2)
        for name in "AB":
            assert torch.allclose(alone[name], done[name][row], atol=1e-6, rtol=0)
        assert torch.equal(alone["M"], done["M"][row])


def test_what_happens_to_a_sample_does_not_depend_on_the_rest_of_the_batch(
    transform: Transform,
) -> None:
    batch = make_batch()
    done = transform(batch)
    for rows in ([3, 0, 5], [2], [5, 4, 3, 2, 1, 0]):
        some = transform(take(batch, rows))
        for name in "AB":
            assert torch.allclose(some[name], done[name][rows], atol=1e-6, rtol=0)
        assert torch.equal(some["M"], done["M"][rows])


def test_the_input_is_left_alone_and_the_rest_passes_through(transform: Transform) -> None:
    batch = make_batch(spacing=torch.rand(6, 3), affine=torch.rand(6, 4, 4))
    before = copy.deepcopy(batch)
    done = transform(batch)
    assert equal(batch, before)
    assert done is not batch
    assert list(done) == list(batch)
    for name in ("case", "slice", "sample", "spacing", "affine"):
        assert done[name] is batch[name]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("mask", [torch.uint8, torch.int64, torch.float32, torch.bool])
def test_dtypes_are_kept(transform: Transform, dtype: torch.dtype, mask: torch.dtype) -> None:
    batch = make_batch()
    batch |= {"A": batch["A"].to(dtype), "B": batch["B"].to(dtype), "M": batch["M"].to(mask)}
    done = transform(batch, seed=1)
    assert (done["A"].dtype, done["B"].dtype, done["M"].dtype) == (dtype, dtype, mask)
    exact = transform({k: v.double() if k in "AB" else v for k, v in batch.items()}, seed=1)
    # Half precision: one rounding of what was computed in float32, or a few of values below 3.
    tolerance = {torch.float16: 4e-3, torch.bfloat16: 4e-2}.get(dtype, TOLERANCE)
    for name in "AB":
        assert torch.allclose(done[name].double(), exact[name], atol=tolerance, rtol=0)
    assert set(done["M"].unique().tolist()) <= set(batch["M"].unique().tolist())


def test_masks_keep_their_labels(transform: Transform) -> None:
    batch = make_batch(n=16)
    done = transform(batch)
    assert set(done["M"].unique().tolist()) <= {0, 2, 5}
    floating = transform({**batch, "M": batch["M"].float()})
    assert torch.equal(floating["M"], done["M"].float())


def test_empty_batch(transform: Transform) -> None:
    done = transform(make_batch(n=0), seed=1)
    assert done["A"].shape[:2] == (0, 1)


def test_other_memory_layouts(transform: Transform) -> None:
    """Slices of (H, W, D) volumes are views with any strides."""
    batch = make_batch()
    permuted = {
        k: v.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0) if v.ndim == 4 else v
        for k, v in batch.items()
        if isinstance(v, torch.Tensor)
    }
    assert not permuted["A"].is_contiguous()
    done, expected = transform(permuted, seed=1), transform(batch, seed=1)
    for name in "ABM":
        assert torch.allclose(done[name], expected[name], atol=1e-6, rtol=0)


def test_gradients_flow(transform: Transform) -> None:
    batch = make_batch()
    batch["A"].requires_grad_()
    batch["B"].requires_grad_()
    expected = transform({k: v.detach() if k in "AB" else v for k, v in batch.items()})
    done = transform(batch)
    for name in "AB":
        assert torch.allclose(done[name].detach(), expected[name], atol=1e-6, rtol=0)
    (done["A"].sum() + done["B"].sum()).backward()
    assert batch["A"].grad.abs().sum() > 0


def test_repr_says_how_to_make_it(transform: Transform) -> None:
    assert eval(repr(transform), vars(T)) == transform


# ---- exact ones, against NumPy -------------------------------------------------------------------


def oracle(
    image: np.ndarray, transforms: list[Transform], record: Any, row: int, *, mask: bool
) -> np.ndarray:
    """Do to one (C, H, W) image what the record says, one step after the other."""
    for label, transform in zip(Compose(transforms).labels, transforms, strict=True):
        own = {k: v[row] for k, v in record.get(label, {}).items()}
        match transform:
            case T.RandomFlip():
                image = np.flip(image, 1) if own["y"] else image
                image = np.flip(image, 2) if own["x"] else image
            case T.RandomRotate90():
                image = np.rot90(image, own["k"], (1, 2))
            case T.Clamp():
                image = image if mask else np.clip(image, transform.lo, transform.hi)
            case T.CenterCrop():
                pad = transform.mask_pad_value if mask else transform.pad_value
                for axis, place in ((1, own.get("top")), (2, own.get("left"))):
                    size = transform.size[axis - 1]
                    lack = size - image.shape[axis]
                    if lack > 0:
                        widths = [(0, 0)] * 3
                        widths[axis] = (lack - lack // 2, lack // 2)
                        image = np.pad(image, widths, constant_values=pad)
                    spare = image.shape[axis] - size
                    start = spare - spare // 2 if place is None else int(place * (spare + 1))
                    image = image.take(range(start, start + size), axis)
    return image


@dataclass(frozen=True)
class Case:
    transforms: list[Transform]
    n: int
    size: tuple[int, int]
    seed: int


@st.composite
def exact_cases(draw: st.DrawFn) -> Case:
    sizes = st.integers(1, 9)
    n = draw(st.integers(1, 4))
    square = draw(st.booleans())
    windows = sizes if square else st.tuples(sizes, sizes)
    pads = st.sampled_from([-1.0, 0.5, 7.0])
    steps = st.one_of(
        st.builds(T.RandomFlip, both=st.booleans()),
        *([st.builds(T.RandomRotate90, p=st.just(0.9))] if square or n == 1 else []),
        st.builds(T.RandomCrop, windows, pad_value=pads, mask_pad_value=st.sampled_from([0, 4])),
        st.builds(T.CenterCrop, windows, pad_value=pads),
        st.sampled_from([T.Clamp(-1, 1), T.Clamp(-0.25, 3), T.Clamp(0.5, 0.75)]),
    )
    size = draw(sizes)
    return Case(
        transforms=draw(st.lists(steps, min_size=1, max_size=6)),
        n=n,
        size=(size, size if square else draw(sizes)),
        seed=draw(st.integers(0, 1000)),
    )


@given(case=exact_cases())
def test_exact_transforms_equal_numpy_step_by_step(case: Case) -> None:
    """Sharing one copy is not a second algorithm: neither on the CPU nor by a gather."""
    rng = np.random.default_rng(case.seed)
    shape = (case.n, 2, *case.size)
    arrays = {
        "A": (2 * rng.standard_normal(shape)).astype("f4"),
        "M": rng.integers(0, 200, (case.n, 1, *case.size)).astype("u1"),
        "D": rng.standard_normal(shape),
    }
    batch = {name: torch.from_numpy(array) for name, array in arrays.items()}
    batch["H"] = batch["A"].bfloat16()
    composed = Compose(case.transforms, seed=case.seed)
    ids = rng.integers(0, 1 << 40, case.n)
    record = composed.parameters(ids)
    done = composed(batch, ids=ids)
    gathered = composed(
        {k: v.clone().requires_grad_() for k, v in batch.items() if k != "M"}, ids=ids
    )
    for row in range(case.n):
        for name, array in arrays.items():
            expected = oracle(array[row], case.transforms, record, row, mask=name == "M")
            got = done[name][row].numpy()
            assert got.dtype == array.dtype
            assert np.array_equal(got, expected), (name, row)
    assert torch.equal(done["H"], done["A"].bfloat16())
    for name in ("A", "D", "H"):
        assert torch.equal(gathered[name], done[name])
    assert all(np.array_equal(batch[name].numpy(), array) for name, array in arrays.items())


def test_the_usual_list_makes_one_copy_of_each_input(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, ...]] = []
    empty = torch.empty

    def counting(shape: tuple[int, ...], **options: Any) -> torch.Tensor:
        made.append(tuple(shape))
        return empty(shape, **options)

    monkeypatch.setattr(torch, "empty", counting)
    augment = Compose([T.RandomFlip(), T.RandomRotate90(), T.Clamp(-1, 1), T.RandomCrop(24)])
    augment(make_batch())
    assert made == [(6, 1, 24, 24)] * 3


def test_a_single_sample_turns_though_it_is_not_square() -> None:
    image = smooth(1, 20, 30)[0]
    composed = Compose([T.RandomRotate90(p=1.0)])
    seen = set()
    for i in range(20):
        k = int(composed.parameters([i])["RandomRotate90"]["k"][0])
        done = composed({"A": image, "M": image[0] > 0, "sample": i})
        assert torch.equal(done["A"], torch.rot90(image, k, (1, 2)))
        assert torch.equal(done["M"], torch.rot90(image[0] > 0, k, (0, 1)))
        seen.add(k)
    assert seen == {1, 2, 3}
    with pytest.raises(
        SampleError, match=r"20 by 30 pixels cannot be turned .* \(CenterCrop\(30\) pads"
    ):
        composed(make_batch(height=20, width=30))


def test_flips_and_turns_are_even_over_many_samples() -> None:
    """Flipping both axes at once is no flip: each axis has its own draw, and mirrors happen."""
    n = 20_000
    augment = Compose([T.RandomFlip(), T.RandomRotate90(), T.RandomFlip(both=True)], seed=9)
    record = augment.parameters(np.arange(n))
    flips = 2 * record["RandomFlip"]["y"] + record["RandomFlip"]["x"]
    assert np.allclose(np.bincount(flips, minlength=4) / n, 1 / 4, atol=0.015)
    turns = np.bincount(record["RandomRotate90"]["k"], minlength=4) / n
    assert np.allclose(turns, [1 / 2, 1 / 6, 1 / 6, 1 / 6], atol=0.015)
    both = record["RandomFlip-2"]
    assert np.array_equal(both["y"], both["x"])
    assert abs(both["y"].mean() - 0.5) < 0.015
    joint = 4 * flips + record["RandomRotate90"]["k"]
    expected = np.repeat(np.full(4, 1 / 4), 4) * np.tile(turns, 4)
    assert np.allclose(np.bincount(joint, minlength=16) / n, expected, atol=0.015)


def test_flip_mirrors_and_the_half_turn_does_not() -> None:
    image = smooth(1, 16, 16)
    flip, turn = Compose([T.RandomFlip()]), Compose([T.RandomFlip(both=True)])
    up_down = flip.replay({"A": image}, {"RandomFlip": {"y": [True], "x": [False]}})["A"]
    assert torch.equal(up_down, image.flip(-2))
    left_right = flip.replay({"A": image}, {"RandomFlip": {"y": [False], "x": [True]}})["A"]
    assert torch.equal(left_right, image.flip(-1))
    outcomes = {turn({"A": image}, ids=[i])["A"].numpy().tobytes() for i in range(20)}
    half_turn = torch.rot90(image, 2, (-2, -1))
    assert outcomes == {image.numpy().tobytes(), half_turn.numpy().tobytes()}


# ---- crop, pad, clamp ----------------------------------------------------------------------------


def test_crops_reach_both_edges_and_all_places_are_as_likely() -> None:
    n, room = 21_000, 6
    rows = torch.arange(16.0).expand(16, 16)
    batch = {"A": rows.t().expand(n, 1, 16, 16), "B": rows.expand(n, 1, 16, 16)}
    done = T.RandomCrop(16 - room)(batch, ids=np.arange(n))
    for name in "AB":
        first = done[name][:, 0, 0, 0].long()
        assert torch.equal(done[name][:, 0, -1, -1].long(), first + 16 - room - 1)
        counts = torch.bincount(first, minlength=room + 1)
        assert counts.shape == (room + 1,)
        assert (counts / n - 1 / (room + 1)).abs().max() < 0.012
    assert abs(np.corrcoef(done["A"][:, 0, 0, 0], done["B"][:, 0, 0, 0])[0, 1]) < 0.03


def test_extreme_draws_are_the_extreme_windows() -> None:
    image = smooth(2, 11, 13)
    ends = {"top": [0.0, 1 - 2.0**-53], "left": [1 - 2.0**-53, 0.0]}
    done = Compose([T.RandomCrop((4, 5))]).replay({"A": image}, {"RandomCrop": ends})["A"]
    assert torch.equal(done[0], image[0, :, :4, 8:])
    assert torch.equal(done[1], image[1, :, 7:, :5])


@pytest.mark.parametrize("crop", [T.RandomCrop, T.CenterCrop])
def test_smaller_inputs_are_padded_the_odd_pixel_on_top_and_left(crop: Any) -> None:
    batch = make_batch(n=2, height=5, width=6)
    done = crop((8, 9))(batch)
    for name, pad in (("A", -1.0), ("B", -1.0), ("M", 0)):
        expected = np.pad(
            batch[name].numpy(), ((0, 0), (0, 0), (2, 1), (2, 1)), constant_values=pad
        )
        assert np.array_equal(done[name].numpy(), expected)


def test_one_axis_padded_and_the_other_cropped() -> None:
    batch = make_batch(n=3, height=5, width=20)
    composed = Compose([T.RandomCrop(8, pad_value={"B": -3.0}, mask_pad_value=9)])
    left = (composed.parameters(batch["sample"])["RandomCrop"]["left"] * 13).astype(int)
    done = composed(batch)
    for row, x in enumerate(left):
        for name, pad in (("A", -1.0), ("B", -3.0), ("M", 9)):
            part = batch[name][row, :, :, x : x + 8].numpy()
            expected = np.pad(part, ((0, 0), (2, 1), (0, 0)), constant_values=pad)
            assert np.array_equal(done[name][row].numpy(), expected)


@pytest.mark.parametrize(("small", "large"), [(5, 8), (6, 8), (5, 9), (6, 9)])
def test_center_crop_takes_away_what_its_padding_added(small: int, large: int) -> None:
    batch = make_batch(height=small, width=small)
    there = T.CenterCrop(large)(batch)
    assert there["A"].shape == (6, 1, large, large)
    assert equal(T.CenterCrop(small)(there), batch)


def test_a_crop_after_a_crop_never_shows_what_the_first_cut_off() -> None:
    batch = {"A": torch.ones(1, 1, 8, 8)}
    done = Compose([T.CenterCrop(2), T.RandomFlip(p=0), T.CenterCrop(6)])(batch, ids=[0])["A"]
    assert done.sum() == 4 - 32
    assert done[0, 0, 2:4, 2:4].min() == 1


def test_a_crop_may_hold_padding_only() -> None:
    image = torch.ones(1, 1, 3, 3)
    corners = Compose([T.CenterCrop(9, pad_value=-2.0), T.RandomCrop(2)])
    for top, left in ((0.0, 0.0), (0.99, 0.99), (0.0, 0.99)):
        done = corners.replay({"A": image}, {"RandomCrop": {"top": [top], "left": [left]}})
        assert torch.equal(done["A"], torch.full((1, 1, 2, 2), -2.0))


def test_clamp_limits_images_and_never_masks() -> None:
    batch = make_batch(A=4 * smooth(6, 32, 32), M=labels(6, 32, 32).float())
    done = T.Clamp()(batch)
    assert (done["A"].min(), done["A"].max()) == (-1, 1)
    assert torch.equal(done["A"], batch["A"].clamp(-1, 1))
    assert torch.equal(done["M"], batch["M"])
    assert done["M"].max() == 5
    for name in ("M", "SEG"):
        renamed = {"A": batch["A"], name: batch["M"]}
        kept = T.Clamp()(renamed, masks=("M", "SEG"))
        assert torch.equal(kept[name], batch["M"])
    with pytest.raises(SampleError, match=r"'SEG' is torch.int64 .* masks=\('SEG',\)"):
        T.Clamp()({"A": batch["A"], "SEG": labels(6, 32, 32)})


def test_padding_counts_as_image_for_a_clamp_that_follows() -> None:
    batch = make_batch(n=1, height=4, width=4)
    after = Compose([T.CenterCrop(6), T.Clamp(0, 1)])(batch)
    before = Compose([T.Clamp(0, 1), T.CenterCrop(6)])(batch)
    assert after["A"][0, 0, 0, 0] == 0
    assert before["A"][0, 0, 0, 0] == -1


# ---- scaling -------------------------------------------------------------------------------------


def test_scaling_does_not_depend_on_the_crop() -> None:
    """Constants are of the case; a scale found in a crop would change from crop to crop."""
    batch = make_batch(A=300 * smooth(6, 32, 32) + 40)
    crop = T.RandomCrop(12)
    for scale in (T.Window(-100, 200), T.ZScore(41.5, 170)):
        one = Compose([scale, crop])(batch)
        two = Compose([crop, scale])(batch)
        assert equal(one, two)
    ids = range(6, 12)  # the same images, other windows
    assert not torch.equal(Compose([crop])(batch, ids=ids)["A"], crop(batch)["A"])


def test_window_and_z_score_are_what_they_say() -> None:
    batch = make_batch(A=300 * smooth(6, 32, 32))
    a, b = batch["A"].double().numpy(), batch["B"].double().numpy()
    done = T.Window(-100, 200, inputs="A")(batch)
    assert np.allclose(done["A"], np.interp(a, [-100, 200], [-1, 1]), atol=1e-6)
    assert done["B"] is batch["B"]
    done = T.Window(-0.1, 0.3, out=(0, 10), inputs=["B"])(batch)
    assert np.allclose(done["B"], np.interp(b, [-0.1, 0.3], [0, 10]), atol=1e-5)
    done = T.ZScore(12.5, 80)(batch)
    assert np.allclose(done["A"], (a - 12.5) / 80, atol=1e-6)
    assert done["M"] is batch["M"]


# ---- misalignment --------------------------------------------------------------------------------


def moved_by_scipy(
    image: np.ndarray, dx: float, dy: float, degrees: float, order: int = 1
) -> np.ndarray:
    """Turn (H, W) counter-clockwise about its centre, then shift it right by dx and down by dy."""
    angle = np.deg2rad(degrees)
    # Axes are (y, x), y down. SciPy wants the way from the output back to the input.
    back = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    centre = (np.array(image.shape) - 1) / 2
    offset = centre - back @ (centre + np.array([dy, dx]))
    return ndimage.affine_transform(image, back, offset, order=order, mode="mirror")


@pytest.mark.parametrize("size", [(64, 64), (40, 56)])
def test_misalign_equals_scipy(size: tuple[int, int]) -> None:
    batch = make_batch(8, *size)
    composed = Compose([T.Misalign(("A", "M", "B"), pixels=6, degrees=15, p=0.8)], seed=3)
    own = composed.parameters(batch["sample"])["Misalign"]
    done = composed(batch)
    assert 0 < own["active"].sum() < own["active"].size
    for column, name in enumerate("AMB"):
        for row in range(8):
            got, image = done[name][row, 0].numpy(), batch[name][row, 0].numpy()
            move = own["dx"][row, column], own["dy"][row, column], own["degrees"][row, column]
            if not own["active"][row, column]:
                assert move == (0, 0, 0)
                assert np.array_equal(got, image)
            elif name == "M":
                # Halfway between two pixels, float32 and float64 may differ.
                expected = moved_by_scipy(image, *move, order=0)
                assert (got != expected).mean() < 0.002
            else:
                assert np.abs(got - moved_by_scipy(image.astype(float), *move)).max() < TOLERANCE
                assert np.abs(got - image).max() > 0.05


def replay_misalign(image: torch.Tensor, dx: float, dy: float, degrees: float) -> torch.Tensor:
    record = {"active": [[True]], "dx": [[dx]], "dy": [[dy]], "degrees": [[degrees]]}
    moved = Compose([T.Misalign("A", 1, 1)]).replay({"A": image}, {"Misalign": record})["A"]
    assert isinstance(moved, torch.Tensor)
    return moved


def test_directions_are_those_of_the_docs() -> None:
    image = smooth(1, 33, 33)
    shifted = replay_misalign(image, 3, -2, 0)
    assert torch.allclose(shifted[..., :-2, 3:], image[..., 2:, :-3], atol=TOLERANCE)
    reflected = np.pad(image.numpy(), ((0, 0), (0, 0), (0, 2), (3, 0)), mode="reflect")
    assert np.allclose(shifted.numpy(), reflected[..., 2:, :33], atol=TOLERANCE)
    turned = replay_misalign(image, 0, 0, 90)
    assert torch.allclose(turned, torch.rot90(image, 1, (-2, -1)), atol=TOLERANCE)


def test_misalign_moves_only_what_it_should() -> None:
    batch = make_batch(n=12)
    for names in ("A", "B", ("A", "B")):
        done = T.Misalign(names, pixels=3, degrees=3)(batch)
        for name in "ABM":
            if name in names:
                assert (done[name] - batch[name]).abs().amax((1, 2, 3)).min() > 0.01
            else:
                assert done[name] is batch[name]


def test_misaligned_inputs_have_draws_of_their_own() -> None:
    n = 5000
    misalign = T.Misalign(("A", "B"), pixels=3, degrees=7, p=0.5)
    own = Compose([misalign]).parameters(np.arange(n))["Misalign"]
    active = own["active"]
    assert np.allclose(active.mean(0), 0.5, atol=0.03)
    assert abs((active[:, 0] & active[:, 1]).mean() - 0.25) < 0.03
    both = active.all(1)
    for name, limit in (("dx", 3), ("dy", 3), ("degrees", 7)):
        values = own[name]
        assert np.abs(values).max() <= limit
        assert abs(np.corrcoef(values[both].T)[0, 1]) < 0.1
        for column in range(2):
            drawn = values[active[:, column], column]
            counts = np.histogram(drawn, 10, (-limit, limit))[0] / drawn.size
            assert np.abs(counts - 0.1).max() < 0.03
        assert not values[~active].any()
    # Naming one input more does not change the draws of those before it.
    alone = Compose([T.Misalign("A", pixels=3, degrees=7, p=0.5)]).parameters(np.arange(n))
    assert np.array_equal(alone["Misalign"]["dx"][:, 0], own["dx"][:, 0])


def test_a_mask_that_is_to_move_keeps_its_labels() -> None:
    batch = make_batch()
    moved = T.Misalign("M", pixels=3, degrees=3)(batch)
    assert set(moved["M"].unique().tolist()) == {0, 2, 5}
    assert (moved["M"] != batch["M"]).flatten(1).any(1).all()
    assert moved["A"] is batch["A"]
    floating = T.Misalign("M", pixels=3, degrees=3)({**batch, "M": batch["M"].float()})
    assert torch.equal(floating["M"], moved["M"].float())


@pytest.mark.parametrize("p", [1.0, 0.6])
def test_a_few_samples_at_a_time_or_all_at_once(
    monkeypatch: pytest.MonkeyPatch, one_thread: None, p: float
) -> None:
    batch = make_batch(n=9)
    for augment in (
        T.Misalign(("A", "M"), pixels=3, degrees=3, p=p),
        T.MotionArtifact("A", p=p),
        T.Elastic(p=p),
        Compose([T.RandomFlip(), T.Misalign("A", pixels=3, degrees=3, p=p), T.Elastic(p=p)]),
    ):
        expected = augment(batch)
        with monkeypatch.context() as patch:
            patch.setattr(warp, "_PIXELS_AT_ONCE", 2 * 32 * 32)
            done = augment(batch)
        for name in "ABM":
            assert torch.allclose(done[name], expected[name], atol=1e-6, rtol=0)
        assert not torch.equal(done["A"], batch["A"])


def test_what_is_off_by_default_does_nothing() -> None:
    batch = make_batch()
    for off in (T.Misalign(("A", "B")), T.MotionArtifact(), T.Elastic()):
        done = off(batch)
        assert all(done[name] is batch[name] for name in "ABM")


# ---- motion --------------------------------------------------------------------------------------


def k_space(image: np.ndarray) -> np.ndarray:
    return np.fft.fftshift(np.fft.fft2(image), axes=(-2, -1))


def band_columns(width: int, outer: int) -> np.ndarray:
    """Return whether each column of k-space, zero frequency in the centre, is in the band."""
    distance = np.abs(np.arange(width) - width // 2) * 256 / width
    return (distance >= 5) & (distance <= outer)


@pytest.mark.parametrize("size", [(64, 256), (48, 128), (50, 301)])
def test_motion_equals_numpy(size: tuple[int, int]) -> None:
    batch = make_batch(4, *size)
    composed = Compose([T.MotionArtifact("A", p=0.5, degrees=5, pixels=10)], seed=2)
    own = composed.parameters(batch["sample"])["MotionArtifact"]
    done = composed(batch)
    assert 0 < own["active"].sum() < 4
    for row in range(4):
        image, got = batch["A"][row, 0].double().numpy(), done["A"][row, 0].numpy()
        if not own["active"][row]:
            assert np.array_equal(got, batch["A"][row, 0].numpy())
            continue
        moves = zip(own["dx"][row], own["dy"][row], own["degrees"][row], strict=True)
        moved = np.mean([moved_by_scipy(image, *move) for move in moves], axis=0)
        columns = band_columns(size[1], own["outer"][row])
        mixed = np.where(columns, k_space(moved), k_space(image))
        expected = np.fft.ifft2(np.fft.ifftshift(mixed, axes=(-2, -1)))
        assert np.abs(expected.imag).max() < 1e-12  # the band is symmetric
        assert np.abs(got - expected.real).max() < TOLERANCE


def test_motion_changes_the_image_and_only_the_band_of_k_space() -> None:
    """The artefact that is computed has to arrive."""
    batch = make_batch(6, 64, 256)
    composed = Compose([T.MotionArtifact("A", p=1.0)])
    outer = composed.parameters(batch["sample"])["MotionArtifact"]["outer"]
    done = composed(batch)
    for row in range(6):
        image, got = (x["A"][row, 0].double().numpy() for x in (batch, done))
        assert np.abs(got - image).max() > 0.05
        change = np.abs(k_space(got) - k_space(image)).max(axis=0)
        columns = np.abs(np.arange(256) - 128)
        within = (columns >= 5) & (columns <= outer[row])
        # Every column of the band differs by thousands of times the rounding in all others.
        assert change[~within].max() < 1e-3
        assert change[within].min() > 1
    assert done["B"] is batch["B"]
    assert done["M"] is batch["M"]


def test_motion_draws() -> None:
    n = 4000
    own = Compose([T.MotionArtifact(p=0.5, moves=4)]).parameters(np.arange(n))["MotionArtifact"]
    active = own["active"]
    assert abs(active.mean() - 0.5) < 0.03
    counts = np.bincount(own["outer"][active], minlength=25)
    assert np.flatnonzero(counts).tolist() == [21, 22, 23, 24]
    assert np.abs(counts[21:] / active.sum() - 0.25).max() < 0.04
    assert own["dx"].shape == (n, 4)
    for name, limit in (("dx", 10), ("dy", 10), ("degrees", 5)):
        drawn = own[name][active]
        assert 0.99 * limit < np.abs(drawn).max() <= limit
        assert np.abs(np.corrcoef(drawn.T) - np.eye(4)).max() < 0.1


def test_motion_goes_to_the_input_that_becomes_the_source() -> None:
    batch = make_batch()
    done = Compose([T.MotionArtifact("B", p=1.0), T.Swap()])(batch)
    assert torch.equal(done["B"], batch["A"])
    assert (done["A"] - batch["B"]).abs().max() > 0.05


# ---- elastic -------------------------------------------------------------------------------------


def test_elastic_equals_scipy_and_moves_all_inputs_alike() -> None:
    height, width, n = 48, 64, 4
    batch = make_batch(n, height, width)
    composed = Compose([T.Elastic(p=0.8, control_points=9, max_displacement=5)], seed=1)
    own = composed.parameters(batch["sample"])["Elastic"]
    done = composed(batch)
    assert 0 < own["active"].sum() < n

    def surface(control: np.ndarray) -> np.ndarray:
        knots = np.arange(-3, 10)  # a uniform cubic spline on [0, 6]
        along_y = BSpline(knots, control, 3)(np.linspace(0, 6, height))
        return BSpline(knots, along_y.T, 3)(np.linspace(0, 6, width)).T

    for row in range(n):
        dx, dy = surface(own["dx"][row]), surface(own["dy"][row])
        assert np.hypot(dx, dy).max() <= 5
        if own["active"][row]:
            assert np.hypot(dx, dy).max() > 1.5
        y, x = np.mgrid[:height, :width]
        for name in "ABM":
            image = batch[name][row, 0].numpy().astype(float)
            order = 0 if name == "M" else 1
            expected = ndimage.map_coordinates(image, [y + dy, x + dx], order=order, mode="mirror")
            got = done[name][row, 0].numpy()
            if name == "M":
                assert (got != expected).mean() < 0.002
            else:
                assert np.abs(got - expected).max() < TOLERANCE


def test_elastic_bends_the_chosen_inputs_only() -> None:
    batch = make_batch()
    done = T.Elastic(p=1.0, inputs="A")(batch)
    assert done["B"] is batch["B"]
    assert done["M"] is batch["M"]
    assert (done["A"] - batch["A"]).abs().amax((1, 2, 3)).min() > 0.01
    control = Compose([T.Elastic(p=1.0)]).parameters(range(500))["Elastic"]
    length = np.hypot(control["dx"], control["dy"])
    assert 4.99 < length.max() <= 5
    assert abs((length < 5 / np.sqrt(2)).mean() - 0.5) < 0.02  # half of the disc's area


# ---- swap ----------------------------------------------------------------------------------------


def test_swap_exchanges_source_and_target() -> None:
    batch = make_batch(A=smooth(6, 32, 32, channels=3))
    done = T.Swap()(batch)
    assert torch.equal(done["A"], batch["B"])
    assert torch.equal(done["B"], batch["A"])
    assert done["M"] is batch["M"]
    alone = T.Swap()(sample(batch, 0))
    assert torch.equal(alone["B"], batch["A"][0])
    with pytest.raises(SampleError, match="3 channels"):
        T.Swap(p=0.5)(batch)


def test_swap_of_some_samples() -> None:
    batch = make_batch(n=40)
    composed = Compose([T.Swap(p=0.25)])
    swapped = composed.parameters(batch["sample"])["Swap"]["swapped"]
    done = composed(batch)
    assert 0 < swapped.sum() < 40
    for row in range(40):
        first, second = "BA" if swapped[row] else "AB"
        assert torch.equal(done["A"][row], batch[first][row])
        assert torch.equal(done["B"][row], batch[second][row])
    assert abs(composed.parameters(range(5000))["Swap"]["swapped"].mean() - 0.25) < 0.03


# ---- together ------------------------------------------------------------------------------------


def everything(seed: int = 5) -> Compose:
    return Compose(
        [
            T.RandomFlip(),
            T.RandomRotate90(),
            T.Misalign("A", pixels=2, degrees=3, p=0.5),
            T.MotionArtifact("A", p=0.5),
            T.Elastic(p=0.5),
            T.Clamp(-1, 1),
            T.RandomCrop(24),
            T.Swap(p=0.5),
        ],
        seed=seed,
    )


def same_record(one: Any, two: Any) -> bool:
    return one.keys() == two.keys() and all(
        one[label].keys() == two[label].keys()
        and all(np.array_equal(one[label][k], two[label][k]) for k in one[label])
        for label in one
    )


def rows_of(record: Any, rows: Any) -> Any:
    return {label: {k: v[rows] for k, v in own.items()} for label, own in record.items()}


def test_all_inputs_share_geometry() -> None:
    """Where each pixel came from is the same in every input, whichever its name and dtype."""
    n, size = 24, 32
    numbers = torch.arange(float(n * size * size)).reshape(n, 1, size, size)
    batch = {
        "A": numbers,
        "B": numbers.double(),
        "M": numbers.long(),
        "other": numbers.expand(-1, 3, -1, -1),
    }
    augment = Compose([T.RandomFlip(), T.RandomRotate90(), T.RandomCrop(20)])
    done = augment(batch, ids=range(n))
    assert torch.equal(done["A"], done["B"].float())
    assert torch.equal(done["A"], done["M"].float())
    assert torch.equal(done["A"].expand(-1, 3, -1, -1), done["other"])
    # A smooth image in all inputs stays the same in all under a shared elastic field too.
    image = smooth(n, size, size)
    done = Compose([augment, T.Elastic(p=1.0)])({"A": image, "B": image.clone()}, ids=range(n))
    assert torch.equal(done["A"], done["B"])
    assert not torch.equal(done["A"], augment({"A": image}, ids=range(n))["A"])


def test_parameters_do_not_depend_on_batches_or_order() -> None:
    ids = np.random.default_rng(0).permutation(64)
    whole = everything().parameters(ids, epoch=3)
    assert list(whole) == [
        "RandomFlip",
        "RandomRotate90",
        "Misalign",
        "MotionArtifact",
        "Elastic",
        "RandomCrop",
        "Swap",
    ]
    other = everything()
    other.set_epoch(3)
    for rows in np.array_split(np.arange(64), 5):
        assert same_record(other.parameters(ids[rows]), rows_of(whole, rows))
    assert same_record(other.parameters(np.sort(ids)), rows_of(whole, np.argsort(ids)))


def test_samples_epochs_and_seeds_differ() -> None:
    ids = np.arange(300)
    of = {
        (seed, epoch): everything(seed).parameters(ids, epoch=epoch)
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    for one, record in of.items():
        for label, key in (("RandomCrop", "top"), ("Elastic", "dx"), ("Misalign", "degrees")):
            values = record[label][key].reshape(300, -1)
            shown = values[np.abs(values).any(1)]
            assert len(np.unique(shown, axis=0)) == len(shown) > 100
            for two in of:
                if one != two:
                    same = (values == of[two][label][key].reshape(300, -1)).all(1)
                    assert not same[np.abs(values).any(1)].any()


def test_transforms_share_no_draws_and_do_not_disturb_each_other() -> None:
    ids = np.arange(2000)
    one = Compose([T.RandomFlip(), T.RandomCrop(5), T.RandomCrop(4)]).parameters(ids)
    tops = one["RandomCrop"]["top"], one["RandomCrop-2"]["top"]
    assert abs(np.corrcoef(*tops)[0, 1]) < 0.08
    assert abs(np.corrcoef(one["RandomFlip"]["y"], tops[0])[0, 1]) < 0.08
    more = [T.Misalign("A", 1, 1), T.RandomFlip(), T.Clamp(), T.RandomRotate90(), T.RandomCrop(5)]
    two = Compose(more).parameters(ids)
    for label in ("RandomFlip", "RandomCrop"):
        assert same_record({label: one[label]}, {label: two[label]})


def test_replay_does_what_the_call_did() -> None:
    batch = make_batch()
    augment = everything()
    augment.set_epoch(11)
    record = augment.parameters(batch["sample"])
    done = augment(batch)
    assert equal(augment.replay(batch, record), done)
    as_lists = {label: {k: v.tolist() for k, v in own.items()} for label, own in record.items()}
    assert equal(everything(seed=77).replay(batch, as_lists), done)
    for row in range(6):
        alone = augment.replay(sample(batch, row), rows_of(record, [row]))
        assert torch.equal(alone["M"], done["M"][row])
        assert torch.allclose(alone["A"], done["A"][row], atol=1e-6)
    with pytest.raises(SampleError, match="'Elastic'"):
        augment.replay(batch, {k: v for k, v in record.items() if k != "Elastic"})
    with pytest.raises(SampleError, match=r"'RandomFlip' have shape \(2,\).* 6 samples"):
        augment.replay(batch, rows_of(record, [0, 1]))


def test_ids_may_be_given_instead() -> None:
    batch = make_batch()
    augment = everything()
    done = augment(batch)
    ids = batch.pop("sample")
    for given_ids in (ids, ids.numpy(), ids.tolist()):
        again = augment(batch, ids=given_ids)
        assert all(torch.equal(again[name], done[name]) for name in "ABM")
    assert not torch.equal(augment(batch, ids=ids + 6)["M"], done["M"])
    with pytest.raises(SampleError, match="no 'sample' among 'A', 'B', 'M', 'case', 'slice'"):
        augment(batch)
    with pytest.raises(SampleError, match=r"shape \(2,\), and the batch has 6 samples"):
        augment(batch, ids=[1, 2])
    fixed = Compose([T.CenterCrop(20), T.Clamp(), T.Swap()])
    assert fixed(batch)["A"].shape == (6, 1, 20, 20)


def test_out_gets_the_results() -> None:
    batch = make_batch()
    for augment in (everything(), Compose(everything().transforms[:-1]), Compose([T.Swap()])):
        expected = augment(batch)
        out = {name: torch.full_like(expected[name], 7) for name in "AM"}
        done = augment(batch, out=out)
        assert equal(done, expected)
        assert all(done[name] is out[name] for name in "AM")
        one = {"A": out["A"][0]}
        assert augment(sample(batch, 0), out=one)["A"] is one["A"]
        assert torch.allclose(one["A"], expected["A"][0], atol=1e-6)
    crop = Compose([T.CenterCrop(20)])
    for wrong, message in (
        (torch.empty(6, 1, 21, 20), r"\(6, 1, 21, 20\); the result .* \(6, 1, 20, 20\)"),
        (torch.empty(6, 1, 20, 20).half(), "float16"),
        (torch.empty(6, 1, 20, 40)[..., ::2], "not contiguous"),
    ):
        with pytest.raises(OutputError, match=message):
            crop(batch, out={"A": wrong})
    with pytest.raises(OutputError, match="out has 'Z'"):
        crop(batch, out={"Z": torch.empty(6, 1, 20, 20)})


def test_composed_lists_are_joined() -> None:
    inner = Compose([T.RandomFlip(), T.Clamp()], seed=9)
    outer = Compose([inner, T.RandomFlip()], seed=5)
    assert outer.labels == ("RandomFlip", "Clamp", "RandomFlip-2")
    first = Compose([T.RandomFlip()], seed=5).parameters([1, 2, 3])["RandomFlip"]
    assert np.array_equal(outer.parameters([1, 2, 3])["RandomFlip"]["y"], first["y"])
    assert "RandomFlip(p=0.5, both=False)" in repr(outer)
    assert "seed=5, epoch=0" in repr(outer)


class Negate(Transform):
    """Somebody's own: turns the sign of some images."""

    @property
    def draws(self) -> int:
        return 1

    def draw(self, u: np.ndarray) -> dict[str, np.ndarray]:
        return {"sign": np.where(u[:, 0] < 0.5, -1.0, 1.0)}

    def apply(self, inputs: T.Inputs, parameters: Any) -> T.Inputs:
        sign = torch.tensor(parameters["sign"], dtype=torch.float32)[:, None, None, None]
        return inputs.with_tensors({name: inputs.tensors[name] * sign for name in inputs.images})


def test_your_own_transform() -> None:
    batch = make_batch(n=20)
    augment = Compose([T.RandomFlip(), Negate(), T.CenterCrop(20)])
    sign = augment.parameters(batch["sample"])["Negate"]["sign"]
    assert set(sign) == {-1, 1}
    plain = Compose([T.RandomFlip(), T.CenterCrop(20)])(batch)
    done = augment(batch)
    for row in range(20):
        assert torch.equal(done["A"][row], plain["A"][row] * sign[row])
    assert torch.equal(done["M"], plain["M"])


# ---- what is an image, what is a mask ------------------------------------------------------------


def test_names_may_be_given() -> None:
    image = 3 * smooth(2, 8, 8)
    seg = labels(2, 8, 8)
    batch = {"mr": image, "SEG": seg, "embedding": torch.rand(2, 4, 3, 3), "sample": [1, 2]}
    augment = Compose([T.Clamp(), T.CenterCrop(10)], images=["mr"], masks=["SEG"])
    done = augment(batch)
    assert done["embedding"] is batch["embedding"]
    assert done["mr"].shape == done["SEG"].shape == (2, 1, 10, 10)
    assert (done["mr"][0, 0, 0, 0], done["SEG"][0, 0, 0, 0]) == (-1, 0)
    assert done["SEG"].max() == 5
    one_name = Compose([T.Clamp()], images="mr", masks="SEG")
    assert torch.equal(one_name(batch)["mr"], image.clamp(-1, 1))
    with pytest.raises(SampleError, match=r"'embedding' has shape .* images=\('A', 'B'\)"):
        T.Clamp()(batch, masks=["SEG"])


def test_boolean_tensors_are_masks() -> None:
    batch = {"A": smooth(2, 8, 8), "valid": smooth(2, 8, 8) > 0}
    done = Compose([T.Elastic(p=1.0), T.Clamp(), T.CenterCrop(10)])(batch, ids=[1, 2])
    assert done["valid"].dtype == torch.bool
    assert not done["valid"][:, :, 0].any()


def test_tensors_without_channels_or_with_more_axes() -> None:
    batch = make_batch(M=labels(6, 32, 32, seed=3)[:, 0], T=smooth(6, 32, 32, channels=6))
    batch["T"] = batch["T"].reshape(6, 2, 3, 32, 32)
    expected = make_batch(T=smooth(6, 32, 32, channels=6))
    augment = Compose([T.RandomFlip(), T.RandomRotate90(), T.Elastic(p=0.5), T.RandomCrop(20)])
    done, wanted = augment(batch), augment(expected)
    assert torch.equal(done["M"], wanted["M"][:, 0])
    assert torch.equal(done["T"], wanted["T"].reshape(6, 2, 3, 20, 20))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"B": torch.zeros(6, 1, 32, 31)}, r"'B' has shape \(6, 1, 32, 31\) beside 'A'"),
        ({"B": torch.zeros(5, 1, 32, 32)}, "N, H and W must agree"),
        ({"M": torch.zeros(6, 1, 16, 16)}, "'M' has shape"),
        ({"M": np.zeros((6, 1, 32, 32))}, "'M' is ndarray, not a tensor"),
    ],
)
def test_inputs_that_do_not_fit(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SampleError, match=message) as caught:
        T.RandomFlip()(make_batch(**change))
    assert set(change) <= set(caught.value.facts["inputs"])


def test_refusals() -> None:
    batch = make_batch()
    for call, error, message in (
        (lambda: T.RandomFlip()({"case": ["p1"]}), SampleError, "no image .* 'case'"),
        (lambda: T.RandomFlip()([batch]), TypeError, "not on list"),
        (lambda: T.Clamp()(batch, images=["A", "C"]), SampleError, "no image 'C'"),
        (lambda: T.Clamp()({"M": torch.zeros(4, 4)}), SampleError, r"\(4, 4\)"),
        (lambda: T.Misalign("C", 1, 1)(batch), SampleError, "'C', and the batch has 'A', 'B', 'M'"),
        (lambda: T.MotionArtifact("M", p=1)(batch), SampleError, "'M' is a mask"),
        (lambda: T.Window(0, 1, inputs="M")(batch), SampleError, "'M' is a mask"),
        (lambda: T.Swap(first="M")(batch), SampleError, "one is a mask"),
        (lambda: Compose([np.abs]), TypeError, "not <ufunc 'absolute'>"),
        (lambda: Compose([]).set_epoch(-1), ValueError, "epoch is -1"),
        (lambda: T.RandomFlip(p=1.5), ValueError, "p is 1.5"),
        (lambda: T.Misalign("A", pixels=-1), ValueError, "pixels is -1"),
        (lambda: T.Misalign("A", degrees=float("nan")), ValueError, "degrees is nan"),
        (lambda: T.Misalign(("A", "A")), ValueError, "once"),
        (lambda: T.Misalign(()), ValueError, "once"),
        (lambda: T.MotionArtifact(moves=0), ValueError, "moves is 0"),
        (lambda: T.MotionArtifact(band=(5, 24, 21)), ValueError, "rising"),
        (lambda: T.Elastic(control_points=3), ValueError, "at least 4"),
        (lambda: T.Elastic(max_displacement=float("inf")), ValueError, "max_displacement is inf"),
        (lambda: T.Clamp(1, -1), ValueError, "lower bound"),
        (lambda: T.Window(1, 1), ValueError, "lower bounds"),
        (lambda: T.ZScore(0, 0), ValueError, "above 0"),
        (lambda: T.RandomCrop(0), ValueError, "size is 0"),
        (lambda: T.CenterCrop((1, 2, 3)), ValueError, "size is"),
        (lambda: T.RandomCrop(7.5), TypeError, "float"),
        (lambda: T.Swap(first="B"), ValueError, "both are 'B'"),
    ):
        with pytest.raises(error, match=message):
            call()


def test_integer_images_are_moved_exactly_and_never_interpolated() -> None:
    counts = torch.arange(2 * 64, dtype=torch.int16).reshape(2, 1, 8, 8)
    done = Compose([T.RandomFlip(p=1.0), T.CenterCrop(10)])({"A": counts}, ids=[0, 1])["A"]
    assert torch.equal(done[:, :, 1:9, 1:9], counts.flip(-1, -2))
    assert done[0, 0, 0, 0] == -1
    for transform in (T.Misalign("A", 1, 1), T.Elastic(p=1.0), T.MotionArtifact(p=1.0)):
        with pytest.raises(SampleError, match=r"'A' is torch\.int16"):
            transform({"A": counts}, ids=[0, 1])
    with pytest.raises(SampleError, match="cannot hold the padding -1"):
        T.CenterCrop(10)({"A": counts.to(torch.uint8)})


def test_images_of_one_pixel_across() -> None:
    for size in ((1, 9), (9, 1), (1, 1)):
        done = everything()(make_batch(4, *size)) if size == (1, 1) else None
        for transform in (T.Misalign("A", 2, 3), T.Elastic(p=1.0), T.MotionArtifact(p=1.0)):
            batch = make_batch(4, *size)
            moved = transform(batch)["A"]
            assert torch.isfinite(moved).all()
            assert moved.min() >= batch["A"].min() - 0.1
        assert done is None or done["A"].shape == (4, 1, 24, 24)


# ---- processes -----------------------------------------------------------------------------------


class Slices(Dataset[dict[str, Any]]):
    """Samples that are transformed one by one, in whichever process asks for them."""

    def __init__(self, augment: Compose) -> None:
        self.augment = augment
        self.batch = make_batch(n=12)

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.augment(sample(self.batch, index) | {"sample": index})


def by_sample(loader: DataLoader[Any]) -> dict[int, bytes]:
    found = {}
    for batch in loader:
        for i, index in enumerate(batch["sample"].tolist()):
            found[index] = b"".join(batch[name][i].numpy().tobytes() for name in "ABM")
    return found


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Compute with one thread, as worker processes do: sums are then in the same order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_samples_are_the_same_for_any_number_of_workers(one_thread: None) -> None:
    dataset = Slices(everything())
    expected = by_sample(DataLoader(dataset, batch_size=5))
    assert len(expected) == len(set(expected.values())) == 12
    for workers in (0, 1, 3):
        loader = DataLoader(
            dataset,
            batch_size=4,
            shuffle=True,
            num_workers=workers,
            multiprocessing_context="fork" if workers else None,
        )
        assert by_sample(loader) == expected


def test_set_epoch_reaches_workers_that_stay(one_thread: None) -> None:
    augment = everything()
    stay = DataLoader(
        Slices(augment),
        batch_size=4,
        num_workers=2,
        persistent_workers=True,
        multiprocessing_context="fork",
    )
    seen = []
    for epoch in (0, 1, 5, 1):
        augment.set_epoch(epoch)
        fresh = everything()
        fresh.set_epoch(epoch)
        seen.append(by_sample(stay))
        assert seen[-1] == by_sample(DataLoader(Slices(fresh), batch_size=4))
    assert seen[1] == seen[3]
    assert len({found[0] for found in seen}) == 3
    stay._iterator._shutdown_workers()


def test_pickles_small_and_copies_have_an_epoch_of_their_own() -> None:
    augment = everything()
    augment.set_epoch(6)
    batch = make_batch()
    data = pickle.dumps(augment)
    assert len(data) < 5000
    for other in (pickle.loads(data), copy.deepcopy(augment)):
        assert other.epoch == 6
        assert equal(other(batch), augment(batch))
        other.set_epoch(7)
        assert augment.epoch == 6
        assert other._epoch._value.is_shared()


def test_a_spawned_process_draws_the_same() -> None:
    augment = everything()
    augment.set_epoch(2)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        there = pool.apply(augment.parameters, ([3, 1, 2],))
        pool.close()
        pool.join()
    resource_sharer.stop()  # multiprocessing's thread that hands shared memory over
    assert same_record(there, augment.parameters([3, 1, 2]))
