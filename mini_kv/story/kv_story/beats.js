// A step as its events in order: between the state before it and the one after, one state per run of events of a kind.
//
// Step "prefill C" of a full pool: look up, evict 8, take 8, evict 9, take 9, name 8 and 9. Each of these is a beat: a
// state that is drawn like any other, so that a name is seen to fall while its card still stands in the queue.

import { foldEvent, holdersIn, ids } from "./model.js";

/**
 * @typedef {import("./model.js").State} State
 * @typedef {import("./model.js").Event} Event
 *
 * @typedef {object} Beat
 * @property {string} kind of the events; "lookup" for a lookup
 * @property {number[]} ids the blocks: those that it happens to, or those that a lookup finds, in order
 * @property {string} request who looks up; "" otherwise
 * @property {Map<number, number>} copies block taken here -> block whose place in a table it takes
 * @property {State} state what is seen after the beat
 *
 * @typedef {{request: string, group: number, column: number, id: number, old: number}} Cell a place in a table
 */

/** Above this number, beats are joined: a step that takes a hundred blocks is not told for a minute. */
const MOST = 48;

/**
 * The beats of a step, in the order of its events.
 * @param {State} before
 * @param {State} after
 * @returns {Beat[]}
 */
export function beatsOf(before, after) {
  const scene = new Scene(before, after);
  /** @type {Beat[]} */
  const beats = [];
  for (const { kind, events, request, found } of parts(after)) {
    if (kind === "lookup") {
      beats.push({ kind, ids: found, request, copies: new Map(), state: scene.state() });
      continue;
    }
    const copies = new Map(events.flatMap((event) => scene.apply(event)));
    beats.push({ kind, ids: events.map((event) => event.id), request: "", copies, state: scene.state() });
  }
  return beats;
}

/**
 * A step's lookups, and its events in runs of one kind.
 * @param {State} state
 */
function parts({ events, step }) {
  /** @type {{kind: string, events: Event[], request: string, found: number[]}[]} */
  const out = [];
  const probes = [...(step.probes ?? [])];
  const joined = events.filter((event, i) => event.kind !== events[i - 1]?.kind).length > MOST;
  events.forEach((event, i) => {
    while (probes.length && probes[0][0] <= i) out.push(lookup(probes.shift()));
    const last = out[out.length - 1];
    const same = last?.kind === event.kind || (joined && last?.events.length && last.events.length < events.length / MOST);
    if (last && same) last.events.push(event);
    else out.push({ kind: event.kind, events: [event], request: "", found: [] });
  });
  return [...out, ...probes.map(lookup)];
}

/** @param {import("./model.js").Probe | undefined} probe */
const lookup = (probe) => ({ kind: "lookup", events: [], request: probe?.[1] ?? "", found: ids(probe?.[2]) });

/** The picture between two states: events happen to it one by one. */
class Scene {
  /** What is seen now; its arrays are this scene's own. @type {State} */
  #now;
  #after;
  #done = 0;
  /** Places that a block has yet to take. @type {Cell[]} */
  #toFill = [];
  /** Places that a block has yet to leave. @type {Cell[]} */
  #toLeave = [];
  /** The names that blocks will get, in order. @type {string[]} */
  #names;

  /**
   * @param {State} before
   * @param {State} after
   */
  constructor(before, after) {
    this.#after = after;
    this.#names = [...after.newNames];
    const changed = new Set(after.events.map((event) => event.id));
    this.#now = {
      ...after,
      ref: before.ref.slice(),
      name: before.name.slice(),
      used: before.used.slice(),
      words: after.words.map((words, id) => (changed.has(id) ? before.words[id] : words)),
      writer: after.writer.map((writer, id) => (changed.has(id) ? before.writer[id] : writer)),
      hue: after.hue.map((hue, id) => (changed.has(id) ? before.hue[id] : hue)),
      free: before.free.slice(),
      tables: new Map(),
      order: allRows(before, after),
      tiers: before.tiers,
    };
    for (const request of this.#now.order) {
      const [old, next] = [before.tables.get(request) ?? [], after.tables.get(request) ?? []];
      const groups = Array.from({ length: Math.max(old.length, next.length) }, (_, group) =>
        this.#row(request, group, old[group] ?? [], next[group] ?? []),
      );
      this.#now.tables.set(request, groups);
    }
  }

  /**
   * A row with the blocks that it begins the step with; -1 where none is yet.
   * @param {string} request
   * @param {number} group
   * @param {number[]} old
   * @param {number[]} next
   */
  #row(request, group, old, next) {
    return Array.from({ length: Math.max(old.length, next.length) }, (_, column) => {
      const cell = { request, group, column, id: next[column] ?? -1, old: old[column] ?? -1 };
      if (cell.id === cell.old) return cell.id;
      if (cell.id > 0) this.#toFill.push(cell);
      if (cell.old > 0) this.#toLeave.push(cell);
      return cell.old > 0 ? cell.old : -1;
    });
  }

  /**
   * Let an event happen. Returns [block, the block whose place it takes] for one that takes the place of another.
   * @param {Event} event
   * @returns {[number, number][]}
   */
  apply(event) {
    const now = this.#now,
      { kind, id } = event;
    foldEvent(now, event, this.#names);
    now.used[id] = true;
    this.#done++;
    if (kind === "evicted") [now.words[id], now.hue[id]] = [[], 0];
    else [now.words[id], now.hue[id]] = [this.#after.words[id], this.#after.hue[id]];
    if (kind === "allocated") now.writer[id] = this.#after.writer[id];
    if (["allocated", "revived", "shared"].includes(kind)) {
      const cell = take(this.#toFill, (one) => one.id === id);
      if (!cell) return [];
      this.#put(cell, id);
      now.free = now.free.filter((one) => one !== id);
      return kind === "allocated" && cell.old > 0 ? [[id, cell.old]] : [];
    }
    if (kind === "freed" || kind === "unshared") {
      const cell = take(this.#toLeave, (one) => one.old === id);
      // A window's place is empty for good; another block's is empty until it comes.
      if (cell && this.#cell(cell) === id) this.#put(cell, cell.id === 0 ? 0 : -1);
      if (kind === "freed" && !now.free.includes(id)) this.#line(id);
    }
    return [];
  }

  /**
   * A block joins the queue, before the blocks that will stand behind it.
   * @param {number} id
   */
  #line(id) {
    const behind = this.#after.free.slice(this.#after.free.indexOf(id) + 1);
    const at = this.#now.free.findIndex((one) => behind.includes(one));
    this.#now.free.splice(at < 0 || !this.#after.free.includes(id) ? this.#now.free.length : at, 0, id);
  }

  /** @param {Cell} cell */
  #cell = ({ request, group, column }) => this.#now.tables.get(request)?.[group][column];

  /**
   * @param {Cell} cell
   * @param {number} id
   */
  #put({ request, group, column }, id) {
    const table = this.#now.tables.get(request);
    if (table) table[group][column] = id;
  }

  /** What is seen now, as a state of its own. */
  state() {
    const now = this.#now;
    const tables = new Map([...now.tables].map(([name, groups]) => [name, groups.map((group) => group.slice())]));
    return {
      ...now,
      ref: now.ref.slice(),
      name: now.name.slice(),
      used: now.used.slice(),
      words: now.words.slice(),
      writer: now.writer.slice(),
      hue: now.hue.slice(),
      free: now.free.slice(),
      events: this.#after.events.slice(0, this.#done),
      tables,
      holders: holdersIn(now.order, tables),
    };
  }
}

/**
 * Take the first that fits out of a list.
 * @template T
 * @param {T[]} list
 * @param {(one: T) => boolean} fits
 */
function take(list, fits) {
  const at = list.findIndex(fits);
  return at < 0 ? undefined : list.splice(at, 1)[0];
}

/**
 * The rows of both states: those that go stay where they stood until the step is over.
 * @param {State} before
 * @param {State} after
 */
export function allRows(before, after) {
  const rows = after.order.slice();
  before.order.forEach((name, i) => {
    if (rows.includes(name)) return;
    const above = before.order.slice(0, i).filter((one) => rows.includes(one));
    rows.splice(above.length ? rows.indexOf(above[above.length - 1]) + 1 : 0, 0, name);
  });
  return rows;
}
