// The passages beside an answer: title, similarity, where their segments came from, and the text.

import { h, setText } from "./dom.js";
import { origin, pageName } from "./words.js";

/** element; show(run); point(index) and open(index) at one. Rows keep their height while an answer comes. */
export function sourcesView() {
  const list = h("ol", { class: "plain" });
  const heading = h("h3", {}, "Sources");
  const element = h("aside", { class: "sources", "aria-label": "Sources", hidden: true }, h("div", { class: "sources-head" }, heading, h("span", { class: "fine", "aria-hidden": "true" }, "similarity")), list);
  let items = [];

  return {
    element,
    show({ documents, hypic, state }) {
      element.hidden = documents.length === 0;
      setText(heading, hypic?.answered === false ? "Read, and none of them says it" : "Sources");
      if (items.length !== documents.length) {
        items = documents.map(sourceItem);
        list.replaceChildren(...items.map((item) => item.element));
      }
      documents.forEach((document, i) => items[i].from(hypic ? origin(document.tier, document.miss_reason) : null, state));
    },
    point(index) {
      items.forEach((item, i) => item.element.classList.toggle("pointed", i === index));
    },
    open(index) {
      items[index]?.open();
    },
  };
}

function sourceItem(document, i) {
  const badge = h("span", { class: "badge" });
  const isScored = typeof document.similarity === "number";
  const similarity = h("span", { class: "similarity", title: "Similarity of the passage and the question" },
    isScored ? [h("span", { class: "hidden" }, "similarity "), document.similarity.toFixed(2)] : []);
  const passage = h("div", { class: "passage", tabIndex: 0, role: "region", "aria-label": `Passage ${i + 1}` }, h("p", {}, document.text ?? ""));
  const where = [document.source !== document.title && document.source, pageName(document.page_label)].filter(Boolean).join(", ");
  const file = where ? h("p", { class: "fine path" }, where) : null;
  const details = h("details", {},
    h("summary", {},
      h("span", { class: "source-title" }, h("span", { class: "source-number" }, String(i + 1)), document.title || "Untitled"),
      similarity, badge,
      h("span", { class: "excerpt" }, (document.text ?? "").slice(0, 200))),
    passage, file);
  return {
    element: h("li", {}, details),
    from(known, state) {
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
