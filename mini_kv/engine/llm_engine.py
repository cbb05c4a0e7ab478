"""From prompts to texts: the loop around scheduler, model and sampling.

One step, from top to bottom:

    schedule            which requests run, with how many tokens, on which blocks
    execute_model       one forward for all of them; logits for those that need a new token
    sample              a token from each row of logits
    update_from_output  the requests get their tokens; finished requests free their blocks
    detokenize          text that may be shown
    propose             optional: drafts, which the next step checks (see `drafts`)

After an error in a step the requests of that step are aborted. The other requests are unaffected:
see `LLMEngine.step`.

Several samples of one prompt share its KV. The prompt is computed once, and its last logits are sampled several times.
Each further sample is forked from the first, with its block table.

Source: vLLM `LLMEngine` and `LLM` (v1/engine/llm_engine.py, entrypoints/llm.py), here one class in one process.
"""

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from mini_kv.core.errors import ConfigError, RepeatedRequestError
from mini_kv.core.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.kv_cache_planning import get_kv_cache_config, get_kv_cache_groups, with_cache_dtype
from mini_kv.core.sched.config import longest_request
from mini_kv.core.sched.output import SchedulerOutput
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.engine.config import DEFAULT_KV_CACHE_MEMORY, EngineConfig
from mini_kv.engine.detokenizer import IncrementalDetokenizer, TextTokenizer
from mini_kv.engine.drafts import NgramProposer, num_right
from mini_kv.engine.engine_stats import EngineStats, StatLogger
from mini_kv.engine.fingerprint import model_fingerprint, weights_epoch
from mini_kv.engine.interface import CausalLM
from mini_kv.engine.logprobs import gather_logprobs
from mini_kv.engine.model_runner import ModelRunner
from mini_kv.engine.output_processor import (
    Chosen,
    DeltaOutput,
    RequestOutput,
    RequestState,
    SampleState,
    collect,
    places_of,
    sample_name,
)
from mini_kv.engine.poison import FiniteAttend, KVPoison, check_logits
from mini_kv.engine.prompt_tokens import Prompt, check_request, params_per_prompt, prompt_token_ids
from mini_kv.engine.sampling import SamplingParams, sample_tokens
from mini_kv.engine.threads import is_small, one_thread


class LLMEngine:
    """Accepts prompts at any time. Each step computes all running requests: part of a prompt, or the next token."""

    def __init__(
        self,
        model: CausalLM,
        tokenizer: TextTokenizer | None = None,
        config: EngineConfig | None = None,
        *,
        make_groups: Callable[[Mapping[str, KVCacheSpec]], tuple[KVCacheGroupSpec, ...]] = get_kv_cache_groups,
        make_manager: Callable[..., KVCacheManager] = KVCacheManager,
        make_runner: Callable[..., ModelRunner] = ModelRunner,
        make_scheduler: Callable[..., Scheduler] = Scheduler,
    ) -> None:
        """Allocate the pool, and start without requests.

        Args:
            model: an object with the methods of `CausalLM`.
            tokenizer: without one, prompts are token ids, and outputs have no text.
            config: sizes. Of `max_model_len` and the model's own `max_position_embeddings` the smaller one counts.
            make_groups: makes the groups of layers, for a learner's own function.
            make_manager: makes the cache manager, for observers.
            make_runner: makes the runner, for observers.
            make_scheduler: makes the scheduler, for observers.

        Raises `ConfigError` for sizes that cannot work.
        """
        self.model, self.tokenizer = model, tokenizer
        config = config or EngineConfig()
        longest = min(config.scheduler.max_model_len, model.max_position_embeddings)
        limits = replace(config.scheduler, max_model_len=longest)
        self.config = config = replace(config, scheduler=limits)
        specs = with_cache_dtype(model.get_kv_cache_spec(config.block_size), config.kv_cache_dtype)
        groups = make_groups(specs)
        if config.num_blocks is not None:
            kv_cache_config = KVCacheConfig(config.num_blocks, groups)
        else:
            kv_cache_config = get_kv_cache_config(groups, config.kv_cache_memory_bytes or DEFAULT_KV_CACHE_MEMORY)
        self.kv_cache_manager = make_manager(
            kv_cache_config,
            enable_caching=config.enable_prefix_caching,
            model_fingerprint=model_fingerprint(model),
            weights_epoch=weights_epoch(model),
            max_in_flight_tokens=limits.max_num_batched_tokens + limits.num_lookahead_tokens,
        )
        self.scheduler = make_scheduler(self.kv_cache_manager, limits)
        self.model_runner = make_runner(
            model,
            kv_cache_config,
            max_num_seqs=limits.max_num_seqs,
            max_model_len=longest_request(self.kv_cache_manager, limits),
            backend=config.backend,
            wrap_attend=FiniteAttend if config.debug_poison else None,
        )
        self._poison = KVPoison(self.kv_cache_manager.block_pool, self.model_runner) if config.debug_poison else None
        speculative = config.speculative_config
        if speculative is not None and self.kv_cache_manager.coordinator.has_states:
            raise ConfigError(
                "speculative_config: a layer keeps states, and wrong drafts cannot be taken back out of them"
            )
        self.proposer = NgramProposer(speculative) if speculative is not None else None
        """Proposes drafts. `None`: no drafts, so a step computes one new token per request."""
        self.stats = EngineStats()
        self.stat_logger = StatLogger(self.scheduler, self.stats)
        self._samples: dict[str, SampleState] = {}
        """Unfinished samples by their id in the scheduler. A request without a sample here is unknown."""
        self._in_step: set[str] | None = None
        """Ids of the requests in the step under way. `None` between steps."""
        self._num_requests = 0
        self._has_small_model = is_small(model)

    # Requests come and go.

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        n: int = 1,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> None:
        """Add a request to the waiting queue.

        Args:
            request_id: an id that no unfinished request has.
            prompt: text, or token ids.
            params: the rules for choosing its tokens.
            n: number of samples.
            priority: the smallest is served first, if the scheduler's policy uses priorities.
            cache_salt: only requests with the same salt share blocks.

        Raises `PromptError`, `RepeatedRequestError`, or `ConfigError` for a request that could never finish or has a
        wrong salt. After these and any other exceptions no request is added.
        """
        params = params or SamplingParams()
        if n > 1 and self.kv_cache_manager.coordinator.has_states:
            raise ConfigError(f"n of request {request_id!r} is {n}, but a layer keeps states, which cannot be forked")
        check_request(self.config, self.tokenizer, request_id, params, n, cache_salt)
        token_ids = prompt_token_ids(request_id, prompt, self.model, self.tokenizer)
        names = [sample_name(request_id, index) for index in range(n)]
        in_use = {*self._samples, *(sample.request.request_id for sample in self._samples.values())}
        for name in names:
            if name in in_use:
                raise RepeatedRequestError(name)
        seed = params.seed if params.seed is not None else f"{self.config.seed}/{self._num_requests}"
        stop_token_ids = self._stop_token_ids(params)
        request = RequestState(request_id, token_ids, params, seed, stop_token_ids, priority, cache_salt)
        request.prompt = prompt if isinstance(prompt, str) else None
        request.all_stop_token_ids = stop_token_ids | self._eos_token_ids()
        samples = [
            SampleState(request, index, IncrementalDetokenizer(self.tokenizer, params.stop) if self.tokenizer else None)
            for index in range(n)
        ]
        samples[0].waiting_samples = samples[1:]
        try:
            self._enter(name=request_id, request=request, token_ids=token_ids, max_tokens=params.max_tokens)
            self._samples |= zip(names, samples, strict=True)
            self._num_requests += 1
        except BaseException:
            self._abort([request_id])
            raise

    def _stop_token_ids(self, params: SamplingParams) -> frozenset[int]:
        """Return the tokens that end a text: those of the request, and the model's own."""
        eos = self.tokenizer.eos_token_id if self.tokenizer is not None and not params.ignore_eos else None
        return frozenset(params.stop_token_ids if eos is None else [*params.stop_token_ids, eos])

    def _eos_token_ids(self) -> frozenset[int]:
        """Return the tokens that end the model's texts, whether or not a request ends there."""
        eos = self.tokenizer.eos_token_id if self.tokenizer is not None else None
        return frozenset([*getattr(self.model, "eos_token_ids", ()), *([] if eos is None else [eos])])

    def _enter(self, name: str, request: RequestState, token_ids: list[int], max_tokens: int) -> None:
        """Add one sample to the scheduler's waiting queue."""
        self.scheduler.add_request(
            self.kv_cache_manager.new_request(name, token_ids, cache_salt=request.cache_salt),
            max_tokens=max_tokens,
            stop_token_ids=request.stop_token_ids,
            priority=request.priority,
        )

    def abort(self, request_id: str) -> None:
        """End a request with all its samples, between two steps. An unknown id is ignored: it may just have ended."""
        self._abort([request_id])

    def _abort(self, request_ids: Collection[str]) -> None:
        """End the unfinished ones of these requests. If this is interrupted, all of them end, or none."""
        samples = self._samples.items()
        self._samples = {name: sample for name, sample in samples if sample.request.request_id not in request_ids}
        try:
            self._finish_unknown()
        except BaseException:
            self._finish_unknown()
            raise

    def _finish_unknown(self) -> None:
        """Abort the requests that only the scheduler has: the engine has removed them, or added only a part."""
        self.scheduler.finish_requests([name for name in self.scheduler.requests if name not in self._samples])

    @property
    def has_unfinished_requests(self) -> bool:
        """Whether `step` has anything to do."""
        return bool(self._samples)

    # One step.

    def step(self) -> list[DeltaOutput]:
        """Run one step and return the new outputs, in the order of the batch.

        Any exception, Ctrl-C too, is raised, and the engine can still be used. If it was raised while the step was
        planned, no request is aborted, and all are computed again: see `Scheduler.recover`. If it was raised later,
        by the model, a tokenizer or any other part, the requests of this step are aborted. The outputs of the other
        requests are unchanged.
        """
        if self._in_step is not None or not self.scheduler.requests.keys() <= self._samples.keys():
            self._give_up()  # a call was interrupted, and then its clean-up, too
        if not self.has_unfinished_requests:
            return []
        in_step: set[str] = set()
        try:
            with one_thread(self._has_small_model):
                self._in_step = in_step
                output = self.scheduler.schedule()
                in_step |= {self._samples[name].request.request_id for name in output.num_scheduled_tokens}
                deltas = self._run_step(output)
            self._in_step = None
            return deltas
        except BaseException:
            self._in_step = in_step  # the step may have been done, but not yet returned: its tokens are lost
            self._give_up()
            raise

    def _give_up(self) -> None:
        """Undo a failed step, and abort its requests. If this is interrupted, the next `step` does it again."""
        self.scheduler.abandon_step()
        self._abort(self._in_step or ())
        self._in_step = None

    def _run_step(self, output: SchedulerOutput) -> list[DeltaOutput]:
        """Run a planned step: model, sampling, and the requests that end."""
        request_ids, logits = self._execute(output)
        chosen = self._sample(request_ids, logits, output.scheduled_spec_decode_tokens)
        in_scheduler = {
            each.sample.name: each.token_ids for each in chosen if each.sample.name in self.scheduler.requests
        }
        self.model_runner.append_token_ids(in_scheduler)
        self._count(output, chosen)
        results = {result.request_id: result for result in self.scheduler.update_from_output(output, in_scheduler)}
        for each in chosen:
            result = results.get(each.sample.name)
            if result is None:
                each.finish_reason = self._begin_sample(each.sample, each.token_ids[0])
            else:
                each.keep(len(result.new_token_ids))
                each.finish_reason = result.finish_reason
        deltas = [delta for each in chosen for delta in each.deltas()]
        self.stats.num_generation_tokens += len(deltas)
        ended = [sample_name(delta.request_id, delta.index) for delta in deltas if delta.finish_reason]
        for name in ended:
            del self._samples[name]
        self.scheduler.finish_requests(ended)  # a stop string is news to it
        self._propose()
        return deltas

    def _propose(self) -> None:
        """Propose tokens for the requests with all tokens but the last computed. The next step checks them.

        A request without an own token gets none: its next step ends its prompt, where its other samples begin.
        """
        if self.proposer is None:
            return
        for request in self.scheduler.running:
            has_own_token = self._samples[request.request_id].num_tokens > 0
            if has_own_token and request.num_computed_tokens == request.num_tokens - 1:
                drafts = self.proposer.propose(request.token_ids, request.max_slots - request.num_tokens)
                self.scheduler.update_draft_token_ids(request.request_id, drafts)

    def _execute(self, output: SchedulerOutput) -> tuple[list[str], Tensor]:
        """Run the model on the step. In debug mode, first poison all memory that no request may read."""
        if self._poison is None:
            return self.model_runner.execute_model(output)
        self._poison.spread(output)
        request_ids, logits = self.model_runner.execute_model(output)
        check_logits(request_ids, logits)
        return request_ids, logits

    def _sample(self, request_ids: list[str], logits: Tensor, drafts: Mapping[str, Sequence[int]]) -> list[Chosen]:
        """Return the tokens of each sample: one per row of logits, up to the first draft that was wrong."""
        places, rows = places_of(request_ids, self._samples)
        if len(rows) > len(logits):
            logits = logits[rows]
        params = [sample.request.params for sample, _ in places]
        draws = [sample.draw(ahead) for sample, ahead in places]
        forbidden = [sample.forbidden_token_ids(ahead) for sample, ahead in places]
        token_ids = sample_tokens(logits, params, draws, forbidden)
        logprobs = gather_logprobs(logits, [choice.logprobs for choice in params], token_ids, self.tokenizer)
        chosen: dict[str, Chosen] = {}
        for (sample, _), token_id, logprob in zip(places, token_ids, logprobs, strict=True):
            each = chosen.setdefault(sample.name, Chosen(sample))
            each.token_ids.append(token_id)
            each.logprobs.append(logprob)
        for name in chosen.keys() & drafts.keys():
            chosen[name].keep(num_right(drafts[name], chosen[name].token_ids) + 1)
        return list(chosen.values())

    def _begin_sample(self, sample: SampleState, token_id: int) -> str | None:
        """Start a further sample after the prompt with its own first token. Return the reason if it ends there.

        It shares the first sample's blocks, if that one still runs and there is room. Otherwise it waits in the queue.
        """
        request = sample.request
        token_ids = [*request.prompt_token_ids, token_id]
        max_tokens = request.params.max_tokens - 1
        if token_id in request.stop_token_ids:
            return "stop"
        if max_tokens == 0 or len(token_ids) >= self.config.scheduler.max_model_len:
            return "length"
        if request.request_id in self.scheduler.requests:
            child = self.kv_cache_manager.new_request(sample.name, token_ids, cache_salt=request.cache_salt)
            if self.scheduler.fork_request(request.request_id, child, max_tokens=max_tokens):
                return None
        self._enter(sample.name, request, token_ids, max_tokens)
        return None

    def _count(self, output: SchedulerOutput, chosen: list[Chosen]) -> None:
        self.stats.num_steps += 1
        self.stats.num_scheduled_tokens += output.total_num_scheduled_tokens
        self.stats.num_draft_tokens += sum(len(drafts) for drafts in output.scheduled_spec_decode_tokens.values())
        self.stats.num_accepted_tokens += sum(len(each.token_ids) - 1 for each in chosen)
        for sample in (each.sample for each in chosen):
            if sample.index == 0 and sample.num_tokens == 0:
                num_tokens = len(sample.request.prompt_token_ids)
                num_cached_tokens = self.scheduler.requests[sample.name].num_cached_tokens or 0
                self.stats.num_prompt_tokens += num_tokens
                self.stats.recent_requests.observe(num_tokens, num_cached_tokens)
                if not self.config.multi_tenant:
                    sample.request.num_cached_tokens = num_cached_tokens

    # Many prompts at once.

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        n: int = 1,
        cache_salt: str | None = None,
    ) -> list[RequestOutput]:
        """Return the output for each prompt, in the prompts' order. Arguments and errors as in `stream`."""
        requests = self._add_all(prompts, params, n, cache_salt)
        try:
            return collect(requests, n, self._run(requests))
        finally:
            self._abort({request.request_id for request in requests})

    def stream(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        n: int = 1,
        cache_salt: str | None = None,
    ) -> Generator[DeltaOutput, None, None]:
        """Yield outputs step by step. The request of the first prompt has the id "0", if it is the engine's first.

        If the caller stops iterating, the unfinished requests are aborted.

        Args:
            prompts: texts or lists of token ids.
            params: one for all prompts, or one per prompt.
            n: samples of each prompt.
            cache_salt: of all prompts. See `add_request`.

        Raises the errors of `add_request` before anything has run. In that case no prompt is added. Raises
        `ConfigError` if requests of earlier `add_request` calls are unfinished: their outputs would be lost here.
        """
        return self._run(self._add_all(prompts, params, n, cache_salt))

    def _add_all(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        n: int,
        cache_salt: str | None,
    ) -> list[RequestState]:
        """Add all prompts or none."""
        params = params_per_prompt(prompts, params)
        if self.has_unfinished_requests:
            raise ConfigError(f"requests {sorted(self._samples)} are not done: call step until they are")
        names: list[str] = []
        try:
            for prompt, choice in zip(prompts, params, strict=True):
                names.append(str(self._num_requests))
                self.add_request(names[-1], prompt, choice, n=n, cache_salt=cache_salt)
            return [self._samples[name].request for name in names]
        except BaseException:
            self._abort(names)
            raise

    def _run(self, requests: list[RequestState]) -> Generator[DeltaOutput, None, None]:
        """Yield the outputs of the steps until all requests are done. Abort them if the caller stops iterating."""
        try:
            while self.has_unfinished_requests:
                yield from self.step()
        finally:
            self._abort({request.request_id for request in requests})
