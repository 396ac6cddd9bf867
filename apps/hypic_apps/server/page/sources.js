// The passages behind an answer: title, file and page, similarity, and the text, which opens in its document.

import { h, setText } from "./dom.js";
import { origin, pageName } from "./words.js";

/** element; show(run); point(index) and open(index) at one. number: of the turn. openDocument(index). */
export function sourcesView(number, openDocument) {
  const list = h("ol", { class: "plain" });
  const heading = h("h3", {}, "Sources");
  const element = h("aside", { class: "sources", "aria-label": `Sources of answer ${number}`, hidden: true }, h("div", { class: "sources-head" }, heading, h("span", { class: "fine", "aria-hidden": "true" }, "similarity")), list);
  let items = [];

  return {
    element,
    show({ documents, hypic, state }) {
      element.hidden = documents.length === 0;
      setText(heading, hypic?.answered === false ? "Read, and none of them says it" : "Sources");
      if (items.length !== documents.length) {
        items = documents.map((document, i) => sourceItem(document, i, () => openDocument(i)));
        list.replaceChildren(...items.map((item) => item.element));
      }
      documents.forEach((document, i) => items[i].fill(document, hypic ? origin(document?.tier, document?.miss_reason) : null, state));
    },
    point(index) {
      items.forEach((item, i) => item.element.classList.toggle("pointed", i === index));
    },
    open(index) {
      items[index]?.open();
    },
  };
}

function sourceItem(document, i, openDocument) {
  if (!document) return goneItem(i);
  const badge = h("span", { class: "badge" });
  const similarity = h("span", { class: "similarity" });
  const passage = h("div", { class: "passage", tabIndex: 0, role: "group", "aria-label": `Passage ${i + 1}` }, h("p", {}, document.text ?? ""));
  const title = document.title || document.source || "Untitled";
  const where = [document.source !== title && document.source, pageName(document.page_label)].filter(Boolean).join(", ");
  const details = h("details", {},
    h("summary", {},
      h("span", { class: "source-title" }, h("span", { class: "source-number" }, String(i + 1)), title),
      similarity, where ? h("span", { class: "path" }, where) : null,
      h("span", { class: "excerpt" }, (document.text ?? "").slice(0, 200))),
    passage,
    h("div", { class: "source-foot" }, badge,
      document.file_id ? h("button", { type: "button", class: "quiet", "aria-label": `Open in the document: passage ${i + 1}`, onclick: openDocument }, "Open in the document") : null));
  return {
    element: h("li", {}, details),
    fill({ similarity: cosine }, known, state) {
      const told = typeof cosine === "number" ? cosine.toFixed(2) : state === "done" ? "earlier" : "";
      if (similarity.dataset.told !== told) {
        similarity.dataset.told = told;
        similarity.title = told === "earlier" ? "Found for an earlier question of this conversation, not for this one" : "Similarity of the passage and the question, 1 at most";
        similarity.replaceChildren(h("span", { class: "hidden" }, told === "earlier" ? "found for an " : "similarity "), told);
      }
      badge.title = known?.text ?? "";
      if (known) badge.replaceChildren(h("span", { class: `swatch ${known.piece}`, "aria-hidden": "true" }), known.text);
      else badge.replaceChildren(state === "waiting" || state === "streaming" ? "…" : "");
    },
    open() {
      details.open = true;
      details.querySelector("summary").focus({ preventScroll: true });
      details.scrollIntoView({ block: "nearest" });
    },
  };
}

/** A passage whose file was deleted. */
function goneItem(i) {
  const element = h("li", { class: "gone" }, h("p", { class: "fine" }, h("span", { class: "source-number" }, String(i + 1)), "Its file was deleted, and the passage with it."));
  return { element, fill() {}, open() {} };
}
