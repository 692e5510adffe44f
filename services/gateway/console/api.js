// The gateway's answers. The key lives in this tab's sessionStorage and in a header, nowhere else.

const STORED = "tinkermesh-console-key";
const SECONDS = 20;

class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

export const key = {
  get: () => sessionStorage.getItem(STORED) || "",
  set: (value) => sessionStorage.setItem(STORED, value),
  forget: () => sessionStorage.removeItem(STORED),
};

/** The JSON of a path below /console/api. Throws Refused with the gateway's own text; status 0 = no answer. */
async function get(path, query = {}) {
  const url = new URL(`console/api/${path}`, document.baseURI);
  for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
  let response;
  try {
    response = await fetch(url, {
      headers: { "X-API-Key": key.get() },
      signal: AbortSignal.timeout(SECONDS * 1000),
      credentials: "omit",
      redirect: "error",
    });
  } catch (error) {
    const late = error.name === "TimeoutError";
    throw new Refused(0, late ? `the gateway did not answer within ${SECONDS} s` : "the gateway cannot be reached");
  }
  const body = await response.json().catch(() => null);
  if (!response.ok) throw new Refused(response.status, (body && body.detail) || `the gateway answered ${response.status}`);
  if (body === null) throw new Refused(0, "the answer was cut off");
  return body;
}

export const listRuns = (words, offset, limit) => get("runs", { text: words, offset, limit });
export const getRun = (id) => get(`runs/${encodeURIComponent(id)}`);
export const getState = () => get("state");
