"""Next-token prediction over whole sequences."""

from brimful.training.method import Method, next_token_loss_sum

METHOD = Method(loss_sum=next_token_loss_sum)
