// Small pieces that the page's elements share: how they make their parts, and how they look.

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (typeof value === "boolean") element.toggleAttribute(name, value);
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

export const button = (text, onclick, more = {}) => make("button", { type: "button", onclick, ...more }, text);

/** What is kept in this browser under that name; {} if nothing is, or something else's. */
export function readKept(key) {
  try {
    const kept = JSON.parse(localStorage.getItem(key) ?? "{}");
    return kept !== null && typeof kept === "object" ? kept : {};
  } catch {
    return {}; // no storage in this window
  }
}

/** Keep something in this browser; returns whether it would. */
export function keep(key, value) {
  try {
    localStorage.setItem(key, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

let address = ""; // what `keepAddress` wrote last

/** Write a page's fields behind the # of its address. */
export function keepAddress(fields) {
  address = `#${new URLSearchParams(fields)}`;
  history.replaceState(history.state, "", address);
}

/** Tell the listener the fields in the address, now and after each change. It returns whether they are its own. If they
 *  are not, a heading's link was clicked: the page's fields take its place, so that a reload finds them. */
export function onAddress(listener) {
  const read = () => {
    const isOwn = listener(Object.fromEntries(new URLSearchParams(location.hash.slice(1))));
    if (!isOwn && address && location.hash) history.replaceState(history.state, "", address);
  };
  addEventListener("hashchange", read);
  read();
}

/** The text of a stream. It throws a RangeError for more than so many bytes: a small packed file can hold gigabytes. */
export async function textOf(stream, mostBytes) {
  const reader = stream.getReader();
  const pieces = [];
  let size = 0;
  for (let read = await reader.read(); !read.done; read = await reader.read()) {
    size += read.value.length;
    if (size > mostBytes) throw new RangeError(`more than ${mostBytes} bytes`);
    pieces.push(read.value);
  }
  return new Blob(pieces).text();
}

export const LOOK = `
:host { display: block; margin: 1em 0; --line: light-dark(#c9ced6, #4a5160); --soft: light-dark(#f3f4f7, #262b36);
  --accent: light-dark(#1c4f9c, #9cc2ff); --pass: light-dark(#00614a, #5fd3ae); --fail: light-dark(#a03400, #ffab7a);
  --todo: light-dark(#4a4f5a, #c3c8d2); --wait: light-dark(#6b3f86, #d9b3f0);
  --kv-code-keyword: light-dark(#7a2a8a, #d9a6e8); --kv-code-string: light-dark(#0b6152, #8ed8c0);
  --kv-code-comment: light-dark(#5b6270, #a7aebb); --kv-code-number: light-dark(#9a3b00, #f5b58a);
  --kv-code-function: light-dark(#1c4f9c, #9cc2ff); --bg: light-dark(#fff, #1b1f28); --fg: light-dark(#1d2129, #e4e7ed);
  --mono: var(--kv-mono, ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace) }
[hidden] { display: none !important }
* { box-sizing: border-box }
.all { color: var(--fg); background: var(--bg); border: 1px solid var(--line); border-radius: 6px; padding: .7em;
  font: 16px/1.5 var(--kv-sans, system-ui, sans-serif) }
.bar { display: flex; flex-wrap: wrap; gap: .4em; margin-bottom: .6em }
button, select, input { font: inherit; font-size: .9em; color: inherit; background: var(--soft); padding: .3em .7em;
  min-height: 2.2em; border: 1px solid var(--line); border-radius: 4px }
input { background: var(--bg); width: 9em }
button { cursor: pointer }
button:hover { border-color: var(--accent) }
button:disabled { opacity: .55; cursor: default }
.primary { background: var(--accent); border-color: var(--accent); color: var(--bg); font-weight: 600; min-width: 4.5em }
.primary[aria-disabled=true] { opacity: .7; cursor: progress }
button[aria-expanded=true] { border-color: var(--accent); box-shadow: inset 0 -2px var(--accent) }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px }
.loading { display: inline-flex; gap: .5em; align-items: center; font-size: .85em; font-variant-numeric: tabular-nums }
.loading progress { width: 10em; accent-color: var(--accent) }
.link { display: inline; min-height: 0; padding: 0; border: 0; background: none; font: inherit; color: var(--accent);
  text-decoration: underline; text-align: left }`;
