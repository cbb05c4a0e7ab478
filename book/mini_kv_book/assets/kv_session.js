/* <kv-session>: the session file of a coding agent, drawn in blocks: what each turn shares with the one before.
 *
 * The file is read by Python in a worker of this page (session_page.py), and goes nowhere else. Without scripts the
 * element's own children say how to read it in a terminal.
 */
import { button, LOOK, make, textOf } from "./kv_parts.js";
import { Python } from "./kv_python.js";

const LARGEST_FILE = 200_000_000; // bytes, unpacked
const STEP_MS = 450;
const SILENCE_MS = 120_000; // a large file takes a while, and no code of a reader runs that may never end
const EXAMPLES = { "claude-code": "Claude Code", codex: "Codex" };
const MOST_COPIES = 32;
const NAMES = { lru: "LRU", lfu: "LFU", sieve: "SIEVE", belady: "Belady, who knows the future" };
const CAUSES = {
  compaction: "The history was compacted",
  model: "Another model",
  "thinking-removed": "Old thinking was removed",
  timestamp: "A value changed near the head",
  "tool-order": "The tools came in another order",
  "system-prompt": "The system prompt or a tool changed",
  rewind: "A message was changed or removed",
  expired: "The entry expired in a pause",
  lookback: "More texts were added than the provider looks back over",
  "probably-expired": "The entry had probably expired in a pause",
  "results-cleared": "Old tool results were cleared",
  shorter: "Older texts were left out",
  "new-conversation": "A new conversation began",
  "before-the-texts": "Something before the texts changed, or the entry was lost",
  unknown: "The file does not say why",
};

class KvSession extends HTMLElement {
  #root;
  #about; // {megabytes, examples: [format]}
  #python;
  #session = null; // the answer about a file
  #chosen = 0;
  #clock = 0;
  #last = { question: {}, text: "" }; // the file or example that Python was asked about last
  #isForgotten = false; // whether Python was ended since, and with it what it had read
  #isNew = false; // whether the next answer is about another file
  #opened = 0; // files chosen so far: of two that are read at once the later one counts

  connectedCallback() {
    if (this.#root || !this.hasAttribute("python")) return;
    this.#about = JSON.parse(this.querySelector("script[type='application/json']").textContent);
    this.#python = new Python("session_page", (message) => this.#hear(message), SILENCE_MS);
    this.#root = this.attachShadow({ mode: "open" });
    for (const name of ["dragover", "drop"]) document.addEventListener(name, this.#keepPage);
    this.#build();
  }

  disconnectedCallback() {
    this.#python?.stop();
    this.#isForgotten = true;
    clearInterval(this.#clock);
    for (const name of ["dragover", "drop"]) document.removeEventListener(name, this.#keepPage);
  }

  /** A file that is dropped beside the box is not opened in place of this page. */
  #keepPage(event) {
    event.preventDefault();
  }

  #build() {
    const style = make("style");
    style.textContent = STYLE;
    this.picker = make("input", { type: "file", "aria-label": "A session file", onchange: () => this.#open(this.picker.files[0]) });
    this.drop = make("div", { class: "drop" }, make("p", {}, "Drop a session file here, or choose one: "), this.picker);
    this.drop.addEventListener("dragover", (event) => event.preventDefault());
    this.drop.addEventListener("drop", (event) => {
      event.preventDefault();
      this.#open(event.dataTransfer.files[0]);
    });
    const examples = Object.entries(EXAMPLES).map(([format, name]) =>
      button(`Example: ${name}`, () => this.#ask({ example: format })),
    );
    this.ttl = choice("Entries live", [["", "as the file says"], ["300", "5 minutes"], ["3600", "1 hour"]], () => this.#ask({}));
    this.size = choice("Tokens per block", [["16", "16"], ["64", "64"], ["256", "256"]], () => this.#ask({}));
    this.status = make("p", { role: "status" }, "Nothing of the file leaves this page.");
    this.result = make("div", { class: "result", hidden: true });
    const bar = make("div", { class: "bar" }, ...examples, this.ttl.label, this.size.label);
    this.#root.append(style, make("div", { class: "all" }, this.drop, bar, this.status, this.#python.bar, this.result));
  }

  async #open(file) {
    if (!file) return;
    const number = ++this.#opened;
    this.#say(`Reading ${file.name}.`);
    try {
      const packed = file.name.endsWith(".gz");
      const stream = packed ? file.stream().pipeThrough(new DecompressionStream("gzip")) : file.stream();
      const text = await textOf(stream, LARGEST_FILE);
      if (number === this.#opened) this.#ask({ name: file.name }, text);
    } catch (error) {
      const why = error instanceof RangeError ? "has more than 200 MB: give a part of it" : "cannot be read";
      this.#say(`${file.name} ${why}.`);
    }
    this.picker.value = ""; // so that the same file can be chosen again
  }

  /** Ask Python about a file, an example, or the session that it has. */
  #ask(question, text = "") {
    const isNew = "name" in question || "example" in question;
    if (!isNew && !this.#session) return;
    if (isNew) this.#last = { question, text };
    else if (this.#isForgotten) [question, text] = [{ ...this.#last.question, ...question }, this.#last.text];
    this.#isNew = isNew;
    this.#isForgotten = false;
    this.#say(this.#python.ready ? "Reading." : `Loading Python, ${this.#about.megabytes} MB the first time.`);
    const asked = { ...question, ttl: Number(this.ttl.select.value) || null, block_size: Number(this.size.select.value) };
    this.#python.ask({ type: "run", lab: JSON.stringify(asked), text });
  }

  #say(words) {
    this.status.textContent = words;
  }

  #hear(message) {
    if (message.type === "progress") this.#say(message.words);
    else if (message.type === "begins") this.#say(`${message.test}`);
    else if (message.type === "stuck") this.#lost(`No answer for ${SILENCE_MS / 1000} seconds, so Python was ended.`, true);
    else if (message.type === "broken") this.#lost(`Python broke down: ${message.message}`, true);
    else if (message.type !== "result") return;
    else if (message.error) this.#lost(message.error);
    else if (message.standings) this.#drawPolicies(message.standings);
    else if (message.pools) this.#drawPools(message.pools);
    else this.#show(message);
  }

  /** Say what went wrong. A session that is shown stays, and can be asked about again. */
  #lost(words, isForgotten = false) {
    this.#isForgotten ||= isForgotten;
    if (this.#isNew) {
      this.#session = null;
      this.result.hidden = true;
    }
    this.#say(words);
  }

  // What is shown.

  #show(session) {
    if (this.#clock) this.#play(); // which ends it
    this.#session = session;
    const { turns } = session;
    const broken = turns.findIndex((turn) => turn.broke);
    if (this.#isNew) this.#chosen = Math.max(broken, 0);
    const sum = (of) => turns.reduce((total, turn) => total + of(turn), 0);
    const asked = sum((turn) => turn.tokens);
    const read = sum((turn) => turn.cached);
    const again = sum((turn) => turn.again);
    this.#say(`${counted(turns.length, "turn")}. ${session.seconds.toFixed(1)} s. Nothing of the file left this page.`);
    this.rows = make("ol", { class: "rows", "aria-label": "The turns, each with its prompt in blocks", onkeydown: (event) => this.#key(event) });
    this.rows.append(...turns.map((turn, index) => this.#row(turn, index)));
    this.detail = make("div", { class: "detail", "aria-live": "polite" });
    this.player = button("Play", () => this.#play());
    const steps = make("div", { class: "bar" }, button("Back", () => this.#choose(this.#chosen - 1)), button("Next", () => this.#choose(this.#chosen + 1)), this.player);
    this.result.replaceChildren(
      make("p", { class: "sum" }, make("strong", {}, `${share(read, asked)} of ${asked.toLocaleString("en")} prompt tokens were read from the provider's cache.`), ` ${again.toLocaleString("en")} were computed although an earlier turn had them.`),
      key(),
      this.rows,
      steps,
      this.detail,
      this.#causes(),
      this.#waterfall(),
      this.#table(),
      this.#pool(),
      make("p", { class: "small" }, `Positions of texts are estimates: characters, scaled to the counts in the file. About ${session.hidden_tokens.toLocaleString("en")} tokens before the first text are not in the file: ${session.unseen}. ${session.notes.map((note) => `${note}.`).join(" ")}`),
    );
    this.result.hidden = false;
    this.#choose(this.#chosen, false);
  }

  #row(turn, index) {
    const most = Math.max(...this.#session.turns.map(({ tokens }) => tokens));
    const part = (name, tokens) => {
      const piece = make("i", { class: name });
      piece.style.width = `${(100 * tokens) / most}%`;
      return piece;
    };
    const bar = make("span", { class: "blocks", "aria-hidden": "true" }, part("read", turn.cached), part("again", turn.again), part("new", turn.tokens - turn.cached - turn.again));
    const waited = turn.pause !== null && turn.pause > turn.ttl ? `after ${duration(turn.pause)}` : "";
    const remark = [turn.conversation === "main" ? "" : turn.conversation, waited, turn.broke ? turn.broke.name : ""].filter(Boolean).join(", ");
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

  #choose(index, withFocus = true) {
    const { turns } = this.#session;
    const controls = [...this.rows.querySelectorAll("button")];
    controls[this.#chosen]?.removeAttribute("aria-current");
    controls[this.#chosen]?.setAttribute("tabindex", "-1");
    this.#chosen = Math.min(Math.max(index, 0), turns.length - 1);
    const control = controls[this.#chosen];
    control.setAttribute("aria-current", "step");
    control.setAttribute("tabindex", "0");
    const place = control.offsetTop; // in the list, which is positioned
    if (place < this.rows.scrollTop || place > this.rows.scrollTop + this.rows.clientHeight - 30) this.rows.scrollTop = place - 60;
    if (withFocus && this.rows.contains(this.#root.activeElement)) control.focus({ preventScroll: true });
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
      lines.push(make("p", { class: "broke" }, make("strong", {}, `${CAUSES[turn.broke.name] ?? turn.broke.name}, at token ${number(turn.broke.token)}`), `, ${place}: ${turn.broke.sentence}.`));
    } else if (turn.note) lines.push(make("p", {}, `${turn.note[0].toUpperCase()}${turn.note.slice(1)}.`));
    lines.push(make("p", { class: "small" }, `A cache with entries that live ${duration(turn.ttl)} would find ${number(turn.hosted)} tokens, and blocks of ${this.#session.block_size} tokens that nobody evicts ${number(turn.blocks)}.`));
    this.detail.replaceChildren(...lines);
  }

  #play() {
    if (this.#clock) {
      clearInterval(this.#clock);
      this.#clock = 0;
      this.player.textContent = "Play";
      this.detail.setAttribute("aria-live", "polite");
      return;
    }
    if (this.#chosen === this.#session.turns.length - 1) this.#choose(0, false);
    this.player.textContent = "Pause";
    this.detail.setAttribute("aria-live", "off");
    this.#clock = window.setInterval(() => {
      this.#choose(this.#chosen + 1, false);
      if (this.#chosen === this.#session.turns.length - 1) this.#play();
    }, STEP_MS);
  }

  #causes() {
    const broken = this.#session.turns.map((turn, index) => ({ turn, index })).filter(({ turn }) => turn.broke);
    if (!broken.length) return make("p", {}, "No prefix broke: each prompt continues the one before, and the provider read it as predicted.");
    const items = broken.map(({ turn, index }) => {
      const go = button(`Turn ${turn.turn}`, () => this.#choose(index), { class: "link" });
      const again = turn.broke.again ? `: ${turn.broke.again.toLocaleString("en")} tokens computed again` : "";
      return make("li", {}, go, ` ${CAUSES[turn.broke.name] ?? turn.broke.name}, at token ${turn.broke.token.toLocaleString("en")}${again}`);
    });
    return make("section", { "aria-label": "What broke" }, make("h3", {}, "What broke"), make("ul", { class: "causes" }, ...items));
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

  #table() {
    const head = ["turn", "pause", "tokens", "provider", "predicted", "blocks", "what broke"];
    const cell = (turn) => [turn.turn, turn.pause === null ? "" : duration(turn.pause), turn.tokens, turn.cached, turn.hosted, turn.blocks, turn.broke?.name ?? turn.note];
    const body = this.#session.turns.map((turn) => make("tr", {}, ...cell(turn).map((value) => make("td", {}, value.toLocaleString("en")))));
    const table = make("table", {}, make("thead", {}, make("tr", {}, ...head.map((name) => make("th", { scope: "col" }, name)))), make("tbody", {}, ...body));
    return make("details", {}, make("summary", {}, "All turns as a table"), make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "All turns" }, table));
  }

  // A pool of one's own.

  #pool() {
    this.copies = make("input", { type: "range", min: "1", max: String(MOST_COPIES), value: "8", "aria-label": "Sessions like this at once" });
    this.copiesWords = make("output", {}, "8 sessions like this at once");
    this.copies.addEventListener("input", () => (this.copiesWords.textContent = `${counted(Number(this.copies.value), "session")} like this at once`));
    this.copies.addEventListener("change", () => this.#askPools());
    this.blocks = make("input", { type: "range", min: "0", max: "100", value: "50", "aria-label": "Blocks in the pool", disabled: true });
    this.blocks.addEventListener("input", () => this.#mark());
    this.found = make("p", { class: "found", "aria-live": "polite" }, "How many people with sessions like this fit on one server?");
    this.curve = make("div", { class: "curve" });
    this.compare = button("Compare policies", () => this.#ask({ policies: true, count: Number(this.copies.value) }), { disabled: true });
    const begin = button("Draw the curve", () => this.#askPools());
    return make(
      "section",
      { "aria-label": "A pool of your own" },
      make("h3", {}, "In a pool of your own"),
      make("p", { class: "small" }, "As many such sessions begin one after the other, and share one pool of blocks. They share no text."),
      make("div", { class: "bar" }, make("label", {}, this.copies, " ", this.copiesWords), begin, this.compare),
      this.curve,
      make("label", { class: "wide" }, "Pool ", this.blocks),
      this.found,
    );
  }

  #askPools() {
    this.#ask({ pools: true, count: Number(this.copies.value) });
  }

  #drawPools(pools) {
    this.pools = pools;
    this.standings = [];
    this.blocks.disabled = this.compare.disabled = false;
    this.#say(`${counted(pools.count, "session")} in pools of ${pools.points.length} sizes.`);
    this.#plot();
    this.#mark();
  }

  #drawPolicies(standings) {
    this.standings = standings;
    this.#say("The line is LRU. The bars are Belady's, the most that any policy can find.");
    this.#plot();
    this.#mark();
  }

  /** The x of a pool size: equal ratios are equal distances. */
  #x(size) {
    const [[first], [last]] = [this.pools.points[0], this.pools.points.at(-1)];
    return last === first ? 0.5 : Math.log(size / first) / Math.log(last / first);
  }

  #plot() {
    const { points, tokens } = this.pools;
    const x = (size) => 40 + 540 * this.#x(size);
    const y = (hits) => 170 - 150 * (hits / tokens);
    const line = points.map(([size, hits]) => `${x(size).toFixed(1)},${y(hits).toFixed(1)}`).join(" ");
    const parts = [svg("polyline", { points: line, class: "lru" })];
    for (const level of [0, 0.5, 1]) {
      parts.push(svg("line", { x1: 40, x2: 580, y1: y(level * tokens), y2: y(level * tokens), class: "grid" }));
      parts.push(svg("text", { x: 34, y: y(level * tokens) + 4, "text-anchor": "end" }, `${100 * level} %`));
    }
    for (const [size] of [points[0], points.at(-1)]) {
      parts.push(svg("text", { x: x(size), y: 188, "text-anchor": size === points[0][0] ? "start" : "end" }, `${size.toLocaleString("en")} blocks`));
    }
    for (const { policy, num_blocks, hit_tokens } of this.standings) {
      const [px, py] = [x(num_blocks), y(hit_tokens)];
      if (policy === "belady") parts.push(svg("path", { d: `M${px - 6} ${py}H${px + 6}`, class: "belady" }));
    }
    this.marker = svg("line", { y1: 20, y2: 170, class: "marker" });
    const drawing = svg("svg", { viewBox: "0 0 600 195", role: "img", "aria-label": `Tokens found by pool size, from ${points[0][0]} to ${points.at(-1)[0]} blocks` }, ...parts, this.marker);
    this.curve.replaceChildren(drawing, ...this.#legend());
  }

  #legend() {
    if (!this.standings.length) return [];
    const sizes = [...new Set(this.standings.map(({ num_blocks }) => num_blocks))];
    const rows = Object.entries(NAMES).map(([policy, name]) => {
      const of = sizes.map((size) => this.standings.find((each) => each.policy === policy && each.num_blocks === size));
      return make("tr", {}, make("th", { scope: "row" }, name), ...of.map((each) => make("td", {}, each ? share(each.hit_tokens, this.pools.tokens) : "")));
    });
    const head = make("tr", {}, make("th", { scope: "col" }, `found in blocks of ${this.pools.block_size} tokens`), ...sizes.map((size) => make("th", { scope: "col" }, `${size.toLocaleString("en")}`)));
    return [make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Policies" }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)))];
  }

  #mark() {
    const { points, tokens } = this.pools;
    const wanted = Number(this.blocks.value) / 100;
    const at = points.reduce((best, point) => (Math.abs(this.#x(point[0]) - wanted) < Math.abs(this.#x(best[0]) - wanted) ? point : best));
    const [size, hits] = at;
    const x = 40 + 540 * this.#x(size);
    this.marker.setAttribute("x1", String(x));
    this.marker.setAttribute("x2", String(x));
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
    ...[["read", "read from the cache"], ["again", "computed again"], ["new", "new"]].flatMap(([name, words]) => [make("i", { class: name }), make("span", {}, words)]),
  );

const counted = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
const share = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1)} %` : "0 %");

function duration(seconds) {
  if (seconds < 60) return `${Math.round(seconds)} s`;
  return seconds < 3600 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

const STYLE = `${LOOK}
.drop { border: 2px dashed var(--line); border-radius: 6px; padding: .8em; margin-bottom: .6em }
.drop p { margin: 0 0 .4em }
input[type=file] { width: 100%; max-width: 26em; border: 0; background: none; padding: 0 }
label { align-self: center; font-size: .9em }
[role=status] { min-height: 1.5em; margin: 0 0 .6em }
h3 { margin: .9em 0 .3em; font-size: 1.05em }
p { margin: .3em 0 }
.small { font-size: .85em; color: var(--todo); font-weight: 400 }
.key { display: flex; flex-wrap: wrap; gap: .2em .5em; align-items: center; font-size: .85em }
.key i { width: 1.6em; height: .9em }
.key span { margin-right: .8em }
i { display: inline-block; height: 100% }
.read { background: light-dark(#1c6fb5, #6db3f2) }
.again { background: repeating-linear-gradient(135deg, light-dark(#c2510a, #ffab7a) 0 4px, light-dark(#fbe3d3, #5a2d12) 4px 7px) }
.new { background: light-dark(#d5dae2, #4a5160); box-shadow: inset 0 0 0 1px light-dark(#8b93a1, #8b93a1) }
.rows { list-style: none; margin: 0; padding: 0; max-height: 26em; overflow-y: auto; border: 1px solid var(--line); border-radius: 4px; position: relative }
.turn { display: grid; grid-template-columns: 3em minmax(0, 1fr) minmax(0, 9em); gap: .5em; align-items: center; width: 100%; min-height: 1.9em; border: 0; border-radius: 0; background: none; padding: .1em .4em; text-align: left }
.turn[aria-current] { background: var(--soft); box-shadow: inset 3px 0 var(--accent) }
.blocks { display: flex; height: 1.05em }
.number { text-align: right; color: var(--todo); font-variant-numeric: tabular-nums }
.remark { font-size: .85em; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; color: var(--todo) }
.broke { color: var(--fail) }
.rows + .bar { margin: .5em 0 }
.detail { border-left: 3px solid var(--accent); padding-left: .7em; min-height: 7em }
.detail h3 { margin-top: 0 }
.causes { margin: 0; padding-left: 1.1em }
.waterfall { list-style: none; margin: 0; padding: 0; font-size: .9em }
.waterfall li { display: grid; grid-template-columns: minmax(0, 15em) minmax(0, 1fr) minmax(0, 10em); gap: .6em; align-items: center }
.value { font-variant-numeric: tabular-nums; text-align: right }
.scroll { overflow-x: auto }
table { border-collapse: collapse; font-size: .85em; font-variant-numeric: tabular-nums }
th, td { padding: .15em .6em; border-bottom: 1px solid var(--line); text-align: right }
th:first-child, td:last-child { text-align: left }
summary { cursor: pointer }
.curve svg { width: 100%; max-width: 640px; display: block; font: 11px var(--kv-sans, system-ui, sans-serif); fill: currentColor }
.lru { fill: none; stroke: light-dark(#1c6fb5, #6db3f2); stroke-width: 2.5 }
.grid { stroke: var(--line); stroke-width: 1 }
.marker { stroke: var(--accent); stroke-width: 1.5; stroke-dasharray: 4 3 }
.belady { stroke: var(--fg); stroke-width: 3 }
.wide { display: flex; gap: .6em; max-width: 640px }
.wide input { flex: 1 }
input[type=range] { width: 11em; padding: 0; accent-color: var(--accent) }
@media (max-width: 600px) { .curve svg { font-size: 19px } .waterfall li { grid-template-columns: 1fr; gap: 0 } .waterfall .value { text-align: left } .turn { grid-template-columns: 2em minmax(0, 1fr) minmax(0, 6em) } }`;

customElements.define("kv-session", KvSession);
