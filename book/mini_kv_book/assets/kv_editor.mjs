// The editor of <kv-lab>: CodeMirror with Python and little else, bundled into one file by pack_labs.mjs.

import { closeBrackets, closeBracketsKeymap } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { python } from "@codemirror/lang-python";
import { bracketMatching, codeFolding, foldEffect, foldKeymap, HighlightStyle, indentOnInput, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { EditorState, StateEffect, StateField } from "@codemirror/state";
import { Decoration, drawSelection, EditorView, highlightActiveLine, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";

const colours = HighlightStyle.define(
  /** @type {[import("@lezer/highlight").Tag | import("@lezer/highlight").Tag[], string][]} */ ([
    [tags.keyword, "keyword"],
    [[tags.string, tags.special(tags.string)], "string"],
    [tags.comment, "comment"],
    [[tags.number, tags.bool, tags.null], "number"],
    [[tags.function(tags.definition(tags.variableName)), tags.definition(tags.className)], "function"],
  ]).map(([tag, name]) => ({ tag, color: `var(--kv-code-${name})` })),
);

/** @type {import("@codemirror/state").StateEffectType<number[]>} */
const mark = StateEffect.define();
const marked = StateField.define({
  create: () => Decoration.none,
  update(lines, transaction) {
    for (const effect of transaction.effects) {
      if (effect.is(mark)) return Decoration.set(effect.value.map((at) => line.range(at)));
    }
    return transaction.docChanged ? Decoration.none : lines;
  },
  provide: (field) => EditorView.decorations.from(field),
});
const line = Decoration.line({ class: "marked" });

/**
 * Show a function from its head on; where its first line to write would be out of sight, the docstring between them is folded.
 * @param {EditorView} view
 * @param {{head: number, write: number}} first offsets of both lines
 */
function open(view, { head, write }) {
  const { doc } = view.state;
  const docstring = doc.sliceString(head, write).match(/"""[^]*"""/);
  const show = (tooLong) => {
    if (tooLong && docstring?.[0].includes("\n")) {
      const from = head + docstring.index;
      view.dispatch({ effects: foldEffect.of({ from: doc.lineAt(from).to, to: from + docstring[0].length }) });
    }
    view.scrollDOM.scrollTop = view.lineBlockAt(head).top; // the page itself stays where it is
  };
  view.requestMeasure({
    read: () => view.state.doc === doc && view.lineBlockAt(write).bottom - view.lineBlockAt(head).top > view.scrollDOM.clientHeight,
    write: (tooLong) => queueMicrotask(() => view.state.doc === doc && show(tooLong)), // nothing may change while it is measured
  });
}

/**
 * What stands for folded lines: how many they are.
 * @param {string} words with {0} for the number
 */
const folding = (words) =>
  codeFolding({
    preparePlaceholder: (state, { from, to }) => state.doc.lineAt(to).number - state.doc.lineAt(from).number,
    placeholderDOM(_, unfold, lines) {
      const button = document.createElement("button");
      Object.assign(button, { type: "button", className: "folded", textContent: words.replace("{0}", lines), onclick: unfold });
      Object.assign(button, { tabIndex: -1, title: "Ctrl+Shift+]" }); // Tab leaves the editor; a key unfolds at the cursor
      return button;
    },
  });

/** Make an editor in `parent`; returns {text, focus, mark}. `run` is called on Ctrl+Enter, `changed` on every edit; `first` is the
 * function that is seen. `plain`: the text is not Python. */
export function makeEditor({ parent, root, text, first, label, folded, plain, run, changed }) {
  const view = new EditorView({
    parent,
    root,
    state: EditorState.create({
      doc: text,
      extensions: [
        lineNumbers(),
        history(),
        drawSelection(),
        highlightActiveLine(),
        indentUnit.of("    "),
        EditorState.tabSize.of(4),
        indentOnInput(),
        bracketMatching(),
        closeBrackets(),
        ...(plain ? [] : [python()]),
        syntaxHighlighting(colours),
        marked,
        folding(folded),
        EditorView.lineWrapping, // a contract is read whole
        keymap.of([
          { key: "Mod-Enter", run: () => (run(), true) },
          ...closeBracketsKeymap,
          ...defaultKeymap,
          ...historyKeymap,
          ...foldKeymap,
          indentWithTab,
        ]),
        EditorView.contentAttributes.of({
          "aria-label": label,
          "aria-describedby": "keys",
          spellcheck: "false",
          tabindex: "0",
        }),
        EditorView.updateListener.of((update) => update.docChanged && changed()),
      ],
    }),
  });
  open(view, first);
  return {
    get text() {
      return view.state.doc.toString();
    },
    set text(value) {
      view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: value } });
    },
    focus: () => view.focus(),
    /** Mark a line, put the cursor there, and scroll to it; the page, and the focus, stay where they are. */
    mark(number) {
      const { from, text } = view.state.doc.line(Math.min(number, view.state.doc.lines));
      view.dispatch({ effects: mark.of([from]), selection: { anchor: from + text.search(/\S|$/) } });
      const { top, height } = view.lineBlockAt(from);
      view.scrollDOM.scrollTop = top - (view.scrollDOM.clientHeight - height) / 2;
    },
  };
}
