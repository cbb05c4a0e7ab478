"""lab-15, another way: a small pool for each sentence of the contract, and blocks of 3 tokens."""

from collections.abc import Callable, Sequence

from mini_kv.core.request import LoRARequest, Request
from mini_kv.course.given.manager_under_test import ManagerUnderTest, prefill

MakeManager = Callable[[int, int], ManagerUnderTest]


def equal(what: str, want: object, got: object) -> None:
    """Raise unless the two are equal."""
    if want != got:
        raise AssertionError(f"{what}: the contract says {want}, the manager {got}")


def send(kv: ManagerUnderTest, name: str, tokens: str) -> Request:
    """Compute a prompt of letters."""
    request = kv.new_request(name, [ord(letter) for letter in tokens])
    prefill(kv, request)
    return request


def hit(kv: ManagerUnderTest, tokens: str) -> int:
    """Look a prompt of letters up."""
    return kv.get_computed_blocks(kv.new_request("?", [ord(letter) for letter in tokens]))[1]


def ids(kv: ManagerUnderTest, name: str) -> list[int]:
    """Return a table."""
    return kv.get_block_ids(name)[0]


def check_sharing(make_manager: MakeManager) -> None:
    for tokens, want in (("abcdef", 3), ("abcdefg", 6), ("abcxyz", 3), ("xbcdefg", 0), ("abc", 0), ("abcd", 3)):
        kv = make_manager(12, 3)
        send(kv, "A", "abcdefghi")
        equal(f"hit of {tokens}", want, hit(kv, tokens))
    kv = make_manager(12, 3)
    send(kv, "A", "abcdefghi")
    send(kv, "B", "abcdefxyz")
    equal("shared blocks", ids(kv, "A")[:2], ids(kv, "B")[:2])
    equal("blocks in all", 4, len({*ids(kv, "A"), *ids(kv, "B")}))


def check_slots(make_manager: MakeManager) -> None:
    for length, want in ((1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (6, 2), (7, 3)):
        kv = make_manager(12, 3)
        send(kv, "A", "abcdefghi"[:length])
        equal(f"blocks for {length} tokens", want, len(ids(kv, "A")))
    kv = make_manager(12, 3)
    a = kv.new_request("A", range(9))
    for computed in (2, 3, 4, 6, 8):
        if kv.allocate_slots(a, computed - a.num_computed_tokens) is None:
            raise AssertionError("refused in a pool with room")
        a.num_computed_tokens = computed
        found = kv.get_computed_blocks(kv.new_request("B", range(9)))[1]
        equal(f"tokens found after {computed}", computed // 3 * 3, found)
    b = kv.new_request("B", range(50, 53))
    kv.allocate_slots(b, 3, num_lookahead_tokens=1)
    equal("blocks for 3 tokens and a lookahead token", 2, len(ids(kv, "B")))


def check_refusals(make_manager: MakeManager) -> None:
    for spare in (0, 1):
        kv = make_manager(5 + spare, 3)
        kv.free(send(kv, "A", "abcdef"))
        before = kv.block_pool.num_free_blocks, hit(kv, "abcdefg")
        b = kv.new_request("B", [ord(letter) for letter in "abcdefghijklmno"[: 13 + spare]])
        got = prefill(kv, b)
        equal(f"hit of B with 5 blocks needed and {4 + spare} free", 6 if spare else None, got)
        if got is None:
            equal("free blocks and hit after the refusal", before, (kv.block_pool.num_free_blocks, hit(kv, "abcdefg")))


def check_freeing(make_manager: MakeManager) -> None:
    for leaves_first in "AB":
        kv = make_manager(7, 3)
        requests = {"A": send(kv, "A", "abcde"), "B": send(kv, "B", "abcdefg")}
        stays = "B" if leaves_first == "A" else "A"
        kv.free(requests[leaves_first])
        equal("free blocks", 6 - len(ids(kv, stays)), kv.block_pool.num_free_blocks)
        send(kv, "C", "uvwxyz")
        equal("blocks of two requests", set(), {*ids(kv, "C")} & {*ids(kv, stays), 0})
        kv.free(requests[stays])
        equal("free blocks", 4, kv.block_pool.num_free_blocks)


def check_eviction(make_manager: MakeManager) -> None:
    def after(num_blocks: int, story: Sequence[str], keep: str = "") -> ManagerUnderTest:
        kv = make_manager(num_blocks + 1, 3)
        running = [(tokens, send(kv, tokens, tokens)) for tokens in story]
        for tokens, request in running:
            if tokens not in keep.split():
                kv.free(request)
        return kv

    kv = after(2, ["abcdef"])
    send(kv, "B", "x")
    equal("the head after one eviction", 3, hit(kv, "abcdefg"))
    kv = after(2, ["abcdef"])
    kv.free(send(kv, "B", "uvwxyz"))
    equal("the evicted prompt", 0, hit(kv, "abcdefg"))
    equal("the prompt that evicted it", 6, hit(kv, "uvwxyza"))
    kv = after(2, ["abc", "xyz"])
    send(kv, "C", "m")
    equal("the prompt that was freed first, and the other", [0, 3], [hit(kv, "abcd"), hit(kv, "xyza")])
    kv = after(3, ["abc", "x"])
    send(kv, "C", "mnop")
    equal("the cached prompt while others are free", 3, hit(kv, "abcd"))
    kv = make_manager(3, 3)
    twins = [send(kv, "A", "abc"), send(kv, "B", "abc")]
    kv.free(twins[1])
    send(kv, "C", "x")
    equal("the twin", 3, hit(kv, "abcd"))
    kv = make_manager(3, 3)
    twins = [send(kv, "A", "abc"), send(kv, "B", "abc")]
    kv.free(twins[0])
    send(kv, "C", "x")
    equal("the other twin", 3, hit(kv, "abcd"))


def check_identity(make_manager: MakeManager) -> None:
    one, two, moved = LoRARequest("one", "/one"), LoRARequest("two", "/two"), LoRARequest("one", "/two")
    of = [(salt, lora) for salt in (None, "s", "t") for lora in (None, one, two, moved)]
    kv = make_manager(50, 3)
    for number, (salt, lora) in enumerate(of):
        probe = kv.new_request(f"R{number}", range(7), cache_salt=salt, lora_request=lora)
        equal(f"hit of {salt}, {lora}", 0, prefill(kv, probe))
    again = kv.new_request("again", range(7), cache_salt="t", lora_request=two)
    equal("hit of a repeated identity", 6, kv.get_computed_blocks(again)[1])
    kv = make_manager(40, 3)
    prefill(kv, kv.new_request("A", [1, 11, 111, 5, 6, 7]))
    for tokens in ([11, 1, 111, 9], [111, 11, 1, 9], [5, 6, 7, 9], [2, 11, 111, 5, 6, 7, 9]):
        equal(f"hit of {tokens}", 0, kv.get_computed_blocks(kv.new_request("?", tokens))[1])
