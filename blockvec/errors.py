"""Exceptions of blockvec.

Each one also derives from the built-in exception a NumPy user would expect, so an existing
``except ValueError`` keeps working.
"""


class BlockvecError(Exception):
    """Base class of every error that blockvec raises on purpose."""


class ShapeError(BlockvecError, ValueError):
    """Extents of the operands do not match."""


class LayoutError(BlockvecError, ValueError):
    """An array is not row-major with unit column stride, or operands overlap in memory."""


class DTypeError(BlockvecError, TypeError):
    """An element type is not supported, or a result does not fit the output's type."""


class DeviceError(BlockvecError, ValueError):
    """Operands live on different devices, or the device asked for is not there."""


class OptionError(BlockvecError, ValueError):
    """An option, parameter or model description has a value that cannot be used."""


class FormatError(BlockvecError, ValueError):
    """A file is broken, truncated, or of another format; the message holds path and line."""


class CompileError(BlockvecError, RuntimeError):
    """The device compiler refused a kernel; the message holds its log."""


class BreakdownError(BlockvecError, RuntimeError):
    """An iteration met a state it cannot continue from (NaN or Inf from an operator, say)."""
