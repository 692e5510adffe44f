// The page: signing in, which view is shown, and keeping it fresh.

import * as api from "./api.js";
import { Chart, MEASURES, MOST_RUNS } from "./chart.js";
import { showDetails, showNoDetails } from "./details.js";
import { byId, el, show, text } from "./dom.js";
import { showFailures } from "./failures.js";
import { clock, duration, learn, title } from "./format.js";
import { showMesh } from "./mesh.js";
import { Poll } from "./poll.js";
import { PAGE, RunList } from "./runs.js";

const VIEWS = ["runs", "mesh", "failures"];
const STALE_MS = 15000;
// Where something of a tenant stands, beside the chart and the list: whoever signs in next must not find it.
const SHOWN = ["pools", "queues", "failures", "failure-count", "facts", "details-title", "legend", "chart-table",
  "runs-summary", "page-place"];
const details = new Map();
let updated = 0;
let refusal = ""; // why a run that was asked for is not shown

const chart = new Chart(byId("chart"), byId("readout"), byId("chart-table"));
const list = new RunList(choose, () => poll.now());
const poll = new Poll(refresh, failed);

async function refresh(current) {
  const [state, runs, ...found] = await Promise.all([
    api.getState(),
    api.listRuns(list.words(), list.offset, PAGE),
    ...list.selected.map((id) => api.getRun(id).catch((error) => (current() ? lost(id, error) : null))),
  ]);
  if (!current()) return;
  updated = Date.now();
  byId("trouble").hidden = true;
  for (const one of found) if (one) details.set(one.run.run_id, one);
  learn(runs.runs);
  showMesh(state);
  showFailures(state.failures);
  draw(state.now);
  list.show(runs, state.now);
  const first = runs.runs.find((run) => run.steps) || runs.runs[0];
  if (!list.selected.length && !refusal && first) list.select([first.run_id]);
  freshness();
}

/** A run that cannot be shown leaves the chart, saying so; anything else fails the whole refresh. */
function lost(id, error) {
  if (error.status !== 403 && error.status !== 404 && error.status !== 400) throw error;
  const rest = list.selected.filter((one) => one !== id);
  refusal = error.message;
  list.select(rest);
  return null;
}

function choose(ids) {
  const kept = ids.slice(-MOST_RUNS);
  const newest = kept.at(-1) || "";
  if (newest) refusal = "";
  const hash = newest ? `#runs/${newest}` : "#runs";
  if (view() === "runs" && location.hash !== hash) history.replaceState(null, "", hash);
  list.selected = kept;
  draw(Date.now());
  if (kept.some((id) => !details.has(id))) poll.now();
  return kept;
}

function draw(now) {
  const shown = list.selected.map((id) => details.get(id)).filter(Boolean);
  chart.show(shown);
  show(byId("legend"), ...shown.map((one, index) =>
    el("li", {}, el("span", { class: `swatch curve-${index}`, "aria-hidden": "true" }), title(one.run))));
  const newest = details.get(list.selected.at(-1));
  if (newest) showDetails(newest, now);
  else if (!list.selected.length) showNoDetails(refusal || "No run is chosen.");
}

function failed(error, wait) {
  if (error.status === 401) return signOut(`This key was refused: ${error.message}.`);
  const since = updated ? ` What is shown is of ${clock(updated)}.` : "";
  const trouble = byId("trouble");
  trouble.hidden = false;
  text(trouble, `Not up to date: ${error.message || error}.${since} The next try is in ${duration(wait)}.`);
  freshness();
}

function freshness() {
  const old = Date.now() - updated;
  byId("freshness").classList.toggle("stale", !updated || old > STALE_MS);
  text(byId("freshness"), updated ? (old < STALE_MS ? "Up to date" : `Updated ${duration(old)} ago`) : "Loading");
}

function view() {
  const name = location.hash.slice(1).split("/")[0];
  return VIEWS.includes(name) ? name : "runs";
}

/** The run that the address names. A link that was cut off within an escape names none: the gateway says so. */
function askedRun() {
  if (!location.hash.startsWith("#runs/")) return "";
  const id = location.hash.slice("#runs/".length);
  try {
    return decodeURIComponent(id);
  } catch {
    return id;
  }
}

function route() {
  if (!api.key.get()) return;
  const asked = askedRun();
  for (const name of VIEWS) byId(`view-${name}`).hidden = name !== view();
  for (const link of document.querySelectorAll("[data-view]")) {
    if (link.dataset.view === view()) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (asked && !list.selected.includes(asked)) list.select([asked]);
  if (view() === "runs") draw(Date.now());
}

function signIn() {
  byId("sign-in").hidden = true;
  byId("views").hidden = byId("account").hidden = false;
  updated = 0;
  freshness();
  route();
  return poll.start();
}

function signOut(why = "") {
  poll.stop();
  api.key.forget();
  details.clear();
  refusal = "";
  list.forget();
  for (const place of SHOWN) byId(place).replaceChildren();
  byId("failure-count").hidden = true;
  chart.show([]);
  for (const name of VIEWS) byId(`view-${name}`).hidden = true;
  byId("views").hidden = byId("account").hidden = byId("trouble").hidden = true;
  byId("sign-in").hidden = false;
  text(byId("sign-in-error"), why);
  byId("key").value = "";
  byId("key").focus();
}

byId("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  api.key.set(byId("key").value.trim());
  byId("key").value = "";
  text(byId("sign-in-error"), "");
  signIn().then(() => api.key.get() && byId("main").focus());
});
byId("sign-out").addEventListener("click", () => {
  history.replaceState(null, "", location.pathname);
  signOut();
});
for (const id of ["measure", "logarithmic"]) {
  byId(id).addEventListener("change", () => {
    chart.choose(byId("measure").value, byId("logarithmic").checked);
    text(byId("chart-title"), MEASURES[byId("measure").value]);
  });
}
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the fragment says which view is shown
  byId("main").focus();
});
addEventListener("hashchange", route);
setInterval(freshness, 1000);
show(byId("measure"), ...Object.entries(MEASURES).map(([name, what]) => el("option", { value: name }, what)));
text(byId("chart-title"), MEASURES.loss);
if (api.key.get()) signIn();
else signOut();
