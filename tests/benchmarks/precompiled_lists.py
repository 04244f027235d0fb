"""Find the lists of kernels that ship with blockvec for its methods, from solves on a pretended GPU.

    python tests/benchmarks/precompiled_lists.py            # writes blockvec/kernels/precompiled/*.json
    python tests/benchmarks/precompiled_lists.py --check    # prints what the lists in place miss and waste

Solves of several block sizes and numbers of pairs are recorded. Every request is written in all ways that the
named sizes of its solve allow, and the entries that together cover most requests of all solves, and stand for
few others, make the list.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from blockvec import models
from blockvec.kernels.requests import EXTENTS, MATRIX, OPERANDS, Entry, decode, evaluate, type_names
from blockvec.precompile import shipped
from solvers import eigsh
from tests.pretended_gpu import Solve, accepts, pretended_gpu

__all__ = ["missed_and_wasted", "solves"]

FOLDER = Path(__file__).resolve().parents[2] / "blockvec" / "kernels" / "precompiled"
BLOCK_SIZES, PAIRS = (1, 2, 3, 4, 8), (2, 5, 20)
WASTE = 0.3  # of the worth of a kernel that is compiled ahead, for one that nobody asks for
LEAST = 0.08  # of the solves that an entry must serve
OPTIONS: dict[str, dict[str, Any]] = {
    "lanczos": {"method": "lanczos", "which": "SA"},
    "filter": {"method": "filter", "which": "SA"},
    "jd": {"method": "jd", "which": "SA"},
}
NO_LISTS = ("start", "locked", "inside", "n")  # sizes that entries do not refer to


def solves(
    method: str, block_sizes: Iterable[Any], pairs: Iterable[int], dtype: str, n: int = 12, **options: Any
) -> Iterator[Solve]:
    """Yield the solves that `eigsh` runs for each block size and number of pairs."""
    A = models.model(f"laplace3d:n={n}").astype(dtype)
    for b, k in itertools.product(block_sizes, pairs):
        with pretended_gpu() as watched, np.errstate(all="ignore"):
            how = {"rng": 0, "tol": 1e-8, "on_unconverged": "return", "block_size": b, **options}
            eigsh(A, k, device="gpu", **OPTIONS[method], **how)
        yield from watched.solves


def missed_and_wasted(solve: Solve, entries: Iterable[Entry]) -> tuple[set[Any], set[Any]]:
    """Compare what a list stands for in a solve with what the solve asked for."""
    listed = {
        request for entry in entries for request in decode(entry, solve.sizes, solve.dtype, solve.product)
    }
    return set(solve.requests) - listed, {
        request for request in listed - set(solve.requests) if accepts(request)
    }


def spellings(value: int, sizes: Mapping[str, int], is_ranged: bool) -> list[str]:
    """Write a number of columns in the ways that the sizes of a solve allow."""
    units = [name for name in ("b", "p") if name in sizes]
    found = [str(value)] if value <= 2 or not units else []  # the check of a matrix has fixed widths
    for unit in units:
        found += [f"{j}{unit}" for j in range(1, 4 if unit == "b" else 9) if value == j * sizes[unit]]
    for name in sizes:
        if name not in (*NO_LISTS, *units) and value:
            found += [
                f"{name}{j:+}b" if j else name for j in (-1, 0, 1, 2) if value == sizes[name] + j * sizes["b"]
            ]
    ends = {"b": ("capacity-1b", "capacity"), "p": ("capacity",)}
    for unit in units if is_ranged else ():
        if value % sizes[unit] == 0:
            found += [f"1{unit}..{end}" for end in ends[unit] if value <= evaluate(end, sizes)]
    return found


def entries_for(request: Any, offsets: Mapping[str, int], solve: Solve) -> Iterator[Entry]:
    """Yield the entries that stand for a request of a solve, maybe among others."""
    kind, sizes = type(request), solve.sizes
    operands = OPERANDS.get(kind, {})
    left_out = set(MATRIX) if kind.__name__ == "SpmmvProblem" else set()
    types = {dtype: name for name, dtype in reversed(type_names(solve.dtype).items())}
    plain: dict[str, Any] = {}
    for field in dataclasses.fields(request):
        value = getattr(request, field.name)
        if field.name in left_out or EXTENTS.fullmatch(field.name) or field.name.startswith("align_"):
            continue
        if dataclasses.is_dataclass(value):
            value = {"is_complex": value.is_complex, "columns": types.get(value.columns, value.columns)}
            plain[field.name] = value
        elif value != field.default:
            plain[field.name] = types.get(value, value) if isinstance(value, str) else value
    if not operands:
        yield [kind.__name__, plain]
        return
    if hasattr(request, "K"):
        plain["K"] = "n"
    widths = sorted({width for width, _ in operands.values()})
    for spelled in itertools.product(*(spellings(getattr(request, w), sizes, w == "M") for w in widths)):
        named = dict(zip(widths, spelled, strict=True))
        choices: list[list[dict[str, str]]] = []
        for letter, (width, _) in operands.items():
            ld = getattr(request, f"ld{letter}")
            if ld == getattr(request, width) and ".." not in named[width]:
                choices.append([{f"ld{letter}": named[width], f"offset_{letter}": "0"}])
            elif ld:
                at = spellings(offsets.get(letter, 0), sizes, False)
                is_fixed = not {"b", "p"} & sizes.keys()
                pitches = [text for text in spellings(ld, sizes, False) if is_fixed or not text[0].isdigit()]
                choices.append(
                    [{f"ld{letter}": p, f"offset_{letter}": o} for p in pitches for o in at or ["1b"]]
                )
        for combined in itertools.product(*choices):
            yield [kind.__name__, {**plain, **named, **{k: v for part in combined for k, v in part.items()}}]


def find_list(recorded: list[Solve]) -> list[Entry]:
    """Choose the entries of a list, the most useful first."""
    seen: Counter[str] = Counter()
    for solve in recorded:
        found = {
            json.dumps(entry)
            for request, offsets in solve.requests.items()
            for entry in entries_for(request, offsets, solve)
        }
        seen.update(found)
    least = max(2.0, LEAST * len(recorded))
    hits: dict[str, set[Any]] = {}
    wasted: dict[str, set[Any]] = {}
    for text, count in seen.items():
        if count < least:
            continue
        try:
            decoded = [
                list(decode(json.loads(text), solve.sizes, solve.dtype, solve.product)) for solve in recorded
            ]
        except ValueError:  # a width below one in some solve, as "b-2" where b is 1
            continue
        hits[text], wasted[text] = set(), set()
        for number, (solve, requests) in enumerate(zip(recorded, decoded, strict=True)):
            for request in requests:
                if request in solve.requests:
                    hits[text].add((number, request))
                elif accepts(request):
                    wasted[text].add((number, request))
    chosen: list[str] = []
    covered: set[Any] = set()
    spoiled: set[Any] = set()

    def gain(text: str) -> tuple[float, int]:
        return len(hits[text] - covered) - WASTE * len(wasted[text] - spoiled), -len(text)

    bounds = {text: gain(text) for text in hits}
    while bounds:
        text = max(bounds, key=bounds.__getitem__)
        if (now := gain(text)) < bounds[text]:
            bounds[text] = now
            if now[0] < least:
                del bounds[text]
            continue
        if now[0] < least:
            break
        del bounds[text]
        chosen.append(text)
        covered |= hits[text]
        spoiled |= wasted[text]
    return [json.loads(text) for text in chosen]


def main() -> None:
    """Record solves, and write the lists or compare with them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare the lists in place with other solves")
    parser.add_argument("--methods", nargs="+", default=list(OPTIONS), choices=list(OPTIONS))
    parser.add_argument("--precisions", nargs="+", default=["single", "double"])
    arguments = parser.parse_args()
    for precision, method in itertools.product(arguments.precisions, arguments.methods):
        bits, tol = {"single": (64, 1e-5), "double": (128, 1e-8)}[precision]
        if arguments.check:
            found = solves(method, (None, 1, 3, 6), (1, 3, 6, 10, 50), f"float{bits // 2}", n=11, tol=tol)
        else:  # in complex runs the types that entries name differ from each other
            found = solves(method, BLOCK_SIZES, PAIRS, f"complex{bits}", n=10, tol=tol)
        recorded: defaultdict[str, list[Solve]] = defaultdict(list)
        for solve in found:
            recorded[solve.method].append(solve)
        for kind, runs in recorded.items():
            if not arguments.check:
                write(FOLDER / precision / f"{kind}.json", find_list(runs))
            report(kind, runs)


def write(path: Path, entries: list[Entry]) -> None:
    """Write a list with one entry per line."""
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{{"entries": [\n{lines}\n]}}\n', encoding="utf-8")
    shipped.cache_clear()


def report(method: str, runs: list[Solve]) -> None:
    """Print what the list of a method misses and wastes in solves."""
    for solve in runs:
        missed, wasted = missed_and_wasted(solve, shipped(method, solve.dtype))
        what = {name: solve.sizes[name] for name in ("b", "k") if name in solve.sizes}
        counts = f"asked {len(solve.requests)} missed {len(missed)} wasted {len(wasted)}"
        print(method, solve.dtype, what, counts, flush=True)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
