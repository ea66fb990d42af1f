"""Next-token prediction over whole sequences; every parameter is trained."""

from brimful.training.method import Method, next_token_loss_sum

METHOD = Method(loss_sum=next_token_loss_sum, trains=lambda name, parameter: True)
