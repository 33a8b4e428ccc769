"use strict";
// Brings the page up to date: the stream says which versions have changed, and the server sends those parts as HTML.

const TOKEN = new URLSearchParams(location.search).get("token");
const byId = (id) => document.getElementById(id);
const loaded = new Map(), asking = new Set();
let versions = null, settled = false, shown = null, problem = null, known = null;

async function part(path, query = {}) {
  try {
    const answer = await fetch(`/part/${path}?${new URLSearchParams({ ...query, token: TOKEN })}`);
    if (answer.status === 403) byId("connection").dataset.state = "old";
    return answer.ok ? await answer.text() : null;
  } catch { return null; }
}

// Each version of a part is asked for once, and one at a time.
async function load(path, version, take) {
  if (asking.has(path) || loaded.get(path) === version) return;
  asking.add(path);
  const html = await part(path);
  asking.delete(path);
  if (html === null) return;
  loaded.set(path, version);
  take(html);
  refresh();
}

function refresh() {
  if (!versions || document.hidden) return;
  const key = wanted();
  load("list", versions.version, takeList);
  if (!key || versions.items[key]) load(key || "overview", key ? versions.items[key] : versions.version, (html) => { if (key === wanted()) show(key, html); });
}

const wanted = () => (/^#(?:run|study)\/([0-9a-f]{12})$/.exec(location.hash) || [])[1] || "";

function takeList(html) {
  const list = byId("nav-list"), focused = list.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  list.innerHTML = html;
  markCurrent();
  if (focused) links().find((each) => each.getAttribute("href") === focused)?.focus({ preventScroll: true });
}
const links = () => [...document.querySelectorAll("#nav-list li a")];
function markCurrent() {
  for (const link of links()) link.toggleAttribute("aria-current", link.getAttribute("href") === (location.hash || "#"));
}

function show(key, html) {
  const page = byId("page"), isNew = key !== shown, open = new Set([...page.querySelectorAll("details[open]")].map((each) => each.dataset.key));
  page.innerHTML = html;
  if (!isNew) for (const each of page.querySelectorAll("details")) if (open.has(each.dataset.key)) each.open = true;
  document.title = (page.querySelector("h1") ?? document.querySelector(".home")).textContent;
  shown = key;
  announce(isNew);
  const number = page.querySelector("article").dataset.samples ?? "0", section = byId("samples");
  section.hidden = number === "0";
  if (isNew) clearSamples();
  else byId("new-samples").hidden = number === section.dataset.number;
  if (!section.hidden && (isNew || !section.dataset.number)) samples();
  section.dataset.number ||= number;
}

// A new warning is read out.
function announce(isNew) {
  const warnings = [...byId("page").querySelectorAll("p.say.warning")], added = isNew ? [] : warnings.filter((each) => !known.has(each.dataset.kind));
  known = new Set(warnings.map((each) => each.dataset.kind));
  if (added.length) byId("announce").textContent = added.map((each) => each.textContent).join(" ");
}

// Samples: searched on the server; new ones are offered and not pushed under somebody's eyes.

async function samples(before = null) {
  const key = shown, list = byId("sample-list"), query = { q: byId("sample-search").value, verdict: byId("sample-verdict").value };
  if (problem !== null) query.problem = problem;
  if (before !== null) query.before = before;
  const html = await part(`${key}/samples`, query);
  if (html === null || key !== shown || query.q !== byId("sample-search").value) return;
  if (before === null) list.replaceChildren();
  list.insertAdjacentHTML("beforeend", html);
  byId("all-prompts").hidden = problem === null;
  byId("new-samples").hidden = true;
  byId("samples").dataset.number = byId("page").querySelector("article").dataset.samples ?? "";
}

function clearSamples() {
  problem = null;
  byId("sample-search").value = byId("sample-verdict").value = "";
  byId("sample-list").replaceChildren();
  delete byId("samples").dataset.number;
}

let timer = null;
byId("sample-search").addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(samples, 200); });
byId("sample-verdict").addEventListener("change", () => samples());
byId("samples").addEventListener("submit", (event) => { event.preventDefault(); samples(); });
byId("all-prompts").addEventListener("click", () => { problem = null; samples(); });
byId("sample-list").addEventListener("click", (event) => {
  const { before, problem: own } = event.target.dataset;
  if (before) { event.target.remove(); samples(before); }
  if (own !== undefined) { problem = own; samples(); byId("samples").scrollIntoView(); }
});

// The stream -----------------------------------------------------------------------------------------------------------

function heard({ online, versions: news }) {
  byId("connection").dataset.state = online ? "live" : "lost";
  if (!news) return;
  if (versions && versions.epoch !== news.epoch) loaded.clear();
  // A single run is what its reader came for. Whether there are others is known once every source has been read.
  const keys = Object.keys(news.items), isSettled = keys.length > 0 && !news.pending;
  if (isSettled && !settled && keys.length === 1 && !location.hash) location.replace(`#run/${keys[0]}`);
  settled ||= isSettled;
  versions = news;
  refresh();
}

function follow() {
  const query = `?token=${encodeURIComponent(TOKEN)}`;
  if (!window.SharedWorker) {
    const source = new EventSource(`/api/events${query}`);
    source.onerror = () => heard({ online: false });
    source.addEventListener("versions", (event) => heard({ online: true, versions: JSON.parse(event.data) }));
    return;
  }
  const worker = new SharedWorker("/assets/stream.js", { name: `board ${TOKEN}` });
  worker.port.onmessage = (event) => heard(event.data);
  worker.port.postMessage({ query });
  window.addEventListener("pagehide", () => worker.port.postMessage({ close: true }));
  window.addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
}

// Keys -----------------------------------------------------------------------------------------------------------------

function move(step) {
  const own = links().filter((each) => each.hash), place = own.findIndex((each) => each.hasAttribute("aria-current"));
  location.hash = own.at((place < 0 && step < 0 ? step : place + step) % own.length).hash;
}
const KEYS = {
  j: () => move(1), k: () => move(-1), o: () => { location.hash = ""; }, "?": () => byId("help").showModal(),
  "/": () => byId("sample-search").focus(),
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) || byId("help").open || !KEYS[event.key]) return;
  event.preventDefault();
  KEYS[event.key]();
});
byId("help-button").addEventListener("click", KEYS["?"]);
window.addEventListener("hashchange", () => { loaded.delete(wanted() || "overview"); markCurrent(); refresh(); });
document.addEventListener("visibilitychange", refresh);
if (window.innerWidth <= 900) byId("nav-details").open = false;
follow();
