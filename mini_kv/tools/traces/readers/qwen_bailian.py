"""The trace format of Qwen-Bailian: as Mooncake's, with blocks of 16 tokens, times in seconds, and each chat's parent.

    {"chat_id": 159, "parent_chat_id": 55, "timestamp": 61.114, "input_length": 40, "output_length": 132,
     "type": "text", "turn": 2, "hash_ids": [1089, 1090, 6326]}

`chat_id`, `parent_chat_id`, `type` and `turn` do not affect the cache and are ignored.

Source: github.com/alibaba-edu/qwen-bailian-usagetraces-anon ("KVCache Cache in the Wild", ATC'25).
"""

from mini_kv.tools.traces.readers.mooncake import TraceRequest, json_object, quote, request_in

BLOCK_SIZE = 16
"""Tokens per block, fixed by the format."""


def parse_bailian(raw: bytes, block_size: int = BLOCK_SIZE) -> TraceRequest:
    """Return the request in one line. Raises `ValueError`, which names the fault."""
    fields = json_object(raw)
    if "timestamp" in fields:
        seconds = fields["timestamp"]
        if type(seconds) not in (int, float):
            raise ValueError(f"timestamp is {quote(seconds)}: it must be a number of seconds")
        fields["timestamp"] = round(1000 * min(seconds, 10**15))  # what is too large is said below
    return request_in(fields, block_size)
