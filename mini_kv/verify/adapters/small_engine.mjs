// A KV cache with prefix caching, small: one kind of attention, vLLM's order of eviction. Block 0 is the null block.

import { createHash } from "node:crypto";

const hashOf = (parts) => createHash("sha256").update(JSON.stringify(parts)).digest("hex");

export class Cache {
  constructor(numBlocks, blockSize, caching) {
    this.blockSize = blockSize;
    this.caching = caching;
    this.refs = Array(numBlocks).fill(0);
    this.hashes = Array(numBlocks).fill(null);
    this.free = this.refs.map((_, id) => id).slice(1); // the front is taken first
    this.index = new Map(); // a hash -> the blocks that have it, the oldest first
  }

  /** Hashes of a request's full blocks: each covers all tokens before it, and what else decides their KV. */
  hashesOf({ tokens, salt, lora, images }) {
    const hashes = [];
    for (let start = 0; start + this.blockSize <= tokens.length; start += this.blockSize) {
      const end = start + this.blockSize;
      const inside = images.filter(([, offset, length]) => offset < end && start < offset + length);
      const places = inside.map(([identifier, offset]) => [identifier, offset - start]);
      hashes.push(hashOf([hashes.at(-1) ?? ["salt", salt], lora, places, tokens.slice(start, end)]));
    }
    return hashes;
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
