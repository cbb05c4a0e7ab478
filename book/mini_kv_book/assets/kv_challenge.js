/* <kv-challenge>: a cache that the reader writes from an empty file, in Python or JavaScript, and the board of its scenarios.
 *
 * Python plays the scenarios (challenge_page.py, in a worker). Without scripts the element's own children say how to play
 * them in a terminal. The fence (mini_kv_book/elements.py) writes them, with the names of all squares as JSON.
 */
import { button, keep, LOOK, make, readKept } from "./kv_parts.js";
import { Python, SILENCE_S } from "./kv_python.js";
import { EDITOR, openEditor } from "./kv_text.js";

/** `key`: where the text is kept in this browser. Python's is the text of lab-17's page. */
const LANGUAGES = {
  python: { name: "Python", key: "kv-lab:lab-17", command: "answer.py" },
  javascript: { name: "JavaScript", key: "kv-challenge", command: "-- node answer.js" },
};
const SIGNS = { "#": ["\u2713", "equal"], x: ["\u2717", "different"], ".": ["", "not equal yet"] };

class KvChallenge extends HTMLElement {
  #root;
  #about; // what the fence wrote: {megabytes, rows: [{topic, extra, squares}], empty: {python, javascript}}
  #python;
  #editor;
  #language = readKept("kv-challenge").language === "javascript" ? "javascript" : "python";
  #saving = 0;
  #ran = ""; // the text of the last run

  connectedCallback() {
    if (this.#root || !this.hasAttribute("python")) return;
    this.#about = JSON.parse(this.querySelector("script[type='application/json']").textContent);
    this.#python = new Python("challenge_page", (message) => this.#hear(message));
    this.#root = this.attachShadow({ mode: "open" });
    this.#build();
    this.#edit();
    addEventListener("pagehide", () => this.#save());
  }

  disconnectedCallback() {
    this.#python?.stop();
  }

  #build() {
    const style = make("style");
    style.textContent = STYLE;
    this.languages = Object.entries(LANGUAGES).map(([id, { name }]) => button(name, () => this.#switch(id), { "data-language": id }));
    this.run = button("Run", () => this.#run(), { class: "primary", "aria-keyshortcuts": "Control+Enter" });
    const choice = make("span", { role: "group", "aria-label": "Language" }, ...this.languages);
    const bar = make("div", { class: "bar" }, choice, this.run, button("Reset", () => this.#askReset()));
    this.place = make("div", { class: "editor" });
    this.place.addEventListener("focusin", () => this.#python.startEarly(), { once: true });
    this.notice = make("div", { class: "notice", role: "group", "aria-label": "Notice", hidden: true });
    this.status = make("p", { class: "status", role: "status" });
    this.named = make("p", { class: "named" }, "A square is a scenario. Its name is shown here.");
    this.squares = new Map();
    this.board = make("div", { class: "board" }, ...this.#about.rows.map((row, number) => this.#row(row, number)), this.named);
    this.first = make("section", { class: "first", "aria-label": "The first square that is not green" });
    const mac = /Mac|iPhone|iPad/.test(navigator.platform) ? "Cmd" : "Ctrl";
    const keys = make("p", { id: "keys", class: "keys" }, `${mac}+Enter runs. Escape, then Tab, leaves the editor. Kept in this browser.`);
    const left = make("div", {}, bar, this.notice, this.place, keys);
    const right = make("div", {}, this.status, this.#python.bar, this.board);
    const all = make("div", { class: "all" }, make("div", { class: "both" }, left, right), this.first);
    all.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || event.defaultPrevented) return;
      event.preventDefault();
      this.#run();
    });
    this.#root.append(style, all);
    this.#rest("Nothing has run yet.");
    for (const name of this.squares.keys()) this.#mark(name, ".");
  }

  /** A topic of the board: its name, a square per scenario, and how many are green. */
  #row({ topic, extra, squares }, number) {
    const own = squares.map((name, place) => {
      const show = () => (this.named.textContent = `${name}: ${SIGNS[square.dataset.sign][1]}`);
      const square = button("", show, { class: "square", tabindex: place ? "-1" : "0" });
      square.addEventListener("focus", show);
      this.squares.set(name, square);
      return square;
    });
    const count = make("span", { class: "count" });
    const row = make("div", { class: "row", role: "group", "aria-label": topic }, make("b", {}, topic), make("span", { class: "squares" }, ...own), count);
    row.addEventListener("keydown", ({ key }) => own[own.indexOf(this.#root.activeElement) + { ArrowRight: 1, ArrowLeft: -1 }[key]]?.focus());
    if (extra && !this.#about.rows[number - 1].extra) row.dataset.line = "extras";
    return row;
  }

  #mark(name, sign) {
    const square = this.squares.get(name);
    const [shown, words] = SIGNS[sign];
    square.dataset.sign = sign;
    square.textContent = shown;
    square.setAttribute("aria-label", `${name}: ${words}`);
    square.title = name;
    const row = square.closest(".row");
    const own = row.querySelectorAll(".square");
    row.querySelector(".count").textContent = `${row.querySelectorAll("[data-sign='#']").length} of ${own.length}`;
  }

  // The text

  async #edit() {
    const { key, name } = LANGUAGES[this.#language];
    const empty = this.#about.empty[this.#language];
    const { text = empty, starter } = readKept(key);
    for (const one of this.languages) one.setAttribute("aria-pressed", String(one.dataset.language === this.#language));
    this.place.replaceChildren();
    this.#editor = await openEditor({
      parent: this.place,
      root: this.#root,
      text: text === starter ? empty : text, // the lab's page has nothing written yet, and perhaps an older starter
      first: { head: 0, write: 0 },
      folded: "Show {0} more lines",
      label: `Your cache in ${name}`,
      plain: this.#language !== "python",
      run: () => this.#run(),
      changed: () => {
        clearTimeout(this.#saving);
        this.#saving = setTimeout(() => this.#save(), 300);
      },
    });
    this.setAttribute("ready", this.#language);
  }

  #save(more = {}) {
    clearTimeout(this.#saving);
    if (!this.#editor) return;
    const { key } = LANGUAGES[this.#language];
    keep(key, { ...readKept(key), text: this.#editor.text, ...more });
    keep("kv-challenge", { ...readKept("kv-challenge"), language: this.#language });
  }

  async #switch(language) {
    if (language === this.#language || !this.#editor || this.hasAttribute("running")) return;
    this.#save();
    this.#language = language;
    this.#editor = null;
    this.notice.hidden = true;
    await this.#edit();
    this.#save();
  }

  #askReset() {
    this.#ask("Put the empty file back? You can have your text back then.", ["Put it back", () => this.#replace(this.#about.empty[this.#language])]);
  }

  /** Put another text in the editor. The one that was there is kept. */
  #replace(text) {
    const kept = this.#editor.text;
    this.#editor.text = text;
    this.#save({ kept });
    this.#ask("Done.", ["Bring the text before back", () => this.#replace(kept)]);
  }

  #ask(words, [yes, act]) {
    const quiet = () => {
      this.notice.hidden = true;
      this.#editor.focus();
    };
    this.notice.replaceChildren(make("p", {}, words), button(yes, act), button("Leave it as it is", quiet));
    this.notice.hidden = false;
    this.notice.querySelector("button").focus();
  }

  // Running

  #run() {
    if (!this.#editor || this.hasAttribute("running")) return;
    this.#save();
    this.#rest(this.#python.ready ? "Playing." : `Loading Python (${this.#about.megabytes} MB, once).`, true);
    for (const name of this.squares.keys()) this.#mark(name, ".");
    this.first.replaceChildren();
    this.#ran = this.#editor.text;
    this.#python.ask({ type: "run", lab: this.#language, text: this.#ran });
    this.board.scrollIntoView({ block: "nearest" });
  }

  #rest(words, isBusy = false) {
    this.toggleAttribute("running", isBusy);
    this.run.setAttribute("aria-disabled", String(isBusy));
    this.status.textContent = words;
  }

  #hear(message) {
    if (!this.hasAttribute("running")) return;
    const where = message.test ? `the square "${message.test}"` : "your file, before the first square";
    if (message.type === "progress") this.status.textContent = `Loading Python: ${message.words}.`;
    else if (message.type === "begins") this.status.textContent = `Playing "${message.test}".`;
    else if (message.type === "ended") this.#mark(message.test, message.state);
    else if (message.type === "result") this.#ended(message);
    else if (message.type === "stuck")
      this.#rest(`No answer for ${SILENCE_S} seconds in ${where}, so Python was ended. Is there a loop that never ends?`);
    else if (message.type === "broken") this.#rest(`Python broke down and was ended. Run starts it again. It said: ${message.message.slice(-300)}`);
  }

  #ended({ error, first, seconds }) {
    const isGreen = (row) => row.squares.every((name) => this.squares.get(name).dataset.sign === "#");
    const green = [...this.squares.values()].filter(({ dataset }) => dataset.sign === "#").length;
    this.#rest(error ? "Your file does not run." : `${green} of ${this.squares.size} squares are green. ${seconds.toFixed(1)} s.`);
    if (error) this.first.append(make("h3", { "data-sign": "x" }, error));
    if (this.#about.rows.every((row) => row.extra || isGreen(row))) this.first.append(...this.#done());
    if (first) this.first.append(...this.#told(first));
    const line = /\(line (\d+)\)$/.exec(error ?? first?.reason ?? "")?.[1];
    this.first.scrollIntoView({ block: "nearest" });
    if (line && this.#editor?.text === this.#ran) this.#editor.mark(Number(line));
  }

  #done() {
    const command = `mini-kv verify --challenge --to equal.svg ${LANGUAGES[this.#language].command}`;
    const words = "All six topics are green: your cache answers as the contract says, call by call. Save your file, and get its badge:";
    return [make("p", { class: "done" }, words), make("pre", { tabindex: "0" }, command)];
  }

  /** The first square that is not green: what it is about, the sentence that it breaks, and both sides. */
  #told({ name, purpose, reason, number, sentence, fault, drawn, sign }) {
    const parts = [make("h3", { "data-sign": sign }, `${SIGNS[sign][0]} ${name}`.trim()), make("p", {}, purpose)];
    if (reason) parts.push(make("p", { "data-sign": sign }, sign === "." ? `Not green yet: ${reason}.` : reason));
    const link = make("a", { href: `#sentence-${number}` }, `sentence ${number}`);
    if (number) parts.push(make("p", { class: "breaks" }, "It breaks ", link, ": ", ...inCode(sentence)));
    if (fault) parts.push(make("p", { class: "fault" }, ...inCode(fault)));
    if (drawn) parts.push(make("pre", { tabindex: "0" }, drawn));
    return parts;
  }
}

/** A sentence, with what stands between backticks as code. */
const inCode = (sentence) => sentence.split("`").map((part, index) => (index % 2 ? make("code", {}, part) : part));

const STYLE = `${LOOK}${EDITOR}
.bar { align-items: center }
.bar [role=group] { display: flex; margin-right: .6em }
[aria-pressed=true] { border-color: var(--accent); box-shadow: inset 0 -2px var(--accent); font-weight: 600 }
.notice { display: flex; flex-wrap: wrap; gap: .4em; align-items: center; background: var(--soft); padding: .5em .8em; margin-bottom: .6em }
.notice p { margin: 0 }
.keys { font-size: .8em; color: var(--todo); margin: .3em 0 }
.status { font-weight: 600; margin: .2em 0 .5em; min-height: 1.5em }
.row { display: flex; flex-wrap: wrap; gap: 0 .6em; align-items: flex-start; padding: .15em 0 }
.row b { flex: 0 0 6.5em; font-weight: 500; line-height: 26px }
.squares { flex: 1 1 0; display: flex; flex-wrap: wrap; gap: 3px }
.square { width: 26px; min-height: 26px; padding: 0; font-size: 15px; font-weight: 700; line-height: 1; background: none; border: 1.5px solid var(--todo) }
.square[data-sign="#"] { background: var(--pass); border-color: var(--pass); color: var(--bg) }
.square[data-sign=x] { background: var(--fail); border-color: var(--fail); color: var(--bg) }
.count { flex: 0 0 4em; text-align: right; font-variant-numeric: tabular-nums; line-height: 26px }
[data-line] { margin-top: .5em }
[data-line]::before { content: attr(data-line); flex: 0 0 100%; border-top: 1px solid var(--line); color: var(--todo); font-size: .8em; padding-top: .2em }
.named { font-size: .85em; color: var(--todo); margin: .5em 0 0; min-height: 1.5em }
:is(.board, .first) { scroll-margin: 7em 0 1em }
.first:not(:empty) { border-top: 1px solid var(--line); margin-top: .6em }
.first h3 { font-size: 1.15em; margin: .6em 0 .3em }
.first [data-sign=x] { color: var(--fail) }
.first p { margin: .2em 0 .5em; max-width: 50em }
.first .done { color: var(--pass); font-weight: 600; margin-top: .6em }
a { color: var(--accent) }
code { font: .9em var(--mono) }
pre { font: 13px/1.45 var(--mono); background: var(--soft); padding: .6em; overflow-x: auto; margin: .4em 0 }
@media (min-width: 1000px) { .both { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 30em); gap: 1.2em; align-items: start } }
@media (max-width: 600px) { .all { padding: .5em; border-left: 0; border-right: 0; border-radius: 0 } .row b { flex-basis: 5.4em } .count { flex-basis: 3.4em } }`;

customElements.define("kv-challenge", KvChallenge);
