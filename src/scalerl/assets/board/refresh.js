"use strict";
// Asks for the page again every second, and puts what has changed in its place.

const EVERY_MS = 1000;
const connection = document.getElementById("connection"), announced = document.getElementById("announce");
let tag = null;

async function refresh() {
  if (document.hidden) return;
  try {
    const answer = await fetch(location.href, { cache: "no-store", headers: tag ? { "If-None-Match": tag } : {} });
    connection.dataset.state = answer.status === 403 ? "old" : "live";
    if (!answer.ok) return;
    const isFirst = tag === null;
    tag = answer.headers.get("ETag");
    take(new DOMParser().parseFromString(await answer.text(), "text/html"), isFirst);
  } catch { connection.dataset.state = "lost"; }
}

function take(page, isFirst) {
  const open = new Set([...document.querySelectorAll("#report details[open]")].map((each) => each.dataset.key));
  const known = new Set([...document.querySelectorAll("#report .say.warning")].map((each) => each.dataset.kind));
  for (const each of page.querySelectorAll("#report details")) if (open.has(each.dataset.key)) each.open = true;
  for (const part of ["header.top", "main"]) document.querySelector(part).replaceWith(page.querySelector(part));
  document.title = page.title;
  const added = [...document.querySelectorAll("#report .say.warning")].filter((each) => !known.has(each.dataset.kind));
  if (added.length && !isFirst) announced.textContent = added.map((each) => each.textContent).join(" ");
}

async function follow() {
  await refresh();
  setTimeout(follow, EVERY_MS);
}
document.addEventListener("visibilitychange", refresh);
follow();
