// Joins the sources of <kv-story>, mini_kv/story/kv_story/*.js, into the one classic script that pages, notebooks and the
// wheel carry. `npm run figure` writes it; `node join_figure.mjs FILE` writes it elsewhere, for the test that compares.
//
// It is in git although it is made: pip, Colab and notebooks have no npm. Joined by Python, which cannot shorten names,
// it is 24 KB longer on each page and in each notebook.

import { writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const BANNER = `/* <kv-story>, joined by \`npm run figure\` in book/ from mini_kv/story/kv_story: change those. */
if (typeof customElements !== "undefined" && !customElements.get("kv-story"))`;

const joined = await build({
  entryPoints: [here("../mini_kv/story/kv_story/player.js")],
  write: false,
  absWorkingDir: here("../mini_kv/story/kv_story"),
  bundle: true,
  format: "iife",
  target: "es2022",
  charset: "utf8",
  minify: true, // the sources are there to be read; this is there to be loaded
  banner: { js: BANNER },
  logLevel: "warning",
});
writeFileSync(process.argv[2] ?? here("../mini_kv/story/kv_story.js"), joined.outputFiles[0].text);
