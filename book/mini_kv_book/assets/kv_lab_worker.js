// Python and the course, in a Web Worker: whatever the learner's code does, the page stays alive. The worker's name is
// that of the Python file that answers: lab_page, which brings pytest, puzzle_page, plan_page, play_page, finale_page or challenge_page.
//
// Takes {type: "run", lab, text} and {type: "tell", test, lang}, {type: "look", name, calls} or {type: "ask", asked}; answers with
// {type: "loading", loaded, all} in bytes, {type: "progress", words}, {type: "ready"}, {type: "begins", test}, {type: "ended", test, state},
// {type: "result", ...}, {type: "story", test, ...}, {type: "looked", name, ...}, {type: "answered", ...} or {type: "broken", message}.
import { loadPyodide } from "./pyodide.mjs";

/** @type {Record<string, number>} bytes of each packed file; pack_labs.mjs writes them here */
const SIZES = {};
const HERE = new URL("./", import.meta.url).href;
const ARCHIVES = ["course.zip.xz", ["lab_page", "finale_page", "challenge_page"].includes(self.name) ? "tests.zip.xz" : "pages.zip.xz"];
const FIRST = ["pyodide.asm.wasm.packed", "stdlib.zip", ...ARCHIVES];

const began = performance.now();
let loaded = 0;
const fetchPlain = fetch;
/** Pyodide asks for its WebAssembly: it comes packed, and is unpacked and compiled while it comes. */
globalThis.fetch = (url, options) => {
  if (String(url).endsWith(".wasm")) return download("pyodide.asm.wasm.packed", "application/wasm", "gzip");
  return String(url).endsWith("/stdlib.zip") ? download("stdlib.zip") : fetchPlain(url, options);
};
/** @type {() => void} */
let sayWasmIsHere;
const wasmIsHere = new Promise((resolve) => (sayWasmIsHere = () => resolve(undefined)));
const python = start();

async function start() {
  const archives = []; // one after the other, after Pyodide: over a slow line Python starts meanwhile
  for (const name of ARCHIVES) {
    archives.push(Promise.resolve(archives.at(-1) ?? wasmIsHere).then(async () => (await download(name)).arrayBuffer()));
  }
  const pyodide = await loadPyodide({ indexURL: HERE, stdLibURL: HERE + "stdlib.zip" });
  pyodide.globals.set("load_now", loadNow);
  pyodide.runPython(SET_UP);
  const unpack = pyodide.globals.get("unpack");
  for (const [i, archive] of archives.entries()) unpack(ARCHIVES[i], new Uint8Array(await archive));
  postMessage({ type: "progress", words: self.name === "lab_page" ? "starting pytest" : "starting mini_kv" });
  const page = pyodide.pyimport(self.name);
  pyodide.runPython("gc.freeze()"); // what is loaded now stays: no run need look through it again
  postMessage({ type: "ready", seconds: (performance.now() - began) / 1000 });
  return page;
}

/** Fetch a packed file; the page is told how much of all is here. */
async function download(name, type = "application/octet-stream", packing = undefined) {
  const answer = await fetchPlain(HERE + name);
  if (!answer.ok) throw new Error(`${name} could not be loaded (${answer.status})`);
  const all = FIRST.reduce((sum, file) => sum + SIZES[file], 0);
  const counted = answer.body.pipeThrough(
    new TransformStream({
      transform(piece, out) {
        loaded += piece.length;
        postMessage({ type: "loading", loaded, all });
        out.enqueue(piece);
      },
      flush: name.endsWith(".wasm.packed") ? sayWasmIsHere : undefined,
    }),
  );
  const body = packing ? counted.pipeThrough(new DecompressionStream(packing)) : counted;
  return new Response(body, { headers: { "Content-Type": type } });
}

/** An archive for an import that waits: a worker may. */
function loadNow(name) {
  const request = new XMLHttpRequest();
  request.open("GET", HERE + name, false);
  request.responseType = "arraybuffer";
  request.send();
  return new Uint8Array(request.response);
}

const SET_UP = `
import gc, importlib.machinery, io, lzma, os, sys, zipfile

def unpack(name, archive):
    loaded.add(name)
    zipfile.ZipFile(io.BytesIO(lzma.decompress(archive.to_py()))).extractall("/course")

class Library:
    """Finds modules of the library with which Python did not start, and loads the archives that few pages need."""
    archive_of = None

    def find_spec(self, name, path=None, target=None):
        if self.archive_of is None:
            with open("/course/archives.txt", encoding="utf-8") as lines:
                self.archive_of = dict(line.split() for line in lines)
        folders = ["/course/library/" + "/".join(name.split(".")[:-1]), *(path or sys.path)]
        for archive in (None, self.archive_of.get(name)):
            if archive is not None and archive not in loaded:
                unpack(archive, load_now(archive))
                sys.path_importer_cache.clear()
            if spec := importlib.machinery.PathFinder.find_spec(name, folders):
                return spec
        return None

loaded = set()
sys.dont_write_bytecode = True  # two edits in one second would look alike
sys.path[:0] = ["/course", "/course/packages"]
sys.meta_path.append(Library())
os.makedirs("/course")
os.chdir("/course")
`;

const say = (test, state) => postMessage({ type: state ? "ended" : "begins", test, state });

onmessage = async ({ data }) => {
  try {
    const page = await python;
    const started = performance.now();
    if (data.type === "run") {
      const result = JSON.parse(page.run(data.lab, data.text, say));
      postMessage({ type: "result", seconds: (performance.now() - started) / 1000, ...result });
    } else if (data.type === "look") {
      postMessage({ type: "looked", name: data.name, ...JSON.parse(page.look(data.name, data.calls)) });
    } else if (data.type === "ask") {
      postMessage({ type: "answered", ...JSON.parse(page.answer(data.asked)) });
    } else {
      postMessage({ type: "story", test: data.test, ...JSON.parse(page.tell(data.test, data.lang)) });
    }
  } catch (error) {
    postMessage({ type: "broken", message: String(error.message ?? error) });
  }
};
