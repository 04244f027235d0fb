"""The shape of the project: which way imports point, who reads the environment, what an import costs."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import blockvec

ROOT = Path(__file__).resolve().parent.parent

# From the bottom up: a module imports from its own room and from the layers under it.
LAYERS = [
    {"errors"},
    {"system"},
    {"io", "kernels"},
    {"backends"},
    {"parallel"},
    {"operations"},
    {"blocks", "interchange", "precompile"},
    {"operators"},
    {"__init__", "explanation", "models", "solvers"},
    {"bench"},
    {"__main__"},
]
PUBLIC_MODULES = {"errors", "interchange", "models", "parallel", "precompile", "system"}


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Dotted names that a module imports when it runs, relative ones made absolute, with their lines."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in run_time_nodes(parsed(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            source = ".".join(part for part in (base, node.module) if part)
            for alias in node.names:
                yield f"{source}.{alias.name}", node.lineno


def run_time_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those that only a type checker sees."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from run_time_nodes(node)


def room(dotted: str) -> str:
    """Return the room of a module or name in blockvec: a folder or a module at its top."""
    first, *rest = dotted.split(".")
    member = rest[0] if rest else "__init__"
    known = (ROOT / first / member).is_dir() or (ROOT / first / f"{member}.py").exists()
    return member if known else "__init__"  # a name that the package itself offers


def layer(room: str) -> int:
    """Return the layer of a room; refuse one that no layer lists."""
    ranks = [rank for rank, members in enumerate(LAYERS) if room in members]
    assert ranks, f"no layer lists {room}; add it to LAYERS where it belongs"
    return ranks[0]


@pytest.mark.parametrize("path", modules("blockvec"), ids=relative)
def test_imports_inside_blockvec_point_downwards_only(path: Path) -> None:
    own = room(".".join(path.relative_to(ROOT).with_suffix("").parts))
    for name, line in imports(path):
        where = f"{relative(path)}:{line}"
        assert name.split(".")[0] != "solvers", f"{where} imports the solvers"
        if name.startswith("blockvec.") and room(name) != own and name != "blockvec.__version__":
            assert layer(room(name)) < layer(own), f"{where} imports {name}, which is not below it"


def test_no_modules_of_blockvec_import_each_other() -> None:
    name_of = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in modules("blockvec")}
    name_of = {path: name.removesuffix(".__init__") for path, name in name_of.items()}
    known = set(name_of.values())
    below: dict[str, set[str]] = {}
    for path, name in name_of.items():
        found = (target if target in known else target.rpartition(".")[0] for target, _ in imports(path))
        below[name] = {target for target in found if target in known and target != name}
    while leaves := {name for name, others in below.items() if not others & below.keys()}:
        below = {name: others for name, others in below.items() if name not in leaves}
    assert not below, f"among these is a circle: {sorted(below)}"


@pytest.mark.parametrize("path", modules("solvers"), ids=relative)
def test_solvers_use_public_names_of_blockvec_only(path: Path) -> None:
    public = (set(blockvec.__all__) | PUBLIC_MODULES) - {"eigsh", "solvers"}
    for name, line in imports(path):
        first, *rest = name.split(".")
        if first == "blockvec" and rest:
            is_only = (relative(path), name) == ("solvers/blocks.py", "blockvec.blocks.columns.ColumnBlock")
            assert is_only or rest[0] in public, (
                f"{relative(path)}:{line} imports {name}, which is not public"
            )
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner, name = node.value.id, node.attr
            if owner == "blockvec":
                assert name in public, (
                    f"{relative(path)}:{node.lineno} uses blockvec.{name}, which is not public"
                )


def run_python(code: str, folder: Path) -> str:
    """Run code in a folder that comes first on Python's path; return its output."""
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


SAME_OBJECTS = """
import pickle, sys
import blockvec
assert not [name for name in sys.modules if name.startswith(("solvers", "blockvec.solvers"))]
assert {"eigsh", "solvers"} <= set(dir(blockvec))
from blockvec.solvers import EigenResult, NoConvergence
from blockvec.solvers.linear import block_minres
from blockvec import eigsh, solvers as package
assert eigsh is blockvec.eigsh is package.eigsh and block_minres is package.block_minres
result = eigsh(blockvec.models.model("laplace1d:n=50"), 2, which="SA", return_info=True)
assert type(result) is type(pickle.loads(pickle.dumps(result))) is EigenResult
import solvers
print(solvers is package, getattr(solvers, "whose", "ours"))
if solvers is package:
    import solvers.linear, solvers.result
    assert solvers.linear is blockvec.solvers.linear and solvers.result.EigenResult is EigenResult
"""


def test_the_solvers_are_reached_through_blockvec_as_the_same_objects(tmp_path: Path) -> None:
    assert run_python(SAME_OBJECTS, tmp_path) == "True ours\n"


THREADS = """
import importlib, importlib.util, threading
import blockvec, blockvec.solvers, blockvec.solvers.eigsh
start, found, failed = threading.Barrier(8), [], []

def load():
    start.wait()
    try:
        from blockvec.solvers.counting import count_eigenvalues
        found.append(count_eigenvalues)
    except BaseException as error:
        failed.append(error)

threads = [threading.Thread(target=load) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
import solvers.counting
assert not failed and {*found} == {solvers.counting.count_eigenvalues}, failed
assert solvers.counting.__spec__.name == "solvers.counting"
assert callable(blockvec.eigsh) and callable(solvers.eigsh)
assert importlib.util.find_spec("blockvec.solvers.nothing") is None
assert not hasattr(blockvec, "no.name") and not hasattr(blockvec, "nothing")
"""


def test_modules_of_the_solvers_are_the_same_from_many_threads(tmp_path: Path) -> None:
    assert run_python(THREADS, tmp_path) == ""


SOLVERS_FIRST = "import solvers, blockvec; print(solvers.whose, blockvec.eigsh.__module__)"


@pytest.mark.parametrize(
    ("name", "code", "output"),
    [
        ("solvers.py", SAME_OBJECTS, "False theirs\n"),
        ("solvers/__init__.py", SOLVERS_FIRST, "theirs blockvec.solvers.eigsh\n"),
    ],
)
def test_a_local_file_named_solvers_hides_nothing_of_blockvec(
    name: str, code: str, output: str, tmp_path: Path
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("whose = 'theirs'\n")
    assert run_python(code, tmp_path) == output


def test_importing_blockvec_imports_neither_optional_nor_slow_packages() -> None:
    code = (
        "import sys, blockvec, solvers\n"
        "libraries = ('cupy', 'cupyx', 'cuda', 'mpi4py', 'matplotlib', 'torch', 'jax')\n"
        "libraries += ('rich', 'html', 'scipy.io', 'scipy.sparse.csgraph', 'scipy.stats', 'scipy.optimize')\n"
        "libraries += ('multiprocessing', 'asyncio', 'unittest.mock', 'statistics')  # slow to import\n"
        "print([name for name in libraries if name in sys.modules])"
    )
    assert run_python(code, ROOT) == "[]\n"


AFTER_IMPORT = ["solvers.call", "solvers.stages.run", "solvers.iterations.lanczos"]
# Alternatives that other problems, devices, files or processes take.
ALTERNATIVES = """
blockvec.bench blockvec.explanation blockvec.operators.factorization blockvec.operators.krylov_steps
blockvec.backends.cuda blockvec.backends.host.superlu blockvec.backends.host.pardiso
blockvec.backends.host.chain blockvec.backends.host.sparse_source
blockvec.kernels.build blockvec.kernels.elementwise blockvec.kernels.families
blockvec.kernels.dense blockvec.kernels.sparse
blockvec.io.matrixmarket blockvec.io.petsc blockvec.models.catalogue blockvec.models.lattice
blockvec.parallel.files blockvec.operators.distributed blockvec.operators.partition
solvers.counting solvers.factorization solvers.stages.window solvers.stages.interval solvers.linear
solvers.iterations.device_krylov solvers.iterations.jacobi_davidson solvers.iterations.correction
solvers.orthogonalization.decomposition solvers.replacement
solvers.stages.end solvers.stages.shift_invert solvers.transform.penalties
solvers.transform.solution solvers.transform.standard_form solvers.transform.spectral_map
"""
PLAIN_SOLVE = """
import sys
import blockvec, solvers
def loaded(groups):
    return [name for name in sys.modules if any(f"{name}.".startswith(f"{group}.") for group in groups)]
print(loaded(%s))
import numpy as np, scipy.sparse as sp
rows, beside = np.linspace(0, 2, 9000), np.ones(8999)
A = sp.diags_array([rows, beside, beside], offsets=[0, 1, -1], format="csr")
blockvec.eigsh(A, k=6, which="LA", tol=1e-9)
print(loaded(%s))
"""


def test_a_plain_solve_on_the_host_imports_no_alternatives(tmp_path: Path) -> None:
    alternatives = ALTERNATIVES.split()
    for name in AFTER_IMPORT + alternatives:
        path = ROOT.joinpath(*name.split("."))
        assert path.is_dir() or path.with_suffix(".py").exists(), f"there is no {name}"
    others = [*alternatives, "rich", "html", "matplotlib", "llvmlite", "cupy", "mpi4py"]
    assert run_python(PLAIN_SOLVE % (AFTER_IMPORT + others, others), tmp_path) == "[]\n[]\n"


@pytest.mark.parametrize("folder", ["blockvec", "solvers"])
def test_names_imported_on_first_use_are_those_that_type_checkers_see(folder: str) -> None:
    for path in (ROOT / folder).rglob("__init__.py"):
        text, name = path.read_text(encoding="utf-8"), ".".join(path.relative_to(ROOT).parts[:-1])
        if "on_first_use" not in text:
            continue
        package = importlib.import_module(name)
        assert set(package.__all__) <= set(dir(package))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.level:
                source = importlib.import_module("." * node.level + (node.module or ""), name)
                for shown in {alias.name for alias in node.names} & set(package.__all__):
                    assert getattr(package, shown) is getattr(source, shown), f"{name}.{shown}"
        with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nothing'"):
            package.nothing  # noqa: B018


def test_only_config_reads_blockvec_environment_variables() -> None:
    for path in [*modules("blockvec"), *modules("solvers")]:
        if relative(path) == "blockvec/system/config.py":
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not re.fullmatch(r"BLOCKVEC_\w+", node.value), f"{relative(path)}:{node.lineno}"


def test_the_version_is_said_the_same_everywhere() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        version = tomllib.load(file)["project"]["version"]
    assert blockvec.__version__ == version
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_the_conda_recipe_repeats_the_version_and_the_requirements() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    recipe = (ROOT / "recipe/recipe.yaml").read_text(encoding="utf-8")
    required = {re.sub(r"(>=)", r" \1", name) for name in project["dependencies"]}
    required.add(f"python {project['requires-python']}")
    lines = {
        line.strip(" -") for line in recipe.split("  run:")[1].split("  run_constraints:")[0].splitlines()
    }
    assert lines - {""} == required
    assert f'version: "{project["version"]}"' in recipe
    assert all(f"{name} = {target}" in recipe for name, target in project["scripts"].items())


COMPILED = (".zip", ".cubin", ".fatbin", ".ptx", ".bin", ".so", ".o", ".a", ".dll", ".pyd", ".whl")
ELF = b"\x7fELF"
CLONE_BYTES = 9_000_000  # of all files under version control: thin docs/results before this is raised


def test_files_under_version_control_are_few_bytes_and_none_is_compiled() -> None:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout:
        pytest.skip("this is no clone")
    size = 0
    for name in filter(None, done.stdout.split("\0")):
        assert not name.endswith(COMPILED), f"{name} is compiled; `make kernels` builds a package of kernels"
        path = ROOT / name
        if path.is_file():
            size += path.stat().st_size
            assert not path.read_bytes().startswith(ELF), f"{name} is machine code"
    assert size <= CLONE_BYTES


def test_tests_are_no_package() -> None:
    # A package tests/blockvec would be imported in place of the library.
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_the_map_of_modules_names_those_that_there_are() -> None:
    text = (ROOT / "docs/develop.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\b[a-z]\w*\.py\b", text.partition("## Modules")[2].partition("\n- `tests/`")[0]))
    there = {path.name for package in ("blockvec", "solvers", "tests") for path in modules(package)}
    assert not named - there
    shown = [*(ROOT / "solvers").glob("*.py"), *(ROOT / "blockvec").glob("*.py")]
    assert not {path.name for path in shown if not path.name.startswith("__")} - named
