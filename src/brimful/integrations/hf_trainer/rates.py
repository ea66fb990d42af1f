"""Predicted time of an optimizer step, where rates of the device are known without measuring."""

from collections.abc import Callable

from brimful.hardware import calibration, fitted
from brimful.hardware.device import Device
from brimful.hardware.guessed import guessed_rates
from brimful.planning.plan import Prediction
from brimful.planning.timing import UnknownRate, share_of, step_time
from brimful.planning.work import IrregularWork, Work


def predicted_step(
    work_at: Callable[[int], Work], micro_batches: tuple[int, ...], device: Device, precision: str
) -> Prediction | None:
    """Return the predicted seconds of a step over these micro-batches; None where no rate of the
    device is known. `brimful calibrate` measures those of this machine.

    Args:
        work_at: Gives the operators of a micro-batch.
        precision: Precision of the matrix products: fp32, bf16 or fp16.
    """
    calibrated = calibration.load(device, device.threads) if device.is_present else None
    rates = calibrated.rates if calibrated else fitted.rates_of(device) or guessed_rates(device)
    if rates is None:
        return None
    try:
        time = step_time(work_at, micro_batches, rates, precision=precision)
    except (UnknownRate, IrregularWork):
        return None
    low, high = share_of(rates, time)
    high_s = max(high * time.seconds, time.slowest_host_s)
    return Prediction(time.seconds, low * time.seconds, high_s, rates.source)
