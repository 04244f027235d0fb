"""The kinds of inputs: what a user, or a disk that failed, may hand to the library.

Each kind is a function of a folder that returns a function of a seeded generator: it draws one `Input`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import random
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator

from blockvec import BlockVector, as_operator, models
from blockvec.__main__ import main as blockvec_main
from blockvec.backends.host.backend import HOST
from blockvec.errors import BlockvecError
from blockvec.operations.profile import known_ceilings
from blockvec.system import config
from solvers import eigsh
from solvers.__main__ import main as eigs_main
from tests.contract.blocks import CEILINGS
from tests.fuzz.damage import TEXTS, altered, altered_array, damaged, odd_value


@dataclasses.dataclass(frozen=True)
class Input:
    """One input and what it may do.

    `execute` returns the name of its outcome if it returns at all. Anything that it raises must be one of
    `refusals`, the documented exceptions. It may write the files `may_write`.
    """

    text: str
    execute: Callable[[], str | None]
    refusals: tuple[type[BaseException], ...] = (BlockvecError,)
    may_write: frozenset[Path] = frozenset()


Draw = Callable[[random.Random], Input]


SOLVES: tuple[dict[str, Any], ...] = (
    {"which": "SA", "method": "lanczos", "block_size": 2, "ncv": 14},
    {"which": "SA", "method": "filter", "block_size": 2, "ncv": 16},
    {"which": "SA", "method": "jd", "tol": 1e-6},
    {"which": "BE", "method": "lanczos", "tol": 1e-8, "ncv": 12},
    {"sigma": 0.1, "method": "lanczos", "ncv": 9, "block_size": 1},
)

STAGES = ("", ".SA", ".LA", ".begun", ".factorised", ".continued", ".shift1", ".shift2", ".shift3")
"""Suffixes of the files of a solve in several stages."""


def checkpoints(folder: Path) -> Draw:
    """Checkpoints with damaged bytes, and with altered content whose checksums are right, not the digest."""
    A = models.model("laplace2d:nx=12,ny=9")
    truth = np.linalg.eigvalsh(A.toarray())
    common: dict[str, Any] = {"k": 4, "rng": 0, "checkpoint_interval": 0, "return_info": True}
    written: list[tuple[dict[str, Any], str, bytes]] = []

    for options in SOLVES:
        path = folder / "work" / "run"
        eigsh(A, **common, **options, checkpoint=path, callback=lambda state: True, on_unconverged="return")
        files = sorted(path.parent.iterdir())
        assert files, options
        for file in files:
            written.append((options, file.name, file.read_bytes()))
            file.unlink()

    def draw_one(draw: random.Random) -> Input:
        options, name, data = draw.choice(written)
        data = damaged(draw, data) if draw.random() < 0.3 else _altered_members(draw, data)
        for file in (folder / "work").iterdir():
            file.unlink()
        (folder / "work" / name).write_bytes(data)

        def resume() -> str:
            state = folder / "work" / "run"
            result = eigsh(A, **common, **options, checkpoint=state, on_unconverged="return", maxiter=60)
            if not result.converged.all():
                return "unconverged"
            values = np.r_[truth[:2], truth[-2:]] if options.get("which") == "BE" else truth[:4]
            assert np.allclose(result.eigenvalues, values, rtol=0, atol=1e-4), (result.eigenvalues, values)
            return "converged"

        files = frozenset(folder / "work" / f"run{stage}" for stage in STAGES)
        return Input(f"{options} {name}", resume, may_write=files)

    return draw_one


def _altered_members(draw: random.Random, data: bytes) -> bytes:
    with np.load(io.BytesIO(data)) as file:
        arrays = {name: file[name] for name in file.files}
    for _ in range(draw.choice((1, 1, 2))):
        name = draw.choice(sorted(arrays))
        if draw.random() < 0.1:
            del arrays[name]
        elif name != "header" and draw.random() < 0.5:
            arrays[name] = altered_array(draw, arrays[name])
        elif "header" in arrays:
            header = json.loads(arrays["header"].tobytes())
            text = json.dumps(altered(draw, header)).encode()
            arrays["header"] = np.frombuffer(text, np.uint8)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, array)
            archive.writestr(f"{name}.npy", member.getvalue())
    return stream.getvalue()


# Arguments


def eigsh_arguments(folder: Path) -> Draw:
    """Calls of eigsh with one to three arguments of other types, sizes and values."""
    matrices: dict[str, Any] = {}
    for name, A in {"real": models.laplace2d(nx=6, ny=5), "complex": models.hofstadter(nx=6, ny=5)}.items():
        matrices |= {name: A, f"{name} dense": A.toarray(), f"{name} coo": A.tocoo()}
        linear = LinearOperator(A.shape, matvec=A.dot, matmat=A.dot, dtype=A.dtype)
        matrices |= {f"{name} operator": as_operator(A), f"{name} linear operator": linear}
    reasonable: dict[str, tuple[Any, ...]] = {
        "k": (1, 2, 5, 29, 30, 31),
        "which": ("LM", "SA", "LA", "BE", "SM"),
        "sigma": (0.3, 4.0, -1),
        "M": (np.eye(30), sp.eye_array(30, format="csr"), 2 * np.eye(30)),
        "method": ("auto", "lanczos", "filter", "jd", "dense"),
        "mode": ("normal", "buckling", "cayley"),
        "v0": (np.ones(30), np.ones((30, 2))),
        "ncv": (3, 8, 20, 30, 31),
        "maxiter": (1, 3, 50),
        "tol": (0, 1e-3, 1e-8, 1),
        "rng": (0, 1),
        "block_size": (1, 2, 4, 30),
        "preconditioner": (np.eye(30), lambda X: X),
        "orthogonal_to": (np.ones(30), np.eye(30)[:, :3], np.eye(30)),
        "convergence": ("value", "norm", "absolute"),
        "norm": (8.0, 1e-3),
        "time_limit": (1e-6, 1.0),
        "callback": (lambda state: True, lambda state: None),
        "verify": ("auto", "always", "never"),
        "check_hermitian": (True, False),
        "return_eigenvectors": (True, False),
        "on_unconverged": ("raise", "warn", "return"),
        "OPinv": (np.eye(30), lambda X: X),
        "device": ("cpu",),
        "shape": ((30, 30), (30, 29), (30,)),
        "dtype": (float, "complex64"),
        "checkpoint_interval": (0, 60.0),
        "jd_options": (),
        "Minv": (),
    }

    flags = ("check_hermitian", "return_eigenvectors")

    def draw_one(draw: random.Random) -> Input:
        which = draw.choice(sorted(matrices))
        options: dict[str, Any] = {"rng": 0, "k": 3, "maxiter": 50, "return_info": True}
        for name in draw.sample(sorted(reasonable), draw.randint(1, 4)):
            good = reasonable[name]
            options[name] = draw.choice(good) if good and draw.random() < 0.65 else odd_value(draw)
            if name in flags and isinstance(options[name], np.ndarray):
                options[name] = True  # anything with a truth value is a flag
            if name == "callback" and callable(options[name]):
                options[name] = draw.choice(good)  # what other functions raise would reach the caller
        A = matrices[which] if draw.random() < 0.9 else odd_value(draw)

        def solve() -> str:
            result = eigsh(A, **options)
            good = result.converged
            assert np.isfinite(result.eigenvalues[good]).all()
            assert np.isfinite(result.residuals[good]).all()
            wanted = 6 if options["k"] is None else options["k"]
            assert len(result.eigenvalues) == wanted, "fewer pairs than were asked for"
            return "converged" if good.all() else "unconverged"

        return Input(f"A={which if A is matrices[which] else A!r}, {options}", solve)

    return draw_one


def block_arguments(folder: Path) -> Draw:
    """Blocks of anything, and operations of blocks with anything."""
    operator = as_operator(models.model("laplace2d:nx=4,ny=3"))
    arrays: tuple[Any, ...] = (
        *(np.ones((12, 3)), np.ones((12, 3), "float32"), np.ones((12, 3), "complex64"), np.ones((12, 1))),
        *(np.ones(12), np.ones((0, 3)), np.ones((12, 0)), np.ones((3, 3)), np.ones((3, 12)).T),
        *(np.ones((12, 6))[:, ::2], np.ones((12, 6))[:, 1:4], np.ones((24, 3))[::2], np.ones((2, 2, 2))),
        *(np.ones((12, 3), int), np.ones((12, 3), bool), np.ones((12, 3), object), np.ones((12, 3), ">f8")),
        *(np.full((12, 3), np.nan), np.ma.ones((12, 3)), np.ones((12, 3), "float16")),
        *(sp.eye_array(12), sp.eye_array(3, format="csr"), [[1.0, 2.0]] * 12, operator, "text", None),
    )

    def operand(draw: random.Random) -> Any:
        value = draw.choice(arrays) if draw.random() < 0.8 else odd_value(draw)
        if draw.random() < 0.5:
            with contextlib.suppress(BlockvecError):
                return BlockVector(value, copy=True)
        return value

    wrong = (BlockvecError, TypeError)
    indexing = (*wrong, IndexError, OverflowError)
    numpys = (*wrong, ValueError)  # NumPy and SciPy check shapes and seeds
    names = {"BlockVector": BlockVector, "as_operator": as_operator, "config": config, "operator": operator}
    calls = {
        **dict.fromkeys(
            (
                *("BlockVector(x)", "BlockVector(x, copy=True, dtype=y)", "as_operator(x)"),
                *("as_operator(x, shape=y)", "V.dot(x)", "V.dot(x, alpha=y)", "V.combine(x)"),
                *("V.combine(x, out=y)", "V.copy().axpy(y, x)", "V.copy().scale(x)", "V.column_dot(x)"),
                *("operator.apply(x, out=y)", "operator @ x", "V.H @ x", "V.T @ x", "V @ x"),
                *("BlockVector.zeros(x, y)", "config._replace(config.options(), {'threads': x})"),
            ),
            wrong,
        ),
        **dict.fromkeys(("x @ V", "V + x", "x * V", "V / x", "BlockVector.random(3, 2, rng=x)"), numpys),
        **dict.fromkeys(("V[x]", "V[x, y]"), indexing),
    }

    def draw_one(draw: random.Random) -> Input:
        name = draw.choice(sorted(calls))
        V = BlockVector(np.ones((12, 3), draw.choice(("float64", "complex64"))))
        x, y = operand(draw), operand(draw)
        if "zeros" in name:  # sizes up to the bound on memory are no error
            x, y = (min(v, 10**15) if type(v) is int and v > 1000 else v for v in (x, y))
        text = f"{name} with x = {x!r} ({type(x).__name__}), y = {y!r} ({type(y).__name__}), V {V!r}"

        def execute() -> None:
            with np.errstate(all="ignore"):
                eval(name, {**names, "V": V, "x": x, "y": y})

        return Input(text, execute, calls[name])

    return draw_one


# Commands


def commands(folder: Path) -> Draw:
    """Command lines of both programs, with files that are there, missing, folders, or of another content."""
    work = folder / "work"
    bystanders = {
        "thesis.txt": b"the only copy\n",
        "numbers.npz": b"PK\x03\x04 not ours",
        "a.mtx": b"%%MatrixMarket matrix coordinate real symmetric\n3 3 3\n1 1 2\n2 2 3\n3 3 5\n",
        "broken.mtx": b"%%MatrixMarket matrix coordinate real general\n3 3 9\n1 1 2\n",
    }
    (work / "folder").mkdir(exist_ok=True)
    writable = ("new.npz", "new.png", "new.json", "new.svg", "x.bogus")
    known_ceilings[HOST.device.fingerprint] = CEILINGS
    paths = (*writable, *bystanders, "folder", "folder/", "no/such/file.npz", "", ".", "-", "a" * 300)
    texts = [text for text in TEXTS if "\0" not in text]  # no process is given one
    matrices = ("laplace1d:n=30", "laplace2d:n=8", "xxz:sites=6,up=3", "hofstadter:nx=6,ny=5", "a.mtx")
    known = {name: _options(_help(name)) for name in ("eigs", "info", "bench", "explain")}
    outputs = {"--save", "--plot", "--json", "--output", "-o", "--checkpoint"}
    good: dict[str, tuple[str, ...]] = {
        "-k": ("1", "3", "30"),
        "--which": ("SA", "LA", "BE"),
        "--tol": ("1e-6", "0.1"),
        "--sigma": ("0", "0.7", "5"),
        "--mass": ("laplace1d:n=30", "a.mtx", "-"),
        "--method": ("auto", "lanczos", "filter", "jd", "dense"),
        "--block-size": ("1", "4"),
        "--maxiter": ("1", "9"),
        "--time-limit": ("0.001", "1"),
        "--rng": ("0", "7"),
        "--device": ("cpu", "gpu", "cuda:1"),
        "--matrix": matrices,
        "--widths": ("1", "1,3", "2-4"),
        "--rows": ("1", "100"),
        "--op": ("dot", "apply", "combine,dot"),
        "--dtype": ("float32", "complex128"),
    }

    def value(draw: random.Random, option: str) -> str:
        if option in good and draw.random() < 0.7:
            return draw.choice(good[option])
        return draw.choice(paths if option in outputs or draw.random() < 0.2 else texts)

    def draw_one(draw: random.Random) -> Input:
        for file in work.iterdir():
            if file.is_file():
                file.unlink()
        for name, content in bystanders.items():
            (work / name).write_bytes(content)
        program = draw.choice(("eigs", "eigs", "eigs", "explain", "explain", "bench", "info"))
        operands = {
            "eigs": [draw.choice((*matrices, *matrices, *paths, *texts))],
            "explain": [draw.choice(("dot", "combine", "apply", *texts))],
        }.get(program, [])
        argv = [operand for operand in operands if draw.random() < 0.97]
        given: list[tuple[str, str]] = []
        options = sorted(known[program].items())
        for option, takes in draw.sample(options, min(len(options), draw.randint(0, 4))):
            if option == "--measure":
                continue  # minutes of measuring, as asked
            argv.append(option)
            if takes:
                argv.append(value(draw, option))
                given.append((option, argv[-1]))
        if program == "bench":
            argv += ["--quick", "--rows", "9", "--widths", "2"]
        if program == "eigs" and "--device" not in argv:
            argv += ["--device", "cpu"]
        if program != "eigs":
            argv.insert(0, program)
        named = {Path(work, text) for option, text in given if option in outputs}
        written = {Path(work, text) for option, text in given if option in outputs - {"--checkpoint"}}
        kept = {Path(work, text) for option, text in given if text in bystanders} - written
        stages = {Path(f"{path}{stage}") for path in named for stage in STAGES}

        def execute() -> str:
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                try:
                    code = (eigs_main if program == "eigs" else blockvec_main)(argv)
                except SystemExit as stop:
                    code = stop.code  # type: ignore[assignment]
            assert code in (0, 1, 2), code
            assert "Traceback" not in err.getvalue()
            if code == 2:
                assert len(err.getvalue().strip().splitlines()) == 1, err.getvalue()
                assert len(err.getvalue()) < 15_000, "a message of 15000 characters"
            return f"exit {code}"

        return Input(f"{program}: {argv}", execute, (), frozenset((named | stages) - kept))

    return draw_one


def _help(name: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        eigs_main(["--help"]) if name == "eigs" else blockvec_main([name, "--help"])
    return out.getvalue()


def _options(text: str) -> dict[str, bool]:
    """Read the options of a command from its help, and whether they take a value."""
    found = re.findall(r"^  (?:-\w, )?(--?[a-z][a-z-]*)( [A-Z{]\S*)?", text, re.MULTILINE)
    return {option: bool(value) for option, value in found if option not in ("--help", "-h", "--version")}


KINDS: dict[str, Callable[[Path], Draw]] = {
    kind.__name__: kind for kind in (checkpoints, eigsh_arguments, block_arguments, commands)
}
