"""What a pack does, before it does it: by headers alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hyperslab.access import chunk_shape_for, parse_access
from hyperslab.exports.text import human_nbytes
from hyperslab.packing.find import FoundCase
from hyperslab.packing.grid import Grid, difference
from hyperslab.packing.intensity import DEFAULTS, MapRule, parse_map
from hyperslab.packing.records import PackedCase, PackedImage
from hyperslab.packing.refusal import Refused
from hyperslab.packing.sources import Source, fingerprint
from hyperslab.packing.volume import Header

__all__ = ["ACCESS", "CasePlan", "ImagePlan", "Options", "image_order", "plan_case"]

ACCESS = "[:, :, k]"  # what a training loop reads
_FIRST = ("MR", "CBCT", "CT", "MASK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a person may choose; see `hyperslab.packing.packer.pack`.

    Attributes
    ----------
    maps
        Group to map, over the defaults.
    resample
        The group whose grid the others are brought onto; "" to refuse what differs.
    require
        Groups that every case must have.
    chunks
        Chunk shape, None for one slice.
    memory_nbytes
        Most bytes that the data in work take.
    """

    maps: Mapping[str, MapRule]
    resample: str = ""
    require: tuple[str, ...] = ()
    chunks: tuple[int, int, int] | None = None
    memory_nbytes: int = 2 << 30

    def rule(self, image: str) -> MapRule:
        """Return how the values of a group are mapped."""
        return self.maps.get(image) or parse_map(DEFAULTS.get(image, DEFAULTS[""]))


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePlan:
    """How an image is packed.

    Attributes
    ----------
    image
        Its group.
    source, header
        Where it is, and what it says of itself.
    fingerprint
        Of its files.
    rule
        How its values are mapped.
    target
        The grid that it is brought onto, None to leave it on its own.
    """

    image: str
    source: Source
    header: Header
    fingerprint: str
    rule: MapRule
    target: Grid | None

    @property
    def grid(self) -> Grid:
        """The grid that it is stored on."""
        return self.target or self.header.grid

    @property
    def nbytes(self) -> int:
        """Decoded bytes in the new file, or a little more."""
        return math.prod(self.grid.shape) * self.itemsize

    @property
    def itemsize(self) -> int:
        """Bytes of a stored element; of "none", at most."""
        match self.rule.kind:
            case "mask":
                return 1
            case "none":
                return max(4, self.header.itemsize)
            case _:
                return 4

    @property
    def read_nbytes(self) -> int:
        """Most bytes that are in memory while it is read and mapped, but for what is encoded.

        The voxels, and a copy of them: percentiles are found by putting them in order, a compressed
        file is held while it is decoded. Resampling holds what goes in and what comes out.
        """
        n = self.header.n_voxels
        nbytes = 2 * n * self.header.itemsize
        if self.target is not None:
            nbytes = n * (self.header.itemsize + 2 * 4) + 2 * math.prod(self.target.shape) * 4
        return nbytes

    def chunks(self, wanted: tuple[int, int, int] | None, itemsize: int) -> tuple[int, ...]:
        """Return the chunk shape: a slice, or as much of it as the adviser gives a chunk."""
        if wanted is None:
            return chunk_shape_for(parse_access(ACCESS, 3), self.grid.shape, itemsize)
        return tuple(min(c, n) for c, n in zip(wanted, self.grid.shape, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class CasePlan:
    """How a case is packed.

    Attributes
    ----------
    name
        In the new file.
    folder
        Where it comes from.
    images
        In the order of `image_order`.
    """

    name: str
    folder: str
    images: tuple[ImagePlan, ...]

    @property
    def nbytes(self) -> int:
        """Decoded bytes of all images."""
        return sum(image.nbytes for image in self.images)

    @property
    def work_nbytes(self) -> int:
        """Most bytes that are in memory while it is packed.

        What is encoded counts as if it had not become smaller.
        """
        return max(image.read_nbytes for image in self.images) + self.nbytes

    def described(self, folder: str) -> PackedCase:
        """Return it as a report has it, by what the headers say."""
        return PackedCase(
            case=self.name,
            folder=self.folder,
            images=tuple(
                PackedImage(
                    image=image.image,
                    source=image.source.path.removeprefix(folder).lstrip("/\\"),
                    format=image.header.kind,
                    shape=image.grid.shape,
                    spacing=image.grid.spacing,
                    source_dtype=image.header.dtype.name,
                    mapping=str(image.rule),
                    resampled=image.target is not None,
                    nbytes=image.nbytes,
                    note=image.header.note,
                )
                for image in self.images
            ),
        )


def image_order(image: str) -> tuple[int, str]:
    """Return the key that puts images in order: MR, CBCT, CT, MASK, then the others by name."""
    return (_FIRST.index(image) if image in _FIRST else len(_FIRST), image)


def plan_case(
    case: FoundCase, images: Sequence[tuple[str, Source, Header]], options: Options
) -> CasePlan:
    """Plan a case.

    Parameters
    ----------
    case
        Its name and its folder.
    images
        (name, source, header) of each image; where the name is "", the modality is.
    options
        What was chosen.

    Raises
    ------
    Refused
        Two sources for one image; an image that is required is not there; grids that differ, and
        are not to be brought together; more memory than there may be used.
    """
    plans: dict[str, ImagePlan] = {}
    for named, source, header in images:
        name = named or header.modality
        if not name:
            raise Refused(f"{source.path} does not say which image it is; name it by a pattern")
        if name in plans:
            raise Refused(
                f"there are two images for {name}: {plans[name].source.path} and {source.path}; "
                "say which by a pattern"
            )
        plans[name] = ImagePlan(
            image=name,
            source=source,
            header=header,
            fingerprint=fingerprint(header.files),
            rule=options.rule(name),
            target=None,
        )
    lacking = [name for name in options.require if name not in plans]
    if lacking:
        there = ", ".join(sorted(plans, key=image_order))
        raise Refused(f"it has no {', '.join(lacking)}, but {there}")
    ordered = sorted(plans.values(), key=lambda image: image_order(image.image))
    plan = CasePlan(
        name=case.name, folder=case.folder, images=_on_one_grid(ordered, options.resample)
    )
    if plan.work_nbytes > options.memory_nbytes:
        raise Refused(
            f"it takes {human_nbytes(plan.work_nbytes)} of memory to pack, and "
            f"{human_nbytes(options.memory_nbytes)} may be used (--memory)"
        )
    return plan


def _on_one_grid(images: Sequence[ImagePlan], resample: str) -> tuple[ImagePlan, ...]:
    if resample:
        reference = next((image for image in images if image.image == resample), None)
        if reference is None:
            raise Refused(f"it has no {resample}, onto whose grid the others are to be brought")
    else:
        reference = images[0]
    found = []
    for image in images:
        told = difference(image.header.grid, reference.header.grid)
        if told and not resample:
            raise Refused(
                f"its images are on different grids: {image.image} has {told} as "
                f"{reference.image}; bring them together with --resample {_suggested(images)}"
            )
        found.append(replace(image, target=reference.header.grid) if told else image)
    return tuple(found)


def _suggested(images: Sequence[ImagePlan]) -> str:
    names = [image.image for image in images]
    return "CT" if "CT" in names else names[0]
