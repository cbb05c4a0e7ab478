// A KV cache in JavaScript, for the page and for Node: mini-kv verify --challenge -- node solution.js
// One kind of attention. Block 0 is the null block.

class Cache {
  constructor(numBlocks, blockSize, caching) {
    this.blockSize = blockSize;
    this.caching = caching;
    this.refs = Array(numBlocks).fill(0);
    this.hashes = Array(numBlocks).fill(null);
    this.free = this.refs.map((_, id) => id).slice(1); // the front is taken first
    this.index = new Map(); // a hash -> the blocks that have it, the oldest first
  }

  /** The hashes of a request's full blocks: all that decides their KV, so no hash function is needed. */
  hashesOf({ tokens, salt, lora, images }) {
    const ends = tokens.map((_, i) => i + 1).filter((end) => end % this.blockSize === 0);
    const seen = (end) => images.filter(([, offset]) => offset < end).map((image) => this.reached(image, end));
    return ends.map((end) => JSON.stringify([salt, lora, seen(end), tokens.slice(0, end)]));
  }

  /** An image up to a block's end: what it is, where it begins, and how many blocks it reaches. */
  reached([identifier, offset, length], end) {
    return [identifier, offset, Math.ceil(Math.min(offset + length, end) / this.blockSize)];
  }

  /** The cached blocks of a prompt, from its first block to the first one that is missing. Never the whole prompt. */
  lookup(request) {
    const most = Math.floor((request.tokens.length - 1) / this.blockSize);
    const hit = [];
    for (const hash of this.caching ? this.hashesOf(request).slice(0, most) : []) {
      if (!this.index.has(hash)) break;
      hit.push(this.index.get(hash)[0]);
    }
    return hit;
  }

  /** Adds the blocks for `numSlots` tokens to the table. Returns them, or null if too few are free: nothing changed. */
  allocate(request, hit, numSlots, numFull) {
    const numNew = Math.max(0, Math.ceil(numSlots / this.blockSize) - request.table.length - hit.length);
    const revived = hit.filter((id) => this.refs[id] === 0);
    if (numNew + revived.length > this.free.length) return null;
    this.free = this.free.filter((id) => !revived.includes(id)); // first, so that no new block is one of the hit
    for (const id of hit) this.refs[id] += 1;
    const blocks = this.free.splice(0, numNew);
    for (const id of blocks) {
      this.forget(id);
      this.refs[id] = 1;
    }
    request.table.push(...hit, ...blocks);
    request.cached = Math.max(request.cached, hit.length);
    if (this.caching) this.publish(request, numFull);
    return blocks;
  }

  /** Gives the full blocks their hashes. A block keeps its place in the table, even if another has the same hash. */
  publish(request, numFull) {
    const hashes = this.hashesOf(request);
    for (; request.cached < Math.min(numFull, hashes.length); request.cached += 1) {
      const [id, hash] = [request.table[request.cached], hashes[request.cached]];
      this.hashes[id] = hash;
      this.index.set(hash, [...(this.index.get(hash) ?? []), id]);
    }
  }

  /** Drops a reference of each block, the table's last block first. Blocks without a hash go to the front. */
  release(request) {
    const freed = [...request.table].reverse().filter((id) => --this.refs[id] === 0);
    const useless = freed.filter((id) => this.hashes[id] === null);
    this.free = [...useless, ...this.free, ...freed.filter((id) => this.hashes[id] !== null)];
    Object.assign(request, { table: [], cached: 0 });
  }

  /** Forgets all hashes, if no block is in use. Returns whether it did. */
  reset() {
    const idle = this.free.length === this.refs.length - 1;
    if (idle) this.refs.forEach((_, id) => this.forget(id));
    return idle;
  }

  /** Removes a block's hash. */
  forget(id) {
    const others = (this.index.get(this.hashes[id]) ?? []).filter((other) => other !== id);
    if (others.length > 0) this.index.set(this.hashes[id], others);
    else this.index.delete(this.hashes[id]);
    this.hashes[id] = null;
  }
}

let cache, requests;

const BUILT = ["caching off", "salts", "adapters", "images", "lookahead", "preempt", "evict", "reset"];

const calls = {
  start({ settings: { needs, num_blocks, block_size, enable_caching } }) {
    const missing = needs.find((need) => !BUILT.includes(need));
    if (missing) return { skip: `${missing}: not built` };
    cache = new Cache(num_blocks, block_size, enable_caching);
    requests = {};
  },
  new({ request, tokens, salt, lora, images }) {
    requests[request] = { tokens, salt, lora, images, table: [], cached: 0, hit: [] };
  },
  lookup({ request }) {
    requests[request].hit = cache.lookup(requests[request]);
    return { hit: requests[request].hit.length * cache.blockSize, blocks: [requests[request].hit] };
  },
  allocate({ request, computed, hit, hit_of, tokens, lookahead }) {
    const [known, end] = [requests[request], computed + hit + tokens];
    const numFull = Math.floor(Math.min(end, known.tokens.length) / cache.blockSize);
    const blocks = cache.allocate(known, hit_of ? known.hit : [], end + lookahead, numFull);
    return blocks ? { granted: true, blocks: [blocks] } : { granted: false };
  },
  append: ({ request, tokens }) => void requests[request].tokens.push(...tokens),
  free: ({ request }) => cache.release(requests[request]),
  preempt: ({ request }) => cache.release(requests[request]),
  evict: ({ blocks }) => blocks.forEach((id) => cache.forget(id)),
  reset: () => ({ reset: cache.reset() }),
};

/** The reply to one message of the protocol. */
function answer(message) {
  if (!(message.call in calls)) return { skip: `${message.call}: not built` };
  const result = calls[message.call](message) ?? {};
  if (result.skip) return result;
  return {
    result,
    tables: Object.fromEntries(Object.entries(requests).map(([name, { table }]) => [name, [table]])),
    refs: cache.refs,
    free: cache.free,
    hashes: cache.hashes,
    found: cache.hashes.map((hash) => cache.index.get(hash)?.[0] ?? null),
  };
}

if (typeof process !== "undefined") {
  const lines = require("node:readline").createInterface({ input: process.stdin });
  lines.on("line", (line) => console.log(JSON.stringify(answer(JSON.parse(line)))));
}
