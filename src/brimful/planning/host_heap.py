"""What the heap of a CPU loses between tensors.

brimful keeps freed memory in the process (`hardware.host.keep_freed_memory`), so all tensors lie in
one heap that only grows. Small objects settle behind freed tensors, whose places are then too small
for the next ones of the same size (docs/log).
"""

import numpy as np

from brimful.planning.plan import Prediction

HOST_SLACK = (0.1, 0.5)
"""Share of the live tensors that is lost, expected and at most. Chosen on eleven runs of fresh
models with passes of one length, 16 to 1,278 MiB of tensors: at most 0.16, and 0.47 with activation
checkpointing. Said 5.0 % off in the median (6.8 with glibc's heap simulated) and 15 at most (27).
"""
FEW_PASSES, MANY_PASSES = 10, 60
HELD_HOST_SLACK = {FEW_PASSES: (0.17, 1.0), MANY_PASSES: (0.6, 2.0)}
"""What is lost, expected and at most, as a share of what a pass holds for its gradients; by the
number of the run's passes of many lengths, and in between on a straight line. What the matrix
library keeps of each new length settles in holes that earlier passes left. At most: chosen on 45
tunings of 23M to 519M parameters, 2 to 4 passes each (at most 0.94), and on nine of SmolLM2-135M
and its conversions with 80 to 105 passes (1.20 to 1.88), in processes without `env.WHOLE_HEAP`, as
notebooks are. Expected: with it, chosen on tunings of SmolLM2-135M (docs/log).
"""


def host_reserved(allocated: float, held_bytes: float, varying_passes: int) -> Prediction:
    """Return the size of a CPU's heap.

    Args:
        allocated: Bytes of live tensors.
        held_bytes: Those of them that a pass holds for its gradients.
        varying_passes: Passes of many lengths that the run has; 0 where all are of one length.
    """
    lost, most_lost = (share * allocated for share in HOST_SLACK)
    if varying_passes:
        shares = zip(*HELD_HOST_SLACK.values(), strict=True)
        of_held, most = (np.interp(varying_passes, [*HELD_HOST_SLACK], each) for each in shares)
        lost = max(lost, float(of_held) * held_bytes)
        most_lost = max(most_lost, float(most) * held_bytes)
    basis = "live tensors, and a measured share between them"
    return Prediction(allocated + lost, allocated, allocated + most_lost, basis)
