// What the reader expects of the next step: the question, the answers that were tried, and what was answered.

import { make } from "./elements.js";
import { fill } from "./words.js";

/**
 * @typedef {import("./model.js").Prediction} Prediction
 * @typedef {import("./model.js").Step} Step
 * @typedef {import("./words.js").Words} Words
 * @typedef {{text: string, right: boolean} | null} Answer the first one that was given; null: the question was skipped
 */

export class Questions {
  /** By the number of the step that was asked about. @type {Map<number, Answer>} */
  answers = new Map();
  /** Whether a question is open now. */
  asking = false;
  /** The wrong choices so far. @type {Set<number>} */
  #tried = new Set();

  /**
   * Open the question of a step, if it has one that was not answered yet; returns whether it did.
   * @param {number} number
   * @param {Step} step
   */
  open(number, step) {
    if (this.asking || !step.predict || this.answers.has(number)) return false;
    this.asking = true;
    this.#tried.clear();
    return true;
  }

  /**
   * Leave the open question, if there is one, without an answer.
   * @param {number} number
   */
  skip(number) {
    if (this.asking && !this.answers.has(number)) this.answers.set(number, null);
  }

  /**
   * Take an answer; returns whether it is right, or null where it is no choice.
   * @param {number} number
   * @param {Prediction} prediction
   * @param {number} i
   */
  answer(number, { choices, answer }, i) {
    if (!choices[i] || this.#tried.has(i)) return null;
    const right = i === answer;
    if (!this.answers.has(number)) this.answers.set(number, { text: choices[i].text, right });
    if (!right) this.#tried.add(i);
    return right;
  }

  /**
   * Draw the open question.
   * @param {HTMLElement} box
   * @param {Prediction} prediction
   * @param {Words} t
   * @param {(i: number) => void} choose
   * @param {() => void} goOn
   */
  show(box, { choices }, t, choose, goOn) {
    const buttons = choices.map((choice, i) => {
      const button = make("button", { type: "button" }, choice.text);
      if (this.#tried.has(i)) {
        button.className = "no";
        button.setAttribute("aria-disabled", "true");
      }
      button.addEventListener("click", () => choose(i));
      return button;
    });
    const on = make("button", { type: "button" }, this.#tried.size ? t.look : t.skip);
    on.addEventListener("click", goOn);
    const last = [...this.#tried].pop();
    const reply = make("div", { role: "status" });
    if (last !== undefined) {
      const { text, if_true: ifTrue } = choices[last];
      reply.append(make("p", {}, make("b", {}, fill(t.wrong, text)), ifTrue ?? "\u2026"));
    }
    box.replaceChildren(
      make("p", { class: "note" }, t.predict),
      make("div", { class: "choices" }, ...buttons),
      reply,
      on,
    );
  }
}
