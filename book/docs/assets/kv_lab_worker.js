// Python and the course, in a Web Worker: whatever the learner's code does, the page stays alive. The worker's name is
// that of the Python file that answers: lab_page, which brings pytest, puzzle_page, plan_page, play_page or finale_page.
//
// Takes {type: "run", lab, text} and {type: "tell", test, lang}, {type: "look", name, calls} or {type: "ask", asked}; answers with
// {type: "progress", words}, {type: "ready"}, {type: "begins", test}, {type: "ended", test, state},
// {type: "result", ...}, {type: "story", test, ...}, {type: "looked", name, ...}, {type: "answered", ...} or {type: "broken", message}.
import { loadPyodide } from "./pyodide.mjs";

const began = performance.now();
const python = start();

async function start() {
  const course = download("course.zip");
  const here = new URL("./", import.meta.url).href;
  const pyodide = await loadPyodide({ indexURL: here, stdLibURL: here + "stdlib.zip" });
  pyodide.unpackArchive(await course, "zip", { extractDir: "/course" });
  postMessage({ type: "progress", words: self.name === "lab_page" ? "starting pytest" : "starting mini_kv" });
  pyodide.runPython(`
import gc, os, sys
sys.dont_write_bytecode = True  # two edits in one second would look alike
sys.path[:0] = ["/course", "/course/packages"]
os.chdir("/course")
`);
  const page = pyodide.pyimport(self.name);
  pyodide.runPython("gc.freeze()"); // what is loaded now stays: no run need look through it again
  postMessage({ type: "ready", seconds: (performance.now() - began) / 1000 });
  return page;
}

async function download(name) {
  const answer = await fetch(new URL(name, import.meta.url));
  if (!answer.ok) throw new Error(`${name} could not be loaded (${answer.status})`);
  return answer.arrayBuffer();
}

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
