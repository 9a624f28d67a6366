"""What all kernels have in common: a launch, memory that is read and written, operations."""

from kernbench.hw.library import Library
from kernbench.topology.spec import KernelSpec


def streamed_ps(
    library: Library,
    kernel: KernelSpec,
    nbytes: int,
    operations: int = 0,
    *,
    launches: int | None = None,
) -> int:
    """Returns the picoseconds of kernels that read and write memory, with their launches.

    Args:
        kernel: What the machine's file says of the kernel.
        nbytes: Bytes read and bytes written, by all launches together.
        operations: Operations of the MATH engines.
        launches: How many launches there are, one after another; by default those of the kernel.
    """
    duration: int = library.elementwise(nbytes * 100 // kernel.share, operations)
    more = (kernel.launches if launches is None else launches) - 1
    return duration + more * library.elementwise(0, 0) if more > 0 else duration


def by_rows(kernel: KernelSpec, nbytes: int, rows: int) -> int:
    """Returns the bytes of which as many rows as very many take as long as these rows.

    A block that has a row for itself waits for the row's bytes, and few blocks do not fill the
    memory's queue: `few` of `KernelSpec`.

    Args:
        kernel: What the machine's file says of the kernel.
        nbytes: Bytes read and bytes written.
    """
    return nbytes + nbytes * kernel.few // max(1, rows)


def alone_ps(library: Library, kernel: KernelSpec, nbytes: int, elements: int, columns: int) -> int:
    """Returns the picoseconds of kernels in which one block reads all of a row, or of a channel.

    However short rows are, each takes `row` operations.

    Args:
        kernel: What the machine's file says of the kernel.
        nbytes: Bytes read and bytes written, by all launches together.
        elements: Elements of all rows.
        columns: Elements of a row, for which a PE takes `alone` each.
    """
    operations = max(kernel.element * elements, kernel.alone * columns * library.num_pes)
    operations = max(operations, kernel.row * (elements // max(1, columns)))
    return streamed_ps(library, kernel, nbytes, operations)
