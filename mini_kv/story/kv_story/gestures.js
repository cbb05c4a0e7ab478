// What moves beside the cards: a name that falls, a name that is stamped, the light around a revived block, a copy on its
// way, the walk of a lookup. Each says one thing, and leaves nothing behind.

import { draw } from "./elements.js";

/** @typedef {{g: SVGElement, x: number, y: number}} Placed */

/** Milliseconds between two blocks that a lookup finds. */
export const STRIDE = 110;

export class Gestures {
  /**
   * @param {SVGElement} layer above all cards; emptied with the next picture
   * @param {{w: number, h: number, tag: number}} size of a card and the height of its tag
   * @param {number} pace how much longer than usual everything takes
   */
  constructor(layer, { w, h, tag }, pace) {
    this.layer = layer;
    this.w = w;
    this.h = h;
    this.tag = tag;
    this.pace = pace;
  }

  /**
   * Play key frames on an element, after a while.
   * @param {SVGElement} element
   * @param {Keyframe[]} frames
   * @param {number} ms
   */
  #play(element, frames, ms, delay = 0) {
    const timing = { duration: ms * this.pace, delay: delay * this.pace, fill: /** @type {const} */ ("backwards") };
    return element.animate(frames, { ...timing, easing: "ease-in-out" });
  }

  /**
   * As `play`, on an element that is there for this alone.
   * @param {SVGElement} element
   * @param {Keyframe[]} frames
   * @param {number} ms
   */
  #once(element, frames, ms, delay = 0) {
    const animation = this.#play(element, frames, ms, delay);
    animation.onfinish = animation.oncancel = () => element.remove();
  }

  /**
   * A tag is torn off its card and falls.
   * @param {SVGElement} card
   * @param {string} read what is read on it
   * @param {number} height
   */
  fall(card, read, height) {
    const tag = draw("rect", { class: "tag", x: 3, y: height - this.tag - 3, width: this.w - 6, height: this.tag, rx: 4 });
    const text = draw("text", { class: "tagtext", x: this.w / 2, y: height - 6 }, read);
    const falling = draw("g", { class: "falling", "aria-hidden": "true" }, tag, text);
    card.append(falling);
    const end = { transform: "translate(6px,44px) rotate(24deg)", opacity: 0 };
    this.#once(falling, [{}, { transform: "translate(1px,-3px) rotate(-8deg)", offset: 0.25 }, end], 560);
  }

  /**
   * A name is put on a card.
   * @param {...SVGElement} parts
   */
  stamp(...parts) {
    for (const part of parts) this.#play(part, [{ opacity: 0 }, { opacity: 1 }], 300);
  }

  /**
   * The light around a block that comes back with all that it holds.
   * @param {Placed | undefined} card
   */
  halo(card) {
    if (!card) return;
    const ring = draw("rect", { class: "halo", width: this.w, height: this.h, rx: 6, "aria-hidden": "true" });
    card.g.append(ring);
    this.#once(ring, [{ transform: "scale(1)" }, { transform: "scale(1.45)", opacity: 0 }], 700, 150);
  }

  /**
   * What one block holds goes into another as well.
   * @param {Placed | undefined} from
   * @param {Placed | undefined} to
   */
  copy(from, to) {
    if (!from || !to) return;
    const content = draw("rect", { class: "copying", width: this.w, height: this.h, rx: 5 });
    this.layer.append(content);
    const at = [from, to].map(({ x, y }) => `translate(${x}px,${y}px)`);
    this.#once(content, [{ transform: at[0] }, { transform: at[1] }, { transform: at[1], opacity: 0 }], 600);
  }

  /**
   * A lookup walks from block to block of the prompt: a line to each that it finds, a cross where it ends.
   * @param {{x: number, y: number}[]} holes the places in the request's row, as many as were looked for
   * @param {Placed[]} found
   */
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

  /**
   * @param {Placed} card
   * @param {{x: number, y: number} | undefined} hole
   * @param {number} delay
   */
  #light(card, hole, delay) {
    const { w, h } = this;
    const ring = draw("rect", { class: "hit", x: card.x - 2, y: card.y - 2, width: w + 4, height: h + 4, rx: 7 });
    this.layer.append(ring);
    this.#play(ring, [{ opacity: 0 }, { opacity: 1 }], 150, delay);
    if (!hole) return;
    const below = hole.y > card.y; // the line ends at the card's edge, so that its name can be read
    const [x0, y0] = [hole.x + w / 2, hole.y + (below ? 8 : h - 8)];
    const [x1, y1] = [card.x + w / 2, card.y + (below ? h : 0)];
    const line = draw("path", { class: "hit", d: `M${x0} ${y0}L${x1} ${y1}` });
    this.layer.append(line);
    this.#play(line, [{ opacity: 0 }, { opacity: 1 }], 150, delay);
  }
}
