// Python in the page: a worker that is ended when it falls silent, and replaced.

const SILENCE_MS = 10_000; // Python says when a test begins, and a test of its own accord ends after 5 s

export const SILENCE_S = SILENCE_MS / 1000;

export class Python {
  /** @type {Worker | null} */
  #worker = null;
  #clock = 0;
  #running = "";
  #asked = false;
  ready = false;

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

  ask(message) {
    this.start();
    this.#running = "";
    this.#asked = true;
    this.#worker?.postMessage(message);
    if (this.ready) this.#watch();
  }

  stop() {
    clearTimeout(this.#clock);
    this.#worker?.terminate();
    this.#worker = null;
    this.ready = this.#asked = false;
  }

  #watch() {
    clearTimeout(this.#clock);
    this.#clock = setTimeout(() => {
      this.stop();
      this.start(); // so that the next question finds Python ready
      this.hear({ type: "stuck", test: this.#running });
    }, this.silence);
  }

  #heard(message) {
    if (message.type === "ready") this.ready = true;
    if (message.type === "begins") this.#running = message.test;
    if (["ready", "begins"].includes(message.type)) {
      if (this.#asked) this.#watch(); // a Python that was asked nothing may be silent
    } else if (message.type !== "progress" && message.type !== "ended") {
      this.#asked = false;
      clearTimeout(this.#clock);
    }
    if (message.type === "broken") this.stop();
    this.hear(message);
  }
}
