"""The contract of kernel families: what a family is, which configurations it has, and how fast these are."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from ..errors import OptionError
from .device import DeviceInfo
from .problem import Problem, in_class

P = TypeVar("P", bound=Problem)
"""The problems of a family."""
C = TypeVar("C")
"""The configurations of a family: a frozen dataclass."""


class Family(ABC, Generic[P, C]):
    """A generated kernel with the few configurations that are worth having, and a model of their time.

    No method but `bind` of the subclasses needs a GPU.
    """

    name: str  # key of the family in records and profiles
    problem_type: type[P]  # its problems
    # What configurations have in common with those of other widths and types: the curated list. Beside each
    # list stands what it costs against the hundreds of recipes that it was chosen from, by predicted times.
    recipes: ClassVar[Sequence[Any]]
    spare: ClassVar[Sequence[Any]] = ()  # recipes for problems that none of the list fits

    @abstractmethod
    def refuse_problem(self, problem: P, device: DeviceInfo) -> str | None:
        """Explain why no configuration can run a problem, whatever its resources; None if one may."""

    def supports(self, problem: P, device: DeviceInfo) -> str | None:
        """Explain why the family cannot run a problem; None if it can, and has a configuration for it."""
        if (reason := self.refuse_problem(problem, device)) is not None:
            return reason
        if self.configurations(self.alike(problem), device):
            return None
        return f"all configurations need more registers or shared memory than a block of {device.name} has"

    @abstractmethod
    def refuse(self, problem: P, config: C, device: DeviceInfo) -> str | None:
        """Explain why a configuration is invalid for a problem; None if it is valid."""

    def alike(self, problem: P) -> P:
        """Return the problem that stands for all with the same choice: that of a class of rows."""
        return in_class(problem)

    def is_faster(self, problem: P) -> bool:
        """Check whether the family precedes those listed before it."""
        return False

    def preferred(self, problem: P, device: DeviceInfo) -> Iterable[Any]:
        """List the recipes to be tried first for a problem, the best one first; the others follow."""
        return ()

    def configurations(self, problem: P, device: DeviceInfo) -> Sequence[C]:
        """List the valid configurations of the curated list, or of spare recipes where there are none."""
        return valid(self, problem, device, False) or valid(self, problem, device, True)

    @abstractmethod
    def configure(self, problem: P, recipe: Any, device: DeviceInfo) -> C | None:
        """Make the configuration of a recipe for a problem; None if they do not fit. It may be refused."""

    def predict(self, problem: P, config: C, device: DeviceInfo) -> float:
        """Predict the time of a valid configuration in seconds; 0 where the order of the list decides.

        The terms that decide between configurations, beside the limits of the hardware; what changes the
        choices of drawn problems by less than 1 per cent of their time is left out.
        """
        return 0.0

    def choose(self, problem: P, device: DeviceInfo) -> C:
        """Choose the configuration of the list with the shortest predicted time, or the first one.

        If the family does not support the problem, an `OptionError` is raised.
        """
        if reason := self.supports(problem, device):
            raise OptionError(f"{self.name} cannot run on {device.name}: {reason}; use another kernel.")
        listed = self.configurations(problem, device)
        return min(listed, key=lambda config: self.predict(problem, config, device))


AnyFamily = Family[Any, Any]


def choose(family: AnyFamily, problem: Problem, device: DeviceInfo) -> Any:
    """Choose the configuration of a family for a problem and all that are alike, once."""
    return _choose(family, family.alike(problem), device)


@functools.lru_cache(maxsize=4096)
def _choose(family: AnyFamily, problem: Problem, device: DeviceInfo) -> Any:
    return family.choose(problem, device)


@functools.lru_cache(maxsize=4096)
def valid(family: AnyFamily, problem: Any, device: DeviceInfo, of_spare: bool) -> tuple[Any, ...]:
    """List the different valid configurations of the usual or the spare recipes of a family."""
    recipes = family.spare if of_spare else (*family.preferred(problem, device), *family.recipes)
    made = dict.fromkeys(family.configure(problem, recipe, device) for recipe in recipes)
    return tuple(
        config for config in made if config is not None and family.refuse(problem, config, device) is None
    )
