"""Frozen classes behave as those that `dataclasses` makes."""

import dataclasses
from functools import cached_property
from typing import Any

import pytest

from blockvec.system.frozen import frozen


def _classes(make: Any) -> tuple[Any, Any]:
    """Make a class and one that inherits from it."""

    @make
    class Tile:
        """Rows and columns."""

        rows: int
        columns: int = 4
        names: tuple[str, ...] = dataclasses.field(default_factory=tuple)

        def __post_init__(self) -> None:
            if self.rows < 0:
                raise ValueError("negative")

        @cached_property
        def size(self) -> int:
            return self.rows * self.columns

    @make
    class Stack(Tile):
        """Tiles above each other."""

        depth: int = 1

    return Tile, Stack


OURS, THEIRS = _classes(frozen), _classes(dataclasses.dataclass(frozen=True))
GIVEN = [((2,), {}), ((2, 3), {}), ((), {"rows": 2}), ((2,), {"columns": 5, "names": ("a", "b")})]


@frozen
class Point:
    """Importable, for pickles."""

    x: float
    y: float = 0.0


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(("values", "named"), GIVEN)
def test_instances_are_those_of_dataclasses(which: int, values: Any, named: Any) -> None:
    ours, theirs = OURS[which](*values, **named), THEIRS[which](*values, **named)
    for what in (dataclasses.asdict, repr, hash, lambda one: one.size):
        assert what(ours) == what(theirs)
    assert ours == OURS[which](*values, **named) != dataclasses.replace(ours, rows=9)
    assert ours not in (theirs, OURS[1 - which](*values, **named), None)
    assert dataclasses.replace(ours, rows=9).columns == ours.columns


@pytest.mark.parametrize(
    ("values", "named"),
    [((), {}), ((1, 2, (), 4), {}), ((1,), {"rows": 2}), ((1,), {"other": 2}), ((), {"other": 2})],
)
def test_wrong_arguments_are_errors(values: Any, named: Any) -> None:
    with pytest.raises(TypeError, match=r"Tile takes .*rows.* but got"):
        OURS[0](*values, **named)


def test_instances_cannot_be_changed() -> None:
    point = Point(1.0)
    with pytest.raises(dataclasses.FrozenInstanceError, match="Point is frozen"):
        point.x = 2.0  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError, match="'y'"):
        del point.y
    assert point == Point(1.0, 0.0)
