// The live page: keeps what the server tells in `job`, and shows it. Whatever comes from a run is put in as text only.
"use strict";

const PHASES = { // class, word, letter: the colour is never the only sign
  FORWARD: ["forward", "Forward", "F"],
  BACKWARD: ["backward", "Backward", "B"],
  READY: ["barrier", "Barrier", "G"],
  COMMITTED: ["optimizer", "Optimizer Step", "O"],
  IDLE: ["idle", "Between steps", "I"],
  ENDED: ["ended", "Has ended", "E"],
  HOLLOW: ["starting", "Waits for state", "W"],
  BUILDING: ["starting", "Runs the script", "S"],
  STANDBY: ["standby", "Standby", "S"],
  SPAWNED: ["starting", "Starts", "S"],
  VACANT: ["vacant", "No device", "✕"],
};
const GOOD = ["RUNNING", "DONE"], BAD = ["FAILED"];
const STAGES = ["detect", "stop", "decide", "settle", "reset", "restore", "first_step"];
const MANY = 64; // with more ranks a cell has room for a letter only
const SHOWN = 100; // records of each kind
const SETTLED_MS = 9000; // so long after a recovery its picture may still grow

const find = (id) => document.getElementById(id);
const narrow = matchMedia("(max-width: 719px)");
let job = { workers: [], ranks: 0 };
let cells = [];
let saved = 0;

function make(name, className, ...children) {
  const element = document.createElement(name);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

function put(id, text) {
  const element = find(id);
  if (element.textContent !== text) element.textContent = text;
}

const clock = (time) => new Date(time * 1000).toLocaleTimeString();
const seconds = (value) => (value === null ? "–" : value < 1 ? `${(value * 1000).toPrecision(3)} ms` : `${value.toFixed(2)} s`);

function duration(value) {
  const whole = Math.floor(value), pad = (part) => String(part).padStart(2, "0");
  const minutes = Math.floor(whole / 60) % 60, hours = Math.floor(whole / 3600);
  return hours ? `${hours}:${pad(minutes)}:${pad(whole % 60)}` : `${minutes}:${pad(whole % 60)}`;
}

function size(bytes) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (bytes >= 1000 && at < units.length - 1) { bytes /= 1000; at += 1; }
  return `${Number(bytes.toPrecision(3))} ${units[at]}`;
}

// ── the head ────────────────────────────────────────────────────────────────────────────────────────────

function showHead() {
  const made = job.progress;
  put("job", job.job);
  put("state", job.state);
  find("state").className = `state ${GOOD.includes(job.state) ? "good" : BAD.includes(job.state) ? "bad" : ""}`;
  const step = Math.max(job.target, ...job.workers.map((row) => row.version));
  put("step", step.toLocaleString("en"));
  put("speed", made.steps_per_s ? made.steps_per_s.toPrecision(3) : "–");
  put("goodput", made.productive_s ? `${(made.goodput * 100).toFixed(2)} %` : "–");
  put("ranks", job.workers.length === job.ranks ? String(job.ranks) : `${job.workers.length} of ${job.ranks}`);
  put("standbys", String(job.standbys.filter((row) => row.phase === "STANDBY").length));
  put("count", String(job.recoveries));
  put("generation", String(job.generation));
  put("elapsed", duration(made.elapsed_s));
  put("reason", job.reason);
  find("reason").hidden = !job.reason || job.state === "DONE";
  document.title = `${job.state} · step ${step} · ${job.job}`;
}

// ── devices ─────────────────────────────────────────────────────────────────────────────────────────────

const phaseOf = (row) => PHASES[row ? row.phase : "VACANT"] || ["starting", row.phase, "?"];

function buildGrid() {
  const grid = find("grid");
  grid.classList.toggle("many", job.ranks > MANY);
  cells = Array.from({ length: job.ranks }, (_, rank) => {
    const phase = make("span");
    const cell = make("li", "cell", make("b", "", String(rank)), phase);
    cell.dataset.rank = rank;
    return { cell, phase, className: "", text: "" };
  });
  grid.replaceChildren(...cells.map(({ cell }) => cell));
}

function showGrid() {
  if (cells.length !== job.ranks) buildGrid();
  const rows = new Map(job.workers.map((row) => [row.rank, row]));
  const counts = new Map();
  cells.forEach((shown, rank) => {
    const [name, word, letter] = phaseOf(rows.get(rank));
    const className = `cell ${name}`, text = job.ranks > MANY ? letter : word;
    if (shown.className !== className) shown.cell.className = shown.className = className;
    if (shown.text !== text) shown.phase.textContent = shown.text = text;
    const key = `${name} ${word} ${letter}`;
    counts.set(key, (counts.get(key) || 0) + 1);
  });
  showLegend(rows, counts);
  if (find("table").open) showTable();
}

function showLegend(rows, counts) {
  const known = Object.values(PHASES).filter(([name, word, letter]) =>
    counts.has(`${name} ${word} ${letter}`) || ["forward", "backward", "barrier", "optimizer"].includes(name));
  find("legend").replaceChildren(...known.map(([name, word, letter]) => {
    const key = make("span", `key ${name}`, letter);
    key.setAttribute("aria-hidden", "true");
    return make("li", "", key, ` ${word}: ${counts.get(`${name} ${word} ${letter}`) || 0}`);
  }));
}

function showTable() {
  const rows = [...job.workers].sort((one, other) => one.rank - other.rank);
  find("rows").replaceChildren(...rows.map((row) => {
    const values = [row.rank, phaseOf(row)[1], row.version, row.worker, row.pid || "–", row.node, row.device];
    return make("tr", "", ...values.map((value) => make("td", "", String(value))));
  }));
}

function tellOf(cell) {
  const row = job.workers.find((worker) => worker.rank === Number(cell.dataset.rank));
  cell.title = row
    ? `rank ${row.rank}: ${phaseOf(row)[1]}, step ${row.version}\nworker ${row.worker}, pid ${row.pid || "–"}\n${row.device} on ${row.node}`
    : `rank ${cell.dataset.rank}: nobody has it now`;
}

// ── recoveries and checkpoints ──────────────────────────────────────────────────────────────────────────

function isThere(list, key) {
  return [...list.children].some((item) => item.dataset.key === key);
}

function addRecovery(record, { isNew }) {
  const list = find("recoveries"), key = String(record.number);
  if (isThere(list, key)) return;
  const figure = make("figure");
  figure.dataset.picture = `recovery-${record.number}`;
  const stages = STAGES.map((stage) => `${stage.replace("_", " ")} ${seconds(record[`t_${stage}_s`])}`).join(" · ");
  const more = [`redone ${record.steps_redone}`, `received ${size(record.bytes)}`].join(" · ");
  const details = make("details", "", make("summary", "", make("time", "", clock(record.time)), record.sentence), figure,
    make("p", "stages", `total ${seconds(record.t_total_s)}: ${stages} · ${more}`));
  details.addEventListener("toggle", () => { if (details.open) load(figure); });
  const item = make("li", "", details);
  item.dataset.key = key;
  list.prepend(item);
  while (list.children.length > SHOWN) list.lastChild.remove();
  if (isNew) {
    for (const other of list.querySelectorAll("details[open]")) other.open = false;
    details.open = true;
    setTimeout(() => { if (details.open) load(figure); }, SETTLED_MS);
  }
  find("none").hidden = true;
  find("times").hidden = false;
}

function addCheckpoint(record) {
  const list = find("checkpoints"), key = `${record.step} ${record.generation} ${record.attempt}`;
  if (isThere(list, key)) return;
  const values = [clock(record.time_s), record.step, record.fate, seconds(record.k0_s), seconds(record.k1_s), size(record.bytes)];
  const row = make("tr", "", ...values.map((value) => make("td", "", String(value))));
  row.dataset.key = key;
  if (record.reason) row.title = record.reason;
  list.prepend(row);
  while (list.children.length > SHOWN) list.lastChild.remove();
  find("saved").hidden = false;
  find("unsaved").hidden = true;
}

async function readRecords() {
  const [failed, kept] = await Promise.all(["recoveries", "checkpoints"].map(async (name) => {
    const answer = await fetch(`/api/${name}`);
    return (await answer.json())[name];
  }));
  find("recoveries").replaceChildren();
  find("checkpoints").replaceChildren();
  failed.slice(-SHOWN).forEach((record) => addRecovery(record, { isNew: false }));
  kept.slice(-SHOWN).forEach(addCheckpoint);
  saved = kept.length;
  const newest = find("recoveries").querySelector("details");
  if (newest) newest.open = true;
  refreshSoon(0);
}

// ── pictures ────────────────────────────────────────────────────────────────────────────────────────────

async function load(figure) {
  const name = figure.dataset.picture, at = `/picture/${name}.svg`;
  let svg;
  if (!figure.firstChild) figure.append(make("p", "quiet", "drawing …"));
  try {
    const answer = await fetch(narrow.matches ? `${at}?narrow` : at);
    if (!answer.ok) throw new Error(await answer.text());
    const text = (await answer.text()).replace(/<style>[^<]*<\/style>/, ""); // the page has the same
    svg = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
  } catch (error) {
    if (!figure.querySelector("svg")) figure.replaceChildren(make("p", "quiet", `no picture now: ${error.message}`));
    return;
  }
  const defs = svg.querySelector(":scope > defs");
  if (defs && !find("defs").firstChild) find("defs").append(document.adoptNode(defs));
  else if (defs) defs.remove();
  svg.removeAttribute("width");
  svg.removeAttribute("height");
  const alone = make("a", "quiet", "this picture alone");
  alone.href = at;
  figure.replaceChildren(document.adoptNode(svg), alone);
}

let refresh = { at: Infinity, timer: 0 };

// Pictures of the whole run: what is asked for earlier goes first, and the rest comes with it.
function refreshSoon(delayMs) {
  const at = Date.now() + delayMs;
  if (at >= refresh.at) return;
  clearTimeout(refresh.timer);
  const timer = setTimeout(() => {
    refresh = { at: Infinity, timer: 0 };
    for (const figure of document.querySelectorAll("section > figure, #saved > figure")) {
      if (figure.offsetParent) load(figure);
    }
  }, delayMs);
  refresh = { at, timer };
}

// ── the line to the server ──────────────────────────────────────────────────────────────────────────────

let due = false;

function show() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    showHead();
    showGrid();
  });
}

function change(told) {
  const { moved = [], ...fields } = told;
  Object.assign(job, fields);
  if (moved.length) {
    const rows = new Map(job.workers.map((row) => [row.rank, row]));
    for (const [rank, phase, version] of moved) Object.assign(rows.get(rank), { phase, version });
  }
  show();
}

function listen() {
  const events = new EventSource("/events");
  const on = (name, act) => events.addEventListener(name, (event) => act(JSON.parse(event.data)));
  let read = Promise.resolve(); // what comes while the records are read is added behind them, and none twice
  on("status", (status) => { job = status; put("line", "live"); show(); read = readRecords().catch(() => {}); });
  on("change", change);
  on("recovery", (record) => read.then(() => { addRecovery(record, { isNew: true }); refreshSoon(1000); }));
  on("checkpoint", (record) => read.then(() => { addCheckpoint(record); refreshSoon(saved++ ? 30_000 : 1000); }));
  on("end", ({ state, reason }) => {
    events.close();
    Object.assign(job, { state, reason });
    put("line", "the job is over; what is shown is the end of it");
    show();
  });
  events.addEventListener("error", () => put("line", "the controller is away; trying again"));
}

find("grid").addEventListener("pointerover", (event) => {
  const cell = event.target.closest(".cell");
  if (cell) tellOf(cell);
});
find("table").addEventListener("toggle", showTable);
narrow.addEventListener("change", () => { for (const figure of document.querySelectorAll("figure")) if (figure.firstChild) load(figure); });
listen();
