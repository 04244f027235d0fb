"""The records of functions of matrices beside SciPy's, and of a chain on a GPU."""

from __future__ import annotations

from blockvec import models
from blockvec.kernels.roofline import Ceilings
from tests.benchmarks.functions import compared, evolved
from tests.pretended_gpu import pretended_gpu


def test_a_record_has_equal_errors_and_the_products() -> None:
    one = compared("chain", -2j * models.model("xxz:sites=8,up=4"), 2)
    assert max(one["error"].values()) < 1e-13
    assert one["method"] == "chebyshev"
    assert one["products"] == one["degree"] > 10


def test_a_record_of_a_gpu_has_fractions_of_its_limits() -> None:
    walls = Ceilings(4500, 4500, 4200, {"float64": 66e3})
    with pretended_gpu():
        one = evolved("xxz:sites=8,up=4", 2, walls)
    assert one["norm_error"] < 1e-13
    assert 0 < one["memory_fraction"] < 1
