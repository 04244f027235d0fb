"""The contract of kernel families: what a family is (`Family`), and how fast it is (`Model`)."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from ..errors import OptionError
from .device import DeviceInfo
from .problem import Problem, in_class
from .roofline import Ceilings

P = TypeVar("P", bound=Problem)
"""The problems of a family."""
C = TypeVar("C")
"""The configurations of a family: a frozen dataclass."""
R = TypeVar("R")
"""The recipes of a family: what a configuration has in common with those of other widths and types."""


def _accepts_all(config: Any) -> bool:
    return True


class Model(ABC, Generic[P, C, R]):
    """The few configurations of a family that are worth having, and their modelled times.

    Attributes
    ----------
    recipes : sequence
        The curated list. Beside each list stands what it costs against the hundreds of configurations that it
        was chosen from, by the predicted times.
    spare : sequence
        Recipes for problems that none of the list fits.
    """

    recipes: Sequence[R]
    spare: Sequence[R] = ()

    @abstractmethod
    def configure(self, problem: P, recipe: R, device: DeviceInfo) -> C | None:
        """Make the configuration of a recipe for a problem; None if they do not fit. It may be refused."""

    @abstractmethod
    def predict(self, problem: P, config: C, device: DeviceInfo, ceilings: Ceilings | None = None) -> float:
        """Predict the time of a valid configuration in seconds."""

    def is_faster(self, problem: P) -> bool:
        """Check whether the family precedes those listed before it where nothing was measured."""
        return False


class Family(ABC, Generic[P, C]):
    """A generated kernel with its configurations, for one operation.

    No method but `bind` of the subclasses needs a GPU.

    Parameters
    ----------
    model : Model
        Its curated configurations and their times.

    Attributes
    ----------
    name : str
        Key of the family in records and profiles.
    Config : type
        Its configurations: a frozen dataclass of integers and strings.
    problem_type : type
        Its problems.
    """

    name: str
    Config: type[C]
    problem_type: type[P]

    def __init__(self, model: Model[P, C, Any]) -> None:
        self.model = model

    @abstractmethod
    def refuse_problem(self, problem: P, device: DeviceInfo) -> str | None:
        """Explain why no configuration can run a problem, whatever its resources; None if one may."""

    def supports(self, problem: P, device: DeviceInfo) -> str | None:
        """Explain why the family cannot run a problem; None if it can, and has a configuration for it."""
        if (reason := self.refuse_problem(problem, device)) is not None:
            return reason
        if self.has_configuration(problem, device):
            return None
        return f"all configurations need more registers or shared memory than a block of {device.name} has"

    @abstractmethod
    def refuse(self, problem: P, config: C, device: DeviceInfo) -> str | None:
        """Explain why a configuration is invalid for a problem; None if it is valid."""

    def alike(self, problem: P) -> P:
        """Return the problem that stands for all with the same choice: that of a class of rows."""
        return in_class(problem)

    def is_faster(self, problem: P) -> bool:
        """Check whether the family precedes those listed before it where nothing was measured."""
        return self.model.is_faster(problem)

    def configurations(
        self, problem: P, device: DeviceInfo, accepts: Callable[[C], bool] = _accepts_all
    ) -> list[C]:
        """List the valid configurations of the curated list, limited by `accepts`.

        Spare recipes count where none of the usual ones is valid and accepted.
        """
        usual = [config for config in _valid(self, problem, device, False) if accepts(config)]
        return usual or [config for config in _valid(self, problem, device, True) if accepts(config)]

    def has_configuration(
        self, problem: P, device: DeviceInfo, accepts: Callable[[C], bool] = _accepts_all
    ) -> bool:
        """Check whether a configuration of the list is valid and accepted: those that a choice is made of."""
        return bool(self.configurations(self.alike(problem), device, accepts))

    def predict(self, problem: P, config: C, device: DeviceInfo, ceilings: Ceilings | None = None) -> float:
        """Predict the time of a valid configuration in seconds."""
        return self.model.predict(problem, config, device, ceilings)

    def choose(
        self,
        problem: P,
        device: DeviceInfo,
        ceilings: Ceilings | None = None,
        accepts: Callable[[C], bool] = _accepts_all,
    ) -> C:
        """Choose the configuration with the shortest predicted time among those of the list.

        `accepts` limits the choice.

        Raises
        ------
        OptionError
            If none is valid, as where the family does not support the problem.
        """
        valid = self.configurations(problem, device, accepts)
        if not valid:
            reason = self.supports(problem, device) or "no configuration fits its shared memory and registers"
            raise OptionError(f"{self.name} cannot run on {device.name}: {reason}; use another kernel.")
        return min(valid, key=lambda config: self.predict(problem, config, device, ceilings))

    @abstractmethod
    def kernel_name(self, problem: P) -> str:
        """Name the kernel, as ``tsmttsm_fma_f64_m8_n8``."""

    @abstractmethod
    def source(self, problem: P, config: C, device: DeviceInfo) -> str:
        """Generate the CUDA source; it depends neither on the number of rows nor on the length of a pitch."""

    @abstractmethod
    def shared_bytes(self, problem: P, config: C, device: DeviceInfo) -> int:
        """Compute the dynamic shared memory of a block."""

    def carveout(self, problem: P, config: C, device: DeviceInfo) -> int | None:
        """Compute the percentage of shared memory to ask for, the rest being L1; None leaves it to CUDA."""
        return None

    @abstractmethod
    def chain_length(self, problem: P, config: C, device: DeviceInfo) -> int:
        """Compute the longest chain of additions that makes an element of the result, for error bounds."""


AnyFamily = Family[Any, Any]


@functools.lru_cache(maxsize=4096)
def _valid(family: AnyFamily, problem: Any, device: DeviceInfo, of_spare: bool) -> tuple[Any, ...]:
    """List the different valid configurations of the usual or the spare recipes of a family."""
    model = family.model
    recipes = model.spare if of_spare else model.recipes
    made = dict.fromkeys(model.configure(problem, recipe, device) for recipe in recipes)
    return tuple(
        config for config in made if config is not None and family.refuse(problem, config, device) is None
    )
