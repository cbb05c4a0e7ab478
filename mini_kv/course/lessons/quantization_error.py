"""The error of 8 bits, by the numbers that share a scale: `python -m mini_kv.course.lessons.quantization_error`.

Keys of real models have a few channels that are far larger than the rest, in every token. A number that shares a scale
with such a channel keeps few digits:

    tensor       all numbers share one scale                      the outlier sets it for all
    token        a token's numbers of one head share one          every token has the outlier: no better
    channel      a channel of a head shares one, over the tokens  the outlier affects only its own channel
    fp8          none: each number has its own exponent
"""

import torch
from torch import Tensor

from mini_kv.attention.quantized import (
    dequantize,
    quantize_per_channel,
    quantize_per_tensor,
    quantize_per_token_head,
    to_fp8,
)

_SCHEMES = ("tensor", "token", "channel", "fp8")


def _round_trip(x: Tensor, scheme: str) -> Tensor:
    """Return `[num_tokens, num_kv_heads, head_size]` after a round trip through 8 bits, in float32."""
    if scheme == "tensor":
        return dequantize(*quantize_per_tensor(x))
    if scheme == "token":
        return dequantize(*quantize_per_token_head(x))
    if scheme == "channel":
        quantized, scales = quantize_per_channel(x)
        return quantized.float() * scales
    return to_fp8(x, 1.0).float()


def errors(outlier: float, num_tokens: int = 512, head_size: int = 128, seed: int = 0) -> dict[str, dict[str, float]]:
    """Return the relative errors of each scheme, where one channel of the keys is `outlier` times as large.

    Keys and values are normally distributed, one head. By scheme:

        others     error of the keys' other channels: root mean square of the error by that of the numbers
        scores     error of the softmax's input, absolute: root mean square of the error
        output     error of the attention's result with quantized keys and exact values
        values     error of the attention's result with exact keys and quantized values (without outlier)
    """
    generator = torch.Generator().manual_seed(seed)
    keys, values = (torch.randn(num_tokens, 1, head_size, generator=generator) for _ in range(2))
    queries = torch.randn(64, head_size, generator=generator)
    keys[:, :, 7] *= outlier
    queries[:, 7] /= outlier  # else this channel alone would decide who is attended to
    others = [channel for channel in range(head_size) if channel != 7]
    exact = _attention(queries, keys, values)
    found = {}
    for scheme in _SCHEMES:
        near_keys, near_values = _round_trip(keys, scheme), _round_trip(values, scheme)
        scores = queries @ (near_keys - keys)[:, 0].T * head_size**-0.5
        found[scheme] = {
            "others": _relative(near_keys[:, :, others], keys[:, :, others]),
            "scores": float(scores.square().mean().sqrt()),
            "output": _relative(_attention(queries, near_keys, values), exact),
            "values": _relative(_attention(queries, keys, near_values), exact),
        }
    return found


def _attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    weights = torch.softmax(queries @ keys[:, 0].T * queries.shape[1] ** -0.5, dim=-1)
    return weights @ values[:, 0]


def _relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def main() -> None:
    """Print the table, without an outlier and with one of 60 times."""
    columns = ("others", "scores", "output", "values")
    for outlier in (1.0, 60.0):
        print(f"one channel of the keys {outlier:g} times as large as the others")
        print(f"{'a scale per':<12}" + "".join(f"{column:>10}" for column in columns))
        for scheme, row in errors(outlier).items():
            cells = (f"{row[column]:>10.2%}" if column != "scores" else f"{row[column]:>10.4f}" for column in columns)
            print(f"{scheme:<12}" + "".join(cells))


if __name__ == "__main__":
    main()
