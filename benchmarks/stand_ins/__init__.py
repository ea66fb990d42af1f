"""Stand-ins for other trainers: their steps as values, and their kernels, layers and losses as
modules that allocate what the originals allocate. Values mean nothing.

Importing the package teaches brimful's rehearsal to trace a ForeignStep.
"""

from stand_ins import attention as attention
from stand_ins import rehearsal as rehearsal
from stand_ins.step import ForeignStep as ForeignStep
from stand_ins.step import LossChain as LossChain
from stand_ins.step import PeftAdapter as PeftAdapter
from stand_ins.step import TrainerQuirks as TrainerQuirks
