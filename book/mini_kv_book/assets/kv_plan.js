/* <kv-plan>: will a model fit, and what can its prefix cache find? mini_kv answers in the page, as in the terminal.
 *
 * The fence (mini_kv_book/elements.py) writes the first answer and the choices as JSON. The first change loads Python. The
 * fields are kept behind the # of the address, which no server sees; a config.json is packed there, too.
 */
import { button, keepAddress, LOOK, make, onAddress, textOf } from "./kv_parts.js";
import { Python } from "./kv_python.js";

const LARGEST_FILE = 1 << 20; // as mini_kv reads it
const MOST_BLOCKS = 48; // of a strip: more would be too narrow to tell apart
const COLUMN = { height: 110, most: 26, width: 640 };
const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c8c00", "#6b5b95"];

class KvPlan extends HTMLElement {
  #root;
  #about; // {cases, first, megabytes, models, cards, dtypes, backends}
  #fields = {};
  #python = new Python("plan_page", (message) => this.#hear(message));
  #asking = ""; // the fields that Python is working on, as JSON; empty: none
  #late = 0;

  connectedCallback() {
    if (this.#root || !this.hasAttribute("python")) return;
    this.#about = JSON.parse(this.querySelector("script[type='application/json']").textContent);
    this.#root = this.attachShadow({ mode: "open" });
    this.#build();
    this.#fields = { ...this.#about.cases[0][0] };
    this.#fill();
    this.#show(this.#about.first);
    onAddress((given) => this.#openAddress(given));
  }

  disconnectedCallback() {
    this.#python.stop();
  }

  // ---- The form ----------------------------------------------------------------------------------------------------------

  #build() {
    const style = make("style");
    style.textContent = STYLE;
    const { models, cards, dtypes, backends, cases } = this.#about;
    const own = ["", "your config.json"];
    this.file = make("input", { type: "file", accept: ".json,application/json", "aria-label": "Open a config.json", onchange: () => this.#open() });
    const pasted = this.#field("config", make("textarea", { rows: "5", spellcheck: "false", placeholder: '{"model_type": ...}' }), "Its text");
    this.own = make("div", { class: "own", hidden: true }, pasted, this.file);
    const main = [
      this.#choice("model", "Model", [...models, own]),
      this.own,
      this.#choice("gpu", "GPU", [["", "none: memory of the cache"], ...cards]),
      this.#number("memory", "GiB for the cache", "the rest"),
      this.#number("tensor-parallel-size", "GPUs", "1"),
      this.#number("max-len", "Longest request, tokens", "the model's"),
    ];
    const flags = [
      this.#choice("kv-cache-dtype", "--kv-cache-dtype", [["", "auto"], ...dtypes.filter((name) => name !== "auto").map((name) => [name, name])]),
      this.#number("block-size", "--block-size", "16"),
      this.#number("num-speculative-tokens", "drafts per step", "0"),
      this.#choice("gdn-prefill-backend", "--gdn-prefill-backend", [["", "the GPU's"], ...backends.map((name) => [name, name])]),
      this.#number("max-num-batched-tokens", "--max-num-batched-tokens", "vLLM's for the GPU"),
      this.#number("gpu-memory-utilization", "--gpu-memory-utilization", "0.92"),
    ];
    this.more = make("details", {}, make("summary", {}, "More of vLLM's flags"), make("div", { class: "fields" }, ...flags));
    const asked = make("div", { class: "fields" }, ...main);
    const form = make("form", { "aria-label": "What to plan", onsubmit: (event) => event.preventDefault() }, asked, this.more);
    this.slider = make("input", { type: "range", min: "1", step: "1", "aria-label": "Shared tokens", oninput: () => this.#slid() });
    const shared = make("div", { class: "shared" }, this.#number("prompt-tokens", "Tokens that requests share", ""), this.slider);
    this.told = make("p", { class: "status", role: "status" });
    this.room = make("section", { "aria-label": "Room" });
    this.weights = this.#number("weights", "Weights, GB", "the model's");
    this.weights.classList.add("weights");
    this.plan = make("section", { "aria-label": "Will it fit?" });
    this.why = make("section", { "aria-label": "What can be found?" });
    this.strip = make("div", { class: "strip" });
    const answers = make("div", { class: "answers" }, this.told, this.#python.bar, this.room, this.weights, this.plan, make("h3", {}, "What can requests find?"), shared, this.strip, this.why);
    const chips = cases.map(([fields, words]) => button(words, () => this.#take(fields)));
    const presets = make("div", { class: "bar", role: "group", "aria-label": "Cases" }, ...chips);
    this.#root.append(style, make("div", { class: "all" }, presets, make("div", { class: "both" }, form, answers)));
  }

  #field(name, input, words) {
    input.name = input.id = name;
    input.addEventListener("input", () => this.#typed(name, input.value));
    return make("div", { class: "field" }, make("label", { for: name }, words), input);
  }

  #choice(name, words, options) {
    return this.#field(name, make("select", {}, ...options.map(([value, text]) => make("option", { value }, text))), words);
  }

  #number(name, words, otherwise) {
    return this.#field(name, make("input", { inputmode: "decimal", autocomplete: "off", placeholder: otherwise }), words);
  }

  /** Write the fields into the form. */
  #fill() {
    for (const input of this.#root.querySelectorAll("[name]")) {
      const value = this.#fields[input.name] ?? "";
      if (input.value !== value) input.value = value;
    }
    this.own.hidden = Boolean(this.#fields.model);
    for (const input of this.more.querySelectorAll("[name]")) this.more.open ||= Boolean(this.#fields[input.name]);
    this.slider.value = this.#fields["prompt-tokens"] ?? "1";
  }

  #typed(name, value) {
    this.#fields[name] = value.trim();
    this.#fill();
    this.#soon();
  }

  #slid() {
    this.#typed("prompt-tokens", this.slider.value);
  }

  #take(fields) {
    this.#fields = { ...fields };
    this.#fill();
    this.#soon();
  }

  async #open() {
    const [file] = this.file.files;
    if (!file) return;
    if (file.size > LARGEST_FILE) this.told.textContent = `${file.name} has more than 1 MiB: it is not a config.json.`;
    else this.#typed("config", await file.text());
  }

  // ---- The address -------------------------------------------------------------------------------------------------------

  /** Ask what the address says; return whether it has fields of this page. */
  #openAddress(given) {
    const isOwn = Object.keys(given).some((name) => this.#root.querySelector(`[name="${CSS.escape(name)}"]`));
    if (isOwn) this.#openFields(given);
    return isOwn;
  }

  async #openFields(given) {
    if (given.config) given.config = await unpacked(given.config).catch(() => "");
    if (JSON.stringify(given) === JSON.stringify(filled(this.#fields))) return;
    this.#fields = given;
    this.#fill();
    this.#soon(0);
  }

  async #keepAddress() {
    const fields = filled(this.#fields);
    const asked = JSON.stringify(fields);
    if (fields.config) fields.config = await packed(fields.config);
    if (asked !== JSON.stringify(filled(this.#fields))) return; // typed meanwhile: the next answer keeps the address
    keepAddress(fields);
  }

  // ---- Questions and answers ---------------------------------------------------------------------------------------------

  /** Ask when the reader has paused; what is asked meanwhile waits for the answer. */
  #soon(pause = 150) {
    clearTimeout(this.#late);
    this.toggleAttribute("running", true);
    this.#late = setTimeout(() => this.#ask(), pause);
  }

  #ask() {
    if (this.#asking) return; // the answer asks again
    const fields = filled(this.#fields);
    if (!fields.model && !fields.config) {
      this.#say("Paste a config.json, or open one. It stays in this page.");
      return;
    }
    if (!this.#python.ready) this.told.textContent = `Loading Python (${this.#about.megabytes} MB, once).`;
    this.#asking = JSON.stringify(fields);
    this.#python.ask({ type: "ask", asked: this.#asking });
  }

  #hear(message) {
    if (message.type === "progress") this.told.textContent = `Loading Python: ${message.words}.`;
    if (!["answered", "stuck", "broken"].includes(message.type)) return;
    const isOutdated = this.#asking !== JSON.stringify(filled(this.#fields));
    this.#asking = "";
    if (message.type === "stuck") this.#say("This took more than 10 seconds and was ended. Try a shorter prefix.");
    else if (message.type === "broken") this.#say(`Python broke down: ${message.message.slice(-300)}`);
    else if (isOutdated) this.#ask();
    else {
      this.#say("");
      this.#show(message);
      this.#keepAddress();
    }
  }

  #say(words) {
    this.toggleAttribute("running", false);
    this.told.textContent = words;
  }

  #show({ plan, why }) {
    this.room.replaceChildren(...(plan.error ? [make("p", { class: "problem" }, plan.error)] : room(plan)));
    const { gpu, memory, weights } = this.#fields;
    this.weights.hidden = !weights && (!gpu || Boolean(memory));
    this.plan.replaceChildren(...(plan.error ? [commanded(plan.command)] : planned(plan)));
    this.why.replaceChildren(...(why.error ? [problem(why)] : found(why)));
    const [row] = why.rows ?? [];
    this.strip.replaceChildren(...(row ? strip(row, why.unit) : []));
    this.slider.max = String(Math.max(4 * (why.unit ?? 16), 4096, row?.tokens ?? 0));
    this.slider.value = String(row?.tokens ?? 1);
  }
}

/** The fields that say something, in one order. */
const filled = (fields) => Object.fromEntries(Object.entries(fields).filter(([, value]) => value).sort());

const problem = ({ error, command }) => make("div", {}, make("p", { class: "problem" }, error), commanded(command));
const commanded = (command) => make("pre", {}, make("code", {}, command));

// ---- Will it fit ---------------------------------------------------------------------------------------------------------

/** The answer in a sentence, and how a GPU's memory is used. The field for the weights comes after it. */
function room(plan) {
  return [
    make("p", { class: "big" }, plan.fits),
    ...(plan.card && plan.known ? [bar(plan)] : []),
    ...(plan.parameters ? [make("p", { class: "small" }, `Weights: ${plan.parameters}.`)] : []),
  ];
}

function planned(plan) {
  const figures = plan.figures.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]);
  return [
    ...(plan.speed ? [make("p", {}, `Speed: ${plan.speed}.`)] : []),
    ...(plan.cut ? [make("p", {}, plan.cut)] : []),
    make("figure", {}, columns(plan), legend(plan)),
    make("details", {}, make("summary", {}, "Figures and source"), make("dl", {}, ...figures), make("p", {}, plan.source)),
    commanded(plan.command),
  ];
}

/** A GPU's memory as one bar: weights, cache, and the share that is not used. */
function bar({ card, cards, weights, kv, rest }) {
  const parts = [["weights", weights], ["KV cache", kv], ["not used", rest]].filter(([, bytes]) => bytes > 0);
  const gigabytes = (bytes) => `${(bytes / 1e9).toFixed(1)} GB`;
  const said = parts.map(([name, bytes]) => `${name} ${gigabytes(bytes)}`).join(", ");
  const shown = parts.map(([name, bytes], index) =>
    make("div", { class: `part p${index}`, style: `flex-grow: ${bytes / card.bytes}` }, make("b", {}, name), ` ${gigabytes(bytes)}`),
  );
  const each = `${cards > 1 ? `Each of ${cards} ${card.name} GPUs` : card.name}, ${card.bytes / 1e9} GB`;
  return make("div", {}, make("div", { class: "memory", role: "img", "aria-label": `${each}: ${said}` }, ...shown), make("p", { class: "small" }, `${each}.`));
}

const letter = (number) => String.fromCharCode(65 + (number % 26)) + (number < 26 ? "" : String(Math.floor(number / 26)));

/** Each layer as a column, as high as its page of a block, filled as far as it uses it. */
function columns({ layers, groups, caption }) {
  const step = Math.min(COLUMN.most, COLUMN.width / layers.length);
  const gap = step > 8 ? 2 : step > 4 ? 1 : 0.5;
  const all = svg("svg", { viewBox: `0 0 ${(step * layers.length).toFixed(1)} ${COLUMN.height + 14}`, role: "img" });
  all.append(svg("title", {}, `${layers.length} layers. ${caption}`), svg("defs", {}, ...groups.map(pattern)));
  layers.forEach((layer, index) => {
    const [x, width, height] = [index * step, step - gap, layer.page * COLUMN.height];
    const column = svg("g", {});
    const filledTo = layer.filled * height;
    const fill = `url(#${layer.kind}${layer.group})`;
    column.append(
      svg("title", {}, `${layer.name}: group ${letter(layer.group)}, fills ${(100 * layer.filled).toFixed(1)} % of its page`),
      svg("rect", { x, y: 0.5 + COLUMN.height - height, width, height, class: "room" }),
      svg("rect", { x, y: 0.5 + COLUMN.height - filledTo, width, height: filledTo, fill }),
    );
    if (step >= 12) column.append(svg("text", { x: x + width / 2, y: COLUMN.height + 12 }, letter(layer.group)));
    all.append(column);
  });
  return all;
}

/** A group's colour, and a pattern that says what its layers keep: all tokens, some of them, or a state. */
function pattern({ number, kind }) {
  const made = svg("pattern", { id: `${kind}${number}`, width: 6, height: 6, patternUnits: "userSpaceOnUse" });
  made.append(svg("rect", { width: 6, height: 6, fill: COLOURS[number % COLOURS.length] }));
  if (kind === "state") made.append(svg("path", { d: "M0 6L6 0", class: "over" }));
  if (kind === "part") made.append(svg("path", { d: "M0 3H6", class: "over" }));
  return made;
}

/** The groups in words; those that are alike share a line. */
function legend({ groups, caption }) {
  const alike = new Map();
  for (const { layers, keeps, holds, number, kind } of groups) {
    const words = `${keeps}. A block holds ${holds}.`;
    const key = `${layers} ${words}`;
    if (!alike.has(key)) alike.set(key, { words, layers, kind, numbers: [] });
    alike.get(key).numbers.push(number);
  }
  const lines = [...alike.values()].map(({ words, layers, kind, numbers }) => {
    const keys = numbers.map((number) => make("span", { class: `key ${kind}`, style: `--colour: ${COLOURS[number % COLOURS.length]}` }, letter(number)));
    return make("li", {}, ...keys, ` ${layers} ${layers === 1 ? "layer" : "layers"}${numbers.length > 1 ? " each" : ""}: ${words}`);
  });
  return make("figcaption", {}, caption, make("ul", {}, ...lines));
}

function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

// ---- What can be found ---------------------------------------------------------------------------------------------------

/** The shared tokens, cut into the blocks of this model: what is found, what is computed again. */
function strip(row, unit) {
  const count = Math.ceil(row.tokens / unit);
  const pieces = [];
  if (count <= MOST_BLOCKS) {
    for (let first = 0; first < row.tokens; first += unit) pieces.push([Math.min(unit, row.tokens - first), first < row.third_to_share, unit]);
  } else {
    if (row.third_to_share) pieces.push([row.third_to_share, true, row.third_to_share]);
    if (row.tokens > row.third_to_share) pieces.push([row.tokens - row.third_to_share, false, row.tokens - row.third_to_share]);
  }
  const shown = pieces.map(([tokens, isFound, whole]) => {
    const looks = ["piece", isFound && "found", tokens < whole && "part"].filter(Boolean).join(" ");
    const words = count <= 12 ? [make("span", {}, tokens.toLocaleString("en"))] : [];
    const inside = make("div", { class: looks, style: `width: ${(100 * tokens) / whole}%` }, ...words);
    return make("div", { class: "block", style: `flex-grow: ${whole}` }, inside);
  });
  const said = `${row.tokens.toLocaleString("en")} shared tokens in blocks of ${unit.toLocaleString("en")}: ${row.third_to_share.toLocaleString("en")} found, the rest computed again`;
  const key = make("p", { class: "small" }, make("span", { class: "piece found swatch" }), " found ", make("span", { class: "piece swatch" }), " computed again");
  key.append(`. Blocks of ${unit.toLocaleString("en")} tokens; the ${row.second_to_share === row.third_to_share ? "second" : "third"} request.`);
  return [make("div", { class: "blocks", role: "img", "aria-label": said }, ...shown), key];
}

function found(why) {
  const [row] = why.rows;
  const lines = why.said.map((words) => make("li", {}, words));
  const helps = why.helps.map((words) => make("li", {}, words));
  const names = { same_prompt: "the same prompt again", second_to_share: "the second request that shares them", third_to_share: "the third" };
  const rows = Object.entries(row ? names : {}).map(([name, words]) => make("tr", {}, make("th", { scope: "row" }, words), make("td", {}, row[name].toLocaleString("en"))));
  return [
    ...(why.verdict ? [make("p", { class: "big" }, why.verdict)] : []),
    ...(row ? [make("table", {}, make("caption", {}, "Tokens found, at best"), ...rows)] : []),
    make("ul", {}, ...lines),
    ...(helps.length ? [make("p", {}, "What would help:"), make("ul", {}, ...helps)] : []),
    commanded(why.command),
  ];
}

// ---- A config.json in an address -----------------------------------------------------------------------------------------

async function through(bytes, stream) {
  const answer = new Response(new Blob([bytes]).stream().pipeThrough(stream));
  return new Uint8Array(await answer.arrayBuffer());
}

async function packed(text) {
  const bytes = await through(new TextEncoder().encode(text), new CompressionStream("deflate-raw"));
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join("")).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

/** The text in an address. It throws for one that is longer than a file may be. */
async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (sign) => sign.charCodeAt(0));
  return textOf(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw")), LARGEST_FILE);
}

const STYLE = `${LOOK}
.all { padding: .8em }
.bar button { font-size: .85em; text-align: left }
form .field { margin-bottom: .6em }
label { display: block; font-size: .85em; color: var(--todo) }
select, form input, textarea { width: 100%; background: var(--bg); min-height: 2.6em }
textarea { font: .8em var(--mono); border: 1px solid var(--line); border-radius: 4px; color: inherit; padding: .4em }
.own { border-left: 3px solid var(--accent); padding-left: .6em; margin-bottom: .6em }
summary { cursor: pointer; color: var(--accent); padding: .3em 0 }
h3 { font-size: 1.05em; margin: 1em 0 .4em; border-top: 1px solid var(--line); padding-top: .8em }
.status { min-height: 1.5em; margin: 0; color: var(--todo); font-size: .9em }
:host([running]) section, :host([running]) .strip { opacity: .6 }
.big { font-size: 1.15em; font-weight: 600; margin: 0 0 .6em }
.problem { border-left: 4px solid var(--fail); padding: .3em .7em; margin: 0 0 .6em }
.memory { display: flex; gap: 2px; margin-bottom: .2em; font-size: .85em }
.part { flex-basis: 0; min-width: 6.2em; white-space: nowrap; padding: .35em .5em; border: 1.5px solid var(--todo); border-radius: 4px }
.part b { display: block }
.p0 { background: var(--soft) }
.p1 { background: light-dark(#cde4f6, #0d4f7c); border-color: light-dark(#0072b2, #6cc1f2) }
.p2 { border-style: dashed }
figure { margin: .8em 0 }
figcaption { font-size: .85em; color: var(--todo) }
figcaption ul { list-style: none; margin: .4em 0 0; padding: 0 }
svg { display: block; width: 100%; max-width: 640px; height: auto }
svg text { font: 600 10px var(--mono); text-anchor: middle; fill: var(--fg) }
.room { fill: none; stroke: var(--todo); stroke-width: .7; stroke-dasharray: 2 2 }
.over { stroke: light-dark(#fff, #1b1f28); stroke-width: 1.6; fill: none }
.key { display: inline-block; min-width: 1.5em; padding: 0 .25em; margin-right: .2em; border-radius: 3px; border: 3px solid var(--colour);
  text-align: center; font: 600 .95em var(--mono); color: var(--fg) }
.key.state { padding-right: 1.2em; background: repeating-linear-gradient(-45deg, var(--bg) 0 2px, var(--colour) 2px 6px) right / 1em 100% no-repeat }
.key.part { padding-right: 1.2em; background: repeating-linear-gradient(var(--bg) 0 2px, var(--colour) 2px 6px) right / 1em 100% no-repeat }
.shared { display: grid; gap: .5em; grid-template-columns: minmax(8em, 1fr) 2fr; align-items: end; margin-bottom: .6em }
.shared input { width: 100% }
input[type=range] { padding: 0; accent-color: var(--accent) }
.blocks { display: flex; gap: 2px; margin-bottom: .3em }
.block { flex-basis: 0; min-width: 4px; border: 1.5px solid var(--todo); border-radius: 4px; overflow: hidden }
.piece { height: 2.2em; font: .75em/1.5 var(--mono); display: flex; align-items: center; justify-content: center; overflow: hidden;
  background: repeating-linear-gradient(45deg, var(--soft) 0 5px, light-dark(#d5d9e0, #3a4150) 5px 10px) }
.piece span { background: var(--bg); padding: 0 .4em; border-radius: 3px }
.weights { max-width: 15em; margin-bottom: .8em } .weights input { width: 100% }
.small { font-size: .85em; color: var(--todo); margin: 0 0 .8em }
.piece.swatch { display: inline-block; width: 1.6em; height: 1em; vertical-align: -.1em; border: 1px solid var(--todo) }
.piece.found { background: light-dark(#cde4f6, #0d4f7c); border-bottom: 5px solid var(--pass) }
.piece.part { border-right: 1.5px solid var(--todo) }
table { border-collapse: collapse; font-size: .9em; margin-bottom: .6em }
caption { text-align: left; color: var(--todo) }
th { text-align: left; font-weight: 400; padding: .15em 1em .15em 0 }
td { text-align: right; font-variant-numeric: tabular-nums; font-weight: 600 }
dl { display: grid; grid-template-columns: auto auto; gap: .1em 1em; font-size: .9em; justify-content: start }
dd { margin: 0; text-align: right; font-variant-numeric: tabular-nums }
pre { background: var(--soft); padding: .5em .7em; border-radius: 4px; font-size: .8em; white-space: pre-wrap; overflow-wrap: anywhere }
code { font-family: var(--mono) }
.fields { display: grid; grid-template-columns: 1fr 1fr; gap: 0 .6em; align-items: end }
.fields .own { grid-column: 1 / -1 }
@media (min-width: 900px) { .fields { display: block } .both { display: grid; grid-template-columns: 15em minmax(0, 1fr); gap: 1.5em; align-items: start } }
@media (max-width: 600px) { .all { padding: .5em; border-left: 0; border-right: 0; border-radius: 0 }
  .bar { flex-wrap: nowrap; overflow-x: auto; padding-bottom: .3em } .bar button { flex: none; max-width: 14em; white-space: normal } .shared { grid-template-columns: 1fr } }`;

customElements.define("kv-plan", KvPlan);
