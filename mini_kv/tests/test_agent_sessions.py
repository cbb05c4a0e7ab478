"""Made sessions of coding agents: their histories grow, are rewritten, and have the published proportions."""

import random
from itertools import islice, pairwise
from statistics import median, quantiles

import pytest

from mini_kv.tools.traces.generators import SIXTEENTH, agent_sessions
from mini_kv.tools.traces.readers.token_trace import TokenRequest


@pytest.fixture(scope="module")
def trace() -> list[TokenRequest]:
    """Three thousand requests."""
    return list(islice(agent_sessions(random.Random(0)), 3000))


@pytest.fixture(scope="module")
def sessions(trace: list[TokenRequest]) -> list[list[TokenRequest]]:
    """The same requests by session: each begins with the first tokens of its own task."""
    found: dict[tuple[int, ...], list[TokenRequest]] = {}
    for request in trace:
        begin = SIXTEENTH.tools if request.token_ids[:100] == trace[0].token_ids[:100] else SIXTEENTH.subagent_tools
        found.setdefault(request.token_ids[begin : begin + 50], []).append(request)
    return list(found.values())


def test_prompts_share_the_tools_and_nothing_else(sessions: list[list[TokenRequest]]) -> None:
    """Those of the sessions begin with one text, those of the subagents with another. Then each has its own task."""
    firsts = [requests[0].token_ids for requests in sessions]
    assert len({prompt[: SIXTEENTH.subagent_tools] for prompt in firsts}) == 2
    own = [prompt for prompt in firsts if prompt[0] == firsts[0][0]]
    assert len({prompt[: SIXTEENTH.tools] for prompt in own}) == 1
    assert len({prompt[SIXTEENTH.tools] for prompt in own}) > len(own) / 2


def test_a_history_only_grows_until_it_is_rewritten(sessions: list[list[TokenRequest]]) -> None:
    """Each prompt begins with the prompt before it. A history above the limit is the last of its kind."""
    for requests in sessions:
        for earlier, later in pairwise(requests):
            assert later.token_ids[: earlier.input_length] == earlier.token_ids
            assert earlier.input_length <= SIXTEENTH.limit
            assert later.timestamp > earlier.timestamp


def test_times_and_lengths_have_the_published_proportions(
    trace: list[TokenRequest], sessions: list[list[TokenRequest]]
) -> None:
    """The medians of answers and of growth, of the time to the next request, and its tail."""
    assert trace == sorted(trace, key=lambda request: request.timestamp)
    pairs = [pair for requests in sessions for pair in pairwise(requests)]
    growth = [later.input_length - earlier.input_length for earlier, later in pairs]
    pauses = [(later.timestamp - earlier.timestamp) / 1000 for earlier, later in pairs]
    assert 16 * median(request.output_length for request in trace) == pytest.approx(216, rel=0.1)
    assert 16 * median(growth) == pytest.approx(656, rel=0.2)
    assert median(pauses) == pytest.approx(18, rel=0.1)  # of all published requests
    assert quantiles(pauses, n=10)[-1] == pytest.approx(130, rel=0.2)
