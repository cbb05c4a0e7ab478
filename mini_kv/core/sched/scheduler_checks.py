"""Checks of the scheduler's arguments: each raises before anything changes."""

from collections.abc import Mapping, Sequence

from mini_kv.core.errors import ConfigError, RepeatedRequestError, SchedulerError
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request, RequestStatus
from mini_kv.core.sched.config import SchedulerConfig, can_ever_run
from mini_kv.core.sched.output import SchedulerOutput
from mini_kv.core.sched.request_queue import RequestQueue
from mini_kv.core.sched.step import Step
from mini_kv.core.token_ids import MAX_TOKEN_ID, checked_token_ids


def check_new(
    kv: KVCacheManager, config: SchedulerConfig, requests: Mapping[str, Request], request: Request, max_tokens: int
) -> None:
    """Raise `RepeatedRequestError` if the id is in use. Raise `ConfigError` if the request could never finish."""
    if request.request_id in requests:
        raise RepeatedRequestError(request.request_id)
    if max_tokens < 1:
        raise ConfigError(f"max_tokens of request {request.request_id!r} is {max_tokens}, it must be at least 1")
    reason = can_ever_run(kv, config, request.num_tokens, max_slots(config, request, max_tokens))
    if reason is not None:
        raise ConfigError(f"request {request.request_id!r} of {request.num_tokens} tokens {reason}")


def max_slots(config: SchedulerConfig, request: Request, max_tokens: int) -> int:
    """Return the number of a request's tokens that will be computed: all but the last one."""
    return min(request.num_tokens + max_tokens, config.max_model_len) - 1


def check_parent(parent: Request | None, parent_id: str, is_step_under_way: bool) -> Request:
    """Return the parent. Raise `SchedulerError` unless it can be forked now."""
    if parent is None or parent.status is not RequestStatus.RUNNING:
        raise SchedulerError(f"request {parent_id!r} is not running: it has nothing to share")
    if is_step_under_way:
        raise SchedulerError("a step is under way: fork between steps")
    return parent


def check_progress(waiting: RequestQueue, running: Sequence[Request]) -> None:
    """Raise `SchedulerError` if requests wait and none runs: no later step would change that."""
    if waiting and not running:
        first = waiting.peek_request()
        message = f"{len(waiting)} requests wait, none runs, and the first of them, {first.request_id!r},"
        raise SchedulerError(f"{message} cannot be admitted: the engine would never make progress")


def check_is_under_way(step: Step | None, scheduler_output: SchedulerOutput) -> Step:
    """Return the step under way. Raise `SchedulerError` if `scheduler_output` is the plan of another step."""
    if step is None or scheduler_output is not step.output:
        raise SchedulerError("these are not the results of the step under way")
    return step


def check_drafts(kv: KVCacheManager, request: Request | None, request_id: str) -> Request:
    """Return the request. Raise `SchedulerError` unless drafts may be proposed for it now."""
    if request is None or request.status is not RequestStatus.RUNNING:
        raise SchedulerError(f"request {request_id!r} is not running: there is nothing to propose for it")
    if kv.coordinator.has_states:
        raise SchedulerError("a layer keeps states: drafts that are wrong cannot be taken back out of them")
    if request.num_computed_tokens < request.num_tokens - 1:
        raise SchedulerError(f"request {request_id!r} is still in its prompt: there is nothing to propose for it")
    return request


def checked_results(step: Step, sampled_token_ids: Mapping[str, Sequence[int]]) -> list[Request]:
    """Check the results of a step. Return its requests that still run, in the order of the batch."""
    requests = []
    all_drafts, running = step.output.scheduled_spec_decode_tokens, RequestStatus.RUNNING
    for request_id, num_tokens in step.output.num_scheduled_tokens.items():
        request = step.requests.get(request_id)
        if request is not None and request.status is running:
            drafts, sampled = all_drafts.get(request_id, ()), sampled_token_ids.get(request_id, ())
            if drafts or len(sampled) != 1 or request.num_computed_tokens + num_tokens < request.num_tokens:
                _check_sampled(request, num_tokens, drafts, sampled)
            if len(sampled) != 1 or type(sampled[0]) is not int or not 0 <= sampled[0] <= MAX_TOKEN_ID:
                checked_token_ids(sampled, first_index=request.num_tokens)
            requests.append(request)
    return requests


def _check_sampled(request: Request, num_tokens: int, drafts: Sequence[int], sampled: Sequence[int]) -> None:
    """Raise `SchedulerError` unless these new tokens can be the result of the step for the request."""
    num_computed_tokens = request.num_computed_tokens + num_tokens
    if num_computed_tokens < request.num_tokens:
        if sampled:
            raise SchedulerError(f"request {request.request_id!r} is still in its prompt, but has a new token")
        return
    num_accepted = len(sampled) - 1
    if not 0 <= num_accepted <= len(drafts) or list(sampled[:num_accepted]) != list(drafts[:num_accepted]):
        message = f"new tokens of request {request.request_id!r} are {list(sampled)}; its drafts were {list(drafts)}:"
        raise SchedulerError(f"{message} expected are those that were right, and one token more")
