// Links from what happens in a step to vLLM's source code. mini_kv/story/vllm_source.py has the table, and its JSON file
// the lines.

import { events, lines, version } from "../vllm_source.json";
import { make } from "./elements.js";

/**
 * @typedef {import("./model.js").State} State
 * @typedef {import("./words.js").Words} Words
 */

/** File and symbol by kind of event; "lookup" for a lookup. @type {Record<string, string[]>} */
const PLACES = events;
/** @type {Record<string, Record<string, number>>} */
const LINES = lines;

/**
 * A line of links, one for each function of vLLM that does what this step did; nothing for a step without events.
 * @param {Words} t
 * @param {State} state
 */
export function sources(t, state) {
  const looked = state.step.probes?.length ? ["lookup"] : [];
  const kinds = new Set([...looked, ...state.events.map((event) => event.kind)]);
  /** The kinds that a function causes, by its symbol. @type {Map<string, string[]>} */
  const causes = new Map();
  for (const kind of kinds) {
    if (!Object.hasOwn(PLACES, kind)) continue;
    const [, symbol] = PLACES[kind];
    causes.set(symbol, [...(causes.get(symbol) ?? []), kind]);
  }
  const links = [...causes.values()].map((same) => linkTo(t, same));
  return links.length ? [make("span", {}, t.source), ...links] : [];
}

/**
 * A link that opens in a new tab the function that causes these kinds of events. Its text is the method's name, and its
 * title has the kinds, the class and the file.
 * @param {Words} t
 * @param {string[]} kinds
 */
function linkTo(t, kinds) {
  const [file, symbol] = PLACES[kinds[0]];
  const does = kinds.map((kind) => t.kinds[kind] ?? t.lookup).join(t.comma);
  const href = `https://github.com/vllm-project/vllm/blob/v${version}/vllm/${file}#L${LINES[file][symbol]}`;
  const title = `${does}${t.colon}${symbol}, ${file}`;
  return make("a", { href, title, target: "_blank", rel: "noopener" }, symbol.slice(symbol.indexOf(".") + 1));
}
