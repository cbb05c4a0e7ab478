"""Which of the implementations to use: named by the caller, or chosen, with the reason."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mini_kv.attention.kv_cache import PagedKVCache
from mini_kv.attention.metadata import AttentionMetadata
from mini_kv.attention.options import AttentionOptions
from mini_kv.attention.reference import paged_attention_reference
from mini_kv.attention.torch_backend import paged_attention_torch
from mini_kv.core.errors import ConfigError

PagedAttention = Callable[[Tensor, PagedKVCache, AttentionMetadata, AttentionOptions], tuple[Tensor, Tensor]]
