"""Rates of this CPU's matrix products: kept from earlier starts, else measured."""

import time

from brimful.hardware import host, kept_rates
from brimful.hardware.contention import CoreWatch
from brimful.hardware.kept_rates import MatrixRates

MATRIX_DTYPES = ("fp32", "bf16")


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
