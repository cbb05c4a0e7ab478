"""The figure in a notebook: a story to step through, and a cache with buttons.

    Story("share-and-evict")        a scenario, or recorded calls: self-contained HTML, also for an exported page
    Beside(data, other)             two stories that step together
    Lines(text)                     a text, line by line
    LivePlayer()                    the engine behind buttons; needs ipywidgets, anywidget and a running kernel
    PromptPlayer(run, prompts)      a field for prompts, and an engine with a model; needs the same
    ChainExplorer()                 two prompts and their block hashes; needs ipywidgets and a running kernel

Each control takes the name of a challenge, and shows whether it is met. `kv_story.js` alone draws the figure. This
module only passes the data. In an exported page, without a kernel, each control is replaced by a static result.
"""

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mini_kv.core.errors import KVCacheError
from mini_kv.course.lessons.chain import PRESETS, TOKENS, Chain, chain
from mini_kv.course.lessons.challenge import CHALLENGES
from mini_kv.course.lessons.element import story_element
from mini_kv.course.lessons.lever import Lever
from mini_kv.course.lessons.needs import need
from mini_kv.course.lessons.small_cache import LiveCache
from mini_kv.course.lessons.trusted import trusted
from mini_kv.story import figure
from mini_kv.story.scenario import PlayedStep, Scenario, load_scenario
from mini_kv.story.traced_manager import TracedKVCacheManager

PROMPTS = {
    "16 common tokens, then 4 unique ones": "0..15 100..103",
    "the same 16, then 4 others": "0..15 200..203",
    "32 tokens, the same 16 first": "0..31",
    "8 tokens that no other prompt has": "900..907",
}
"""Default prompts of a `LivePlayer`."""


class Story:
    """A run to step through. As the result of a cell it is HTML with its own script and data."""

    def __init__(
        self,
        run: str | Scenario | TracedKVCacheManager | dict[str, Any],
        title: str = "",
        *,
        player: Callable[[Scenario], Iterable[PlayedStep]] | None = None,
        until: int | None = None,
    ) -> None:
        """Play a scenario (or the one of that name), or use the run of a traced manager, or a story's data.

        `player`: makes a scenario's steps, such as an engine with a model. It replaces the figure's own player.
        `until`: a scenario ends after so many steps. A question about the next step can follow.

        Raises `ScenarioError` for an unknown name or a scenario that cannot be played, and `ValueError` for a run that
        was traced without snapshots.
        """
        if isinstance(run, TracedKVCacheManager):
            self.data = figure.spans_data(run.spans, len(run.block_pool.blocks), run.block_size, title or "Your run")
            return
        if isinstance(run, dict):
            self.data = run
            return
        scenario = load_scenario(run) if isinstance(run, str) else run
        if until is not None:
            scenario = replace(scenario, steps=scenario.steps[:until])
        self.data = figure.played_data(scenario, player(scenario)) if player else figure.story_data(scenario)

    def _repr_html_(self) -> str:
        return f"{_script_element()}{trusted(figure.fragment(self.data))}"


class Lines(str):
    """A text that a notebook shows line by line."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Beside:
    """Two runs that step together. The blocks in which they differ are marked."""

    def __init__(self, data: dict[str, Any], other: dict[str, Any]) -> None:
        """Set the data of both stories."""
        self.data, self.other = data, other

    def _repr_html_(self) -> str:
        return f"{_script_element()}<style>{_BESIDE}</style>{trusted(figure.beside(self.data, self.other))}"


class LivePlayer:
    """The engine behind buttons: admit, finish, pressure, in any order. The figure shows the outcome of each call."""

    def __init__(
        self,
        num_blocks: int = 11,
        block_size: int = 4,
        prompts: Mapping[str, str] = PROMPTS,
        challenge: str = "three rows",
    ) -> None:
        """Build the controls. Raises `MissingPackageError` without ipywidgets or anywidget.

        Args:
            num_blocks: size of the pool at first, the null block included.
            block_size: tokens per block.
            prompts: tokens of each prompt, as in a scenario, by a name for the list.
            challenge: a task, by its name in `CHALLENGES`.
        """
        w = need("ipywidgets")
        self.challenge = CHALLENGES[challenge]
        self.pool = w.IntSlider(num_blocks - 1, 2, 24, description="pool", **_QUIET)
        self.prompt = w.Dropdown(options=list(prompts.items()), description="prompt", layout=_LONG, **_LABEL)
        self.tokens = w.Text(self.prompt.value, description="tokens")
        self.admit = w.Button(description="Admit", button_style="primary")
        self.who = w.Dropdown(options=[], description="request", **_LABEL)
        self.finish = w.Button(description="Finish")
        self.size = w.IntSlider(2, 1, 24, description="stranger's blocks", **_QUIET)
        self.pressure = w.Button(description="Pressure", button_style="warning")
        self.again = w.Button(description="Start again")
        self.said = w.HTML()
        self.figure = story_element({})
        self.box = w.VBox(
            [
                w.HBox([self.prompt, self.tokens, self.admit], layout=_WRAP),
                w.HBox([self.who, self.finish], layout=_WRAP),
                w.HBox([self.size, self.pressure], layout=_WRAP),
                w.HBox([self.pool, self.again], layout=_WRAP),
                self.said,
                self.figure,
            ]
        )
        self._block_size = block_size
        self._prompts = prompts
        self._connect()
        self._start_again()

    def _connect(self) -> None:
        """Connect each control with its action."""
        self.prompt.observe(lambda change: setattr(self.tokens, "value", change["new"]), names="value")
        self.pool.observe(lambda _: self._start_again(), names="value")
        self.admit.on_click(lambda _: self._show(self.cache.admit(self.tokens.value)))
        self.finish.on_click(lambda _: self._show(self.cache.finish(self.who.value or "")))
        self.pressure.on_click(lambda _: self._show(self.cache.pressure(self.size.value)))
        self.again.on_click(lambda _: self._start_again())

    def _start_again(self) -> None:
        """Begin with an empty pool of the slider's size."""
        self.cache = LiveCache(self.pool.value + 1, self._block_size)
        self.solved = False
        self.size.max = self.pool.value
        self._show(f"A new pool of {self.pool.value} blocks of {self._block_size} tokens. Nothing is cached.")

    def _show(self, said: str) -> None:
        """Show the cache's message for the last press, the numbers, and the figure."""
        running, chosen = self.cache.running, self.who.value
        self.who.options = running
        self.who.value = chosen if chosen in running else next(iter(running), None)
        self.finish.disabled = not running
        used, cached, empty = self.cache.memory
        self.solved = self.solved or self.challenge.met(self.cache)
        self.said.value = (
            f'<div role="status" style="line-height:1.6">{html.escape(said)}<br>'
            f"<b>{used}</b> blocks used, <b>{cached}</b> cached, <b>{empty}</b> empty. "
            f"Found so far: {self.cache.found}.{self.challenge.line(self.solved)}</div>"
        )
        self.figure.story = {**_story_of(self.cache, "Your cache"), "at": -1}

    def example(self) -> LiveCache:
        """Return a cache after an example: two requests, their end, an unknown request, the first prompt again."""
        cache = LiveCache(self.pool.value + 1, self._block_size)
        first, second, *_ = self._prompts.values()
        for tokens in (first, second):
            cache.admit(tokens)
        for name in cache.running:
            cache.finish(name)
        cache.pressure((self.pool.value + 1) // 2)
        cache.admit(first)
        return cache

    def _ipython_display_(self) -> None:
        played = {**_story_of(self.example(), "An example of these buttons"), "at": 1}
        _display(self.box, f"{_BUTTONS} Here is one run of them.</em></p>{_script_element()}{figure.fragment(played)}")


def _story_of(cache: LiveCache, title: str) -> dict[str, Any]:
    """Return all calls to this pool, as a story for the figure."""
    data = figure.spans_data(cache.spans, cache.num_blocks, cache.block_size, title)
    for step, sentence in zip(data["steps"], cache.told, strict=True):
        step["say"] = sentence
    return data


class PromptPlayer:
    """An engine with a model behind a field for prompts: its answers, and a figure of its cache."""

    def __init__(
        self, run: Callable[..., Any], prompts: Sequence[str], num_blocks: int = 25, challenge: str = "thrown out"
    ) -> None:
        """Build the controls, and run once. Raises `MissingPackageError` without ipywidgets or anywidget.

        Args:
            run: takes prompts, blocks (the null block included), whether to cache prefixes, and new tokens. Returns
                a scenario, its steps as played, the texts by name, and counts, as `generation.run_prompts`.
            prompts: the first content of the field, one prompt per line.
            num_blocks: size of the pool at first, the null block included.
            challenge: a task, by its name in `CHALLENGES`.
        """
        w = need("ipywidgets")
        self._run = run
        self.challenge = CHALLENGES[challenge]
        self.solved = False
        wide = w.Layout(width="95%", height="7em")
        self.prompts = w.Textarea("\n".join(prompts), description="prompts", layout=wide)
        self.pool = w.IntSlider(num_blocks - 1, 4, 63, description="pool", **_QUIET)
        self.max_tokens = w.IntSlider(8, 1, 24, description="words to say", **_QUIET)
        self.caching = w.Checkbox(True, description="prefix caching", indent=False)
        self.go = w.Button(description="Run", button_style="primary")
        self.said = w.HTML()
        self.figure = story_element({})
        controls = w.HBox([self.pool, self.max_tokens, self.caching, self.go], layout=_WRAP)
        self.box = w.VBox([self.prompts, controls, self.said, self.figure])
        self.go.on_click(lambda _: self._show())
        for control in (self.pool, self.max_tokens, self.caching):
            control.observe(lambda _: self._show(), names="value")
        self.data: dict[str, Any] = {}
        self._show()

    def _show(self) -> None:
        """Run the prompts and show the result. If they cannot be run, show the error and the last figure."""
        prompts = [line for line in self.prompts.value.splitlines() if line.strip()]
        try:
            ran = self._run(prompts, self.pool.value + 1, self.caching.value, self.max_tokens.value)
        except KVCacheError as error:
            self.said.value = f'<div role="status">{html.escape(str(error))}</div>'
            return
        self.solved = self.solved or self.challenge.met(ran)
        texts = "<br>".join(f"<b>{name}</b> {html.escape(text)}" for name, text in ran.texts.items())
        self.said.value = (
            f'<div role="status" style="line-height:1.6">{texts}<br>The prompts have <b>{ran.num_prompt_tokens}</b> '
            f"tokens. In <b>{ran.num_steps}</b> steps <b>{ran.num_computed_tokens}</b> tokens went through the model, "
            f"prompts and answers together.{self.challenge.line(self.solved)}</div>"
        )
        self.figure.story = self.data = figure.played_data(ran.scenario, ran.played)

    def _ipython_display_(self) -> None:
        run = f"{self.said.value}{_script_element()}{trusted(figure.fragment(self.data))}"
        _display(self.box, f"{_BUTTONS} Here is the run that they begin with.</em></p>{run}")


def _display(box: Any, exported: str) -> None:
    """Show controls. `exported` replaces them in a page without a kernel."""
    need("IPython.display").display({**box._repr_mimebundle_(), "text/html": exported}, raw=True)


class ChainExplorer:
    """Two prompts in two text fields, and the hashes of their blocks below."""

    def __init__(self, preset: str = PRESETS[0].label, block_size: int = 16, challenge: str = "same end") -> None:
        """Build the controls. Raises `MissingPackageError` without ipywidgets.

        `preset`: a label. `challenge`: a task, by its name in `CHALLENGES`.
        """
        w = need("ipywidgets")
        self.challenge = CHALLENGES[challenge]
        self.solved = False
        wide = w.Layout(width="95%")
        self.preset = w.Dropdown(options=[p.label for p in PRESETS], value=preset, description="example", layout=_LONG)
        self.first = w.Text(description="first", continuous_update=True, layout=wide)
        self.second = w.Text(description="second", continuous_update=True, layout=wide)
        self.block_size = w.Dropdown(options=[1, 2, 4, 8, 16], value=block_size, description="block size")
        self.tokens = w.Dropdown(options=TOKENS, description="a token is a")
        self.shown = w.HTML()
        self.box = w.VBox(
            [self.preset, self.first, self.second, w.HBox([self.block_size, self.tokens], layout=_WRAP), self.shown]
        )
        self._take_preset()
        self.preset.observe(lambda _: self._take_preset(), names="value")
        for control in (self.first, self.second, self.block_size, self.tokens):
            control.observe(lambda _: self._show(), names="value")

    @property
    def chain(self) -> Chain:
        """The two prompts in the fields, cut and hashed with the controls' settings."""
        return chain(self.first.value, self.second.value, self.block_size.value, self.tokens.value)

    def _take_preset(self) -> None:
        for preset in PRESETS:
            if preset.label == self.preset.value:
                self.first.value, self.second.value = preset.first, preset.second
        self._show()

    def _show(self) -> None:
        self.solved = self.solved or self.challenge.met(self.chain)
        self.shown.value = f"{self.chain._repr_html_()}{self.challenge.line(self.solved)}"

    def _ipython_display_(self) -> None:
        size, tokens = self.block_size.value, self.tokens.value
        pictures = {one.label: chain(one.first, one.second, size, tokens) for one in PRESETS}
        start = [*pictures].index(self.preset.value)
        _display(
            self.box, f"{_BUTTONS} Here are its examples.</em></p>{Lever('example', pictures, start)._repr_html_()}"
        )


def _script_element() -> str:
    """Return the figure's script as an element. A second run of it has no effect."""
    return f"<script>{figure.script()}</script>"


_BESIDE = ".kv-beside{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,24em),1fr));gap:1em}"
"""Style of two figures: side by side if there is room, else one below the other."""

_BUTTONS = "<p><em>In the running notebook there are buttons and fields here."
"""Beginning of the HTML that replaces the controls in an exported page."""

_LABEL = {"style": {"description_width": "9em"}}
_QUIET = {"continuous_update": False, **_LABEL}
"""A slider reports only its final value, not those during the move."""
_WRAP = {"flex_flow": "row wrap"}
_LONG = {"width": "26em", "max_width": "100%"}
