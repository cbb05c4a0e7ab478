// Loads what a page's elements need, where it has any: a chapter has none. A classic script, as a page that was opened as
// a file can load no modules; such a page keeps what the elements say without scripts.
(() => {
  "use strict";
  document.documentElement.classList.toggle("kv-embedded", self !== top); // a page in a frame shows no header
  const HERE = /** @type {HTMLScriptElement} */ (document.currentScript).src;
  for (const [element, script] of [
    ["kv-lab[python]", "kv_lab.js"],
    ["kv-puzzle[python]", "kv_puzzle.js"],
    ["kv-plan[python]", "kv_plan.js"],
    ["kv-play[python]", "kv_play.js"],
    ["kv-claims", "kv_claims.js"],
    ["kv-finale", "kv_finale.js"],
    ["kv-challenge[python]", "kv_challenge.js"],
    ["kv-session", "kv_session.js"],
    ["kv-planes[model]", "kv_planes.js"],
    [".kv-instrument", "kv_instrument.js"],
  ]) {
    if (document.querySelector(element)) import(new URL(script, HERE).href);
  }
})();
