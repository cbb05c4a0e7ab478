// What stands beside the picture, in words: the caption, one block looked at, the index, who waits, the legend.

import { inLife, LOUDEST, personOf, sign, stateWords } from "./draw.js";
import { draw, make } from "./elements.js";
import { tokensIn } from "./model.js";
import { asText, fill } from "./words.js";

/**
 * @typedef {import("./model.js").State} State
 * @typedef {import("./model.js").Story} Story
 * @typedef {import("./questions.js").Answer} Answer
 * @typedef {import("./words.js").Words} Words
 */

/** @param {Words} t */
export function legend(t) {
  const kinds = LOUDEST.filter((kind) => kind !== "illegal");
  return make("ul", {}, ...t.legend.map((line) => make("li", {}, line)), make("li", {}, ...signs(t, kinds)));
}

/**
 * Kinds of events, each with its sign.
 * @param {Words} t
 * @param {string[]} kinds
 */
const signs = (t, kinds) => kinds.map((kind) => withIcon(sign(kind), t.kinds[kind]));

/** @type {(picture: SVGElement, words: string) => HTMLElement} */
function withIcon(picture, words) {
  const icon = draw("svg", { viewBox: "0 0 16 16", "aria-hidden": "true", class: "icon" }, picture);
  return make("span", { class: "means" }, icon, ` ${words}`);
}

/**
 * What the looks mean that this story has: cards, stripes, and the signs of what happens in it.
 * @param {Words} t
 * @param {Story} story
 * @param {boolean} dense cards too small for more than their colour
 * @returns {(string | HTMLElement)[]}
 */
export function key(t, { states }, dense) {
  if (dense) return [t.key];
  const happened = new Set(states.flatMap((state) => state.events.map((event) => event.kind)));
  const stripe = draw("path", { class: "hue hue0", d: "M8 1V15" });
  return [
    t.key,
    ...(states.some((state) => state.hue.some(Boolean)) ? [" ", withIcon(stripe, t.stripe)] : []),
    ...(states.some((state) => Object.keys(state.scheduled).length) ? [" ", make("span", { class: "means" }, t.plus)] : []),
    ...(happened.size ? [" ", t.changed, " ", ...signs(t, LOUDEST.filter((kind) => happened.has(kind)))] : []),
  ];
}

/**
 * The last two prompts as bubbles, each with a meter of a place per word: filled for a word that was computed, hollow for
 * one that was found, faint for one that a later step computes. What was found is underlined in the text.
 * @param {Words} t
 * @param {Story} story
 * @param {State} state
 * @param {State} before
 */
export function bubbles(t, story, state, before) {
  return state.asked.map(({ request, words, found }) => {
    const [old, fresh] = [words.slice(0, found), words.slice(found)].map(asText);
    const isNew = !before.asked.some((one) => one.request === request);
    const known = Math.min(state.tok[request] ?? words.length, words.length);
    const look = (/** @type {number} */ i) => (i < found ? "" : i < known ? "done" : "later");
    const places = words.map((_, i) => make("i", { class: look(i), style: `--i:${i - found}` }));
    const here = state.tables.has(request) ? "" : "gone";
    return make(
      "p",
      { class: `bubble ${personOf(story, request)} ${here}` },
      make(
        "span",
        { class: "paid" },
        make("b", {}, request),
        make("span", { class: `meter ${isNew ? "new" : ""}`, "aria-hidden": "true" }, ...places),
        make("span", { class: "cost" }, fill(found ? t.costFound : t.cost, known - found, found)),
      ),
      make("span", { class: "found" }, old),
      ` ${fresh}`,
    );
  });
}

/**
 * What a step says, and what was answered to its question.
 * @param {Words} t
 * @param {Story} story
 * @param {State} state
 * @param {Answer | undefined} answer
 */
export function caption(t, story, state, answer) {
  const { step, number } = state;
  const parts = [];
  if (answer) {
    const said = fill(answer.right ? t.yes : t.said, answer.text);
    parts.push(make("p", { class: `note ${answer.right ? "right" : ""}` }, said));
  }
  if (number === 0) parts.push(make("p", {}, story.data.start?.say ?? t.start));
  else {
    if (step.say) parts.push(make("p", { class: "say" }, step.say));
    if (step.do) parts.push(make("p", { class: "call" }, step.do));
    if (step.lines?.length)
      parts.push(make("ul", { class: "lines" }, ...step.lines.map((line) => make("li", {}, line))));
  }
  const isLast = number === story.states.length - 1;
  if (isLast && story.data.ending) parts.push(make("p", { class: "end" }, story.data.ending));
  return parts;
}

/**
 * The facts about one block, and its life up to this state.
 * @param {Words} t
 * @param {Story} story
 * @param {State} state
 * @param {number} id
 * @param {() => void} close
 */
export function blockPanel(t, story, state, id, close) {
  const life = story.states.slice(1, state.number + 1).flatMap((one) => {
    const kinds = inLife(one.events.filter((event) => event.id === id).map((event) => event.kind));
    const told = kinds.map((kind) => t.kinds[kind]).join(t.comma);
    return told ? [make("li", {}, fill(t.stepN, one.number, told))] : [];
  });
  const button = make("button", { type: "button", "aria-label": t.close }, "\u00d7");
  button.addEventListener("click", close);
  return [
    make("b", {}, fill(t.block, id)),
    button,
    make("ul", {}, ...factsOf(t, story, state, id).map((fact) => make("li", {}, fact))),
    make("span", {}, t.bio + (life.length ? "" : t.unused)),
    make("ul", {}, ...life),
  ];
}

/**
 * @param {Words} t
 * @param {Story} story
 * @param {State} state
 * @param {number} id
 */
function factsOf(t, story, state, id) {
  const facts = [stateWords(t, story, state, id), fill(t.ref, state.ref[id])];
  const holders = id === 0 ? [] : (state.holders.get(id) ?? []);
  if (holders.length) {
    const requests = holders.map((holder) => holder.request).join(t.comma);
    facts.push(fill(t.by, requests));
    const tokens = tokensIn(story, state, id),
      first = holders[0].column * story.blockSize;
    if (tokens) facts.push(fill(t.holds, tokens > 1 ? `${first}..${first + tokens - 1}` : first, requests));
  }
  if (state.words[id].length) facts.push(`\u201c${asText(state.words[id])}\u201d`);
  const hash = state.name[id];
  if (hash) {
    facts.push(fill(t.hash, hash));
    const twins = state.name.map((other, i) => (other === hash ? i : id)).filter((other) => other !== id);
    if (twins.length) facts.push(fill(t.same, twins.join(" ")));
  } else if (id > 0) facts.push(t.noHash);
  const place = state.free.indexOf(id);
  if (place >= 0) facts.push(fill(t.place, place + 1, state.free.length));
  return facts;
}

/**
 * The index after a step, with what the step changed in front.
 * @param {Words} t
 * @param {State} state
 * @param {State} before
 */
export function indexList(t, state, before) {
  const now = entries(state),
    old = entries(before);
  /** @type {(hash: string, ids: number[], look: string) => HTMLElement} */
  const item = (hash, ids, look) => make("li", { class: look }, make("code", {}, hash), ` ${ids.join(" ")}`);
  const items = [];
  for (const [hash, ids] of old) if (!now.has(hash)) items.push(item(hash, ids, "gone"));
  for (const [hash, ids] of now)
    items.push(item(hash, ids, (old.get(hash) ?? []).join() === ids.join() ? "" : "chg"));
  items.sort((a, b) => Number(b.className !== "") - Number(a.className !== ""));
  const most = 48,
    rest = items.length - most;
  if (rest > 0) items.splice(most, rest, make("li", {}, fill(t.more, rest)));
  if (!items.length) items.push(make("li", {}, t.notCached));
  return make("ul", {}, ...items);
}

/**
 * Block hashes, each with its blocks.
 * @param {State} state
 */
function entries(state) {
  /** @type {Map<string, number[]>} */
  const map = new Map();
  state.name.forEach((hash, id) => hash && map.set(hash, [...(map.get(hash) ?? []), id]));
  return map;
}

/**
 * The requests that wait, in order.
 * @param {Words} t
 * @param {State} state
 */
export function waitingList(t, state) {
  const items = state.waiting.map((one) => {
    const [name, how] = Array.isArray(one) ? one : [one, ""];
    const said = how === "preempted" ? ` (${t.preempted})` : how ? ` (${how})` : "";
    return make("li", { class: how }, name + said);
  });
  return [
    make("span", { class: "do" }, t.waiting),
    make("ul", {}, ...(items.length ? items : [make("li", {}, t.none)])),
  ];
}
