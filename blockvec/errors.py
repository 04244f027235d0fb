"""Exceptions of blockvec.

Each class also derives from the built-in exception that NumPy raises in such cases, so that an existing
``except ValueError`` keeps working.
"""


class BlockvecError(Exception):
    """Base class of all errors that blockvec raises itself."""


class ShapeError(BlockvecError, ValueError):
    """Shapes of the operands do not match."""


class LayoutError(BlockvecError, ValueError):
    """An array is not row-major with unit column stride, or operands overlap in memory."""


class DTypeError(BlockvecError, TypeError):
    """An element type is not supported, or a result does not fit the output's type."""


class DeviceError(BlockvecError, ValueError):
    """Operands are on different devices, or a device does not exist."""


class OptionError(BlockvecError, ValueError):
    """An option, parameter or model description has a value that cannot be used."""


class CapacityError(BlockvecError, MemoryError):
    """What an operation must allocate does not fit in free memory; nothing has been allocated."""


class FormatError(BlockvecError, ValueError):
    """A file is broken, truncated, or of another format; the message holds path and line."""


class CompileError(BlockvecError, RuntimeError):
    """The device compiler refused a kernel; the message holds its log."""


class BreakdownError(BlockvecError, RuntimeError):
    """An iteration cannot continue, for example because an operator returned NaN or Inf."""
