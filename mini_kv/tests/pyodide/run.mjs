// Runs driver.py in Pyodide, as a page would: Pyodide, mini_kv and pytest come from files of our own, none from a CDN.
//
//     node run.mjs TREE.zip WHEEL...
//
// TREE.zip is the part of the repository that a page needs, the wheels are what pip downloaded. Prints one line of
// JSON: what the driver answers, with the seconds of each phase and in all, from the start of Node.

import { readFileSync } from "node:fs";
import { performance } from "node:perf_hooks";

const seconds = () => performance.now() / 1000;
const bytes = (file) => new Uint8Array(readFileSync(file)); // Pyodide takes no Buffer

async function main(tree, ...wheels) {
  const { loadPyodide } = await import("../../../book/node_modules/pyodide/pyodide.mjs");
  // What Python prints must neither mix with the answer nor get lost.
  const python = await loadPyodide({ stdout: console.error, stderr: console.error });
  const started = seconds();
  await python.loadPackage(wheels, { checkIntegrity: false, messageCallback: () => {} });
  python.unpackArchive(bytes(tree), "zip", { extractDir: "/repo" });
  const unpacked = seconds();
  const answers = JSON.parse(
    python.runPython(`
import json, os, sys
os.chdir("/repo")
sys.path.insert(0, "/repo")
from mini_kv.tests.pyodide import driver
json.dumps(driver.answers())
`),
  );
  answers.seconds = { start: started, unpack: unpacked - started, ...answers.seconds, "in all": seconds() };
  console.log(JSON.stringify(answers));
}

// An uncaught error would make Node show the line that threw it: Pyodide's only one, of a megabyte.
try {
  await main(...process.argv.slice(2));
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
}
