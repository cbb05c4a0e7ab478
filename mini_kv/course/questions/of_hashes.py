"""Questions of lab-04: which block hashes of two prompts are equal, and how often the hash function is called."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mini_kv.core.block_hash import sha256
from mini_kv.core.request import MultiModalFeature, Request
from mini_kv.course.questions.question import BLOCK_SIZE, Call, Question, from_letters, letters

LAB = "lab-04"
ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def questions_of_hashes(rng: random.Random, make_hasher: Callable[..., Any]) -> Iterator[Question]:
    """Yield one question of each kind about the learner's hasher."""
    yield from _equal_hashes(rng, make_hasher)
    yield from _different_hashes(rng, make_hasher)
    yield from _num_calls(rng, make_hasher)


def _equal_hashes(rng: random.Random, make_hasher: Callable[..., Any]) -> Iterator[Question]:
    """Ask how many hashes two prompts have in common. They differ in a token, or in an image."""
    first = from_letters("".join(rng.choices(ALPHABET, k=rng.randint(13, 22))))
    place = rng.randrange(BLOCK_SIZE, len(first) - 1)
    has_image = rng.random() < 0.5
    second = first if has_image else (*first[:place], _other(rng, first[place]), *first[place + 1 :])
    image = [MultiModalFeature("cat", place, rng.randint(1, 3))] if has_image else []
    hasher = make_hasher(BLOCK_SIZE)
    hashes = [
        Request("A", first, block_hasher=hasher).block_hashes,
        Request("B", second, block_hasher=hasher, mm_features=image).block_hashes,
    ]
    same = sum(one == other for one, other in zip(*hashes, strict=True))
    state = [f"A  {letters(first)}", f"B  {letters(second)}"]
    if has_image:
        state.append(f"B has an image of {image[0].length} tokens, the first at position {place}. A has none.")
    calls = (Call("hash", "A", first), Call("hash", "B", second, *((place, image[0].length) if has_image else ())))
    if 0 < same < len(hashes[0]):
        ask = "Blocks have 4 tokens, and positions are counted from 0. How many block hashes of A and B are equal?"
        yield Question(LAB, "equal hashes", ask, tuple(state), str(same), _shown(hashes), calls, merit=1 + has_image)


def _different_hashes(rng: random.Random, make_hasher: Callable[..., Any]) -> Iterator[Question]:
    """Ask for the number of different hashes of three prompts that share a beginning, or a block elsewhere."""
    blocks = ["".join(rng.choices(ALPHABET, k=BLOCK_SIZE)) for _ in range(3)]
    texts = ["".join(rng.choices(blocks, k=rng.randint(2, 4))) + rng.choice(ALPHABET) for _ in range(3)]
    hasher = make_hasher(BLOCK_SIZE)
    prompts = [from_letters(text) for text in texts]
    hashes = [
        Request(name, prompt, block_hasher=hasher).block_hashes for name, prompt in zip("ABC", prompts, strict=True)
    ]
    total, num_different = sum(map(len, hashes)), len({each for row in hashes for each in row})
    contents = len(
        {text[start : start + BLOCK_SIZE] for text in texts for start in range(0, len(text) - 1, BLOCK_SIZE)}
    )
    if contents < num_different < total:
        ask = "Blocks have 4 tokens. How many different block hashes do the three prompts have together?"
        state = tuple(f"{name}  {letters(prompt)}" for name, prompt in zip("ABC", prompts, strict=True))
        calls = tuple(Call("hash", name, prompt) for name, prompt in zip("ABC", prompts, strict=True))
        yield Question(LAB, "different hashes", ask, state, str(num_different), _shown(hashes), calls, merit=2)


def _num_calls(rng: random.Random, make_hasher: Callable[..., Any]) -> Iterator[Question]:
    """Ask how often the hash function is called while a request is made, or while it grows."""
    count: list[int] = []

    def counted(data: bytes) -> bytes:
        count.append(len(data))
        return sha256(data)

    prompt = from_letters("".join(rng.choices(ALPHABET, k=rng.randint(5, 14))))
    output = from_letters("".join(rng.choices(ALPHABET, k=rng.randint(5, 13))))
    request = Request("A", prompt, block_hasher=make_hasher(BLOCK_SIZE, counted))
    num_at_start = len(count)
    for token in output:
        request.append_output_token_ids(token)
    grows = rng.random() < 0.7
    answer = len(count) - num_at_start if grows else num_at_start
    done = f"A has been made with this prompt. Then it gets {len(output)} tokens, one by one" if grows else "A is made"
    ask = f"Blocks have 4 tokens. {done}. How many calls of the hash function does that take?"
    proof = (f"making A: {num_at_start} calls", f"{len(output)} tokens, one by one: {len(count) - num_at_start} calls")
    if answer > 1:
        calls = (Call("hash", "A", prompt), Call("grow", "A", output, int(grows)))
        yield Question(LAB, "hash calls", ask, (f"A  {letters(prompt)}",), str(answer), proof, calls, merit=1 + grows)


def _other(rng: random.Random, token: int) -> int:
    return rng.choice([ord(letter) for letter in ALPHABET if ord(letter) != token])


def _shown(hashes: Sequence[Sequence[bytes]]) -> tuple[str, ...]:
    """Return the beginnings of each prompt's hashes."""
    return tuple(
        f"block_hashes of {name}: {' '.join(each.hex()[:6] for each in row)}"
        for name, row in zip("ABC", hashes, strict=False)
    )
