"""Stand-ins for other trainers: their steps as values, and their kernels, layers and losses as
modules that allocate what the originals allocate. Values mean nothing.

Importing the package teaches brimful's rehearsal to trace a ForeignStep.
"""

from brimful.other_trainers.stand_ins import attention as attention
from brimful.other_trainers.stand_ins import rehearsal as rehearsal
from brimful.other_trainers.step import ForeignStep as ForeignStep
from brimful.other_trainers.step import LossChain as LossChain
from brimful.other_trainers.step import PeftAdapter as PeftAdapter
from brimful.other_trainers.step import TrainerQuirks as TrainerQuirks
