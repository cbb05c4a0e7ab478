// The editor of <kv-lab> and <kv-challenge>, how it looks, and a textarea where it cannot be loaded.

import { make } from "./kv_parts.js";

/** Make an editor; see makeEditor in kv_editor.mjs. */
export async function openEditor(options) {
  try {
    const { makeEditor } = await import(new URL("kv-lab/kv_editor.js", import.meta.url).href);
    return makeEditor(options);
  } catch {
    return makeTextarea(options);
  }
}

/** A textarea that does what the editor does, as far as a learner needs it: where the editor cannot be loaded. */
function makeTextarea({ parent, text, label, changed }) {
  const area = make("textarea", { "aria-label": label, "aria-describedby": "keys", spellcheck: "false", wrap: "off" });
  area.value = text;
  area.addEventListener("input", changed);
  area.addEventListener("keydown", (event) => {
    if (event.key === "Escape") area.dataset.leave = "yes";
    else if (event.key === "Tab" && !area.dataset.leave) {
      event.preventDefault();
      area.setRangeText("    ", area.selectionStart, area.selectionEnd, "end");
      changed();
    } else if (event.key !== "Shift") delete area.dataset.leave;
  });
  parent.append(area);
  return {
    get text() {
      return area.value;
    },
    set text(value) {
      area.value = value;
      changed();
    },
    focus: () => area.focus(),
    mark(number) {
      const before = area.value.split("\n").slice(0, number - 1).join("\n").length;
      area.setSelectionRange(before + 1, before + 1);
      area.scrollTop = (number - 5) * parseFloat(getComputedStyle(area).lineHeight);
    },
  };
}

export const EDITOR = `
.editor { height: var(--kv-editor-height, clamp(16em, 48vh, 40em)); border: 1px solid var(--line); border-radius: 4px; scroll-margin-top: 4em }
.editor .cm-editor { height: 100% }
.editor .cm-editor.cm-focused { outline: 2px solid var(--accent) }
.editor .cm-editor .cm-scroller { font: 13.5px/1.5 var(--mono); overflow: auto }
.editor .cm-editor .cm-gutters { background: var(--soft); color: var(--todo); border-right: 1px solid var(--line) }
.editor .cm-editor .cm-activeLine, .editor .cm-editor .cm-activeLineGutter { background: light-dark(#1c4f9c0d, #9cc2ff12) }
.editor .cm-editor .cm-content { caret-color: var(--fg) }
.editor .folded { margin-left: 1ch; padding: 0 .6em; font-size: 12.5px }
.editor .cm-editor .cm-cursor { border-left-color: var(--fg) }
.editor .cm-editor .cm-selectionBackground { background: light-dark(#bcd3f5, #34496b) !important }
.editor .cm-editor .cm-matchingBracket { background: light-dark(#d8ecd8, #2f5142) !important }
.editor .cm-editor .cm-line.marked { background: light-dark(#ffe2cf, #5a3420) }
textarea { display: block; box-sizing: border-box; width: 100%; height: 100%; border: 0; padding: .5em;
  font: 13.5px/1.5 var(--mono); color: inherit; background: var(--bg); white-space: pre; tab-size: 4 }`;
