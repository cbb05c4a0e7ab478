/* <kv-lab>: a lab in the page. An editor with the starter, the lab's real tests in the browser, and the figure.
 *
 * What it needs lies beside it in kv-lab/: the editor, and, fetched by the first Run, Python. Where that folder is missing,
 * or scripts are off, the element's own children stay visible: the starter as code, and how to run it locally. The fence
 * (mini_kv_book/elements.py) writes them, with the lab's data as JSON.
 *
 * In reading order: the notebook (what is kept in this browser), the text, the element.
 */
import { button, keep, LOOK, make, readKept } from "./kv_parts.js";
import { Python, SILENCE_S } from "./kv_python.js";
import { EDITOR, openEditor } from "./kv_text.js";

const STATES = { pass: "passed", fail: "failed", todo: "to do", wait: "waiting", "not run": "not run" };
/** An error message with more characters is too long for a headline: it goes into a fold. */
const LONG = 70;
/** What a square says, by its look. */
const LEGEND = { pass: "Passed", fail: "Failed", todo: "Not written yet", wait: "Waiting for an earlier test" };

// ---- The notebook: what is kept in this browser -------------------------------------------------------------------

class Notebook {
  constructor(lab, starter) {
    this.key = `kv-lab:${lab}`;
    this.starter = starter;
    this.page = { text: starter, starter, hints: {}, answers: {}, best: 0, runs: 0, ...readKept(this.key) };
    if (this.page.text === this.page.starter) this.page.text = this.page.starter = starter; // nothing written yet
  }

  /** Whether the course has a new starter, and the learner's text began with the old one. */
  get isOld() {
    return this.page.starter !== this.starter;
  }

  /** Keep what has changed; returns whether the browser would. */
  keep(changes) {
    Object.assign(this.page, changes);
    return keep(this.key, this.page);
  }
}

// ---- The text ------------------------------------------------------------------------------------------------------

/** An answer without what does not matter, as in labkit's `_plain`: case, brackets, commas, a unit. */
const plain = (answer) =>
  answer.toLowerCase().replace(/[[\](),%]|tokens?|blocks?|percent/g, " ").trim().split(/\s+/).join(" ");

const isRight = (question, answer) => plain(question.answer) === plain(answer);

/** A test's name in words, without "test". */
const inPlainWords = (name) => name.replace("test_", "").replaceAll("_", " ").replace(/^(\d+) /, "$1: ");

/** Lines of the terminal as one sentence, without the word that they begin with. */
const inWords = (lines) => lines.join(" ").replace(/^(why|at):\s+/, "").replace(/\s+/g, " ");

/** The line of the learner's file in the last part of a failure; `undefined` where it names another file or none. */
const lineOf = (at) => Number(/starter\.py:(\d+)/.exec(at[0] ?? "")?.[1]) || undefined;

const capital = (sentence) => sentence.slice(0, 1).toUpperCase() + sentence.slice(1);

/** Of the first stage, which tells the lab's story, the test that made most calls. */
function longest(tests) {
  const [[, { stage }]] = Object.entries(tests);
  const told = Object.entries(tests).filter(([, test]) => test.stage === stage);
  return told.sort(([, a], [, b]) => b.calls - a.calls)[0][0];
}

// ---- The element ---------------------------------------------------------------------------------------------------

class KvLab extends HTMLElement {
  #root;
  #about; // what the fence wrote: {points, starter, hints, questions, megabytes, on}; words and lang on a Chinese page
  #book;
  #python;
  #editor;
  #saving = 0;
  #stale = false;
  #ran = ""; // the text of the last run

  connectedCallback() {
    if (this.#root || !this.hasAttribute("python")) return; // no Python here: the children say how to run it locally
    this.#about = JSON.parse(this.querySelector("script[type='application/json']").textContent);
    this.lab = this.getAttribute("lab");
    this.#book = new Notebook(this.lab, this.#about.starter);
    this.#python = new Python("lab_page", (message) => this.#hear(message));
    this.#root = this.attachShadow({ mode: "open" });
    this.#build();
    this.#edit();
    addEventListener("pagehide", () => this.#save());
  }

  disconnectedCallback() {
    this.#python?.stop();
  }

  /** Words of the element in the language of the page, with values for their {0}, {1}. */
  #t(words, ...values) {
    return (this.#about.words?.[words] ?? words).replace(/\{(\d)\}/g, (_, i) => String(values[i]));
  }

  #build() {
    const style = make("style");
    style.textContent = STYLE;
    this.run = button(this.#t("Run"), () => this.#run(), { class: "primary", "aria-keyshortcuts": "Control+Enter" });
    this.stop = button(this.#t("Stop"), () => this.#stopped(), { disabled: true });
    this.predict = button("", () => this.#toggle(this.predict, () => this.#questions()), { "aria-expanded": "false" });
    this.hint = button(this.#t("Hint"), () => this.#toggle(this.hint, () => this.#hints()), { "aria-expanded": "false" });
    const reset = button(this.#t("Reset"), () => this.#askReset());
    this.file = make("input", { type: "file", accept: ".py,text/x-python,text/plain", hidden: true });
    this.file.addEventListener("change", () => this.#open());
    const open = button(this.#t("Open…"), () => this.file.click());
    const save = button(this.#t("Save…"), () => this.#download(`${this.lab}.py`, this.#editor.text, "text/x-python"));
    const handIn = button(this.#t("Hand in…"), () => this.#askHandIn());
    this.notice = make("div", { class: "notice", role: "group", "aria-label": this.#t("Notice"), hidden: true });
    this.panel = make("div", { class: "panel", role: "group", hidden: true });
    this.forecast = make("div", { class: "panel forecast", role: "group", "aria-label": this.#t("A forecast"), hidden: true });
    this.place = make("div", { class: "editor" });
    this.place.addEventListener("focusin", () => this.#python.startEarly(), { once: true });
    const mac = /Mac|iPhone|iPad/.test(navigator.platform) ? "Cmd" : "Ctrl";
    this.keys = make("p", { id: "keys", class: "keys" });
    this.keys.textContent = this.#t("{0}+Enter runs. Tab indents; Escape, then Tab, leaves the editor. Kept in this browser.", mac);
    this.status = make("p", { class: "status", role: "status" });
    this.result = make("section", { class: "result", "aria-label": this.#t("Result") });
    this.figure = make("section", { class: "figure", "aria-label": this.#t("What your code did"), tabindex: "-1" });
    const bar = make("div", { class: "bar", role: "group", "aria-label": this.#t("{0}, commands", this.lab) });
    const rarely = make("details", { class: "file" }, make("summary", {}, `${this.#t("File")}…`), reset, open, save, handIn, this.file);
    bar.append(this.run, this.stop, this.predict, this.hint, rarely);
    const all = make("div", { class: "all" });
    this.strip = make("div", { class: "strip", "aria-hidden": "true" }); // the first results; the status says them
    const squares = make("div", { class: "squares" }, this.#python.bar, this.strip);
    const said = make("div", { class: "said" }, this.status, squares);
    this.below = make("div", { class: "below" }, this.notice, said, this.panel, this.result, this.#legend(), this.keys);
    all.append(this.place, bar, this.below);
    all.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || event.defaultPrevented) return;
      event.preventDefault();
      this.#run();
    });
    this.#root.append(style, all);
    this.#countAnswers();
    if (this.#book.isOld) this.#sayOld();
    if (this.#book.page.best) this.#say(this.#t("Best so far: {0} of {1} points.", this.#book.page.best, this.#about.points));
  }

  #legend() {
    const signs = Object.entries(LEGEND).map(([state, words]) => make("span", {}, make("i", { "data-state": state }), this.#t(words)));
    return make("p", { class: "legend", "aria-hidden": "true" }, ...signs);
  }

  async #edit() {
    const options = {
      parent: this.place,
      root: this.#root,
      text: this.#book.page.text,
      first: this.#firstToWrite(),
      folded: this.#t("Show {0} more lines: what it must do", "{0}"),
      label: this.#t("{0}, your starter.py", this.lab),
      run: () => this.#run(),
      changed: () => this.#changed(),
    };
    this.#editor = await openEditor(options);
    this.setAttribute("ready", "");
    this.#openAt(new URLSearchParams(location.hash.slice(1)));
  }

  /** Follow a link of the finale: to a line of the reader's text, or to a function. */
  #openAt(fields) {
    const isThere = (one) => one.trim().startsWith(`def ${fields.get("def")}(`);
    const at = Number(fields.get("line")) || this.#editor.text.split("\n").findIndex(isThere) + 1;
    if (at > 0) this.#goTo(at);
  }

  /** Where the first line to be written is, and the head of its function; where none is left, the first function's head. */
  #firstToWrite() {
    const { text } = this.#book.page;
    const heads = [...text.matchAll(/^ *(async )?def /gm)].map(({ index }) => index);
    const write = text.search(/^ *todo\(/m);
    const head = heads.findLast((at) => at < write) ?? heads[0] ?? 0;
    return { head, write: Math.max(head, write) };
  }

  #changed() {
    if (this.result.childElementCount && !this.#stale) {
      this.#stale = true;
      this.result.classList.add("stale");
    }
    clearTimeout(this.#saving);
    this.#saving = setTimeout(() => this.#save(), 300);
  }

  #save() {
    clearTimeout(this.#saving);
    if (this.#editor && !this.#book.keep({ text: this.#editor.text })) {
      this.keys.classList.add("lost");
      this.keys.textContent = this.#t("This browser keeps nothing for this page: save your file before you leave.");
    }
  }

  #say(words) {
    this.status.textContent = words;
  }

  // Running

  #run() {
    if (!this.#editor || !this.stop.disabled) return;
    this.#save();
    this.#busy(true);
    this.strip.replaceChildren();
    const loading = this.#t("Loading Python ({0} MB, once).", this.#about.megabytes);
    this.#say(this.#python.ready ? this.#t("Running the tests.") : loading);
    this.#book.keep({ runs: this.#book.page.runs + 1 });
    this.#ran = this.#editor.text;
    this.#python.ask({ type: "run", lab: this.lab, text: this.#ran });
    this.toggleAttribute("ran", true); // from now on there is room for a result
    this.below.scrollIntoView({ block: "nearest" }); // on a phone it is below the screen
  }

  // The forecast: a question beside the result, about a number that no run has shown yet

  /** The first question that was never asked about a test that is still to be passed; none beside a failure's own. */
  #nextQuestion() {
    const { card, tests } = this.answer;
    const open = (test) => ["todo", "wait"].includes(tests[test]?.state);
    if (card.state === "fail") return undefined;
    return this.#about.questions.find(({ id, test }) => this.#book.page.answers[id] === undefined && open(test));
  }

  #askForecast() {
    const question = this.#nextQuestion();
    this.forecast.hidden = !question;
    if (!question) return;
    const input = make("input", { type: "text", id: "forecast", autocomplete: "off" });
    const form = make("form", { class: "question" });
    const answer = (text) => {
      this.#book.keep({ answers: { ...this.#book.page.answers, [question.id]: text } });
      this.#countAnswers();
      const said = make("div", { tabindex: "-1" }, text ? this.#verdict(question, text) : this.#t("Skipped."));
      form.replaceWith(said);
      said.focus({ preventScroll: true });
    };
    form.append(make("label", { for: "forecast" }, this.#t("Before you go on: {0}", question.ask)), input);
    form.append(make("button", { type: "submit" }, this.#t("Answer")), button(this.#t("Skip"), () => answer("")));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (plain(input.value)) answer(input.value);
    });
    this.forecast.replaceChildren(form);
  }

  /** What an answer is told: why it is right, or what would have had to be true. */
  #verdict(question, answer) {
    const right = isRight(question, answer);
    const wrong = Object.entries(question.wrong ?? {}).find(([other]) => plain(other) === plain(answer));
    const { answer: is, why } = question;
    const words = right ? this.#t("Yes: {0}. {1}", is, why) : this.#t("No. {2}It is {0}. {1}", is, why, wrong ? `${wrong[1]} ` : "");
    return make("p", { class: "verdict", "data-right": String(right) }, words);
  }

  /** The terminal's last line: how many points, and how many of the numbers that were asked for were foreseen. */
  #foreseen(score) {
    const given = this.#about.questions.filter(({ id }) => this.#book.page.answers[id]);
    const right = given.filter((question) => isRight(question, this.#book.page.answers[question.id]));
    return given.length ? [this.#t("code {0}/{1}, foreseen {2}/{3}", score, this.#about.points, right.length, given.length)] : [];
  }

  #busy(yes) {
    if (this.#root.activeElement === this.stop) this.run.focus(); // it is about to go
    this.stop.disabled = !yes;
    this.run.setAttribute("aria-disabled", String(yes));
    this.toggleAttribute("running", yes);
  }

  #stopped() {
    this.#python.stop();
    this.#python.start();
    this.#busy(false);
    this.#alone(this.#t("Stopped. Python is starting anew; your text is as it was."));
  }

  #hear(message) {
    const running = !this.stop.disabled;
    if (message.type === "progress" && running) this.#say(this.#t(message.words));
    else if (message.type === "ready" && running) this.#say(this.#t("Running the tests."));
    else if (message.type === "ended") this.strip.append(make("i", { "data-state": message.state, title: message.test }));
    else if (message.type === "result") this.#ended(message);
    else if (message.type === "story") this.#draw(message);
    else if (message.type === "stuck") this.#stuck(message.test);
    else if (message.type === "broken") this.#broken(message.message);
  }

  #stuck(test) {
    this.#busy(false);
    const silent = test ? "No answer for {0} seconds in {1}, so Python was ended." : "No answer for {0} seconds, so Python was ended.";
    const next = this.#t("Is there a loop that never ends? Your text is as it was, and Run starts again.");
    this.#alone(`${this.#t(silent, SILENCE_S, test)} ${next}`);
  }

  #broken(why) {
    this.#busy(false);
    const words = "Python broke down and was ended. Your text is as it was, and Run starts again. What it said last:";
    this.#alone(this.#t(words), why);
  }

  /** Show nothing but this: what was there is about another run. */
  #alone(words, more = "") {
    this.#say(words);
    this.#stale = false;
    this.result.classList.remove("stale");
    if (this.result.contains(this.#root.activeElement)) this.run.focus();
    this.result.replaceChildren(...(more ? [this.#pre([more.slice(-2000)])] : []));
  }

  // The result

  #ended(answer) {
    this.#busy(false);
    if (!answer.lines.length) this.#alone(this.#t("pytest could not run the tests. It said:"), answer.report);
    else this.#show(answer);
  }

  #show(answer) {
    this.answer = answer;
    this.#stale = false;
    this.result.classList.remove("stale");
    this.#book.keep({ best: Math.max(this.#book.page.best, answer.score) });
    this.#say(this.#summary(answer));
    this.#askForecast();
    const beside = make("div", { class: "beside" }, this.#card(answer), this.forecast);
    this.result.replaceChildren(beside, this.#terminal(answer), this.#whole(answer));
    this.figure.replaceChildren();
    this.below.scrollTop = 0;
    if (answer.card.state === "fail") this.#markFailure(answer.card.parts);
    const { state, test = longest(answer.tests) } = answer.card;
    const told = ["pass", "fail"].includes(state) && answer.tests[test].calls > 0;
    this.figure.toggleAttribute("awaited", told && state === "pass"); // what follows it need not move
    this.picture?.toggleAttribute("awaited", told);
    if (told) this.#askStory(test);
    this.#nameInIssue();
  }

  /** Mark the line that the failure names, and put the cursor there; not in a text that was edited since. The focus stays. */
  #markFailure({ at = [] }) {
    const line = lineOf(at);
    if (line && this.#editor.text === this.#ran) this.#editor.mark(line);
  }

  /** The page's link to a new issue, where it has one, brings the first failure. */
  #nameInIssue() {
    const link = document.querySelector(".kv-stuck a");
    if (!(link instanceof HTMLAnchorElement)) return;
    link.dataset.plain ??= link.href;
    const url = new URL(link.dataset.plain);
    const field = url.searchParams.has("body") ? "body" : "issue[description]";
    for (const line of this.result.querySelectorAll("[data-state=fail] > :is(.of, h3)"))
      url.searchParams.set(field, `${url.searchParams.get(field)}${line.textContent}\n`);
    link.href = url.href;
  }

  #summary({ score, points, tests, seconds }) {
    const counts = Object.entries(STATES).map(([state, words]) => {
      const number = Object.values(tests).filter((test) => test.state === state).length;
      return number ? `${number} ${this.#t(words)}` : "";
    });
    const verdict = this.#t(score === points ? "Passed" : "Not passed yet");
    const told = counts.filter(Boolean).join(this.#t(", "));
    return this.#t("{0}: {1} of {2} points. {3}; {4} s.", verdict, score, points, told, seconds.toFixed(1));
  }

  // The card: what a run says in large type

  #card(answer) {
    const { card } = answer;
    const parts = card.state === "pass" ? this.#passed(answer) : card.state === "fail" ? this.#failed(answer) : this.#toWrite(answer);
    return make("section", { class: "card", "data-state": card.state }, ...parts);
  }

  /** The first failure: the belief behind it, expected and got beside the picture, a question, and where help is. */
  #failed({ card, tests }) {
    const { belief, test, function: name } = card;
    const { what, expected = [], state = [], breaks = [], why = [], at = [] } = card.parts;
    const told = inWords(what.filter((line) => !line.startsWith(" ")));
    const error = told.length > LONG && told.match(/^(\w+): /)?.[1]; // of the engine, which names all that it was given
    const raised = lineOf(at) ? this.#t("Line {0} raised {1}.", lineOf(at), error) : this.#t("Your code raised {0}.", error);
    const more = [...what.filter((line) => line.startsWith(" ")), ...expected].map((line) => line.slice(3));
    const facts = make("div", { class: "facts" });
    if (belief && told) facts.append(make("p", {}, error ? raised : told));
    if (more.length) facts.append(this.#pre(more));
    if (breaks.length) facts.append(make("p", {}, make("strong", {}, this.#t("Your code {0}", inWords(breaks)))));
    if (why.length) facts.append(make("p", {}, inWords(why)));
    if (at.length) facts.append(make("p", { class: "line" }, ...this.#linked(this.#wholeLine(at))));
    if (error) facts.append(make("details", {}, make("summary", {}, this.#t("The error in full")), make("p", {}, told)));
    const printed = tests[test].printed.trimEnd();
    if (printed) facts.append(make("p", {}, this.#t("It printed:")), this.#pre(printed.split("\n").slice(-5)));
    this.picture = make("div", { class: "picture" }, ...(state.length ? [this.#pre(state.map((line) => line.slice(3)))] : []));
    const asked = card.question || (expected.length ? this.#t("Which line of yours decides this?") : "");
    const help = make("p", { class: "help" }, this.#hintFor(name));
    if (tests[test].told) help.append(button(this.#t("Step through it"), () => this.#tell(test)));
    return [
      make("p", { class: "of" }, this.#t("Failed, test {0}", inPlainWords(test))),
      make("h3", {}, belief ? this.#t("Your code acts as if {0}.", belief) : error ? raised : told),
      make("div", { class: "seen" }, facts, this.picture),
      make("p", { class: "asks" }, capital(asked)),
      help,
      this.figure,
    ];
  }

  /** The place and the source line that a failure names. A terminal cuts the line; the learner's own is here whole. */
  #wholeLine(at) {
    const number = lineOf(at);
    const place = inWords(at).split(" ")[0];
    return number ? `${place}  ${this.#ran.split("\n")[number - 1].trim()}` : inWords(at);
  }

  /** The next lab, the run as it is played, and what the lab was about. */
  #passed({ card, score, points }) {
    return [
      make("h3", {}, this.#t("Passed: {0} of {1} points.", score, points)),
      this.#wayOn(),
      this.figure,
      make("p", {}, card.lesson),
      make("p", { class: "asks" }, card.question),
    ];
  }

  /** What is to be written next. */
  #toWrite({ card, tests }) {
    return [
      make("p", { class: "of" }, inPlainWords(card.test)),
      make("h3", {}, this.#t("Next: write {0}.", card.function)),
      make("p", {}, tests[card.test].about),
      make("p", { class: "line" }, ...this.#linked(card.place)),
      make("p", { class: "help" }, this.#hintFor(card.function)),
      this.figure,
    ];
  }

  #pre(lines) {
    return make("pre", { tabindex: "0" }, ...this.#linked(lines.join("\n")));
  }

  #hintFor(name) {
    const short = name.split(".").at(-1);
    return button(this.#t("A hint for {0}", short), () => this.#toggle(this.hint, () => this.#hints(short), true));
  }

  // The fold: the terminal's text, and all tests

  /** What `mini-kv run` says: the first failure in full, how many more there are, the score; then what was foreseen. */
  #brief({ brief, score }) {
    const shown = make("div", { class: "brief" });
    for (const text of brief) shown.append(...this.#told(text, shown.lastElementChild));
    for (const line of this.#foreseen(score)) shown.append(make("p", { class: "line foreseen" }, line));
    return shown;
  }

  /** A line of it; of lines that are drawn, which must keep their columns, one block that scrolls. */
  #told(text, before) {
    if (!text) return [make("p", { class: "gap" })];
    if (!text.startsWith("   ")) return [make("p", { class: "line" }, ...this.#linked(text))];
    if (before?.matches("pre")) {
      before.append("\n", ...this.#linked(text));
      return [];
    }
    return [make("pre", { class: "line", tabindex: "0" }, ...this.#linked(text))];
  }

  /** Where to go from a lab that is passed. */
  #wayOn() {
    const ways = this.#about.on.map(([what, name, href]) => make("li", {}, `${what}: `, make("a", { href }, name)));
    return make("nav", { class: "on", "aria-label": this.#t("On from here") }, make("ul", {}, ...ways));
  }

  /** The whole scoreboard behind a fold, which stays as the learner left it. */
  #whole(answer) {
    const summary = make("summary", {}, this.#t("All {0} tests", Object.keys(answer.tests).length));
    const whole = make("details", { class: "whole", open: this.unfolded === true }, summary, ...this.#board(answer));
    whole.addEventListener("toggle", () => (this.unfolded = whole.open));
    return whole;
  }

  /** The terminal's scoreboard, line by line, with what each test found behind its line. */
  #board({ lines, tests }) {
    const parts = [];
    for (const { text, test } of lines) {
      if (test) parts.push(this.#row(test, tests[test]));
      else if (text) parts.push(make("p", { class: "line" }, ...this.#linked(text)));
      else parts.push(make("p", { class: "gap" }));
    }
    return parts;
  }

  #row(name, test) {
    const words = make("span", { class: "name" }, ...name.split(/(?<=_)/).flatMap((part) => [part, make("wbr")]));
    const state = make("span", { class: "state" }, test.state.toUpperCase());
    const summary = make("summary", {}, state, make("span", { class: "points" }, test.points), words);
    summary.append(make("span", { class: "function" }, test.function));
    const row = make("details", { class: "row", "data-state": test.state, "data-test": name }, summary);
    if (test.about) row.append(make("p", {}, test.about));
    if (test.message) row.append(make("pre", { tabindex: "0" }, ...this.#linked(test.message)));
    if (test.printed) row.append(make("p", {}, this.#t("It printed:")), make("pre", { tabindex: "0" }, test.printed));
    if (test.told) row.append(button(this.#t("See what your code did"), () => this.#tell(name)));
    return row;
  }

  /** Text in which a line of the learner's, a lab, and a command that this page can carry out, can be clicked. */
  #linked(text) {
    const pattern = /(labs\/lab-[\w-]+\/(?:starter\.py:\d+|README\.md)|mini-kv (?:hint|story) \d[\w-]* \w+|mini-kv run \d[\w-]* --all)/;
    return text.split(pattern).map((part, index) => (index % 2 ? this.#link(part) : part));
  }

  #link(part) {
    const readme = /lab-\d\d(?=\/README)/.exec(part);
    if (readme) return make("a", { href: `../${readme[0]}/`, class: "link" }, part);
    return button(part, () => this.#follow(part), { class: "link" });
  }

  #follow(part) {
    const [, verb, , name] = part.split(" ");
    if (verb === "hint") this.#toggle(this.hint, () => this.#hints(name), true);
    else if (verb === "run") this.#unfold();
    else if (verb === "story") this.#tell(Object.keys(this.answer.tests).find((test) => test === name || test.startsWith(`${name}_`)));
    else this.#goTo(Number(part.split(":")[1]));
  }

  #goTo(line) {
    this.#editor.mark(line);
    this.place.scrollIntoView({ block: "nearest" });
    this.#editor.focus();
  }

  #unfold() {
    const whole = this.result.querySelector(".whole");
    whole.open = true;
    whole.scrollIntoView({ block: "start" });
    whole.querySelector("summary").focus({ preventScroll: true });
  }

  #terminal(answer) {
    return make("details", { class: "terminal" }, make("summary", {}, this.#t("As in the terminal")), this.#brief(answer));
  }

  #tell(test) {
    this.wanted = test;
    this.#askStory(test);
  }

  #askStory(test) {
    this.#python.ask({ type: "tell", test, lang: this.#about.lang ?? "en" });
  }

  /**
   * A failure's picture; the story of a test that was asked for, or of a lab that is passed, which is played once. It is
   * told as in the terminal, too: that is all where a test has no cache.
   */
  #draw({ test, data, texts, still }) {
    const wanted = this.wanted === test;
    if (wanted) this.wanted = "";
    if (!wanted && this.answer.card.state === "fail") {
      if (still) this.picture.replaceChildren(new DOMParser().parseFromString(still, "image/svg+xml").documentElement);
      return;
    }
    const told = texts.map((text) => make("pre", { tabindex: "0" }, text));
    this.figure.replaceChildren();
    if (data) this.#drawStory(data, this.answer.tests[test].state === "fail", !wanted);
    if (data && told.length) this.figure.append(make("details", {}, make("summary", {}, this.#t("Step by step, as in the terminal")), ...told));
    else this.figure.append(...told);
    if (!wanted) return;
    this.figure.scrollIntoView({ block: "start" });
    this.figure.focus({ preventScroll: true });
  }

  #drawStory(data, failed, playing) {
    const story = make("kv-story");
    this.figure.append(story);
    story.data = data;
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (failed || (playing && still)) story.step = data.steps.length; // where it went wrong, or ended
    else if (playing) story.play();
  }

  // Hints, predictions, reset, files

  #toggle(opener, fill, always = false) {
    const opened = always || opener.getAttribute("aria-expanded") !== "true";
    for (const other of [this.hint, this.predict]) other.setAttribute("aria-expanded", String(opened && other === opener));
    this.panel.hidden = !opened;
    this.panel.setAttribute("aria-label", opener.textContent);
    this.panel.replaceChildren();
    if (opened) fill();
    if (always) this.panel.scrollIntoView({ block: "nearest" });
  }

  #hints(wanted = "") {
    const names = Object.keys(this.#about.hints);
    const short = (name) => name.split(".").at(-1);
    const choice = make("select", { id: "function" }, ...names.map((name) => make("option", { value: name }, name)));
    choice.value = names.find((name) => short(name) === wanted) ?? this.hinted ?? this.#next() ?? names[0];
    const list = make("ol", { "aria-live": "polite" });
    const more = button("", () => give(1));
    const give = (step) => {
      const levels = this.#about.hints[choice.value].levels;
      const given = Math.min((this.#book.page.hints[choice.value] ?? 0) + step, levels.length);
      this.#book.keep({ hints: { ...this.#book.page.hints, [choice.value]: given } });
      this.hinted = choice.value;
      list.replaceChildren(...levels.slice(0, given).map((text) => make("li", {}, text)));
      more.hidden = given === levels.length;
      more.textContent = this.#t(given ? "Next hint ({0} of {1})" : "First hint ({0} of {1})", given + 1, levels.length);
    };
    choice.addEventListener("change", () => give(0));
    this.panel.append(make("label", { for: "function" }, this.#t("A hint for ")), choice, list, more);
    give(wanted ? 1 : 0);
  }

  /** The function at fault: of the first test that failed, or that is still to do. */
  #next() {
    const tests = Object.values(this.answer?.tests ?? {});
    const test = ["fail", "todo"].map((state) => tests.find((one) => one.state === state)).find(Boolean);
    return test && Object.keys(this.#about.hints).find((name) => name.split(".").at(-1) === test.function);
  }

  #countAnswers() {
    const done = this.#about.questions.filter((question) => this.#book.page.answers[question.id]).length;
    this.predict.textContent = this.#t("Questions {0} of {1}", done, this.#about.questions.length);
  }

  #questions() {
    this.panel.append(make("p", {}, this.#t("Write your answers down before you run anything.")));
    for (const question of this.#about.questions) this.panel.append(this.#question(question));
  }

  #question(question) {
    const input = make("input", { type: "text", id: question.id, autocomplete: "off" });
    const said = make("div", { "aria-live": "polite" });
    const check = (answer) => said.replaceChildren(this.#verdict(question, answer));
    const form = make("form", { class: "question" }, make("label", { for: question.id }, question.ask), input);
    form.append(make("button", { type: "submit" }, this.#t("Check")), said);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (!plain(input.value)) return;
      check(input.value);
      this.#book.keep({ answers: { ...this.#book.page.answers, [question.id]: input.value } });
      this.#countAnswers();
    });
    input.value = this.#book.page.answers[question.id] ?? "";
    if (input.value) check(input.value);
    return form;
  }

  #notify(words, ...choices) {
    this.notice.replaceChildren(make("p", {}, words), ...choices);
    this.notice.hidden = false;
    choices[0]?.focus();
  }

  #quiet() {
    this.notice.hidden = true;
    this.#editor.focus();
  }

  #askReset() {
    const choices = [button(this.#t("Put the starter back"), () => this.#replace(this.#about.starter, this.#t("The starter is back.")))];
    if (this.#book.page.kept) choices.push(this.#bringBack());
    choices.push(button(this.#t("Leave it as it is"), () => this.#quiet()));
    this.#notify(this.#t("Put the starter back? Your text is kept meanwhile: you can have it back."), ...choices);
  }

  #bringBack() {
    return button(this.#t("Bring back the text before"), () => this.#replace(this.#book.page.kept, this.#t("Your text is back.")));
  }

  /** Put another text in the editor; the one that was there is kept. */
  #replace(text, words) {
    this.#book.keep({ kept: this.#editor.text, starter: this.#about.starter });
    this.#editor.text = text;
    this.#save();
    this.#notify(words, this.#bringBack(), button(this.#t("Good"), () => this.#quiet()));
  }

  #sayOld() {
    const take = button(this.#t("Take the new starter"), () => this.#replace(this.#about.starter, this.#t("This is the new starter.")));
    const stay = button(this.#t("Keep mine"), () => {
      this.#book.keep({ starter: this.#about.starter });
      this.#quiet();
    });
    this.#notify(this.#t("The course has changed this lab's starter since you began. Your text is as you left it."), take, stay);
  }

  async #open() {
    const [file] = this.file.files;
    this.file.value = "";
    if (file) this.#replace(await file.text(), this.#t("This is {0} now.", file.name));
  }

  #askHandIn() {
    const write = button(this.#t("Write the file"), () => {
      this.#download(`${this.lab}-hand-in.json`, this.#handIn(), "application/json");
      this.#quiet();
    });
    const words = this.#t(
      "One file on your disk, for you to send: your code, your forecasts, the hints you opened, the number of runs. No name is in it, and nothing leaves this browser.",
    );
    this.#notify(words, write, button(this.#t("Not now"), () => this.#quiet()));
  }

  /** What `mini-kv class grade` takes. */
  #handIn() {
    const { answers: forecasts, hints, runs } = this.#book.page;
    const labs = { [this.lab]: { code: this.#editor.text, forecasts, hints, runs } };
    return `${JSON.stringify({ format: "mini_kv hand-in", version: 1, labs }, null, 1)}\n`;
  }

  #download(name, text, type) {
    const url = URL.createObjectURL(new Blob([text], { type }));
    make("a", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  }
}

const STYLE = `${LOOK}${EDITOR}
.notice, .panel { background: var(--soft); border-left: 3px solid var(--accent); padding: .6em .8em; margin-bottom: .6em }
.notice { display: flex; flex-wrap: wrap; gap: .4em; align-items: center }
.notice p { flex: 1 1 20em; margin: 0 }
.panel ol { margin: .4em 0; padding-left: 1.4em }
.panel p { margin: .2em 0 .5em }
.question { margin: .7em 0; max-width: 44em }
.question label { display: block; margin-bottom: .25em }
.question button { margin-left: .4em }
.verdict[data-right=true] { color: var(--pass) }
/* The editor, the commands, the result: each keeps its place and its height, whatever a run brings. */
.all { display: grid; grid-template: var(--kv-lab-rows, auto auto auto) / minmax(0, 1fr); height: var(--kv-lab-height, auto) }
.all > .bar { position: sticky; top: var(--kv-bar-top, 0); bottom: 0; z-index: 1; margin: 0; padding: .5em 0; background: var(--bg) }
.bar > :disabled { display: none }
:host([running]) .file { display: none } /* Stop takes its place, so that a phone's row stays one row */
.file, .file[open]::details-content { display: contents }
.file > summary { list-style: none; padding: .35em .7em; cursor: pointer; color: var(--todo); text-decoration: underline }
.file > summary::-webkit-details-marker { display: none }
.file[open] > summary { color: var(--fg) }
.below { min-height: var(--kv-result-height, 24em); overflow-y: auto; overscroll-behavior: contain; scroll-margin-top: 7em }
:host([ran]) .below { min-height: var(--kv-result-height, calc(100svh - 7.5em)) }
.result:not(:empty) ~ .keys:not(.lost) { display: none }
.keys { font-size: .8em; color: var(--todo); margin: .3em 0 }
.said { display: flex; flex-wrap: wrap; gap: 0 .8em; align-items: baseline; margin: 0 0 .4em; min-height: 1.5em }
.status { font-weight: 600; margin: 0 }
.squares { display: flex; flex-wrap: wrap; gap: .1em 1.2em; align-items: center; width: 100%; min-height: 1.4em }
.strip { display: flex; flex-wrap: wrap; gap: 3px; min-height: 16px }
.below:not(:has(.strip > i)) .legend, .result:empty + .legend { display: none }
.legend { display: flex; flex-wrap: wrap; gap: 0 .9em; margin: .6em 0 0; font-size: .8em; color: var(--todo) }
.legend span { display: flex; gap: .35em; align-items: center }
:is(.strip, .legend) i { width: 13px; height: 13px; border: 1.5px solid var(--todo); border-radius: 2px; --cross: transparent 42%, var(--bg) 42% 58%, transparent 58% }
:is(.strip, .legend) [data-state=pass] { background: var(--pass); border-color: var(--pass) }
:is(.strip, .legend) [data-state=fail] { border-color: var(--fail); background: linear-gradient(45deg, var(--cross)), linear-gradient(-45deg, var(--cross)), var(--fail) }
:is(.strip, .legend) [data-state=wait] { border-color: var(--wait); background: linear-gradient(0deg, var(--wait) 50%, transparent 50%) }
.result.stale { opacity: .75 }
.line { font: 13px/1.5 var(--mono); white-space: pre-wrap; overflow-wrap: anywhere; margin: 0 }
.gap { height: .7em; margin: 0 }
.gap + .line, .row + .line { margin-top: .5em }
.row { border-top: 1px solid var(--line); font: 13px/1.5 var(--mono) }
.row summary { display: grid; grid-template-columns: 4.6em 3.2em 1fr auto; gap: .3em; padding: .3em 0; cursor: pointer }
.row summary::after { content: "+"; grid-area: 1 / 5; width: 1.2em; text-align: center; color: var(--todo) }
.row[open] summary::after { content: "\\2212" }
.row .name { overflow-wrap: anywhere }
.row .function { color: var(--todo) }
.state { font-weight: 700; border-left: .4em solid var(--todo); padding-left: .4em; color: var(--todo) }
[data-state=pass] .state { color: var(--pass); border-color: var(--pass) }
[data-state=fail] .state { color: var(--fail); border-color: var(--fail) }
[data-state=wait] .state { color: var(--wait); border-color: var(--wait) }
.row > :not(summary) { margin: .2em 0 .6em 1em }
.row > button { font-family: var(--kv-sans, system-ui, sans-serif) }
.row p { font: 15px/1.5 var(--kv-sans, system-ui, sans-serif) }
pre { font: 13px/1.45 var(--mono); background: var(--soft); padding: .6em; overflow-x: auto; margin: .4em 0 }
.card { border-left: 4px solid var(--todo); padding: .1em .8em .5em; margin-bottom: .6em }
.card[data-state=fail] { border-color: var(--fail) }
.card[data-state=pass] { border-color: var(--pass) }
.card h3 { font-size: 1.3em; line-height: 1.25; margin: .1em 0 .4em; text-wrap: balance }
.card p { margin: .2em 0 .4em }
.of { font-size: .85em; color: var(--todo) }
.seen { display: flex; flex-wrap: wrap; gap: .2em 1em }
.facts { flex: 1 1 15em; min-width: 0 }
.picture { flex: 1 1 17em; min-width: 0; max-width: 26em }
.picture[awaited] { min-height: 17em }
.figure[awaited] { min-height: 32em } /* as tall as the run that is played there */
.picture svg { display: block; width: 100%; filter: var(--kv-still-filter, none) }
.asks { font-weight: 600 }
.help { display: flex; flex-wrap: wrap; gap: .4em }
.brief { background: var(--soft); padding: .6em .5em; margin: .4em 0 }
.brief .line { font: 12px/1.5 var(--mono) }
.brief p.line { padding-left: 2ch; text-indent: -2ch }
.brief pre.line { white-space: pre; margin: 0; padding: 0 }
.on li { display: inline-block; margin-right: 1em }
.on li:first-child { display: block; font-size: 1.1em; font-weight: 600 }
.on ul { list-style: none; margin: .3em 0; padding: 0 }
.on a { color: var(--accent) }
.whole, .terminal { margin-top: .6em }
.beside { display: flex; flex-wrap: wrap; gap: .6em; align-items: flex-start; margin-bottom: .6em }
.beside .card { flex: 3 1 18em; min-width: 0; margin: 0 }
.forecast { flex: 2 1 13em; min-width: 0; margin: 0 }
.forecast .question { margin: 0 }
.forecast input { width: 6em }
.figure, .result, .whole, .row, .panel { scroll-margin-top: 7em }
.figure:focus, .forecast :focus:not(:focus-visible) { outline: none }
@media (max-width: 600px) {
  .all { padding: .5em; border-left: 0; border-right: 0; border-radius: 0 }
  .status { min-height: 3em } /* two lines */
  .row summary { grid-template-columns: 4.6em 3em 1fr }
  .row .function { display: none }
  .row summary::after { grid-column: 4 }
  .row > :not(summary) { margin-left: 0 }
  pre { font-size: 11.5px }
}`;

customElements.define("kv-lab", KvLab);
