// The page at /: takes the server's tellings, shows them, and sends prompts. No library; nothing is asked of another host.

const find = (selector) => document.querySelector(selector);
const head = JSON.parse(find("#head").textContent);
const figure = find("kv-story"), form = find("#ask"), unlock = find("#unlock"), answer = find("output"), hold = find("#hold");
let latest = null; // what the server has told, as JSON
let isSoon = false;
let key = ""; // what the reader typed, where the server has a key

find("#model").textContent = head.model;
form.max_tokens.max = head.longest - 1;

/** An element with a class and children; texts stay texts, whatever stands in them. */
function make(name, className, ...children) {
  const element = document.createElement(name);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

// -- What the server tells --

const percent = (share) => `${Math.round(100 * share)} %`;

function counted(c) {
  return [
    ["running", c.running],
    ["waiting", c.waiting],
    ["blocks held", `${c.held} of ${c.blocks}`],
    ["found in the cache", percent(c.hit_rate)],
    ["evicted", c.evicted],
    ["preempted", c.preempted],
    ["tokens generated", c.generation_tokens],
  ];
}

/** One request: its prompt, what of it was found, and what the model has said so far. */
function requestRow({ name, prompt, found, said, tokens, cached, state }) {
  const paid = cached === null ? `${tokens} tokens` : `${cached} of ${tokens} tokens found`;
  const rest = prompt.startsWith(found) ? prompt.slice(found.length) : prompt;
  return make(
    "li",
    `request ${state}`,
    make("span", "what", `${name}, ${paid}, ${state}`),
    make("p", "", make("mark", "", found), rest, make("strong", "", said)),
  );
}

function show({ counters, requests, log, story }) {
  const rows = counted(counters).map(([name, value]) => make("div", "", make("dt", "", name), make("dd", "", String(value))));
  find("#counters").replaceChildren(...rows);
  find("#requests").replaceChildren(...requests.toReversed().map(requestRow));
  const lines = find("#log");
  lines.textContent = log.join("\n");
  lines.scrollTop = lines.scrollHeight;
  figure.data = story;
}

const held = () => hold.getAttribute("aria-pressed") === "true";

hold.addEventListener("click", () => {
  hold.setAttribute("aria-pressed", String(!held()));
  if (!held() && latest) show(JSON.parse(latest));
});

/** Draw what was told last, at the browser's next frame: a slow one leaves out what it cannot draw in time. */
function showSoon() {
  if (isSoon) return;
  isSoon = true;
  requestAnimationFrame(() => {
    isSoon = false;
    if (!held()) show(JSON.parse(latest));
  });
}

/** The data of a stream's events. Lines without data are comments, which keep the connection open. */
async function* dataOf(response) {
  const start = "data: ";
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader(); // Safari cannot loop over a stream
  let text = "";
  for (let read = await reader.read(); !read.done; read = await reader.read()) {
    text += read.value;
    const whole = text.split("\n\n");
    text = whole.pop();
    for (const event of whole) if (event.startsWith(start)) yield event.slice(start.length);
  }
}

const withKey = () => (head.key ? { Authorization: `Bearer ${key}` } : {});

/** Show what the server tells until its stream ends; false: it refuses the key. An EventSource could not send a key. */
async function follow() {
  const response = await fetch("/events", { headers: withKey() });
  if (response.status === 401) return false;
  find("#state").textContent = "live";
  for await (const data of dataOf(response)) {
    latest = data;
    showSoon();
  }
  return true;
}

/** Follow the server, and connect again if the connection ends. */
async function listen() {
  lock(false, "");
  const lost = () => true;
  while (await follow().catch(lost)) {
    find("#state").textContent = "the server does not answer";
    await new Promise((done) => setTimeout(done, 2000));
  }
  lock(true, "This is not a key of this server.");
}

/** Show the page, or in its place the question for the key. */
function lock(isLocked, why) {
  unlock.hidden = !isLocked;
  find("main").hidden = isLocked;
  unlock.querySelector("[role=status]").textContent = why;
}

unlock.addEventListener("submit", (event) => {
  event.preventDefault();
  key = unlock.key.value;
  listen();
});

find("#story").addEventListener("click", async (event) => {
  event.preventDefault(); // a link could not send the key
  const response = await fetch("/story.json", { headers: withKey() });
  const link = make("a");
  link.href = URL.createObjectURL(await response.blob());
  link.download = "story.json";
  link.click();
});

// -- What the reader asks --

let numAsked = 0;

async function ask() {
  const number = ++numAsked;
  const write = (text) => number === numAsked && answer.append(text); // an older answer goes on, and is not shown here
  const body = {
    prompt: form.prompt.value,
    max_tokens: +form.max_tokens.value,
    temperature: +form.temperature.value,
    stream: true,
    stream_options: { include_usage: true },
  };
  const headers = { "Content-Type": "application/json", ...withKey() };
  const response = await fetch("/v1/completions", { method: "POST", headers, body: JSON.stringify(body) });
  if (!response.ok) throw new Error((await response.json()).error.message);
  answer.textContent = "";
  for await (const data of dataOf(response)) {
    if (data === "[DONE]") continue;
    const event = JSON.parse(data);
    if (event.error) throw new Error(event.error.message);
    if (event.choices.length) write(event.choices[0].text);
    else if (event.usage.prompt_tokens_details) {
      const { prompt_tokens: all, prompt_tokens_details: details } = event.usage;
      write(`\n\n(${details.cached_tokens} of your ${all} tokens were in the cache)`);
    }
  }
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    await ask();
  } catch (error) {
    answer.textContent = String(error.message ?? error);
  }
});

if (head.key) lock(true, "");
else listen();
