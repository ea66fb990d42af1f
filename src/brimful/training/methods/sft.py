"""Supervised fine-tuning of a published model on examples: its adapters are trained if it has some,
otherwise every parameter.
"""

from brimful.training.method import Method, next_token_loss_sum

METHOD = Method(
    loss_sum=next_token_loss_sum,
    trains=lambda name, parameter: parameter.requires_grad,
)
