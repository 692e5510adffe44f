// Pools with their slots, queues and samplers; and the reader's own queues.

import { byId, el, show, table } from "./dom.js";
import { duration, nameOf, whole } from "./format.js";

const SLOTS = { yours: "yours", others: "other tenants'", unusable: "out of use", free: "free" };

export function showMesh(state) {
  const pools = state.pools.map(pool);
  show(byId("pools"), ...(pools.length ? pools : [el("p", { class: "card empty" }, "No trainer or sampler has joined yet.")]));
  const columns = [
    { title: "run", cell: (queue) => el("a", { href: `#runs/${queue.run_id}`, title: queue.run_id }, nameOf(queue.run_id)) },
    { title: "commands", cell: (queue) => whole(queue.depth) },
    { title: "oldest", cell: (queue) => duration(queue.oldest_ms) },
    { title: "waits for", wide: true, cell: waits },
  ];
  show(byId("queues"), state.queues.length
    ? table("Your runs with commands that wait or run", columns, state.queues)
    : el("p", { class: "empty" }, "Nothing of yours waits."));
}

function waits(queue) {
  return queue.waits_for_seq === null ? "its turn" : `command ${queue.waits_for_seq}, which has not arrived`;
}

function pool(one) {
  const all = Object.values(one.slots).reduce((sum, count) => sum + count, 0);
  return el("section", { class: "card pool" },
    el("h2", {}, one.base_model),
    one.paused ? el("p", { class: "error" }, "A trainer fails again and again and gets no work until it is replaced.") : "",
    el("h3", {}, "Slots"),
    bar(one.slots, all),
    el("ul", { class: "legend" }, ...Object.entries(SLOTS).map(([name, label]) =>
      el("li", {}, el("span", { class: `swatch slot-${name}`, "aria-hidden": "true" }), `${whole(one.slots[name])} ${label}`))),
    el("dl", { class: "facts" }, ...facts(one).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])));
}

function bar(slots, all) {
  const label = Object.entries(SLOTS).map(([name, what]) => `${slots[name]} ${what}`).join(", ");
  const cells = Object.keys(SLOTS).flatMap((name) =>
    Array.from({ length: Math.min(64, slots[name]) }, () => el("span", { class: `slot slot-${name}` })));
  return el("div", { class: "slots", role: "img", "aria-label": `${all} slots: ${label}` }, ...cells);
}

function facts(one) {
  const draining = one.trainers_draining ? `, ${whole(one.trainers_draining)} being emptied` : "";
  const samplers = one.samplers.map((part) => `${whole(part.count)} ${part.role === "both" ? "" : part.role}`.trim()
    + ` (${whole(part.in_flight)} in flight)`).join(", ");
  return [
    ["Trainers", one.trainers ? `${whole(one.trainers)} alive${draining}` : "none alive: commands wait"],
    ["Samplers", samplers || "none alive: samples wait"],
    ["Commands queued or running", `${whole(one.commands.yours)} yours, ${whole(one.commands.all)} of all tenants`],
    ["Samples queued or running", `${whole(one.samples.yours)} yours, ${whole(one.samples.waiting + one.samples.running)} of all`
      + ` tenants (${whole(one.samples.waiting)} wait)`],
    ["Models without a slot", whole(one.models_without_slot)],
    ["Models being restored", whole(one.models_restoring)],
  ];
}
