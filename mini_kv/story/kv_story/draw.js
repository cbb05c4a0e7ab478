// The picture of one state: where everything stands, and the SVG that is there, moved from step to step.
//
// The notation. A block is one card, drawn once. Its place says who has it: in the tables' rows it is held, and as tall
// as the rows that hold it; in the queue it is free, and the queue's order is the order of reuse. Its tag says that it
// can be found. How far it is filled says how many of its tokens are there. A narrow picture has small cards without words.

import { allRows } from "./beats.js";
import { draw, make } from "./elements.js";
import { Gestures } from "./gestures.js";
import { tokensIn } from "./model.js";
import { asText, fill } from "./words.js";
import look from "../look.json";

/**
 * @typedef {import("./beats.js").Beat} Beat
 * @typedef {import("./model.js").State} State
 * @typedef {import("./model.js").Story} Story
 * @typedef {import("./words.js").Words} Words
 * @typedef {ReturnType<typeof metrics>} Metrics
 * @typedef {{request: string, group: number, table: number[]}} Row
 * @typedef {{group: number, from: number, rows: Row[], head: boolean}} Band
 * @typedef {{id: string, name?: string, capacity?: number, y: number}} Shelf
 * @typedef {{tables: number, free: number, stray: number, tiers: Shelf[], end: number}} Zones
 * @typedef {{x: number, y: number, h: number, line?: number, group?: number, column?: number}} Place
 * @typedef {ReturnType<typeof places>} Places
 * @typedef {{g: SVGElement, look: string, x?: number, y?: number, inside?: Inside}} Card
 * @typedef {{base: SVGElement, level: SVGElement, tag: SVGElement, ref: SVGElement, tagText: SVGElement,
 *   text: SVGElement, hue: SVGElement, ring: SVGElement | null, tagged: string}} Inside
 */

// ---- Pieces ---------------------------------------------------------------------------------------------------------

/** @type {(element: SVGElement, x: number, y: number) => void} */
const move = (element, x, y) => {
  element.style.transform = `translate(${x}px,${y}px)`;
};

/**
 * Signs in a box of 16, drawn as strokes: what happened to a block, told without colour.
 * @type {Record<string, string>}
 */
const SIGNS = look.signs;
/**
 * The class that gives a request its colours.
 * @param {Story} story
 * @param {string} request
 */
export const personOf = (story, request) => `person${story.requests.indexOf(request) % look.persons.light.length}`;
const IN_LIFE = ["uncached", "unshared", "freed", "evicted", "allocated", "revived", "shared", "cached", "illegal"];

/**
 * Kinds of events in the order in which they happen to a block.
 * @param {string[]} kinds
 */
export const inLife = (kinds) => (kinds.length ? IN_LIFE.filter((kind) => kinds.includes(kind)) : kinds);
export const LOUDEST = look.loudest;

/**
 * The round sign of a kind of event.
 * @param {string} kind
 */
export const sign = (kind, x = 0, y = 0) =>
  draw(
    "g",
    { class: "sign", transform: `translate(${x} ${y})` },
    draw("circle", { cx: 8, cy: 8, r: 8 }),
    draw("path", { d: SIGNS[kind] ?? SIGNS.illegal }),
  );

/**
 * The signs over a card: the two that say most.
 * @param {string[]} kinds
 * @param {number} middle
 * @param {number} y
 * @param {boolean} old whether they stood there before
 */
function signsAbove(kinds, middle, y, old = false) {
  const shown = LOUDEST.filter((kind) => kinds.includes(kind)).slice(0, 2);
  if (shown.length > 1 && shown[1] === "cached") shown.pop(); // the tag says it
  const signs = shown.map((kind, i) => sign(kind, middle + 17 * i - 8.5 * shown.length, y));
  for (const one of signs) one.classList.toggle("old", old);
  return signs;
}

/**
 * Text that fits where labels go.
 * @param {string} text
 */
const short = (text, most = 10) => (text.length > most ? `${text.slice(0, most - 1)}\u2026` : text);

/**
 * How much room a letter takes, in letters of usual width.
 * @param {string} letter
 */
const widthOf = (letter) => (letter > "\u2e80" ? 2 : /[mwMW]/.test(letter) ? 1.5 : /[ilj.,:;'! ]/.test(letter) ? 0.5 : 1);

/**
 * Text that fits into a width, in letters of usual width.
 * @param {string} text
 * @param {number} room
 */
function fitting(text, room) {
  let width = 0;
  const end = [...text].findIndex((letter) => (width += widthOf(letter)) > room);
  return end < 0 ? text : `${[...text].slice(0, Math.max(0, end - 1)).join("")}\u2026`;
}

/** What is read on a tag: nothing where it is only a strip.
 * @type {(tag: string, m: Metrics) => string} */
const onTag = (tag, m) => (m.tag < 15 ? "" : fitting(tag, (m.w - 2) / 6.4));

/**
 * The words of a block as its card shows them: two lines, cut where there is no more room.
 * @param {string[]} words
 * @param {Metrics} m
 */
function inLines(words, m) {
  if (!m.words || !words.length) return [];
  const half = Math.ceil(words.length / 2),
    room = (m.w - 10) / 6.6;
  return [words.slice(0, half), words.slice(half)].map((line) => fitting(asText(line), room)).filter(Boolean);
}

function hatch() {
  const pattern = draw("pattern", {
    id: "hatch",
    width: 6,
    height: 6,
    patternUnits: "userSpaceOnUse",
    patternTransform: "rotate(45)",
  });
  pattern.append(
    draw("rect", { width: 6, height: 6, style: "fill:var(--card)" }),
    draw("line", { y2: 6, style: "stroke:var(--soft);stroke-width:2" }),
  );
  return pattern;
}

/**
 * What there is to say of a block, in words.
 * @param {Words} t
 * @param {Story} story
 * @param {State} state
 * @param {number} id
 */
export function stateWords(t, story, state, id) {
  if (id === 0) return t.null;
  if (state.ref[id] > 0) {
    const tokens = tokensIn(story, state, id);
    if (tokens < story.blockSize) return fill(t.filling, tokens, story.blockSize);
    return state.name[id] ? t.heldCached : t.held;
  }
  return state.name[id] ? t.freeCached : state.used[id] ? t.freeNotCached : t.never;
}

// ---- Places: a state to coordinates ---------------------------------------------------------------------------------

/**
 * Sizes that depend on the story and the width alone.
 * @param {Story} story
 * @param {number} width
 */
function metrics(story, width) {
  const dense = story.numBlocks > look.most_cards,
    narrow = width < 480;
  const told = !dense && story.states.some((state) => state.words.some((list) => list.length)),
    words = told && !narrow;
  // Beside a number of two digits, and on a narrow card, the count has no room, so it goes under the number.
  const under = !dense && !words && (narrow || story.numBlocks > 10);
  const [usual, low, gap] = dense
    ? [14, 14, 2]
    : words
      ? [92, 68, 5]
      : narrow ? [36, told ? 35 : 44, 3] : [50, 46, 5];
  const h = low + (under ? 10 : 0);
  const names = story.states.flatMap((state) => state.order);
  const suffix = story.numGroups > 1 ? 2 : 0;
  const longest = Math.min(10, suffix + Math.max(1, ...names.map((name) => name.length)));
  const label = narrow ? Math.max(38, 8 * longest + 10) : Math.max(46, 9 * longest + 14);
  // Words have all the width that one line of cards leaves them. Narrow cards make room for one more.
  const longestLine = Math.max(1, ...story.states.flatMap((state) => [narrow ? 0 : state.free.length, ...tableLengths(state)]));
  const room = Math.floor((width - label) / longestLine) - gap,
    [least, most] = words ? [76, 120] : narrow && !dense ? [30, usual] : [usual, usual];
  const w = room >= least ? Math.min(room, most) : usual;
  return {
    dense,
    under,
    words,
    w,
    h,
    gap,
    label,
    tag: told && narrow ? 6 : 15,
    px: w + gap,
    py: h + gap,
    width,
    columns: Math.max(1, Math.floor((width - label) / (w + gap))),
    small: dense ? 8 : 24,
  };
}

/** @type {(state: State) => number[]} */
const tableLengths = (state) => [...state.tables.values()].flatMap((groups) => groups.map((table) => table.length));

/**
 * The lines of the tables: per group and band of columns, the rows that reach there.
 * @param {Story} story
 * @param {State} state
 * @param {Metrics} m
 */
function bands(story, state, m) {
  /** @type {Band[]} */
  const out = [];
  for (let group = 0; group < story.numGroups; group++) {
    const rows = state.order.map((request) => ({ request, group, table: state.tables.get(request)?.[group] ?? [] }));
    for (let from = 0, left = rows; left.length; from += m.columns) {
      out.push({ group, from, rows: left, head: from === 0 && story.numGroups > 1 });
      left = left.filter((row) => row.table.length > from + m.columns);
    }
  }
  return out;
}

const { head: HEAD, shelf: SHELF } = look;
/** @type {(band: Band, m: Metrics) => number} */
const bandHeight = (band, m) => (band.head ? 18 : 0) + band.rows.length * m.py + 4;
/** What the queue takes: its cards, and a line for the word at its end where no place is left beside them.
 * @type {(state: State, m: Metrics) => number} */
const queueHeight = ({ free }, m) => lines(free.length, m) + (free.length && free.length % m.columns === 0 ? 16 : 0);
/** @type {(count: number, m: Metrics) => number} */
const lines = (count, m) => Math.max(1, Math.ceil(count / m.columns)) * m.py;

/** How many cells of memory are in a line.
 * @type {(m: Metrics) => number} */
const perLine = ({ width, small }) => Math.max(1, Math.floor(width / (small + 2)));

/**
 * Blocks that stand in no table and not in the queue.
 * @param {State} state
 */
function strays(state) {
  const free = new Set(state.free);
  return state.ref.map((_, id) => id).filter((id) => id > 0 && !state.holders.has(id) && !free.has(id));
}

/**
 * Where each part of a step's picture begins, and where the last one ends.
 * @param {Story} story
 * @param {Metrics} m
 * @param {State} state
 * @returns {Zones}
 */
function zones(story, m, state) {
  const tables = HEAD,
    inTables = bands(story, state, m).reduce((sum, band) => sum + bandHeight(band, m), 0);
  const free = tables + HEAD + Math.max(m.py, inTables);
  let end = free + queueHeight(state, m);
  const stray = end + HEAD,
    numStrays = strays(state).length;
  if (numStrays) end = stray + lines(numStrays, m);
  const tiers = (story.data.tiers ?? []).map((tier) => {
    const y = end + HEAD,
      room = Math.max(tier.capacity ?? 0, (state.tiers[tier.id] ?? []).length);
    end = y + Math.max(1, Math.ceil(room / m.columns)) * SHELF;
    return { ...tier, y };
  });
  return { tables, free, stray, tiers, end };
}

/**
 * A step at its fullest: while it is played, rows that go stand beside rows that come, and the longer queue is there.
 * @param {Story} story
 * @param {State} state
 * @returns {State}
 */
function fullest({ states }, state) {
  const before = states[Math.max(0, state.number - 1)],
    free = before.free.length > state.free.length ? before.free : state.free;
  return { ...state, free, order: allRows(before, state), tables: new Map([...before.tables, ...state.tables]) };
}

/**
 * Coordinates of everything in one state. `cards`: by block id; a block's further places are `ghosts`.
 * @param {Story} story
 * @param {State} state
 * @param {Metrics} m
 * @param {Zones} z
 */
function places(story, state, m, z) {
  /** @type {Map<number, Place>} */
  const cards = new Map();
  /** @type {{id: number, x: number, y: number}[]} */
  const ghosts = [];
  /** @type {{x: number, y: number}[]} */
  const nulls = [];
  /** @type {{request: string, x: number, y: number}[]} */
  const holes = [];
  /** @type {{key: string, request: string, group: number, y: number, first: boolean}[]} */
  const rows = [];
  /** @type {{x: number, y: number, text: string}[]} */
  const heads = [];
  let y = z.tables;
  for (const band of bands(story, state, m)) {
    if (band.head) heads.push({ x: 0, y: (y += 18) - 6, text: story.data.groups?.[band.group] ?? `${band.group}` });
    band.rows.forEach(({ request, group, table }, line) => {
      rows.push({ key: `${request} ${group} ${band.from}`, request, group, y, first: band.from === 0 });
      table.slice(band.from, band.from + m.columns).forEach((id, i) => {
        const x = m.label + i * m.px,
          card = cards.get(id);
        if (id < 0) holes.push({ request, x, y });
        else if (id === 0) nulls.push({ x, y });
        else if (!card) cards.set(id, { x, y, h: m.h, line, group, column: band.from + i });
        else if (card.group === group && card.column === band.from + i && card.line === line - 1) {
          card.h += m.py;
          card.line = line;
        } else ghosts.push({ id, x, y });
      });
      y += m.py;
    });
    y += 4;
  }
  /** @type {(list: number[], top: number) => void} */
  const row = (list, top) =>
    list.forEach((id, i) => {
      const at = { x: m.label + (i % m.columns) * m.px, y: top + Math.floor(i / m.columns) * m.py, h: m.h };
      if (cards.has(id)) ghosts.push({ id, ...at });
      else cards.set(id, at);
    });
  row(state.free, z.free);
  row(strays(state), z.stray);
  const end = state.free.length,
    full = end > 0 && end % m.columns === 0; // then its label goes under the last card
  const last = {
    x: m.label + ((full ? end - 1 : end) % m.columns) * m.px + 2,
    y: z.free + Math.floor(end / m.columns) * m.py + (full ? 10 : m.h / 2 + 4),
  };
  return { cards, ghosts, nulls, holes, rows, heads, last };
}

// ---- The picture ----------------------------------------------------------------------------------------------------

/** The tables, the queue, the tiers and the memory of a story, step by step. */
export class Picture {
  /** The step that is shown. @type {State} */
  #state;
  /** The block that is looked at. @type {number | null} */
  #selected = null;
  /** What happened to each block in this step. @type {Map<number, string[]>} */
  #kinds = new Map();
  /** @type {Map<number, Card>} */
  #cards = new Map();
  /** @type {Map<string, SVGElement>} */
  #rows = new Map();
  /** @type {{g: SVGElement, look: string}[]} */
  #cells = [];
  /** @type {Map<string, SVGElement>} */
  #shelves = new Map();
  /** Where the memory begins: the same in every step. */
  #memory = 0;
  /** The heading of the queue. */
  #lead = draw("g", { class: "lead", "aria-hidden": "true" });
  /** What moves beside the cards in this beat. @type {Gestures | null} */
  #gestures = null;
  /** @type {Beat | null} */
  #beat = null;
  /** Whether cards of a picture of very many blocks move to their places. */
  gliding = false;
  /** The blocks that are marked, because another run beside this one has them otherwise. @type {Set<number>} */
  differing = new Set();
  /** How much longer than usual everything takes. */
  pace = 1;
  backLayer = draw("g");
  rowsLayer = draw("g");
  extraLayer = draw("g");
  cardsLayer = draw("g");
  signsLayer = draw("g");
  memoryLayer = draw("g", { class: "memory" });

  /**
   * @param {Words} t
   * @param {Story} story
   * @param {HTMLElement} fig what carries the classes of the whole figure
   */
  constructor(t, story, fig) {
    this.t = t;
    this.story = story;
    this.fig = fig;
    this.#state = story.states[0];
    const layers = [this.backLayer, this.rowsLayer, this.extraLayer, this.cardsLayer, this.signsLayer, this.memoryLayer];
    this.svg = draw("svg", { role: "none" }, draw("defs", {}, hatch()), ...layers);
    this.element = make("div", { class: "pic", role: "listbox", tabindex: 0, "aria-label": t.blocks }, this.svg);
    this.m = metrics(story, 720);
    this.z = zones(story, this.m, this.#state);
  }

  /**
   * Make room for the story in this width.
   * @param {number} width
   */
  layout(width) {
    const before = this.m;
    const m = (this.m = metrics(this.story, Math.min(width, 960)));
    const { story, fig } = this,
      narrow = width < 480, // without the memory, which says the same again
      ends = story.states.map((state) => zones(story, m, m.dense ? state : fullest(story, state)).end);
    this.#memory = Math.max(...ends) + HEAD;
    const memory = Math.ceil(story.numBlocks / perLine(m)) * (m.small + 2) + 4;
    this.svg.setAttribute("height", String(this.#memory + (narrow ? 4 - HEAD : memory)));
    fig.classList.toggle("narrow", narrow);
    this.fig.classList.toggle("dense", m.dense);
    this.#backdrop();
    if (before.w === m.w && before.h === m.h) return;
    for (const { g } of this.#cards.values()) g.remove();
    for (const g of [...this.#rows.values(), ...this.#shelves.values()]) g.remove();
    for (const map of [this.#cards, this.#rows, this.#shelves]) map.clear();
  }

  /** What is the same in every step: headings, and a cell of memory per block. */
  #backdrop() {
    const { t, m, story, backLayer, memoryLayer } = this;
    /** @type {(y: number, text: string) => SVGElement} */
    const head = (y, text) => draw("text", { class: "h", x: 0, y: y - 13, "aria-hidden": "true" }, text);
    memoryLayer.replaceChildren(head(this.#memory, t.memory));
    this.#lead.replaceChildren(
      head(0, t.free),
      draw("text", { class: "s", x: 0, y: m.h / 2 + 4 }, t.next),
      draw("path", { d: `M${m.label - 10} ${m.h / 2 - 4}l6 4l-6 4z`, fill: "currentColor" }),
    );
    backLayer.replaceChildren(head(HEAD, t.tables), this.#lead);
    this.#cells = m.dense
      ? []
      : story.states[0].ref.map((_, id) => {
          const [x, y] = this.#cellAt(id),
            rect = draw("rect", { x, y, width: m.small, height: m.small, rx: 2 });
          const number = draw("text", { x: x + m.small / 2, y: y + 16 }, `${id}`);
          return { g: draw("g", { "data-id": id, "aria-hidden": "true" }, rect, number), look: "" };
        });
    memoryLayer.append(...this.#cells.map((cell) => cell.g));
  }

  /**
   * Where a block's cell of memory is.
   * @param {number} id
   */
  #cellAt(id) {
    const { m } = this,
      side = m.small + 2;
    return [(id % perLine(m)) * side + 1, this.#memory + Math.floor(id / perLine(m)) * side];
  }

  /**
   * Show a step, or a beat of one.
   * @param {State} state
   * @param {State} before the step before it
   * @param {number | null} selected
   * @param {boolean} animate
   * @param {Beat} [beat] what has just happened
   */
  show(state, before, selected, animate, beat) {
    this.#state = state;
    this.#selected = selected;
    this.#kinds = new Map();
    for (const { kind, id } of state.events) this.#kinds.set(id, [...(this.#kinds.get(id) ?? []), kind]);
    this.z = zones(this.story, this.m, state);
    move(this.#lead, 0, this.z.free);
    const at = places(this.story, state, this.m, this.z);
    let moving = 0;
    for (const [id, place] of at.cards) {
      const card = this.#cards.get(id);
      if (card && (card.x !== place.x || card.y !== place.y)) moving++;
    }
    this.gliding = animate && !matchMedia("(prefers-reduced-motion:reduce)").matches;
    this.fig.classList.toggle("still", !animate || this.m.dense || moving > 200);
    this.#beat = beat ?? null;
    this.#gestures = beat && !this.still ? new Gestures(this.signsLayer, this.m, this.pace) : null;
    this.#showRows(at);
    this.#showCards(at);
    this.#showCells();
    this.#showTiers(before);
    if (beat && this.#gestures) this.#perform(beat, at, this.#gestures);
  }

  /** Whether nothing may move: too many blocks, or a reader who asks for it. */
  get still() {
    return this.m.dense || matchMedia("(prefers-reduced-motion:reduce)").matches;
  }

  /**
   * What a beat shows beside the cards that move.
   * @param {Beat} beat
   * @param {Places} at
   * @param {Gestures} gestures
   */
  #perform({ kind, ids, request, copies }, at, gestures) {
    /** @type {(id: number) => Card & {x: number, y: number} | undefined} */
    const card = (id) => {
      const found = this.#cards.get(id);
      return found && found.x !== undefined ? /** @type {Card & {x: number, y: number}} */ (found) : undefined;
    };
    if (kind === "lookup") {
      const holes = at.holes.filter((hole) => hole.request === request);
      gestures.probe(
        holes.slice(0, ids.length + 1),
        ids.flatMap((id) => card(id) ?? []),
      );
    }
    for (const id of kind === "revived" ? ids : []) gestures.halo(card(id));
    for (const [id, old] of copies) gestures.copy(card(old), card(id));
  }

  /** @param {Places} at */
  #showRows(at) {
    const { m, z, rowsLayer, extraLayer, t } = this;
    const state = this.#state,
      rows = this.#rows;
    const keys = new Set(at.rows.map((row) => row.key));
    for (const [key, g] of rows)
      if (!keys.has(key)) {
        g.remove();
        rows.delete(key);
      }
    for (const row of at.rows) {
      let g = rows.get(row.key);
      if (!g) {
        const text = short(this.story.numGroups > 1 ? `${row.request}.${row.group}` : row.request);
        g = draw(
          "g",
          { class: "row", "aria-hidden": "true" },
          draw("rect", { class: "rowbg", height: m.h, rx: 4 }),
          draw("text", { class: "l", x: 4, y: m.dense ? 12 : m.h / 2 }, text),
          draw("text", { class: "s", x: 4, y: m.h / 2 + 15 }),
        );
        rows.set(row.key, g);
        rowsLayer.append(g);
      }
      g.children[0].setAttribute("width", String(m.width));
      const tokens = state.scheduled[row.request];
      g.children[2].textContent = tokens !== undefined && row.first && row.group === 0 && !m.dense ? `+${tokens}` : "";
      move(g, 0, row.y);
    }
    /** @type {SVGElement[]} */
    const extra = at.heads.map((head) => draw("text", { class: "s", x: head.x, y: head.y }, head.text));
    for (const { x, y } of at.nulls) extra.push(draw("rect", { class: "nul", x, y, width: m.w, height: m.h, rx: 4 }));
    for (const { id, x, y } of at.ghosts) {
      extra.push(
        draw(
          "g",
          { class: "ghost", "data-id": id },
          draw("rect", { x, y, width: m.w, height: m.h, rx: 5 }),
          draw("text", { x: x + 5, y: y + 16 }, m.dense ? "" : `${id}`),
        ),
      );
    }
    if (!at.rows.length) extra.push(draw("text", { class: "s", x: m.label, y: z.tables + 14 }, t.noTables));
    if (strays(state).length) extra.push(draw("text", { class: "h", x: 0, y: z.stray - 13 }, t.stray));
    const end = state.free.length ? t.end : t.empty;
    extra.push(draw("text", { class: "s", ...at.last }, end));
    for (const element of extra) element.setAttribute("aria-hidden", "true");
    extraLayer.replaceChildren(...extra);
  }

  /**
   * @param {number} id
   * @returns {Card}
   */
  #newCard(id) {
    const { m, cardsLayer } = this,
      [w, h] = [m.w, m.h];
    const names = { class: "card", role: "option", id: `b${id}`, "data-id": id, "aria-selected": "false" };
    if (m.dense) {
      const rect = draw("rect", { ...names, width: w, rx: 2 });
      cardsLayer.append(rect);
      return { g: rect, look: "" };
    }
    const base = draw("rect", { class: "base", width: w, height: h, rx: 5 });
    const level = draw("rect", { class: "lvl", x: 1.5, y: 1.5, height: h - 3, rx: 3 });
    const hue = draw("path", { class: "hue" });
    const text = draw("text", { class: "words" });
    const tag = draw("rect", { class: "tag", x: 3, width: w - 6, height: m.tag, rx: m.tag === 15 ? 4 : 2 });
    const ref = draw("text", { class: "ref", x: w - 5, y: m.under ? 29 : 16 });
    const tagText = draw("text", { class: m.words ? "tagtext by" : "tagtext", x: w / 2 });
    const number = draw("text", { class: "id", x: 9, y: 17 }, `${id}`);
    const g = draw("g", names, base, level, hue, tag, number, " ", ref, " ", tagText, " ", text);
    cardsLayer.append(g);
    return { g, look: "", inside: { base, level, tag, ref, tagText, text, hue, ring: null, tagged: "" } };
  }

  /** @param {Places} at */
  #showCards(at) {
    const { m, t, story, signsLayer } = this;
    const state = this.#state,
      cards = this.#cards;
    /** @type {SVGElement[]} */
    const above = [];
    for (const [id, card] of cards)
      if (!at.cards.has(id)) {
        card.g.remove();
        cards.delete(id);
      }
    for (const [id, place] of at.cards) {
      const card = cards.get(id) ?? this.#newCard(id);
      cards.set(id, card);
      const ref = state.ref[id],
        name = state.name[id],
        kinds = inLife(this.#kinds.get(id) ?? []);
      const tokens = ref > 0 ? tokensIn(story, state, id) : 0;
      this.#put(card, place, kinds);
      if (!m.dense) above.push(...signsAbove(kinds, place.x + m.w / 2, place.y - 9, this.#beat?.ids.includes(id) === false));
      const words = state.words[id],
        writer = words.length ? state.writer[id] : "",
        hue = state.hue[id],
        tag = name && (writer || name.slice(0, 4)); // what is read on the tag
      const differs = this.differing.has(id) ? "differs" : "";
      const marks = [state.used[id], id === this.#selected, differs, hue];
      const look = [tag, place.h, ref, kinds, tokens, ...marks, words, writer].join();
      if (look === card.look) continue;
      card.look = look;
      const filling = tokens < story.blockSize ? "filling" : "";
      card.g.setAttribute(
        "class",
        [
          "card",
          ref > 0 ? `held ${filling}` : "",
          state.used[id] ? "" : "never",
          id === this.#selected ? "sel" : "",
          differs,
          writer ? personOf(story, writer) : "",
        ].join(" "),
      );
      // The label begins with what is seen, so that a voice can say it.
      const seen = [id, ref ? `\u00d7${ref}` : "", tag, ...inLines(words, m)].filter(Boolean).join(" ");
      const what = [stateWords(t, story, state, id), ...kinds.map((kind) => t.kinds[kind])].join(t.comma);
      card.g.setAttribute("aria-label", fill(t.block, seen) + t.colon + what);
      card.g.setAttribute("aria-selected", String(id === this.#selected));
      if (card.inside) this.#showInside(card, card.inside, place, { ref, tag, kinds, tokens, words, hue });
      else card.g.setAttribute("height", String(place.h));
    }
    signsLayer.replaceChildren(...(m.dense ? this.#shapes(at) : above)); // above all cards
  }

  /**
   * Move a card to its place.
   * @param {Card} card
   * @param {Place} place
   * @param {string[]} kinds what happened to the block
   */
  #put(card, { x, y }, kinds) {
    if (card.x === x && card.y === y) return;
    const [oldX, oldY] = [card.x, card.y];
    [card.x, card.y] = [x, y];
    if (!this.m.dense) {
      move(card.g, x, y);
      return;
    }
    card.g.setAttribute("x", String(x));
    card.g.setAttribute("y", String(y));
    // Of very many blocks only those move that something happened to; the queue behind them closes up at once.
    if (oldX === undefined || oldY === undefined || !kinds.length || !this.gliding) return;
    const from = `translate(${oldX - x}px,${oldY - y}px)`,
      evicted = kinds.includes("evicted");
    card.g.animate([{ transform: from, stroke: evicted ? "var(--new)" : "" }, { transform: from }, { transform: "none" }], {
      duration: 700 * this.pace,
      easing: "ease-in-out",
    });
  }

  /**
   * What is inside a card of the full size, and the frame around it if this step changed it.
   * @param {Card} card
   * @param {Inside} inside
   * @param {Place} place
   * @param {{ref: number, tag: string, kinds: string[], tokens: number, words: string[], hue: number}} shown
   */
  #showInside(card, inside, place, { ref, tag, kinds, tokens, words, hue }) {
    const { m, story } = this,
      out = 1.5;
    inside.base.style.height = `${place.h}px`;
    inside.level.style.height = `${place.h - 3}px`;
    // A block that is free and cached keeps its content out of sight, so that a revival is its colour coming back.
    const share = tag ? 1 : tokens / Math.max(1, story.blockSize);
    inside.level.style.width = `${(m.w - 3) * share}px`;
    inside.tag.style.setProperty("y", `${place.h - m.tag - 3}px`);
    inside.tag.style.display = tag ? "" : "none";
    inside.ref.textContent = ref ? `\u00d7${ref}` : "";
    inside.tagText.textContent = onTag(tag, m);
    move(inside.tagText, 0, place.h - 6);
    inside.hue.setAttribute("class", hue ? `hue hue${(hue - 1) % look.hues.length}` : "hue none");
    inside.hue.setAttribute("d", `M4.5 4V${place.h - 4}`);
    if (m.words) this.#write(inside.text, words);
    const lost = inside.tagged !== tag ? inside.tagged : "";
    card.g.style.transitionDelay = lost && this.#gestures ? `${0.3 * this.pace}s` : ""; // the name falls, then the card goes
    if (lost) this.#gestures?.fall(card.g, onTag(lost, m), place.h);
    if (tag && inside.tagged !== tag) this.#gestures?.stamp(inside.tag, inside.tagText);
    inside.tagged = tag;
    inside.ring?.remove();
    inside.ring = null;
    if (!kinds.length) return;
    inside.ring = draw("rect", {
      class: "ring",
      x: -out,
      y: -out,
      width: m.w + 2 * out,
      height: place.h + 2 * out,
      rx: 6,
    });
    card.g.append(inside.ring);
  }

  /**
   * The words of a block, in two lines.
   * @param {SVGElement} text
   * @param {string[]} words
   */
  #write(text, words) {
    const lines = inLines(words, this.m).map((line, i) => draw("tspan", { x: 9, y: 31 + 13 * i }, line));
    text.replaceChildren(...lines.flatMap((line, i) => (i ? [" ", line] : [line])));
  }

  /**
   * In a picture of very many blocks: all tags as one shape, and all frames as another.
   * @param {Places} at
   */
  #shapes(at) {
    const { w } = this.m;
    let tags = "",
      rings = "";
    for (const [id, { x, y, h }] of at.cards) {
      if (this.#state.name[id]) tags += `M${x + 3} ${y + h - 5}h${w - 6}v3h-${w - 6}z`;
      if (this.#kinds.has(id)) rings += `M${x} ${y}h${w}v${h}h-${w}z`;
    }
    return [draw("path", { class: "tag through", d: tags }), draw("path", { class: "ring through", d: rings })];
  }

  /** The memory: a cell per block, or, if they are very many, all cells of one look as one shape. */
  #showCells() {
    const { m, memoryLayer } = this,
      state = this.#state;
    /** @type {Map<string, string>} */
    const shapes = new Map();
    state.ref.forEach((ref, id) => {
      const kind =
        id === 0
          ? "null"
          : `${ref > 0 ? "held" : ""} ${state.used[id] ? "" : "never"} ${state.name[id] ? "named" : ""}`;
      const look = `cell ${kind} ${this.#kinds.has(id) ? "chg" : ""} ${id === this.#selected ? "sel" : ""} ${this.differing.has(id) ? "differs" : ""}`;
      const cell = this.#cells[id];
      if (m.dense) {
        const [x, y] = this.#cellAt(id);
        shapes.set(look, `${shapes.get(look) ?? ""}M${x} ${y}h${m.small}v${m.small}h-${m.small}z`);
      } else if (look !== cell.look) cell.g.setAttribute("class", (cell.look = look));
    });
    if (m.dense)
      memoryLayer.replaceChildren(...[...memoryLayer.children].slice(0, 1), ...[...shapes].map(([look, d]) => draw("g", { class: look }, draw("path", { d }))));
  }

  /**
   * Shelves below the queue. A content's tag comes from the block that carried it, and goes to the one that will.
   * @param {State} before
   */
  #showTiers(before) {
    const { m, z, backLayer, cardsLayer, t } = this;
    const state = this.#state,
      shelves = this.#shelves;
    backLayer.querySelectorAll(".tierhead").forEach((element) => element.remove());
    const there = new Set();
    for (const tier of z.tiers) {
      const names = state.tiers[tier.id] ?? [];
      const title = fill(t.tier, tier.name ?? tier.id, names.length, tier.capacity ?? names.length);
      backLayer.append(draw("text", { class: "h tierhead", x: 0, y: tier.y - 13, "aria-hidden": "true" }, title));
      for (let i = 0; i < Math.min(tier.capacity ?? 0, 96); i++) {
        backLayer.append(
          draw("rect", {
            class: "tierhead place",
            x: m.label + (i % m.columns) * m.px,
            y: tier.y + Math.floor(i / m.columns) * SHELF,
            width: m.w,
            height: 17,
            rx: 4,
          }),
        );
      }
      names.forEach((name, i) => {
        const key = `${tier.id} ${name}`,
          x = m.label + (i % m.columns) * m.px,
          y = tier.y + Math.floor(i / m.columns) * SHELF;
        there.add(key);
        let g = shelves.get(key);
        if (!g) {
          g = draw(
            "g",
            { class: "shelf", "aria-hidden": "true" },
            draw("rect", { width: m.w, height: m.dense ? 6 : 17, rx: 4 }),
          );
          if (!m.dense) g.append(draw("text", { class: "tagtext", x: m.w / 2, y: 13 }, name.slice(0, 4)));
          const from = this.#cards.get(before.name.indexOf(name));
          if (from) move(g, from.x ?? 0, from.y ?? 0);
          shelves.set(key, g);
          cardsLayer.append(g);
          if (from) g.getBoundingClientRect(); // let the browser see where it starts
        }
        move(g, x, y);
      });
    }
    if (before !== state) this.#promote(before);
    for (const [key, g] of shelves)
      if (!there.has(key)) {
        g.remove();
        shelves.delete(key);
      }
  }

  /**
   * A block gets the hash of a content that a shelf had: the tag comes from there.
   * @param {State} before
   */
  #promote(before) {
    const { fig, signsLayer } = this,
      state = this.#state;
    if (fig.classList.contains("still") || matchMedia("(prefers-reduced-motion:reduce)").matches) return;
    for (const { kind, id } of state.events) {
      const tier = this.z.tiers.find((one) => before.tiers[one.id]?.includes(state.name[id]));
      const g = tier && this.#shelves.get(`${tier.id} ${state.name[id]}`),
        card = this.#cards.get(id);
      if (kind !== "cached" || !g || !card) continue;
      const tag = /** @type {SVGElement} */ (g.cloneNode(true)),
        to = `translate(${card.x}px,${card.y}px)`;
      tag.setAttribute("class", "flying");
      signsLayer.append(tag);
      tag.animate([{ transform: g.style.transform }, { transform: to }, { transform: to, opacity: 0 }], {
        duration: 600,
        fill: "forwards",
      });
    }
  }

  /**
   * The block under the pointer, if there is one.
   * @param {MouseEvent} event
   */
  blockAt(event) {
    const { m, svg } = this,
      at = event.target instanceof Element ? event.target.closest("[data-id]") : null;
    if (at) return Number(at.getAttribute("data-id"));
    const box = svg.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.x) / (m.small + 2)),
      line = Math.floor((event.clientY - box.y - this.#memory) / (m.small + 2));
    const id = line * perLine(m) + column; // very many cells of memory are one shape
    return m.dense && line >= 0 && column < perLine(m) && id < this.story.numBlocks ? id : undefined;
  }
}
