"""What the doctor's table and its HTML report both say."""

from __future__ import annotations

from hyperslab.advice import KindAdvice, Machine, PatternAdvice, RepackOption
from hyperslab.advice.words import duration
from hyperslab.cli.terminal import size, times

__all__ = ["WAYS", "machine_words", "names", "notes", "of_now", "rates_words", "seconds", "storage"]

# Of `PatternAdvice.predicted_s`, in the order of columns.
WAYS = ("h5py", "h5py_in_order", "hyperslab", "hyperslab_in_order")
_MOST_NAMES = 2


def names(kind: KindAdvice) -> str:
    """Return the paths of a kind's datasets, the first of them."""
    shown = ", ".join(kind.datasets[:_MOST_NAMES])
    n_more = len(kind.datasets) - _MOST_NAMES
    return f"{shown} and {n_more} more" if n_more > 0 else shown


def storage(kind: KindAdvice) -> str:
    """Return how a kind is stored, e.g. "(256, 256, 60), float32, chunks (32, 32, 8), gzip"."""
    how = [str(kind.shape), kind.dtype]
    how.append(f"chunks {kind.chunks}" if kind.chunks else kind.storage)
    how += ["+".join(kind.filters)] if kind.filters else []
    return ", ".join(how)


def rates_words(kind: KindAdvice) -> str:
    """Return how fast a kind is decoded."""
    one, everyone = (kind.decode_bytes_per_s[key] for key in ("one_thread", "all_threads"))
    return (
        f"{size(kind.stored_nbytes)} in the file, {size(kind.decoded_nbytes)} in memory; "
        f"{'decoded' if kind.filters else 'copied'} at {size(one)}/s by one thread, "
        f"{size(everyone)}/s by all"
    )


def machine_words(machine: Machine) -> str:
    """Return what the times are of, and how fast the disk is."""
    match machine.disk_cold:
        case True:
            disk = f"Disk: {size(machine.disk_bytes_per_s)}/s, cold"
        case False:
            disk = "Disk: not measured, since the system would not forget the file"
        case None:
            disk = f"Read at {size(machine.disk_bytes_per_s)}/s, perhaps from memory"
    system = f" ({machine.file_system})" if machine.file_system else ""
    return (
        f"Times are of requests from memory, by {machine.threads} threads and HDF5 {machine.hdf5}, "
        f"caches empty; in brackets: predicted. {disk}{system}."
    )


def notes(kind: KindAdvice, machine: Machine) -> list[str]:
    """Return what is worth knowing about the patterns."""
    found = []
    main = kind.patterns[0]
    if main.guessed and 1 in main.region and main.access == main.as_stored:
        found.append(f"{main.access} is a guess from the shape; --access says otherwise.")
    for pattern in kind.patterns:
        if pattern.requests_per_slab >= 1.5:
            ours, theirs = pattern.fits_our_cache, pattern.fits_h5py_cache
            fits = {
                (True, True): "fits hyperslab's cache and h5py's",
                (True, False): "fits hyperslab's cache, not h5py's",
                (False, False): "fits neither cache",
            }.get((ours, theirs), "fits h5py's cache, not hyperslab's")
            found.append(
                f"{pattern.access}: a slab of {size(pattern.slab_nbytes)} serves "
                f"{pattern.requests_per_slab:.0f} requests and {fits} ({_mebi(machine)})."
            )
        if pattern.read_amplification >= 1.5 and not pattern.chunks_touched:
            found.append(
                f"{pattern.access}: the disk has to read {size(pattern.read_nbytes)}, "
                f"{pattern.read_amplification:.0f} times what is used."
            )
    if main.disk_s is not None and main.disk_s > 0.5 * main.ours_s:
        found.append(
            f"{main.access}: where it is not in memory yet, the disk takes "
            f"{duration(main.disk_s)} more."
        )
    return found


def of_now(option: RepackOption, kind: KindAdvice) -> str:
    """Return the size after a repack by the size before, e.g. "2.1×"."""
    ratio = option.stored_nbytes / max(1, kind.stored_nbytes)
    return times(ratio) if ratio >= 0.005 else "<0.01×"


def _mebi(machine: Machine) -> str:
    return f"{machine.cache_nbytes >> 20} MiB, {machine.h5py_cache_nbytes >> 20} MiB"


def seconds(pattern: PatternAdvice, by: str) -> str:
    """Return what was measured, or, in brackets, what is predicted."""
    if pattern.measured_s is not None and by in pattern.measured_s:
        return duration(pattern.measured_s[by])
    predicted = pattern.predicted_s[by]
    if predicted is None:
        return "cannot"
    return f"({duration(predicted)})"
