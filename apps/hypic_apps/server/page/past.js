// The list of conversations: searched, opened, renamed, deleted.

import { confirm } from "./confirm.js";
import * as kept from "./conversations.js";
import { announce, byId, h } from "./dom.js";
import { count, some, whenWas } from "./words.js";

const FEW = 8; // shown at first

/** current(): the id of the open one. open(id). renamed(id, title). gone(id): deleted; null for all. */
export function startPast({ current, open, renamed, gone }) {
  let found = [];
  let isWhole = false;
  let asked = 0;
  let isThere = false; // whether there is any at all

  const look = async () => {
    const mine = ++asked;
    const query = byId("past-query").value.trim();
    let list;
    try {
      list = await kept.all(query);
    } catch {
      return; // what the person does next will tell
    }
    if (mine !== asked) return;
    found = list;
    isThere ||= list.length > 0;
    if (!query) isThere = list.length > 0;
    draw();
    if (query) announce(some(list.length, "conversation is found", "conversations are found"));
  };

  const draw = () => {
    byId("past-section").hidden = !isThere;
    byId("forget").hidden = !isThere;
    const shown = isWhole ? found : found.slice(0, FEW);
    const isFocusedIn = byId("past").contains(document.activeElement);
    byId("past").replaceChildren(...shown.map(row));
    if (isFocusedIn && document.activeElement === document.body) byId("past-query").focus();
    byId("past-none").hidden = found.length > 0;
    byId("past-more").hidden = found.length <= FEW;
    byId("past-more").textContent = isWhole ? "Show fewer" : `Show all ${count(found.length)}`;
  };

  const row = (one) => {
    const about = [one.collection ?? "no collection", whenWas(one.updated_at)].join(" · ");
    return h("li", { class: "past-row", "aria-current": String(one.id === current()) },
      h("button", { type: "button", class: "row", title: one.title, onclick: () => open(one.id) },
        h("span", { class: "past-title" }, one.title), h("span", { class: "fine" }, about)),
      h("span", { class: "row-actions" },
        h("button", { type: "button", class: "quiet", "aria-label": `Rename ${one.title}`, onclick: () => rename(one) }, "Rename"),
        h("button", { type: "button", class: "quiet", "aria-label": `Delete ${one.title}`, onclick: () => remove(one) }, "Delete")));
  };

  const failed = (error) => (byId("past-error").textContent = error.message);

  const rename = async (one) => {
    const title = await newTitle(one.title);
    if (!title || title === one.title) return;
    byId("past-error").textContent = "";
    await kept.rename(one.id, title).then(() => renamed(one.id, title), failed);
    await look();
  };

  const remove = async (one) => {
    if (!(await confirm("Delete this conversation?", `“${one.title}” cannot be brought back.`))) return;
    byId("past-error").textContent = "";
    await kept.remove(one.id).then(() => gone(one.id), failed);
    announce("The conversation is deleted.");
    await look();
  };

  byId("past-query").addEventListener("input", look);
  byId("past-more").addEventListener("click", () => {
    isWhole = !isWhole;
    draw();
  });
  byId("forget").addEventListener("click", async () => {
    if (!(await confirm("Delete all conversations?", "They cannot be brought back. Files stay.", "Delete all"))) return;
    byId("past-error").textContent = "";
    await kept.removeAll().then(() => gone(null), failed);
    byId("past-query").value = "";
    await look();
  });
  return { look, draw };
}

function newTitle(title) {
  const dialog = byId("rename");
  const input = byId("rename-input");
  input.value = title;
  dialog.returnValue = "no";
  dialog.showModal();
  input.select();
  return new Promise((resolve) => {
    byId("rename-cancel").onclick = () => dialog.close("no");
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes" ? input.value.trim() : ""), { once: true });
  });
}
