// The rows of collections and files: what is happening to each, in words, with a bar where it can be counted.
// Rows are kept by id, so that nothing flickers and focus stays where it is.

import { sentence } from "./api.js";
import { h, setText } from "./dom.js";
import { bytes, count, some } from "./words.js";

const AT_ONCE = 100; // rows; more at a press
const TAIL = 10; // characters of a name that are always seen: names often differ at their end

export const isUnderWay = (file) => ["queued", "parsing", "prefilling"].includes(file.status);

function words(file) {
  switch (file.status) {
    case "uploading": return `Sending, ${Math.round(100 * file.share)} %`;
    case "waiting": return "Waits to be sent";
    case "queued": return "Waits for its turn";
    case "parsing": return "Being opened and cut into passages";
    case "prefilling": return `Being read: ${count(file.tokens_done)} of ${some(file.tokens_total, "token")}`;
    case "failed": return sentence(file.error || "it could not be read");
    default: {
      const ready = `${some(file.n_chunks, "passage")}, ${bytes(file.bytes)}`;
      const cold = file.cached ? file.cached.n_segments - file.cached.n_cached : 0;
      const partly = file.error ? `. ${sentence(file.error)}` : "";
      return (cold > 0 ? `${ready}. ${count(cold)} to be read when asked for` : ready) + partly;
    }
  }
}

const shareOf = (file) => {
  if (file.status === "uploading") return file.share;
  if (file.status === "prefilling" && file.tokens_total > 0) return file.tokens_done / file.tokens_total;
  return null;
};

/** Brings a list's rows to these items: make(item) makes a row {element}, fill(row, item) says what is new of it. */
function keyed(list, idOf, make, fill) {
  const rows = new Map();
  return function show(items) {
    const ids = new Set(items.map(idOf));
    for (const [id, row] of rows) {
      if (ids.has(id)) continue;
      row.element.remove();
      rows.delete(id);
    }
    items.forEach((item, i) => {
      if (!rows.has(idOf(item))) rows.set(idOf(item), make(item));
      const row = rows.get(idOf(item));
      fill(row, item);
      if (list.children[i] !== row.element) list.insertBefore(row.element, list.children[i] ?? null);
    });
  };
}

/** A name whose middle gives way where there is no room. */
function nameParts(name) {
  const letters = [...name];
  const cut = letters.length > 2 * TAIL ? letters.length - TAIL : letters.length;
  return [h("span", { class: "name-head" }, letters.slice(0, cut).join("")), h("span", { class: "name-tail" }, letters.slice(cut).join(""))];
}

/** show(files, ids of the selected). remove(file), open(file), select(file, whether): at its buttons. */
export function fileList(list, { remove, open, select }) {
  let most = AT_ONCE;
  const moreButton = h("button", { type: "button", class: "quiet" }, "");
  const more = h("li", { class: "more" }, moreButton);
  const make = (file) => {
    const status = h("span", { class: "file-status" });
    const bar = h("span", { class: "meter", hidden: true }, h("span", {}));
    const button = h("button", { type: "button", class: "quiet remove" });
    const name = h("button", { type: "button", class: "file-name", title: file.filename }, nameParts(file.filename));
    const box = h("input", { type: "checkbox", class: "select", "aria-label": `Choose ${file.filename}` });
    const element = h("li", { class: "file" }, box, name, button, status, bar);
    return { element, status, bar, button, name, box };
  };
  const fill = ({ element, status, bar, button, name, box }, file, selected) => {
    const share = shareOf(file);
    element.dataset.status = file.status;
    setText(status, words(file));
    status.title = status.textContent;
    bar.hidden = share === null;
    bar.firstChild.style.width = `${100 * (share ?? 0)}%`;
    setText(button, !file.local ? "Delete" : file.status === "failed" ? "Dismiss" : "Cancel");
    button.setAttribute("aria-label", `${button.textContent} ${file.filename}`);
    button.onclick = () => remove(file);
    name.disabled = file.status !== "ready";
    name.onclick = () => open(file);
    box.hidden = Boolean(file.local);
    box.checked = selected.has(file.id);
    box.onchange = () => select(file, box.checked);
  };
  let selectedNow = new Set();
  const show = keyed(list, (file) => file.id, make, (row, file) => fill(row, file, selectedNow));
  let last = [];
  const draw = (files, selected) => {
    last = files;
    selectedNow = selected;
    show(files.slice(0, most));
    moreButton.textContent = `Show ${count(Math.min(AT_ONCE, files.length - most))} more of ${count(files.length)}`;
    if (files.length > most) list.append(more);
    else more.remove();
  };
  moreButton.addEventListener("click", () => {
    const next = most;
    most += AT_ONCE;
    draw(last, selectedNow);
    list.children[next]?.querySelector("button, input:not([hidden])")?.focus();
  });
  return draw;
}

/** show(collections, name of the chosen one). */
export function collectionList(list, choose) {
  let chosen = null;
  const make = (one) => {
    const state = h("span", { class: "fine" });
    const button = h("button", { type: "button", class: "row", title: one.name ?? "Ask the model, without documents", onclick: () => choose(one.name) }, h("span", { class: "row-title" }, one.name ?? "No collection"), state);
    return { element: h("li", {}, button), button, state };
  };
  const fill = ({ button, state }, one) => {
    const { tokens_done: done, tokens_total: total } = one.progress ?? {};
    const share = total > 0 ? `, ${Math.floor((100 * done) / total)} %` : "";
    setText(state, one.name === null ? "the model alone" : one.status === "working" ? `reading${share}` : some(one.n_files, "file"));
    button.setAttribute("aria-current", String(one.name === chosen));
  };
  const show = keyed(list, (one) => one.id, make, fill);
  const alone = { id: "", name: null };
  return (collections, name) => {
    chosen = name;
    show(collections.length ? [...collections, alone] : []);
  };
}
