"""The flash-attn package among transformers' attention implementations."""

from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from brimful.rehearsal.kernels import fused_attention

FLASH2 = "brimful_fa2"
FLASH2_REPEATED = "brimful_fa2_repeated"
"""Names of the stand-ins; the second one repeats keys and values for every query head."""


def _flash2(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The flash-attn package as transformers calls it: never a mask of scores. Padded batches are
    joined without their padding first (modeling_flash_attention_utils.py); as the share of padding
    is not known here, their tensors count whole and the joined copies not.
    """
    query, key, value = (tensor.transpose(1, 2) for tensor in (query, key, value))
    return fused_attention(query, key, value, kernel="flash"), None


def _flash2_repeated(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The same where keys and values are repeated for every query head first (Mistral's own class
    in transformers before 4.48).
    """
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (tensor.repeat_interleave(groups, dim=1) for tensor in (key, value))
    return _flash2(module, query, key, value, attention_mask)


def _padding_only(attention_mask: Tensor | None = None, **_: Any) -> Tensor | None:
    return attention_mask


for _name, _function in ((FLASH2, _flash2), (FLASH2_REPEATED, _flash2_repeated)):
    AttentionInterface.register(_name, _function)
    AttentionMaskInterface.register(_name, _padding_only)
