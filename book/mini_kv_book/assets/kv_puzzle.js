/* <kv-puzzle>: a puzzle in the page. A picture, a goal, and calls, which the engine makes in the browser.
 *
 * Each request is a row: its calls as buttons, and its prompt as a strip of words, cut where the blocks are cut.
 *
 * Without packed Python, or without scripts, the element's own children stay visible: the picture in the terminal's signs
 * and the command that plays it there. The fence (mini_kv_book/elements.py) writes them, with the puzzle's data as JSON.
 * All puzzles of a page share one Python, which the first call fetches. The page shows the one that its address names.
 */
import { button, keep, LOOK, make, readKept } from "./kv_parts.js";
import { Python } from "./kv_python.js";

const KEY = "kv-puzzles"; // in this browser: {name: in how many calls it was solved}

const python = new Python("puzzle_page", (message) => {
  for (const puzzle of document.querySelectorAll("kv-puzzle")) if (puzzle instanceof KvPuzzle) puzzle.hear(message);
});

class KvPuzzle extends HTMLElement {
  #root;
  #about; // what the fence wrote: {calls, most, hint, size, strips, story, megabytes}
  #calls = []; // those that were made
  #asked = null; // those that the engine is making
  #solved = false;

  connectedCallback() {
    if (this.#root || !this.hasAttribute("python")) return;
    this.#about = JSON.parse(this.querySelector("script[type='application/json']").textContent);
    this.name = this.getAttribute("name");
    this.#root = this.attachShadow({ mode: "open" });
    this.#build();
    this.#enable();
  }

  #build() {
    const style = make("style");
    style.textContent = STYLE;
    this.buttons = this.#about.calls.map((call, index) => {
      const number = make("kbd", { "aria-hidden": "true", title: `Key ${index + 1}` }, String(index + 1));
      const one = button("", () => this.#call(call), { "aria-keyshortcuts": String(index + 1) });
      one.append(call, number);
      return one;
    });
    this.rows = this.#about.strips.map((strip) => this.#row(strip.request));
    this.back = button("Back", () => this.#ask(this.#calls.slice(0, -1)), { "aria-keyshortcuts": "Backspace" });
    this.again = button("Start again", () => this.#ask([]));
    this.hint = button("Hint", () => this.#hint(), { "aria-expanded": "false" });
    const typed = make("span", { class: "typed" }, " ", make("kbd", {}, "1"), " A number on a call is its key, not an order.");
    const key = make("p", { class: "key" }, make("mark", {}, "\u2260 word"), " is the first word that differs from every prompt that came before.", typed);
    const more = make("div", { class: "bar more", role: "group", "aria-label": "Commands" }, this.back, this.again, this.hint);
    this.told = make("p", { class: "told", hidden: true }, this.#about.hint);
    this.status = make("p", { class: "status" }, `0 of ${this.#about.most} ${this.#about.most === 1 ? "call" : "calls"} made.`);
    this.why = make("p", { class: "why" });
    const answer = make("div", { class: "answer", role: "status" }, this.status, this.why);
    this.ending = make("p", { class: "ending", hidden: true });
    this.figure = make("kv-story");
    const [goal, ways] = ["goal", "ways"].map((name) => make("slot", { name }));
    const calls = make("div", { class: "calls" }, ...this.rows, key, more, this.told, answer, this.ending, ways);
    const all = make("div", { class: "all" }, goal, make("div", { class: "both" }, calls, this.figure));
    this.#root.append(style, all);
    this.#draw(this.#about);
  }

  /** A request: its name, its calls, and room for its words. */
  #row(request) {
    const own = this.buttons.filter((_, index) => this.#about.calls[index].endsWith(` ${request}`));
    const label = `Prompt of ${request}, in blocks of ${this.#about.size} words`;
    return make(
      "div",
      { class: "row", role: "group", "aria-label": `Request ${request}` },
      make("div", { class: "head" }, make("b", {}, request), ...own),
      make("ol", { class: "strip", "aria-label": label }),
    );
  }

  #draw({ story, strips }) {
    strips.forEach((strip, index) => {
      const cells = strip.blocks.map((words, number) => cell(strip, words, number, this.#about.size));
      this.rows[index].querySelector(".strip").replaceChildren(...cells);
    });
    customElements.whenDefined("kv-story").then(() => (this.figure.data = story));
  }

  /** Make the call of a key. */
  key(event) {
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
    this.status.parentElement.after(python.bar);
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

  #show({ calls, said, why, solved, ending, strips, story }) {
    this.#calls = calls;
    this.#solved = solved;
    this.status.dataset.solved = String(solved);
    this.why.textContent = why;
    this.ending.textContent = ending;
    this.ending.hidden = !ending;
    this.#draw({ strips, story });
    this.#give(said);
    if (solved) {
      solvedIn[this.name] = calls.length;
      keep(KEY, solvedIn);
      markGrid();
    }
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
}

/** A block's share of a prompt: its words, and below them the block that has them. */
function cell(strip, words, number, size) {
  const found = number < strip.num_found;
  const id = strip.block_ids[number];
  const where = id === undefined ? "" : `${found ? "found in " : ""}${id === 0 ? "the null block" : `block ${id}`}`;
  const looks = ["cell", found && "found", id > 0 && !found && "own", words.length < size && "part"];
  const shown = words.flatMap((word, place) => [number * size + place === strip.differs_at ? differing(word, strip) : word, " "]);
  return make("li", { class: looks.filter(Boolean).join(" ") }, make("span", {}, ...shown), make("small", {}, where));
}

/** The first word that differs from every prompt that came before: told by a sign, a frame and a title. */
const differing = (word, strip) => make("mark", { title: `Up to here it is the same as ${strip.differs_from}.` }, `\u2260 ${word}`);

// ---- The page: a grid of puzzles, of which one is open -------------------------------------------------------------------

const solvedIn = readKept(KEY);

/** Say on each card in how many calls its puzzle was solved, and which one comes next. */
function markGrid() {
  let isNext = true;
  for (const mark of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-puzzle]"))) {
    const calls = Number(solvedIn[mark.dataset.puzzle]);
    mark.textContent = calls ? `\u2713 solved in ${calls === 1 ? "1 call" : `${calls} calls`}` : isNext ? "\u2192 next" : "";
    mark.classList.toggle("solved", Boolean(calls));
    if (!calls) isNext = false;
  }
}

/** Show the puzzle that the address names, and no other. */
function openNamed() {
  const heading = document.getElementById(location.hash.slice(1));
  const levels = /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(".kv-level"));
  for (const level of levels) level.hidden = !level.contains(heading);
  if (!heading?.closest(".kv-level")) return;
  heading.scrollIntoView();
  heading.focus({ preventScroll: true });
}

/** Give a key to the puzzle that has the focus, else to the one that is open. Who types into a field means the field. */
function giveKey(event) {
  const { target } = event;
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || !(target instanceof Element)) return;
  if (target.closest("input, textarea, select, dialog, [contenteditable]")) return;
  const puzzle = target.closest("kv-puzzle") ?? document.querySelector(".kv-level:not([hidden]) kv-puzzle");
  if (puzzle instanceof KvPuzzle) puzzle.key(event);
}

const STYLE = `${LOOK}
::slotted(*) { margin: 0 0 .5em !important }
.bar { margin-bottom: .5em }
.row { border-top: 1px solid var(--line); padding: .5em 0 }
.head { display: flex; flex-wrap: wrap; align-items: center; gap: .4em; margin-bottom: .35em }
.head b { min-width: 1.4em; font-size: 1.15em }
.head button { font-family: var(--mono); font-size: .85em; min-height: 2.6em }
.strip { display: grid; grid-template-columns: repeat(auto-fill, minmax(8.5em, 1fr)); gap: 4px; margin: 0; padding: 0;
  list-style: none; font-size: .9em }
.cell { display: flex; flex-direction: column; justify-content: space-between; min-height: 3.6em; padding: .25em .5em;
  border: 1.5px solid var(--todo); border-radius: 5px }
.cell.part { border-style: dashed }
.cell.own { background: light-dark(#cde4f6, #0d4f7c); border-color: light-dark(#0072b2, #6cc1f2) }
.cell.found { border-color: var(--pass); border-bottom-width: 5px }
.cell.found span { text-decoration: underline 2px var(--pass); text-underline-offset: 3px }
small { font-size: .85em; min-height: 1.3em }
mark { background: none; color: inherit; font-weight: 700; outline: 2px solid var(--fail); outline-offset: 1px; border-radius: 2px;
  padding: 0 .15em; margin: 0 .2em; white-space: nowrap }
.key { margin: 0 0 .6em; font-size: .85em }
kbd { font: 600 .8em var(--mono); color: var(--todo); padding: 0 .4em; border: 1px solid var(--line); border-bottom-width: 2px; border-radius: 3px }
.head kbd { margin-left: .7em }
@media (hover: none) { kbd, .typed { display: none } } /* no keyboard */
.bar button { min-height: 2.6em }
button[aria-disabled=true] { opacity: .55; cursor: default; border-color: var(--line) }
.status { font-weight: 600; margin: 0 0 .2em; min-height: 1.5em }
.why { margin: 0 0 .6em }
.status[data-solved=true] { color: var(--pass) }
.told, .ending { background: var(--soft); border-left: 3px solid var(--accent); padding: .5em .8em; margin: 0 0 .6em }
.ending { border-color: var(--pass) }
kv-story { margin: .6em 0 0 }
@media (min-width: 1000px) { .both { display: grid; grid-template-columns: minmax(0, 2fr) minmax(0, 3fr); gap: 1.2em; align-items: start } }
@media (max-width: 600px) { .all { padding: .5em; border-left: 0; border-right: 0; border-radius: 0 } }`;

customElements.define("kv-puzzle", KvPuzzle);
markGrid();
addEventListener("hashchange", openNamed);
addEventListener("keydown", giveKey);
// Only when the figure is drawn does the page have its heights.
customElements.whenDefined("kv-story").then(openNamed);
