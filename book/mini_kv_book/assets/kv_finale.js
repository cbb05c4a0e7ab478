/* <kv-finale>: the finale in the page. Each act plays rush hours with the reader's own parts, beside mini_kv's.
 *
 * The parts are the texts that <kv-lab> keeps in this browser, of all labs. Python plays the acts (finale_page.py, in a
 * worker), and <kv-story> draws the film. Without scripts the element's own children say how to play it in a terminal.
 */
import { button, LOOK, make, readKept } from "./kv_parts.js";
import { Python, SILENCE_S } from "./kv_python.js";

class KvFinale extends HTMLElement {
  #root;
  #about; // {megabytes, labs: [{id, title, starter}]}
  #python;

  connectedCallback() {
    if (this.#root || !this.hasAttribute("python")) return;
    this.#about = JSON.parse(this.querySelector("script[type='application/json']").textContent);
    this.#python = new Python("finale_page", (message) => this.#hear(message));
    this.#root = this.attachShadow({ mode: "open" });
    this.#build();
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
    this.list = make("ul", { class: "labs" });
    this.seed = make("input", { type: "number", min: "0", step: "1", value: "0", "aria-label": "Seed of the requests" });
    this.play = button("Play the acts", () => this.#play(), { class: "primary" });
    this.stop = button("Stop", () => this.#halt("Stopped."), { disabled: true });
    this.status = make("p", { role: "status" });
    this.acts = make("div", { class: "acts" });
    this.film = make("section", { "aria-label": "Your pool", tabindex: "-1" });
    const bar = make("div", { class: "bar" }, this.play, this.stop, make("label", {}, "Seed ", this.seed));
    this.#root.append(style, make("div", { class: "all" }, this.list, bar, this.status, this.#python.bar, this.acts, this.film));
    this.#showLabs();
  }

  #showLabs() {
    const texts = this.#texts();
    this.list.replaceChildren(
      ...this.#about.labs.map(({ id, title }) => {
        const link = make("a", { href: `../labs/${id}/` }, `${id.slice(4)} ${title}`);
        return make("li", { "data-written": id in texts }, link, id in texts ? ": begun in this browser" : ": not begun here");
      }),
    );
  }

  #play() {
    this.#showLabs();
    this.acts.replaceChildren();
    this.film.replaceChildren();
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
    if (this.play.disabled === false) return; // nothing was asked
    if (message.type === "progress") this.#say(message.words);
    else if (message.type === "begins") this.#say(message.test);
    else if (message.type === "result") this.#ended(message);
    else if (message.type === "stuck") this.#stuck(message.test);
    else if (message.type === "broken") {
      this.#rest();
      this.#say(`Python broke down and was ended. Play the acts starts it again. What it said last: ${message.message}`);
    }
  }

  #stuck(run) {
    this.#rest();
    this.#say(`No answer for ${SILENCE_S} seconds in ${run || "the first act"}, so Python was ended. Is there a loop that never ends?`);
  }

  #ended({ acts, right, played, film, seconds }) {
    this.#rest();
    const verdict = played === 0 ? "No part is yours yet. Begin with a lab." : right ? "All acts are right." : "An act differs.";
    this.#say(`${verdict} ${Math.round(seconds)} s.`);
    this.acts.replaceChildren(
      ...acts.map(([title, ...lines]) => {
        const isRight = lines.some((line) => line.includes(" steps: the same "));
        const isPlayed = !lines.some((line) => line.startsWith("Not played"));
        const mark = !isPlayed ? "not played" : isRight ? "right" : "differs";
        const summary = make("summary", {}, `${title.split(":")[0]}: `, make("strong", { class: mark.replace(" ", "-") }, mark));
        return make("details", { open: mark === "differs" }, summary, make("pre", { tabindex: "0" }, lines.join("\n").trim()));
      }),
    );
    if (film) this.#draw(film);
  }

  #draw(film) {
    const figure = /** @type {any} */ (make("kv-story"));
    this.film.append(make("h3", {}, "Your pool in the first hour"), figure);
    customElements.whenDefined("kv-story").then(() => (figure.data = film));
  }
}

const STYLE = `${LOOK}
.labs { margin: 0 0 .8em; padding: 0; list-style: none; columns: 18em; font-size: .9em }
.labs li { break-inside: avoid; padding: .1em 0; color: var(--todo) }
.labs li[data-written] { color: inherit; font-weight: 600 }
a { color: var(--accent) }
label { align-self: center }
input { width: 5em }
[role=status] { min-height: 1.5em; margin: 0 0 .6em }
details { border-top: 1px solid var(--line); padding: .3em 0 }
summary { cursor: pointer }
.right { color: var(--pass) }
.differs { color: var(--fail) }
.not-played { color: var(--todo) }
pre { margin: .4em 0; padding: .6em; overflow-x: auto; font: .82em/1.45 var(--mono); background: var(--soft); border-radius: 4px }
h3 { margin: .8em 0 0; font-size: 1.05em }
section:focus { outline: none }`;

customElements.define("kv-finale", KvFinale);
