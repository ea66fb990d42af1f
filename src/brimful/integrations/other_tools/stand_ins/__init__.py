"""Stand-ins for other trainers: their steps as values, and their kernels, layers and losses as
modules that allocate what the originals allocate. Values mean nothing.

Importing the package teaches brimful's rehearsal to trace a ForeignStep.
"""

from brimful.integrations.other_tools.stand_ins import attention as attention
from brimful.integrations.other_tools.stand_ins import rehearsal as rehearsal
from brimful.integrations.other_tools.step import ForeignStep as ForeignStep
from brimful.integrations.other_tools.step import LossChain as LossChain
from brimful.integrations.other_tools.step import PeftAdapter as PeftAdapter
from brimful.integrations.other_tools.step import TrainerQuirks as TrainerQuirks
