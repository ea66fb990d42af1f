"""What brimful adds to transformers: attention functions, and the model of OKADFA."""

from brimful.model import attention
from brimful.model.okadfa import modeling


def register() -> None:
    """Make them known by name; as often as you like."""
    attention.register()
    modeling.register()
