"""The engine for notebooks 13 to 15 and their chapters, on the small model.

play                a scenario of the figure, made by the engine: a model runs, and its words are in the captions
watch               the same, token by token
run_prompts         the same for the reader's own prompts
three_pasts         one text without a cache, with a contiguous one, and with blocks; the number of computed tokens
with_guesses        one text with a word per step, and with guesses that a step checks; the number of steps
alone_and_in_company    the change of a request's logits by others in the batch
guesses             the likeliest next tokens, with their probabilities
answer              the text of a runner with a mistake, with and without poison
ask_in_turn         prompts one after the other: the hit of each, and the line in the log
time_of_words       the time of each word of a text on this machine, without a cache and with one
time_of_batches     the words per second of this machine, by the number of requests at once
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from mini_kv.attention.options import AttentionOptions
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.course.lessons.watched import KeepsLogits, WatchedEngine, WatchedRunner, WatchedStep, exact, tiny
from mini_kv.engine.config import EngineConfig
from mini_kv.engine.contiguous import ContiguousCache, NoCache, Past, generate_alone
from mini_kv.engine.drafts import SpeculativeConfig
from mini_kv.engine.engine_stats import StatLogger
from mini_kv.engine.llm_engine import LLMEngine
from mini_kv.engine.poison import PoisonedKVError
from mini_kv.engine.prompt_tokens import Prompt
from mini_kv.engine.sampling import SamplingParams
from mini_kv.story.frame import frame_of
from mini_kv.story.scenario import PlayedStep, Scenario, Step
from mini_kv.story.step_questions import right_choice

TEXTS = (
    "A block that no request holds is free, and it stays cached until the memory is needed for something else.",
    " and the next request finds what the first has computed, and pays only for the words that are different.",
    "The scheduler counts tokens and blocks. It never sees a key or a value, and it does not know what is said.",
)
"""The texts for a scenario's words. Its token `100 * k + i` is the i-th token of the k-th text."""


def scenario_prompt(tokens: Sequence[int]) -> list[int]:
    """Return the token ids for a scenario's numbers. See `TEXTS`."""
    _, tokenizer = tiny()
    texts = [tokenizer.encode(text) for text in TEXTS]
    return [texts[token // 100][token % 100] for token in tokens]


def watch(scenario: Scenario) -> list[WatchedStep]:
    """Run a scenario of arrivals and steps on the engine and return its steps, token by token."""
    watched = _engine_for(scenario)
    steps = []
    for step in scenario.steps:
        if step.call == "arrive":
            _arrive(watched, step, scenario_prompt(step.tokens))
        else:
            steps.append(watched.step())
    return steps


def play(scenario: Scenario) -> Iterator[PlayedStep]:
    """Run a scenario of arrivals and steps on the engine with greedy sampling, and yield its steps.

    The captions quote the prompt and the new words of each request.
    """
    watched = _engine_for(scenario)
    for step in scenario.steps:
        if step.call == "arrive":
            yield _arrive(watched, step, scenario_prompt(step.tokens))
        else:
            yield _make_step(watched, step)


def _engine_for(scenario: Scenario) -> WatchedEngine:
    limits = scenario.limits or SchedulerConfig()
    return WatchedEngine(scenario.num_blocks, scenario.block_size, limits, scenario.enable_caching)


def _arrive(watched: WatchedEngine, step: Step, prompt: Prompt) -> PlayedStep:
    num_spans = len(watched.kv.spans)
    params = SamplingParams(max_tokens=step.max_tokens, temperature=0, ignore_eos=True)
    watched.engine.add_request(step.request, prompt, params)
    text = prompt if isinstance(prompt, str) else watched.tokenizer.decode(list(prompt))
    return _played(watched, replace(step, say=f"{step.say} {step.request}: {quoted(text)}".strip()), num_spans)


def _make_step(watched: WatchedEngine, step: Step) -> PlayedStep:
    num_spans = len(watched.kv.spans)
    made = watched.step()
    scheduled: dict[str, int] = {}
    for token in made.batch:
        scheduled[token.request_id] = scheduled.get(token.request_id, 0) + 1
    words = ", ".join(f"{name} {quoted(text)}" for name, text in made.said.items())
    say = f"{step.say} The model says: {words}.".strip() if words else step.say
    return _played(watched, replace(step, say=say), num_spans, scheduled=scheduled, preempted=tuple(made.preempted))


def quoted(text: str) -> str:
    """Return the text for a caption: on one line, with an arrow for each line break."""
    return "\u201c" + text.replace("\n", "\u21b5") + "\u201d"


def _played(watched: WatchedEngine, step: Step, num_spans: int, **of_step: Any) -> PlayedStep:
    spans, frame = watched.kv.spans[num_spans:], frame_of(watched.kv.manager)
    right = right_choice(step.predict, spans, frame) if step.predict is not None else None
    waiting = tuple(watched.engine.scheduler.waiting)
    return PlayedStep(step, spans, frame, 0, right, waiting=waiting, **of_step)


@dataclass(frozen=True, slots=True)
class PromptsRun:
    """A run of the reader's prompts on the engine."""

    scenario: Scenario
    """The pool. Its steps are in `played`."""
    played: list[PlayedStep]
    texts: dict[str, str]
    """Prompt and answer of each request, by its id."""
    num_prompt_tokens: int
    num_computed_tokens: int
    """Number of computed tokens, of prompts and answers."""
    num_steps: int
    num_cached_tokens: int
    """Number of hit tokens, those after a preemption included."""
    num_preemptions: int


def run_prompts(
    prompts: Sequence[str], num_blocks: int = 33, enable_prefix_caching: bool = True, max_tokens: int = 8
) -> PromptsRun:
    """Run these prompts on the engine, called A, B, C and so on. One arrives before each step.

    Errors: those of `LLMEngine.add_request`, such as `ConfigError` for a prompt larger than the pool.
    """
    limits = SchedulerConfig(max_num_batched_tokens=16)
    watched = WatchedEngine(num_blocks, 4, limits, enable_prefix_caching)
    scenario = Scenario("yours", "Your prompts", num_blocks, 4, enable_prefix_caching, (), "", limits=limits)
    texts: dict[str, str] = {}
    played: list[PlayedStep] = []
    arrivals = list(zip("ABCDEFGH", prompts, strict=False))
    while arrivals or watched.engine.has_unfinished_requests:
        if arrivals:
            name, prompt = arrivals.pop(0)
            texts[name] = prompt
            played.append(_arrive(watched, Step("arrive", "", (), name, max_tokens=max_tokens), prompt))
        played.append(_make_step(watched, Step("step", "", ())))
    for name in texts:
        texts[name] += watched.tokenizer.decode(watched.answers[name])
    stats, scheduler = watched.engine.stats, watched.engine.scheduler
    return PromptsRun(
        scenario,
        played,
        texts,
        stats.num_prompt_tokens,
        stats.num_scheduled_tokens,
        stats.num_steps,
        scheduler.kv_cache_manager.prefix_cache_stats.hits,
        scheduler.num_preemptions,
    )


class CountedPast:
    """A past that counts the computed tokens."""

    def __init__(self, past: Past) -> None:
        self.past = past
        self.num_tokens = past.num_tokens
        self.num_computed_tokens = 0

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
        """See `Attend`."""
        return self.past(layer, query, key, value, options)

    def end_step(self, num_new_tokens: int) -> None:
        """Count them."""
        self.past.end_step(num_new_tokens)
        self.num_tokens = self.past.num_tokens
        self.num_computed_tokens += num_new_tokens


@dataclass(frozen=True, slots=True)
class Told:
    """A text, and the number of tokens computed for it."""

    token_ids: list[int]
    text: str
    num_computed_tokens: int


def three_pasts(prompt: str, max_tokens: int) -> dict[str, Told]:
    """Return the greedy text of the model without a cache, with a contiguous one, and with blocks.

    In 64 bits. See `exact`.
    """
    model, (_, tokenizer) = exact(), tiny()
    prompt_ids = tokenizer.encode(prompt)
    pasts: dict[str, Past] = {
        "no cache": NoCache(),
        "contiguous": ContiguousCache(model, len(prompt_ids) + max_tokens),
    }
    told = {}
    for name, past in pasts.items():
        counted = CountedPast(past)
        token_ids = generate_alone(model, prompt_ids, max_tokens, counted)
        told[name] = Told(token_ids, tokenizer.decode(token_ids), counted.num_computed_tokens)
    engine = LLMEngine(model, tokenizer, EngineConfig(block_size=16, num_blocks=65))
    params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
    [output] = engine.generate([prompt], params)
    completion = output.outputs[0]
    told["blocks"] = Told(completion.token_ids, completion.text, engine.stats.num_scheduled_tokens)
    return told


def with_guesses(prompt: str, max_tokens: int, num_guesses: int = 4) -> dict[str, tuple[int, str]]:
    """Return steps and text of an engine with a word per step, and of one that guesses words from the text.

    Greedy, in 64 bits. See `exact`. A guess is the text after the first occurrence of the last one to three words.
    """
    model, (_, tokenizer) = exact(), tiny()
    speculative = SpeculativeConfig(num_guesses, prompt_lookup_min=1, prompt_lookup_max=3)
    told = {}
    for name, config in {"a word per step": None, f"{num_guesses} guesses per step": speculative}.items():
        engine = LLMEngine(model, tokenizer, EngineConfig(num_blocks=65, speculative_config=config))
        [output] = engine.generate([prompt], SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True))
        told[name] = (engine.stats.num_steps, output.outputs[0].text)
    return told


def guesses(prompt: str, num: int = 5, temperature: float = 1.0) -> list[tuple[str, float]]:
    """Return the likeliest next tokens after a prompt, each with its probability at this temperature."""
    model, tokenizer = tiny()
    ids = torch.tensor(tokenizer.encode(prompt))
    with torch.inference_mode():
        logits = model.forward(ids, torch.arange(len(ids)), NoCache(), torch.tensor([len(ids) - 1]))[0]
    likeliest = torch.softmax(logits.double() / temperature, dim=0).topk(num)
    return [
        (tokenizer.decode([token_id]), probability)
        for probability, token_id in zip(likeliest.values.tolist(), likeliest.indices.tolist(), strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Company:
    """The change of a request's logits by other requests in the batch."""

    largest_difference: float
    """Largest difference of a logit between a run alone and a run with others."""
    gap: float
    """Difference between the logits of the two likeliest tokens. A change of this size could change the word."""


def alone_and_in_company(prompt: str, others: Sequence[str], *, bits: int = 32) -> Company:
    """Return the change of a prompt's next-token logits when other prompts are in the same step."""
    model, (_, tokenizer) = exact() if bits == 64 else tiny()[0], tiny()
    found = []
    for prompts in ([prompt], [prompt, *others]):
        engine = LLMEngine(model, tokenizer, EngineConfig(num_blocks=257), make_runner=KeepsLogits)
        for number, text in enumerate(prompts):
            engine.add_request(str(number), text, SamplingParams(max_tokens=1, temperature=0))
        engine.step()
        found.append(cast(KeepsLogits, engine.model_runner).logits[0].double())
    best = found[0].topk(2).values
    return Company(float((found[0] - found[1]).abs().max()), float(best[0] - best[1]))


def answer(
    prompt: str, max_tokens: int, runner: type[WatchedRunner] = WatchedRunner, debug_poison: bool = False
) -> str:
    """Return the greedy text of the engine for a prompt with this runner, or the error that ended it."""
    watched = WatchedEngine(runner=runner, debug_poison=debug_poison)
    watched.engine.add_request("A", prompt, SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True))
    try:
        while watched.engine.has_unfinished_requests:
            watched.step()
    except PoisonedKVError as error:
        return f"{type(error).__name__}: {error}"
    return watched.tokenizer.decode(watched.answers["A"])


@dataclass(frozen=True, slots=True)
class Asked:
    """One prompt of a sequence, and its outcome."""

    num_tokens: int
    num_cached_tokens: int
    line: str
    """The line that the engine logs after the request."""


def ask_in_turn(prompts: Sequence[str], *, enable_prefix_caching: bool = True, num_blocks: int = 257) -> list[Asked]:
    """Run the prompts one after the other, for one word each, and write the line of the log after each.

    Its clock advances by ten seconds per line, so its rates are the same on all machines.
    """
    model, tokenizer = tiny()
    config = EngineConfig(num_blocks=num_blocks, enable_prefix_caching=enable_prefix_caching)
    engine = LLMEngine(model, tokenizer, config)
    logger = StatLogger(engine.scheduler, engine.stats, clock=iter(range(0, 10 * len(prompts) + 1, 10)).__next__)
    asked = []
    for prompt in prompts:
        [output] = engine.generate([prompt], SamplingParams(max_tokens=1, temperature=0))
        asked.append(Asked(len(output.prompt_token_ids), output.num_cached_tokens or 0, logger.line()))
    return asked


def time_of_words(num_words: int) -> dict[str, list[float]]:
    """Return the milliseconds per word on this machine, without a cache and with a contiguous one.

    The best of three runs each, because other programs run too.
    """
    model, tokenizer = tiny()
    prompt = tokenizer.encode(TEXTS[0])[:4]
    num_words = min(num_words, model.config.max_position_embeddings - len(prompt))
    found: dict[str, list[float]] = {}
    for name in ("no cache", "contiguous"):
        runs = []
        for _ in range(3):
            past: Past = NoCache() if name == "no cache" else ContiguousCache(model, len(prompt) + num_words)
            tokens, times = list(prompt), []
            for _ in range(num_words):
                begin = time.perf_counter()
                tokens += generate_alone(model, tokens, 1, past)
                times.append(1e3 * (time.perf_counter() - begin))
            runs.append(times)
        found[name] = [min(times) for times in zip(*runs, strict=True)]
    return found


def time_of_batches(batches: Sequence[int], num_words: int = 16) -> list[float]:
    """Return the words per second that the engine generates here, by the number of requests at once, best of three."""
    model, tokenizer = tiny()
    prompt = tokenizer.encode(TEXTS[0])[:16]
    params = SamplingParams(max_tokens=num_words, temperature=0, ignore_eos=True)
    rates = []
    for batch in batches:
        engine = LLMEngine(model, tokenizer, EngineConfig(num_blocks=1 + 4 * batch))
        best = 0.0
        for _ in range(3):
            begin = time.perf_counter()
            engine.generate([prompt] * batch, params)
            best = max(best, batch * num_words / (time.perf_counter() - begin))
        rates.append(best)
    return rates
