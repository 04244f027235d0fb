"""Checkpoints: files with the state of an iteration, from which a run can be resumed.

A file holds a fingerprint of the problem (options, type, size, version, and the product of A and a fixed
vector), the state of the iteration between two restarts, and a digest of all of it. It is replaced
atomically, and its format, digest and fingerprint are checked before its state is used. The state includes
that of the random generator: a resumed run gives the same bits as an uninterrupted one. A file that is no
checkpoint is refused before the solve, and only one that this run has written or read is deleted.

Its arrays are named, as `numpy.savez` writes them, in panels of rows. If rows are split over processes, the
file is that of process 0, which receives the rows of the others in panels and writes them, or reads them and
sends them to their owners. Any number of processes can resume from it; at the same number, the results have
the same bits.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np

from blockvec import RowLayout
from blockvec.errors import FormatError, OptionError
from blockvec.parallel import Communicator
from blockvec.system.files import check_output, replaced

from ..blocks import Array, Block, Operator, project_out, to_host
from .processes import from_first, largest

FORMAT = "blockvec checkpoint 6"  # another number where the file, the fingerprint or the state changes
HEAD_BYTES = 4096  # bytes at the beginning of a file that tell its format
DIGEST_BYTES = hashlib.sha256().digest_size
PANEL_BYTES = 1 << 24
STATE, IMAGE = "state/", "image"  # names of arrays
BLOCKS = {"basis", "next", "images", "preconditioned_from", "preconditioned_to"}  # of states: rows as A has
WRITING_SHARE = 0.05  # upper bound of the share of the time for writing
REMEDY = "give another file, or delete this one to start anew"

# An array that is written: its header, and its rows in panels, on the first process those of all.
Part: TypeAlias = tuple[dict[str, Any], Iterator[Array]]


def write(file: IO[bytes], parts: Mapping[str, Part]) -> None:
    """Write parts in their order, and the digest of what was written."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, (header, panels) in parts.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array_header_1_0(stream, header)
                for panel in panels:
                    stream.write(np.ascontiguousarray(panel).data)
    file.flush()
    with open(file.name, "rb") as written:
        file.write(hashlib.file_digest(written, "sha256").digest())


def _has_rows(name: str) -> bool:
    return name == IMAGE or name.removeprefix(STATE) in BLOCKS


def _panel_rows(array: Array) -> int:
    return max(1, PANEL_BYTES // max(1, int(array.shape[1]) * array.itemsize))


class Checkpoint:
    """The file of one iteration.

    Two writings are at least `interval_s` apart, more if writing takes more than a twentieth of the time. All
    processes that share the rows call the methods.
    """

    def __init__(
        self, path: str | os.PathLike[str], interval_s: float, comm: Communicator | None = None
    ) -> None:
        self.path, self.interval_s, self.comm = Path(path), interval_s, comm
        self.has_file = comm is None or comm.rank == 0
        self.problem: dict[str, Any] = {}  # fingerprint, as numbers and text; set before `load` and `save`
        self.image: Array = np.zeros((0, 1))  # from `probe`; set before `load` and `save`
        self.layout: RowLayout | None = None  # of the image and of blocks; set before `load` and `save`
        self._stages: list[Checkpoint] = []
        self._next_s = time.monotonic() + interval_s
        self._is_own = False  # whether this run has written or read the file
        if not self.has_file:
            return
        check_output("checkpoint", path)
        if self.path.exists():
            self._require_intact()  # also before a solve in stages, which uses other files

    def stage(self, name: str) -> Checkpoint:
        """Form the checkpoint of a part of a solve, in a file of its own."""
        stage = Checkpoint(f"{self.path}.{name}", self.interval_s, self.comm)
        self._stages.append(stage)
        return stage

    def load(self) -> dict[str, Any] | None:
        """Read the state from the file; None if there is no file.

        One that is broken, or belongs to another problem, other options, or another version, is refused.
        """
        if not from_first(self.comm, self.has_file and self.path.exists()):
            return None
        with zipfile.ZipFile(self.path) if self.has_file else nullcontext() as archive:
            header = json.loads(self._array(archive, "header").tobytes())
            for name in sorted(header["problem"].keys() | self.problem.keys()):
                then, now = header["problem"].get(name), self.problem.get(name)
                if then != now:
                    raise OptionError(
                        f"checkpoint: {str(self.path)!r} was written with {name} = {then!r}, now it is "
                        f"{now!r}; resume with the same, or {REMEDY}."
                    )
            files = from_first(self.comm, None if archive is None else archive.namelist())
            names = (name.removesuffix(".npy") for name in files)
            arrays = {name: self._array(archive, name) for name in names if name != "header"}
        # Another device or kernel may round differently: only half of the digits are compared.
        image, error, scale = arrays.pop(IMAGE), np.inf, np.abs(self.image).max(initial=0.0)
        if image.shape == self.image.shape and image.dtype == self.image.dtype:
            with np.errstate(all="ignore"):
                error = np.abs(image - self.image).max(initial=0.0)
        error, scale = (largest(self.layout, value) for value in (error, scale))
        if not error <= np.sqrt(np.finfo(self.image.dtype).eps) * scale:
            raise OptionError(
                f"checkpoint: {str(self.path)!r} belongs to another matrix of the same size (or another "
                f"orthogonal_to); {REMEDY}."
            )
        self._is_own = True
        state: dict[str, Any] = header["state"]
        return state | {name.removeprefix(STATE): array for name, array in arrays.items()}

    def _array(self, archive: zipfile.ZipFile | None, name: str) -> Array:
        """Read an array of the first process's file; of rows of A those of this process."""
        layout = self.layout
        with nullcontext() if archive is None else archive.open(f"{name}.npy") as stream:
            if layout is None or layout.comm is None or not _has_rows(name):
                array = None if stream is None else np.lib.format.read_array(stream, allow_pickle=False)
                return np.asarray(from_first(self.comm, array))
            header = None
            if stream is not None:
                np.lib.format.read_magic(stream)
                header = np.lib.format.read_array_header_1_0(stream)
            (_, columns), _, dtype = from_first(self.comm, header)

            def next_panel(count: int) -> Array:
                assert stream is not None
                data = stream.read(count * columns * dtype.itemsize)
                return np.frombuffer(data, dtype).reshape(count, columns)

            rows = np.empty((layout.n_local, columns), dtype)
            layout.fill(rows, next_panel, _panel_rows(rows))
            return rows

    def _require_intact(self) -> None:
        """Refuse a file that is broken or no checkpoint, before any part of it is used."""
        reason = ""
        try:
            with self.path.open("rb") as file:
                if written := re.search(rb'"format": "(.*?)"', file.read(HEAD_BYTES)):
                    name = written[1].decode(errors="replace")
                    data: Any = np.memmap(file, np.uint8, "r")
                    digest = hashlib.sha256(data[:-DIGEST_BYTES]).digest()
                    if name == FORMAT and digest == data[-DIGEST_BYTES:].tobytes():
                        return
                    reason = "" if name == FORMAT else f" (its format is {name!r}, not {FORMAT!r})"
        except OSError as error:
            reason = f" ({error})"
        raise FormatError(
            f"checkpoint: {str(self.path)!r} is broken or no checkpoint of this version{reason}; {REMEDY}."
        )

    def save(self, snapshot: Callable[[], dict[str, Any]], *, now: bool = False) -> None:
        """Write the state from `snapshot` if the interval has passed, or `now`."""
        begin_s = time.monotonic()
        if not largest(self.layout, now or begin_s >= self._next_s):
            return
        state = snapshot()
        arrays: Any = {STATE + name: value for name, value in state.items() if isinstance(value, np.ndarray)}
        plain = {name: value for name, value in state.items() if STATE + name not in arrays}
        header = {"format": FORMAT, "problem": self.problem, "state": plain}
        text = json.dumps(header, default=lambda value: value.tolist())
        arrays |= {"header": np.frombuffer(text.encode(), np.uint8), IMAGE: self.image}
        parts: dict[str, Part] = {}
        for name, array in sorted(arrays.items()):
            shape, panels = array.shape, iter([array])
            if _has_rows(name):
                layout = RowLayout.equal(len(array), None) if self.layout is None else self.layout
                shape, panels = (layout.n_global, *shape[1:]), layout.panels(array, _panel_rows(array))
            descr = np.lib.format.dtype_to_descr(array.dtype)
            parts[name] = {"descr": descr, "fortran_order": False, "shape": shape}, panels
        failure = None
        if self.has_file:
            try:
                with replaced(self.path) as file:
                    write(file, parts)
                self._is_own = True
            except OSError as error:
                failure = error
        for _, panels in parts.values():  # what this process sends, or the file has not taken after a failure
            for _ in panels:
                pass
        if failure is not None:  # the solve is worth more than its checkpoint
            self._warn(failure, "the solve goes on")
        end_s = time.monotonic()
        self._next_s = end_s + max(self.interval_s, (end_s - begin_s) / WRITING_SHARE)

    def remove(self) -> None:
        """Delete the file and those of its stages, as far as this run has written or read them."""
        for stage in self._stages:
            stage.remove()
        if self._is_own and self.has_file:
            try:
                self.path.unlink(missing_ok=True)
            except OSError as error:
                self._warn(error, "it is left")
            self._is_own = False

    def _warn(self, error: OSError, consequence: str) -> None:
        reason = error.strerror or str(error)
        warnings.warn(f"checkpoint: {str(self.path)!r}: {reason}; {consequence}.", stacklevel=2)


def probe(operator: Operator, like: Block, locked: Block | None) -> Array:
    """Apply an operator to a fixed vector, project out locked columns, and copy the result to the host."""
    image = project_out(locked, operator.apply(like.random_like(1, 0)))
    return np.array(to_host(image.array))
