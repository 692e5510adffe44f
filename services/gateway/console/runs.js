// The list of runs: a listbox with pages and a search.

import { byId, el, text } from "./dom.js";
import { STATES, ago, number, title, whole } from "./format.js";

export const PAGE = 25;
const TYPING_MS = 300;

export class RunList {
  /** `chosen(ids)` is told which runs are to be drawn, `moved()` that another page or search is wanted. */
  constructor(chosen, moved) {
    this.list = byId("runs");
    this.search = byId("search");
    this.chosen = chosen;
    this.moved = moved;
    this.forget();
    this.list.addEventListener("keydown", (event) => this.pressed(event));
    this.list.addEventListener("click", (event) => this.clicked(event));
    this.list.addEventListener("focus", () => this.activate(this.active || this.selected[0] || this.ids()[0]));
    this.search.addEventListener("input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.move(0), TYPING_MS);
    });
    byId("page-newer").addEventListener("click", () => this.move(this.offset - PAGE));
    byId("page-older").addEventListener("click", () => this.move(this.offset + PAGE));
  }

  forget() {
    clearTimeout(this.typing);
    this.runs = [];
    this.offset = 0;
    this.selected = [];
    this.active = "";
    this.search.value = "";
    this.list.replaceChildren();
  }

  words() {
    return this.search.value.trim();
  }

  ids() {
    return this.runs.map((run) => run.run_id);
  }

  move(offset) {
    this.offset = Math.max(0, offset);
    this.moved();
  }

  /** An answer of the gateway. A page that has emptied meanwhile gives way to the last one. */
  show(answer, now) {
    if (!answer.runs.length && this.offset > 0) return this.move(Math.max(0, Math.floor((answer.total - 1) / PAGE) * PAGE));
    this.runs = answer.runs;
    if (!this.ids().includes(this.active)) this.active = "";
    this.list.replaceChildren(...this.runs.map((run) => this.option(run, now)));
    if (!this.runs.length) this.list.append(el("li", { class: "empty", role: "presentation" }, this.nothing(answer)));
    if (document.activeElement === this.list) this.activate(this.active || this.ids()[0]);
    this.pager(answer);
  }

  nothing(answer) {
    if (!answer.known) return "No runs yet. The first create_lora_training_client makes one.";
    return `No run matches among the newest ${whole(answer.searched || 0)}.`;
  }

  pager(answer) {
    const last = Math.min(answer.total, this.offset + this.runs.length);
    const place = answer.total ? `${whole(this.offset + 1)}–${whole(last)} of ${whole(answer.total)}` : "";
    text(byId("page-place"), place);
    byId("page-newer").disabled = this.offset === 0;
    byId("page-older").disabled = last >= answer.total;
    const searched = answer.searched && answer.searched < answer.known
      ? `, among the newest ${whole(answer.searched)} of ${whole(answer.known)}` : "";
    text(byId("runs-summary"), answer.searched === null ? `${whole(answer.total)} runs` : `${whole(answer.total)} match${searched}`);
  }

  option(run, now) {
    const at = this.selected.indexOf(run.run_id);
    const loss = run.last && run.last.loss !== null ? `loss ${number(run.last.loss)}` : "no loss yet";
    const queued = run.queued ? ` · ${whole(run.queued)} queued` : "";
    return el("li", {
      role: "option", id: `run-${run.run_id}`, "data-run": run.run_id, "aria-selected": String(at >= 0),
      class: this.active === run.run_id ? "active" : null,
    },
    el("span", { class: `swatch ${at >= 0 ? `curve-${at}` : ""}`, "aria-hidden": "true" }),
    el("span", { class: "name" }, title(run)),
    el("span", { class: `badge ${run.state}` }, STATES[run.state] || run.state),
    el("span", { class: "small" }, `${whole(run.steps)} steps · ${loss}${queued} · ${ago(run.last_request, now)}`));
  }

  activate(id) {
    if (!id) return;
    this.active = id;
    for (const option of this.list.children) option.classList.toggle("active", option.dataset.run === id);
    this.list.setAttribute("aria-activedescendant", `run-${id}`);
    byId(`run-${id}`)?.scrollIntoView({ block: "nearest" });
  }

  pressed(event) {
    const ids = this.ids();
    const at = ids.indexOf(this.active);
    const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: ids.length - 1 }[event.key];
    if (next !== undefined) this.activate(ids[Math.min(ids.length - 1, Math.max(0, next))]);
    else if (event.key === "Enter" && this.active) this.select([this.active]);
    else if (event.key === " " && this.active) this.select(this.toggled(this.active));
    else return;
    event.preventDefault();
  }

  clicked(event) {
    const option = event.target.closest("[data-run]");
    if (!option) return;
    this.activate(option.dataset.run);
    const adds = event.ctrlKey || event.metaKey || event.shiftKey || event.target.classList.contains("swatch");
    this.select(adds ? this.toggled(option.dataset.run) : [option.dataset.run]);
  }

  toggled(id) {
    return this.selected.includes(id) ? this.selected.filter((one) => one !== id) : [...this.selected, id];
  }

  select(ids) {
    this.selected = this.chosen(ids);
    for (const option of this.list.querySelectorAll("[data-run]")) {
      const at = this.selected.indexOf(option.dataset.run);
      option.setAttribute("aria-selected", String(at >= 0));
      option.querySelector(".swatch").className = `swatch ${at >= 0 ? `curve-${at}` : ""}`;
    }
  }
}
