"""Source of compiled sparse products: the rows of Y one after the other, all columns at once.

    for i in rows:
        sum = 0
        for entries (c, v) of row i:   sum = sum + v X[c]    # one instruction per register of columns
        Y[i] = alpha (sum - shift X[i]) + beta Y[i]
        dots = dots + X[i] Y[i], Y[i] Y[i]                   # where they are requested

A row of a block is a few vector registers of real numbers, of which complex numbers are pairs. It is read and
written once, in the type of the blocks. The text is LLVM's intermediate representation: every value is
assigned once, and ``phi`` selects it by the block of instructions that was executed before.
"""

from __future__ import annotations

from typing import Literal

from ...kernels.limits import ceil_div
from ...kernels.problem import itemsize, parts_of, real_bytes
from ...system.frozen import frozen

Factor = Literal["none", "zero", "one", "real", "complex"]
REGISTER_BYTES = 64  # the longest vector; LLVM divides it where registers are shorter
LINE_BYTES = 64  # of a cache
# Distance of prefetches in bytes of values. Processors prefetch streams themselves, but not beyond a page of
# 4 KiB; without these a core takes a third longer for up to 2 columns, and for 27 entries per row two thirds.
AHEAD_BYTES = 2048
ARGUMENTS = (
    "i64 %begin, i64 %end, ptr noalias %pointers, ptr noalias %indices, ptr noalias %values, "
    "ptr noalias %x, i64 %ldx, ptr noalias %y, i64 %ldy, ptr noalias %factors, ptr noalias %shifts, "
    "ptr noalias %sums"
)
DOT_ROWS = 128  # rows, a power of two, whose products are added in the type of the blocks; then in double
FACTORS = ("alpha", "beta")  # names of factors in the order of memory, each with an imaginary part


@frozen
class RowKernel:
    """All that the source of a product depends on.

    Attributes
    ----------
    width : int
        Columns of the blocks.
    dtype, dtype_matrix : str
        Element types of all blocks, and of the matrix, which may be real or single where they are not.
    pointer_bytes, index_bytes : int
        Bytes of row pointers and of column indices.
    alpha, beta, shift : str
        Classes of the factors; a shift is one per column.
    lines : int
        Cache lines of values to prefetch per row, about as many as the values of a row take.
    by_columns : bool
        Whether blocks are column-major; ``ld`` is then the distance between columns.
    dots : tuple of str
        Column dots that are added to ``sums``, in double precision: a row of lanes for each of `dot_rows`.
    """

    width: int
    dtype: str
    dtype_matrix: str
    pointer_bytes: int
    index_bytes: int
    alpha: Factor = "one"
    beta: Factor = "zero"
    shift: Factor = "none"
    lines: int = 1
    by_columns: bool = False
    dots: tuple[str, ...] = ()

    @property
    def dot_rows(self) -> list[tuple[str, bool]]:
        """List the rows of sums: the lanes of a dot, or where marked of x (i y), minus its imaginary part."""
        both = (False, True) if self.parts == 2 else (False,)
        return [(name, turned) for name in self.dots for turned in (both if name == "xy" else (False,))]

    @property
    def parts(self) -> int:
        """Real numbers per element."""
        return parts_of(self.dtype)

    @property
    def lanes(self) -> int:
        """Real numbers per row of a block."""
        return self.width * self.parts


def source(kernel: RowKernel) -> str:
    """Write the source of a kernel."""
    return _Writer(kernel).text()


class _Writer:
    """Instructions in the order of execution; `new` assigns a value to a new name."""

    def __init__(self, kernel: RowKernel) -> None:
        self.kernel = kernel
        self.lines: list[str] = []
        self.declared: set[str] = set()
        self.bits = 8 * real_bytes(kernel.dtype)
        self.real = _real(self.bits)
        self.pointer, self.index = f"i{8 * kernel.pointer_bytes}", f"i{8 * kernel.index_bytes}"
        longest = kernel.parts if kernel.by_columns else 8 * REGISTER_BYTES // self.bits
        self.begins = range(0, kernel.lanes, longest)  # of the vectors of a row
        self.lengths = [min(longest, kernel.lanes - begin) for begin in self.begins]
        self.splats: dict[tuple[str, int], str] = {}

    # --- single instructions -----------------------------------------------------------------------

    def new(self, instruction: str, name: str = "") -> str:
        name = name or f"%v{len(self.lines)}"
        self.lines.append(f"  {name} = {instruction}")
        return name

    def do(self, instruction: str) -> None:
        self.lines.append(f"  {instruction}")

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")

    def vector(self, vector: int) -> str:
        """Type of a vector of a row."""
        return f"<{self.lengths[vector]} x {self.real}>"

    def load_integer(self, integer: str, array: str, at: str, name: str = "") -> str:
        address = self.new(f"getelementptr {integer}, ptr {array}, i64 {at}")
        if integer == "i64":
            return self.new(f"load i64, ptr {address}", name)
        value = self.new(f"load {integer}, ptr {address}")
        return self.new(f"sext {integer} {value} to i64", name)

    def load_value(self, at: str) -> list[str]:
        """Load an entry of the matrix: its real and its imaginary part, in the type of the blocks."""
        stored = _real(8 * real_bytes(self.kernel.dtype_matrix))
        parts = parts_of(self.kernel.dtype_matrix)
        address = self.new(f"getelementptr [{parts} x {stored}], ptr %values, i64 {at}")
        found = []
        for part in range(parts):
            place = self.new(f"getelementptr {stored}, ptr {address}, i64 {part}")
            value = self.new(f"load {stored}, ptr {place}")
            found.append(value if stored == self.real else self.new(f"fpext {stored} {value} to {self.real}"))
        return found

    def splat(self, value: str, length: int) -> str:
        """Repeat a real number, once for all vectors of a length."""
        if (value, length) not in self.splats:
            kind = f"<{length} x {self.real}>"
            first = self.new(f"insertelement {kind} poison, {self.real} {value}, i64 0")
            repeated = f"shufflevector {kind} {first}, {kind} poison, <{length} x i32> zeroinitializer"
            self.splats[value, length] = self.new(repeated)
        return self.splats[value, length]

    def multiply_add(self, a: str, b: str, c: str, length: int, name: str = "") -> str:
        """Compute a b + c, in one rounding where the processor can."""
        kind, function = f"<{length} x {self.real}>", f"@llvm.fmuladd.v{length}f{self.bits}"
        self.declared.add(f"declare {kind} {function}({kind}, {kind}, {kind})")
        return self.new(f"call {kind} {function}({kind} {a}, {kind} {b}, {kind} {c})", name)

    def turn(self, value: str, length: int) -> str:
        """Multiply complex numbers by i: (a, b) to (-b, a)."""
        kind = self.real
        swapped = ", ".join(f"i32 {lane ^ 1}" for lane in range(length))
        signs = ", ".join(f"{kind} {'1.0' if lane % 2 else '-1.0'}" for lane in range(length))
        vector = f"<{length} x {kind}>"
        other = self.new(f"shufflevector {vector} {value}, {vector} poison, <{length} x i32> <{swapped}>")
        return self.new(f"fmul {vector} {other}, <{signs}>")

    # --- rows of blocks ----------------------------------------------------------------------------

    def addresses(self, block: str, row: str) -> list[str]:
        """Compute the addresses of the vectors of a row."""
        parts, by_columns = self.kernel.parts, self.kernel.by_columns
        offset = self.new(f"mul nsw i64 {row}, {parts if by_columns else f'%ld{block}'}")
        if by_columns:
            columns = [f"%{block}{vector}" for vector in range(len(self.lengths))]
            return [self.new(f"getelementptr {self.real}, ptr {base}, i64 {offset}") for base in columns]
        return self.places(self.new(f"getelementptr {self.real}, ptr %{block}, i64 {offset}"))

    def places(self, base: str) -> list[str]:
        """Compute the addresses of vectors that are one after the other."""
        return [self.new(f"getelementptr {self.real}, ptr {base}, i64 {begin}") for begin in self.begins]

    def load(self, places: list[str]) -> list[str]:
        align = self.bits // 8
        return [self.new(f"load {self.vector(k)}, ptr {at}, align {align}") for k, at in enumerate(places)]

    # --- factors -----------------------------------------------------------------------------------

    def load_factors(self) -> dict[str, list[list[str]]]:
        """Load all factors: real and imaginary parts, per vector of a row; none for a factor of one."""
        found: dict[str, list[list[str]]] = {}
        for number, name in enumerate(FACTORS):
            found[name] = []
            for part in range(self.parts_of(name)):
                place = self.new(f"getelementptr {self.real}, ptr %factors, i64 {2 * number + part}")
                value = self.new(f"load {self.real}, ptr {place}")
                found[name].append([self.splat(value, length) for length in self.lengths])
        starts = (part * self.kernel.lanes for part in range(self.parts_of("shift")))
        shifts = (self.new(f"getelementptr {self.real}, ptr %shifts, i64 {start}") for start in starts)
        return found | {"shift": [self.load(self.places(shift)) for shift in shifts]}

    def parts_of(self, factor: str) -> int:
        """Count the numbers to multiply by for a factor."""
        return {"real": 1, "complex": 2}.get(getattr(self.kernel, factor), 0)

    def scaled(self, parts: list[list[str]], row: list[str], added: list[str] | None = None) -> list[str]:
        """Multiply a row by a factor and add another row."""
        found = []
        for k, value in enumerate(row):
            length, kind = self.lengths[k], self.vector(k)
            rest = None if added is None else added[k]
            if not parts:
                found.append(value if rest is None else self.new(f"fadd {kind} {value}, {rest}"))
                continue
            terms = [(parts[0][k], value)]
            if len(parts) == 2:
                terms.append((parts[1][k], self.turn(value, length)))
            for a, b in reversed(terms):
                if rest is None:
                    rest = self.new(f"fmul {kind} {a}, {b}")
                else:
                    rest = self.multiply_add(a, b, rest, length)
            found.append(str(rest))
        return found

    # --- the function ------------------------------------------------------------------------------

    def text(self) -> str:
        factors = self.load_factors()
        if self.kernel.by_columns:
            for block in "xy":
                for column in range(self.kernel.width):
                    offset = self.new(f"mul nsw i64 %ld{block}, {column}")
                    self.do(f"%{block}{column} = getelementptr {self.real}, ptr %{block}, i64 {offset}")
        self.do("%any = icmp slt i64 %begin, %end")
        self.do("br i1 %any, label %rows, label %done")
        self.label("rows")
        first = self.load_integer(self.pointer, "%pointers", "%begin")
        self.do("br label %row")

        latch = "row.next" if self.kernel.dots else "row.end"
        self.label("row")
        self.do(f"%i = phi i64 [ %begin, %rows ], [ %i.next, %{latch} ]")
        self.do(f"%p = phi i64 [ {first}, %rows ], [ %last, %{latch} ]")
        for name, k in self._dots():
            self.do(f"{name} = phi {self.vector(k)} [ zeroinitializer, %rows ], [ {name}.kept, %row.next ]")
        self.do("%i.next = add nsw i64 %i, 1")
        self.load_integer(self.pointer, "%pointers", "%i.next", "%last")
        self._prefetch()
        self.do("%empty = icmp sge i64 %p, %last")
        self.do("br i1 %empty, label %row.end, label %entry")
        self._entries()

        self.label("row.end")
        self._finish(self._collect(), factors)
        if self.kernel.dots:
            self._flush()
        self.do("%again = icmp slt i64 %i.next, %end")
        self.do("br i1 %again, label %row, label %done")
        self.label("done")
        self.do("ret void")
        head = f"define void @kernel({ARGUMENTS}) nounwind {{\nentry.block:"
        return "\n".join([head, *self.lines, "}", *sorted(self.declared), ""])

    def _prefetch(self) -> None:
        """Prefetch values and indices of later rows; addresses beyond the end are ignored."""
        kernel = self.kernel
        entry = itemsize(kernel.dtype_matrix)
        self.declared.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        for array, size in (("%values", entry), ("%indices", kernel.index_bytes)):
            base = self.new(f"getelementptr [{size} x i8], ptr {array}, i64 %last")
            for line in range(ceil_div(kernel.lines * size, entry)):
                offset = AHEAD_BYTES * size // entry + line * LINE_BYTES
                address = self.new(f"getelementptr i8, ptr {base}, i64 {offset}")
                self.do(f"call void @llvm.prefetch.p0(ptr {address}, i32 0, i32 3, i32 1)")

    def _products(self) -> list[tuple[int, int]]:
        """List the sums of a row: by part of the matrix's entries, and by vector."""
        parts = parts_of(self.kernel.dtype_matrix)
        return [(part, k) for part in range(parts) for k in range(len(self.lengths))]

    def _entries(self) -> None:
        """Write the loop over the entries of a row."""
        self.label("entry")
        self.do("%q = phi i64 [ %p, %row ], [ %q.next, %entry ]")
        for part, k in self._products():
            name = f"%s{part}.{k}"
            self.do(f"{name} = phi {self.vector(k)} [ zeroinitializer, %row ], [ {name}.next, %entry ]")
        column = self.load_integer(self.index, "%indices", "%q")
        values = self.load_value("%q")
        row = self.load(self.addresses("x", column))
        for part, k in self._products():
            length, name = self.lengths[k], f"%s{part}.{k}"
            self.multiply_add(self.splat(values[part], length), row[k], name, length, f"{name}.next")
        self.do("%q.next = add nsw i64 %q, 1")
        self.do("%more = icmp slt i64 %q.next, %last")
        self.do("br i1 %more, label %entry, label %row.end")

    def _collect(self) -> list[str]:
        """Select the sums of a row, which are zero without entries; add up its parts."""
        found = {}
        for part, k in self._products():
            found[part, k] = self.new(
                f"phi {self.vector(k)} [ zeroinitializer, %row ], [ %s{part}.{k}.next, %entry ]"
            )
        row = [found[0, k] for k in range(len(self.lengths))]
        if (1, 0) not in found:
            return row
        turned = [self.turn(found[1, k], length) for k, length in enumerate(self.lengths)]
        return [self.new(f"fadd {self.vector(k)} {a}, {turned[k]}") for k, a in enumerate(row)]

    def _finish(self, row: list[str], factors: dict[str, list[list[str]]]) -> None:
        kernel = self.kernel
        X: list[str] = []
        if kernel.shift != "none" or any("x" in name for name in kernel.dots):
            X = self.load(self.addresses("x", "%i"))
        if kernel.shift != "none":
            minus = [self.new(f"fneg {self.vector(k)} {x}") for k, x in enumerate(X)]
            row = self.scaled(factors["shift"], minus, row)
        row = self.scaled(factors["alpha"], row)
        if kernel.beta != "zero":
            row = self.scaled(factors["beta"], self.load(self.addresses("y", "%i")), row)
        for k, place in enumerate(self.addresses("y", "%i")):
            self.do(f"store {self.vector(k)} {row[k]}, ptr {place}, align {self.bits // 8}")
        blocks = {"x": X, "y": row}
        for number, (name, turned) in enumerate(kernel.dot_rows):
            for k, length in enumerate(self.lengths):
                left, right = (blocks[block][k] for block in name)
                right = self.turn(right, length) if turned else right
                dot = f"%d{number}.{k}"
                self.multiply_add(left, right, dot, length, f"{dot}.next")

    def _dots(self) -> list[tuple[str, int]]:
        """List the names of the vectors of dots, each with the number of its vector of a row."""
        return [(f"%d{n}.{k}", k) for n in range(len(self.kernel.dot_rows)) for k in range(len(self.lengths))]

    def _flush(self) -> None:
        """After some rows, and the last, add the dots to those in memory, and begin again with zero."""
        self.do(f"%chain = and i64 %i.next, {DOT_ROWS - 1}")
        self.do("%is.full = icmp eq i64 %chain, 0")
        self.do("%is.last = icmp eq i64 %i.next, %end")
        self.do("%is.due = or i1 %is.full, %is.last")
        self.do("br i1 %is.due, label %flush, label %row.next")
        self.label("flush")
        for at, (name, k) in enumerate(self._dots()):
            begin = at // len(self.lengths) * self.kernel.lanes + self.begins[k]
            kind, value = f"<{self.lengths[k]} x double>", f"{name}.next"
            if self.real == "float":
                value = self.new(f"fpext {self.vector(k)} {value} to {kind}")
            place = self.new(f"getelementptr double, ptr %sums, i64 {begin}")
            before = self.new(f"load {kind}, ptr {place}, align 8")
            self.do(f"store {kind} {self.new(f'fadd {kind} {before}, {value}')}, ptr {place}, align 8")
        self.do("br label %row.next")
        self.label("row.next")
        for name, k in self._dots():
            kept = f"[ zeroinitializer, %flush ], [ {name}.next, %row.end ]"
            self.do(f"{name}.kept = phi {self.vector(k)} {kept}")


def _real(bits: int) -> str:
    return "double" if bits == 64 else "float"
