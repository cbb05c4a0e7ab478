// Gathers what <kv-lab> needs in docs/assets/kv-lab, where MkDocs finds it like any other file. `npm run labs`.
//
// Python is Pyodide's own build. Its library, pytest and the course are packed as bytecode, by that same Python, here in
// Node: compiling them anew took a reader's browser longer than everything else.

import { copyFileSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";
import { loadPyodide } from "pyodide";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const OUT = here("docs/assets/kv-lab/");
const PYODIDE = here("node_modules/pyodide/");
const ASSETS = here("mini_kv_book/assets/");

rmSync(OUT, { recursive: true, force: true });
mkdirSync(OUT, { recursive: true });
for (const file of ["pyodide.mjs", "pyodide.asm.mjs"]) copyFileSync(PYODIDE + file, OUT + file);
// Not every server compresses, and where one does, a page cannot say how much of how much is here.
writeFileSync(OUT + "pyodide.asm.wasm.packed", gzipSync(readFileSync(PYODIDE + "pyodide.asm.wasm"), { level: 9 }));
for (const model of ["tiny", "tiny_windows"]) {
  mkdirSync(OUT + model);
  for (const file of ["config.json", "model.safetensors"]) copyFileSync(here(`../mini_kv/engine/${model}/${file}`), OUT + `${model}/${file}`);
}
// Of the 350 packages that Pyodide knows, a page may load none: the course brings what it needs.
const { info } = JSON.parse(readFileSync(PYODIDE + "pyodide-lock.json", "utf-8"));
writeFileSync(OUT + "pyodide-lock.json", JSON.stringify({ info, packages: {} }));
await build({
  entryPoints: [ASSETS + "kv_editor.mjs"],
  outfile: OUT + "kv_editor.js",
  bundle: true,
  minify: true,
  format: "esm",
  nodePaths: [here("node_modules")],
  logLevel: "warning",
});

const python = await loadPyodide({ stdout: console.error });
python.FS.mkdir("/repo");
python.mountNodeFS("/repo", here(".."));
python.FS.writeFile("/stdlib.zip", readFileSync(PYODIDE + "python_stdlib.zip"));
python.runPython(`
import encodings.cp437, lzma, sys, zipfile  # these unpack all else
archive = "/lib/python314.zip/"
specs = [module.__spec__ for module in sys.modules.values() if module.__spec__ is not None]
with open("/at_boot", "w", encoding="utf-8") as at_boot:
    at_boot.write("\\n".join((spec.origin or "").removeprefix(archive) for spec in specs))
`);
try {
  python.runPython(readFileSync(here("pack_labs.py"), "utf-8"));
} catch (error) {
  console.error(error.message); // uncaught, Node would show the line that threw it: Pyodide's only one, of a megabyte
  process.exit(1);
}
const sizes = { "pyodide.asm.wasm.packed": statSync(OUT + "pyodide.asm.wasm.packed").size };
for (const file of ["stdlib.zip", ...["course", "pages", "tests", "rest"].map((name) => `${name}.zip.xz`)]) {
  writeFileSync(OUT + file, python.FS.readFile("/out/" + file));
  sizes[file] = statSync(OUT + file).size;
}
const worker = readFileSync(ASSETS + "kv_lab_worker.js", "utf-8");
writeFileSync(OUT + "kv_lab_worker.js", worker.replace("const SIZES = {}", `const SIZES = ${JSON.stringify(sizes)}`));

const licences = readdirSync(here("node_modules"), { recursive: true }).filter((path) => /(^|\/)LICENSE[^/]*$/i.test(path));
const texts = licences.sort().map((path) => `${path}\n\n${readFileSync(here("node_modules/") + path, "utf-8")}`);
texts.push(new TextDecoder().decode(python.FS.readFile("/out/licences.txt")));
writeFileSync(OUT + "LICENCES.txt", texts.join("\n\n----\n\n"));

// What a reader's first run loads, over a server that compresses; the fence reads it, and takes it for the sign that all is here.
const loaded = readdirSync(OUT).filter((file) => !/^(LICENCES|kv_editor|tiny|pages|rest)/.test(file));
const bytes = loaded.reduce((sum, file) => sum + gzipSync(readFileSync(OUT + file)).length, 0);
writeFileSync(OUT + "packed.json", JSON.stringify({ megabytes: Math.round(bytes / 1e6) }));
