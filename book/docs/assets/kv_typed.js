// The first screen: two texts, and the blocks that they share. A word is a token, four words are a block, and a block's
// key is the text up to its end. So nothing is needed but the two texts: no hash, no model, no server. A classic script,
// so that it also runs on a page that was opened as a file. A test compares its numbers with the engine's.
(() => {
  "use strict";

  const BLOCK = 4; // words
  /** A word: a letter of a script without blanks, or all up to the next blank or such a letter. */
  const ALONE = "\\p{sc=Han}\\p{sc=Hiragana}\\p{sc=Katakana}\\p{sc=Thai}";
  const WORD = new RegExp(`[${ALONE}]|[^\\s${ALONE}]+`, "gu");
  const SCENE = 6000; // ms
  /** Safari refuses more than 100 new addresses in 30 s. In ms. */
  const BETWEEN_ADDRESSES = 400;

  /** @type {HTMLElement} */
  const page = document.querySelector(".kv-typed");
  const boxes = [...page.querySelectorAll("textarea")];
  /** @param {string} part */
  const find = (part) => /** @type {HTMLElement} */ (page.querySelector(part));
  const [blocks, told, play, copy] = [".blocks", ".told", ".play", ".copy"].map(find);
  const onward = /** @type {HTMLAnchorElement} */ (find(".onward"));

  // ---- The cache: what the second text finds of the first ----------------------------------------------------------------

  /** How many words two texts have in common from their beginning. */
  function numEqual(first, second) {
    const end = first.findIndex((word, i) => word !== second[i]);
    return end < 0 ? first.length : end;
  }

  /** The number of words that the second request finds: full blocks of the first, and never its own last word. */
  function numFound(first, second) {
    const most = Math.min(numEqual(first, second), second.length - 1);
    return Math.max(0, Math.floor(most / BLOCK) * BLOCK);
  }

  // ---- What happened, in words -------------------------------------------------------------------------------------------

  const NUMBERS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split(" ");
  const nth = (number) => (NUMBERS[number - 1] ? `the ${NUMBERS[number - 1]} word` : `word ${number}`);
  const words = (number) => (number === 1 ? "1 word" : `${number} words`);
  const COUNTS = ["", "One word", "Two words", "Three words"];

  function sentences(first, second) {
    if (!first.length || !second.length) return "Write a text into each box.";
    const equal = numEqual(first, second);
    const found = numFound(first, second);
    if (equal === second.length) return sameWords(first, second, found);
    if (equal === first.length) {
      if (!found) return "The second text begins with the whole first one. But only full blocks are found, and a block has four words.";
      return `The second text begins with the first one: ${words(found)} found. All that follows is computed.`;
    }
    const after = numEqual(first.slice(equal).reverse(), second.slice(equal).reverse());
    const more = second.length - first.length;
    if (more && after === Math.min(first.length, second.length) - equal) {
      const moved = `${COUNTS[Math.abs(more)] ?? words(Math.abs(more))} ${more > 0 ? "inserted" : "left out"}`;
      if (!found) return `${moved} ${equal ? `after ${nth(equal)}` : "at the front"}: the words after it move, and all are computed again.`;
      return `${moved} after ${nth(equal)}: the words after it move. From this block on, all is computed again.`;
    }
    const later = first.length === second.length && after === first.length - equal - 1 && after >= BLOCK;
    const rest = found ? "its block and all later ones are not shared" : "it is in the first block, so nothing is shared";
    const word = nth(equal + 1).replace(/^./, (letter) => letter.toUpperCase());
    return `${word} differs: ${rest}${later ? ", though the words after it are the same" : ""}.`;
  }

  function sameWords(first, second, found) {
    const what = first.length === second.length ? `The same ${words(second.length)}` : "The second text is the beginning of the first";
    if (!found) return `${what}. The last word is always computed, and a block is shared whole: so here nothing is found.`;
    if (second.length % BLOCK) return `${what}: ${words(found)} found. The block at the end is not full, so it is not shared.`;
    return `${what}: ${words(found)} found. The answer starts from the last word, so this is computed again, and with it its whole block.`;
  }

  // ---- The picture -------------------------------------------------------------------------------------------------------

  function make(tag, className, ...children) {
    const element = document.createElement(tag);
    element.className = className;
    element.append(...children);
    return element;
  }

  /** A block with its words; the word with this number is marked. */
  function card(text, start, kind, marked = -1) {
    const inside = text.slice(start, start + BLOCK).flatMap((word, i) => [start + i === marked ? make("mark", "", word) : word, " "]);
    const isFull = text.length >= start + BLOCK;
    return make("div", `card ${kind}${isFull ? "" : " filling"}`, make("span", "", ...inside));
  }

  /** A place in both rows: one tall card for a block that both have, or a card in each row. */
  function place(first, second, start, found, differs) {
    if (start < found) return make("div", "place", card(second, start, "both"));
    const upper = start < first.length ? card(first, start, "one") : make("div", "");
    const lower = start < second.length ? card(second, start, "two", differs) : make("div", "");
    const alone = start >= first.length ? " lower" : start >= second.length ? " upper" : "";
    return make("div", `place${alone}`, ...[upper, lower].filter((one) => one.className));
  }

  /** A row of squares, one per word: found or computed. */
  function meter(box, found, computed) {
    const squares = Array.from({ length: found + computed }, (_, i) => make("i", i < found ? "found" : ""));
    const text = found ? `${found} found + ${computed} computed` : `${words(computed)} computed`;
    find(`.meter.${box}`).replaceChildren(make("span", "", ...squares), make("b", "", text));
  }

  function show() {
    const [first, second] = boxes.map((box) => box.value.match(WORD) ?? []);
    const found = first.length ? numFound(first, second) : 0;
    const equal = numEqual(first, second);
    const differs = equal < first.length ? equal : -1;
    const starts = Array.from({ length: Math.ceil(Math.max(first.length, second.length) / BLOCK) }, (_, i) => i * BLOCK);
    blocks.replaceChildren(...starts.map((start) => place(first, second, start, found, differs)));
    meter("one", 0, first.length);
    meter("two", found, second.length - found);
    told.textContent = sentences(first, second);
  }

  // ---- The address holds both texts --------------------------------------------------------------------------------------

  let written = 0;
  let timer = 0;

  /** The fields have the names that the page "Play" gives them. */
  const address = (more = {}) => `#${new URLSearchParams({ a: boxes[0].value, b: boxes[1].value, ...more })}`;

  function write() {
    clearTimeout(timer);
    written = Date.now();
    history.replaceState(history.state, "", address());
  }

  function keep() {
    clearTimeout(timer);
    timer = setTimeout(write, Math.max(0, written + BETWEEN_ADDRESSES - Date.now()));
  }

  /** Take the texts from the address. Returns whether it holds any. */
  function take() {
    const given = new URLSearchParams(location.hash.slice(1));
    if (!given.has("a") && !given.has("b")) return false;
    boxes[0].value = given.get("a") ?? "";
    boxes[1].value = given.get("b") ?? "";
    return true;
  }

  async function copied() {
    write();
    try {
      await navigator.clipboard.writeText(location.href); // only where the connection is safe
    } catch {
      const field = document.createElement("textarea");
      field.value = location.href;
      copy.after(field);
      field.select();
      document.execCommand("copy");
      field.remove();
    }
    copy.textContent = "Copied";
  }

  // ---- The film: the second person writes by itself until somebody types or taps ------------------------------------------

  const question = boxes[1].value;
  const SCENES = [question, question.replace("Tell", "Show")]; // of one length: a tap hits the word that was seen
  let scene = 0;
  let film = 0;

  function next() {
    if (document.hidden || page.matches(":hover")) return;
    scene = (scene + 1) % SCENES.length;
    boxes[1].value = SCENES[scene];
    show();
  }

  function roll(rolls) {
    clearInterval(film);
    film = rolls ? setInterval(next, SCENE) : 0;
    play.textContent = rolls ? "Pause" : "Play";
    play.setAttribute("aria-label", `${play.textContent} the example`);
  }

  // ---- The reader's hands ------------------------------------------------------------------------------------------------

  function typed() {
    show();
    told.setAttribute("aria-live", "polite"); // a film is not read out
    copy.textContent = "Copy this page's address";
    keep();
  }

  /** Stop the film. Where a keyboard hides half of the screen, the blocks below the text must be in the other half. */
  function entered(box) {
    roll(false);
    setTimeout(() => visualViewport.height < 0.75 * innerHeight && box.scrollIntoView({ behavior: "smooth" }), 400);
  }

  for (const box of boxes) {
    box.addEventListener("input", typed);
    box.addEventListener("focus", () => entered(box));
  }
  page.addEventListener("pointerdown", (event) => event.target !== play && roll(false));
  play.addEventListener("click", () => roll(!film));
  copy.addEventListener("click", copied);
  onward.addEventListener("click", () => (onward.href = `${onward.href.split("#")[0]}${address({ block_size: String(BLOCK) })}`));
  addEventListener("hashchange", () => take() && show());

  const isOwn = take() || boxes.some((box) => box.value !== box.defaultValue); // written before this script was there
  show();
  page.classList.add("ready");
  roll(!isOwn && !matchMedia("(prefers-reduced-motion: reduce)").matches);
})();
