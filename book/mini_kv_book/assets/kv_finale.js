/* <kv-finale>: the finale in the page. Rush hours with the reader's own parts, beside mini_kv's, to the first step that differs.
 *
 * It opens on a part that is wrong on purpose: the build has played it. The reader's own parts are the texts that <kv-lab>
 * keeps in this browser, of all labs. Python plays them (finale_page.py, in a worker), and <kv-story> draws both sides.
 * Without scripts the element's own children say what differs, and how to play the finale in a terminal.
 */
import { button, LOOK, make, readKept } from "./kv_parts.js";
import { Python, SILENCE_S } from "./kv_python.js";

const AROUND = 6; // values that are shown on each side of the one that differs

class KvFinale extends HTMLElement {
  #root;
  #about; // {megabytes, labs: [{id, title, starter}], examples: [{title, lab, def, code, said, values, owners, sides}]}
  #python;

  connectedCallback() {
    if (this.#root) return;
    this.#about = JSON.parse(this.querySelector("script[type='application/json']").textContent);
    this.#root = this.attachShadow({ mode: "open" });
    this.#build();
    this.#showExample(0);
  }

  disconnectedCallback() {
    this.#python?.stop();
  }

  /** The texts of the labs that the reader has changed, by lab. */
  #texts() {
    const written = this.#about.labs.map(({ id, starter }) => [id, readKept(`kv-lab:${id}`).text, starter]);
    return Object.fromEntries(written.filter(([, text, starter]) => text && text !== starter).map(([id, text]) => [id, text]));
  }

  #build() {
    const style = make("style");
    style.textContent = STYLE;
    this.examples = this.#about.examples.map(({ title }, number) => button(title, () => this.#showExample(number)));
    this.result = make("section", { "aria-label": "The first step that differs", tabindex: "-1" });
    const wrong = make("div", { class: "bar", role: "group", "aria-label": "A wrong part" }, make("span", {}, "A wrong part:"), ...this.examples);
    const all = make("div", { class: "all" }, wrong, this.result);
    if (this.hasAttribute("python")) {
      all.append(this.#yours());
      wrong.append(make("span", {}, "or"), button("your own parts", () => this.play.focus()));
    }
    this.#root.append(style, all);
  }

  #yours() {
    this.#python = new Python("finale_page", (message) => this.#hear(message));
    this.begun = make("p");
    this.seed = make("input", { type: "number", min: "0", step: "1", value: "0", "aria-label": "Seed of the requests" });
    this.play = button("Play yours", () => this.#play(), { class: "primary" });
    this.stop = button("Stop", () => this.#halt("Stopped."), { disabled: true });
    this.status = make("p", { role: "status" });
    this.acts = make("div");
    const bar = make("div", { class: "bar" }, this.play, this.stop, make("label", {}, "Seed ", this.seed));
    this.#showBegun();
    return make("section", { class: "yours", "aria-label": "Yours" }, make("h2", {}, "Now yours"), this.begun, bar, this.status, this.#python.bar, this.acts);
  }

  #showBegun() {
    const texts = this.#texts();
    const links = this.#about.labs.filter(({ id }) => id in texts).flatMap(({ id, title }) => [", ", make("a", { href: `../labs/${id}/` }, `${Number(id.slice(4))} ${title}`)]);
    if (links.length) this.begun.replaceChildren("Begun in this browser: ", ...links.slice(1), ". mini_kv's own parts play for the others.");
    else this.begun.replaceChildren("No lab is begun in this browser. The first that plays here is ", make("a", { href: "../labs/lab-01/" }, "lab 1"), ".");
  }

  #showExample(number) {
    this.examples.forEach((each, at) => each.setAttribute("aria-pressed", String(at === number)));
    this.#showDifference(this.#about.examples[number]);
  }

  /** What differs first, and at whose fault: in words, the values with a ring, both pools, and the way to the line. */
  #showDifference({ said, values, owners, sides, lab, def, line, code }) {
    const [first, ...others] = said;
    const where = def ? `#def=${def}` : `#line=${line}`;
    const link = lab ? [make("a", { class: "open", href: `../labs/${lab}/${where}` }, `Open lab ${Number(lab.slice(4))} at ${def || `line ${line}`}`)] : [];
    const rows = values ? [make("div", { class: "values" }, ...valueRow(owners[0], values, values.its), ...valueRow(owners[1], values, values.mine))] : [];
    const both = make("div", { class: "kv-beside" }, ...sides.map((story, at) => figure(story, at > 0)));
    const shown = code ? [make("details", {}, make("summary", {}, "Its code"), make("pre", { tabindex: "0" }, code))] : [];
    const fault = others.map((words, at) => make("p", {}, words, ...(at === others.length - 1 ? [" ", ...link] : [])));
    this.result.replaceChildren(make("p", { class: "sentence" }, first), ...rows, ...fault, ...shown, both);
  }

  #play() {
    this.#showBegun();
    this.acts.replaceChildren();
    this.play.disabled = true;
    this.stop.disabled = false;
    this.#say(this.#python.ready ? "The first act begins." : `Loading Python, ${this.#about.megabytes} MB the first time.`);
    this.#python.ask({ type: "run", lab: this.seed.value || "0", text: JSON.stringify(this.#texts()) });
  }

  #halt(words) {
    this.#python.stop();
    this.#rest();
    this.#say(words);
  }

  #rest() {
    this.play.disabled = false;
    this.stop.disabled = true;
  }

  #say(words) {
    this.status.textContent = words;
  }

  #hear(message) {
    if (message.type === "progress") this.#say(message.words);
    else if (message.type === "begins") this.#say(message.test);
    else if (message.type === "result") this.#ended(message);
    else if (message.type === "stuck") this.#halt(`No answer for ${SILENCE_S} seconds in ${message.test || "the first act"}, so Python was ended. Is there a loop that never ends?`);
    else if (message.type === "broken") this.#halt(`Python broke down and was ended. Play yours starts it again. What it said last: ${message.message}`);
  }

  #ended({ acts, parts, difference, numbers, film, seconds }) {
    this.#rest();
    const played = acts.filter(({ verdict }) => verdict !== "not played").length;
    const verdict = !played ? "No part is yours yet. Begin with a lab." : difference ? "An act differs: it is drawn above." : `All ${played} acts are right.`;
    this.#say(`${verdict} ${Math.round(seconds)} s.`);
    if (!played) return;
    const lines = [...parts, "", ...acts.flatMap((act) => act.lines)].join("\n");
    const report = make("details", {}, make("summary", {}, "Every act, and the parts that played"), make("pre", { tabindex: "0" }, lines));
    this.acts.replaceChildren(...(numbers.length ? [table(numbers)] : []), report);
    if (difference) {
      this.examples.forEach((each) => each.setAttribute("aria-pressed", "false"));
      this.#showDifference(difference);
      this.result.focus();
    } else if (film) this.acts.append(make("h3", {}, "Your pool in the first hour"), figure(film, false));
  }
}

/** One side's values around the one that differs. */
function valueRow(owner, { at, names }, values) {
  const [from, to] = [Math.max(0, at - AROUND), at + AROUND + 1];
  const row = values.slice(from, to).map((value, number) => make(from + number === at ? "mark" : "span", { title: names[from + number] }, value || "nothing"));
  const dots = (is) => (is ? ["\u2026"] : []);
  return [make("b", {}, owner), make("span", { class: "row" }, ...dots(from > 0), ...row, ...dots(to < values.length))];
}

function figure(story, follows) {
  const drawn = /** @type {any} */ (make("kv-story", { follows }));
  drawn.data = story;
  return drawn;
}

/** The learner's numbers beside those of engines that have less. */
function table(rows) {
  const cells = (tag, row) => make("tr", {}, ...row.map((cell) => make(tag, {}, String(cell))));
  const head = cells("th", ["", "steps", "tokens computed", "tokens found", "preempted", "waited"]);
  return make("div", { class: "table", tabindex: "0" }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows.map((row) => cells("td", row)))));
}

const STYLE = `${LOOK}
.bar { align-items: center }
.bar [aria-pressed=true] { border-color: var(--accent); box-shadow: inset 0 -3px var(--accent); font-weight: 600 }
.sentence { font-size: 1.15em; font-weight: 600; margin: .4em 0 }
section:focus { outline: none }
.open { font-weight: 600 }
.kv-beside { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24em), 1fr)); gap: .7em } /* two of 480 px at 1280: wide enough for the memory */
.values { display: grid; grid-template-columns: max-content 1fr; gap: .2em .8em; margin: .5em 0; font-variant-numeric: tabular-nums }
.row { display: flex; flex-wrap: wrap; gap: 0 .15em }
.row > * { min-width: 1.9em; text-align: center; border: 2px solid transparent }
.values mark { color: inherit; background: none; border: 2px solid var(--fail); border-radius: 1em; font-weight: 700 }
@media (max-width: 30em) { .values { grid-template-columns: 1fr } .row > * { min-width: 1.5em } }
.yours { border-top: 1px solid var(--line); margin-top: 1em }
h2 { font-size: 1.15em; margin: .6em 0 .2em }
h3 { margin: .8em 0 0; font-size: 1.05em }
a { color: var(--accent) }
label { align-self: center }
input { width: 5em }
p { margin: .4em 0 }
[role=status] { min-height: 1.5em }
summary { cursor: pointer }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.table { overflow-x: auto }
th, td { padding: .2em .7em; text-align: right; border-bottom: 1px solid var(--line) }
th:first-child, td:first-child { text-align: left }
tbody tr:first-child { font-weight: 600 }
pre { margin: .4em 0; padding: .6em; overflow-x: auto; font: .82em/1.45 var(--mono); background: var(--soft); border-radius: 4px }`;

customElements.define("kv-finale", KvFinale);
