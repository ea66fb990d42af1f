"""What notebooks call: which device is this, what would a recipe need here and elsewhere, train,
look, show, take home.

Nothing here loads a model or touches the GPU in the kernel: planning, training and answering are
processes of their own, so that the memory of the device is the training's alone, and so that
training goes on without the kernel. Needs Jupyter, Colab or Kaggle; no widgets.
"""

from brimful.notebook.devices import COMPARED, gpu, plan
from brimful.notebook.follow import sized, sized_changes, train, watch
from brimful.notebook.results import examples, report
from brimful.notebook.takeaway import download, drive, push

__all__ = [
    "COMPARED",
    "download",
    "drive",
    "examples",
    "gpu",
    "plan",
    "push",
    "report",
    "sized",
    "sized_changes",
    "train",
    "watch",
]
