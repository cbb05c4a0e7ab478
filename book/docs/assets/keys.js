// The book's keys beside the theme's own: left and right turn the page, ? lists the keys.
// One classic script; nothing is drawn before a reader asks for it.
(() => {
  "use strict";

  /** @type {[string[], string][]} */
  const KEYS = [
    [["/", "s"], "search"],
    [["←", "→"], "the chapter before, the next one"],
    [["Tab"], "go through links and figures; the arrow keys then step through a figure"],
    [["?"], "this list"],
    [["Esc"], "close"],
  ];

  // Arrow keys belong to whatever has the focus: a field, a figure, a block of code that scrolls.
  const isFree = () => [null, document.body, document.documentElement].some((free) => free === document.activeElement);

  function turn(direction) {
    const link = document.querySelector(`.md-footer__link--${direction}`);
    if (link instanceof HTMLElement) link.click();
  }

  function overlay() {
    const dialog = document.createElement("dialog");
    dialog.className = "kv-keys";
    dialog.setAttribute("aria-labelledby", "kv-keys-title");
    const title = document.createElement("h2");
    title.id = "kv-keys-title";
    title.textContent = "Keys";
    const list = document.createElement("dl");
    for (const [names, meaning] of KEYS) {
      const term = document.createElement("dt");
      term.append(...names.map((name) => Object.assign(document.createElement("kbd"), { textContent: name })));
      const description = document.createElement("dd");
      description.textContent = meaning;
      list.append(term, description);
    }
    const close = Object.assign(document.createElement("button"), { type: "button", textContent: "Close" });
    close.addEventListener("click", () => dialog.close());
    dialog.append(title, list, close);
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  }

  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.querySelector("dialog[open]") || !isFree()) return;
    if (event.key === "ArrowLeft") turn("prev");
    else if (event.key === "ArrowRight") turn("next");
    else if (event.key === "?") overlay();
    else return;
    event.preventDefault();
  });

  // The theme forgets to say what its search dialog is.
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");

  // What scrolls sideways must be reachable without a mouse.
  function reachable() {
    for (const box of document.querySelectorAll(".highlight code, .md-typeset__scrollwrap, .kv-diagram, math[display=block]")) {
      if (box.scrollWidth > box.clientWidth && !box.hasAttribute("tabindex")) box.setAttribute("tabindex", "0");
    }
  }
  addEventListener("load", reachable);
  addEventListener("resize", reachable);
  document.addEventListener("toggle", reachable, true); // what was folded has no width
})();
