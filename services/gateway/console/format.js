// Numbers and times as people read them.

export const NONE = "–";

export function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(3).replace(/\.?0+e/, "e");
  return String(Number(value.toPrecision(5)));
}

export function whole(value) {
  return value.toLocaleString("en-US");
}

export function duration(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

export function ago(time, now) {
  return now - time < 2000 ? "now" : `${duration(now - time)} ago`;
}

const two = (value) => String(value).padStart(2, "0");

/** In the reader's own time zone. */
export function clock(time) {
  const at = new Date(time);
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

/** What a run is called: its name, else the beginning of its id with its number. */
export function title(run) {
  return run.name || shortId(run.run_id);
}

function shortId(id) {
  const [session, kind, seq] = id.split(":");
  return kind === "train" ? `${session.slice(0, 8)}…:${seq}` : `${session.slice(0, 8)}…`;
}

const names = new Map();

/** Runs whose names other views may then show. */
export function learn(runs) {
  for (const run of runs) names.set(run.run_id, title(run));
}

/** What a run, or a sampling session, is called as far as this page has seen. */
export function nameOf(id) {
  return names.get(id) || shortId(id);
}

export const STATES = {
  ready: "in a slot",
  parked: "without a slot",
  restoring: "being restored",
  creating: "being made",
  closing: "closing",
  closed: "closed",
  ended: "ended",
};
