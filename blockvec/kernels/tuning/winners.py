"""Stored winners: the kernel and configuration that was the fastest for each problem.

Two stores: tables that ship with the package (``tuned/<architecture>/<operation>.json``), and the user's own,
one file a problem under ``tuned`` in the cache folder, which come first. Whatever cannot be read counts as
missing, and so does a configuration that this version does not know or this device does not take.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

from ...system.frozen import frozen
from ..cache import load_json, store_json
from ..device import DeviceInfo
from ..families import CONFIGURED, config_from, is_valid
from ..family import AnyFamily
from ..problem import BetaClass, Problem, SpmmvProblem, TsmmProblem, TsmttsmProblem
from ..roofline import LEAST_BYTES, traffic
from .choices import choose

TunedProblem: TypeAlias = TsmttsmProblem | TsmmProblem | SpmmvProblem

_PROBLEM, _KERNEL = (
    '{"problem": ',
    ', "kernel": ',
)  # how a line of a table begins, and what follows its problem
ANY_PITCH = 0  # leading dimension that stands for all that exceed the width


@frozen
class Winner:
    """The best kernel measured for a problem.

    Attributes
    ----------
    kernel : str
        Name of a family or of a vendor's kernel.
    config : object or None
        The family's configuration; None for a vendor's kernel.
    rows : int
        Of the tall operands it was measured with.
    time_s : float
        Its median time in seconds.
    fraction : float
        Of the roofline measured in the same run.
    origin : str
        Where the record comes from, as text for `explain`.
    """

    kernel: str
    config: Any
    rows: int
    time_s: float
    fraction: float
    origin: str

    def record(self, problem: Problem) -> dict[str, Any]:
        """Convert the winner of a representative problem to its stored form."""
        return {
            "problem": _fields(problem),
            "kernel": self.kernel,
            "config": None if self.config is None else dataclasses.asdict(self.config),
            "rows": self.rows,
            "time_s": self.time_s,
            "fraction": self.fraction,
        }


def representative(problem: Problem) -> TunedProblem | None:
    """Return the representative of all problems with the same tuned choice; None for untuned kinds.

    Numbers of rows do not matter once operands are large, nor does the pitch of a view, the value of
    alpha, or conjugation. Sparse matrices of one pattern and nearly as many entries a row are alike, and a
    product is run as others of its kind (`SpmmvProblem.kind`), or else as without what is fused, where
    registers allow.
    """
    if not isinstance(problem, TunedProblem) or traffic(problem).total_bytes < LEAST_BYTES:
        return None
    if isinstance(problem, SpmmvProblem):
        return _matrices_alike(problem) if problem.stored else None
    in_place = isinstance(problem, TsmmProblem) and problem.inplace
    second = problem.M if in_place else problem.N
    lda = problem.M if problem.lda == problem.M else ANY_PITCH
    ldb = second if problem.ldb == second else ANY_PITCH
    if isinstance(problem, TsmttsmProblem):
        return dataclasses.replace(
            problem, K=0, lda=lda, ldb=ldb, conj=problem.conj and problem.same, alpha="one", beta="zero"
        )
    beta: BetaClass = "zero" if problem.beta == "zero" else "general"
    return dataclasses.replace(problem, K=0, lda=lda, ldb=ldb, alpha="one", beta=beta)


def _matrices_alike(problem: SpmmvProblem) -> SpmmvProblem:
    average = max(1.0, problem.nnz / problem.n_rows)
    return dataclasses.replace(
        problem.kind,
        n_rows=1,
        n_cols=1,
        nnz=round(2 ** (round(4 * math.log2(average)) / 4)),  # steps of a fifth
        ldx=problem.width if problem.ldx == problem.width else ANY_PITCH,
        ldy=problem.width if problem.ldy == problem.width else ANY_PITCH,
        longest=0,
    )


def configure_sparse(
    family: AnyFamily, problem: SpmmvProblem, device: DeviceInfo, cache_dir: Path | None
) -> tuple[Any, str]:
    """Choose a family's configuration for a sparse product; also return the origin of the choice."""
    winner = find(problem, device, cache_dir)
    if winner is None or winner.kernel != family.name:
        return choose(family, problem, device), "the model's choice"
    return winner.config, winner.origin


def find(problem: Problem, device: DeviceInfo, cache_dir: Path | None) -> Winner | None:
    """Return the stored winner of a problem, the user's or else that of the package.

    Without a cache folder nothing that was measured counts.
    """
    key = representative(problem)
    if cache_dir is None or key is None or device.kind != "cuda":
        return None
    keys = [key]
    if isinstance(key, SpmmvProblem):  # else as without fused operations, or with values beside the columns
        keys += [key.plain, *(dataclasses.replace(k, coded=False) for k in (key, key.plain) if key.coded)]
    winner = next((w for w in (_find(k, device, cache_dir) for k in keys) if w is not None), None)
    if winner is None or winner.config is None:
        return winner
    return winner if is_valid(CONFIGURED[winner.kernel], problem, winner.config, device) else None


@functools.lru_cache(maxsize=4096)
def _find(key: TunedProblem, device: DeviceInfo, cache_dir: Path) -> Winner | None:
    own = load_json(_path(key, device, cache_dir))
    if own is not None and own.get("problem") == _fields(key):
        winner = _parse(own, f"tuned on this {device.name}")
        if winner is not None:
            return winner
    shipped = shipped_records(device.architecture).get(json.dumps(_fields(key)))
    return None if shipped is None else _parse(json.loads(shipped[0]), shipped[1])


def store(problem: Problem, winner: Winner, device: DeviceInfo, cache_dir: Path) -> bool:
    """Store a winner in the user's cache folder; return False if it cannot be written."""
    key = representative(problem)
    if key is None:
        return False
    stored = store_json(_path(key, device, cache_dir), winner.record(key))
    _find.cache_clear()
    return stored


def _fields(key: Problem) -> dict[str, Any]:
    """Convert the fields of a problem to JSON values."""
    values = dataclasses.asdict(key)
    if not values.get("coded", True):
        del values["coded"]  # records of earlier versions lack it
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _problem(kind: Any, fields: dict[str, Any]) -> Any:
    """Rebuild a problem from its JSON values."""
    return kind(
        **{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    )


def _path(key: TunedProblem, device: DeviceInfo, cache_dir: Path) -> Path:
    text = json.dumps(_fields(key), sort_keys=True)
    size = f"w{key.width}" if isinstance(key, SpmmvProblem) else f"m{key.M}-n{key.N}"
    name = f"{key.operation}-{key.dtype}-{size}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    return cache_dir / "tuned" / device.fingerprint / f"{name}.json"


def _parse(record: Any, origin: str) -> Winner | None:
    try:
        kernel, config = str(record["kernel"]), record["config"]
        numbers = int(record["rows"]), float(record["time_s"]), float(record["fraction"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    if not all(0 < number < math.inf for number in numbers):
        return None
    if config is None:
        return None if kernel in CONFIGURED else Winner(kernel, None, *numbers, origin)
    config = config_from(kernel, config)
    return None if config is None else Winner(kernel, config, *numbers, origin)


_KINDS: dict[str, type[TunedProblem]] = {"tsmm": TsmmProblem, "spmmv": SpmmvProblem}


def shipped(architecture: str) -> dict[Problem, Winner]:
    """Return the shipped winners of an architecture by their representative problems."""
    found: dict[Problem, Winner] = {}
    for line, origin, kind in shipped_records(architecture).values():
        record = json.loads(line)
        if (winner := _parse(record, origin)) is not None:
            found[_problem(kind, record["problem"])] = winner
    return found


@functools.cache
def shipped_records(architecture: str) -> dict[str, tuple[str, str, type[TunedProblem]]]:
    """Find the shipped records, by the text of their problem, with their origins and the types of problems.

    Records are lines of text, as `tests/benchmarks/tuned_tables.py` writes them: to parse all takes 20 times
    as long.
    """
    folder = resources.files("blockvec.kernels") / "tuned" / architecture
    if not folder.is_dir():
        return {}
    found: dict[str, tuple[str, str, type[TunedProblem]]] = {}
    for file in folder.iterdir():
        environment, _, *lines = file.read_text(encoding="utf-8").splitlines()
        kind = _KINDS.get(file.name.removesuffix(".json"), TsmttsmProblem)
        device = json.loads(environment.removesuffix(",") + "}")["environment"]["device"]
        for line in lines[:-1]:
            problem = line[len(_PROBLEM) : line.index(_KERNEL)]
            found[problem] = line.removesuffix(","), f"shipped, measured on {device}", kind
    return found


def refusal(operation: str, record: dict[str, Any], device: DeviceInfo) -> str | None:
    """Explain why the winner of a stored record cannot run on a device; None if it can."""
    winner = _parse(record, "")
    if winner is None:
        return f"this version knows no configuration {record['config']} of {record['kernel']}"
    kind = _KINDS.get(operation, TsmttsmProblem)
    if winner.config is None or kind is SpmmvProblem:
        return None
    problem = dataclasses.replace(_problem(kind, record["problem"]), K=winner.rows)
    refused: str | None = CONFIGURED[winner.kernel].refuse(problem, winner.config, device)
    return refused
