/* <kv-session>: the session file of a coding agent, drawn in blocks: what each turn shares with the one before.
 *
 * The answers about the examples are in the page. A reader's own file is read by Python in a worker of this page
 * (session_page.py), and goes nowhere else. Without the attribute `python` the element draws its examples alone.
 */
import { button, LOOK, make, textOf } from "./kv_parts.js";
import { Python } from "./kv_python.js";

const LARGEST_FILE = 200_000_000; // bytes, unpacked
const SILENCE_MS = 120_000; // a large file takes a while, and no code of a reader runs that may never end
const EXAMPLES = { "claude-code": "Claude Code", codex: "Codex" };
const MOST_COPIES = 32;
const CURVE = { left: 52, right: 16, height: 260 }; // pixels
const CAUSES = {
  compaction: "the history was compacted",
  model: "another model",
  "thinking-removed": "old thinking was removed",
  timestamp: "a value changed near the head",
  "tool-order": "the tools came in another order",
  "system-prompt": "the system prompt or a tool changed",
  rewind: "a message was changed or removed",
  expired: "the entry expired in a pause",
  lookback: "more texts were added than the provider looks back over",
  "probably-expired": "the entry had probably expired in a pause",
  "results-cleared": "old tool results were cleared",
  shorter: "older texts were left out",
  "new-conversation": "a new conversation began",
  "before-the-texts": "something before the texts changed, or the entry was lost",
  unknown: "the file does not say why",
};

class KvSession extends HTMLElement {
  #root;
  #about; // {megabytes, examples: {format: answer}}
  #python;
  #session = null; // the answer that is drawn
  #chosen = 0;
  #source = null; // {number, question, text}: the file or example that is drawn, or that Python reads; null: a wrong file
  #drawn = null; // the source of the drawing
  #isRead = false; // whether Python has read the source
  #opened = 0; // files and examples chosen so far: of two that are read at once the later one counts

  connectedCallback() {
    if (this.#root) return;
    this.#about = JSON.parse(this.querySelector("script[type='application/json']").textContent);
    this.#root = this.attachShadow({ mode: "open" });
    this.#build();
    this.#showExample(Object.keys(this.#about.examples)[0]);
  }

  disconnectedCallback() {
    this.#python?.stop();
    this.#isRead = false;
    for (const name of ["dragover", "drop"]) document.removeEventListener(name, this.#keepPage);
  }

  /** A file that is dropped beside the box is not opened in place of this page. */
  #keepPage(event) {
    event.preventDefault();
  }

  #build() {
    const style = make("style");
    style.textContent = STYLE;
    this.result = make("div", { class: "result" });
    this.more = make("div");
    this.examples = Object.keys(this.#about.examples).map((format) => button(`Example: ${EXAMPLES[format]}`, () => this.#showExample(format), { name: format }));
    const others = make("section", { class: "others", "aria-label": "Other sessions" }, make("div", { class: "bar" }, ...this.examples));
    const all = make("div", { class: "all" }, make("div", { class: "both" }, this.result, others), this.more);
    this.status = make("p", { role: "status" });
    if (this.hasAttribute("python")) {
      this.#python = new Python("session_page", (message) => this.#hear(message), SILENCE_MS);
      for (const name of ["dragover", "drop"]) document.addEventListener(name, this.#keepPage);
      others.prepend(this.#drop());
      others.append(...this.#caches());
      all.append(make("div", { class: "say" }, this.status, this.#python.bar));
    }
    all.append(make("slot", { name: "terminal" }));
    this.#root.append(style, all);
  }

  /** Where a reader opens a file. */
  #drop() {
    this.picker = make("input", { type: "file", "aria-label": "A session file", onchange: () => this.#open(this.picker.files[0]) });
    const drop = make("div", { class: "drop" }, make("p", {}, make("strong", {}, "Drop your own session file here,"), " or choose it:"), this.picker, make("p", { class: "small" }, `It is read in this page by Python, ${this.#about.megabytes} MB the first time. Nothing of it leaves the page.`));
    drop.addEventListener("drop", (event) => this.#open(event.dataTransfer.files[0]));
    return drop;
  }

  #caches() {
    this.ttl = choice("Entries live", [["", "as the file says"], ["300", "5 minutes"], ["3600", "1 hour"]], () => this.#ask({}));
    this.size = choice("Tokens per block", [["16", "16"], ["64", "64"], ["256", "256"]], () => this.#ask({}));
    return [this.ttl.label, this.size.label];
  }

  /** The page has the answers about its examples, in the caches that are set first. */
  #showExample(format) {
    this.#take(++this.#opened, { example: format });
    if (this.#python) this.ttl.select.selectedIndex = this.size.select.selectedIndex = 0;
    this.#show(this.#about.examples[format]);
  }

  async #open(file) {
    if (!file) return;
    const number = ++this.#opened;
    this.#say(`Reading ${file.name}.`);
    try {
      const packed = file.name.endsWith(".gz");
      const stream = packed ? file.stream().pipeThrough(new DecompressionStream("gzip")) : file.stream();
      const text = await textOf(stream, LARGEST_FILE);
      if (number === this.#opened) {
        this.#take(number, { name: file.name }, text);
        this.#ask({});
      }
    } catch (error) {
      const why = error instanceof RangeError ? "has more than 200 MB: give a part of it" : "cannot be read";
      this.#say(`${file.name} ${why}.`);
    }
    this.picker.value = ""; // so that the same file can be chosen again
  }

  #take(number, question, text = "") {
    this.#source = { number, question, text };
    this.#isRead = false;
  }

  /** Ask Python about the source. It keeps what it has read. */
  #ask(question) {
    if (!this.#source) return;
    const { number, question: which, text } = this.#source;
    this.#say(this.#python.ready ? "Reading." : `Loading Python, ${this.#about.megabytes} MB the first time.`);
    const caches = { ttl: Number(this.ttl.select.value) || null, block_size: Number(this.size.select.value) };
    const asked = { ...(this.#isRead ? {} : which), ...question, ...caches, number };
    this.#python.ask({ type: "run", lab: JSON.stringify(asked), text: this.#isRead ? "" : text });
    this.#isRead = true;
  }

  #say(words) {
    this.status.textContent = words;
  }

  #hear(message) {
    if (message.type === "result" && message.number !== this.#source?.number) return; // another one was chosen since
    if (message.type === "progress") this.#say(message.words);
    else if (message.type === "begins") this.#say(`${message.test}`);
    else if (message.type === "stuck") this.#lost(`No answer for ${SILENCE_MS / 1000} seconds, so Python was ended.`, true);
    else if (message.type === "broken") this.#lost(`Python broke down: ${message.message}`, true);
    else if (message.type !== "result") return;
    else if (message.error) this.#lost(message.error);
    else if (message.pools) this.#drawPools(message.pools);
    else this.#show(message);
  }

  /** Say what went wrong. A session that is shown stays, and can be asked about again. */
  #lost(words, isEnded = false) {
    if (isEnded) this.#isRead = false;
    if (this.#drawn !== this.#source) {
      this.#source = null;
      this.result.hidden = this.more.hidden = true;
      for (const control of this.examples) control.setAttribute("aria-pressed", "false");
    }
    this.#say(words);
  }

  // What is shown.

  #show(session) {
    const { turns } = session;
    this.#session = session;
    const worst = turns.reduce((most, turn) => (cost(turn) > cost(most) ? turn : most));
    if (this.#drawn !== this.#source) this.#chosen = worst.turn - 1;
    this.#drawn = this.#source;
    const { name, example } = this.#source.question;
    const whose = example ? `An example, made up: ${counted(turns.length, "turn")} of ${EXAMPLES[example]}` : `${name}: ${counted(turns.length, "turn")}`;
    for (const control of this.examples) control.setAttribute("aria-pressed", String(control.name === example));
    this.#say(example ? "" : `${name} was read. Nothing of it left this page.`);
    const most = Math.max(1, ...turns.map(({ tokens }) => tokens));
    const step = nice(most / 5);
    this.list = make("ol", { "aria-label": "The turns, each with its prompt in blocks", style: `--step: ${(100 * step) / most}%`, onkeydown: (event) => this.#key(event) }, ...turns.map((turn, index) => this.#row(turn, index, most)));
    this.rows = make("div", { class: "rows" }, axis(most, step), this.list);
    this.detail = make("div", { class: "detail", "aria-live": "polite" });
    const steps = make("div", { class: "bar" }, button("Previous turn", () => this.#choose(this.#chosen - 1)), button("Next turn", () => this.#choose(this.#chosen + 1)));
    this.result.replaceChildren(
      make("div", { class: "sum" }, make("p", {}, make("strong", {}, paidTwice(turns, worst))), make("p", {}, `${whose}. ${share(sum(turns, "cached"), sum(turns, "tokens"))} of the prompt tokens were read from the provider's cache.`)),
      make("div", { class: "picture" }, key(), this.rows),
      make("div", {}, steps, this.detail),
      this.#causes(),
    );
    this.more.replaceChildren(
      this.#waterfall(),
      this.#python ? this.#pool() : "",
      make("p", { class: "small" }, `Positions of texts are estimates: characters, scaled to the counts in the file. About ${session.hidden_tokens.toLocaleString("en")} tokens before the first text are not in the file: ${session.unseen}. ${session.notes.map((note) => `${capital(note)}.`).join(" ")}`),
    );
    this.result.hidden = this.more.hidden = false;
    this.#choose(this.#chosen);
  }

  #row(turn, index, most) {
    const part = (name, tokens) => {
      const piece = make("i", { class: name });
      piece.style.width = `${(100 * tokens) / most}%`;
      return piece;
    };
    const bar = make("span", { class: "blocks", "aria-hidden": "true" }, part("read", turn.cached), part("again", turn.again), part("new", turn.tokens - turn.cached - turn.again));
    const waited = turn.pause !== null && turn.pause > turn.ttl ? `after ${duration(turn.pause)}` : "";
    const remark = [turn.conversation === "main" ? "" : turn.conversation, waited, turn.broke ? (turn.broke.name === "model" ? CAUSES.model : turn.broke.name.replaceAll("-", " ")) : ""].filter(Boolean).join(", ");
    const words = `Turn ${turn.turn}${remark ? ` ${remark}` : ""}: ${turn.cached.toLocaleString("en")} of ${turn.tokens.toLocaleString("en")} tokens read`;
    const control = button("", () => this.#choose(index), { "aria-label": words, tabindex: "-1", class: "turn" });
    const seen = (name, text) => make("span", { class: name }, text);
    control.append(seen("number", String(turn.turn)), bar, " ", seen(turn.broke ? "remark broke" : "remark", remark));
    return make("li", {}, control);
  }

  #key(event) {
    const to = { ArrowDown: this.#chosen + 1, ArrowRight: this.#chosen + 1, ArrowUp: this.#chosen - 1, ArrowLeft: this.#chosen - 1, Home: 0, End: this.#session.turns.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.#choose(to);
  }

  #choose(index) {
    const { turns } = this.#session;
    const controls = [...this.list.querySelectorAll("button")];
    controls[this.#chosen]?.removeAttribute("aria-current");
    controls[this.#chosen]?.setAttribute("tabindex", "-1");
    this.#chosen = Math.min(Math.max(index, 0), turns.length - 1);
    const control = controls[this.#chosen];
    control.setAttribute("aria-current", "step");
    control.setAttribute("tabindex", "0");
    const place = control.offsetTop; // in the list, which is positioned
    if (place < this.rows.scrollTop || place > this.rows.scrollTop + this.rows.clientHeight - 30) this.rows.scrollTop = place - 60;
    if (this.rows.contains(this.#root.activeElement)) control.focus({ preventScroll: true });
    this.#tell(turns[this.#chosen]);
  }

  #tell(turn) {
    const number = (value) => value.toLocaleString("en");
    const when = turn.pause === null ? "the first of its conversation" : `${duration(turn.pause)} after the turn before`;
    const lines = [
      make("h3", {}, `Turn ${turn.turn}`, make("span", { class: "small" }, ` ${when}, line ${turn.line} of the file`)),
      make("p", {}, `${number(turn.tokens)} tokens asked. The provider read ${number(turn.cached)}, computed ${number(turn.again)} again, and ${number(turn.tokens - turn.cached - turn.again)} were new.`),
    ];
    if (turn.broke) {
      const place = turn.broke.message === 0 ? "before the first text in the file" : `in text ${turn.broke.message} (${turn.broke.kind})`;
      lines.push(make("p", { class: "broke" }, make("strong", {}, capital(cause(turn.broke))), `, ${place}: ${turn.broke.sentence}.`));
    } else if (turn.note) lines.push(make("p", {}, `${capital(turn.note)}.`));
    lines.push(make("p", { class: "small" }, `A cache with entries that live ${duration(turn.ttl)} would find ${number(turn.hosted)} tokens. Blocks of ${this.#session.block_size} tokens, without eviction, would give ${number(turn.blocks)}.`));
    this.detail.replaceChildren(...lines);
  }

  #causes() {
    const broken = this.#session.turns.map((turn, index) => ({ turn, index })).filter(({ turn }) => turn.broke);
    if (!broken.length) return make("p", { class: "breaks" }, "No prefix broke: each prompt continues the one before, and the provider read it as predicted.");
    const items = broken.map(({ turn, index }) => {
      const go = button(`Turn ${turn.turn}`, () => this.#choose(index), { class: "link" });
      const again = turn.broke.again ? `: ${turn.broke.again.toLocaleString("en")} tokens computed again` : "";
      return make("li", {}, go, ` ${capital(cause(turn.broke))}${again}`);
    });
    return make("section", { class: "breaks", "aria-label": "What broke" }, make("h3", {}, "What broke"), make("ul", { class: "causes" }, ...items));
  }

  /** From all prompt tokens to those that were found, one loss per row. */
  #waterfall() {
    const rows = this.#session.rows.filter(({ tokens, is_total }) => tokens || is_total);
    const most = rows[0].tokens;
    const items = rows.map(({ name, label, tokens, is_total }) => {
      const bar = make("i", { class: is_total ? "read" : name === "never" ? "new" : "again" });
      bar.style.width = `${(100 * Math.abs(tokens)) / most}%`;
      const value = `${Math.abs(tokens).toLocaleString("en")} (${share(Math.abs(tokens), most)})`;
      return make("li", {}, make("span", {}, is_total || tokens < 0 ? label : `less: ${label}`), make("span", { class: "blocks", "aria-hidden": "true" }, bar), make("span", { class: "value" }, value));
    });
    return make("section", { "aria-label": "Where the tokens went" }, make("h3", {}, "Where the tokens went"), make("ul", { class: "waterfall" }, ...items));
  }

  // A pool of one's own.

  #pool() {
    this.copies = make("input", { type: "range", min: "1", max: String(MOST_COPIES), value: "8", "aria-label": "Sessions like this at once" });
    this.copiesWords = make("output", {}, "8 sessions like this at once");
    this.copies.addEventListener("input", () => (this.copiesWords.textContent = `${counted(Number(this.copies.value), "session")} like this at once`));
    this.copies.addEventListener("change", () => this.#askPools());
    this.blocks = make("input", { type: "range", min: "0", max: "100", value: "50", "aria-label": "Blocks in the pool", class: "pool", hidden: true, oninput: () => this.#mark() });
    this.found = make("p", { class: "found", "aria-live": "polite" }, "How many people with sessions like this fit on one server?");
    this.curve = make("div", { class: "curve" });
    const begin = button("Draw the curve", () => this.#askPools());
    return make(
      "section",
      { "aria-label": "A pool of your own" },
      make("h3", {}, "In a pool of your own"),
      make("p", { class: "small" }, "As many such sessions begin one after the other, and share one pool of blocks. They share no text."),
      make("div", { class: "bar" }, make("label", {}, this.copies, " ", this.copiesWords), begin),
      this.curve,
      this.blocks,
      this.found,
    );
  }

  #askPools() {
    this.#ask({ pools: true, count: Number(this.copies.value) });
  }

  #drawPools(pools) {
    this.pools = pools;
    this.blocks.hidden = false;
    this.#say(`${counted(pools.count, "session")} in pools of ${pools.points.length} sizes.`);
    this.#plot();
  }

  /** The x of a pool size: equal ratios are equal distances. */
  #x(size) {
    const [[first], [last]] = [this.pools.points[0], this.pools.points.at(-1)];
    return this.#across(last === first ? 0.5 : Math.log(size / first) / Math.log(last / first));
  }

  #across(part) {
    return CURVE.left + part * (this.width - CURVE.left - CURVE.right);
  }

  #plot() {
    const { points, tokens } = this.pools;
    const [[first], [last]] = [points[0], points.at(-1)];
    this.width = this.curve.clientWidth; // a pixel is a unit, so that the numbers are as large as the text
    const [right, x] = [this.#across(1), (size) => this.#x(size)];
    const y = (hits) => CURVE.height - 40 - (CURVE.height - 52) * (hits / tokens);
    const line = points.map(([size, hits]) => `${x(size).toFixed(1)},${y(hits).toFixed(1)}`).join(" ");
    const parts = [svg("polyline", { points: line, class: "lru" })];
    for (const level of [0, 0.25, 0.5, 0.75, 1]) {
      parts.push(svg("line", { x1: CURVE.left, x2: right, y1: y(level * tokens), y2: y(level * tokens), class: "grid" }));
      parts.push(svg("text", { x: CURVE.left - 8, y: y(level * tokens) + 4, "text-anchor": "end" }, `${100 * level} %`));
    }
    let free = 0; // from here on a number has room
    for (let size = nice(first); size <= last; size = nice(1.01 * size)) {
      if (x(size) < free) continue;
      free = x(size) + 64;
      parts.push(svg("line", { x1: x(size), x2: x(size), y1: y(0), y2: y(0) + 5, class: "grid" }));
      parts.push(svg("text", { x: x(size), y: y(0) + 20, "text-anchor": "middle" }, size.toLocaleString("en")));
    }
    parts.push(svg("text", { x: right, y: y(0) + 36, "text-anchor": "end" }, "blocks in the pool"));
    this.marker = svg("line", { y1: y(tokens), y2: y(0), class: "marker" });
    const drawing = svg("svg", { viewBox: `0 0 ${this.width} ${CURVE.height}`, role: "img", "aria-label": `Tokens found by pool size, from ${first} to ${last} blocks` }, ...parts, this.marker);
    this.curve.replaceChildren(drawing);
    this.#mark();
  }

  #mark() {
    const { points, tokens } = this.pools;
    const wanted = this.#across(Number(this.blocks.value) / 100);
    const [size, hits] = points.reduce((best, point) => (Math.abs(this.#x(point[0]) - wanted) < Math.abs(this.#x(best[0]) - wanted) ? point : best));
    for (const name of ["x1", "x2"]) this.marker.setAttribute(name, String(this.#x(size)));
    const most = points.at(-1)[1];
    this.blocks.setAttribute("aria-valuetext", `${size} blocks`);
    this.found.textContent = `${size.toLocaleString("en")} blocks of ${this.pools.block_size} tokens find ${share(hits, tokens)} of what is asked. A pool without an end finds ${share(most, tokens)}.`;
  }
}

function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

function choice(label, options, onchange) {
  const select = make("select", { onchange }, ...options.map(([value, text]) => make("option", { value }, text)));
  return { select, label: make("label", {}, `${label} `, select) };
}

const key = () =>
  make(
    "p",
    { class: "key" },
    ...[["read", "read from the cache"], ["again", "computed again"], ["new", "new"]].map(([name, words]) => make("span", {}, make("i", { class: name }), ` ${words}`)),
    "a row is a turn: one call of the model",
  );

/** The numbers of tokens over the rows. */
const axis = (most, step) => {
  const scale = make("span", { class: "scale" });
  for (let at = 0; at <= most; at += step) scale.append(make("span", { style: `left: ${(100 * at) / most}%` }, at.toLocaleString("en")));
  return make("div", { class: "axis", "aria-hidden": "true" }, make("span"), scale, make("span", { class: "remark value" }, "tokens"));
};

/** The smallest of 1, 2, 5, 10, 20, 50 and so on that is not smaller. */
const nice = (number) => {
  const power = 10 ** Math.floor(Math.log10(number));
  return power * [1, 2, 5, 10].find((times) => times * power >= number);
};

/** What a turn's break cost: more than nothing, if it has one. */
const cost = ({ broke, again }) => (broke ? again + 1 : 0);
const cause = ({ name, token }) => `${CAUSES[name] ?? name}, at token ${token.toLocaleString("en")}`;
const sum = (turns, name) => turns.reduce((total, turn) => total + turn[name], 0);

function paidTwice(turns, worst) {
  if (!sum(turns, "cached")) return "The provider counted no cached token, so what was paid twice cannot be told.";
  const told = `${sum(turns, "again").toLocaleString("en")} of ${sum(turns, "tokens").toLocaleString("en")} prompt tokens were paid twice`;
  return worst.broke && worst.again ? `${told}, ${worst.again.toLocaleString("en")} of them in turn ${worst.turn}: ${cause(worst.broke)}.` : `${told}.`;
}

const capital = (text) => text[0].toUpperCase() + text.slice(1);
const counted = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
const share = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1)} %` : "0 %");

function duration(seconds) {
  if (seconds < 60) return `${Math.round(seconds)} s`;
  return seconds < 3600 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

const STYLE = `${LOOK}
.both { display: grid; grid-template-columns: minmax(0, 1fr); gap: .6em 1.2em }
.result { display: contents }
.drop { border: 2px dashed var(--line); border-radius: 6px; padding: .6em .8em; margin-bottom: .6em }
.sum strong { font-size: 1.3em; line-height: 1.35 }
input[type=file] { width: 100%; max-width: 26em; border: 0; background: none; padding: 0 }
label { align-self: center; font-size: .9em }
.others label { display: block }
.say { position: sticky; bottom: 0; background: var(--bg); border-top: 1px solid var(--line) }
.say:not(:has(p:not(:empty), .loading:not([hidden]))) { border: 0 }
[aria-pressed=true] { border-color: var(--accent); box-shadow: inset 0 -2px var(--accent) }
h3 { margin: .9em 0 .3em; font-size: 1.05em }
p { margin: .3em 0 }
.small { font-size: .85em; color: var(--todo); font-weight: 400 }
.key { display: flex; flex-wrap: wrap; gap: .2em 1.2em; font-size: .85em }
.key i { width: 1.6em; height: .9em; vertical-align: -.1em }
i { display: inline-block; height: 100% }
.read { background: light-dark(#1c6fb5, #6db3f2) }
.again { background: repeating-linear-gradient(135deg, light-dark(#c2510a, #ffab7a) 0 4px, light-dark(#fbe3d3, #5a2d12) 4px 7px) }
.new { background: light-dark(#d5dae2, #4a5160); box-shadow: inset 0 0 0 1px light-dark(#8b93a1, #8b93a1) }
.rows { max-height: 34em; overflow-y: auto; border: 1px solid var(--line); border-radius: 4px; position: relative }
ol { list-style: none; margin: 0; padding: 0 }
.turn, .axis { display: grid; grid-template-columns: 2em minmax(0, 1fr) minmax(0, 9em); gap: .5em; align-items: center; width: 100%; padding: .1em .4em; font-size: .9em }
.turn { min-height: 24px; border: 0; border-radius: 0; background: none; text-align: left }
.axis { position: sticky; top: 0; background: var(--bg); border-bottom: 1px solid var(--line); font-variant-numeric: tabular-nums }
.scale { position: relative; height: 1.4em }
.scale span { position: absolute; transform: translateX(-50%) }
.scale span:first-child { transform: none }
.turn[aria-current] { background: var(--soft); box-shadow: inset 3px 0 var(--accent) }
.blocks { display: flex; height: 1.05em }
.turn .blocks { background: repeating-linear-gradient(90deg, var(--line) 0 1px, transparent 1px var(--step)) }
.number { text-align: right; color: var(--todo); font-variant-numeric: tabular-nums }
.remark { font-size: .85em; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; color: var(--todo) }
.broke { color: var(--fail) }
.detail { border-left: 3px solid var(--accent); padding-left: .7em; min-height: 7em }
.detail h3 { margin-top: 0 }
.causes { margin: 0; padding-left: 1.1em }
.waterfall { list-style: none; margin: 0; padding: 0; font-size: .9em }
.waterfall li { display: grid; grid-template-columns: minmax(0, 15em) minmax(0, 1fr) minmax(0, 10em); gap: .6em; align-items: center }
.value { font-variant-numeric: tabular-nums; text-align: right }
.curve svg { width: 100%; display: block; font: 13px var(--kv-sans, system-ui, sans-serif); fill: currentColor }
.lru { fill: none; stroke: light-dark(#1c6fb5, #6db3f2); stroke-width: 2.5 }
.grid { stroke: var(--line); stroke-width: 1 }
.marker { stroke: var(--accent); stroke-width: 1.5; stroke-dasharray: 4 3 }
input[type=range] { width: 11em; vertical-align: middle; padding: 0; accent-color: var(--accent) }
input.pool { display: block; width: calc(100% - ${CURVE.left + CURVE.right - 16}px); margin-left: ${CURVE.left - 8}px }
.all { container-type: inline-size }
@container (min-width: 44em) { .both { grid-template: auto auto auto 1fr / minmax(0, 1fr) 18em } .sum { grid-area: 1 / 1 / 2 / -1 } .picture { grid-row: 2 / 4 } .others { grid-area: 3 / 2 / 5 / 3 } [hidden] ~ .others { grid-column: 1 / -1 } .breaks { grid-area: 4 / 1 } }
@container (max-width: 36em) { .waterfall li { grid-template-columns: 1fr; gap: 0 } .waterfall .value { text-align: left } .turn, .axis { grid-template-columns: 2em minmax(0, 1fr) minmax(0, 6em) } }`;

customElements.define("kv-session", KvSession);
