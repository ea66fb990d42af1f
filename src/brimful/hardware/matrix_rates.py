"""Rates of this CPU's matrix products, and what a new shape costs: kept from earlier starts, else
measured.
"""

import functools
import statistics
import time

from brimful.base.env import hidden_instructions
from brimful.base.kept_values import kept_value
from brimful.hardware import host, kept_rates
from brimful.hardware.calibration import current_versions
from brimful.hardware.contention import CoreWatch
from brimful.hardware.kept_rates import MatrixRates

MATRIX_DTYPES = ("fp32", "bf16")
NEW_SHAPES, WIDTH, FIRST_ROWS = 9, 256, 211
"""Number of matrix products that are timed, their width, and the rows of the first; each further
one has a row more, so that oneDNN has no kernel for it yet.
"""


def matrix_rates(device_name: str) -> MatrixRates:
    """Return the rates of one thread: kept ones while they hold, else measured, which takes about
    half a second. Of all measurements the fastest counts.
    """
    kept = kept_rates.read_kept(device_name)
    if kept.matrix and kept.is_fresh(kept.matrix.made, kept.matrix.lost_share, time.time()):
        return kept.matrix
    # Both bring torch.
    import torch  # noqa: PLC0415

    from brimful.hardware import calibrate  # noqa: PLC0415

    with CoreWatch() as watch:
        measured = calibrate.measure_matrix_rates(torch.device("cpu"), MATRIX_DTYPES)
    threads = torch.get_num_threads()
    return kept_rates.keep_matrix_rates(
        device_name,
        {dtype: rate / threads for dtype, rate in measured.items()},
        watch.lost_share,
        has_bf16_instructions=host.cpu_has_bf16(),
    )


def bf16_pays_here() -> bool:
    """Return whether products in bf16 are so much faster on this CPU that casting to it pays."""
    return matrix_rates(host.cpu_name()).bf16_pays


def new_product_s() -> float:
    """Return how many seconds longer the first bf16 matrix product of a shape takes on this CPU
    than the next one: oneDNN makes a kernel for each new shape. The median of NEW_SHAPES products,
    kept from an earlier start, else measured in some 10 milliseconds.
    """
    made_from = [host.cpu_name(), current_versions(), hidden_instructions()]
    return float(kept_value("new-product", made_from, _measure_new_product_s))


@functools.cache
def _measure_new_product_s() -> float:
    """Measured once in a process, because oneDNN keeps the kernels that it made."""
    import torch  # noqa: PLC0415

    weight, longer_s = torch.ones(WIDTH, WIDTH, dtype=torch.bfloat16), list[float]()
    with torch.no_grad():
        for rows in range(FIRST_ROWS, FIRST_ROWS + NEW_SHAPES):
            inputs = torch.ones(rows, WIDTH, dtype=torch.bfloat16)
            times_s = [time.thread_time()]
            for _ in range(2):
                inputs @ weight
                times_s.append(time.thread_time())
            longer_s.append(2 * times_s[1] - times_s[0] - times_s[2])
    return max(0.0, statistics.median(longer_s))
