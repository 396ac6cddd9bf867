// What the page asks with: passages, reuse or not, length, instructions. Kept in this browser; they are of no document.

import { byId } from "./dom.js";

const KEPT = "hypic.settings";
const FIELDS = ["n_documents", "mode", "max_tokens", "system"];

let settings = {};
try {
  settings = JSON.parse(localStorage.getItem(KEPT) ?? "{}") ?? {};
} catch {
  // as new
}

/** The fields of a request; those that are left to the server are not there. isOver: a collection. */
export function requestFields(isOver) {
  const fields = {};
  if (isOver && settings.n_documents) fields.n_documents = Number(settings.n_documents);
  if (settings.mode) fields.mode = settings.mode;
  if (settings.max_tokens) fields.max_tokens = Number(settings.max_tokens);
  return fields;
}

export const systemMessages = () => (settings.system?.trim() ? [{ role: "system", content: settings.system.trim() }] : []);

/** What differs from the server's own, in words, or "". */
export function told() {
  const parts = [];
  if (settings.n_documents) parts.push(`${settings.n_documents} ${settings.n_documents === "1" ? "passage" : "passages"}`);
  if (settings.mode) parts.push(settings.mode === "full" ? "without reuse" : "with reuse");
  if (settings.max_tokens) parts.push(`at most ${settings.max_tokens} tokens`);
  if (settings.system?.trim()) parts.push("own instructions");
  return parts.join(", ");
}

/** changed(): others are in force. */
export function startSettings(changed) {
  const dialog = byId("settings");
  const form = byId("settings-form");
  const show = () => FIELDS.forEach((name) => (form.elements[name].value = settings[name] ?? ""));
  byId("open-settings").addEventListener("click", () => {
    show();
    byId("settings-error").textContent = "";
    dialog.showModal();
  });
  const keep = (next) => {
    settings = next;
    if (Object.keys(next).length) localStorage.setItem(KEPT, JSON.stringify(next));
    else localStorage.removeItem(KEPT);
    dialog.close();
    changed();
  };
  byId("settings-reset").addEventListener("click", () => keep({}));
  byId("settings-cancel").addEventListener("click", () => dialog.close());
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const wrong = [["n_documents", "passages", 100], ["max_tokens", "tokens", 100000]].find(([name, , most]) => {
      const value = form.elements[name].value.trim();
      return value && !(Number.isInteger(Number(value)) && Number(value) >= 1 && Number(value) <= most);
    });
    if (wrong) {
      byId("settings-error").textContent = `Give a whole number of ${wrong[1]} from 1 to ${wrong[2].toLocaleString("en")}, or leave it empty.`;
      form.elements[wrong[0]].focus();
      return;
    }
    keep(Object.fromEntries(FIELDS.map((name) => [name, form.elements[name].value.trim()]).filter(([, value]) => value)));
  });
}
