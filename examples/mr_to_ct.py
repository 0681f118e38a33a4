"""Train a small U-Net to make a CT out of an MR, slice by slice, and draw what it makes.

    python examples/mr_to_ct.py                               # a made-up cohort; about a minute
    python examples/mr_to_ct.py --data cohort.h5 --epochs 100
    torchrun --nproc-per-node 2 examples/mr_to_ct.py          # the same, shared by two processes

It needs PyTorch and matplotlib: ``pip install '.[torch,plot]'`` in a clone. The file has groups MR,
CT and MASK, each with one 3-D dataset per patient, (H, W, slices), all planes of one shape. The
folder `--out` gets mr_to_ct.png, and after every epoch mr_to_ct.pt, which `--resume` goes on from.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.distributed as dist
import typer
from matplotlib.figure import Figure
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset

import hyperslab as hs
from hyperslab.testing import make_cohort
from hyperslab.torch import SliceDataset, SliceLoader, scaling, split_cases
from hyperslab.torch import transforms as T

# For a file of yours: what becomes -1 to 1 for the network, and the Hounsfield units in 1.0 of its
# CT. An MR without absolute units wants scaling.Percentiles(1, 99.5).
MR = scaling.Window(-1, 1)
CT = scaling.Window(-1, 1)
HU = 1000

CROP = 64  # pixels along a side of a training crop; validation takes whole slices
WIDTH = 16  # channels on the U-Net's first level
RATE = 4e-3  # the learning rate at the start


def main(
    data: Annotated[Path | None, typer.Option(help="HDF5 file; one is made by default.")] = None,
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("mr_to_ct-output"),
    epochs: Annotated[int, typer.Option(help="How often each slice is seen.")] = 12,
    minutes: Annotated[float, typer.Option(help="Begin no epoch after these.")] = math.inf,
    batch: Annotated[int, typer.Option(help="Slices in a batch, in each process.")] = 8,
    seed: Annotated[int, typer.Option(help="Of all that is random.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from --out.")] = False,
) -> None:
    """Train a small U-Net to make a CT out of an MR."""
    began = time.monotonic()
    rank, world, device = join_ranks()
    torch.manual_seed(seed)
    out.mkdir(parents=True, exist_ok=True)
    if data is None:
        data = out / "cohort.h5"
        if rank == 0:
            make_cohort(data, n_cases=12, shape=(96, 96, 32), seed=seed)
        total(torch.zeros(1, device=device))  # the others wait here for the file

    # The masks as bool: True where the file has anything but 0.
    whole = SliceDataset(data, scaling={"A": MR, "B": CT}, dtype={"M": "bool"})
    fit_on, held_out = split_cases(whole.cases, 0.75, seed=seed)  # whole patients on either side
    train_set, val_set = whole.with_cases(fit_on), whole.with_cases(held_out)

    # The crop comes first: quarter turns of a batch need squares.
    augment = T.Compose([T.RandomCrop(CROP), T.RandomFlip(), T.RandomRotate90()], seed=seed)
    # Under torchrun it loads this rank's share of each epoch, as long as the others'.
    loader = SliceLoader(train_set, batch_size=batch, seed=seed, transforms=augment, device=device)
    # Shares of the validation set are not made equal, so that every slice counts exactly once.
    share = torch.arange(len(val_set)).tensor_split(world)[rank].tolist()
    val_loader = DataLoader(Subset(val_set, share), batch_size=batch)

    net = UNet(WIDTH).to(device).to(memory_format=torch.channels_last)
    model = DistributedDataParallel(net) if world > 1 else net
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
    checkpoint, picture = out / "mr_to_ct.pt", out / "mr_to_ct.png"
    if resume:
        state = torch.load(checkpoint, map_location=device)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])

    def say(text: str) -> None:
        if rank == 0:
            print(text, flush=True)  # noqa: T201

    def validate() -> str:
        mae = evaluate(net, val_loader, device) * (CT.hi - CT.lo) / 2
        return f"validation MAE {mae:.4f} ({mae * HU:.1f} HU)"

    say(f"{world} x {device}: train on {len(train_set)} slices of {len(fit_on)} patients")
    say(f"validate on {len(val_set)} of {len(held_out)}; at first, {validate()}")
    while loader.epoch < epochs:
        epoch = loader.epoch
        for group in optimizer.param_groups:
            group["lr"] = RATE * (1 + math.cos(math.pi * epoch / epochs)) / 2
        loss = train(model, optimizer, loader, device)
        say(f"epoch {epoch + 1}: loss {loss:.4f}, {validate()}; {loader.report}")
        loader.set_epoch(epoch + 1)
        if rank == 0:
            state = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "loader": loader.state_dict()}, checkpoint)
        late = time.monotonic() - began > 60 * minutes
        if total(torch.tensor([float(late)], device=device))[0]:
            break  # all ranks, if it is late on one

    if rank == 0:
        draw(net, [val_set[len(val_set) * i // 6] for i in (1, 3, 5)], device, picture)
    say(f"{time.monotonic() - began:.0f} s; see {picture}")
    if dist.is_initialized():
        dist.destroy_process_group()
        time.sleep(0.1)  # gloo's threads end a little later; the interpreter must not end before


def join_ranks() -> tuple[int, int, torch.device]:
    """Meet the other processes, if torchrun started any; return rank, world size and device."""
    cuda = torch.cuda.is_available()
    local_rank = os.environ.get("LOCAL_RANK", "0")
    device = torch.device(f"cuda:{local_rank}" if cuda else "cpu")
    if not dist.is_torchelastic_launched():
        return 0, 1, device
    # The processes of one machine share its cores.
    threads = max(1, (os.cpu_count() or 1) // int(os.environ["LOCAL_WORLD_SIZE"]))
    torch.set_num_threads(threads)
    hs.configure(threads=threads)
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    return dist.get_rank(), dist.get_world_size(), device


def total(values: torch.Tensor) -> list[float]:
    """Add up over the ranks, which wait for each other here."""
    if dist.is_initialized():
        dist.all_reduce(values)
    return values.tolist()


def masked_error(
    net: nn.Module, batch: dict[str, Any], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sum of the absolute errors inside the masks, and the number of pixels there."""
    mr, ct, mask = (batch[name].to(device, non_blocking=True) for name in ("A", "B", "M"))
    return ((net(mr) - ct).abs() * mask).sum(), mask.sum()


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, loader: SliceLoader, device: torch.device
) -> float:
    """Go through one epoch; return the mean loss of all ranks."""
    model.train()
    sums = torch.zeros(2, dtype=torch.float64, device=device)
    for batch in loader:
        error, n = masked_error(model, batch, device)
        optimizer.zero_grad()
        (error / n.clamp(min=1)).backward()
        optimizer.step()
        sums += torch.stack([error.detach(), n])
    error_sum, n_sum = total(sums)
    return error_sum / n_sum


@torch.no_grad()
def evaluate(net: nn.Module, batches: Iterable[dict[str, Any]], device: torch.device) -> float:
    """Return the mean absolute error inside the masks, over the batches of all ranks."""
    net.eval()
    sums = torch.zeros(2, dtype=torch.float64, device=device)
    for batch in batches:
        sums += torch.stack(masked_error(net, batch, device))
    error_sum, n_sum = total(sums)
    return error_sum / n_sum


class UNet(nn.Module):
    """Three levels, each with half the pixels and twice the channels of the one above."""

    def __init__(self, width: int) -> None:
        super().__init__()
        a, b, c = width, 2 * width, 4 * width
        self.down = nn.ModuleList([convolutions(1, a), convolutions(a, b), convolutions(b, c)])
        self.up = nn.ModuleList([convolutions(c + b, b), convolutions(b + a, a)])
        self.head = nn.Conv2d(a, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (N, 1, H, W) to the same shape; H and W from 4 up, odd ones too."""
        skips: list[torch.Tensor] = []
        for down in self.down:
            x = down(F.max_pool2d(x, 2) if skips else x)
            skips.append(x)
        for up, skip in zip(self.up, (skips[1], skips[0]), strict=True):
            x = up(torch.cat([F.interpolate(x, size=skip.shape[-2:]), skip], 1))
        return self.head(x)


def convolutions(n_in: int, n_out: int) -> nn.Sequential:
    """Two 3 x 3 convolutions."""
    first, second = nn.Conv2d(n_in, n_out, 3, padding=1), nn.Conv2d(n_out, n_out, 3, padding=1)
    return nn.Sequential(first, nn.ReLU(inplace=True), second, nn.ReLU(inplace=True))


@torch.no_grad()
def draw(net: nn.Module, samples: list[dict[str, Any]], device: torch.device, path: Path) -> None:
    """Draw samples as rows: MR, synthetic CT, CT, and the difference of the two."""
    net.eval()
    lo, hi = CT.lo * HU, CT.hi * HU
    figure = Figure(figsize=(10, 2.6 * len(samples) + 0.6), dpi=120, layout="compressed")
    axes = figure.subplots(len(samples), 4, squeeze=False)
    for row, sample in zip(axes, samples, strict=True):
        made = net(sample["A"][None].to(device))[0].cpu()
        made = made.where(sample["M"], -1)  # nothing taught it what is outside the mask
        made, ct = ((x[0] + 1) / 2 * (hi - lo) + lo for x in (made, sample["B"]))
        difference = (made - ct).where(sample["M"][0], 0).numpy()
        shown = row[0].imshow(sample["A"][0].numpy(), cmap="gray", vmin=-1, vmax=1)
        for axis, image in zip(row[1:], (made, ct), strict=False):
            grey = axis.imshow(image.numpy(), cmap="gray", vmin=lo, vmax=hi)
        red = row[3].imshow(difference, cmap="RdBu_r", vmin=-(hi - lo) / 10, vmax=(hi - lo) / 10)
        row[0].set_ylabel(f"{sample['case']}, slice {sample['slice']}")
    for axis, title in zip(axes[0], ("MR", "synthetic CT", "CT", "synthetic CT - CT"), strict=True):
        axis.set_title(title)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
    figure.colorbar(shown, ax=axes[:, 0], location="bottom", label="scaled")
    figure.colorbar(grey, ax=axes[:, 1:3], location="bottom", label="HU", aspect=40)
    figure.colorbar(red, ax=axes[:, 3], location="bottom", label="HU", extend="both")
    figure.savefig(path)


if __name__ == "__main__":
    typer.run(main)
