"""The application: its commands, its exit statuses, and how errors and warnings look."""

from __future__ import annotations

import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import hyperslab
from hyperslab.cli import bench, convert, demo, doctor, info, pack, repack, verify, view
from hyperslab.cli.terminal import examples, exit_status, show_error, show_warning
from hyperslab.errors import (
    FileInUseWarning,
    HyperslabError,
    MetadataWarning,
    PerformanceWarning,
)

__all__ = ["app"]


class _Group(TyperGroup):
    """Ends every error that we foresee as one message, and shows warnings as notes."""

    def invoke(self, ctx: Any) -> Any:
        with warnings.catch_warnings():
            for category in (FileInUseWarning, MetadataWarning, PerformanceWarning):
                warnings.filterwarnings("default", category=category)
            warnings.showwarning = show_warning
            try:
                return super().invoke(ctx)
            except BrokenPipeError:
                raise  # whoever reads our output has seen enough
            except (HyperslabError, OSError) as error:
                show_error(error)
                raise typer.Exit(exit_status(error)) from None


app = typer.Typer(
    cls=_Group,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        ("hyperslab info cohort.h5", "what is in a file"),
        ("hyperslab verify cohort.h5", "is it whole, and if not, what of it is"),
        ("hyperslab pack Task1 cohort.h5", "folders of medical images as a file to train on"),
        ("hyperslab view cells.ims", "an image in a window"),
        ("hyperslab bench cohort.h5", "how long reads take, by h5py and by hyperslab"),
        ("hyperslab demo", "if you have no file at hand"),
    )
    + "\n\nExit status: 0 all is well, 1 a problem was found, 2 wrong use.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hyperslab {hyperslab.__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """HDF5 image volumes at the speed of the hardware."""


def _unwrapped(text: str) -> str:
    """Join the lines of each paragraph, which typer would keep apart."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


# In the order in which --help lists them.
for _module in (info, doctor, repack, convert, pack, verify, view, bench, demo):
    app.command(
        _module.__name__.rpartition(".")[2],
        help=_unwrapped(_module.command.__doc__ or ""),
        epilog=_module.EXAMPLES,
    )(_module.command)
