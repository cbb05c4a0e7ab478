/* <kv-puzzle>: a puzzle in the page. A picture, a goal, and calls, which the engine makes in the browser.
 *
 * Without packed Python, or without scripts, the element's own children stay visible: the picture in the terminal's signs
 * and the command that plays it there. The fence (mini_kv_book/puzzles.py) writes them, with the puzzle's data as JSON.
 * All puzzles of a page share one Python, which the first call fetches.
 */
import { button, keep, LOOK, make, readKept } from "./kv_parts.js";
import { Python } from "./kv_python.js";

const KEY = "kv-puzzles"; // in this browser: {name: in how many calls it was solved}

const python = new Python("puzzle_page", (message) => {
  for (const puzzle of document.querySelectorAll("kv-puzzle")) if (puzzle instanceof KvPuzzle) puzzle.hear(message);
});

class KvPuzzle extends HTMLElement {
  #root;
  #about; // what the fence wrote: {calls, most, hint, story, megabytes}
  #calls = []; // those that were made
  #asked = null; // those that the engine is making
  #solved = false;

  connectedCallback() {
    if (this.#root || !this.hasAttribute("python")) return;
    this.#about = JSON.parse(this.querySelector("script[type='application/json']").textContent);
    this.name = this.getAttribute("name");
    this.#root = this.attachShadow({ mode: "open" });
    this.#build();
    this.#markSolved();
    this.#enable();
  }

  #build() {
    const style = make("style");
    style.textContent = STYLE;
    this.buttons = this.#about.calls.map((call, index) => {
      const number = make("kbd", { "aria-hidden": "true" }, String(index + 1));
      const one = button("", () => this.#call(call), { "aria-keyshortcuts": String(index + 1) });
      one.append(number, call);
      return one;
    });
    this.back = button("Back", () => this.#ask(this.#calls.slice(0, -1)), { "aria-keyshortcuts": "Backspace" });
    this.again = button("Start again", () => this.#ask([]));
    this.hint = button("Hint", () => this.#hint(), { "aria-expanded": "false" });
    const calls = make("div", { class: "bar calls", role: "group", "aria-label": "Calls" }, ...this.buttons);
    const more = make("div", { class: "bar more", role: "group", "aria-label": "Commands" }, this.back, this.again, this.hint);
    this.told = make("p", { class: "told", hidden: true }, this.#about.hint);
    this.status = make("p", { class: "status", role: "status" });
    this.ending = make("p", { class: "ending", hidden: true });
    this.figure = make("kv-story");
    const slots = ["goal", "prompts"].map((name) => make("slot", { name }));
    const all = make("div", { class: "all" }, ...slots, calls, more, this.told, this.status, this.ending, this.figure);
    all.addEventListener("keydown", (event) => this.#key(event));
    this.#root.append(style, all);
    this.#draw(this.#about.story);
  }

  #draw(story) {
    customElements.whenDefined("kv-story").then(() => (this.figure.data = story));
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const pressed = event.key === "Backspace" ? this.back : this.buttons[Number(event.key) - 1];
    if (!pressed) return;
    event.preventDefault();
    pressed.click();
  }

  #call(call) {
    if (!this.#solved && this.#calls.length < this.#about.most) this.#ask([...this.#calls, call]);
  }

  /** Let the engine make these calls, from the beginning. */
  #ask(calls) {
    if (this.#asked || (!calls.length && !this.#calls.length)) return;
    this.#asked = calls;
    if (!python.ready) this.status.textContent = `Loading Python (${this.#about.megabytes} MB, once).`;
    this.toggleAttribute("running", true);
    python.ask({ type: "look", name: this.name, calls });
  }

  /** Take in what the worker says, if it is about a call of this puzzle. */
  hear(message) {
    if (!this.#asked) return;
    if (message.type === "looked" && message.name === this.name) this.#show(message);
    else if (message.type === "progress") this.status.textContent = `Loading Python: ${message.words}.`;
    else if (message.type === "stuck") this.#give("Python fell silent and was ended. Call again, and it starts anew.");
    else if (message.type === "broken") this.#give(`Python broke down: ${message.message.slice(-300)} Call again, and it starts anew.`);
  }

  #give(words) {
    this.#asked = null;
    this.toggleAttribute("running", false);
    this.status.textContent = words;
    this.#enable();
  }

  #show({ calls, said, solved, ending, story }) {
    this.#calls = calls;
    this.#solved = solved;
    this.status.dataset.solved = String(solved);
    this.ending.textContent = ending;
    this.ending.hidden = !ending;
    this.#draw(story);
    this.#give(said);
    if (solved && keep(KEY, { ...readKept(KEY), [this.name]: calls.length })) this.#markSolved();
  }

  /** Buttons keep the focus when there is nothing for them to do. */
  #enable() {
    const over = this.#solved || this.#calls.length === this.#about.most;
    for (const one of this.buttons) one.setAttribute("aria-disabled", String(over));
    for (const one of [this.back, this.again]) one.setAttribute("aria-disabled", String(!this.#calls.length));
  }

  #hint() {
    this.told.hidden = !this.told.hidden;
    this.hint.setAttribute("aria-expanded", String(!this.told.hidden));
  }

  /** Say in the page's list what this browser remembers. */
  #markSolved() {
    const calls = Number(readKept(KEY)[this.name]);
    const mark = document.querySelector(`[data-puzzle="${this.name}"]`);
    if (mark && calls) mark.textContent = `, solved in ${calls === 1 ? "1 call" : `${calls} calls`}`;
  }
}

const STYLE = `${LOOK}
::slotted(*) { margin: 0 0 .5em !important }
.bar { margin-bottom: .5em }
.calls button { font-family: var(--mono); font-size: .85em }
kbd { font: 600 .85em var(--mono); color: var(--todo); margin-right: .6em }
.bar button { min-height: 2.6em }
button[aria-disabled=true] { opacity: .55; cursor: default; border-color: var(--line) }
.status { font-weight: 600; margin: 0 0 .4em; min-height: 1.5em }
.status[data-solved=true] { color: var(--pass) }
.told, .ending { background: var(--soft); border-left: 3px solid var(--accent); padding: .5em .8em; margin: 0 0 .6em }
.ending { border-color: var(--pass) }
kv-story { margin: .6em 0 0 }
@media (max-width: 600px) { .all { padding: .5em; border-left: 0; border-right: 0; border-radius: 0 } }`;

customElements.define("kv-puzzle", KvPuzzle);
// The address may name a puzzle. Only now does the page have its heights.
customElements.whenDefined("kv-story").then(() => document.getElementById(location.hash.slice(1))?.scrollIntoView());
