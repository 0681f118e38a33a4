"""MONAI's, TorchIO's and anybody's transforms: keyed by (seed, epoch, sample id), and apart."""

from __future__ import annotations

import multiprocessing
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from hyperslab.errors import SampleError
from hyperslab.torch import foreign
from hyperslab.torch import transforms as T

KEYS = ("A", "B", "M")
IMAGES = ("A", "B")
LEVEL = 0.5  # what makes the mask out of A
N = 6

Sample = dict[str, Any]


def of_all_generators(sample: Sample) -> Sample:
    """Turn the inputs by NumPy's generator, shift them by Python's and by PyTorch's."""
    turns = int(np.random.randint(4))  # noqa: NPY002
    by = random.randrange(24), int(torch.randint(24, ()))
    for name in KEYS:
        sample[name] = torch.rot90(sample[name], turns, (-2, -1)).roll(by, (-2, -1))
    return sample


# These move pixels and interpolate none: the mask still fits A and B afterwards.
MOVES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "monai-flip": ("monai.transforms", lambda m: m.RandFlipd(KEYS, prob=0.5, spatial_axis=1)),
    "monai-rotate90": ("monai.transforms", lambda m: m.RandRotate90d(KEYS, prob=0.7)),
    "monai-affine": (
        "monai.transforms",
        lambda m: m.RandAffined(
            KEYS, prob=0.8, rotate_range=1, mode="nearest", padding_mode="border"
        ),
    ),
    "monai-oneof": (
        "monai.transforms",
        lambda m: m.OneOf([m.RandFlipd(KEYS, prob=1), m.RandRotate90d(KEYS, prob=1)]),
    ),
    "monai-order": (
        "monai.transforms",
        lambda m: m.RandomOrder(
            [m.RandRotate90d(KEYS, prob=0.5), m.RandFlipd(KEYS, prob=0.5, spatial_axis=0)]
        ),
    ),
    "torchio-flip": ("torchio", lambda tio: tio.RandomFlip(axes=(0, 1))),
    "torchio-affine": (
        "torchio",
        lambda tio: tio.RandomAffine(degrees=40, image_interpolation="nearest"),
    ),
    "plain": ("random", lambda _: of_all_generators),
}
OTHERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "monai-noise": ("monai.transforms", lambda m: m.RandGaussianNoised("A", prob=1)),
    "monai-compose": (
        "monai.transforms",
        lambda m: m.Compose(
            [
                m.ScaleIntensityd(IMAGES),
                m.RandFlipd(KEYS, prob=0.5),
                m.OneOf([m.RandGaussianNoised("A", prob=1), m.RandAdjustContrastd("B", prob=1)]),
                m.RandSpatialCropd(KEYS, (16, 16), random_size=False),
            ]
        ),
    ),
    "monai-with-function": (
        "monai.transforms",
        lambda m: m.Compose([m.Lambdad("B", _by_torch), m.RandRotate90d(KEYS, prob=0.5)]),
    ),
    "torchio-motion": ("torchio", lambda tio: tio.RandomMotion(num_transforms=1)),
    "torchio-compose": (
        "torchio",
        lambda tio: tio.Compose(
            [tio.RandomAffine(), tio.OneOf([tio.RandomNoise(), tio.RandomGamma()], p=0.7)]
        ),
    ),
}


def _by_torch(image: torch.Tensor) -> torch.Tensor:
    return image + torch.rand(())


def make(name: str) -> Any:
    package, build = (MOVES | OTHERS)[name]
    return build(pytest.importorskip(package))


@pytest.fixture(params=[*MOVES, *OTHERS])
def transform(request: pytest.FixtureRequest) -> Any:
    return make(request.param)


def a_sample(i: int, **changed: Any) -> Sample:
    """Sample `i`: the same images for each, so that a difference is the transform's."""
    image = torch.rand((1, 24, 24), generator=torch.Generator().manual_seed(1))
    mask = (image > LEVEL).float()
    return {
        "A": image,
        "B": 2 * image + 1,
        "M": mask,
        "case": f"p{i // 4}",
        "slice": i % 4,
        "sample": i,
        **changed,
    }


def as_bytes(sample: Sample) -> tuple[bytes, ...]:
    return tuple(sample[name].numpy().tobytes() for name in KEYS)


def transformed(transform: Any, i: int, *, seed: int = 3, epoch: int = 0) -> tuple[bytes, ...]:
    return as_bytes(foreign.apply(transform, a_sample(i), seed=seed, epoch=epoch))


def global_states() -> tuple[Any, ...]:
    _, words, *rest = np.random.get_state()  # noqa: NPY002
    return random.getstate(), words.tobytes(), rest, torch.get_rng_state().numpy().tobytes()


def draw_from_all() -> None:
    """Move the global generators on, as whatever else a process does may."""
    random.random()
    np.random.rand()  # noqa: NPY002
    torch.rand(1)


class Samples(Dataset[Sample]):
    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> Sample:
        return foreign.apply(self.transform, a_sample(i), seed=3, epoch=0)


def test_depends_on_seed_epoch_and_sample_only(transform: Any) -> None:
    want = [transformed(transform, i) for i in range(N)]
    draw_from_all()
    assert [transformed(transform, i) for i in reversed(range(N))][::-1] == want
    assert [transformed(transform, 2) for _ in range(2)] == [want[2]] * 2
    assert len(set(want)) > 1
    assert [transformed(transform, i, epoch=1) for i in range(N)] != want
    assert [transformed(transform, i, seed=4) for i in range(N)] != want


def test_leaves_the_global_generators_as_they_were(transform: Any) -> None:
    before = global_states()
    transformed(transform, 0)
    assert global_states() == before


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="the workers are forked"
)
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize(
    "name", ["monai-compose", "monai-with-function", "torchio-compose", "plain"]
)
def test_workers_give_the_same_samples(name: str, workers: int) -> None:
    transform = make(name)
    want = [transformed(transform, i) for i in range(N)]
    loader = DataLoader(
        Samples(transform),
        batch_size=2,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
    )
    got = [as_bytes({name: batch[name][i] for name in KEYS}) for batch in loader for i in range(2)]
    assert got == want


@pytest.mark.parametrize("name", MOVES)
def test_inputs_share_the_geometry(name: str) -> None:
    transform = make(name)
    for i in range(N):
        done = foreign.apply(transform, a_sample(i), seed=0, epoch=0)
        assert torch.equal(done["M"], (done["A"] > LEVEL).float())
        assert torch.allclose(done["B"], 2 * done["A"] + 1)


def test_samples_come_back_as_they_were_but_for_their_values(transform: Any) -> None:
    given = a_sample(5, spacing=(0.5, 0.5))
    kept = {name: given[name].clone() for name in KEYS}
    done = foreign.apply(transform, given, seed=0, epoch=2)
    assert done is not given
    assert list(done) == list(given)
    assert all(torch.equal(given[name], kept[name]) for name in KEYS)
    for name in KEYS:
        assert type(done[name]) is torch.Tensor
        assert done[name].dtype == torch.float32
        assert done[name].is_contiguous()
    assert (done["case"], done["slice"], done["sample"]) == ("p1", 1, 5)
    assert done["spacing"] == (0.5, 0.5)


@pytest.mark.parametrize("inside", [False, True])
def test_how_much_is_done_does_not_depend_on_whether_it_is(inside: bool) -> None:
    """MONAI's random transforms that are in each other and get one seed begin with one number.

    Here the first would decide whether the sample is darkened or lightened at all, and the same
    one by how much at the corner: only ever darkened, where it is below a half.
    """
    m = pytest.importorskip("monai.transforms")
    transform = m.RandSmoothFieldAdjustIntensityd(
        "A", (16, 16), (4, 4), pad=0, prob=0.5, gamma=(0.5, 1.5)
    )
    if inside:
        transform = m.Compose([transform])
    white = torch.ones(1, 16, 16)
    found = [
        foreign.apply(transform, {"A": white, "sample": i}, seed=0, epoch=0)["A"] for i in range(60)
    ]
    corners = [float(image[0, 0, 0]) for image in found if not torch.equal(image, white)]
    assert 15 < len(corners) < 45
    assert min(corners) < 0.8
    assert max(corners) > 1.2


def test_a_transform_in_two_places_is_reached() -> None:
    m = pytest.importorskip("monai.transforms")
    noise = m.RandGaussianNoised("A", prob=1)
    transform = m.Compose([m.OneOf([noise]), m.SomeOf([m.RandomOrder([noise])])])
    assert transformed(transform, 1) == transformed(transform, 1)


class Holder:
    """A callable of somebody's, with a MONAI transform in it."""

    def __init__(self, transform: Any) -> None:
        self.steps = [{"noise": transform}]

    def __call__(self, sample: Sample) -> Sample:
        done: Sample = self.steps[0]["noise"](sample)
        return done


def test_a_transform_of_monai_is_found_in_an_object() -> None:
    m = pytest.importorskip("monai.transforms")
    transform = Holder(m.RandGaussianNoised("A", prob=1))
    first = transformed(transform, 1)
    assert transformed(transform, 2) != first == transformed(transform, 1)


def test_a_derived_class_of_monai_gets_what_it_asks_for() -> None:
    m = pytest.importorskip("monai.transforms")

    class Mine(m.Randomizable):  # type: ignore[misc, name-defined]
        def set_random_state(self, seed: Any = None, state: Any = None) -> Any:
            self.mine = np.random.default_rng(state.randint(1 << 30))
            return super().set_random_state(seed, state)

        def __call__(self, sample: Sample) -> Sample:
            noise = self.mine.random() + self.R.rand() + float(torch.rand(()))
            return {**sample, "A": sample["A"] + noise}

    first = transformed(Mine(), 1)
    assert transformed(Mine(), 2) != first == transformed(Mine(), 1)
    assert not foreign.is_self_contained(Mine())


@pytest.mark.parametrize("name", [name for name in MOVES | OTHERS if name.startswith("monai")])
def test_what_is_called_self_contained_keeps_off_the_global_generators(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    transform = make(name)
    before = global_states()
    for i in range(N):
        transform(a_sample(i))  # by itself
    assert foreign.is_self_contained(transform) == (global_states() == before)
    seeded: list[Any] = []
    monkeypatch.setattr(random, "seed", seeded.append)
    transformed(transform, 0)
    assert foreign.is_self_contained(transform) == (not seeded)


def test_what_is_self_contained() -> None:
    m, tio = pytest.importorskip("monai.transforms"), pytest.importorskip("torchio")
    for own in (T.RandomFlip(), T.Compose([T.RandomFlip()]), m.Resized("A", (8, 8))):
        assert foreign.is_self_contained(own)
    for other in (
        of_all_generators,
        tio.RandomFlip(),
        m.Lambdad("A", _by_torch),
        m.SomeOf([m.RandLambdad("A", _by_torch)]),
        m.RandTorchIOd("A", "RandomFlip"),
        m.SignalRandAddGaussianNoise(),
        Holder(m.RandFlipd("A")),
    ):
        assert not foreign.is_self_contained(other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8, torch.int16])
def test_torchio_makes_no_new_labels(dtype: torch.dtype) -> None:
    tio = pytest.importorskip("torchio")
    transform = tio.Compose([tio.RandomAffine(degrees=30), tio.RandomNoise(), tio.RandomFlip()])
    mask = (7 * a_sample(0)["M"] + 3).to(dtype)  # 3 and 10, and 0 where the border comes in
    moved = 0
    for i in range(N):
        done = foreign.apply(transform, a_sample(i, M=mask, other=mask.int()), seed=0, epoch=0)
        assert done["M"].dtype == dtype
        assert set(done["M"].unique().tolist()) <= {0, 3, 10}
        assert torch.equal(done["other"], done["M"].int())
        moved += not torch.equal(done["M"], mask)
    assert moved == N


def test_torchio_masks_by_name_and_boolean() -> None:
    tio = pytest.importorskip("torchio")
    mask = a_sample(0)["M"]
    sample = a_sample(1, M=mask, N=mask, O=mask, P=mask.bool())
    transform = tio.RandomAffine(degrees=30, label_keys=["O"])
    done = foreign.apply(transform, sample, seed=0, epoch=0, masks=("N",))
    assert len(done["M"].unique()) > 2  # an image, since `masks` leaves it out
    assert done["N"].unique().tolist() == [0, 1]
    assert torch.equal(done["N"], done["O"])
    assert torch.equal(done["N"], done["P"].float())
    assert done["P"].dtype == torch.bool


def test_torchio_axes_are_height_and_width() -> None:
    tio = pytest.importorskip("torchio")
    image = torch.rand(2, 9, 7)
    for axis in (0, 1):
        flip = tio.RandomFlip(axes=axis, flip_probability=1)
        done = foreign.apply(flip, {"A": image, "sample": 0}, seed=0, epoch=0)
        assert torch.equal(done["A"], image.flip(1 + axis))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_torchio_takes_all_floats(dtype: torch.dtype) -> None:
    tio = pytest.importorskip("torchio")
    image = a_sample(0)["A"].to(dtype)
    shift = tio.RandomAffine(scales=0, degrees=0, translation=(2, 2, 0, 0, 0, 0))
    done = foreign.apply(shift, a_sample(0, A=image), seed=0, epoch=0)
    assert done["A"].dtype == dtype
    assert torch.allclose(done["A"][:, 2:], image[:, :-2], atol=1e-2)


def test_torchio_has_to_keep_one_plane() -> None:
    tio = pytest.importorskip("torchio")
    with pytest.raises(SampleError, match=r"'A' comes back .*\(1, 24, 24, 3\)"):
        foreign.apply(tio.Pad((0, 0, 0, 0, 1, 1)), a_sample(0), seed=0, epoch=0)
    with pytest.raises(SampleError, match="no image for TorchIO"):
        foreign.apply(tio.RandomFlip(), {"sample": 0}, seed=0, epoch=0)


def test_meta_tensors_stay_only_where_they_were() -> None:
    m, data = pytest.importorskip("monai.transforms"), pytest.importorskip("monai.data")
    given = a_sample(0, A=data.MetaTensor(a_sample(0)["A"]))
    transform = m.Compose([m.RandFlipd(("A", "B"), prob=1), m.CopyItemsd("B", names="C")])
    done = foreign.apply(transform, given, seed=0, epoch=0)
    assert type(done["A"]) is data.MetaTensor
    assert type(done["B"]) is type(done["C"]) is torch.Tensor
    assert torch.equal(done["A"].as_tensor(), given["A"].as_tensor().flip(1, 2))
    assert torch.equal(done["C"], done["B"])


def test_a_crop_of_one_patch_is_a_sample_and_of_two_is_not() -> None:
    m = pytest.importorskip("monai.transforms")
    for n in (1, 2):
        crop = m.RandSpatialCropSamplesd(KEYS, (8, 8), num_samples=n, random_size=False)
        if n == 1:
            done = foreign.apply(crop, a_sample(0), seed=0, epoch=0)
            assert done["A"].shape == (1, 8, 8)
            continue
        with pytest.raises(TypeError, match="returned list of 2"):
            foreign.apply(crop, a_sample(0), seed=0, epoch=0)


def test_functions_may_return_arrays_and_work_in_place() -> None:
    def mirror(sample: Sample) -> Sample:
        sample["B"] += 5
        sample["case"] = "another"
        del sample["slice"]
        return {**sample, "A": sample["A"].numpy().astype("f8")[:, ::-1], "new": 1}

    batch = torch.rand(3, 2, 1, 8, 8)
    before = batch.clone()
    done = foreign.apply(mirror, a_sample(0, A=batch[1, 0], B=batch[1, 1]), seed=0, epoch=0)
    assert torch.equal(batch, before)
    assert torch.equal(done["A"], batch[1, 0].flip(1))
    assert torch.equal(done["B"], batch[1, 1] + 5)
    assert done["A"].dtype == torch.float32
    assert (done["case"], done["slice"], done["new"]) == ("p0", 0, 1)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_labels_that_were_interpolated_are_refused(dtype: torch.dtype) -> None:
    sample = a_sample(7, M=a_sample(0)["M"].to(dtype))
    doubled = foreign.apply(lambda s: {**s, "M": s["M"] * 1.0}, sample, seed=0, epoch=0)
    assert doubled["M"].dtype == dtype
    assert torch.equal(doubled["M"], sample["M"])
    with pytest.raises(SampleError, match=r"'M' is .* mode='nearest'") as caught:
        foreign.apply(lambda s: {**s, "M": s["M"] * 0.5}, sample, seed=0, epoch=0)
    assert "sample 7" in caught.value.__notes__[0]


def test_an_error_keeps_its_type_and_names_the_sample() -> None:
    def fails(sample: Sample) -> Sample:
        torch.rand(1)
        raise ZeroDivisionError("on purpose")

    before = global_states()
    with pytest.raises(ZeroDivisionError) as caught:
        foreign.apply(fails, a_sample(6), seed=0, epoch=0)
    assert str(caught.value) == "on purpose"
    assert caught.value.__notes__ == [
        "This happened in the transform of case 'p1', slice 2, sample 6."
    ]
    assert global_states() == before


def test_what_is_no_sample_is_refused() -> None:
    with pytest.raises(SampleError, match="no 'sample' among 'A'"):
        foreign.apply(of_all_generators, {"A": torch.rand(1, 2, 2)}, seed=0, epoch=0)
    with pytest.raises(TypeError, match="returned NoneType"):
        foreign.apply(lambda sample: sample.clear(), a_sample(0), seed=0, epoch=0)


def test_our_own_key_themselves() -> None:
    both = T.Compose([T.RandomFlip(), T.RandomRotate90()], seed=9)
    both.set_epoch(4)
    flip = T.RandomFlip()
    for i in range(N):
        sample = a_sample(i)
        assert as_bytes(foreign.apply(both, sample, seed=0, epoch=0)) == as_bytes(both(sample))
        want = flip(sample, seed=5, epoch=6)
        assert as_bytes(foreign.apply(flip, sample, seed=5, epoch=6)) == as_bytes(want)


def test_threads_take_turns() -> None:
    def slow(sample: Sample) -> Sample:
        noise = torch.rand(())
        time.sleep(0.005)
        sample["A"] = sample["A"] + noise + torch.rand(())
        return sample

    want = [transformed(slow, i) for i in range(N)]
    got: dict[int, tuple[bytes, ...]] = {}
    before = global_states()

    def run(first: int) -> None:
        for i in range(first, N, 2):
            got[i] = transformed(slow, i)

    threads = [threading.Thread(target=run, args=(first,)) for first in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [got[i] for i in range(N)] == want
    assert global_states() == before


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="nothing is forked"
)
def test_a_child_forked_during_a_transform_does_not_wait_for_it() -> None:
    begun, end = threading.Event(), threading.Event()

    def waits(sample: Sample) -> Sample:
        begun.set()
        end.wait(30)
        return sample

    thread = threading.Thread(target=transformed, args=(waits, 0))
    thread.start()
    try:
        assert begun.wait(30)
        child = multiprocessing.get_context("fork").Process(
            target=transformed, args=(of_all_generators, 1)
        )
        child.start()
        child.join(20)
        ended = child.exitcode
        child.kill()
        child.join()
        child.close()
    finally:
        end.set()
        thread.join()
    assert ended == 0


@pytest.mark.parametrize("fail", [False, True])
def test_cuda_generators_are_put_back(fail: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    states = [torch.tensor([1, 2]), torch.tensor([3, 4])]
    now = [state.clone() for state in states]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: [s.clone() for s in now])
    monkeypatch.setattr(
        torch.cuda, "set_rng_state_all", lambda new: now.__setitem__(slice(None), new)
    )

    def seeds_all(sample: Sample) -> Sample:
        now[0] += 1
        if fail:
            raise ZeroDivisionError
        return sample

    if fail:
        with pytest.raises(ZeroDivisionError):
            foreign.apply(seeds_all, a_sample(0), seed=0, epoch=0)
    else:
        foreign.apply(seeds_all, a_sample(0), seed=0, epoch=0)
    assert all(torch.equal(a, b) for a, b in zip(now, states, strict=True))


def test_imports_neither_package() -> None:
    code = (
        "import sys, torch; from hyperslab.torch import foreign\n"
        "foreign.apply(dict, {'A': torch.rand(1, 2, 2), 'sample': 0}, seed=0, epoch=0)\n"
        "print(*{'monai', 'torchio', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("torch\n", "")
