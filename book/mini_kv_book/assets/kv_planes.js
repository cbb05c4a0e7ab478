/* <kv-planes>: plans that the build has recorded, executed again by the page's runner.
 *
 * The build ran scheduler, cache and PyTorch. This element has the plans and PyTorch's tokens. kv_runner.js executes the
 * same plans, one after the other, and each token is compared. No Python runs here: the plans are data.
 */
import { GpuKV, hasGpu, openGpu } from "./kv_gpu.js";
import { button, LOOK, make } from "./kv_parts.js";
import { loadModel, Runner } from "./kv_runner.js";

const BY = { javascript: "in JavaScript", webgpu: "in JavaScript, attention by WebGPU" };

class KvPlanes extends HTMLElement {
  #record; // {model, megabytes, num_blocks, block_size, groups, words, steps: [{plan, tokens, ms}]}
  #model = null; // a promise of {config, tensors}
  #runner = null;
  #done = []; // of each executed step: {tokens, ms}
  #isRunning = false;

  connectedCallback() {
    if (this.shadowRoot || !this.hasAttribute("model")) return;
    this.#record = JSON.parse(this.querySelector("script[type='application/json']").textContent);
    const style = make("style");
    style.textContent = STYLE;
    this.by = make("select", { hidden: true, "aria-label": "Attention computed by" });
    for (const [value, words] of Object.entries(BY)) this.by.append(make("option", { value }, words));
    this.by.addEventListener("change", () => this.#reset());
    hasGpu().then((found) => (this.by.hidden = !found));
    const run = button("Run all steps", () => this.#go(Infinity), { class: "primary" });
    const step = button("One step", () => this.#go(1));
    const again = button("From the start", () => this.#reset());
    const bar = make("div", { class: "bar", role: "group", "aria-label": "Steps" }, run, step, again, this.by);
    this.told = make("p", { class: "status", role: "status" });
    this.rows = make("tbody", {});
    const names = ["Step", "Plan: positions", "PyTorch, recorded", "Here"];
    const head = make("thead", {}, make("tr", {}, ...names.map((name) => make("th", { scope: "col" }, name))));
    const table = make("table", {}, make("caption", {}, "The same plans, two data planes"), head, this.rows);
    this.plan = make("pre", { tabindex: "0", "aria-label": "The plan" });
    this.summary = make("summary", {});
    const plan = make("details", {}, this.summary, this.plan);
    this.attachShadow({ mode: "open" }).append(style, make("div", { class: "all" }, bar, this.told, table, plan));
    this.#reset();
  }

  #reset() {
    if (this.#isRunning) return;
    this.#runner = null;
    this.#done = [];
    this.#say(`Press Run: the page loads the model (${this.#record.megabytes} MB) and executes the plans.`);
    this.#show();
  }

  /** Execute that many plans, or all that are left. After the last one it starts again. */
  async #go(count) {
    const { steps } = this.#record;
    if (this.#done.length === steps.length) this.#reset();
    if (this.#isRunning) return;
    this.#isRunning = true;
    const last = Math.min(this.#done.length + count, steps.length);
    try {
      if (!this.#runner) this.#say("Loading the model.");
      this.#runner ??= await this.#makeRunner();
      while (this.#done.length < last) {
        await this.#execute();
        this.#show();
        await new Promise((resolve) => setTimeout(resolve)); // so that each step is drawn
      }
      this.#say(this.#verdict());
    } catch (error) {
      this.#say(String(error.message ?? error));
    }
    this.#isRunning = false;
  }

  async #makeRunner() {
    const { model, num_blocks: numBlocks, block_size: blockSize, groups } = this.#record;
    this.#model ??= loadModel(model);
    this.#model.catch(() => (this.#model = null)); // so that the next step tries again
    const { config, tensors } = await this.#model;
    const gpu = this.by.value === "webgpu" ? await openGpu() : null;
    const options = { numBlocks, blockSize, groups, ...(gpu && { makeKV: (shape) => new GpuKV(gpu, shape) }) };
    return new Runner(config, tensors, options);
  }

  async #execute() {
    const begin = performance.now();
    const tokens = await this.#runner.execute(this.#record.steps[this.#done.length].plan);
    this.#done.push({ tokens, ms: performance.now() - begin });
  }

  // ---- What is shown -----------------------------------------------------------------------------------------------------

  #say(words) {
    this.told.textContent = words;
  }

  #verdict() {
    const { steps } = this.#record;
    const pairs = this.#done.flatMap(({ tokens }, i) => Object.entries(steps[i].tokens).map(([name, token]) => token === tokens[name]));
    const equal = pairs.filter(Boolean).length;
    const total = (list) => list.reduce((sum, { ms }) => sum + ms, 0).toFixed(0);
    return `${this.#done.length} of ${steps.length} steps, ${equal} of ${pairs.length} tokens equal. PyTorch: ${total(steps.slice(0, this.#done.length))} ms, here: ${total(this.#done)} ms.`;
  }

  #show() {
    const { steps } = this.#record;
    this.rows.replaceChildren(...steps.map((step, i) => this.#row(step, i)));
    const number = Math.min(this.#done.length, steps.length - 1);
    this.summary.textContent = `The plan of step ${number + 1}, whole`;
    this.plan.textContent = steps[number].plan.map((row) => JSON.stringify(row)).join("\n");
  }

  #row({ plan, tokens, ms }, i) {
    const done = this.#done[i];
    const planned = plan.map((row) => `${row.request_id}: ${positions(row)}`);
    const cells = [
      make("th", { scope: "row" }, String(i + 1)),
      make("td", {}, ...lines(planned)),
      make("td", {}, ...this.#said(tokens, ms)),
      done ? make("td", {}, ...this.#said(done.tokens, done.ms), ...this.#mark(tokens, done.tokens)) : make("td", {}),
    ];
    return make("tr", i === this.#done.length ? { class: "next" } : {}, ...cells);
  }

  #said(tokens, ms) {
    const words = Object.entries(tokens).map(([name, token]) => `${name}: ${this.#word(token)}`);
    return [...lines(words.length ? words : ["no token"]), make("span", { class: "ms" }, `${ms.toFixed(1)} ms`)];
  }

  /** A token's text as a reader can see it; of a token that PyTorch never chose, its number. */
  #word(token) {
    const word = this.#record.words[token];
    return word === undefined ? `token ${token}` : `“${word.replaceAll("\n", "↵")}”`;
  }

  #mark(tokens, others) {
    const names = Object.keys(tokens);
    if (!names.length) return [];
    const isEqual = names.every((name) => tokens[name] === others[name]);
    return [make("span", { class: isEqual ? "equal" : "differs" }, isEqual ? " ✓ equal" : " ✗ differs")];
  }
}

const positions = ({ begin, token_ids: { length } }) => (length === 1 ? `${begin}` : `${begin}–${begin + length - 1}`);

const lines = (texts) => texts.map((text) => make("div", {}, text));

const STYLE = `${LOOK}
.bar { margin: 0 0 .4em }
.status { min-height: 1.5em; margin: 0 0 .4em; color: var(--todo); font-size: .9em }
table { width: 100%; border-collapse: collapse; font-size: .85em; font-variant-numeric: tabular-nums }
caption { text-align: left; color: var(--todo); padding-bottom: .3em }
th, td { text-align: left; vertical-align: top; padding: .25em .5em; border-top: 1px solid var(--line); overflow-wrap: anywhere }
thead th { border-top: 0; color: var(--todo); font-weight: 600 }
tr.next { background: var(--soft) }
thead th { overflow-wrap: normal }
td div { white-space: pre-wrap }
.ms { color: var(--todo) }
.equal { color: var(--pass) }
.differs { color: var(--fail); font-weight: 650 }
summary { cursor: pointer; color: var(--accent); padding: .3em 0; font-size: .9em }
pre { font: .8em/1.4 var(--mono); margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; background: var(--soft); padding: .5em .7em; border-radius: 4px }
@media (max-width: 600px) { .all { padding: .5em; border-left: 0; border-right: 0; border-radius: 0 } th, td { padding: .25em .3em } }`;

customElements.define("kv-planes", KvPlanes);
