"""Checkpoints: files with the state of an iteration, from which a run can be resumed.

A file holds a fingerprint of the problem (options, type, size, version, and the product of A and a fixed
vector), the state of the iteration between two restarts, and a checksum per part. It is replaced atomically,
and read completely before any part of it is used. The state includes that of the random generator: a resumed
run gives the same bits as an uninterrupted one.
"""

from __future__ import annotations

import json
import os
import time
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from blockvec.errors import FormatError, OptionError

from ..blocks import Array, Block, Operator, project_out, random_block, to_host

FORMAT = "blockvec checkpoint 1"
STATE = "state/"
WRITING_SHARE = 0.05  # upper bound of the share of the time for writing
REMEDY = "give another file, or delete this one to start anew"
BROKEN = (OSError, ValueError, KeyError, TypeError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


class Checkpoint:
    """The file of one iteration.

    Two writings are at least `interval_s` apart, more if writing takes more than a twentieth of the time.
    """

    def __init__(self, path: str | os.PathLike[str], interval_s: float) -> None:
        self.path, self.interval_s = Path(path), interval_s
        self.problem: dict[str, Any] = {}  # fingerprint, as numbers and text; set before `load` and `save`
        self.image: Array = np.zeros((0, 1))  # from `probe`; set before `load` and `save`
        self._stages: list[Checkpoint] = []
        self._next_s = time.monotonic() + interval_s
        if not self.path.parent.is_dir() or self.path.is_dir():
            raise OptionError(f"checkpoint: cannot write {str(self.path)!r}; its folder must exist.")

    def stage(self, name: str) -> Checkpoint:
        """Form the checkpoint of a part of a solve, in a file of its own."""
        stage = Checkpoint(f"{self.path}.{name}", self.interval_s)
        self._stages.append(stage)
        return stage

    def load(self) -> dict[str, Any] | None:
        """Read the state from the file; None if there is no file.

        One that is broken, or belongs to another problem, other options, or another version, is refused.
        """
        if not self.path.exists():
            return None
        try:
            with self.path.open("rb") as file, np.load(file, allow_pickle=False) as members:
                arrays = {name: members[name] for name in members.files}
            header = json.loads(arrays.pop("header").tobytes())
            if header["format"] != FORMAT:
                raise ValueError(f"its format is {header['format']!r}, not {FORMAT!r}")
            written, image = header["problem"], arrays.pop("image")
            state = header["state"] | {name.removeprefix(STATE): array for name, array in arrays.items()}
        except BROKEN as error:
            raise FormatError(
                f"checkpoint: {str(self.path)!r} is broken or no checkpoint ({error}); {REMEDY}."
            ) from error
        self._compare(written, image)
        return state  # type: ignore[no-any-return]

    def _compare(self, written: Mapping[str, Any], image: Array) -> None:
        """Refuse a file of another problem."""
        for name in sorted(written.keys() | self.problem.keys()):
            then, now = written.get(name), self.problem.get(name)
            if then != now:
                raise OptionError(
                    f"checkpoint: {str(self.path)!r} was written with {name} = {then!r}, now it is {now!r}; "
                    f"resume with the same, or {REMEDY}."
                )
        # Another device or kernel may round differently: only half of the digits are compared.
        scale = float(np.abs(self.image).max(initial=0.0))
        allowed = float(np.sqrt(np.finfo(self.image.dtype).eps)) * scale
        if image.shape != self.image.shape or not np.abs(image - self.image).max(initial=0.0) <= allowed:
            raise OptionError(
                f"checkpoint: {str(self.path)!r} belongs to another matrix of the same size (or another "
                f"orthogonal_to); {REMEDY}."
            )

    def save(self, snapshot: Callable[[], dict[str, Any]], *, now: bool = False) -> None:
        """Write the state from `snapshot` if the interval has passed, or `now`."""
        begin_s = time.monotonic()
        if not now and begin_s < self._next_s:
            return
        state = snapshot()
        arrays = {STATE + name: value for name, value in state.items() if isinstance(value, np.ndarray)}
        plain = {name: value for name, value in state.items() if STATE + name not in arrays}
        header = {"format": FORMAT, "problem": self.problem, "state": plain}
        text = json.dumps(header, default=lambda value: value.tolist())
        write_npz(self.path, header=np.frombuffer(text.encode(), np.uint8), image=self.image, **arrays)
        end_s = time.monotonic()
        self._next_s = end_s + max(self.interval_s, (end_s - begin_s) / WRITING_SHARE)

    def remove(self) -> None:
        """Delete the file and those of its stages."""
        for stage in self._stages:
            stage.remove()
        for path in (self.path, _part(self.path)):
            path.unlink(missing_ok=True)


def write_npz(path: Path, **arrays: Any) -> None:
    """Write arrays to a .npz file atomically, also if the machine stops."""
    part = _part(path)
    try:
        with part.open("wb") as file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _part(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")


def probe(operator: Operator, like: Block, locked: Block | None) -> Array:
    """Apply an operator to a fixed vector, project out locked columns, and copy the result to the host."""
    image = project_out(locked, operator.apply(random_block(like, 1, 0)))
    return np.array(to_host(image.array))
