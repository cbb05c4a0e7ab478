// The element <kv-story>: a story in, the reader's steps through it. One classic script without dependencies; it asks for
// nothing. Give it a story in one of three ways:
//
//     a child of <kv-story>: a script element of type application/json (also when it comes later)
//     element.data = story                      a new story; a live one keeps its step, or follows its end
//     element.step = 3                          go there; fires "kv-step" with {step, steps, asking}
//
// While a step is played it fires "kv-beat" with {step, beat, beats, kind, ids, request}. Two in a div of the class kv-beside
// go together, and mark where they differ; the second has the attribute follows, and no controls. On a page of the book each
// step has an address: #step=4, or #figure=2&step=4 for another figure than the first.

import { beatsOf } from "./beats.js";
import { Picture } from "./draw.js";
import { draw, make } from "./elements.js";
import { STRIDE } from "./gestures.js";
import { decode, differing, drawText, idRuns, StoryError } from "./model.js";
import { blockPanel, bubbles, caption, indexList, key, legend, waitingList } from "./panels.js";
import { Questions } from "./questions.js";
import { sources } from "./source.js";
import { STYLE } from "./style.js";
import { fill, WORDS } from "./words.js";

/**
 * @typedef {import("./beats.js").Beat} Beat
 * @typedef {import("./model.js").State} State
 * @typedef {import("./model.js").Story} Story
 * @typedef {import("./words.js").Words} Words
 * @typedef {ReturnType<typeof makeParts>} Parts
 */

const ICONS = {
  first: "M6 5h2v14H6zM20 5v14l-10-7z",
  back: "M17 5v14L7 12z",
  play: "M7 4v16l13-8z",
  pause: "M6 5h4v14H6zM14 5h4v14h-4z",
  forward: "M7 5v14l10-7z",
  last: "M16 5h2v14h-2zM4 5v14l10-7z",
  link: "M4 12a4 4 0 0 1 4-4h3v2H8a2 2 0 0 0 0 4h3v2H8a4 4 0 0 1-4-4zm5 1v-2h6v2zm4-5h3a4 4 0 0 1 0 8h-3v-2h3a2 2 0 0 0 0-4h-3z",
};

/** @type {(name: keyof typeof ICONS) => SVGElement} */
const iconOf = (name) => draw("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" }, draw("path", { d: ICONS[name] }));

/** Milliseconds of a beat, by kind. @type {Record<string, number>} */
const BEAT = { lookup: 500, evicted: 600, uncached: 600, revived: 750, shared: 500, cached: 380, illegal: 800 };
const OTHER_BEAT = 450;
/** A step's beats take no longer, in milliseconds. */
const STEP = 6500;
const SPEEDS = [1, 0.25, 4];
/** From this width on the words and the controls stand beside the picture, in CSS pixels. Below it the controls are above. */
const WIDE = 820;

/**
 * How long the beats of a step take at the usual speed, in milliseconds.
 * @param {Beat[]} beats
 */
function times(beats) {
  const each = beats.map(({ kind, ids }) => (BEAT[kind] ?? OTHER_BEAT) + (kind === "lookup" ? STRIDE * ids.length : 0));
  const shorter = Math.min(1, STEP / each.reduce((sum, ms) => sum + ms, 1));
  return each.map((ms) => ms * shorter);
}

/**
 * The elements of a figure.
 * @param {Words} t
 * @param {Story} story
 */
function makeParts(t, story) {
  /** @type {(name: keyof typeof ICONS) => HTMLButtonElement} */
  const button = (name) => {
    return make("button", { type: "button", "aria-label": t[name], title: t[name] }, iconOf(name));
  };
  const fig = make("div", { class: "fig", role: "group", "aria-label": fill(t.figure, story.title) });
  const picture = new Picture(t, story, fig);
  const buttons = {
    first: button("first"),
    back: button("back"),
    play: button("play"),
    forward: button("forward"),
    last: button("last"),
    link: button("link"),
  };
  const { link, ...steps } = buttons;
  const range = make("input", { type: "range", min: 0, step: "any", "aria-label": t.steps, title: t.slider });
  const ticks = make("div", { class: "ticks", "aria-hidden": "true" });
  const count = make("span", { class: "count" });
  const beat = make("output");
  const speed = make("button", { type: "button", title: t.speed });
  const track = make("div", { class: "track" }, range, ticks);
  const told = make("div", { class: "at" }, count, beat);
  const bar = make("div", { class: "bar" }, ...Object.values(steps), speed, link, track, told);
  const cap = make("div", { class: "cap", "aria-live": "polite" });
  const ask = make("div", { class: "ask", role: "group", "aria-label": t.predict });
  const source = make("div", { class: "source" }); // not in the live region: it is not read out at each step
  const panel = make("div", { class: "panel" });
  const said = make("div", { class: "said" }, panel, cap, ask, source);
  const wait = make("div", { class: "wait" });
  const index = make("div", { class: "hashes" });
  const indexBox = make("details", { class: "index" }, make("summary", {}, t.index), index);
  const how = make("details", { class: "how" }, make("summary", {}, t.how), legend(t));
  const pre = make("pre", { tabindex: 0 });
  const textBox = make("details", { class: "text" }, make("summary", {}, t.text), pre);
  const title = make("div", { class: "title" }, story.title);
  const looks = make("p", { class: "key" });
  const prompts = make("div", { class: "bubbles" });
  const seen = make("div", { class: "seen" }, prompts, wait, picture.element, looks);
  const hands = make("div", { class: "hands" }, bar, said);
  const stage = make("div", { class: "stage" }, seen, hands);
  fig.append(title, stage, indexBox, how, textBox);
  const slider = { range, ticks, count, beat, speed };
  return { t, fig, title, stage, picture, seen, buttons, ...slider, prompts, looks, how, said, cap, ask, source, panel, wait, index, indexBox, pre, textBox };
}

/**
 * All that a step's words can be: its caption after each answer, its question before any, and after each wrong one.
 * @param {Words} t
 * @param {Story} story
 * @param {State} state
 * @returns {Node[][]}
 */
function toldOf(t, story, state) {
  const { predict } = state.step;
  /** @type {(words: Node[]) => HTMLElement} */
  const cap = (words) => make("div", { class: "cap" }, ...words);
  const source = () => make("div", { class: "source" }, ...sources(t, state));
  if (!predict) return [[cap(caption(t, story, state, undefined)), source()]];
  const after = predict.choices.map(({ text }, i) => caption(t, story, state, { text, right: i === predict.answer }));
  const asked = [-1, ...predict.choices.keys()].map((i) => {
    const questions = new Questions(),
      ask = make("div", { class: "ask" });
    questions.answer(state.number, predict, i);
    questions.show(ask, predict, t, () => {}, () => {});
    return [make("div", { class: "asking" }, cap([make("p", {}, predict.ask)]), ask)];
  });
  return [...after.map((words) => [cap(words), source()]), ...asked];
}

class KvStory extends HTMLElement {
  #root = this.attachShadow({ mode: "open" });
  /** @type {Story | null} */
  #story = null;
  /** @type {Parts | null} */
  #made = null;
  /** Of longer stories no height is reserved: measuring all steps would take too long. */
  static RESERVED = 100;
  #at = 0;
  #questions = new Questions();
  /** @type {number | null} */
  #selected = null;
  #timer = 0;
  /** The beats of the step that is shown. @type {Beat[]} */
  #beats = [];
  /** How many of them are over. */
  #beat = 0;
  /** How many each step has, as far as the slider shows them. @type {number[]} */
  #numBeats = [];
  #beatTimer = 0;
  #speed = SPEEDS[0];
  /** Whether the reader has gone to a step. */
  #touched = false;
  /** Where the figure stood before it was printed. */
  #onScreen = 0;
  #width = 0;
  /** What the caption tells. @type {unknown[]} */
  #told = [];
  /** @type {(() => void)[]} */
  #cleanup = [];
  /** @type {string | null} */
  #source = null;

  // -- Life --

  connectedCallback() {
    if (Object.hasOwn(this, "data")) {
      const { data } = this; // set before the script was there
      Reflect.deleteProperty(this, "data");
      this.data = data;
    }
    const resized = new ResizeObserver(() => this.#resized());
    resized.observe(this);
    const child = new MutationObserver(() => this.#readChild());
    child.observe(this, { childList: true, subtree: true, characterData: true });
    const theme = new MutationObserver(() => {
      this.#theme();
      setTimeout(() => this.#theme(), 400);
    });
    for (const element of [document.documentElement, document.body]) {
      if (element)
        theme.observe(element, {
          attributes: true,
          attributeFilter: ["class", "style", "data-md-color-scheme", "data-jp-theme-light", "data-theme"],
        });
    }
    const dark = matchMedia("(prefers-color-scheme: dark)"),
      themed = () => this.#theme();
    dark.addEventListener("change", themed);
    const paper = matchMedia("print"),
      printed = () => this.#onPaper(paper.matches);
    paper.addEventListener("change", printed);
    this.#cleanup.push(() => dark.removeEventListener("change", themed));
    this.#cleanup.push(() => paper.removeEventListener("change", printed));
    const addressed = () => this.#openAddressed();
    addEventListener("hashchange", addressed);
    this.#cleanup.push(() => removeEventListener("hashchange", addressed));
    for (const observer of [resized, child, theme]) this.#cleanup.push(() => observer.disconnect());
    if (this.#story) this.#open();
    else this.#readChild();
  }

  disconnectedCallback() {
    this.pause();
    clearTimeout(this.#beatTimer);
    for (const undo of this.#cleanup.splice(0)) undo();
  }

  /** The story, as JSON would give it. @type {any} */
  get data() {
    return this.#story?.data ?? null;
  }

  set data(data) {
    let story;
    try {
      story = decode(data);
    } catch (error) {
      this.#fail(error);
      return;
    }
    const old = this.#story;
    this.#story = story;
    const end = story.states.length - 1;
    const same = old !== null && old.title === story.title && old.numBlocks === story.numBlocks;
    let at = data.at ?? 0;
    if (!same) {
      this.#questions.answers.clear();
      this.#selected = null;
    } else if (data.at === undefined) at = this.#at === old.states.length - 1 ? end : this.#at;
    this.#at = Math.max(0, Math.min(end, at < 0 ? end + 1 + at : at));
    this.#questions.asking = false;
    const grown = same && this.#at === end && end > old.states.length - 1;
    if (this.isConnected) this.#open(same, grown);
  }

  /** The step that is shown; 0 is the state before the first. */
  get step() {
    return this.#at;
  }

  set step(number) {
    this.#go(number);
  }

  #readChild() {
    const text = this.querySelector('script[type="application/json"]')?.textContent ?? "";
    if (!text.trim() || text === this.#source) return;
    try {
      const data = JSON.parse(text);
      this.#source = text;
      this.data = data;
    } catch (error) {
      if (document.readyState !== "loading") this.#fail(error);
      else document.addEventListener("DOMContentLoaded", () => this.#readChild(), { once: true }); // half is here
    }
  }

  /** @param {any} error */
  #fail(error) {
    this.pause();
    this.#story = this.#made = null;
    const t = this.#words();
    const why = error instanceof StoryError ? fill(t[error.word], ...error.values) : String(error.message ?? error);
    const box = make("div", { class: "fig" }, make("p", { class: "error", role: "alert" }, fill(t.wentWrong, why)));
    this.#root.replaceChildren(make("style", {}, STYLE), box);
  }

  /**
   * The other run of two that stand side by side and go step by step together, once it is open.
   * @returns {KvStory | null}
   */
  get twin() {
    const all = this.closest(".kv-beside")?.querySelectorAll("kv-story") ?? [];
    for (const one of all) if (one instanceof KvStory && one !== this && one.#made) return one;
    return null;
  }

  /** The parts of a figure that is open. */
  get #parts() {
    if (!this.#made) throw new Error("the figure is not open");
    return this.#made;
  }

  /** The story of a figure that has one. */
  get #opened() {
    if (!this.#story) throw new Error("the figure has no story");
    return this.#story;
  }

  #words() {
    const lang = this.#story?.data.lang ?? this.closest("[lang]")?.getAttribute("lang") ?? "en";
    return WORDS[String(lang).slice(0, 2)] ?? WORDS.en;
  }

  #theme() {
    if (!this.#made) return;
    /** @type {(name: string) => string | null} */
    const of = (name) => document.body?.getAttribute(name) ?? document.documentElement.getAttribute(name);
    const md = of("data-md-color-scheme"),
      jp = of("data-jp-theme-light");
    const [r, g, b] = (getComputedStyle(this).color.match(/[\d.]+/g) ?? [0, 0, 0]).map(Number);
    const dark = md ? md === "slate" : jp ? jp === "false" : 0.299 * r + 0.587 * g + 0.114 * b > 140;
    this.#made.fig.classList.toggle("dark", dark);
  }

  /**
   * Print the step that tells most, if the reader has chosen none; the attribute key says which that is. The story in
   * words, which the page holds for readers without scripts, is printed below.
   * @param {boolean} printing
   */
  #onPaper(printing) {
    for (const words of this.querySelectorAll("details")) words.open = printing;
    const key = Number(this.getAttribute("key"));
    if (!this.#made || !key || this.#touched) return;
    if (printing) this.#onScreen = this.#at;
    this.#at = printing ? key : this.#onScreen;
    this.#show(false);
  }

  #resized() {
    const width = Math.round(this.clientWidth);
    if (!this.#made || !width || width === this.#width) return;
    this.#layout();
    this.#show(false);
  }

  #layout() {
    const { t, fig, seen, said, prompts, wait, picture, looks, how } = this.#parts,
      { states } = this.#opened;
    prompts.hidden = !states.some((one) => one.asked.length);
    wait.hidden = !states.some((one) => one.waiting.length);
    this.#width = Math.round(this.clientWidth) || 720;
    const wide = this.#width >= WIDE;
    fig.classList.toggle("wide", wide);
    fig.classList.remove("above");
    picture.layout(seen.clientWidth || this.#width);
    const narrow = fig.classList.contains("narrow");
    (narrow ? how : seen).append(looks);
    said.tabIndex = narrow ? 0 : -1; // there it may scroll
    looks.replaceChildren(...key(t, this.#opened, picture.m.dense), ...(this.closest(".kv-beside") ? [" ", t.differs] : []));
    this.#reserve();
    fig.style.setProperty("--seen", `${seen.offsetHeight}px`);
    fig.classList.toggle("above", !wide && !narrow);
    this.#level();
    this.#showTicks();
  }

  /** Two figures side by side: their titles, pictures and legends are of one height, so that all below them is level. */
  #level() {
    const { twin } = this;
    if (!twin) return;
    const [ours, theirs] = [this, twin].map((one) => {
      const { title, picture, looks } = one.#parts;
      return [title, picture.element, looks];
    });
    ours.forEach((box, i) => {
      const both = [box, theirs[i]];
      for (const one of both) one.style.minHeight = "";
      const most = Math.max(...both.map((one) => one.offsetHeight));
      for (const one of both) one.style.minHeight = `${most}px`;
    });
  }

  /** A tick where a step ends, and a dot where a beat does, as long as there is room between them. */
  #showTicks() {
    const { ticks, range } = this.#parts,
      { states } = this.#opened,
      last = states.length - 1,
      room = range.clientWidth / Math.max(1, last);
    this.#numBeats =
      last > KvStory.RESERVED ? [] : states.map((state, i) => this.#beatsBetween(states[Math.max(0, i - 1)], state).length);
    /** @type {(at: number, look: string) => HTMLElement} */
    const mark = (at, look) => make("i", { class: look, style: `inset-inline-start:${(100 * at) / Math.max(1, last)}%` });
    const steps = room < 5 ? [] : states.map((_, i) => mark(i, ""));
    const dots = this.#numBeats.flatMap((number, i) =>
      room < 5 * number ? [] : Array.from({ length: Math.max(0, number - 1) }, (_, j) => mark(i - 1 + (j + 1) / number, "dot")),
    );
    ticks.replaceChildren(...steps, ...dots);
  }

  /** Give everything that changes from step to step the height of its highest step: nothing moves under the reader. */
  #reserve() {
    const { t, fig, said, prompts, wait, index } = this.#parts,
      { states } = this.#opened,
      stories = [this.#opened, ...(this.twin ? [this.twin.#opened] : [])]; // two side by side reserve the same
    if (states.length > KvStory.RESERVED) return;
    const probe = make("div", { class: "probe" });
    /** @type {(box: HTMLElement, contents: Node[][], most?: string) => void} */
    const keep = (box, contents, most = "9e9px") => {
      const copy = make("div", { class: box.className });
      (box.closest(".seen, .hands") ?? fig).append(probe); // a box that is hidden or folded has no width of its own
      probe.replaceChildren(copy);
      const heights = contents.map((nodes) => {
        copy.replaceChildren(...nodes);
        return Math.ceil(copy.getBoundingClientRect().height);
      });
      box.style.minHeight = `min(${Math.max(0, ...heights)}px,${most})`;
    };
    /** @type {(look: (state: State, before: State, story: Story) => Node[][]) => Node[][]} */
    const steps = (look) =>
      stories.flatMap((story) => story.states.flatMap((state, i) => look(state, story.states[Math.max(0, i - 1)], story)));
    keep(prompts, steps((state, before, story) => [bubbles(t, story, state, before)]));
    keep(wait, steps((state) => [waitingList(t, state)]));
    keep(index, steps((state, before) => [[indexList(t, state, before)]]));
    keep(said, steps((state, _, story) => toldOf(t, story, state)), "var(--most,9e9px)");
    probe.remove();
  }

  // -- The parts: made once for a story --

  #open(keep = false, performing = false) {
    const story = this.#opened;
    if (!keep || !this.#made) this.#build();
    const { twin } = this;
    if (twin) this.#at = Math.min(twin.#at, story.states.length - 1);
    this.#parts.picture.story = story;
    this.#parts.range.max = String(story.states.length - 1);
    this.#layout();
    this.#show(keep, performing);
    if (twin) {
      twin.#layout();
      twin.#show(false);
    }
    this.#announce();
    if (keep) return;
    this.#openAddressed();
  }

  /** The figure's number on a page of the book, from 1; 0 elsewhere, where steps have no addresses. */
  get #number() {
    return [...document.querySelectorAll(".kv-figure kv-story")].indexOf(this) + 1;
  }

  /** Show the step that the page's address names, if it is one of this figure's. */
  #openAddressed() {
    const asked = new URLSearchParams(location.hash.slice(1)),
      step = asked.get("step");
    if (!step || !this.#made || this.#number !== Number(asked.get("figure") ?? 1)) return;
    this.#go(Number(step) || 0);
    this.scrollIntoView({ block: "nearest" });
  }

  /** Put the step's address where it can be pasted from, and into the page's own address. */
  #copyLink() {
    const { link } = this.#parts.buttons,
      { t } = this.#parts,
      figure = this.#number > 1 ? `figure=${this.#number}&` : "";
    history.replaceState(null, "", `#${figure}step=${this.#at}`);
    navigator.clipboard?.writeText(location.href);
    link.title = t.linked;
    link.setAttribute("aria-label", t.linked);
  }

  #build() {
    const p = (this.#made = makeParts(this.#words(), this.#opened));
    this.#told = [];
    const acts = {
      first: () => this.#go(0),
      back: () => this.#go(this.#at - 1),
      play: () => this.#toggle(),
      forward: () => this.#forward(),
      last: () => this.#go(Infinity),
    };
    for (const name of /** @type {(keyof typeof acts)[]} */ (Object.keys(acts))) {
      const button = p.buttons[name];
      button.addEventListener("click", () => button.getAttribute("aria-disabled") === "true" || acts[name]());
    }
    for (const name of ["follows", "live"]) p.fig.classList.toggle(name, this.hasAttribute(name));
    p.buttons.link.hidden = this.#number === 0;
    p.buttons.link.addEventListener("click", () => this.#copyLink());
    p.range.addEventListener("input", () => this.#slide(+p.range.value));
    p.speed.addEventListener("click", () => this.#setSpeed(SPEEDS[(SPEEDS.indexOf(this.#speed) + 1) % SPEEDS.length]));
    this.#setSpeed(this.#speed);
    p.textBox.addEventListener("toggle", () => this.#showText());
    p.fig.addEventListener("keydown", (event) => this.#key(event));
    p.picture.element.addEventListener("click", (event) => {
      const id = p.picture.blockAt(event);
      if (id !== undefined) this.#select(id === this.#selected ? null : id);
    });
    this.#swipes(p.stage);
    this.#root.replaceChildren(make("style", {}, STYLE), p.fig, make("slot", { name: "words" }));
    p.indexBox.open = this.clientWidth >= 480; // on a phone all that is below the picture is folded
    this.#theme();
    this.#width = 0;
  }

  // -- Drawing a step --

  /**
   * Show the step: at once, or beat by beat.
   * @param {boolean} animate
   */
  #show(animate, performing = false) {
    const { t, picture, prompts, indexBox, index, wait, panel } = this.#parts;
    const { states, numBlocks } = this.#opened;
    const state = states[this.#at],
      before = states[Math.max(0, this.#at - 1)],
      id = this.#selected;
    clearTimeout(this.#beatTimer);
    const { twin } = this;
    picture.differing = twin ? differing(state, twin.#ends.state) : new Set();
    this.#beats = this.#beatsBetween(before, state);
    if (performing && this.#beats.length && !picture.still) this.#perform(0);
    else this.#settle(animate);
    this.#showWords(state);
    this.#showAsk();
    indexBox.hidden = !states.some((one) => one.name.some(Boolean));
    index.replaceChildren(indexList(t, state, before));
    prompts.replaceChildren(...bubbles(t, this.#opened, state, before));
    if (!wait.hidden) wait.replaceChildren(...waitingList(t, state));
    panel.hidden = id === null || id >= numBlocks;
    if (id !== null && !panel.hidden) panel.replaceChildren(...blockPanel(t, this.#opened, state, id, () => this.#leave()));
    this.#showText();
  }

  /**
   * The beats of a step; none where blocks are too small for them.
   * @param {State} before
   * @param {State} state
   */
  #beatsBetween(before, state) {
    return this.#parts.picture.m.dense || state === before ? [] : beatsOf(before, state);
  }

  // -- Within a step --

  /** The state that the step ends in, and the one before it. */
  get #ends() {
    const { states } = this.#opened;
    return { state: states[this.#at], before: states[Math.max(0, this.#at - 1)] };
  }

  /** @param {boolean} animate */
  #settle(animate) {
    const { state, before } = this.#ends;
    this.#parts.picture.show(state, before, this.#selected, animate);
    this.#showBeat(this.#beats.length);
  }

  /**
   * Show a beat, and the others after it.
   * @param {number} i
   */
  #perform(i) {
    if (i === this.#beats.length) {
      this.#settle(true);
      return;
    }
    this.#showOne(i);
    this.#beatTimer = setTimeout(() => this.#perform(i + 1), this.#times[i] / this.#speed);
  }

  get #times() {
    return times(this.#beats);
  }

  /** @param {number} i */
  #showOne(i) {
    const { picture, fig } = this.#parts,
      { before } = this.#ends,
      beat = this.#beats[i];
    const { kind, ids, request } = beat,
      usual = (BEAT[kind] ?? OTHER_BEAT) + (kind === "lookup" ? STRIDE * ids.length : 0);
    picture.pace = this.#times[i] / usual / this.#speed;
    fig.style.setProperty("--pace", String(picture.pace));
    picture.show(beat.state, before, this.#selected, true, beat);
    this.#showBeat(i + 1);
    const detail = { step: this.#at, beat: i + 1, beats: this.#beats.length, kind, ids, request };
    this.dispatchEvent(new CustomEvent("kv-beat", { bubbles: true, composed: true, detail }));
  }

  /** @param {number} number beats that are over */
  #showBeat(number) {
    const { t, range, count, beat } = this.#parts,
      length = this.#beats.length,
      { kind = "", ids = [], request = "" } = this.#beats[number - 1] ?? {};
    this.#beat = number;
    const said = kind === "lookup" ? fill(t.looks, request, ids.length) : `${t.kinds[kind] ?? ""} ${idRuns(ids)}`;
    count.textContent = fill(t.at, this.#at, this.#opened.states.length - 1);
    beat.textContent = kind && said;
    range.value = String(length ? this.#at - 1 + number / length : this.#at);
    range.setAttribute("aria-valuetext", beat.textContent ? `${count.textContent}: ${beat.textContent}` : count.textContent);
  }

  /**
   * Show a moment of the story without playing it: a step's beat, or its end.
   * @param {number} step
   * @param {number} beat
   */
  #moment(step, beat) {
    if (step === this.#at) this.pause();
    else this.#go(step);
    clearTimeout(this.#beatTimer);
    if (beat === 0 && step > 0 && this.#beats.length) this.#go(step - 1);
    else if (beat > 0 && beat < this.#beats.length) this.#showOne(beat - 1);
    else this.#settle(true);
  }

  /**
   * Show where the slider stands: at the nearest beat, or where there is none at the nearest step.
   * @param {number} at steps, and parts of one
   */
  #slide(at) {
    const step = Math.max(1, Math.ceil(at)),
      number = this.#numBeats[step] ?? 0,
      beat = Math.round((at - step + 1) * number);
    if (number === 0) this.#moment(Math.round(at), 0);
    else if (step !== this.#at || beat !== this.#beat) this.#moment(step, beat);
  }

  /**
   * One beat on or back, over the end of a step into the next.
   * @param {1 | -1} by
   */
  #nudge(by) {
    const beat = this.#beat + by;
    if (beat >= 0 && beat <= this.#beats.length && this.#beats.length) this.#moment(this.#at, beat);
    else if (by < 0) this.#go(this.#at - 1);
    else this.#moment(Math.min(this.#at + 1, this.#opened.states.length - 1), 1);
  }

  /** @param {number} speed */
  #setSpeed(speed) {
    this.#speed = speed;
    const { speed: button, t } = this.#parts;
    button.textContent = `${speed === 0.25 ? "\u00bc" : speed}\u00d7`;
    button.setAttribute("aria-label", `${button.textContent} ${t.speed}`);
  }

  #announce() {
    const detail = { step: this.#at, steps: this.#opened.states.length - 1, asking: this.#questions.asking };
    this.dispatchEvent(new CustomEvent("kv-step", { bubbles: true, composed: true, detail }));
  }

  /** @param {State} state */
  #showWords(state) {
    const { t, buttons, cap, said } = this.#parts,
      { asking, answers } = this.#questions,
      story = this.#opened,
      end = story.states.length - 1;
    buttons.link.title = t.link;
    buttons.link.setAttribute("aria-label", t.link);
    for (const button of [buttons.first, buttons.back]) button.setAttribute("aria-disabled", String(this.#at === 0));
    for (const button of [buttons.forward, buttons.last]) button.setAttribute("aria-disabled", String(this.#at === end));
    this.#showPlaying();
    const told = [state, asking, answers.get(this.#at)];
    if (told.every((one, i) => one === this.#told[i])) return; // a live region must not say the same twice
    this.#told = told;
    said.scrollTop = 0;
    const question = asking ? this.#prediction()?.ask : undefined;
    if (question === undefined) cap.replaceChildren(...caption(t, story, state, answers.get(this.#at)));
    else cap.replaceChildren(make("p", {}, question));
    this.#showSource(question === undefined ? sources(t, state) : []);
  }

  /**
   * Show these links, unless they are there: a live figure must not replace a link under the pointer.
   * @param {HTMLElement[]} links
   */
  #showSource(links) {
    const { source, buttons } = this.#parts;
    if (make("div", {}, ...links).innerHTML === source.innerHTML) return;
    const inside = source.contains(this.#root.activeElement);
    source.replaceChildren(...links);
    if (inside) buttons.forward.focus({ preventScroll: true }); // the link that had the focus is gone
  }

  #showPlaying() {
    const { buttons, t } = this.#parts,
      name = this.#timer ? "pause" : "play";
    buttons.play.title = t[name];
    buttons.play.setAttribute("aria-label", t[name]);
    buttons.play.querySelector("path")?.setAttribute("d", ICONS[name]);
  }

  #showText() {
    const { textBox, pre } = this.#parts;
    if (textBox.open) pre.textContent = drawText(this.#words(), this.#opened.states[this.#at]);
  }

  // -- Prediction --

  #prediction() {
    return this.#opened.states[this.#at + 1]?.step.predict;
  }

  #showAsk() {
    const { ask, fig, t } = this.#parts,
      prediction = this.#prediction(),
      { asking } = this.#questions;
    ask.hidden = !asking;
    fig.classList.toggle("asking", asking);
    if (!asking || !prediction) return;
    this.#questions.show(
      ask,
      prediction,
      t,
      (i) => this.#answer(i),
      () => this.#forward(),
    );
  }

  /** @param {number} i */
  #answer(i) {
    const { ask, buttons } = this.#parts,
      prediction = this.#prediction();
    const right = prediction ? this.#questions.answer(this.#at + 1, prediction, i) : null;
    if (right) {
      const inside = ask.contains(this.#root.activeElement);
      this.#go(this.#at + 1, false, true);
      if (inside) buttons.forward.focus({ preventScroll: true });
    } else if (right === false) {
      this.#showAsk();
      /** @type {NodeListOf<HTMLElement>} */
      const choices = ask.querySelectorAll(".choices button");
      choices[i].focus({ preventScroll: true });
    }
  }

  // -- Moving through the story --

  #forward() {
    const next = this.#story?.states[this.#at + 1];
    if (!next) return;
    if (this.#questions.open(next.number, next.step)) {
      this.pause();
      this.#show(true);
      this.#announce();
      return;
    }
    const inside = this.#questions.asking && this.#parts.ask.contains(this.#root.activeElement);
    this.#questions.skip(next.number);
    this.#go(next.number, true, true);
    if (inside) this.#parts.buttons.forward.focus({ preventScroll: true });
  }

  /** @param {number} number */
  #go(number, playing = false, performing = false) {
    if (!this.#story) return;
    if (!playing) this.pause();
    const at = Math.max(0, Math.min(this.#story.states.length - 1, number));
    const next = Math.abs(at - this.#at) <= 1;
    this.#at = at;
    this.#touched = true;
    this.#questions.asking = false;
    if (!this.#made) return;
    const { twin } = this;
    if (twin) twin.#at = Math.min(at, twin.#opened.states.length - 1);
    this.#show(next, performing);
    if (twin) twin.#show(next);
    this.#announce();
  }

  play() {
    const end = this.#story ? this.#story.states.length - 1 : 0;
    if (!end) return;
    if (this.#at === end) this.#go(0);
    const tick = () => {
      this.#forward();
      if (this.#at === end) this.pause();
      else if (this.#timer) {
        const length = this.#parts.cap.textContent?.length ?? 0,
          beats = this.#parts.picture.still ? 0 : this.#times.reduce((sum, ms) => sum + ms, 0);
        this.#timer = setTimeout(tick, (Math.max(beats + 900, 900 + Math.min(5000, 18 * length))) / this.#speed);
      }
    };
    this.#timer = -1;
    tick();
  }

  pause() {
    const was = this.#timer !== 0;
    clearTimeout(this.#timer);
    this.#timer = 0;
    if (was && this.#made) this.#showPlaying();
  }

  #toggle() {
    if (this.#timer) this.pause();
    else this.play();
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const at = event.composedPath()[0],
      range = at === this.#parts.range,
      pic = at === this.#parts.picture.element,
      pressable = at instanceof Element && at.closest("button,summary") !== null;
    /**
     * By key: whether it is ours here, and what it does.
     * @type {Record<string, [boolean, () => void]>}
     */
    const keys = {
      ArrowRight: [true, () => this.#forward()],
      ArrowLeft: [true, () => this.#go(this.#at - 1)],
      Home: [true, () => this.#go(0)],
      End: [true, () => this.#go(Infinity)],
      " ": [!pressable, () => this.#toggle()],
      Escape: [this.#selected !== null, () => this.#select(null)],
      ArrowUp: [pic || range, () => (range ? this.#nudge(1) : this.#choose(-1))],
      ArrowDown: [pic || range, () => (range ? this.#nudge(-1) : this.#choose(1))],
    };
    if (this.#questions.asking && /^[1-9]$/.test(event.key))
      keys[event.key] = [true, () => this.#answer(+event.key - 1)];
    const [ours, act] = keys[event.key] ?? [false];
    if (!ours) return;
    act();
    event.preventDefault();
    event.stopPropagation();
  }

  /** @param {HTMLElement} element */
  #swipes(element) {
    /** @type {Touch | null} */
    let from = null;
    element.addEventListener(
      "touchstart",
      (event) => {
        const slides = event.composedPath()[0] === this.#parts.range;
        from = event.touches.length === 1 && !slides ? event.touches[0] : null;
      },
      { passive: true },
    );
    element.addEventListener(
      "touchend",
      (event) => {
        const to = event.changedTouches[0];
        const dx = from ? to.clientX - from.clientX : 0,
          dy = from ? to.clientY - from.clientY : 0;
        if (Math.abs(dx) < 40 || Math.abs(dx) < 2 * Math.abs(dy)) return;
        if (dx < 0) this.#forward();
        else this.#go(this.#at - 1);
      },
      { passive: true },
    );
  }

  // -- One block, looked at --

  /** @param {1 | -1} by */
  #choose(by) {
    const n = this.#opened.numBlocks;
    const to = (this.#selected ?? (by > 0 ? 0 : n)) + by;
    if (n > 1) this.#select(to < 1 ? n - 1 : to >= n ? 1 : to); // all but the null block, round and round
  }

  /** @param {number | null} id */
  #select(id) {
    this.#selected = id;
    this.#show(true);
    this.#parts.said.scrollTop = 0; // where the block is told of
    const { element } = this.#parts.picture;
    if (id === null) element.removeAttribute("aria-activedescendant");
    else element.setAttribute("aria-activedescendant", `b${id}`);
  }

  #leave() {
    this.#select(null);
    this.#parts.picture.element.focus({ preventScroll: true });
  }
}

customElements.define("kv-story", KvStory);
