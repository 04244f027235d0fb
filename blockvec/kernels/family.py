"""The contract of kernel families: what a family is (`Family`), and how fast it is (`Model`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from .device import DeviceInfo
from .problem import Problem, in_class
from .roofline import Ceilings

P = TypeVar("P", bound=Problem)
"""The problems of a family."""
C = TypeVar("C")
"""The configurations of a family: a frozen dataclass."""


class Model(ABC, Generic[P, C]):
    """The search space of a family and the modelled time of its configurations."""

    @abstractmethod
    def space(self, problem: P, device: DeviceInfo) -> Iterable[C]:
        """Yield the configurations worth measuring; some may be refused."""

    def has_choice(self, problem: P, device: DeviceInfo) -> bool:
        """Check whether any configuration is valid for the shape of a problem."""
        return True

    @abstractmethod
    def predict(self, problem: P, config: C, device: DeviceInfo, ceilings: Ceilings | None = None) -> float:
        """Predict the time of a valid configuration in seconds."""

    @abstractmethod
    def choose(self, problem: P, device: DeviceInfo, ceilings: Ceilings | None = None) -> C:
        """Choose the valid configuration with the shortest predicted time; the problem is supported."""

    def is_faster(self, problem: P) -> bool:
        """Check whether the family precedes those listed before it where nothing was tuned."""
        return False


class Family(ABC, Generic[P, C]):
    """A generated kernel with its configurations, for one operation.

    No method but `bind` of the subclasses needs a GPU.

    Parameters
    ----------
    model : Model
        Its search space and times.

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

    def __init__(self, model: Model[P, C]) -> None:
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
        """Check whether the family precedes those listed before it where nothing was tuned."""
        return self.model.is_faster(problem)

    def space(self, problem: P, device: DeviceInfo) -> Iterable[C]:
        """Yield the configurations worth measuring; some may be refused."""
        return self.model.space(problem, device)

    def predict(self, problem: P, config: C, device: DeviceInfo, ceilings: Ceilings | None = None) -> float:
        """Predict the time of a valid configuration in seconds."""
        return self.model.predict(problem, config, device, ceilings)

    def choose(self, problem: P, device: DeviceInfo, ceilings: Ceilings | None = None) -> C:
        """Choose the valid configuration with the shortest predicted time; the problem is supported."""
        return self.model.choose(problem, device, ceilings)

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
