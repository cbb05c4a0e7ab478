// The small cache behind the protocol: mini-kv verify -- node small_engine_adapter.mjs

import { createInterface } from "node:readline";

import { Cache } from "./small_engine.mjs";

let cache, requests, hits;

const calls = {
  start({ part, settings }) {
    const { groups, drafter_groups, watermark, num_hash_lookahead_tokens } = settings;
    if (part !== "manager") return { skip: `there is no ${part}` };
    if (groups.length > 1 || groups[0].kind !== "full") return { skip: "one group of full attention" };
    if (drafter_groups.length || watermark || num_hash_lookahead_tokens) return { skip: "no drafter, no watermark" };
    cache = new Cache(settings.num_blocks, settings.block_size, settings.enable_caching);
    [requests, hits] = [{}, {}];
  },
  new({ request, tokens, salt, lora, images }) {
    requests[request] = { tokens, salt, lora, images, table: [], cached: 0 };
  },
  lookup({ request }) {
    hits[request] = cache.lookup(requests[request]);
    return { hit: hits[request].length * cache.blockSize, blocks: [hits[request]] };
  },
  allocate({ request, computed, hit, hit_of, tokens, lookahead, whole }) {
    if (whole) return { skip: "no check that a whole request fits" };
    const [known, end] = [requests[request], computed + hit + tokens];
    const numFull = Math.floor(Math.min(end, known.tokens.length) / cache.blockSize);
    const blocks = cache.allocate(known, hits[hit_of] ?? [], end + lookahead, numFull);
    return blocks ? { granted: true, blocks: [blocks] } : { granted: false };
  },
  append: ({ request, tokens }) => void requests[request].tokens.push(...tokens),
  compute: () => {}, // the suite itself counts the computed tokens
  reject: () => {},
  free: ({ request }) => cache.release(requests[request]),
  preempt: ({ request }) => cache.release(requests[request]),
  evict: ({ blocks }) => blocks.forEach((id) => cache.forget(id)),
  reset: () => ({ reset: cache.reset() }),
};

const visible = () => ({
  tables: Object.fromEntries(Object.entries(requests).map(([name, { table }]) => [name, [table]])),
  refs: cache.refs,
  free: cache.free,
  hashes: cache.hashes,
  found: cache.hashes.map((hash) => cache.index.get(hash)?.[0] ?? null),
});

for await (const line of createInterface({ input: process.stdin })) {
  const message = JSON.parse(line);
  let result = { skip: `there is no ${message.call}` };
  try {
    if (message.call in calls) result = calls[message.call](message) ?? {};
  } catch (error) {
    result = { error: error.name };
  }
  console.log(JSON.stringify(result.skip ? result : { result, ...visible() }));
}
