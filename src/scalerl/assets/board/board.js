"use strict";
// What is shown, and when it is asked for again: the stream says which versions changed, and only those are fetched.

const TOKEN = new URLSearchParams(location.search).get("token");
const state = { list: null, versions: null, epoch: null, page: null, online: false, asking: new Set(), again: new Set(), loaded: new Map() };

async function ask(path, query = {}) {
  const params = new URLSearchParams(query);
  if (TOKEN) params.set("token", TOKEN);
  try {
    const answer = await fetch(`${path}${params.size ? `?${params}` : ""}`);
    if (answer.status === 403) setConnection("this link is out of date: open the new one", "bad");
    return answer.ok ? await answer.json() : null;
  } catch { return null; }
}

// One request at a time for each thing; a change during one leads to another.
async function load(path, take) {
  if (state.asking.has(path)) return state.again.add(path);
  state.asking.add(path);
  const data = await ask(path);
  state.asking.delete(path);
  if (data) { state.loaded.set(path, data.version); take(data); }
  if (state.again.delete(path)) load(path, take);
}

function announce(text) { byId("announce").textContent = text; }
function setConnection(text, kind) { const badge = byId("connection"); if (badge.textContent !== text) badge.textContent = text; badge.className = `badge ${kind}`; }

// The list of runs -----------------------------------------------------------------------------------------------------

function takeList(list) {
  state.list = list;
  const link = (href, label, left, count) => {
    const made = element("a", { href }, left, element("span", { className: "label", title: label }, label), count ? element("span", { className: "count" }, element("span", { className: "unseen" }, "alarms: "), String(count)) : element("span", {}));
    if (location.hash === href) made.setAttribute("aria-current", "page");
    return element("li", {}, made);
  };
  const dot = (run) => element("span", { className: `state ${run.status}`, title: run.status });
  const studies = list.studies.flatMap((study) => [element("h3", {}, element("a", { href: `#study/${study.key}` }, `Study ${study.name}`)), element("ul", {}, ...list.runs.filter((run) => run.study === study.key).map((run) => link(`#run/${run.key}`, `${run.arm}, seed ${run.seed}`, dot(run), run.num_alarms)))]);
  const alone = list.runs.filter((run) => !run.study);
  const focused = document.activeElement && document.activeElement.closest && document.activeElement.closest("#nav-list") ? document.activeElement.getAttribute("href") : null;
  byId("nav-list").replaceChildren(element("ul", {}, link("#", "Overview", element("span", {}), 0)), ...(alone.length ? [element("ul", {}, ...alone.map((run) => link(`#run/${run.key}`, run.name, dot(run), run.num_alarms)))] : []), ...studies);
  if (focused) { const again = [...document.querySelectorAll("#nav-list a")].find((each) => each.getAttribute("href") === focused); if (again) again.focus({ preventScroll: true }); }
  byId("nav-summary").textContent = `Runs (${list.runs.length})`;
  if (state.page instanceof Overview) state.page.show(list);
  // A single run is what its reader came for.
  if (!location.hash && list.runs.length === 1 && !list.num_unread && !list.studies.length && !state.went) { state.went = true; location.replace(`${location.pathname}${location.search}#run/${list.runs[0].key}`); }
}

// Routes ----------------------------------------------------------------------------------------------------------------

function route() {
  const [kind, key] = location.hash.slice(1).split("/"), valid = /^[0-9a-f]{12}$/.test(key || "");
  if (kind === "main") return;
  state.page = valid && ["run", "study"].includes(kind) ? new Page(kind, key) : new Overview();
  byId("main").replaceChildren(state.page.node);
  for (const link of document.querySelectorAll("#nav-list a")) { if (link.getAttribute("href") === (location.hash || "#")) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current"); }
  if (state.page instanceof Overview) { state.page.show(state.list); document.title = "scalerl watch"; }
  refreshPage();
}

function refreshPage() {
  const page = state.page;
  if (!(page instanceof Overview)) load(page.path, (data) => {
    document.title = `${data.name} - scalerl watch`;
    if (state.page === page) page.show(data);
  });
}

let listTimer = null;
function refreshList() {
  // Beside a run the list may lag behind a little.
  if (listTimer) return;
  listTimer = setTimeout(() => { listTimer = null; load("/api/runs", takeList); }, state.list && !(state.page instanceof Overview) ? 800 : state.list ? 120 : 0);
}

function refresh(force = false) {
  if (document.hidden && state.list) return;
  const { versions, page } = state;
  if (!versions) return;
  if (state.epoch !== versions.epoch) { state.epoch = versions.epoch; state.loaded.clear(); force = true; }
  if (force || state.loaded.get("/api/runs") !== versions.version) refreshList();
  if (!(page instanceof Overview) && (force || state.loaded.get(page.path) !== versions.items[page.key])) refreshPage();
}

// The stream -------------------------------------------------------------------------------------------------------------

function heard({ online, versions }) {
  if (online !== state.online || !state.heard) { setConnection(online ? "live" : "not connected: trying again", online ? "ok" : "warn"); if (state.heard) announce(online ? "Connected again" : "The connection is lost"); }
  state.heard = true;
  state.online = online;
  if (versions) { state.versions = versions; refresh(); }
}

function follow() {
  const query = TOKEN ? `?token=${encodeURIComponent(TOKEN)}` : "";
  if (window.SharedWorker) {
    const worker = new SharedWorker("/assets/stream.js", { name: `board ${TOKEN || ""}` });
    worker.port.onmessage = (event) => heard(event.data);
    worker.port.postMessage({ query });
    window.addEventListener("pagehide", () => worker.port.postMessage({ close: true }));
    window.addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
    return;
  }
  const source = new EventSource(`/api/events${query}`);
  source.onopen = () => heard({ online: true });
  source.onerror = () => heard({ online: false });
  source.addEventListener("versions", (event) => heard({ online: true, versions: JSON.parse(event.data) }));
}

// Keys -------------------------------------------------------------------------------------------------------------------

function move(by) {
  if (!state.list || !state.list.runs.length) return;
  const keys = state.list.runs.map((run) => run.key), at = keys.indexOf(location.hash.split("/")[1]);
  location.hash = `run/${keys[(at < 0 ? (by > 0 ? 0 : keys.length - 1) : (at + by + keys.length) % keys.length)]}`;
}
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) || byId("help").open) return;
  const search = byId("sample-search");
  if (event.key === "j") move(1);
  else if (event.key === "k") move(-1);
  else if (event.key === "o") location.hash = "";
  else if (event.key === "?") byId("help").showModal();
  else if (event.key === "t") byId("theme").click();
  else if (event.key === "c" && byId("column-pick")) { event.preventDefault(); byId("column-pick").focus(); }
  else if (event.key === "/" && search && !search.closest("section").hidden) { event.preventDefault(); search.focus(); }
});
themeButton(byId("theme"));
byId("help-button").addEventListener("click", () => byId("help").showModal());
window.addEventListener("hashchange", route);
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
let wide = window.innerWidth;
window.addEventListener("resize", () => { if (window.innerWidth !== wide) { wide = window.innerWidth; if (state.page) state.page.show(state.page instanceof Overview ? state.list : undefined); } });
if (window.innerWidth <= 900) byId("nav-details").open = false;
route();
follow();
load("/api/runs", takeList);
