"""Compares two prompts: the first difference, its block, and the inputs in which the block hashes differ."""

from dataclasses import dataclass

from mini_kv.core.block_hash import generate_block_hash_extra_keys
from mini_kv.tools.traces.prefix_overlap import common_length
from mini_kv.tools.traces.prompt_hashes import make_prompts, new_request
from mini_kv.tools.traces.readers.token_trace import TokenRequest


@dataclass(frozen=True, slots=True)
class Pair:
    """The hit of the second of two prompts on the blocks of the first."""

    num_tokens: tuple[int, int]
    block_size: int
    num_shared: int
    """Number of equal tokens at the beginning of both prompts."""
    num_hit: int
    """Tokens that the second would find in the cache."""
    differs: tuple[str, ...]
    """The inputs that differ in the hash of the first unshared block: parent, tokens, salt, adapter, image."""
    verdict: str
    """same, no shared prefix, too short, names, part."""

    def lines(self) -> list[str]:
        """Return the lines of the report, the answer first."""
        block, place = divmod(self.num_shared, self.block_size)
        answers = {
            "same": "B equals A in every token that the cache compares.",
            "no shared prefix": "There is no shared prefix: the first token differs.",
            "too short": f"There is a shared prefix of {self.num_shared:,} tokens, too short to fill a block of"
            f" {self.block_size:,}.",
            "names": f"{self.num_shared:,} tokens are equal, but {' and '.join(self.differs)} keep the blocks apart.",
            "part": f"They differ at token {self.num_shared:,}.",
        }
        lines = [f"{answers[self.verdict]} B finds {self.num_hit:,} of its {self.num_tokens[1]:,} tokens."]
        if self.num_shared < min(self.num_tokens):
            lines.append(f"They differ at token {self.num_shared:,}: token {place} of block {block}, counted from 0.")
        if self.differs:
            first = self.num_hit // self.block_size
            lines.append(f"The hash of block {first} differs in: {', '.join(self.differs)}.")
            lines.append("All blocks after it differ in: parent, since a hash covers all tokens before it.")
        if self.verdict == "same" and self.num_hit < self.num_shared:
            lines.append("Not found: the end that fills no block, and the last token, which is always computed.")
        return lines


def explain_pair(one: TokenRequest, other: TokenRequest, block_size: int) -> Pair:
    """Return the hit of `other` if it runs after `one`."""
    num_shared = common_length(one.token_ids, other.token_ids)
    chains = [prompt.block_hashes for prompt in make_prompts([one, other], block_size)]
    num_equal = common_length(*chains)
    num_hit = min(num_equal, (other.input_length - 1) // block_size) * block_size
    names = _names(one, other, num_equal, block_size)
    differs = ["tokens"] * (num_shared < (num_equal + 1) * block_size) + names
    if num_equal == min(map(len, chains)) and not names and num_shared == min(one.input_length, other.input_length):
        return Pair((one.input_length, other.input_length), block_size, num_shared, num_hit, (), "same")
    verdict = "part"
    if num_shared == 0:
        verdict = "no shared prefix"
    elif names and "tokens" not in differs:
        verdict = "names"
    elif num_shared < block_size:
        verdict = "too short"
    return Pair((one.input_length, other.input_length), block_size, num_shared, num_hit, tuple(differs), verdict)


def _names(one: TokenRequest, other: TokenRequest, block: int, block_size: int) -> list[str]:
    """Return the inputs of this block's hash, besides the tokens, that differ."""
    tags: list[set[tuple[str | int, ...]]] = []
    for entry in (one, other):
        keys = generate_block_hash_extra_keys(new_request(entry), block * block_size, (block + 1) * block_size)
        tags.append(set(keys))
    words = {"lora": "adapter", "mm": "image"}
    found = sorted({words[str(key[0])] for key in tags[0] ^ tags[1]})
    return (["salt"] if one.cache_salt != other.cache_salt else []) + found
