/* <kv-claims>: claims to judge, one at a time: true or false, then the reason and the proof, and at the end a score.
 *
 * The element's children are pairs: a heading with the claim, and a fold with the answer and the proof. Without scripts all
 * of them are visible. The fence (mini_kv_book/elements.py) writes them, with the answers as JSON. Nothing is stored.
 */
import { button, LOOK, make } from "./kv_parts.js";

class KvClaims extends HTMLElement {
  #root;
  #about; // per claim {answer: "True" or "False", reasons: {True, False}}
  #claims; // the headings
  #proofs; // the folds
  #rights = []; // per answered claim whether the answer was right

  connectedCallback() {
    if (this.#root) return;
    this.#about = JSON.parse(this.querySelector("script[type='application/json']").textContent);
    this.#claims = [...this.querySelectorAll("h2")];
    this.#proofs = [...this.querySelectorAll(":scope > details")];
    for (const claim of this.#claims) claim.tabIndex = -1;
    for (const proof of this.#proofs) {
      proof.querySelector("summary").textContent = "The proof";
      proof.querySelector("p").hidden = true; // the answer, which is shown above the proof
    }
    this.#root = this.attachShadow({ mode: "open" });
    this.#build();
    this.#start();
  }

  #build() {
    const style = make("style");
    style.textContent = STYLE;
    this.marks = this.#claims.map(() => make("li"));
    this.choices = ["True", "False"].map((choice) => keyed(choice, choice[0], () => this.#answer(choice)));
    this.next = keyed("", "N", () => this.#go());
    this.verdict = make("strong");
    this.why = make("span");
    const [claim, proof] = ["claim", "proof"].map((name) => make("slot", { name }));
    const bar = make("div", { class: "bar", role: "group", "aria-label": "Your answer" }, ...this.choices, this.next);
    const said = make("div", { class: "said", role: "status" }, this.verdict, " ", this.why);
    this.game = make("div", {}, claim, bar, said, proof);
    this.score = make("h2", { tabindex: "-1" });
    this.advice = make("p");
    this.list = make("ul", { class: "read" });
    this.end = make("div", { class: "end" }, this.score, this.advice, this.list, button("Start again", () => this.#again()));
    const all = make("div", { class: "all" }, make("ol", { class: "marks", "aria-label": "Claims" }, ...this.marks), this.game, this.end);
    all.addEventListener("keydown", (event) => this.#key(event));
    this.#root.append(style, all);
  }

  #start() {
    this.#rights = [];
    this.#show(0);
  }

  /** Show a claim without its answer; after the last claim the score. */
  #show(number) {
    this.#claims.forEach((claim, index) => (claim.slot = index === number ? "claim" : ""));
    for (const proof of this.#proofs) proof.slot = "";
    const isOver = number === this.#claims.length;
    this.game.hidden = isOver;
    this.end.hidden = !isOver;
    for (const choice of this.choices) choice.removeAttribute("aria-disabled");
    for (const choice of this.choices) choice.setAttribute("aria-pressed", "false");
    this.next.hidden = true;
    this.verdict.textContent = this.why.textContent = "";
    this.#mark(number);
    if (isOver) this.#judge();
  }

  #answer(choice) {
    const number = this.#rights.length;
    if (!this.next.hidden) return; // answered
    const { answer, reasons } = this.#about[number];
    const isRight = choice === answer;
    this.#rights.push(isRight);
    for (const one of this.choices) {
      one.setAttribute("aria-disabled", "true");
      one.setAttribute("aria-pressed", String(one.dataset.key === choice[0]));
    }
    this.verdict.textContent = `${isRight ? "\u2713 Right" : "\u2717 Wrong"}: it is ${answer.toLowerCase()}.`;
    this.verdict.className = isRight ? "right" : "wrong";
    this.why.textContent = reasons[answer] + (isRight ? "" : ` If it were ${choice.toLowerCase()}, ${reasons[choice]}`);
    this.next.hidden = false;
    this.next.querySelector("span").textContent = number + 1 < this.#claims.length ? "Next claim" : "Your score";
    this.#proofs[number].slot = "proof";
    this.#proofs[number].open = true;
    this.#mark(number);
  }

  #go() {
    const number = this.#rights.length;
    this.#show(number);
    (this.#claims[number] ?? this.score).focus();
  }

  #again() {
    this.#start();
    this.#claims[0].focus();
  }

  /** Draw the row of numbers: which claims were judged rightly, and which one is shown. */
  #mark(shown) {
    this.marks.forEach((mark, index) => {
      const isRight = this.#rights[index];
      mark.className = isRight === undefined ? "" : isRight ? "right" : "wrong";
      mark.textContent = isRight === undefined ? String(index + 1) : isRight ? "\u2713" : "\u2717";
      mark.ariaLabel = `${index + 1}${isRight === undefined ? "" : isRight ? ", right" : ", wrong"}`;
      mark.ariaCurrent = index === shown ? "step" : null;
    });
  }

  #judge() {
    const numRight = this.#rights.filter(Boolean).length;
    this.score.textContent = `${numRight} of ${this.#rights.length}`;
    this.advice.textContent = numRight < this.#rights.length ? "Read these in the errata:" : "All right. The errata have more claims.";
    const links = this.#proofs.map((proof) => proof.querySelector("p:last-child a").cloneNode(true));
    this.list.replaceChildren(...links.filter((_, index) => !this.#rights[index]).map((link) => make("li", {}, link)));
  }

  /** T, F and N, when something of this element has the focus. The theme would search for F and turn the page for N. */
  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const pressed = [...this.choices, this.next].find((one) => one.dataset.key === event.key.toUpperCase());
    if (!pressed) return;
    event.preventDefault();
    event.stopPropagation();
    if (!pressed.hidden) pressed.click();
  }
}

/** A button with its key. */
function keyed(text, key, onclick) {
  const one = button("", onclick, { "aria-keyshortcuts": key, "data-key": key });
  one.append(make("span", {}, text), make("kbd", { "aria-hidden": "true" }, key));
  return one;
}

const STYLE = `${LOOK}
.marks { display: flex; flex-wrap: wrap; gap: .3em; margin: 0 0 .8em; padding: 0; list-style: none; font-size: .85em }
.marks li { min-width: 2em; padding: .1em 0; text-align: center; border: 1.5px solid var(--line); border-radius: 4px }
.marks [aria-current] { border-color: var(--accent); box-shadow: inset 0 -2px var(--accent) }
.right { color: var(--pass) }
.wrong { color: var(--fail) }
.marks .right, .marks .wrong { border-color: currentColor; font-weight: 700 }
slot[name=claim]::slotted(h2) { margin: 0 0 .7em !important; outline-offset: 4px }
.bar { margin-bottom: .8em }
.bar button { min-width: 6em; min-height: 2.8em; font-weight: 600 }
.bar button[aria-pressed=true] { border-color: var(--accent); box-shadow: inset 0 -3px var(--accent) }
.bar button[aria-disabled=true] { cursor: default }
.bar button[aria-disabled=true][aria-pressed=false] { opacity: .55 }
.bar button[data-key=N] { background: var(--accent); border-color: var(--accent); color: var(--bg) }
kbd { margin-left: .7em; font: 600 .8em var(--mono); padding: 0 .4em; border: 1px solid currentColor; border-radius: 3px; opacity: .8 }
@media (hover: none) { kbd { display: none } } /* no keyboard */
.said { max-width: 44em; min-height: 1.5em }
.end h2 { margin: 0 0 .3em; font-size: 1.8em; line-height: 1.2 }
.end p { margin: 0 0 .4em }
.read { margin: 0 0 1em; padding-left: 1.2em }
.read:empty { display: none }
a { color: var(--accent) }
@media (max-width: 600px) { .bar button { flex: 1 } }`;

customElements.define("kv-claims", KvClaims);
