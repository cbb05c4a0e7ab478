/* <kv-play>: the engine in the page, with the reader's own words.
 *
 * Python plans each step (mini_kv/course/lessons/play.py, in a worker), kv_runner.js computes it, and <kv-story> draws the
 * cache. All that the reader does is in #done, with the number of steps before it. So a step back, and an address that
 * somebody sends, are the same thing: a new engine that does it all again. The build has recorded the first case with the
 * same scheduler and cache: its steps are shown without Python, until the reader does something else.
 */
import { GpuKV, hasGpu, openGpu } from "./kv_gpu.js";
import { button, keepAddress, LOOK, make, onAddress } from "./kv_parts.js";
import { Python } from "./kv_python.js";
import { loadModel, Runner } from "./kv_runner.js";

const BOXES = ["a", "b", "c"];
const MOST_STEPS = 2000; // of an address
const MOST_SQUARES = 64; // as many blocks as the slider can choose
/** Pauses between two steps of a run, in ms, so that they can be seen. */
const SPEEDS = [["400", "slow"], ["150", "normal"], ["0", "fast"]];
/** @type {[string, string, string[]][]} */
const CHOICES = [
  ["block_size", "Tokens per block", ["4", "8", "16"]],
  ["max_num_batched_tokens", "Tokens per step, at most", ["8", "16", "32", "64", "128"]],
  ["max_tokens", "Tokens of an answer", ["8", "16", "24", "48", "96"]],
];

class KvPlay extends HTMLElement {
  #root;
  #about; // {cases, first: {story, tokens, told}, megabytes, levers, policies, models}
  #python = new Python("play_page", (message) => this.#hear(message));
  #waiting = []; // the answers that are awaited, in order
  #weights = {};
  #runner = null;
  #makeRunner; // made by a step that computes
  #gpu = null;
  #levers; // all as texts
  #model = "tiny";
  #isLive = false; // whether Python has made what is shown
  #steps = 0;
  #done = []; // [steps before it, what, box, words]
  #plans = []; // of each step that Python has planned: the plan and its tokens
  #computed = 0; // steps that the runner has computed; after a step back it is behind
  #queue = Promise.resolve(); // one thing at a time
  #isRunning = false;

  connectedCallback() {
    if (this.#root || !this.hasAttribute("python")) return;
    this.#about = JSON.parse(this.querySelector("script[type='application/json']").textContent);
    this.#root = this.attachShadow({ mode: "open" });
    this.#build();
    this.#take(this.#about.cases[0][0]);
    this.#later(() => this.#reset());
    onAddress((given) => this.#openAddress(given));
  }

  disconnectedCallback() {
    this.#isRunning = false;
    this.#python.stop();
  }

  // ---- What is on the page -----------------------------------------------------------------------------------------------

  #build() {
    const style = make("style");
    style.textContent = STYLE;
    this.example = choose([["", "your own"], ...this.#about.cases.map(([, words], i) => [String(i), words])]);
    this.example.options[0].disabled = true;
    this.example.setAttribute("aria-label", "Example");
    this.example.addEventListener("change", () => {
      this.#take(this.#about.cases[this.example.value][0]);
      this.#restart();
    });
    this.run = button("Run", () => this.#toggleRun(), { class: "primary" });
    this.step = button("One step", () => this.#later(() => this.#stepped()));
    this.back = button("Undo step", () => this.#later(() => this.#goTo(this.#steps - 1)), { disabled: true });
    this.again = button("From the start", () => this.#later(() => this.#goTo(0, [])));
    this.speed = choose(SPEEDS);
    this.speed.setAttribute("aria-label", "Speed");
    this.speed.value = "150";
    const bar = make("div", { class: "bar", role: "group", "aria-label": "Steps" }, this.run, this.step, this.back, this.again);
    this.pool = make("div", { class: "pool", "aria-hidden": "true" }); // the figure says it too
    this.told = make("p", { class: "status", role: "status" });
    const hands = make("div", { class: "hands" }, bar, this.pool, this.told, this.#python.bar);
    const chosen = make("div", { class: "bar chosen" }, this.example, this.speed);
    this.counters = make("dl", { class: "counters" });
    this.figure = /** @type {any} */ (document.createElement("kv-story"));
    this.boxes = Object.fromEntries(BOXES.map((name) => [name, this.#box(name)]));
    const key = make("p", { class: "small" }, make("mark", {}, "found in the cache"), ", computed, ", make("strong", {}, "written by the model"));
    const texts = make("div", { class: "texts" }, key, ...BOXES.map((name) => this.boxes[name].all));
    this.log = make("pre", { tabindex: "0", "aria-label": "What happened" });
    const keep = {
      "Save this run": () => this.#save(),
      "Copy its address": () => this.#copy((address) => address),
      "Copy it as a frame": () => this.#copy((address) => `<iframe src="${address}" title="KV cache" width="100%" height="900"></iframe>`),
    };
    const links = Object.entries(keep).map(([words, act]) => button(words, () => this.#later(act), { class: "link" }));
    const kept = make("p", { class: "small bar" }, ...links);
    kept.append("In a terminal, ", make("code", {}, "mini-kv story play.json"), " shows a saved run.");
    const told = make("details", { open: true }, make("summary", {}, "What happened"), this.log);
    this.figure.setAttribute("live", "");
    this.record = make("div", {}, told, kept);
    const drawn = make("div", { class: "drawn" }, this.counters, this.figure, this.record);
    this.#root.append(style, make("div", { class: "all" }, chosen, hands, texts, drawn, this.#leversForm()));
  }

  #box(name) {
    const label = name.toUpperCase();
    const said = make("p", { class: "said", "aria-live": "polite" });
    const paid = make("p", { class: "small" });
    const words = make("textarea", { rows: "2", spellcheck: "false", "aria-label": `Words for ${label}`, placeholder: `Words for ${label}` });
    words.addEventListener("input", () => this.#loadEarly());
    words.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#later(() => this.#send(name));
    });
    const send = button("Send", () => this.#later(() => this.#send(name)), { class: "primary", "aria-label": `Send ${label}` });
    const stop = button("Stop", () => this.#later(() => this.#act("stop", name)), { "aria-label": `Stop ${label}`, disabled: true });
    const leave = button("Clear", () => this.#later(() => this.#act("leave", name)), { "aria-label": `Clear ${label}`, disabled: true });
    const all = make("section", { class: "box", "aria-label": `Text ${label}` });
    all.append(make("h3", {}, label), said, words, send, make("div", { class: "bar" }, paid, stop, leave));
    return { all, said, paid, words, send, stop, leave };
  }

  #leversForm() {
    const { policies, models } = this.#about;
    const blocks = make("input", { type: "range", min: "6", max: String(MOST_SQUARES) });
    const fields = [
      this.#field("num_blocks", "Blocks in the pool", blocks, make("output")),
      ...CHOICES.map(([name, words, choices]) => this.#field(name, words, choose(choices.map((each) => [each, each])))),
      this.#field("policy", "Eviction", choose(policies.map((each) => [each, each]))),
      this.#field("model", "The model", choose(models)),
      this.#field("enable_caching", "Prefix caching", choose([["true", "on"], ["false", "off"]])),
      this.#computedBy(),
    ];
    const note = make("p", { class: "small" }, "A change starts again, with an empty cache and your texts.");
    return make("details", { class: "levers", open: true }, make("summary", {}, "Settings"), make("div", { class: "fields" }, ...fields), note);
  }

  /** JavaScript or WebGPU: shown where the browser has a GPU. An address does not hold it. */
  #computedBy() {
    this.by = choose([["javascript", "JavaScript"], ["webgpu", "WebGPU"]]);
    const field = this.#field("computed_by", "Attention computed by", this.by);
    field.hidden = true;
    hasGpu().then((found) => (field.hidden = !found));
    return field;
  }

  #field(name, words, input, ...more) {
    input.id = input.name = name;
    input.addEventListener("change", () => this.#pull(name, input.value));
    input.addEventListener("input", () => more.forEach((output) => (output.textContent = input.value)));
    return make("div", { class: "field" }, make("label", { for: name }, words, " ", ...more), input);
  }

  #fill() {
    const values = { ...this.#levers, model: this.#model, computed_by: this.by.value };
    for (const input of this.#root.querySelectorAll(".levers [name]")) {
      input.value = values[input.name];
      input.dispatchEvent(new Event("input"));
    }
  }

  // ---- The reader's hands ------------------------------------------------------------------------------------------------

  /** Do one thing after the other. An error is shown, and the next thing may still be done. */
  #later(act) {
    this.#queue = this.#queue.then(act).catch((error) => {
      this.#isRunning = false;
      this.#say(String(error.message ?? error));
      this.#showRun();
    });
    return this.#queue;
  }

  /** Set the levers and texts of a case. */
  #take(fields) {
    this.#isRunning = false;
    this.#choose(fields);
    for (const name of BOXES) this.boxes[name].words.value = fields[name] ?? "";
    this.example.value = String(this.#about.cases.findIndex(([each]) => each === fields));
  }

  #choose(fields) {
    this.#model = this.#about.models.some(([name]) => name === fields.model) ? fields.model : "tiny";
    this.#levers = { ...this.#about.levers };
    for (const name of Object.keys(this.#levers)) this.#levers[name] = fields[name] ?? this.#levers[name];
    this.#fill();
  }

  /** A lever was pulled: the texts that were sent so far go back to the boxes. */
  #pull(name, value) {
    this.#isRunning = false;
    for (const box of BOXES) {
      const sent = this.#done.find(([, what, which]) => what === "send" && which === box);
      if (sent && !this.boxes[box].words.value) this.boxes[box].words.value = sent[3];
    }
    this.example.value = "";
    this.#choose({ ...this.#levers, model: this.#model, [name]: value });
    this.#restart();
  }

  /** Start with an empty cache. The address has the levers and texts from now on. */
  #restart() {
    this.#later(() => this.#reset());
    this.#later(() => this.#keepAddress());
  }

  async #reset() {
    [this.#steps, this.#done, this.#plans] = [0, [], []];
    this.#isLive = false;
    this.figure.data = emptyPool(Number(this.#levers.num_blocks), Number(this.#levers.block_size));
    this.record.hidden = true;
    this.counters.replaceChildren();
    this.#showPool(Array(Math.min(MOST_SQUARES, Number(this.#levers.num_blocks) || 0)).fill("free"));
    for (const name of BOXES) this.#showBox(name, undefined);
    const loaded = this.#python.ready ? "" : `The first time, Python and the model are loaded (${this.#about.megabytes} MB).`;
    this.#say(`Press Run: the texts are sent. ${this.#isRecorded(this.#texts()) ? "These steps are recorded, your own run here." : loaded}`);
    this.#showRun();
  }

  async #send(name) {
    const words = this.boxes[name].words.value;
    if (!words.trim()) throw new Error(`Write some words for ${name.toUpperCase()} first.`);
    await this.#act("send", name, words);
  }

  async #act(what, box, words = "") {
    await this.#start();
    this.#say("");
    await this.#ask({ do: what, box: box.toUpperCase(), words });
    this.#done.push([this.#steps, what, box, words]);
    if (what === "send") this.boxes[box].words.value = "";
    await this.#show();
  }

  #toggleRun() {
    this.#isRunning = !this.#isRunning;
    this.#say("");
    this.#showRun();
    if (this.#isRunning) this.#later(() => this.#sendAll()).then(() => this.#loop());
  }

  /** The texts that wait in their boxes are sent with the first run. */
  async #sendAll() {
    if (this.#done.length) return;
    const done = this.#texts();
    if (!this.#isRecorded(done)) {
      for (const [, , name] of done) await this.#send(name);
      return;
    }
    [this.#done, this.#isLive] = [done, false];
    for (const name of BOXES) this.boxes[name].words.value = "";
    this.#say(`These steps are recorded. Your own are computed here, with Python (${this.#about.megabytes} MB).`);
    this.#loadEarly();
    await this.#show();
  }

  /** What sends the texts that wait in their boxes. */
  #texts() {
    return BOXES.map((name) => [0, "send", name, this.boxes[name].words.value]).filter(([, , , words]) => words.trim());
  }

  /** Load Python while the reader writes, or looks at recorded steps. */
  #loadEarly() {
    this.#python.startEarly();
    this.#python.bar.hidden = this.#python.ready;
  }

  async #loop() {
    while (this.#isRunning) {
      await this.#later(() => this.#stepped());
      await new Promise((resolve) => setTimeout(resolve, Number(this.speed.value)));
    }
  }

  async #stepped() {
    await this.#sendAll();
    if (!this.#isRecorded()) await this.#start();
    const isOver = !(await this.#compute());
    if (isOver) this.#isRunning = false;
    const boxes = await this.#show();
    if (isOver) this.#say(`${won(boxes)} Send another text.`);
  }

  // ---- Steps -------------------------------------------------------------------------------------------------------------

  /** Whether the build has recorded the run of these actions with the current settings. */
  #isRecorded(done = this.#done) {
    const texts = Object.fromEntries(done.map(([, , box, words]) => [box, words]));
    const isSent = done.every(([before, what]) => before === 0 && what === "send");
    return isSent && this.by.value === "javascript" && JSON.stringify({ ...this.#changed(), ...texts }) === JSON.stringify(this.#about.cases[0][0]);
  }

  /** Have Python do all that was done so far. Known tokens are not computed again until a new step needs their keys and values. */
  async #start() {
    if (this.#isLive) return;
    if (!this.#python.ready) this.#say(`Loading Python and the model (${this.#about.megabytes} MB, once).`);
    const model = (this.#weights[this.#model] ??= loadModel(this.#model));
    model.catch(() => delete this.#weights[this.#model]); // so that the next step tries again
    const { groups } = await this.#ask({ do: "start", fields: { ...this.#levers, model: this.#model } });
    const { config, tensors } = await model;
    const options = { numBlocks: 1 + Number(this.#levers.num_blocks), blockSize: Number(this.#levers.block_size), groups };
    this.#makeRunner = async () => {
      if (this.by.value === "javascript") return new Runner(config, tensors, options);
      const gpu = (this.#gpu ??= await openGpu());
      return new Runner(config, tensors, { ...options, makeKV: (shape) => new GpuKV(gpu, shape) });
    };
    this.#runner = null;
    this.#computed = 0;
    this.#isLive = true;
    const [steps, done, tokens] = [this.#steps, this.#done, this.#isRecorded() ? this.#about.first.tokens : this.#plans.map((each) => each.tokens)];
    [this.#steps, this.#done, this.#plans] = [0, [], []];
    for (let step = 0; step <= steps; step++) {
      for (const [, what, box, words] of done.filter(([before]) => before === step)) {
        await this.#ask({ do: what, box: box.toUpperCase(), words });
        this.#done.push([step, what, box, words]);
      }
      if (step === steps || !(await this.#compute(tokens[step]))) break;
    }
    this.#say("");
  }

  /** Plan a step, compute it unless its tokens are known, and take them. Returns whether there was one. */
  async #compute(known) {
    if (!this.#isLive) return this.#steps < this.#about.first.tokens.length && Boolean(++this.#steps);
    const { plan } = await this.#ask({ do: "plan" });
    if (!plan) return false;
    const tokens = known ?? (await this.#execute(plan).catch((error) => {
      if (this.by.value === "javascript") throw error;
      this.#leaveGpu(error);
      return this.#execute(plan);
    }));
    this.#steps = this.#plans.push({ plan, tokens });
    if (!known) this.#computed = this.#steps;
    await this.#ask({ do: "take", tokens });
    return true;
  }

  async #execute(plan) {
    this.#runner ??= await this.#makeRunner();
    while (this.#computed < this.#steps) await this.#runner.execute(this.#plans[this.#computed++].plan); // after steps back
    return this.#runner.execute(plan);
  }

  /** A GPU has failed: the next runner is one in JavaScript, and computes all steps again. */
  #leaveGpu(error) {
    this.by.value = "javascript";
    this.#gpu = this.#runner = null;
    this.#computed = 0;
    this.#say(`WebGPU failed, so JavaScript computes from here on. The browser says: ${error.message}`);
  }

  /** Go to a step, forwards or back. Where the steps are not recorded, Python begins anew. */
  async #goTo(steps, done = this.#done.filter(([before]) => before <= steps)) {
    this.#isRunning = false;
    const texts = this.#done.filter((each) => !done.includes(each) && each[1] === "send");
    for (const [, , box, words] of texts.reverse()) this.boxes[box].words.value = words;
    if (!steps && !done.length) return this.#restart();
    [this.#steps, this.#done, this.#isLive] = [steps, done, false];
    if (this.#isRecorded()) this.#steps = Math.min(steps, this.#about.first.tokens.length);
    else await this.#start();
    await this.#show();
  }

  // ---- Python ------------------------------------------------------------------------------------------------------------

  async #ask(message) {
    const answer = await new Promise((resolve, reject) => {
      this.#waiting.push({ resolve, reject });
      this.#python.ask({ type: "ask", asked: JSON.stringify(message) });
    });
    if (answer.error) throw new Error(answer.error);
    return answer;
  }

  #hear(message) {
    if (message.type === "answered") this.#waiting.shift()?.resolve(message);
    if (message.type !== "stuck" && message.type !== "broken") return;
    this.#isLive = false;
    const words = message.type === "stuck" ? "A step took more than 10 seconds and was ended." : `Python broke down: ${message.message.slice(-300)}`;
    for (const { reject } of this.#waiting.splice(0)) reject(new Error(words));
  }

  // ---- What is shown -----------------------------------------------------------------------------------------------------

  #say(words) {
    this.told.textContent = words;
  }

  #showRun() {
    this.run.textContent = this.#isRunning ? "Pause" : "Run";
    this.back.disabled = this.#steps === 0 || this.#isRunning;
    this.toggleAttribute("running", this.#isRunning);
  }

  async #show() {
    const { story, counters, boxes, pool, log } = this.#isLive ? await this.#ask({ do: "tell" }) : this.#recorded();
    this.record.hidden = false;
    if (this.figure.step < this.figure.data.steps.length) this.figure.step = Infinity; // it was looked back
    this.figure.data = story;
    this.counters.replaceChildren(...counted(counters));
    for (const name of BOXES) this.#showBox(name, boxes[name.toUpperCase()]);
    this.#showPool(pool);
    this.log.textContent = log.join("\n");
    this.log.scrollTop = this.log.scrollHeight;
    this.#showRun();
    this.#keepAddress();
    return boxes;
  }

  #recorded() {
    const { story, told } = this.#about.first;
    return { ...told[this.#steps], story: { ...story, steps: story.steps.slice(0, this.#steps) } };
  }

  /** The pool in one strip: a square per block. On a phone it stays in sight with the buttons. */
  #showPool(states) {
    this.pool.hidden = states.length > MOST_SQUARES;
    if (!this.pool.hidden) this.pool.replaceChildren(...states.map((state) => make("i", { class: state })));
  }

  #showBox(name, box) {
    const { all, said, paid, stop, leave, send } = this.boxes[name];
    const { text = "", found = "", prompt = "", cached = null, tokens = 0, running = false, state = "" } = box ?? {};
    said.replaceChildren(make("mark", {}, found), prompt.slice(found.length), make("strong", {}, text.slice(prompt.length)));
    said.hidden = !text;
    said.scrollTop = said.scrollHeight;
    said.tabIndex = said.scrollHeight > said.clientHeight ? 0 : -1;
    all.classList.toggle("running", running);
    stop.disabled = !running;
    send.disabled = running;
    leave.disabled = !text;
    paid.textContent = text ? `${cached === null ? `${tokens} tokens` : `${cached} of ${tokens} tokens found in the cache`}; ${STATES[state] ?? state}` : "";
  }

  async #save() {
    await this.#start();
    const { story } = await this.#ask({ do: "story" });
    const file = URL.createObjectURL(new Blob([JSON.stringify(story)], { type: "application/json" }));
    make("a", { href: file, download: "play.json" }).click();
    setTimeout(() => URL.revokeObjectURL(file), 1000);
  }

  async #copy(textOf) {
    if (!navigator.clipboard) throw new Error("The browser does not let this page copy. Copy the address from its address bar.");
    this.#keepAddress();
    await navigator.clipboard.writeText(textOf(location.href));
    this.#say("Copied: your texts and steps are in the address.");
  }

  // ---- The address -------------------------------------------------------------------------------------------------------

  #keepAddress() {
    if (!this.isConnected) return; // a step that was under way when the element left its page
    const fields = this.#changed();
    for (const name of BOXES) if (this.boxes[name].words.value) fields[name] = this.boxes[name].words.value;
    keepAddress({ ...fields, steps: String(this.#steps), done: JSON.stringify(this.#done) });
  }

  /** The settings that are not the usual ones. */
  #changed() {
    const changed = Object.entries(this.#levers).filter(([name, value]) => value !== this.#about.levers[name]);
    return { ...Object.fromEntries(changed), ...(this.#model !== "tiny" && { model: this.#model }) };
  }

  /** Play what the address says; return whether it has a run of this page, or texts: `#a=first%20text&b=second%20text`. */
  #openAddress(given) {
    const done = given.done === undefined && BOXES.some((name) => given[name]) ? [] : doneOf(given.done);
    if (!done) return false;
    this.example.value = "";
    this.#choose(given);
    for (const name of BOXES) this.boxes[name].words.value = given[name] ?? "";
    const steps = Math.min(Math.max(0, Number(given.steps) || 0), MOST_STEPS);
    this.#later(async () => {
      await this.#reset();
      if (steps || done.length) await this.#goTo(steps, done);
    });
    return true;
  }
}

/** The actions in an address, or null if they are not ones. */
function doneOf(text) {
  try {
    const done = JSON.parse(text);
    const isOne = ([step, what, box, words]) => Number.isInteger(step) && ["send", "stop", "leave"].includes(what) && BOXES.includes(box) && typeof words === "string";
    return Array.isArray(done) && done.every(isOne) ? done : null;
  } catch {
    return null;
  }
}

/** What the cache saved, in one sentence. */
function won(boxes) {
  const asked = Object.entries(boxes).filter(([, box]) => box.text && box.cached !== null);
  const found = asked.filter(([, box]) => box.cached > 0);
  if (!asked.length) return "Nothing to compute.";
  if (!found.length) return "Nothing was found in the cache: no text begins with a whole block of another one.";
  const sentences = found.map(([name, { cached, tokens, found_in: blocks }]) => {
    const owners = Object.entries(blocks).map(([owner, count]) => `${count} of ${owner === name ? "its own" : `${owner}'s`} blocks`);
    return `${name} computed ${tokens - cached} of its ${tokens} tokens: ${cached} were found in ${owners.join(" and ")}.`;
  });
  return sentences.join(" ");
}

const STATES = {
  waits: "it waits",
  reads: "its prompt is being computed",
  writes: "the model writes",
  preempted: "it was preempted and waits",
  length: "its answer is complete",
  stop: "the model has ended its text",
  abort: "it was stopped",
};

/** The story of a pool before the first request. */
const emptyPool = (numBlocks, blockSize) => ({ version: 1, title: `${numBlocks} blocks of ${blockSize} tokens`, num_blocks: numBlocks + 1, block_size: blockSize, steps: [] });

const choose = (options) => make("select", {}, ...options.map(([value, words]) => make("option", { value }, words)));

function counted(c) {
  const rows = [
    ["step", c.steps],
    ["tokens computed", c.computed_tokens],
    ["found in the cache", `${Math.round(100 * c.hit_rate)} %`],
    ["blocks held", `${c.held} of ${c.blocks}`],
    ["evicted", c.evicted, "(cached blocks that other tokens took)"],
    ["preempted", c.preempted, "(texts that gave up their blocks to others)"],
  ];
  return rows.map(([name, value, ...why]) => make("div", {}, make("dt", {}, name), make("dd", {}, String(value)), ...why.map((words) => make("dd", { class: "why" }, words))));
}

const STYLE = `${LOOK}
.all { display: grid; gap: 0 1em }
.bar { margin: 0; align-items: center }
.bar :is(button, select) { font-size: .85em }
.small.bar { flex-wrap: wrap; gap: .2em 1em }
.small.bar button { font-size: 1em }
h3 { margin: 0 0 .3em; font-size: 1em }
.status { min-height: 1.5em; margin: .3em 0; font-size: .9em; font-weight: 600 }
.pool { display: none; flex-wrap: wrap; gap: 3px; margin-top: 6px }
.pool i { width: 14px; height: 14px; border: 1.5px solid var(--todo); border-radius: 3px }
.pool .cached { border: 4px solid light-dark(#cfeee3, #0b4a3a); outline: 1.5px solid var(--pass); outline-offset: -1.5px }
.pool .held { background: var(--accent); border-color: var(--accent) }
.pool .shared { background: var(--pass); border-color: var(--pass) }
.counters { display: flex; flex-wrap: wrap; gap: .1em 1.3em; margin: 0 0 .4em; font-size: .9em; font-variant-numeric: tabular-nums }
.counters div { display: flex; gap: .4em }
dt { color: var(--todo) }
dd { margin: 0; font-weight: 650 }
.why { color: var(--todo); font-weight: 400 }
.loading:has(:indeterminate) { display: none } /* nothing is under way */
.texts { display: grid; gap: .4em; align-content: start; margin-bottom: .6em }
.box { display: grid; grid-template-columns: 1.1em minmax(0, 1fr) auto; gap: .3em; align-items: start; border: 1px solid var(--line); border-radius: 6px; padding: .4em }
.box :is(.said, .bar) { grid-column: 2 / -1 }
.box > textarea { grid-column: 2 }
.box .bar:has(:disabled + :disabled) { display: none } /* no text, so nothing to stop or to clear */
.box .bar .small { flex: 1 1 9em; margin: 0 }
.said { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; font-size: .95em }
.said strong { display: block; color: var(--accent) }
.said strong:not(:empty)::before { content: "The model continues (invented):"; display: block; color: var(--todo); font: 400 .85em/1.765 var(--kv-sans, system-ui, sans-serif) } /* as high as a line of the text */
mark { background: light-dark(#cfeee3, #0b4a3a); color: inherit; border-bottom: 2px solid var(--pass) }
textarea { width: 100%; font: inherit; font-size: .9em; color: inherit; background: var(--bg); border: 1px solid var(--line); border-radius: 4px; padding: .4em; resize: vertical; field-sizing: content; min-height: 2.2em; max-height: 9em }
textarea::placeholder { color: var(--todo) }
.small { font-size: .85em; color: var(--todo); margin: .3em 0 0 }
details { margin-top: .6em }
summary { cursor: pointer; color: var(--accent); padding: .3em 0 }
pre { font: .8em/1.4 var(--mono); max-height: 12em; overflow: auto; margin: 0; white-space: pre-wrap; background: var(--soft); padding: .5em .7em; border-radius: 4px }
code { font-family: var(--mono) }
.fields { display: grid; grid-template-columns: repeat(auto-fit, minmax(11em, 1fr)); gap: .5em .8em }
label { display: block; font-size: .85em; color: var(--todo) }
output { font-weight: 650; color: var(--fg) }
.fields :is(select, input) { width: 100% }
input[type=range] { padding: 0; accent-color: var(--accent) }
@media (min-width: 900px) { .all { grid-template: "chosen hands" auto "texts drawn" auto "levers drawn" 1fr / 23em minmax(0, 1fr) }
  .hands { grid-area: hands; position: relative } .loading { position: absolute; inset: .3em 0 auto auto } .chosen { grid-area: chosen; flex-wrap: nowrap; align-self: start } .chosen select:first-child { flex: 1; min-width: 0 }
  .texts { grid-area: texts } .drawn { grid-area: drawn } .levers { grid-area: levers } }
@media (max-width: 600px) { .all { padding: .5em; border-left: 0; border-right: 0; border-radius: 0 }
  .hands { position: sticky; top: var(--kv-header, 2.4rem); z-index: 2; margin: 0 -.5em; padding: .4em .5em; background: var(--bg); border-bottom: 1px solid var(--line) }
  .pool { display: flex }
  .chosen { flex-wrap: nowrap } .chosen select { width: 0; flex: 3 } .chosen select + select { flex: 1 }
  .hands .bar { flex-wrap: nowrap; gap: 5px } .hands button { flex: 1 1 auto; padding: .2em; min-width: 0; min-height: 44px }
  .texts > .small { margin: 0 }
  .said { max-height: 7.5em; overflow-y: auto } /* five lines */
  .running > textarea:placeholder-shown, .running > .primary { display: none } /* a running text takes no words */
  .box > .primary { min-height: 44px } }`;

customElements.define("kv-play", KvPlay);
