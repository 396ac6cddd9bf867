// Requests to the server: the key, and errors that say what happened and what to do.

import { byId } from "./dom.js";

const KEY = "hypic.key";

/** What a request came to. status: 0 where the server was not reached. */
export class ApiError extends Error {
  constructor(message, status = 0, code = null, retryAfter = null) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
  }

  /** Whether another key may help. */
  get asksForKey() {
    return this.status === 401 || this.code === "wrong_kind_of_key";
  }
}

export const UNREACHED = "The server does not answer. Check that you are connected and that hypic-rag serve is running, then try again.";
const NO_KEY = "This server asks for an API key. Try again to give one.";

export const apiKey = () => sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY);
export const forgetKey = () => [sessionStorage, localStorage].forEach((shelf) => shelf.removeItem(KEY));

/** For this tab, or for this browser until it is forgotten. */
function keepKey(key, isForLong) {
  forgetKey();
  (isForLong ? localStorage : sessionStorage).setItem(KEY, key);
}
export const authorization = () => (apiKey() ? { Authorization: `Bearer ${apiKey()}` } : {});

/** The response of status 2xx. Asks for a key at 401. Throws ApiError, and AbortError where the signal fired. */
export async function request(path, options = {}) {
  for (;;) {
    const used = apiKey();
    let response;
    try {
      response = await fetch(path, { ...options, headers: { ...options.headers, ...authorization() } });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(UNREACHED);
    }
    if (response.ok) return response;
    const error = await errorOf(response);
    if (!error.asksForKey) throw error;
    await renewKey(used, error.message);
  }
}

export async function json(path, options) {
  return (await request(path, options)).json();
}

export const post = (path, body, signal) =>
  request(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal });

async function errorOf(response) {
  const text = await response.text().catch(() => "");
  return errorFrom(response.status, text, response.headers.get("Retry-After"));
}

const WORDLESS = {
  401: "This key was not accepted.",
  413: "This is larger than the server, or one in front of it, takes: send smaller files.",
  502: UNREACHED,
  504: "The server took too long. Try again.",
};

/** An ApiError from an answer's parts; also where something between us and the server answered with no JSON. */
export function errorFrom(status, text, retryAfter) {
  let told = null;
  try {
    told = JSON.parse(text).error;
  } catch {
    // not the server's own words
  }
  const message = told?.message ? sentence(told.message) : (WORDLESS[status] ?? `The server answered with an error (${status}). Try again.`);
  return new ApiError(message, status, told?.code ?? null, retryAfter ? Number(retryAfter) : null);
}

export function sentence(text) {
  const trimmed = text.trim();
  return trimmed.charAt(0).toUpperCase() + trimmed.slice(1) + (/[.!?…]$/.test(trimmed) ? "" : ".");
}

let asking = null; // one dialog for all requests that wait for a key

/** Returns once there is another key than the refused one; why: the server's words. Throws ApiError where none is given. */
export async function renewKey(refused, why) {
  if (apiKey() && apiKey() !== refused) return;
  asking ??= askForKey(refused ? why : "").finally(() => (asking = null));
  if (!(await asking)) throw new ApiError(NO_KEY, 401);
}

function askForKey(trouble) {
  const dialog = byId("key-dialog");
  const input = byId("key-input");
  byId("key-error").textContent = trouble;
  if (!trouble) input.value = "";
  dialog.returnValue = "";
  dialog.showModal();
  input.select();
  return new Promise((resolve) => {
    const submitted = (event) => {
      event.preventDefault();
      if (!input.value.trim()) {
        byId("key-error").textContent = "Write or paste the key first.";
        return;
      }
      keepKey(input.value.trim(), byId("key-keep").checked);
      dialog.close("given");
    };
    const cancelled = () => dialog.close();
    const closed = () => {
      byId("key-form").removeEventListener("submit", submitted);
      byId("key-cancel").removeEventListener("click", cancelled);
      document.dispatchEvent(new Event("hypic:key"));
      resolve(dialog.returnValue === "given");
    };
    byId("key-form").addEventListener("submit", submitted);
    byId("key-cancel").addEventListener("click", cancelled);
    dialog.addEventListener("close", closed, { once: true });
  });
}
