// The words of the figure, by language: the same files that mini_kv/story/language.py reads.

import en from "../languages/en.json";
import zh from "../languages/zh.json";

/**
 * @typedef {Omit<typeof en, "kinds"> & {kinds: Record<string, string>}} Words
 */

/**
 * Words as a text. If spaces stand in them they are a model's tokens, of which several may be one word.
 * @param {string[]} list
 */
export const asText = (list) =>
  (list.some((word) => /^\s/.test(word)) ? list.join("") : list.join(" ")).replace(/\s+/g, " ").trim();

/** @type {Record<string, Words>} */
export const WORDS = { en, zh };

/**
 * The text with values for its {0}, {1}.
 * @param {string} text
 * @param {...unknown} values
 */
export const fill = (text, ...values) => text.replace(/\{(\d)\}/g, (_, i) => String(values[i]));
