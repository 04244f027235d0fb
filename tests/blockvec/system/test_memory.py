"""Free memory: what the system reports, and what control groups leave."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from scipy.sparse.linalg import LinearOperator

from blockvec import models
from blockvec.errors import OptionError
from blockvec.system import memory
from solvers import eigsh

MEMINFO = "MemTotal: 64 kB\nMemAvailable: 48 kB\n"
WITHOUT_LIMIT = {1: 9223372036854771712, 2: "max"}


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A system with 48 KiB of available memory."""
    monkeypatch.setattr(memory, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path / "cgroup")
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text(MEMINFO)
    return tmp_path


def put(system: Path, version: int, group: str, limit: object, used: int, cache: int) -> None:
    """Make a control group of this process or one that contains it."""
    names = memory._FILES[version]
    folder = system / "cgroup" / ("" if version == 2 else "memory") / group
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 7\n{names[2]} {cache}\n")
    line = f"0::/{group}" if version == 2 else f"4:cpu,memory:/{group}"
    (system / "proc" / "self" / "cgroup").write_text(f"9:name=systemd:/\n{line}\n")


def test_without_control_groups_the_system_tells(system: Path) -> None:
    assert memory.available_memory() == 48 << 10


@pytest.mark.parametrize("version", [1, 2])
def test_a_control_group_leaves_its_limit_less_what_cannot_be_dropped(version: int, system: Path) -> None:
    put(system, version, "job", 20_000, used=9_000, cache=2_000)
    assert memory.available_memory() == 13_000
    put(system, version, "job", 20_000, used=29_000, cache=0)
    assert memory.available_memory() == 0
    put(system, version, "job", WITHOUT_LIMIT[version], used=9_000, cache=0)
    assert memory.available_memory() == 48 << 10


@pytest.mark.parametrize("version", [1, 2])
def test_limits_above_the_memory_of_the_machine_do_not_matter(
    version: int, system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(system, version, "job", 20_000, used=9_000, cache=0)
    monkeypatch.setattr(memory, "_physical_memory", lambda: 20_000)
    assert memory.available_memory() == 48 << 10
    for total in (20_001, None):
        monkeypatch.setattr(memory, "_physical_memory", lambda total=total: total)
        assert memory.available_memory() == 11_000


@pytest.mark.parametrize("version", [1, 2])
def test_the_tightest_of_the_nested_groups_counts(version: int, system: Path) -> None:
    put(system, version, "slurm", 10_000, used=4_000, cache=0)
    put(system, version, "slurm/job/step", 30_000, used=1_000, cache=0)
    assert memory.available_memory() == 6_000


def test_in_a_container_the_limit_is_at_the_visible_root(system: Path) -> None:
    put(system, 2, "", 5_000, used=1_000, cache=0)
    (system / "proc" / "self" / "cgroup").write_text("0::/docker/of/the/host\n")
    assert memory.available_memory() == 4_000


def test_models_and_solvers_respect_a_control_group(system: Path) -> None:
    put(system, 2, "job", 1 << 20, used=0, cache=0)
    (system / "proc" / "meminfo").write_text(f"MemAvailable: {1 << 40} kB\n")
    A = LinearOperator((400_000, 400_000), matvec=lambda x: x, matmat=lambda X: X, dtype=float)
    with pytest.raises(OptionError, match=r"0\.00105 GB of memory are available"):
        models.model("laplace1d:n=200000")
    with pytest.raises(OptionError, match=r"the call needs .* GB on cpu for a basis .* 0\.00105 GB are free"):
        eigsh(A, 40, which="LA", method="lanczos")


@pytest.mark.skipif(sys.platform != "linux", reason="Linux")
def test_on_linux_the_memory_is_known() -> None:
    assert (memory.available_memory() or 0) > 1 << 20
