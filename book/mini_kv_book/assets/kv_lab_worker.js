// Python, pytest and the course, in a Web Worker: whatever the learner's code does, the page stays alive.
//
// Takes {type: "run", lab, text} and {type: "tell", test}; answers with {type: "progress", words}, {type: "ready"},
// {type: "begins", test}, {type: "ended", test, state},
// {type: "begins", test}, {type: "result", ...}, {type: "story", test, data} or {type: "broken", message}.
import { loadPyodide } from "./pyodide.mjs";

const began = performance.now();
const python = start();

async function start() {
  const course = download("course.zip");
  const here = new URL("./", import.meta.url).href;
  const pyodide = await loadPyodide({ indexURL: here, stdLibURL: here + "stdlib.zip" });
  pyodide.unpackArchive(await course, "zip", { extractDir: "/course" });
  postMessage({ type: "progress", words: "starting pytest" });
  pyodide.runPython(`
import gc, os, sys
sys.dont_write_bytecode = True  # two edits in one second would look alike
sys.path[:0] = ["/course", "/course/packages"]
os.chdir("/course")
import lab_page
gc.freeze()  # what is loaded now stays: no run need look through it again
`);
  const page = pyodide.pyimport("lab_page");
  postMessage({ type: "ready", seconds: (performance.now() - began) / 1000 });
  return page;
}

async function download(name) {
  const answer = await fetch(new URL(name, import.meta.url));
  if (!answer.ok) throw new Error(`${name} could not be loaded (${answer.status})`);
  return answer.arrayBuffer();
}

onmessage = async ({ data }) => {
  try {
    const page = await python;
    if (data.type === "run") {
      const started = performance.now();
      const result = JSON.parse(page.run(data.lab, data.text, (test, state) => postMessage({ type: state ? "ended" : "begins", test, state })));
      postMessage({ type: "result", seconds: (performance.now() - started) / 1000, ...result });
    } else {
      postMessage({ type: "story", test: data.test, data: JSON.parse(page.tell(data.test)) });
    }
  } catch (error) {
    postMessage({ type: "broken", message: String(error.message ?? error) });
  }
};
