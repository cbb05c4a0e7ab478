// The story: from JSON to a list of states, one per step. The JSON's form is written down in mini_kv/story/story_json.py.

import { fill } from "./words.js";

/**
 * @typedef {import("./words.js").Words} Words
 * @typedef {{text: string, if_true?: string}} Choice
 * @typedef {{ask: string, choices: Choice[], answer: number}} Prediction
 * @typedef {{id: string, name?: string, capacity?: number}} Tier
 * @typedef {string | (string | number)[]} Ids block ids: "1..3 9 7..5", or an array
 *
 * @typedef {object} Step what a step says; all that it leaves out stays as it was
 * @property {string} [do]
 * @property {string} [say]
 * @property {string[]} [lines]
 * @property {Prediction} [predict]
 * @property {string} [events]
 * @property {Probe[]} [probes]
 * @property {string | string[]} [names]
 * @property {Record<string, Ids>} [ref]
 * @property {Record<string, string | null>} [name]
 * @property {Record<string, Ids[] | null>} [tables]
 * @property {Ids} [free]
 * @property {Record<string, string[]>} [words]
 * @property {Record<string, number>} [tok]
 * @property {Record<string, string | string[]>} [tiers]
 * @property {Waiting[]} [waiting]
 * @property {Record<string, number>} [scheduled]
 * @property {Record<string, string[]>} [prompts] the whole prompt of each request that is admitted with a part of it
 *
 * @typedef {[number, string, Ids]} Probe a lookup: after how many events, whose, and the blocks that it found
 * @typedef {string | [string, string]} Waiting a request that waits, and how: "preempted"
 *
 * @typedef {object} StoryData
 * @property {number} version
 * @property {string} [title]
 * @property {number} num_blocks
 * @property {number} block_size
 * @property {Step[]} steps
 * @property {Step} [start]
 * @property {string[]} [groups]
 * @property {Tier[]} [tiers]
 * @property {string} [ending]
 * @property {string} [lang]
 * @property {string} [key]
 * @property {number} [at]
 *
 * @typedef {{kind: string, id: number}} Event
 * @typedef {{request: string, group: number, column: number}} Holder
 *
 * @typedef {object} State everything that is drawn of one step
 * @property {Step} step
 * @property {number} number
 * @property {Event[]} events
 * @property {string[]} newNames the hashes of the blocks that were cached in this step, in the events' order
 * @property {number[]} ref by block id
 * @property {string[]} name the block's hash, by block id; "" for a block that is not cached
 * @property {string[][]} words those of the block's tokens, by block id, where the story tells them
 * @property {string[]} writer by block id: the request whose step computed what the block holds; "" for none
 * @property {number[]} hue by block id: which beginning its content goes back to, from 1; 0: none is known
 * @property {boolean[]} used whether anything has happened to the block, by block id
 * @property {Map<string, number[][]>} tables by request: block ids per group; -1 where a block is yet to come
 * @property {string[]} order the requests, as their rows stand
 * @property {Map<number, Holder[]>} holders by block id
 * @property {number[]} free
 * @property {Record<string, number>} tok tokens per request
 * @property {Record<string, string[]>} tiers block hashes per tier
 * @property {Waiting[]} waiting
 * @property {Record<string, number>} scheduled tokens per request
 * @property {Asked[]} asked the two prompts that came last, if the story tells words
 *
 * @typedef {{request: string, words: string[], found: number}} Asked a prompt, and how many of its words were found
 *
 * @typedef {object} Story
 * @property {StoryData} data
 * @property {State[]} states
 * @property {string} title
 * @property {number} blockSize
 * @property {number} numBlocks
 * @property {number} numGroups
 * @property {string[]} requests in the order of their first appearance
 */

/** Something in the data that no figure can be drawn of: a key of the words, and what to fill in. */
export class StoryError extends Error {
  /**
   * @param {"badField" | "badBlock" | "notStory" | "version"} word
   * @param {...unknown} values
   */
  constructor(word, ...values) {
    super(word);
    this.word = word;
    this.values = values;
  }
}

/**
 * Block ids as numbers.
 * @param {Ids | undefined} value
 */
export function ids(value) {
  if (Array.isArray(value)) return value.map(Number);
  /** @type {number[]} */
  const out = [];
  for (const part of String(value ?? "").split(" ")) {
    if (!part) continue;
    const [from, to = from] = part.split("..").map(Number);
    if (!Number.isInteger(from) || !Number.isInteger(to)) throw new StoryError("badField", "ids", value);
    for (let id = from; id !== to; id += Math.sign(to - from)) out.push(id);
    out.push(to);
  }
  return out;
}

/**
 * Ids as they are said: three or more in a row are "1..3".
 * @param {number[]} list
 */
export function idRuns(list) {
  /** @type {number[][]} */
  const runs = [];
  for (const id of list) {
    const run = runs[runs.length - 1] ?? [],
      by = id - run[run.length - 1];
    if (Math.abs(by) === 1 && (run.length === 1 || by === run[1] - run[0])) run.push(id);
    else runs.push([id]);
  }
  return runs.map((run) => (run.length > 2 ? `${run[0]}..${run[run.length - 1]}` : run.join(" "))).join(" ");
}

/** @param {string | string[]} value */
const words = (value) => (Array.isArray(value) ? value : String(value).split(" ").filter(Boolean));

/**
 * The blocks that are held by others in one run than in the other, or have another block hash, and the first of the free
 * queue that is not in the same place.
 * @param {State} one
 * @param {State} other
 */
export function differing(one, other) {
  /** @type {(state: State, id: number) => string} */
  const held = (state, id) => (state.holders.get(id) ?? []).map(({ request }) => request).join();
  /** @type {(hash: string, twin: string) => boolean} */
  const same = (hash, twin) => hash === twin || (hash && twin ? hash.startsWith(twin) || twin.startsWith(hash) : false);
  const differs = [...one.ref.keys()].filter((id) => held(one, id) !== held(other, id) || !same(one.name[id], other.name[id]));
  const place = one.free.findIndex((id, at) => id !== other.free[at]);
  return new Set(place < 0 ? differs : [...differs, one.free[place]]); // a story's hashes are cut to as many digits as it needs
}

/**
 * What changed between two states, in the words of the events; for stories that do not say it themselves.
 * @param {State} before
 * @param {State} after
 */
function difference(before, after) {
  /** @type {Event[]} */
  const events = [];
  /** @type {(kind: string, id: number) => void} */
  const add = (kind, id) => void events.push({ kind, id });
  for (let id = 0; id < after.ref.length; id++) {
    const [r0, r1] = [before.ref[id], after.ref[id]];
    const [n0, n1] = [before.name[id], after.name[id]];
    if (n0 && n0 !== n1) add(r0 > 0 ? "uncached" : "evicted", id);
    if (r1 > r0) add(r0 > 0 ? "shared" : n0 && n0 === n1 ? "revived" : "allocated", id);
    if (r1 < r0) add(r1 > 0 ? "unshared" : "freed", id);
    if (n1 && n0 !== n1) add("cached", id);
  }
  return events;
}

/**
 * @param {string} text
 * @returns {Event[]}
 */
function eventsOf(text) {
  return text
    .split(", ")
    .filter(Boolean)
    .flatMap((part) => {
      const space = part.indexOf(" ");
      return ids(part.slice(space + 1)).map((id) => ({ kind: part.slice(0, space), id }));
    });
}

/**
 * How many leading blocks two requests have in common, in the group where it is most.
 * @param {number[][]} a
 * @param {number[][]} b
 */
function common(a, b) {
  let most = 0;
  a.forEach((table, g) => {
    let n = 0,
      real = 0;
    while (n < table.length && b[g] && table[n] === b[g][n]) real = Math.max(real, table[n++]);
    if (real) most = Math.max(most, n);
  });
  return most;
}

/**
 * Rows keep their order; a new one goes beside the one that it shares most with, so that a shared block is one piece.
 * @param {string[]} before
 * @param {Map<string, number[][]>} tables
 */
function rowOrder(before, tables) {
  const order = before.filter((name) => tables.has(name));
  for (const [name, table] of tables) {
    if (order.includes(name)) continue;
    const shared = order.map((other) => common(table, tables.get(other) ?? []));
    const most = Math.max(0, ...shared);
    order.splice(most ? shared.lastIndexOf(most) + 1 : order.length, 0, name);
  }
  return order;
}

/**
 * Where each block stands in the tables.
 * @param {string[]} order
 * @param {Map<string, number[][]>} tables
 */
export function holdersIn(order, tables) {
  /** @type {Map<number, Holder[]>} */
  const holders = new Map();
  for (const request of order) {
    (tables.get(request) ?? []).forEach((table, group) =>
      table.forEach((id, column) => {
        if (id < 0) return;
        const found = holders.get(id) ?? [];
        holders.set(id, found);
        found.push({ request, group, column });
      }),
    );
  }
  return holders;
}

/** How contents begin: blocks of prompts that begin with the same block have one number, in every table. */
class Beginnings {
  /** By the hash of a first block. @type {Map<string, number>} */
  #known = new Map();

  /**
   * Number the blocks that were given a hash in this step, and those that are being filled.
   * @param {State} state
   */
  colour(state) {
    for (const { kind, id } of state.events) if (kind === "evicted" || kind === "allocated") state.hue[id] = 0;
    for (const groups of state.tables.values())
      for (const table of groups) {
        const first = table.find((id) => id > 0);
        if (first === undefined) continue;
        const hash = state.name[first];
        if (hash && table[0] === first && !state.hue[first]) state.hue[first] = this.#number(hash);
        for (const id of table) if (id > 0 && !state.hue[id]) state.hue[id] = state.hue[first];
      }
  }

  /** @param {string} hash */
  #number(hash) {
    const known = this.#known.get(hash) ?? this.#known.size + 1;
    this.#known.set(hash, known);
    return known;
  }
}

/**
 * What an event adds to the reference count.
 * @type {Record<string, number>}
 */
const COUNTS = { allocated: 1, revived: 1, shared: 1, unshared: -1, freed: -1 };

/**
 * The prompts that were admitted in a step, in words. The blocks hold the words, unless the step computes only a part.
 * @param {State} before
 * @param {State} after
 * @returns {Asked[]}
 */
function newPrompts(before, after) {
  return after.order.flatMap((request) => {
    const inBlocks = (after.tables.get(request)?.[0] ?? []).flatMap((id) => after.words[id]);
    if (before.tables.has(request) || !inBlocks.length) return [];
    const held = Math.max(after.tok[request] ?? 0, inBlocks.length); // an output token has no word
    const found = Math.min(held - (after.scheduled[request] ?? inBlocks.length), inBlocks.length);
    return [{ request, words: after.step.prompts?.[request] ?? inBlocks, found }];
  });
}

/**
 * Let an event happen to a state's counts and names; `names` are those that blocks will get, and the first is taken.
 * @param {Pick<State, "ref" | "name">} state
 * @param {Event} event
 * @param {string[]} names
 */
export function foldEvent({ ref, name }, { kind, id }, names) {
  ref[id] += COUNTS[kind] ?? 0;
  if (kind === "cached") name[id] = names.shift() ?? name[id];
  if (kind === "evicted" || kind === "uncached") name[id] = "";
}

/**
 * The state after a step: the state before, and what the step says is different.
 * @param {State} before
 * @param {Step} step
 * @param {number} number
 * @param {Beginnings} beginnings
 * @returns {State}
 */
function apply(before, step, number, beginnings) {
  /** @type {State} */
  const next = {
    ...before,
    step,
    number,
    ref: before.ref.slice(),
    name: before.name.slice(),
    used: before.used.slice(),
    words: before.words.slice(),
    writer: before.writer.slice(),
    hue: before.hue.slice(),
    tables: new Map(before.tables),
    tok: { ...before.tok, ...step.tok },
    tiers: { ...before.tiers },
    waiting: step.waiting ?? before.waiting,
    scheduled: step.scheduled ?? {},
    events: eventsOf(step.events ?? ""),
    newNames: words(step.names ?? ""),
  };
  /** @type {(list: number[]) => number[]} */
  const known = (list) => {
    for (const id of list)
      if (!(id >= 0 && id < next.ref.length)) throw new StoryError("badBlock", number, id, next.ref.length);
    return list;
  };
  known(next.events.map((event) => event.id));
  const names = next.newNames.slice();
  for (const event of next.events) foldEvent(next, event, names);
  for (const [count, which] of Object.entries(step.ref ?? {}))
    for (const id of known(ids(which))) next.ref[id] = +count;
  for (const [id, text] of Object.entries(step.name ?? {})) next.name[known([+id])[0]] = text ?? "";
  for (const { kind, id } of next.events) if (kind === "evicted") next.words[id] = [];
  for (const [id, list] of Object.entries(step.words ?? {})) next.words[known([+id])[0]] = list;
  for (const [request, groups] of Object.entries(step.tables ?? {})) {
    if (groups === null) next.tables.delete(request);
    else
      next.tables.set(
        request,
        groups.map((group) => known(ids(group))),
      );
  }
  for (const [tier, hashes] of Object.entries(step.tiers ?? {})) next.tiers[tier] = words(hashes);
  if (step.free !== undefined) next.free = known(ids(step.free));
  if (step.events === undefined) {
    next.events = difference(before, next);
    next.newNames = next.events.filter(({ kind }) => kind === "cached").map(({ id }) => next.name[id]);
  }
  for (const probe of step.probes ?? []) known(ids(probe[2]));
  for (const { id } of next.events) next.used[id] = true;
  next.order = rowOrder(before.order, next.tables);
  next.holders = holdersIn(next.order, next.tables);
  for (const { kind, id } of next.events)
    if (kind === "allocated") next.writer[id] = next.holders.get(id)?.[0].request ?? "";
  beginnings.colour(next);
  const asked = newPrompts(before, next); // again, after a preemption: the newer one replaces the older
  next.asked = [...before.asked.filter((old) => !asked.some((one) => one.request === old.request)), ...asked].slice(-2);
  return next;
}

/**
 * Raise unless the data has the form of a story, as far as a mistake would stay unseen.
 * @param {any} data
 */
function check(data) {
  if (typeof data !== "object" || data === null || Array.isArray(data)) throw new StoryError("notStory");
  if (data.version !== 1) throw new StoryError("version", data.version);
  for (const key of ["num_blocks", "block_size"]) {
    if (!Number.isInteger(data[key]) || data[key] < 0) throw new StoryError("badField", key, data[key]);
  }
  if (!Array.isArray(data.steps)) throw new StoryError("badField", "steps", data.steps);
  data.steps.forEach((/** @type {any} */ step, /** @type {number} */ i) => {
    const bad =
      typeof step !== "object" ||
      step === null ||
      (step.lines && !Array.isArray(step.lines)) ||
      (step.predict && !(Array.isArray(step.predict.choices) && step.predict.choices[step.predict.answer]));
    if (bad) throw new StoryError("badField", `steps[${i}]`, JSON.stringify(step).slice(0, 60));
  });
}

/**
 * The story that the data tells; raises a StoryError where it tells none.
 * @param {any} anything
 * @returns {Story}
 */
export function decode(anything) {
  check(anything);
  /** @type {StoryData} */
  const data = anything;
  const n = data.num_blocks;
  /** @type {State} */
  const blank = {
    step: {},
    number: 0,
    events: [],
    newNames: [],
    ref: Array(n).fill(0),
    name: Array(n).fill(""),
    words: Array(n).fill([]),
    writer: Array(n).fill(""),
    hue: Array(n).fill(0),
    used: Array(n).fill(false),
    tables: new Map(),
    order: [],
    holders: new Map(),
    free: Array.from({ length: Math.max(0, n - 1) }, (_, i) => i + 1),
    tok: {},
    tiers: {},
    waiting: [],
    scheduled: {},
    asked: [],
  };
  const beginnings = new Beginnings();
  const states = [apply(blank, { ...data.start, events: "" }, 0, beginnings)];
  for (const step of data.steps) states.push(apply(states[states.length - 1], step, states.length, beginnings));
  return {
    data,
    states,
    requests: [...new Set(states.flatMap((state) => state.order))],
    title: String(data.title ?? ""),
    blockSize: data.block_size,
    numBlocks: n,
    numGroups: Math.max(1, ...states.flatMap((state) => [...state.tables.values()].map((table) => table.length))),
  };
}

/**
 * Tokens in a block: as many as its first holder has there; a cached block is full.
 * @param {Story} story
 * @param {State} state
 * @param {number} id
 */
export function tokensIn(story, state, id) {
  const holder = state.holders.get(id)?.[0];
  if (!holder) return state.name[id] ? story.blockSize : 0;
  const total = state.tok[holder.request];
  if (total === undefined || state.name[id]) return story.blockSize;
  return Math.max(0, Math.min(story.blockSize, total - holder.column * story.blockSize));
}

/**
 * @param {Words} t
 * @param {string[]} cells
 * @param {number} most
 */
function elide(t, cells, most) {
  if (cells.length <= most) return cells;
  const side = Math.floor((most - 1) / 2);
  return [...cells.slice(0, side), fill(t.between, cells.length - 2 * side), ...cells.slice(-side)];
}

/**
 * How many columns a text takes: a Chinese character takes two.
 * @param {string} text
 */
const columns = (text) => text.replace(/[\u2e80-\uffef]/g, "  ").length;

/**
 * The text drawing, as mini_kv.story.text makes it.
 * @param {Words} t
 * @param {State} state
 */
export function drawText(t, state) {
  /** @type {[string, string[]][]} */
  const rows = [];
  /** @type {(id: number, none: string) => string} */
  const mark = (id, none) => (state.name[id] ? "#" : none);
  for (const [request, groups] of state.tables) {
    groups.forEach((table, g) => {
      const cells = table.map((id) => (id === 0 ? `[${t.nullBlock}]` : `[${id}x${state.ref[id]}${mark(id, " ")}]`));
      rows.push([groups.length === 1 ? request : `${request}.${g}`, elide(t, cells, 10)]);
    });
  }
  const free = elide(
    t,
    state.free.map((id) => id + mark(id, "")),
    12,
  );
  rows.push([t.freeRow, [`${t.next}->`, ...free, `<-${t.end}`]]);
  const width = Math.max(...rows.map(([name]) => columns(name)));
  return rows.map(([name, cells]) => `${name}${" ".repeat(width - columns(name))}  ${cells.join(" ")}`.trimEnd()).join("\n");
}
