// Why requests failed of late, as their client reads it.

import { byId, el, show, table } from "./dom.js";
import { clock, nameOf, whole } from "./format.js";

export function showFailures(failures) {
  const count = byId("failure-count");
  count.hidden = !failures.length;
  count.textContent = whole(failures.length);
  const columns = [
    { title: "time", cell: (failure) => clock(failure.time) },
    { title: "what", cell: what },
    { title: "cause", wide: true, cell: (failure) => failure.cause },
    { title: "to change", cell: (failure) => (failure.category === "user" ? "the request" : "nothing: the mesh's fault") },
    { title: "run or sampler", cell: parent },
    { title: "request", cell: (failure) => el("code", { title: failure.request_id }, failure.request_id) },
  ];
  show(byId("failures"), failures.length
    ? table("The newest first; kept for seven days", columns, failures)
    : el("p", { class: "empty" }, "Nothing failed in the last seven days."));
}

function what(failure) {
  return failure.op + (failure.times > 1 ? ` and ${whole(failure.times - 1)} more alike` : "");
}

function parent(failure) {
  const name = nameOf(failure.parent);
  return failure.parent.includes(":train:")
    ? el("a", { href: `#runs/${failure.parent}`, title: failure.parent }, name)
    : el("span", { title: failure.parent }, name);
}
