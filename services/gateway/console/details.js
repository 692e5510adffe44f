// What there is to know of the run that was chosen last.

import { byId, el, show, text } from "./dom.js";
import { NONE, STATES, ago, clock, number, title, whole } from "./format.js";

export function showDetails(details, now) {
  const { run } = details;
  text(byId("details-title"), title(run));
  const state = (STATES[run.state] || run.state) + (run.waits_for_slot ? ", waits for one" : "");
  const last = run.last;
  const rows = [
    ["Run", run.run_id],
    ["State", run.close_reason ? `${state}: ${run.close_reason}` : state],
    ["Base model", `${run.base_model}, rank ${run.rank}`],
    ["Project", run.project_id],
    ["Made", clock(run.created)],
    ["Last request", ago(run.last_request, now)],
    ["Steps", last ? `${whole(run.steps)}, the newest ${ago(last.time, now)}` : "none yet"],
    ["Newest loss", last && last.loss !== null
      ? `${number(last.loss)} per position (${number(last.loss_sum)} over ${whole(last.positions)})` : NONE],
    ["Newest gradient norm", number(last && last.grad_norm)],
    ["Learning rate", number(last && last.learning_rate)],
    ["Queued", `${whole(run.queued)} commands`],
    ["Newest checkpoint", details.last_checkpoint],
    ["Newest sampler weights", details.last_sampler_checkpoint],
    ["Metadata", details.user_metadata],
  ];
  show(byId("facts"), ...rows.filter(([, value]) => value).flatMap(([name, value]) => [
    el("dt", {}, name), el("dd", {}, value),
  ]));
}

export function showNoDetails(why) {
  text(byId("details-title"), "Run");
  show(byId("facts"), el("dd", { class: "empty" }, why));
}
