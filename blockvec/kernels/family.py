"""The contract of kernel families: what a family is (`Family`), and how fast it is (`Model`)."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar, cast

from ..errors import OptionError
from .device import DeviceInfo
from .problem import Problem, SpmmvProblem, in_class
from .roofline import Ceilings

P = TypeVar("P", bound=Problem)
"""The problems of a family."""
C = TypeVar("C")
"""The configurations of a family: a frozen dataclass."""
R = TypeVar("R")
"""The recipes of a family: what a configuration has in common with those of other widths and types."""


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
    def supports(self, problem: P, device: DeviceInfo) -> str | None:
        """Explain why the family cannot run a problem; None if it can."""

    @abstractmethod
    def refuse(self, problem: P, config: C, device: DeviceInfo) -> str | None:
        """Explain why a configuration is invalid for a problem; None if it is valid."""

    def alike(self, problem: P) -> P:
        """Return the problem that stands for all with the same choice: that of a class of rows."""
        return in_class(problem)

    def is_faster(self, problem: P) -> bool:
        """Check whether the family precedes those listed before it where nothing was measured."""
        return self.model.is_faster(problem)

    def configurations(self, problem: P, device: DeviceInfo) -> list[C]:
        """List the valid configurations of the curated list."""
        usual = list(self._valid(self.model.recipes, problem, device))
        return usual or list(self._valid(self.model.spare, problem, device))

    def _valid(self, recipes: Iterable[Any], problem: P, device: DeviceInfo) -> Iterator[C]:
        """Yield the different valid configurations of recipes."""
        seen = set()
        for recipe in recipes:
            config = self.model.configure(problem, recipe, device)
            if config is not None and config not in seen:
                seen.add(config)
                if self.refuse(problem, config, device) is None:
                    yield config

    def has_configuration(self, problem: P, device: DeviceInfo) -> bool:
        """Check whether a configuration of the list is valid, for any number of rows."""
        if not isinstance(problem, SpmmvProblem):
            problem = replace(cast("Any", problem), K=1)
        return _has_configuration(self, problem, device)

    def predict(self, problem: P, config: C, device: DeviceInfo, ceilings: Ceilings | None = None) -> float:
        """Predict the time of a valid configuration in seconds."""
        return self.model.predict(problem, config, device, ceilings)

    def choose(
        self,
        problem: P,
        device: DeviceInfo,
        ceilings: Ceilings | None = None,
        accepts: Callable[[C], bool] = lambda config: True,
    ) -> C:
        """Choose the configuration with the shortest predicted time among those of the list.

        `accepts` limits the choice.

        Raises
        ------
        OptionError
            If none is valid, as where the family does not support the problem.
        """
        valid = [config for config in self.configurations(problem, device) if accepts(config)]
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
def _has_configuration(family: AnyFamily, problem: Any, device: DeviceInfo) -> bool:
    return bool(family.configurations(problem, device))
