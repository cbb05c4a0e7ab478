// Python in the page: a worker that is ended when it falls silent, and replaced.

import { make } from "./kv_parts.js";

const SILENCE_MS = 10_000; // Python says when a test begins, and a test of its own accord ends after 5 s

export const SILENCE_S = SILENCE_MS / 1000;

export class Python {
  /** @type {Worker | null} */
  #worker = null;
  #clock = 0;
  #running = "";
  #asked = false;
  ready = false;
  #amount = make("span");
  #progress = make("progress", { "aria-label": "Python" });
  /** How much of Python is here, while a question waits for it. The element gives it a place. */
  bar = make("span", { class: "loading", hidden: true }, this.#progress, this.#amount);

  /** `file` answers there; `hear` gets every message of the worker, and {type: "stuck", test} when it was ended. */
  constructor(file, hear, silence = SILENCE_MS) {
    this.file = file;
    this.hear = hear;
    this.silence = silence;
  }

  start() {
    if (this.#worker) return;
    this.ready = false;
    const script = new URL("kv-lab/kv_lab_worker.js", import.meta.url);
    this.#worker = new Worker(script, { type: "module", name: this.file });
    this.#worker.onmessage = ({ data }) => this.#heard(data);
    this.#worker.onerror = (event) => this.#heard({ type: "broken", message: event.message || "it did not start" });
  }

  /** Start before the first question: who begins to write will ask. Not where the reader saves data. */
  startEarly() {
    const { connection } = /** @type {any} */ (navigator);
    if (!connection?.saveData) this.start();
  }

  ask(message) {
    this.start();
    this.#running = "";
    this.#asked = true;
    this.#worker?.postMessage(message);
    if (this.ready) this.#watch();
    else this.bar.hidden = false;
  }

  stop() {
    clearTimeout(this.#clock);
    this.#worker?.terminate();
    this.#worker = null;
    this.ready = this.#asked = false;
    this.bar.hidden = true;
  }

  #watch() {
    clearTimeout(this.#clock);
    this.#clock = setTimeout(() => {
      this.stop();
      this.start(); // so that the next question finds Python ready
      this.hear({ type: "stuck", test: this.#running });
    }, this.silence);
  }

  #loaded({ loaded, all }) {
    this.#progress.max = all;
    this.#progress.value = loaded;
    this.#amount.textContent = `${(loaded / 1e6).toFixed(1)} / ${(all / 1e6).toFixed(1)} MB`;
  }

  #heard(message) {
    if (message.type === "loading") return this.#loaded(message);
    const asked = this.#asked;
    if (message.type === "ready") {
      this.ready = true;
      this.bar.hidden = true;
    }
    if (message.type === "begins") this.#running = message.test;
    if (["ready", "begins"].includes(message.type)) {
      if (this.#asked) this.#watch(); // a Python that was asked nothing may be silent
    } else if (message.type !== "progress" && message.type !== "ended") {
      this.#asked = false;
      clearTimeout(this.#clock);
    }
    if (message.type === "broken") this.stop();
    if (message.type === "broken" && !asked) return; // nobody waits: the next question starts it again
    this.hear(message);
  }
}
