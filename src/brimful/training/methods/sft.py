"""Supervised fine-tuning of a published model on examples: next-token prediction of answers."""

from brimful.training.method import Method, next_token_loss_sum

METHOD = Method(loss_sum=next_token_loss_sum)
