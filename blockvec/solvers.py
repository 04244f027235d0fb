"""The package `solvers`, found beside blockvec even where another file of that name comes first.

``import solvers`` takes the first module of that name on Python's path, which can be a user's own file. This
module stands for the package that is installed with blockvec: for the same objects as ``import solvers`` if
that finds the package, and otherwise for the package under the name ``blockvec.solvers``.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .system.exports import renamed

if TYPE_CHECKING:
    from solvers import *  # noqa: F403

_PACKAGE = Path(__file__).resolve().parent.parent / "solvers" / "__init__.py"


def _is_found() -> bool:
    """Check whether ``import solvers`` finds the package that is installed with blockvec."""
    try:
        spec = importlib.util.find_spec("solvers")
    except ValueError:  # a module without a spec has the name
        return False
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve() == _PACKAGE


if _is_found():
    sys.modules[__name__] = importlib.import_module("solvers")
    _modules = {name for name in sys.modules if name.startswith("solvers.")}  # with names of earlier versions
    for _file in _PACKAGE.parent.rglob("*.py"):  # no module is imported twice
        _module = ".".join(("solvers", *_file.relative_to(_PACKAGE.parent).with_suffix("").parts))
        _modules.add(_module.removesuffix(".__init__"))
    for _module in _modules - {"solvers"}:
        renamed(f"blockvec.{_module}", _module)
else:
    _spec = importlib.util.spec_from_file_location(__name__, _PACKAGE)
    assert _spec is not None
    assert _spec.loader is not None
    _package = importlib.util.module_from_spec(_spec)
    sys.modules[__name__] = _package
    _spec.loader.exec_module(_package)
