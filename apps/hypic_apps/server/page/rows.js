// The rows of collections and files: what is happening to each, in words, with a bar where it can be counted.
// Rows are kept by id, so that nothing flickers and focus stays where it is.

import { sentence } from "./api.js";
import { h, setText } from "./dom.js";
import { bytes, count, some } from "./words.js";

const SHOWN = 200;

export const isUnderWay = (file) => ["queued", "parsing", "prefilling"].includes(file.status);

function words(file) {
  switch (file.status) {
    case "uploading": return `Sending, ${Math.round(100 * file.share)} %`;
    case "waiting": return "Waits to be sent";
    case "queued": return "Waits for its turn";
    case "parsing": return "Being read and cut into passages";
    case "prefilling": return `Prefilling: ${count(file.tokens_done)} of ${some(file.tokens_total, "token")}`;
    case "failed": return sentence(file.error || "it could not be read");
    default: {
      const cold = file.n_segments - file.n_prefilled;
      const ready = `${some(file.n_chunks, "passage")}, ${bytes(file.bytes)}`;
      return cold > 0 ? `${ready}. ${some(cold, "segment")} not prefilled: computed when asked for` : ready;
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

/** show(files). remove(file) is called at its button. */
export function fileList(list, remove) {
  const more = h("li", { class: "fine" });
  const make = (file) => {
    const status = h("span", { class: "file-status" });
    const bar = h("span", { class: "meter", hidden: true }, h("span", {}));
    const button = h("button", { type: "button", class: "quiet remove" });
    const element = h("li", { class: "file" }, h("span", { class: "file-name", title: file.filename }, file.filename), button, status, bar);
    return { element, status, bar, button };
  };
  const fill = ({ element, status, bar, button }, file) => {
    const share = shareOf(file);
    element.dataset.status = file.status;
    setText(status, words(file));
    bar.hidden = share === null;
    bar.firstChild.style.width = `${100 * (share ?? 0)}%`;
    setText(button, !file.local ? "Delete" : file.status === "failed" ? "Dismiss" : "Cancel");
    button.setAttribute("aria-label", `${button.textContent} ${file.filename}`);
    button.onclick = () => remove(file);
  };
  const show = keyed(list, (file) => file.id, make, fill);
  return (files) => {
    show(files.slice(0, SHOWN));
    more.textContent = `and ${count(files.length - SHOWN)} more`;
    if (files.length > SHOWN) list.append(more);
    else more.remove();
  };
}

/** show(collections, name of the chosen one). */
export function collectionList(list, choose) {
  let chosen = null;
  const make = (one) => {
    const state = h("span", { class: "fine" });
    const button = h("button", { type: "button", class: "row", onclick: () => choose(one.name) }, h("span", { class: "row-title" }, one.name), state);
    return { element: h("li", {}, button), button, state };
  };
  const fill = ({ button, state }, one) => {
    const { tokens_done: done, tokens_total: total } = one.progress ?? {};
    const share = total > 0 ? `, ${Math.floor((100 * done) / total)} %` : "";
    setText(state, one.status === "working" ? `prefilling${share}` : some(one.n_files, "file"));
    button.setAttribute("aria-current", String(one.name === chosen));
  };
  const show = keyed(list, (one) => one.id, make, fill);
  return (collections, name) => {
    chosen = name;
    show(collections);
  };
}
