/* <kv-story>: the life of a KV cache as a picture to step through. Joined by `npm run figure` in book/ from the sources
 * in mini_kv/viz/kv_story: change those.
 *
 * One classic script without dependencies; it asks for nothing. Give it a story in one of three ways:
 *
 *     a child of <kv-story>: a script element of type application/json (also when it comes later)
 *     element.data = story                      a new story; a live one keeps its step, or follows its end
 *     element.step = 3                          go there; fires "kv-step" with {step, steps, asking}
 */
if (typeof customElements !== "undefined" && !customElements.get("kv-story"))
(() => {
  // model.js
  var StoryError = class extends Error {
    constructor(word, ...values) {
      super(word);
      this.word = word;
      this.values = values;
    }
  };
  function ids(value) {
    if (Array.isArray(value)) return value.map(Number);
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
  function idRuns(list) {
    const runs = [];
    for (const id of list) {
      const run = runs[runs.length - 1] ?? [], by = id - run[run.length - 1];
      if (Math.abs(by) === 1 && (run.length === 1 || by === run[1] - run[0])) run.push(id);
      else runs.push([id]);
    }
    return runs.map((run) => run.length > 2 ? `${run[0]}..${run[run.length - 1]}` : run.join(" ")).join(" ");
  }
  var words = (value) => Array.isArray(value) ? value : String(value).split(" ").filter(Boolean);
  function difference(before, after) {
    const events = [];
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
  function eventsOf(text) {
    return text.split(", ").filter(Boolean).flatMap((part) => {
      const space = part.indexOf(" ");
      return ids(part.slice(space + 1)).map((id) => ({ kind: part.slice(0, space), id }));
    });
  }
  function common(a, b) {
    let most = 0;
    a.forEach((table, g) => {
      let n = 0, real = 0;
      while (n < table.length && b[g] && table[n] === b[g][n]) real = Math.max(real, table[n++]);
      if (real) most = Math.max(most, n);
    });
    return most;
  }
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
  function holdersIn(order, tables) {
    const holders = /* @__PURE__ */ new Map();
    for (const request of order) {
      (tables.get(request) ?? []).forEach(
        (table, group) => table.forEach((id, column) => {
          if (id < 0) return;
          const found = holders.get(id) ?? [];
          holders.set(id, found);
          found.push({ request, group, column });
        })
      );
    }
    return holders;
  }
  var Beginnings = class {
    #known = /* @__PURE__ */ new Map();
    colour(state) {
      for (const { kind, id } of state.events) if (kind === "evicted" || kind === "allocated") state.hue[id] = 0;
      for (const groups of state.tables.values())
        for (const table of groups) {
          const first = table.find((id) => id > 0);
          if (first === void 0) continue;
          const hash = state.name[first];
          if (hash && table[0] === first && !state.hue[first]) state.hue[first] = this.#number(hash);
          for (const id of table) if (id > 0 && !state.hue[id]) state.hue[id] = state.hue[first];
        }
    }
    #number(hash) {
      const known = this.#known.get(hash) ?? this.#known.size + 1;
      this.#known.set(hash, known);
      return known;
    }
  };
  var COUNTS = { allocated: 1, revived: 1, shared: 1, unshared: -1, freed: -1 };
  function newPrompts(before, after) {
    return after.order.flatMap((request) => {
      const words2 = (after.tables.get(request)?.[0] ?? []).flatMap((id) => after.words[id]);
      if (before.tables.has(request) || !words2.length) return [];
      return [{ request, words: words2, found: words2.length - (after.scheduled[request] ?? words2.length) }];
    });
  }
  function foldEvent({ ref, name }, { kind, id }, names) {
    ref[id] += COUNTS[kind] ?? 0;
    if (kind === "cached") name[id] = names.shift() ?? name[id];
    if (kind === "evicted" || kind === "uncached") name[id] = "";
  }
  function apply(before, step, number, beginnings) {
    const next = {
      ...before,
      step,
      number,
      ref: before.ref.slice(),
      name: before.name.slice(),
      used: before.used.slice(),
      words: before.words.slice(),
      hue: before.hue.slice(),
      tables: new Map(before.tables),
      tok: { ...before.tok, ...step.tok },
      tiers: { ...before.tiers },
      waiting: step.waiting ?? before.waiting,
      scheduled: step.scheduled ?? {},
      events: eventsOf(step.events ?? ""),
      newNames: words(step.names ?? "")
    };
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
          groups.map((group) => known(ids(group)))
        );
    }
    for (const [tier, hashes] of Object.entries(step.tiers ?? {})) next.tiers[tier] = words(hashes);
    if (step.free !== void 0) next.free = known(ids(step.free));
    if (step.events === void 0) {
      next.events = difference(before, next);
      next.newNames = next.events.filter(({ kind }) => kind === "cached").map(({ id }) => next.name[id]);
    }
    for (const probe of step.probes ?? []) known(ids(probe[2]));
    for (const { id } of next.events) next.used[id] = true;
    next.order = rowOrder(before.order, next.tables);
    next.holders = holdersIn(next.order, next.tables);
    beginnings.colour(next);
    next.asked = [...before.asked, ...newPrompts(before, next)].slice(-2);
    return next;
  }
  function check(data) {
    if (typeof data !== "object" || data === null || Array.isArray(data)) throw new StoryError("notStory");
    if (data.version !== 1) throw new StoryError("version", data.version);
    for (const key of ["num_blocks", "block_size"]) {
      if (!Number.isInteger(data[key]) || data[key] < 0) throw new StoryError("badField", key, data[key]);
    }
    if (!Array.isArray(data.steps)) throw new StoryError("badField", "steps", data.steps);
    data.steps.forEach((step, i) => {
      const bad = typeof step !== "object" || step === null || step.lines && !Array.isArray(step.lines) || step.predict && !(Array.isArray(step.predict.choices) && step.predict.choices[step.predict.answer]);
      if (bad) throw new StoryError("badField", `steps[${i}]`, JSON.stringify(step).slice(0, 60));
    });
  }
  function decode(anything) {
    check(anything);
    const data = anything;
    const n = data.num_blocks;
    const blank = {
      step: {},
      number: 0,
      events: [],
      newNames: [],
      ref: Array(n).fill(0),
      name: Array(n).fill(""),
      words: Array(n).fill([]),
      hue: Array(n).fill(0),
      used: Array(n).fill(false),
      tables: /* @__PURE__ */ new Map(),
      order: [],
      holders: /* @__PURE__ */ new Map(),
      free: Array.from({ length: Math.max(0, n - 1) }, (_, i) => i + 1),
      tok: {},
      tiers: {},
      waiting: [],
      scheduled: {},
      asked: []
    };
    const beginnings = new Beginnings();
    const states = [apply(blank, { ...data.start, events: "" }, 0, beginnings)];
    for (const step of data.steps) states.push(apply(states[states.length - 1], step, states.length, beginnings));
    return {
      data,
      states,
      title: String(data.title ?? ""),
      blockSize: data.block_size,
      numBlocks: n,
      numGroups: Math.max(1, ...states.flatMap((state) => [...state.tables.values()].map((table) => table.length)))
    };
  }
  function tokensIn(story, state, id) {
    const holder = state.holders.get(id)?.[0];
    if (!holder) return state.name[id] ? story.blockSize : 0;
    const total = state.tok[holder.request];
    if (total === void 0 || state.name[id]) return story.blockSize;
    return Math.max(0, Math.min(story.blockSize, total - holder.column * story.blockSize));
  }
  function elide(cells, most) {
    if (cells.length <= most) return cells;
    const side = Math.floor((most - 1) / 2);
    return [...cells.slice(0, side), `..${cells.length - 2 * side} more..`, ...cells.slice(-side)];
  }
  function drawText(state) {
    const rows = [];
    const mark = (id, none) => state.name[id] ? "#" : none;
    for (const [request, groups] of state.tables) {
      groups.forEach((table, g) => {
        const cells = table.map((id) => id === 0 ? "[null]" : `[${id}x${state.ref[id]}${mark(id, " ")}]`);
        rows.push([groups.length === 1 ? request : `${request}.${g}`, elide(cells, 10)]);
      });
    }
    const free = elide(
      state.free.map((id) => id + mark(id, "")),
      12
    );
    rows.push(["free", ["next->", ...free, "<-last"]]);
    const width = Math.max(...rows.map(([name]) => name.length));
    return rows.map(([name, cells]) => `${name.padEnd(width)}  ${cells.join(" ")}`.trimEnd()).join("\n");
  }

  // beats.js
  var MOST = 48;
  function beatsOf(before, after) {
    const scene = new Scene(before, after);
    const beats = [];
    for (const { kind, events, request, found } of parts(after)) {
      if (kind === "lookup") {
        beats.push({ kind, ids: found, request, copies: /* @__PURE__ */ new Map(), state: scene.state() });
        continue;
      }
      const copies = new Map(events.flatMap((event) => scene.apply(event)));
      beats.push({ kind, ids: events.map((event) => event.id), request: "", copies, state: scene.state() });
    }
    return beats;
  }
  function parts({ events, step }) {
    const out = [];
    const probes = [...step.probes ?? []];
    const joined = events.filter((event, i) => event.kind !== events[i - 1]?.kind).length > MOST;
    events.forEach((event, i) => {
      while (probes.length && probes[0][0] <= i) out.push(lookup(probes.shift()));
      const last = out[out.length - 1];
      const same = last?.kind === event.kind || joined && last?.events.length && last.events.length < events.length / MOST;
      if (last && same) last.events.push(event);
      else out.push({ kind: event.kind, events: [event], request: "", found: [] });
    });
    return [...out, ...probes.map(lookup)];
  }
  var lookup = (probe) => ({ kind: "lookup", events: [], request: probe?.[1] ?? "", found: ids(probe?.[2]) });
  var Scene = class {
    #now;
    #after;
    #done = 0;
    #toFill = [];
    #toLeave = [];
    #names;
    constructor(before, after) {
      this.#after = after;
      this.#names = [...after.newNames];
      const changed = new Set(after.events.map((event) => event.id));
      this.#now = {
        ...after,
        ref: before.ref.slice(),
        name: before.name.slice(),
        used: before.used.slice(),
        words: after.words.map((words2, id) => changed.has(id) ? before.words[id] : words2),
        hue: after.hue.map((hue, id) => changed.has(id) ? before.hue[id] : hue),
        free: before.free.slice(),
        tables: /* @__PURE__ */ new Map(),
        order: allRows(before, after),
        tiers: before.tiers
      };
      for (const request of this.#now.order) {
        const [old, next] = [before.tables.get(request) ?? [], after.tables.get(request) ?? []];
        const groups = Array.from(
          { length: Math.max(old.length, next.length) },
          (_, group) => this.#row(request, group, old[group] ?? [], next[group] ?? [])
        );
        this.#now.tables.set(request, groups);
      }
    }
    #row(request, group, old, next) {
      return Array.from({ length: Math.max(old.length, next.length) }, (_, column) => {
        const cell = { request, group, column, id: next[column] ?? -1, old: old[column] ?? -1 };
        if (cell.id === cell.old) return cell.id;
        if (cell.id > 0) this.#toFill.push(cell);
        if (cell.old > 0) this.#toLeave.push(cell);
        return cell.old > 0 ? cell.old : -1;
      });
    }
    apply(event) {
      const now = this.#now, { kind, id } = event;
      foldEvent(now, event, this.#names);
      now.used[id] = true;
      this.#done++;
      if (kind === "evicted") [now.words[id], now.hue[id]] = [[], 0];
      else [now.words[id], now.hue[id]] = [this.#after.words[id], this.#after.hue[id]];
      if (["allocated", "revived", "shared"].includes(kind)) {
        const cell = take(this.#toFill, (one) => one.id === id);
        if (!cell) return [];
        this.#put(cell, id);
        now.free = now.free.filter((one) => one !== id);
        return kind === "allocated" && cell.old > 0 ? [[id, cell.old]] : [];
      }
      if (kind === "freed" || kind === "unshared") {
        const cell = take(this.#toLeave, (one) => one.old === id);
        if (cell && this.#cell(cell) === id) this.#put(cell, cell.id === 0 ? 0 : -1);
        if (kind === "freed" && !now.free.includes(id)) this.#line(id);
      }
      return [];
    }
    #line(id) {
      const behind = this.#after.free.slice(this.#after.free.indexOf(id) + 1);
      const at = this.#now.free.findIndex((one) => behind.includes(one));
      this.#now.free.splice(at < 0 || !this.#after.free.includes(id) ? this.#now.free.length : at, 0, id);
    }
    #cell = ({ request, group, column }) => this.#now.tables.get(request)?.[group][column];
    #put({ request, group, column }, id) {
      const table = this.#now.tables.get(request);
      if (table) table[group][column] = id;
    }
    state() {
      const now = this.#now;
      const tables = new Map([...now.tables].map(([name, groups]) => [name, groups.map((group) => group.slice())]));
      return {
        ...now,
        ref: now.ref.slice(),
        name: now.name.slice(),
        used: now.used.slice(),
        words: now.words.slice(),
        hue: now.hue.slice(),
        free: now.free.slice(),
        events: this.#after.events.slice(0, this.#done),
        tables,
        holders: holdersIn(now.order, tables)
      };
    }
  };
  function take(list, fits) {
    const at = list.findIndex(fits);
    return at < 0 ? void 0 : list.splice(at, 1)[0];
  }
  function allRows(before, after) {
    const rows = after.order.slice();
    before.order.forEach((name, i) => {
      if (rows.includes(name)) return;
      const above = before.order.slice(0, i).filter((one) => rows.includes(one));
      rows.splice(above.length ? rows.indexOf(above[above.length - 1]) + 1 : 0, 0, name);
    });
    return rows;
  }

  // gestures.js
  var STRIDE = 110;
  var Gestures = class {
    constructor(layer, { w, h }, pace) {
      this.layer = layer;
      this.w = w;
      this.h = h;
      this.pace = pace;
    }
    #play(element, frames, ms, delay = 0) {
      const timing = { duration: ms * this.pace, delay: delay * this.pace, fill: (
        "backwards"
      ) };
      return element.animate(frames, { ...timing, easing: "ease-in-out" });
    }
    #once(element, frames, ms, delay = 0) {
      const animation = this.#play(element, frames, ms, delay);
      animation.onfinish = animation.oncancel = () => element.remove();
    }
    fall(card, name, height) {
      const tag = draw("rect", { class: "tag", x: 3, y: height - 18, width: this.w - 6, height: 15, rx: 4 });
      const text = draw("text", { class: "tagtext", x: this.w / 2, y: height - 6 }, name.slice(0, 4));
      const falling = draw("g", { class: "falling", "aria-hidden": "true" }, tag, text);
      card.append(falling);
      const end = { transform: "translate(6px,44px) rotate(24deg)", opacity: 0 };
      this.#once(falling, [{}, { transform: "translate(1px,-3px) rotate(-8deg)", offset: 0.25 }, end], 560);
    }
    stamp(...parts2) {
      for (const part of parts2) this.#play(part, [{ opacity: 0 }, { opacity: 1 }], 300);
    }
    halo(card) {
      if (!card) return;
      const ring = draw("rect", { class: "halo", width: this.w, height: this.h, rx: 6, "aria-hidden": "true" });
      card.g.append(ring);
      this.#once(ring, [{ transform: "scale(1)" }, { transform: "scale(1.45)", opacity: 0 }], 700, 150);
    }
    copy(from, to) {
      if (!from || !to) return;
      const content = draw("rect", { class: "copying", width: this.w, height: this.h, rx: 5 });
      this.layer.append(content);
      const at = [from, to].map(({ x, y }) => `translate(${x}px,${y}px)`);
      this.#once(content, [{ transform: at[0] }, { transform: at[1] }, { transform: at[1], opacity: 0 }], 600);
    }
    probe(holes, found) {
      const { w, h } = this;
      holes.forEach((hole, i) => {
        const place = draw("rect", { class: "hole", x: hole.x, y: hole.y, width: w, height: h, rx: 5 });
        this.layer.append(place);
        this.#play(place, [{ opacity: 0 }, { opacity: 1 }], 120, STRIDE * i);
        if (found[i]) return;
        const [x, y] = [hole.x + w / 2, hole.y + h / 2];
        const end = draw("path", { class: "miss", d: `M${x - 6} ${y - 6}l12 12M${x + 6} ${y - 6}l-12 12` });
        this.layer.append(end);
        this.#play(end, [{ opacity: 0 }, { opacity: 1 }], 200, STRIDE * i + 100);
      });
      found.forEach((card, i) => this.#light(card, holes[i], STRIDE * i));
    }
    #light(card, hole, delay) {
      const { w, h } = this;
      const ring = draw("rect", { class: "hit", x: card.x - 2, y: card.y - 2, width: w + 4, height: h + 4, rx: 7 });
      this.layer.append(ring);
      this.#play(ring, [{ opacity: 0 }, { opacity: 1 }], 150, delay);
      if (!hole) return;
      const below = hole.y > card.y;
      const [x0, y0] = [hole.x + w / 2, hole.y + (below ? 8 : h - 8)];
      const [x1, y1] = [card.x + w / 2, card.y + (below ? h : 0)];
      const line = draw("path", { class: "hit", d: `M${x0} ${y0}L${x1} ${y1}` });
      this.layer.append(line);
      this.#play(line, [{ opacity: 0 }, { opacity: 1 }], 150, delay);
    }
  };

  // words.js
  var en = {
    figure: "Figure: {0}",
    blocks: "Blocks: arrow keys up and down choose one",
    steps: "Step",
    first: "First step",
    back: "Step back",
    play: "Play",
    pause: "Pause",
    forward: "Step forward",
    last: "Last step",
    at: "step {0} of {1}",
    within: "Beat",
    speed: "Speed",
    cost: "computed {0} of {1}",
    film: "Step through it yourself",
    looks: "{0} looks up: {1} found",
    start: "Before the first call: every block is free.",
    tables: "Block tables",
    noTables: "no request holds a block",
    free: "Free queue",
    next: "next",
    end: "last",
    empty: "empty: no block is free",
    memory: "Memory: holders change, blocks never move",
    stray: "In no table and not in the queue",
    index: "Index: block hash → block",
    notCached: "no block is cached",
    more: "and {0} more",
    waiting: "Waiting",
    preempted: "preempted",
    none: "no request",
    tokens: "{0} tokens",
    predict: "What do you expect?",
    yes: "You said “{0}”, and so it is.",
    said: "You said “{0}”.",
    look: "Show what happens",
    skip: "Skip the question",
    wrong: "No. For “{0}” to be right,",
    how: "How to read this",
    text: "The state as text",
    block: "Block {0}",
    close: "Close",
    null: "the null block: stands where nothing is kept, never handed out",
    never: "free, never used",
    filling: "held, being filled: {0} of {1} slots",
    held: "held, not cached",
    heldCached: "held and cached: it can be found",
    freeCached: "free and still cached: a hit revives it",
    freeNotCached: "free, not cached",
    ref: "ref_cnt {0}",
    by: "held by {0}",
    hash: "block hash {0}",
    noHash: "no block hash",
    same: "same block hash as block {0}",
    place: "number {0} of {1} in the free queue",
    holds: "tokens {0} of {1}",
    bio: "So far",
    stepN: "step {0}: {1}",
    unused: "nothing has happened to it",
    wentWrong: "This figure cannot be drawn: {0}",
    notStory: "the data is no JSON object",
    version: "it has version {0}, and this script reads version 1",
    badBlock: "step {0} speaks of block {1}, and there are {2}",
    badField: "{0} is {1}",
    tier: "{0}: {1} of {2}",
    kinds: {
      allocated: "allocated",
      revived: "revived",
      shared: "shared",
      unshared: "unshared",
      freed: "freed",
      cached: "cached",
      evicted: "evicted",
      uncached: "uncached",
      illegal: "ILLEGAL"
    },
    legend: [
      "A card is a block: its number, and how many tables hold it (×2).",
      "A tall card stands in several rows: one block, shared. Nothing is copied.",
      "A tag under the number begins its block hash: it is cached, and can be found by its content.",
      "Coloured: held, as far as it is filled. Hollow: free. Dashed: never used.",
      "The queue is read from “next”: that block is taken first.",
      "Keys: left and right step, space plays, up and down choose a block, 1 to 9 answer.",
      "A thick frame with signs marks what this step changed:"
    ]
  };
  var zh = {
    figure: "图：{0}",
    blocks: "块：用上下方向键选择",
    steps: "步骤",
    first: "第一步",
    back: "上一步",
    play: "播放",
    pause: "暂停",
    forward: "下一步",
    last: "最后一步",
    at: "第 {0} 步，共 {1} 步",
    within: "节拍",
    speed: "速度",
    cost: "计算 {0} / {1}",
    film: "自己一步步来",
    looks: "{0} 查找：找到 {1} 块",
    start: "第一次调用之前：所有块都空闲。",
    tables: "块表",
    noTables: "没有请求持有块",
    free: "空闲队列",
    next: "下一个",
    end: "末尾",
    empty: "空：没有空闲块",
    memory: "显存：块从不移动，变的只是持有者",
    stray: "既不在块表中，也不在队列中",
    index: "索引：块哈希 → 块",
    notCached: "没有块被缓存",
    more: "还有 {0} 个",
    waiting: "等待",
    preempted: "被抢占",
    none: "无",
    tokens: "{0} 个 token",
    predict: "你预计会怎样？",
    yes: "你答“{0}”，正是如此。",
    said: "你答“{0}”。",
    look: "看看会发生什么",
    skip: "跳过此题",
    wrong: "不对。若“{0}”成立，则：",
    how: "怎样读这张图",
    text: "文字形式的状态",
    block: "块 {0}",
    close: "关闭",
    null: "空块：占位用，从不分配",
    never: "空闲，从未使用",
    filling: "被持有，填充中：{0} / {1} 个槽",
    held: "被持有，未缓存",
    heldCached: "被持有，可被找到",
    freeCached: "空闲，仍可被找到：命中即复活",
    freeNotCached: "空闲，无法被找到",
    ref: "ref_cnt {0}",
    by: "持有者：{0}",
    hash: "块哈希 {0}",
    noHash: "没有块哈希",
    same: "与块 {0} 哈希相同",
    place: "空闲队列第 {0} 位，共 {1} 位",
    holds: "{1} 的 token {0}",
    bio: "经历",
    stepN: "第 {0} 步：{1}",
    unused: "尚未发生任何事",
    wentWrong: "无法画出此图：{0}",
    notStory: "数据不是 JSON 对象",
    version: "数据版本为 {0}，此脚本只读版本 1",
    badBlock: "第 {0} 步提到块 {1}，而总共只有 {2} 块",
    badField: "{0} 为 {1}",
    tier: "{0}：{1} / {2}",
    kinds: {
      allocated: "分配",
      revived: "复活",
      shared: "共享",
      unshared: "取消共享",
      freed: "释放",
      cached: "缓存",
      evicted: "逐出",
      uncached: "移出缓存",
      illegal: "非法"
    },
    legend: [
      "一张卡片是一个块：编号，以及有几张块表持有它（×2）。",
      "跨多行的高卡片：同一个块被共享，没有任何复制。",
      "编号下的标签是块哈希的开头：已缓存，可以按内容找到该块。",
      "有色：被持有，按填充程度着色。空心：空闲。虚线：从未使用。",
      "队列从“下一个”读起：最先被取走。",
      "按键：左右换步，空格播放，上下选块，1 到 9 作答。",
      "粗框加符号：这一步改变了它："
    ]
  };
  var WORDS = { en, zh };
  var fill = (text, ...values) => text.replace(/\{(\d)\}/g, (_, i) => String(values[i]));

  // draw.js
  var SVG = "http://www.w3.org/2000/svg";
  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
    element.append(...children);
    return element;
  }
  function draw(tag, attributes = {}, ...children) {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
    element.append(...children);
    return element;
  }
  var move = (element, x, y) => {
    element.style.transform = `translate(${x}px,${y}px)`;
  };
  var SIGNS = {
    allocated: "M8 3v10M3 8h10",
    revived: "M12.5 8a4.5 4.5 0 1 1-1.5-3.4M11.5 2v3h-3",
    shared: "M3 8h5M5.5 5.5v5M9.5 6.2l2-1.4v6.6",
    unshared: "M3 8h5M9.5 6.2l2-1.4v6.6",
    freed: "M8 3v9M4 8.5l4 4 4-4",
    cached: "M4 4h5l4 4-4 4H4z",
    evicted: "M4 4l8 8M12 4l-8 8",
    uncached: "M4 4l8 8M12 4l-8 8",
    illegal: "M8 3v6M8 12v1"
  };
  var IN_LIFE = ["uncached", "unshared", "freed", "evicted", "allocated", "revived", "shared", "cached", "illegal"];
  var inLife = (kinds) => kinds.length ? IN_LIFE.filter((kind) => kinds.includes(kind)) : kinds;
  var LOUDEST = ["illegal", "evicted", "revived", "allocated", "shared", "unshared", "freed", "uncached", "cached"];
  var sign = (kind, x = 0, y = 0) => draw(
    "g",
    { class: "sign", transform: `translate(${x} ${y})` },
    draw("circle", { cx: 8, cy: 8, r: 8 }),
    draw("path", { d: SIGNS[kind] ?? SIGNS.illegal })
  );
  function signsAbove(kinds, middle, y, old = false) {
    const shown = LOUDEST.filter((kind) => kinds.includes(kind)).slice(0, 2);
    if (shown.length > 1 && shown[1] === "cached") shown.pop();
    const signs = shown.map((kind, i) => sign(kind, middle + 17 * i - 8.5 * shown.length, y));
    for (const one of signs) one.classList.toggle("old", old);
    return signs;
  }
  var short = (text, most = 10) => text.length > most ? `${text.slice(0, most - 1)}…` : text;
  function hatch() {
    const pattern = draw("pattern", {
      id: "hatch",
      width: 6,
      height: 6,
      patternUnits: "userSpaceOnUse",
      patternTransform: "rotate(45)"
    });
    pattern.append(
      draw("rect", { width: 6, height: 6, style: "fill:var(--card)" }),
      draw("line", { y2: 6, style: "stroke:var(--soft);stroke-width:2" })
    );
    return pattern;
  }
  function stateWords(t, story, state, id) {
    if (id === 0) return t.null;
    if (state.ref[id] > 0) {
      const tokens = tokensIn(story, state, id);
      if (tokens < story.blockSize) return fill(t.filling, tokens, story.blockSize);
      return state.name[id] ? t.heldCached : t.held;
    }
    return state.name[id] ? t.freeCached : state.used[id] ? t.freeNotCached : t.never;
  }
  function metrics(story, width) {
    const dense = story.numBlocks > 150, narrow = width < 480;
    const words2 = !dense && story.states.some((state) => state.words.some((list) => list.length));
    const under = !dense && !words2 && String(story.numBlocks - 1).length > (narrow ? 1 : 2);
    const [w, low, gap] = dense ? [14, 14, 2] : words2 ? narrow ? [72, 68, 3] : [92, 68, 5] : narrow ? [36, 44, 3] : [50, 46, 5];
    const h = low + (under ? 10 : 0);
    const names = story.states.flatMap((state) => state.order);
    const suffix = story.numGroups > 1 ? 2 : 0;
    const longest = Math.min(10, suffix + Math.max(1, ...names.map((name) => name.length)));
    const label = Math.max(narrow ? 38 : 46, 9 * longest + 8);
    return {
      dense,
      under,
      words: words2,
      w,
      h,
      gap,
      label,
      px: w + gap,
      py: h + gap,
      width,
      columns: Math.max(1, Math.floor((width - label) / (w + gap)))
    };
  }
  function bands(story, state, m) {
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
  var HEAD = 28;
  var SHELF = 24;
  var bandHeight = (band, m) => (band.head ? 18 : 0) + band.rows.length * m.py + 4;
  var lines = (count, m) => Math.max(1, Math.ceil(count / m.columns)) * m.py;
  var cellAt = (z, id) => [
    id % z.perLine * (z.small + 2) + 1,
    z.memory + Math.floor(id / z.perLine) * (z.small + 2)
  ];
  function strays(state) {
    const free = new Set(state.free);
    return state.ref.map((_, id) => id).filter((id) => id > 0 && !state.holders.has(id) && !free.has(id));
  }
  function zones(story, m, states = story.states) {
    const most = (height2) => Math.max(...states.map(height2));
    const tables = HEAD;
    const inside = (state) => {
      const before = story.states[Math.max(0, state.number - 1)];
      return { ...state, order: allRows(before, state), tables: new Map([...before.tables, ...state.tables]) };
    };
    const inTables = most((state) => bands(story, inside(state), m).reduce((sum, band) => sum + bandHeight(band, m), 0));
    const free = tables + HEAD + Math.max(m.py, inTables);
    let y = free + HEAD + most((state) => lines(state.free.length + 1, m));
    const numStrays = most((state) => strays(state).length);
    const stray = numStrays ? y + HEAD : void 0;
    if (numStrays) y += HEAD + lines(numStrays, m);
    const tiers = (story.data.tiers ?? []).map((tier) => {
      const top = y + HEAD;
      const room = Math.max(
        tier.capacity ?? 0,
        most((state) => (state.tiers[tier.id] ?? []).length)
      );
      y = top + Math.max(1, Math.ceil(room / m.columns)) * SHELF;
      return { ...tier, y: top };
    });
    const memory = y + HEAD;
    const small = m.dense ? 8 : 24;
    const perLine = Math.max(1, Math.floor(m.width / (small + 2)));
    const height = memory + Math.ceil(story.numBlocks / perLine) * (small + 2) + 4;
    return { tables, free, stray, tiers, memory, small, perLine, height };
  }
  function places(story, state, m, z) {
    const cards = /* @__PURE__ */ new Map();
    const ghosts = [];
    const nulls = [];
    const holes = [];
    const rows = [];
    const heads = [];
    let y = z.tables;
    for (const band of bands(story, state, m)) {
      if (band.head) heads.push({ x: 0, y: (y += 18) - 6, text: story.data.groups?.[band.group] ?? `${band.group}` });
      band.rows.forEach(({ request, group, table }, line) => {
        rows.push({ key: `${request} ${group} ${band.from}`, request, group, y, first: band.from === 0 });
        table.slice(band.from, band.from + m.columns).forEach((id, i) => {
          const x = m.label + i * m.px, card = cards.get(id);
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
    const row = (list, top) => list.forEach((id, i) => {
      const at = { x: m.label + i % m.columns * m.px, y: top + Math.floor(i / m.columns) * m.py, h: m.h };
      if (cards.has(id)) ghosts.push({ id, ...at });
      else cards.set(id, at);
    });
    row(state.free, z.free);
    row(strays(state), z.stray ?? 0);
    const end = state.free.length, full = end > 0 && end % m.columns === 0;
    const last = {
      x: m.label + (full ? end - 1 : end) % m.columns * m.px + 2,
      y: z.free + Math.floor(end / m.columns) * m.py + (full ? 10 : m.h / 2 + 4)
    };
    return { cards, ghosts, nulls, holes, rows, heads, last };
  }
  var Picture = class {
    #state;
    #selected = null;
    #kinds = /* @__PURE__ */ new Map();
    #cards = /* @__PURE__ */ new Map();
    #rows = /* @__PURE__ */ new Map();
    #cells = [];
    #shelves = /* @__PURE__ */ new Map();
    #memory = 0;
    #gestures = null;
    #beat = null;
    gliding = false;
    pace = 1;
    backLayer = draw("g");
    rowsLayer = draw("g");
    extraLayer = draw("g");
    cardsLayer = draw("g");
    signsLayer = draw("g");
    memoryLayer = draw("g", { class: "memory" });
    constructor(t, story, fig) {
      this.t = t;
      this.story = story;
      this.fig = fig;
      this.#state = story.states[0];
      const layers = [this.backLayer, this.rowsLayer, this.extraLayer, this.cardsLayer, this.signsLayer, this.memoryLayer];
      this.svg = draw("svg", { role: "none" }, draw("defs", {}, hatch()), ...layers);
      this.element = make("div", { class: "pic", role: "listbox", tabindex: 0, "aria-label": t.blocks }, this.svg);
      this.m = metrics(story, 720);
      this.z = zones(story, this.m);
    }
    layout(width) {
      const before = this.m;
      const m = this.m = metrics(this.story, Math.min(width, 960));
      this.z = zones(this.story, m);
      if (m.dense) this.#memory = Math.max(...this.story.states.map((state) => zones(this.story, m, [state]).memory));
      const height = this.fig.classList.contains("film") ? this.z.memory - HEAD : this.z.height;
      this.svg.setAttribute("height", String(height + (m.dense ? this.#memory - this.z.memory : 0)));
      this.fig.classList.toggle("narrow", width < 480);
      this.fig.classList.toggle("dense", m.dense);
      this.#backdrop();
      if (before.w === m.w && before.h === m.h) return;
      for (const { g } of this.#cards.values()) g.remove();
      for (const g of [...this.#rows.values(), ...this.#shelves.values()]) g.remove();
      for (const map of [this.#cards, this.#rows, this.#shelves]) map.clear();
    }
    #backdrop() {
      const { t, m, z, story, backLayer, memoryLayer } = this;
      const head = (y, text) => draw("text", { class: "h", x: 0, y: y - 13, "aria-hidden": "true" }, text);
      const parts2 = [head(z.tables, t.tables), head(z.free, t.free)];
      memoryLayer.replaceChildren(head(z.memory, t.memory));
      if (z.stray) parts2.push(head(z.stray, t.stray));
      parts2.push(
        draw("text", { class: "s", x: 0, y: z.free + m.h / 2 + 4, "aria-hidden": "true" }, t.next),
        draw("path", { d: `M${m.label - 10} ${z.free + m.h / 2 - 4}l6 4l-6 4z`, fill: "currentColor" })
      );
      backLayer.replaceChildren(...parts2);
      this.#cells = m.dense ? [] : story.states[0].ref.map((_, id) => {
        const [x, y] = cellAt(z, id), rect = draw("rect", { x, y, width: z.small, height: z.small, rx: 2 });
        const number = draw("text", { x: x + z.small / 2, y: y + 16 }, `${id}`);
        return { g: draw("g", { "data-id": id, "aria-hidden": "true" }, rect, number), look: "" };
      });
      memoryLayer.append(...this.#cells.map((cell) => cell.g));
    }
    show(state, before, selected, animate, beat) {
      this.#state = state;
      this.#selected = selected;
      this.#kinds = /* @__PURE__ */ new Map();
      for (const { kind, id } of state.events) this.#kinds.set(id, [...this.#kinds.get(id) ?? [], kind]);
      if (this.m.dense) {
        this.z = { ...zones(this.story, this.m, [state]), memory: this.#memory };
        this.#backdrop();
      }
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
    get still() {
      return this.m.dense || matchMedia("(prefers-reduced-motion:reduce)").matches;
    }
    #perform({ kind, ids: ids2, request, copies }, at, gestures) {
      const card = (id) => {
        const found = this.#cards.get(id);
        return found && found.x !== void 0 ? (
          found
        ) : void 0;
      };
      if (kind === "lookup") {
        const holes = at.holes.filter((hole) => hole.request === request);
        gestures.probe(
          holes.slice(0, ids2.length + 1),
          ids2.flatMap((id) => card(id) ?? [])
        );
      }
      for (const id of kind === "revived" ? ids2 : []) gestures.halo(card(id));
      for (const [id, old] of copies) gestures.copy(card(old), card(id));
    }
    #showRows(at) {
      const { m, z, rowsLayer, extraLayer, t } = this;
      const state = this.#state, rows = this.#rows;
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
            draw("text", { class: "s", x: 4, y: m.h / 2 + 15 })
          );
          rows.set(row.key, g);
          rowsLayer.append(g);
        }
        g.children[0].setAttribute("width", String(m.width));
        const tokens = state.scheduled[row.request];
        g.children[2].textContent = tokens !== void 0 && row.first && row.group === 0 && !m.dense ? `+${tokens}` : "";
        move(g, 0, row.y);
      }
      const extra = at.heads.map((head) => draw("text", { class: "s", x: head.x, y: head.y }, head.text));
      for (const { x, y } of at.nulls) extra.push(draw("rect", { class: "nul", x, y, width: m.w, height: m.h, rx: 4 }));
      for (const { id, x, y } of at.ghosts) {
        extra.push(
          draw(
            "g",
            { class: "ghost", "data-id": id },
            draw("rect", { x, y, width: m.w, height: m.h, rx: 5 }),
            draw("text", { x: x + 5, y: y + 16 }, m.dense ? "" : `${id}`)
          )
        );
      }
      if (!at.rows.length) extra.push(draw("text", { class: "s", x: m.label, y: z.tables + 14 }, t.noTables));
      const end = state.free.length ? t.end : t.empty;
      extra.push(draw("text", { class: "s", ...at.last }, end));
      for (const element of extra) element.setAttribute("aria-hidden", "true");
      extraLayer.replaceChildren(...extra);
    }
    #newCard(id) {
      const { m, cardsLayer } = this, [w, h] = [m.w, m.h];
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
      const tag = draw("rect", { class: "tag", x: 3, width: w - 6, height: 15, rx: 4 });
      const ref = draw("text", { class: "ref", x: w - 5, y: m.under ? 29 : 16 });
      const tagText = draw("text", { class: "tagtext", x: w / 2 });
      const number = draw("text", { class: "id", x: 9, y: 17 }, `${id}`);
      const g = draw("g", names, base, level, hue, text, tag, number, " ", ref, " ", tagText);
      cardsLayer.append(g);
      return { g, look: "", inside: { base, level, tag, ref, tagText, text, hue, ring: null, name: "" } };
    }
    #showCards(at) {
      const { m, t, story, signsLayer } = this;
      const state = this.#state, cards = this.#cards;
      const above = [];
      for (const [id, card] of cards)
        if (!at.cards.has(id)) {
          card.g.remove();
          cards.delete(id);
        }
      for (const [id, place] of at.cards) {
        const card = cards.get(id) ?? this.#newCard(id);
        cards.set(id, card);
        const ref = state.ref[id], name = state.name[id], kinds = inLife(this.#kinds.get(id) ?? []);
        const tokens = ref > 0 ? tokensIn(story, state, id) : 0;
        this.#put(card, place, kinds);
        if (!m.dense) above.push(...signsAbove(kinds, place.x + m.w / 2, place.y - 9, this.#beat?.ids.includes(id) === false));
        const words2 = state.words[id], hue = state.hue[id];
        const look = [place.h, ref, name, kinds, tokens, state.used[id], id === this.#selected, hue, words2].join();
        if (look === card.look) continue;
        card.look = look;
        const filling = tokens < story.blockSize ? "filling" : "";
        card.g.setAttribute(
          "class",
          [
            "card",
            ref > 0 ? `held ${filling}` : "",
            state.used[id] ? "" : "never",
            id === this.#selected ? "sel" : ""
          ].join(" ")
        );
        const seen = [id, ref ? `×${ref}` : "", name.slice(0, 4)].filter(Boolean).join(" ");
        const what = [stateWords(t, story, state, id), ...kinds.map((kind) => t.kinds[kind]), words2.join(" ")].filter(Boolean).join(", ");
        card.g.setAttribute("aria-label", `${fill(t.block, seen)}: ${what}`);
        card.g.setAttribute("aria-selected", String(id === this.#selected));
        if (card.inside) this.#showInside(card, card.inside, place, { ref, name, kinds, tokens, words: words2, hue });
        else card.g.setAttribute("height", String(place.h));
      }
      signsLayer.replaceChildren(...m.dense ? this.#shapes(at) : above);
    }
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
      if (oldX === void 0 || oldY === void 0 || !kinds.length || !this.gliding) return;
      const from = `translate(${oldX - x}px,${oldY - y}px)`, evicted = kinds.includes("evicted");
      card.g.animate([{ transform: from, stroke: evicted ? "var(--new)" : "" }, { transform: from }, { transform: "none" }], {
        duration: 700 * this.pace,
        easing: "ease-in-out"
      });
    }
    #showInside(card, inside, place, { ref, name, kinds, tokens, words: words2, hue }) {
      const { m, story } = this, out = 1.5;
      inside.base.style.height = `${place.h}px`;
      inside.level.style.height = `${place.h - 3}px`;
      const share = name ? 1 : tokens / Math.max(1, story.blockSize);
      inside.level.style.width = `${(m.w - 3) * share}px`;
      inside.tag.style.setProperty("y", `${place.h - 18}px`);
      inside.tag.style.display = name ? "" : "none";
      inside.ref.textContent = ref ? `×${ref}` : "";
      inside.tagText.textContent = name.slice(0, 4);
      move(inside.tagText, 0, place.h - 6);
      inside.hue.setAttribute("class", hue ? `hue hue${(hue - 1) % 6}` : "hue none");
      inside.hue.setAttribute("d", `M4.5 4V${place.h - 4}`);
      if (m.words) this.#write(inside.text, words2);
      const lost = inside.name !== name ? inside.name : "";
      card.g.style.transitionDelay = lost && this.#gestures ? `${0.3 * this.pace}s` : "";
      if (lost) this.#gestures?.fall(card.g, lost, place.h);
      if (name && inside.name !== name) this.#gestures?.stamp(inside.tag, inside.tagText);
      inside.name = name;
      inside.ring?.remove();
      inside.ring = null;
      if (!kinds.length) return;
      inside.ring = draw("rect", {
        class: "ring",
        x: -out,
        y: -out,
        width: m.w + 2 * out,
        height: place.h + 2 * out,
        rx: 6
      });
      card.g.append(inside.ring);
    }
    #write(text, words2) {
      const half = Math.ceil(words2.length / 2);
      const lines2 = [words2.slice(0, half), words2.slice(half)].map((line) => line.join(" "));
      const room = Math.floor((this.m.w - 10) / 6);
      text.replaceChildren(
        ...lines2.map((line, i) => draw("tspan", { x: 9, y: 31 + 13 * i }, short(line, room)))
      );
    }
    #shapes(at) {
      const { w } = this.m;
      let tags = "", rings = "";
      for (const [id, { x, y, h }] of at.cards) {
        if (this.#state.name[id]) tags += `M${x + 3} ${y + h - 5}h${w - 6}v3h-${w - 6}z`;
        if (this.#kinds.has(id)) rings += `M${x} ${y}h${w}v${h}h-${w}z`;
      }
      return [draw("path", { class: "tag through", d: tags }), draw("path", { class: "ring through", d: rings })];
    }
    #showCells() {
      const { m, z, memoryLayer } = this, state = this.#state;
      const shapes = /* @__PURE__ */ new Map();
      state.ref.forEach((ref, id) => {
        const kind = id === 0 ? "null" : `${ref > 0 ? "held" : ""} ${state.used[id] ? "" : "never"} ${state.name[id] ? "named" : ""}`;
        const look = `cell ${kind} ${this.#kinds.has(id) ? "chg" : ""} ${id === this.#selected ? "sel" : ""}`;
        const cell = this.#cells[id];
        if (m.dense) {
          const [x, y] = cellAt(z, id);
          shapes.set(look, `${shapes.get(look) ?? ""}M${x} ${y}h${z.small}v${z.small}h-${z.small}z`);
        } else if (look !== cell.look) cell.g.setAttribute("class", cell.look = look);
      });
      if (m.dense)
        memoryLayer.replaceChildren(...[...memoryLayer.children].slice(0, 1), ...[...shapes].map(([look, d]) => draw("g", { class: look }, draw("path", { d }))));
    }
    #showTiers(before) {
      const { m, z, backLayer, cardsLayer, t } = this;
      const state = this.#state, shelves = this.#shelves;
      backLayer.querySelectorAll(".tierhead").forEach((element) => element.remove());
      const there = /* @__PURE__ */ new Set();
      for (const tier of z.tiers) {
        const names = state.tiers[tier.id] ?? [];
        const title = fill(t.tier, tier.name ?? tier.id, names.length, tier.capacity ?? names.length);
        backLayer.append(draw("text", { class: "h tierhead", x: 0, y: tier.y - 13, "aria-hidden": "true" }, title));
        for (let i = 0; i < Math.min(tier.capacity ?? 0, 96); i++) {
          backLayer.append(
            draw("rect", {
              class: "tierhead place",
              x: m.label + i % m.columns * m.px,
              y: tier.y + Math.floor(i / m.columns) * SHELF,
              width: m.w,
              height: 17,
              rx: 4
            })
          );
        }
        names.forEach((name, i) => {
          const key = `${tier.id} ${name}`, x = m.label + i % m.columns * m.px, y = tier.y + Math.floor(i / m.columns) * SHELF;
          there.add(key);
          let g = shelves.get(key);
          if (!g) {
            g = draw(
              "g",
              { class: "shelf", "aria-hidden": "true" },
              draw("rect", { width: m.w, height: m.dense ? 6 : 17, rx: 4 })
            );
            if (!m.dense) g.append(draw("text", { class: "tagtext", x: m.w / 2, y: 13 }, name.slice(0, 4)));
            const from = this.#cards.get(before.name.indexOf(name));
            if (from) move(g, from.x ?? 0, from.y ?? 0);
            shelves.set(key, g);
            cardsLayer.append(g);
            if (from) g.getBoundingClientRect();
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
    #promote(before) {
      const { fig, signsLayer } = this, state = this.#state;
      if (fig.classList.contains("still") || matchMedia("(prefers-reduced-motion:reduce)").matches) return;
      for (const { kind, id } of state.events) {
        const tier = this.z.tiers.find((one) => before.tiers[one.id]?.includes(state.name[id]));
        const g = tier && this.#shelves.get(`${tier.id} ${state.name[id]}`), card = this.#cards.get(id);
        if (kind !== "cached" || !g || !card) continue;
        const tag = (
          g.cloneNode(true)
        ), to = `translate(${card.x}px,${card.y}px)`;
        tag.setAttribute("class", "flying");
        signsLayer.append(tag);
        tag.animate([{ transform: g.style.transform }, { transform: to }, { transform: to, opacity: 0 }], {
          duration: 600,
          fill: "forwards"
        });
      }
    }
    blockAt(event) {
      const { m, z, svg } = this, at = event.target instanceof Element ? event.target.closest("[data-id]") : null;
      if (at) return Number(at.getAttribute("data-id"));
      const box = svg.getBoundingClientRect();
      const column = Math.floor((event.clientX - box.x) / (z.small + 2)), line = Math.floor((event.clientY - box.y - z.memory) / (z.small + 2));
      const id = line * z.perLine + column;
      return m.dense && line >= 0 && column < z.perLine && id < this.story.numBlocks ? id : void 0;
    }
  };

  // panels.js
  function legend(t) {
    const signs = LOUDEST.filter((kind) => kind !== "illegal").map((kind) => {
      const icon = draw("svg", { viewBox: "0 0 16 16", "aria-hidden": "true", class: "icon" }, sign(kind));
      return make("span", { style: "white-space:nowrap;margin-inline-end:1em" }, icon, ` ${t.kinds[kind]}`);
    });
    return make("ul", {}, ...t.legend.map((line) => make("li", {}, line)), make("li", {}, ...signs));
  }
  function bubbles(t, state) {
    return state.asked.map(({ request, words: words2, found }) => {
      const [old, fresh] = [words2.slice(0, found), words2.slice(found)].map((part) => part.join(" "));
      const here = state.tables.has(request) ? "" : "gone";
      return make(
        "p",
        { class: `bubble ${here}` },
        make("b", {}, request),
        " ",
        make("span", { class: "found" }, old),
        ` ${fresh} `,
        make("span", { class: "cost" }, fill(t.cost, words2.length - found, words2.length))
      );
    });
  }
  function caption(t, story, state, answer) {
    const { step, number } = state;
    const parts2 = [];
    if (answer) {
      const said = fill(answer.right ? t.yes : t.said, answer.text);
      parts2.push(make("p", { class: `note ${answer.right ? "right" : ""}` }, said));
    }
    if (number === 0) parts2.push(make("p", {}, story.data.start?.say ?? t.start));
    else {
      if (step.do) parts2.push(make("p", { class: "do" }, step.do));
      if (step.say) parts2.push(make("p", { class: "say" }, step.say));
      if (step.lines?.length)
        parts2.push(make("ul", { class: "lines" }, ...step.lines.map((line) => make("li", {}, line))));
      const text = step.invariant && story.data.invariants?.[step.invariant];
      if (text) parts2.push(make("p", { class: "inv" }, make("b", {}, step.invariant ?? ""), ` ${text}`));
    }
    const isLast = number === story.states.length - 1;
    if (isLast && story.data.ending) parts2.push(make("p", { class: "end" }, story.data.ending));
    return parts2;
  }
  function blockPanel(t, story, state, id, close) {
    const life = story.states.slice(1, state.number + 1).flatMap((one) => {
      const kinds = inLife(one.events.filter((event) => event.id === id).map((event) => event.kind));
      const told = kinds.map((kind) => t.kinds[kind]).join(", ");
      return told ? [make("li", {}, fill(t.stepN, one.number, told))] : [];
    });
    const button = make("button", { type: "button", "aria-label": t.close }, "×");
    button.addEventListener("click", close);
    return [
      make("b", {}, fill(t.block, id)),
      button,
      make("ul", {}, ...factsOf(t, story, state, id).map((fact) => make("li", {}, fact))),
      make("span", {}, `${t.bio}: ${life.length ? "" : t.unused}`),
      make("ul", {}, ...life)
    ];
  }
  function factsOf(t, story, state, id) {
    const facts = [stateWords(t, story, state, id), fill(t.ref, state.ref[id])];
    const holders = id === 0 ? [] : state.holders.get(id) ?? [];
    if (holders.length) {
      const requests = holders.map((holder) => holder.request).join(", ");
      facts.push(fill(t.by, requests));
      const tokens = tokensIn(story, state, id), first = holders[0].column * story.blockSize;
      if (tokens) facts.push(fill(t.holds, tokens > 1 ? `${first}..${first + tokens - 1}` : first, requests));
    }
    if (state.words[id].length) facts.push(`“${state.words[id].join(" ")}”`);
    const hash = state.name[id];
    if (hash) {
      facts.push(fill(t.hash, hash));
      const twins = state.name.map((other, i) => other === hash ? i : id).filter((other) => other !== id);
      if (twins.length) facts.push(fill(t.same, twins.join(" ")));
    } else if (id > 0) facts.push(t.noHash);
    const place = state.free.indexOf(id);
    if (place >= 0) facts.push(fill(t.place, place + 1, state.free.length));
    return facts;
  }
  function indexList(t, state, before) {
    const now = entries(state), old = entries(before);
    const item = (hash, ids2, look) => make("li", { class: look }, make("code", {}, hash), ` ${ids2.join(" ")}`);
    const items = [];
    for (const [hash, ids2] of old) if (!now.has(hash)) items.push(item(hash, ids2, "gone"));
    for (const [hash, ids2] of now)
      items.push(item(hash, ids2, (old.get(hash) ?? []).join() === ids2.join() ? "" : "chg"));
    items.sort((a, b) => Number(b.className !== "") - Number(a.className !== ""));
    const most = 48, rest = items.length - most;
    if (rest > 0) items.splice(most, rest, make("li", {}, fill(t.more, rest)));
    if (!items.length) items.push(make("li", {}, t.notCached));
    return make("ul", {}, ...items);
  }
  function entries(state) {
    const map = /* @__PURE__ */ new Map();
    state.name.forEach((hash, id) => hash && map.set(hash, [...map.get(hash) ?? [], id]));
    return map;
  }
  function waitingList(t, state) {
    const items = state.waiting.map((one) => {
      const [name, how] = Array.isArray(one) ? one : [one, ""];
      const said = how === "preempted" ? ` (${t.preempted})` : how ? ` (${how})` : "";
      return make("li", { class: how }, name + said);
    });
    return [
      make("span", { class: "do" }, t.waiting),
      make("ul", {}, ...items.length ? items : [make("li", {}, t.none)])
    ];
  }

  // questions.js
  var Questions = class {
    answers = /* @__PURE__ */ new Map();
    asking = false;
    #tried = /* @__PURE__ */ new Set();
    open(number, step) {
      if (this.asking || !step.predict || this.answers.has(number)) return false;
      this.asking = true;
      this.#tried.clear();
      return true;
    }
    skip(number) {
      if (this.asking && !this.answers.has(number)) this.answers.set(number, null);
    }
    answer(number, { choices, answer }, i) {
      if (!choices[i] || this.#tried.has(i)) return null;
      const right = i === answer;
      if (!this.answers.has(number)) this.answers.set(number, { text: choices[i].text, right });
      if (!right) this.#tried.add(i);
      return right;
    }
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
      if (last !== void 0) {
        const { text, if_true: ifTrue } = choices[last];
        reply.append(make("p", {}, make("b", {}, fill(t.wrong, text)), ` ${ifTrue ?? "…"}`));
      }
      box.replaceChildren(
        make("p", { class: "note" }, t.predict),
        make("div", { class: "choices" }, ...buttons),
        reply,
        on
      );
    }
  };

  // style.js
  var STYLE = `
:host{display:block;margin:1em 0;color:var(--md-default-fg-color,var(--jp-content-font-color1,inherit))}
:host([hidden]){display:none}
*{box-sizing:border-box}
.fig{--held:#cde4f6;--line:#0072b2;--card:#fff;--ink:#111;--soft:#6a6a6a;--rule:#0000000f;--tag:#e69f00;--new:#b64500;
 --ok:#00694c;--btn:#f2f2f2;
 font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif;text-align:start;max-width:960px}
.fig.dark{--held:#0d4f7c;--line:#6cc1f2;--card:#1f1f1f;--ink:#f4f4f4;--soft:#a9a9a9;--rule:#ffffff14;
 --new:#ffa25c;--ok:#3fd6a8;
 --btn:#333}
.title{font-weight:650;margin:0 0 .4em}
.pic{touch-action:pan-y;outline-offset:3px;border-radius:4px;user-select:none;-webkit-user-select:none}
.pic:focus-visible,button:focus-visible,input:focus-visible,summary:focus-visible{outline:3px solid var(--line)}
svg{display:block;width:100%;overflow:visible}
svg text{fill:var(--ink);font-size:12px}
svg .h{font-size:12px;fill:currentColor;opacity:.8;font-weight:600}
svg .l{fill:currentColor;font-size:14px;font-weight:650}
svg .s{fill:currentColor;font-size:11px}
.rowbg{fill:var(--rule)}
.card,.row,.shelf{transition:transform calc(.35s*var(--pace,1)) ease-in-out,opacity .3s}
.card{cursor:pointer}
.card rect{transition:height .3s ease-in-out,y .3s ease-in-out,opacity calc(.45s*var(--pace,1))}
.card .lvl{opacity:0;transition:height .3s ease-in-out,width calc(.3s*var(--pace,1)) calc(.15s*var(--pace,1)),
 opacity calc(.3s*var(--pace,1))}
.card.held .lvl{opacity:1}
.hue{fill:none;stroke-width:4}
.hue.none{stroke:none}
.hue0{stroke:#009e73}
.hue1{stroke:#cc79a7;stroke-dasharray:7 3}
.hue2{stroke:#7b5bb5;stroke-dasharray:2.5 3}
.hue3{stroke:#8c6239;stroke-dasharray:12 3 2 3}
.hue4{stroke:#56b4e9;stroke-dasharray:4 4}
.hue5{stroke:#767676;stroke-dasharray:9 2 3 2}
svg .words{font-size:11px}
.card:not(.held) .words{opacity:.62}
.halo,.hit,.hole,.miss,.copying,.falling{pointer-events:none}
.halo{fill:none;stroke:var(--ok);stroke-width:4;transform-box:fill-box;transform-origin:center}
.falling{transform-box:fill-box;transform-origin:center}
.hit{fill:none;stroke:var(--ok);stroke-width:3}
.hole{fill:none;stroke:var(--soft);stroke-width:1.2;stroke-dasharray:3 3}
.miss{fill:none;stroke:var(--new);stroke-width:3;stroke-linecap:round}
.copying{fill:var(--held);stroke:var(--line);stroke-dasharray:4 3;opacity:.8}
.pic .sign{animation:late .2s .25s both;pointer-events:none}
.pic .sign.old{animation:none}
@keyframes late{from{opacity:0}}
.still *{transition:none!important;animation:none!important}
@media (prefers-reduced-motion:reduce){.fig *{transition:none!important;animation:none!important}}
.base{fill:var(--card);stroke:var(--soft);stroke-width:1.2}
.never .base{stroke-dasharray:3 3}
.held .base{stroke:var(--line);stroke-width:2}
rect.card{fill:var(--card);stroke:var(--soft)}
rect.card.never{stroke-dasharray:2 2}
rect.card.held{fill:var(--held);stroke:var(--line);stroke-width:1.5}
rect.card.filling{fill:var(--card)}
rect.card.sel{stroke:currentColor;stroke-width:3}
.through{pointer-events:none}
.dense .ring{stroke-width:2}
.lvl{fill:var(--held)}
.tag{fill:var(--tag)}
svg .tagtext{font:600 11px ui-monospace,Menlo,Consolas,monospace;text-anchor:middle;
 fill:#111;transition:transform .3s ease-in-out}
svg .id{font-size:14px;font-weight:700}
svg .ref{font-size:12px;text-anchor:end}
.ring{fill:none;stroke:var(--new);stroke-width:2.5}
.sign circle{fill:var(--new)}
.sign path{fill:none;stroke:var(--card);stroke-width:1.8;stroke-linecap:round;stroke-linejoin:round}
.icon{display:inline;width:16px;height:16px;vertical-align:-3px}
.sel>.base{stroke:currentColor;stroke-width:3.5}
.cell{cursor:pointer}
.cell>:first-child{stroke:var(--soft);stroke-width:1;fill:var(--card)}
svg .cell text{font-size:11px;text-anchor:middle}
.cell.named>:first-child{fill:var(--tag)}
svg .cell.named text{fill:#111}
.cell.held>:first-child{fill:var(--held);stroke:var(--line)}
svg .cell.held text{fill:var(--ink)}
.cell.never>:first-child{stroke-dasharray:2 2}
.cell.null>:first-child{fill:url(#hatch)}
.cell.chg>:first-child{stroke:var(--new);stroke-width:2}
.cell.sel>:first-child{stroke:currentColor;stroke-width:3}
.nul{fill:url(#hatch);stroke:var(--soft);stroke-dasharray:2 2}
.ghost rect{fill:none;stroke:var(--line);stroke-width:1.5;stroke-dasharray:5 3}
.shelf rect,.flying rect{fill:var(--tag)}
.place{fill:none;stroke:var(--soft);stroke-dasharray:3 3}
.bubbles{display:flex;gap:8px;flex-wrap:wrap;min-height:4.4em}
.bubble{flex:1 1 240px;margin:0;padding:.4em .7em;border:1px solid var(--soft);border-radius:12px 12px 12px 2px;font-size:14px;
 line-height:1.4;background:var(--card);color:var(--ink)}
.bubble:nth-child(2){border-radius:12px 12px 2px 12px}
.bubble.gone{opacity:.55}
.found{text-decoration:underline 2px var(--ok);text-underline-offset:3px}
.cost{font-weight:700;white-space:nowrap}
.bubbles[hidden],.film .bar,.film .within,.film .cap,.film .index,.film .how,.film .text,.film .panel,.film .title,.film .memory,
 .roll[hidden]{display:none}
.roll{display:flex;flex-wrap:wrap;align-items:center;gap:8px;margin:.6em 0;min-height:52px}
.line{flex:1 1 24em;min-height:1.5em;margin:0;font-size:17px;font-weight:600}
.take{background:var(--line);border-color:var(--line);color:var(--card);font-weight:600}
.within{display:flex;align-items:center;gap:8px;font-size:14px;min-height:40px;margin:-.2em 0 .2em}
.within input{flex:0 1 180px;min-width:80px;accent-color:var(--new)}
.within output{flex:1;min-width:0}
.within[hidden]{display:none}
.bar{display:flex;flex-wrap:wrap;align-items:center;gap:4px;margin:.6em 0}
button{font:inherit;color:inherit;background:var(--btn);border:1px solid var(--soft);border-radius:6px;cursor:pointer;
 min-height:40px;min-width:40px;padding:4px 8px}
button:hover{border-color:var(--line)}
button[aria-disabled=true]{opacity:.45;cursor:default}
.bar button svg{width:22px;height:22px;fill:currentColor;margin:auto}
.bar input{flex:1 1 110px;min-width:90px;height:32px;accent-color:var(--line);margin:0 4px}
.count{font-variant-numeric:tabular-nums;min-width:6.5em}
.cap{min-height:6em}
.asking .cap{min-height:0;font-weight:600}
.cap p,.ask p{margin:.2em 0 .5em}
.do{font-weight:650}
.lines{margin:.2em 0 .5em;padding:0;list-style:none;
 font:13px/1.5 ui-monospace,Menlo,Consolas,monospace;overflow-wrap:anywhere}
.inv{border-inline-start:3px solid var(--line);padding-inline-start:.6em;font-size:14px}
.note{font-weight:600}
.end{white-space:pre-wrap}
.note.right{color:var(--ok)}
.ask{border:2px solid var(--line);border-radius:8px;padding:.6em .8em;margin:.4em 0}
.ask[hidden],.panel[hidden],.wait[hidden]{display:none}
.choices{display:flex;flex-wrap:wrap;gap:6px;margin:.4em 0}
.choices .no{text-decoration:line-through}
.panel{border:1px solid var(--soft);border-radius:8px;padding:.5em .8em;margin:.5em 0;position:relative}
.panel ul,.how ul{margin:.2em 0;padding-inline-start:1.2em}
.panel button{position:absolute;top:4px;inset-inline-end:4px}
.index ul,.wait ul{display:flex;flex-wrap:wrap;gap:4px 6px;list-style:none;margin:.3em 0;padding:0}
.index li,.wait li{border:1px solid var(--soft);border-radius:5px;padding:0 6px;font-size:13px;
 font-variant-numeric:tabular-nums}
.index code{font:600 12px ui-monospace,Menlo,Consolas,monospace;background:var(--tag);color:#111;
 border-radius:3px;padding:1px 4px}
.index li.chg{border:2px solid var(--new);padding:0 5px}
.index li.gone{border:2px dashed var(--new);text-decoration:line-through}
.wait li.preempted{border:2px dashed var(--new)}
summary{cursor:pointer;font-size:14px;padding:.25em 0}
pre{overflow-x:auto;font:13px/1.4 ui-monospace,Menlo,Consolas,monospace;margin:.3em 0}
.error{border:2px solid var(--new);border-radius:6px;padding:.6em .8em}
@media print{.bar,.within,.ask,details:not([open]){display:none}}
.narrow .bar input{flex-basis:100%;order:1}`;

  // player.js
  var ICONS = {
    first: "M6 5h2v14H6zM20 5v14l-10-7z",
    back: "M17 5v14L7 12z",
    play: "M7 4v16l13-8z",
    pause: "M6 5h4v14H6zM14 5h4v14h-4z",
    forward: "M7 5v14l10-7z",
    last: "M16 5h2v14h-2zM4 5v14l10-7z"
  };
  var BEAT = { lookup: 500, evicted: 600, uncached: 600, revived: 750, shared: 500, cached: 380, illegal: 800 };
  var OTHER_BEAT = 450;
  var STEP = 6500;
  var SPEEDS = [1, 0.25, 4];
  function times(beats) {
    const each = beats.map(({ kind, ids: ids2 }) => (BEAT[kind] ?? OTHER_BEAT) + (kind === "lookup" ? STRIDE * ids2.length : 0));
    const shorter = Math.min(1, STEP / each.reduce((sum, ms) => sum + ms, 1));
    return each.map((ms) => ms * shorter);
  }
  var kept = /* @__PURE__ */ new Map();
  function makeFilm(t) {
    const line = make("p", { class: "line" });
    const pause = make("button", { type: "button" }, t.pause);
    const take2 = make("button", { type: "button", class: "take" }, t.film);
    return { roll: make("div", { class: "roll" }, line, take2, pause), line, pause, take: take2 };
  }
  function makeParts(t, story) {
    const button = (name) => {
      const icon = draw("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" }, draw("path", { d: ICONS[name] }));
      return make("button", { type: "button", "aria-label": t[name], title: t[name] }, icon);
    };
    const fig = make("div", { class: "fig", role: "group", "aria-label": fill(t.figure, story.title) });
    const picture = new Picture(t, story, fig);
    const buttons = {
      first: button("first"),
      back: button("back"),
      play: button("play"),
      forward: button("forward"),
      last: button("last")
    };
    const range = make("input", { type: "range", min: 0, step: 1, "aria-label": t.steps });
    const count = make("span", { class: "count" });
    const bar = make("div", { class: "bar" }, ...Object.values(buttons), range, count);
    const beats = make("input", { type: "range", min: 0, step: 1, "aria-label": t.within });
    const beat = make("output");
    const speed = make("button", { type: "button", title: t.speed });
    const within = make("div", { class: "within" }, speed, beats, beat);
    const cap = make("div", { class: "cap", "aria-live": "polite" });
    const ask = make("div", { class: "ask", role: "group", "aria-label": t.predict });
    const panel = make("div", { class: "panel" });
    const wait = make("div", { class: "wait" });
    const index = make("div");
    const indexBox = make("details", { class: "index", open: "" }, make("summary", {}, t.index), index);
    const how = make("details", { class: "how" }, make("summary", {}, t.how), legend(t));
    const pre = make("pre", { tabindex: 0 });
    const textBox = make("details", { class: "text" }, make("summary", {}, t.text), pre);
    const title = make("div", { class: "title" }, story.title);
    const prompts = make("div", { class: "bubbles" });
    const film = makeFilm(t);
    fig.append(title, prompts, film.roll, wait, picture.element, bar, within, cap, ask, panel, indexBox, how, textBox);
    const inStep = { within, beats, beat, speed };
    return { t, fig, picture, buttons, range, count, prompts, film, ...inStep, cap, ask, panel, wait, index, indexBox, pre, textBox };
  }
  var KvStory = class _KvStory extends HTMLElement {
    #root = this.attachShadow({ mode: "open" });
    #story = null;
    #made = null;
    #at = 0;
    #questions = new Questions();
    #selected = null;
    #timer = 0;
    #beats = [];
    #beatTimer = 0;
    #speed = SPEEDS[0];
    #width = 0;
    #told = [];
    #cleanup = [];
    #source = null;
    // -- Life --
    connectedCallback() {
      if (Object.hasOwn(this, "data")) {
        const { data } = this;
        Reflect.deleteProperty(this, "data");
        this.data = data;
      }
      const resized = new ResizeObserver(() => this.#resized());
      resized.observe(this);
      const child = new MutationObserver(() => this.#readChild());
      child.observe(this, { childList: true, subtree: true, characterData: true });
      const theme = new MutationObserver(() => {
        this.#theme();
        setTimeout(() => this.#theme(), 400);
      });
      for (const element of [document.documentElement, document.body]) {
        if (element)
          theme.observe(element, {
            attributes: true,
            attributeFilter: ["class", "style", "data-md-color-scheme", "data-jp-theme-light", "data-theme"]
          });
      }
      const dark = matchMedia("(prefers-color-scheme: dark)"), themed = () => this.#theme();
      dark.addEventListener("change", themed);
      this.#cleanup.push(() => dark.removeEventListener("change", themed));
      for (const observer of [resized, child, theme]) this.#cleanup.push(() => observer.disconnect());
      if (this.#story) this.#open();
      else this.#readChild();
    }
    disconnectedCallback() {
      this.pause();
      clearTimeout(this.#beatTimer);
      for (const undo of this.#cleanup.splice(0)) undo();
    }
    get data() {
      return this.#story?.data ?? null;
    }
    set data(data) {
      let story;
      try {
        story = decode(data);
      } catch (error) {
        this.#fail(error);
        return;
      }
      const before = kept.get(data.key);
      if (!this.#story && this.isConnected && before) this.#goOn(before);
      const old = this.#story;
      this.#story = story;
      const end = story.states.length - 1;
      const same = old !== null && old.title === story.title && old.numBlocks === story.numBlocks;
      let at = data.at ?? 0;
      if (!same) {
        this.#questions.answers.clear();
        this.#selected = null;
      } else if (data.at === void 0) at = this.#at === old.states.length - 1 ? end : this.#at;
      this.#at = Math.max(0, Math.min(end, at < 0 ? end + 1 + at : at));
      this.#questions.asking = false;
      if (this.isConnected) this.#open(same);
    }
    #goOn({ story, at, answers }) {
      [this.#story, this.#at, this.#questions.answers] = [story, at, answers];
      this.#open();
      this.#parts.picture.svg.getBoundingClientRect();
    }
    get step() {
      return this.#at;
    }
    set step(number) {
      this.#go(number);
    }
    #readChild() {
      const text = this.querySelector('script[type="application/json"]')?.textContent ?? "";
      if (!text.trim() || text === this.#source) return;
      try {
        const data = JSON.parse(text);
        this.#source = text;
        this.data = data;
      } catch (error) {
        if (document.readyState !== "loading") this.#fail(error);
        else document.addEventListener("DOMContentLoaded", () => this.#readChild(), { once: true });
      }
    }
    #fail(error) {
      this.pause();
      this.#story = this.#made = null;
      const t = this.#words();
      const why = error instanceof StoryError ? fill(t[error.word], ...error.values) : String(error.message ?? error);
      const box = make("div", { class: "fig" }, make("p", { class: "error", role: "alert" }, fill(t.wentWrong, why)));
      this.#root.replaceChildren(make("style", {}, STYLE), box);
    }
    get #parts() {
      if (!this.#made) throw new Error("the figure is not open");
      return this.#made;
    }
    get #opened() {
      if (!this.#story) throw new Error("the figure has no story");
      return this.#story;
    }
    #words() {
      const lang = this.#story?.data.lang ?? this.closest("[lang]")?.getAttribute("lang") ?? "en";
      return WORDS[String(lang).slice(0, 2)] ?? WORDS.en;
    }
    #theme() {
      if (!this.#made) return;
      const of = (name) => document.body?.getAttribute(name) ?? document.documentElement.getAttribute(name);
      const md = of("data-md-color-scheme"), jp = of("data-jp-theme-light");
      const [r, g, b] = (getComputedStyle(this).color.match(/[\d.]+/g) ?? [0, 0, 0]).map(Number);
      const dark = md ? md === "slate" : jp ? jp === "false" : 0.299 * r + 0.587 * g + 0.114 * b > 140;
      this.#made.fig.classList.toggle("dark", dark);
    }
    #resized() {
      const width = Math.round(this.clientWidth);
      if (!this.#made || !width || width === this.#width) return;
      this.#layout();
      this.#show(false);
    }
    #layout() {
      this.#width = Math.round(this.clientWidth) || 720;
      this.#parts.picture.layout(this.#width);
    }
    // -- The parts: made once for a story --
    #open(keep = false) {
      const story = this.#opened;
      if (!keep || !this.#made) this.#build();
      this.#parts.picture.story = story;
      this.#parts.range.max = String(story.states.length - 1);
      this.#layout();
      this.#show(keep);
      this.#announce();
      if (!keep) this.#startFilm();
    }
    #build() {
      const p = this.#made = makeParts(this.#words(), this.#opened);
      this.#told = [];
      const acts = {
        first: () => this.#go(0),
        back: () => this.#go(this.#at - 1),
        play: () => this.#toggle(),
        forward: () => this.#forward(),
        last: () => this.#go(Infinity)
      };
      for (
        const name of
        Object.keys(acts)
      ) {
        const button = p.buttons[name];
        button.addEventListener("click", () => button.getAttribute("aria-disabled") === "true" || acts[name]());
      }
      p.range.addEventListener("input", () => this.#go(+p.range.value));
      p.beats.addEventListener("input", () => this.#scrub(+p.beats.value));
      p.speed.addEventListener("click", () => this.#setSpeed(SPEEDS[(SPEEDS.indexOf(this.#speed) + 1) % SPEEDS.length]));
      this.#setSpeed(this.#speed);
      p.textBox.addEventListener("toggle", () => this.#showText());
      p.fig.addEventListener("keydown", (event) => this.#key(event));
      p.picture.element.addEventListener("click", (event) => {
        const id = p.picture.blockAt(event);
        if (id !== void 0) this.#select(id === this.#selected ? null : id);
      });
      this.#swipes(p.picture.element);
      this.#root.replaceChildren(make("style", {}, STYLE), p.fig);
      this.#theme();
      this.#width = 0;
    }
    // -- Drawing a step --
    #show(animate, performing = false) {
      const { t, picture, prompts, indexBox, index, wait, panel } = this.#parts;
      const { states, numBlocks } = this.#opened;
      const state = states[this.#at], before = states[Math.max(0, this.#at - 1)], id = this.#selected;
      clearTimeout(this.#beatTimer);
      this.#beats = picture.m.dense || state === before ? [] : beatsOf(before, state);
      if (performing && this.#beats.length && !picture.still) this.#perform(0);
      else this.#settle(animate);
      this.#showWords(state);
      this.#showAsk();
      indexBox.hidden = !states.some((one) => one.name.some(Boolean));
      index.replaceChildren(indexList(t, state, before));
      prompts.hidden = !states.some((one) => one.asked.length);
      prompts.replaceChildren(...bubbles(t, state));
      wait.hidden = !states.some((one) => one.waiting.length);
      if (!wait.hidden) wait.replaceChildren(...waitingList(t, state));
      panel.hidden = id === null || id >= numBlocks;
      if (id !== null && !panel.hidden) panel.replaceChildren(...blockPanel(t, this.#opened, state, id, () => this.#leave()));
      this.#showText();
    }
    // -- Within a step --
    get #ends() {
      const { states } = this.#opened;
      return { state: states[this.#at], before: states[Math.max(0, this.#at - 1)] };
    }
    #settle(animate) {
      const { state, before } = this.#ends;
      this.#parts.picture.show(state, before, this.#selected, animate);
      this.#showBeat(this.#beats.length);
    }
    #perform(i) {
      if (i === this.#beats.length) {
        this.#settle(true);
        return;
      }
      this.#showOne(i);
      this.#beatTimer = setTimeout(() => this.#perform(i + 1), this.#times[i] / this.#speed);
    }
    get #times() {
      return times(this.#beats);
    }
    #showOne(i) {
      const { picture, fig } = this.#parts, { before } = this.#ends, beat = this.#beats[i];
      const { kind, ids: ids2, request } = beat, usual = (BEAT[kind] ?? OTHER_BEAT) + (kind === "lookup" ? STRIDE * ids2.length : 0);
      picture.pace = this.#times[i] / usual / this.#speed;
      fig.style.setProperty("--pace", String(picture.pace));
      picture.show(beat.state, before, this.#selected, true, beat);
      this.#showBeat(i + 1);
      const detail = { step: this.#at, beat: i + 1, beats: this.#beats.length, kind, ids: ids2, request };
      this.dispatchEvent(new CustomEvent("kv-beat", { bubbles: true, composed: true, detail }));
    }
    #showBeat(number) {
      const { t, within, beats, beat } = this.#parts, now = this.#beats[number - 1];
      within.hidden = this.#beats.length === 0;
      beats.max = String(this.#beats.length);
      beats.value = String(number);
      const { kind = "", ids: ids2 = [], request = "" } = now ?? {};
      const said = kind === "lookup" ? fill(t.looks, request, ids2.length) : `${t.kinds[kind] ?? ""} ${idRuns(ids2)}`;
      beat.textContent = now ? said : "";
      beats.setAttribute("aria-valuetext", beat.textContent || "0");
    }
    #scrub(number) {
      this.pause();
      clearTimeout(this.#beatTimer);
      if (number === this.#beats.length) this.#settle(true);
      else if (number > 0) this.#showOne(number - 1);
      else {
        this.#parts.picture.show(this.#ends.before, this.#ends.before, this.#selected, true);
        this.#showBeat(0);
      }
    }
    #setSpeed(speed) {
      this.#speed = speed;
      const { speed: button, t } = this.#parts;
      button.textContent = `${speed === 0.25 ? "¼" : speed}×`;
      button.setAttribute("aria-label", `${button.textContent} ${t.speed}`);
    }
    #announce() {
      const story = this.#opened, { asking, answers } = this.#questions;
      if (story.data.key !== void 0) kept.set(story.data.key, { story, at: this.#at, answers });
      const detail = { step: this.#at, steps: story.states.length - 1, asking };
      this.dispatchEvent(new CustomEvent("kv-step", { bubbles: true, composed: true, detail }));
    }
    #showWords(state) {
      const { t, count, range, buttons, cap } = this.#parts, { asking, answers } = this.#questions, story = this.#opened, end = story.states.length - 1;
      count.textContent = fill(t.at, this.#at, end);
      range.value = String(this.#at);
      range.setAttribute("aria-valuetext", count.textContent);
      for (const button of [buttons.first, buttons.back]) button.setAttribute("aria-disabled", String(this.#at === 0));
      for (const button of [buttons.forward, buttons.last]) button.setAttribute("aria-disabled", String(this.#at === end));
      this.#showPlaying();
      const told = [state, asking, answers.get(this.#at)];
      if (told.every((one, i) => one === this.#told[i])) return;
      this.#told = told;
      const question = asking ? this.#prediction()?.ask : void 0;
      if (question === void 0) cap.replaceChildren(...caption(t, story, state, answers.get(this.#at)));
      else cap.replaceChildren(make("p", {}, question));
    }
    #showPlaying() {
      const { buttons, t } = this.#parts, name = this.#timer ? "pause" : "play";
      buttons.play.title = t[name];
      buttons.play.setAttribute("aria-label", t[name]);
      buttons.play.querySelector("path")?.setAttribute("d", ICONS[name]);
    }
    #showText() {
      const { textBox, pre } = this.#parts;
      if (textBox.open) pre.textContent = drawText(this.#opened.states[this.#at]);
    }
    // -- Prediction --
    #prediction() {
      return this.#opened.states[this.#at + 1]?.step.predict;
    }
    #showAsk() {
      const { ask, fig, t } = this.#parts, prediction = this.#prediction(), { asking } = this.#questions;
      ask.hidden = !asking;
      fig.classList.toggle("asking", asking);
      if (!asking || !prediction) return;
      this.#questions.show(
        ask,
        prediction,
        t,
        (i) => this.#answer(i),
        () => this.#forward()
      );
    }
    #answer(i) {
      const { ask, buttons } = this.#parts, prediction = this.#prediction();
      const right = prediction ? this.#questions.answer(this.#at + 1, prediction, i) : null;
      if (right) {
        const inside = ask.contains(this.#root.activeElement);
        this.#go(this.#at + 1, false, true);
        if (inside) buttons.forward.focus();
      } else if (right === false) {
        this.#showAsk();
        const choices = ask.querySelectorAll(".choices button");
        choices[i].focus();
      }
    }
    // -- A film: the story plays by itself, over and over, until the reader takes it --
    static FILM = 1e4;
    static LOOK = 450;
    #startFilm() {
      const { fig, film, picture } = this.#parts, { states } = this.#opened;
      film.roll.hidden = !this.hasAttribute("film");
      if (film.roll.hidden) return;
      fig.classList.add("film");
      film.take.addEventListener("click", () => this.#takeOver());
      film.pause.addEventListener("click", () => this.#pauseFilm(!this.#paused));
      const beats = states.slice(1).map((state, i) => times(beatsOf(states[i], state)).reduce((sum, ms) => sum + ms, 0));
      const looks = _KvStory.LOOK * states.length;
      this.#speed = beats.reduce((sum, ms) => sum + ms, 0) / Math.max(1e3, _KvStory.FILM - looks);
      this.#at = Math.min(1, states.length - 1);
      this.#pauseFilm(picture.still);
      this.#layout();
      this.#show(false);
      this.#roll();
    }
    #paused = false;
    #pauseFilm(paused) {
      const { film, t } = this.#parts;
      this.#paused = paused;
      film.pause.textContent = paused ? t.play : t.pause;
    }
    #roll() {
      const { states } = this.#opened, { film, fig } = this.#parts;
      const say = states[this.#at].step.say ?? "";
      film.line.textContent = say.slice(0, say.search(/[.:] |$/)).replace(/\.?$/, ".");
      const beats = this.#times.reduce((sum, ms) => sum + ms, 0) / this.#speed;
      const last = this.#at === states.length - 1;
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.#rollOn(), beats + _KvStory.LOOK * (last ? 4 : 1));
      fig.dataset.step = String(this.#at);
    }
    #rollOn() {
      const { states } = this.#opened, { fig } = this.#parts;
      const watched = !this.#paused && !document.hidden && !fig.matches(":hover, :focus-within");
      if (!watched || !this.isConnected) {
        this.#timer = setTimeout(() => this.#rollOn(), 250);
        return;
      }
      const next = this.#at === states.length - 1 ? 0 : this.#at + 1;
      this.#at = next;
      this.#show(true, next > 0);
      this.#roll();
    }
    #takeOver() {
      const { fig, film, buttons } = this.#parts;
      clearTimeout(this.#timer);
      this.#timer = 0;
      fig.classList.remove("film");
      film.roll.hidden = true;
      this.removeAttribute("film");
      this.#setSpeed(SPEEDS[0]);
      this.#layout();
      this.#go(1);
      buttons.forward.focus();
    }
    // -- Moving through the story --
    #forward() {
      const next = this.#story?.states[this.#at + 1];
      if (!next) return;
      if (this.#questions.open(next.number, next.step)) {
        this.pause();
        this.#show(true);
        this.#announce();
        return;
      }
      const inside = this.#questions.asking && this.#parts.ask.contains(this.#root.activeElement);
      this.#questions.skip(next.number);
      this.#go(next.number, true, true);
      if (inside) this.#parts.buttons.forward.focus();
    }
    #go(number, playing = false, performing = false) {
      if (!this.#story) return;
      if (!playing) this.pause();
      const at = Math.max(0, Math.min(this.#story.states.length - 1, number));
      const next = Math.abs(at - this.#at) <= 1;
      this.#at = at;
      this.#questions.asking = false;
      if (!this.#made) return;
      this.#show(next, performing);
      this.#announce();
    }
    play() {
      const end = this.#story ? this.#story.states.length - 1 : 0;
      if (!end) return;
      if (this.#at === end) this.#go(0);
      const tick = () => {
        this.#forward();
        if (this.#at === end) this.pause();
        else if (this.#timer) {
          const length = this.#parts.cap.textContent?.length ?? 0, beats = this.#parts.picture.still ? 0 : this.#times.reduce((sum, ms) => sum + ms, 0);
          this.#timer = setTimeout(tick, Math.max(beats + 900, 900 + Math.min(5e3, 18 * length)) / this.#speed);
        }
      };
      this.#timer = -1;
      tick();
    }
    pause() {
      const was = this.#timer !== 0;
      clearTimeout(this.#timer);
      this.#timer = 0;
      if (was && this.#made) this.#showPlaying();
    }
    #toggle() {
      if (this.#timer) this.pause();
      else this.play();
    }
    #key(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const at = event.composedPath()[0], range = at === this.#parts.range, pic = at === this.#parts.picture.element, pressable = at instanceof Element && at.closest("button,summary") !== null;
      const keys = {
        ArrowRight: [!range, () => this.#forward()],
        ArrowLeft: [!range, () => this.#go(this.#at - 1)],
        Home: [!range, () => this.#go(0)],
        End: [!range, () => this.#go(Infinity)],
        " ": [!pressable, () => this.#toggle()],
        Escape: [this.#selected !== null, () => this.#select(null)],
        ArrowUp: [pic, () => this.#choose(-1)],
        ArrowDown: [pic, () => this.#choose(1)]
      };
      if (this.#questions.asking && /^[1-9]$/.test(event.key))
        keys[event.key] = [true, () => this.#answer(+event.key - 1)];
      const [ours, act] = keys[event.key] ?? [false];
      if (!ours) return;
      act();
      event.preventDefault();
      event.stopPropagation();
    }
    #swipes(element) {
      let from = null;
      element.addEventListener(
        "touchstart",
        (event) => {
          from = event.touches.length === 1 ? event.touches[0] : null;
        },
        { passive: true }
      );
      element.addEventListener(
        "touchend",
        (event) => {
          const to = event.changedTouches[0];
          const dx = from ? to.clientX - from.clientX : 0, dy = from ? to.clientY - from.clientY : 0;
          if (Math.abs(dx) < 40 || Math.abs(dx) < 2 * Math.abs(dy)) return;
          if (dx < 0) this.#forward();
          else this.#go(this.#at - 1);
        },
        { passive: true }
      );
    }
    // -- One block, looked at --
    #choose(by) {
      const n = this.#opened.numBlocks;
      const to = (this.#selected ?? (by > 0 ? 0 : n)) + by;
      if (n > 1) this.#select(to < 1 ? n - 1 : to >= n ? 1 : to);
    }
    #select(id) {
      this.#selected = id;
      this.#show(true);
      const { element } = this.#parts.picture;
      if (id === null) element.removeAttribute("aria-activedescendant");
      else element.setAttribute("aria-activedescendant", `b${id}`);
    }
    #leave() {
      this.#select(null);
      this.#parts.picture.element.focus();
    }
  };
  customElements.define("kv-story", KvStory);
})();
