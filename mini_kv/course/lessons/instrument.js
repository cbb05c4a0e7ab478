// Wakes every instrument of the page: its controls appear, and a move shows what the engine said there.
(() => {
  "use strict";
  /** @type {(root: ParentNode, selector: string) => HTMLElement[]} */
  const all = (root, selector) => [...root.querySelectorAll(selector)].map((one) => /** @type {HTMLElement} */ (one));
  let number = 0;
  const unpack = (table) => {
    const values = (table.to ?? table).flatMap((run) => (Array.isArray(run) ? Array(run[1]).fill(run[0]) : [run]));
    return table.of === undefined ? values : values.map((length) => table.of.slice(0, length));
  };
  for (const box of all(document, ".kv-instrument:not(.alive)")) {
    box.classList.add("alive");
    all(box, ".kv-controls")[0].hidden = false;
    const controls = all(box, "[data-control]").map((one) => {
      const inputs = [...one.querySelectorAll("input")];
      const slider = inputs[0].type === "range";
      const labels = slider ? JSON.parse(one.dataset.labels) : inputs.map((input) => input.value);
      number += 1;
      if (!slider) for (const input of inputs) input.name = `kv-choice-${number}`;
      const at = () => (slider ? Number(inputs[0].value) : inputs.findIndex((input) => input.checked));
      const tell = () => {
        if (!slider) return;
        one.querySelector("b").textContent = labels[at()];
        inputs[0].setAttribute("aria-valuetext", labels[at()]);
      };
      const move = (position) => {
        if (slider) inputs[0].value = position;
        else inputs[position].checked = true;
      };
      return { labels, at, tell, move };
    });
    const marks = all(box, "[data-vary]").map((mark) => ({
      mark,
      tables: JSON.parse(mark.dataset.vary).map(([key, by, table]) => [key, by, unpack(table)]),
    }));
    const show = () => {
      for (const { mark, tables } of marks) {
        for (const [key, by, values] of tables) {
          const place = by.reduce((sum, control) => sum * controls[control].labels.length + controls[control].at(), 0);
          if (key === "text") mark.textContent = values[place];
          else if (key === "hidden") mark.style.display = values[place] ? "none" : "";
          else mark.setAttribute(key, values[place]);
        }
      }
      for (const control of controls) control.tell();
    };
    box.addEventListener("input", show);
    for (const part of all(box, "[data-drag]")) {
      const axes = JSON.parse(part.dataset.drag);
      /** @param {PointerEvent} event */
      const drag = (event) => {
        const frame = part.getBoundingClientRect();
        const share = { x: (event.clientX - frame.left) / frame.width, y: (frame.bottom - event.clientY) / frame.height };
        for (const axis of Object.keys(axes)) {
          const last = controls[axes[axis]].labels.length - 1;
          controls[axes[axis]].move(Math.max(0, Math.min(last, Math.round(share[axis] * last))));
        }
        show();
      };
      part.addEventListener("pointerdown", (event) => {
        part.setPointerCapture(event.pointerId);
        drag(event);
      });
      part.addEventListener("pointermove", (event) => {
        if (part.hasPointerCapture(event.pointerId)) drag(event);
      });
    }
    for (const part of all(box, "[data-pick]")) {
      part.addEventListener("click", () => all(box, "[type=radio]")[Number(part.dataset.pick)].click());
    }
    show(); // a browser may have kept where the controls were
  }
})();
