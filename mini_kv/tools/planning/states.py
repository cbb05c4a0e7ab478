"""The tensors that a layer with a state keeps per request: their shapes, for each kind of layer.

    layer              keeps                                             vLLM 0.33
    mamba1             a convolution's inputs, a state per channel       mamba1_state_shape
    mamba2             a convolution's inputs, a matrix per head         mamba2_state_shape
    gated_delta_net    a convolution's inputs, a matrix per value head   gated_delta_net_state_shape
    kda, kimi_k3_kda   a convolution's inputs, a matrix per head         kda_state_shape
    short_conv         a convolution's inputs                            short_conv_state_shape

Each of several cards keeps its share of heads and channels. The convolution keeps one more input per draft.
Source: vLLM 0.33, `MambaStateShapeCalculator` (model_executor/layers/mamba/mamba_utils.py).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import MambaSpec

Shapes = tuple[tuple[int, ...], ...]
GDN_PREFILL_BACKENDS = {"flashinfer": 64, "triton": None}
"""Tokens between positions where a prefill's kernel can export a state. `None`: it cannot. vLLM uses FlashInfer's
kernel on Hopper and Blackwell, and Triton's elsewhere."""


@dataclass(frozen=True, slots=True)
class StateLayer:
    """A kind of layer with a state, and its sizes."""

    kind: str
    sizes: Mapping[str, int]
    """The sizes, by the argument names of the functions below."""
    state_bytes: int
    """Bytes per number of the recurrent state."""
    conv_bytes: int = field(default=2)
    """Bytes per number of the convolution's inputs."""

    def make_spec(
        self, block_size: int, tensor_parallel_size: int, num_speculative_tokens: int, gdn_prefill_backend: str
    ) -> MambaSpec:
        """Return one card's spec of the state. Raises `ConfigError` for sizes that do not divide."""
        shapes = SHAPES[self.kind](tensor_parallel_size, num_speculative_tokens, **self.sizes)
        alignments = {"mamba2": 1, "gated_delta_net": GDN_PREFILL_BACKENDS[gdn_prefill_backend], "kimi_k3_kda": 16}
        return MambaSpec(
            block_size,
            shapes=shapes,
            dtypes_bytes=(self.conv_bytes, self.state_bytes)[: len(shapes)],
            num_speculative_blocks=num_speculative_tokens,
            num_prefill_checkpoint_blocks=1 if alignments.get(self.kind) else 0,
            prefill_checkpoint_alignment=alignments.get(self.kind),
        )


def mamba1(cards: int, drafts: int, *, channels: int, state_size: int, kernel: int) -> Shapes:
    """Return the shapes of a Mamba 1 layer. It has no drafts in vLLM."""
    own = share(channels, cards, "channels")
    return (kernel - 1, own), (own, state_size)


def mamba2(cards: int, drafts: int, *, heads: int, head_size: int, groups: int, state_size: int, kernel: int) -> Shapes:
    """Return the shapes of a Mamba 2 layer. If the groups do not divide, each card keeps a whole one."""
    if groups % cards:
        groups = cards
    inputs = heads * head_size + 2 * groups * state_size
    return (kernel - 1 + drafts, share(inputs, cards, "channels")), (
        share(heads, cards, "heads"),
        head_size,
        state_size,
    )


def gated_delta_net(
    cards: int, drafts: int, *, key_heads: int, value_heads: int, key_size: int, value_size: int, kernel: int
) -> Shapes:
    """Return the shapes of a gated delta net."""
    inputs = 2 * key_heads * key_size + value_heads * value_size
    matrices = (share(value_heads, cards, "value heads"), value_size, key_size)
    return (kernel - 1 + drafts, share(inputs, cards, "channels")), matrices


def kda(cards: int, drafts: int, *, heads: int, head_size: int, kernel: int) -> Shapes:
    """Return the shapes of Kimi's delta attention. Kimi K3's kernel (FlashKDA) can export a state every 16 tokens."""
    inputs = (kernel - 1 + drafts, share(3 * heads * head_size, cards, "channels"))
    return inputs, (share(heads, cards, "heads"), head_size, head_size)


def short_conv(cards: int, drafts: int, *, channels: int, kernel: int) -> Shapes:
    """Return the shape of a short convolution, which has no other state."""
    return ((kernel - 1, share(channels, cards, "channels")),)


def share(number: int, cards: int, what: str) -> int:
    """Return one card's share. Raises `ConfigError` if the number does not divide evenly."""
    if number % cards:
        raise ConfigError(f"the layers with a state have {number:,} {what}: {cards} cards cannot share them evenly")
    return number // cards


SHAPES: dict[str, Callable[..., Shapes]] = {
    "mamba1": mamba1,
    "mamba2": mamba2,
    "gated_delta_net": gated_delta_net,
    "kda": kda,
    "kimi_k3_kda": kda,
    "short_conv": short_conv,
}
"""The function for the shapes of each kind. Its arguments are the cards, the drafts, and the kind's sizes."""
