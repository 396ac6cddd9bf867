// The prompt drawn to scale: what was reused, what was computed, and why.

import { h } from "./dom.js";
import { count, milliseconds, origin, some } from "./words.js";

const LEGEND = {
  hit: "reused",
  held: "of earlier turns",
  leading: "system text",
  seam: "seams",
  miss: "prefilled now",
  live: "read in full",
  asked: "question",
};

/** What the prompt is made of, in its order: {label, pieces: [[kind, tokens]], where, document, n}. */
function segmentsOf(hypic, documents) {
  return hypic.segments.map((segment) => {
    const { n_tokens: n, tier, miss_reason: reason, document } = segment;
    const { piece, text } = origin(tier, reason);
    if (segment.kind === "live" && piece === "held") {
      return { label: "Earlier turns", n, seam: 0, pieces: [[piece, n]], where: text, document: null };
    }
    if (segment.kind === "live") {
      return { label: "Question and turns", n, seam: 0, pieces: [["asked", n]], where: "read with the prompt", document: null };
    }
    if (segment.kind === "leading") {
      const kind = piece === "hit" ? "leading" : piece;
      return { label: "System text", n, seam: 0, pieces: [[kind, n]], where: text, document: null };
    }
    const isCached = piece === "hit" || piece === "miss";
    const seam = isCached ? Math.min(segment.seam_tokens ?? 0, n) : 0;
    const known = document === null || document === undefined ? null : documents[document];
    const label = known ? `${document + 1}. ${known.title || "Untitled"}` : "Passage of an earlier turn";
    return { label, n, seam, pieces: [["seam", seam], [piece, n - seam]].filter(([, tokens]) => tokens > 0), where: text, document: known ? document : null };
  });
}

const described = (segment) =>
  `${segment.label}: ${some(segment.n, "token")}, ${segment.where}${segment.seam ? `, ${segment.seam} of seam computed` : ""}`;

/** The head of a run: a line of figures, the bar, a legend. Its height never changes. */
export function promptStrip({ pick, point }) {
  const headline = h("p", { class: "headline" });
  const bar = h("div", { class: "strip", role: "group", "aria-label": "The prompt, segment by segment" });
  const tip = h("div", { class: "tip", hidden: true, "aria-hidden": "true" });
  const legend = h("ul", { class: "legend prompt-legend plain" });
  const element = h("div", { class: "prompt" }, headline, h("div", { class: "strip-place" }, bar, tip), legend);

  const pointAt = (button, segment) => {
    point(segment ? segment.document : null);
    tip.hidden = !segment;
    if (!segment) return;
    tip.textContent = described(segment);
    const place = element.getBoundingClientRect();
    const box = button.getBoundingClientRect();
    const middle = box.left + box.width / 2 - place.left;
    const half = tip.offsetWidth / 2;
    tip.style.left = `${Math.max(half, Math.min(place.width - half, middle))}px`;
  };

  const segmentButton = (segment, i) => {
    const pieces = segment.pieces.map(([kind, tokens]) => {
      const piece = h("span", { class: `piece ${kind}` });
      piece.style.flexGrow = tokens;
      return piece;
    });
    const number = h("span", { class: "number", "aria-hidden": "true" }, h("span", {}, segment.document === null ? "" : String(segment.document + 1)));
    const button = h("button", { type: "button", class: "segment", tabIndex: i === 0 ? 0 : -1, "aria-label": described(segment) },
      h("span", { class: "pieces" }, pieces), number);
    button.style.flexGrow = segment.n;
    button.addEventListener("pointerenter", () => pointAt(button, segment));
    button.addEventListener("pointerleave", () => pointAt(button, null));
    button.addEventListener("focus", () => pointAt(button, segment));
    button.addEventListener("blur", () => pointAt(button, null));
    button.addEventListener("click", () => (segment.document === null ? pointAt(button, segment) : pick(segment.document)));
    return button;
  };

  bar.addEventListener("keydown", (event) => {
    const buttons = [...bar.children];
    const now = buttons.indexOf(document.activeElement);
    const to = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (now < 0 || !buttons[to]) return;
    event.preventDefault();
    buttons[now].tabIndex = -1;
    buttons[to].tabIndex = 0;
    buttons[to].focus();
  });

  return {
    element,
    /** Before there are figures. */
    say(text) {
      headline.replaceChildren(text);
    },
    /** The retrieved passages to scale, before it is known where they come from. */
    expect(documents) {
      bar.replaceChildren(...documents.map((document) => {
        const piece = h("span", { class: "expected" });
        piece.style.flexGrow = document.n_tokens || 1;
        return piece;
      }));
    },
    fill(hypic, documents) {
      const segments = segmentsOf(hypic, documents);
      headline.replaceChildren(
        h("strong", {}, count(hypic.computed_tokens)), ` of ${some(hypic.prompt_tokens, "token")} computed, first token after `,
        h("strong", {}, milliseconds(hypic.ms.ttft)));
      bar.replaceChildren(...segments.map(segmentButton));
      const totals = {};
      for (const [kind, tokens] of segments.flatMap((segment) => segment.pieces)) totals[kind] = (totals[kind] ?? 0) + tokens;
      legend.replaceChildren(...Object.keys(LEGEND).filter((kind) => totals[kind]).map((kind) =>
        h("li", {}, h("span", { class: `swatch ${kind}`, "aria-hidden": "true" }), `${count(totals[kind])} ${LEGEND[kind]}`)));
    },
  };
}

/** The same as words: a table that opens. */
export function segmentTable(hypic, documents) {
  const rows = segmentsOf(hypic, documents).map((segment) =>
    h("tr", {}, h("th", { scope: "row" }, segment.label), h("td", {}, count(segment.n)), h("td", {}, count(segment.seam)), h("td", {}, segment.where)));
  const head = h("tr", {}, ["Segment", "Tokens", "Seam", "Where from"].map((text) => h("th", { scope: "col" }, text)));
  const policy = hypic.mode === "full" ? "full recompute" : `seams of ${hypic.seam_tokens} tokens, compose ${hypic.compose}`;
  return h("details", { class: "table" }, h("summary", {}, "Every segment"),
    h("div", { class: "table-place", tabIndex: 0, role: "region", "aria-label": "Every segment of the prompt" },
      h("table", {}, h("thead", {}, head), h("tbody", {}, rows))),
    h("p", { class: "fine" }, `Policy: ${policy}. A seam is the start of a passage, computed every time, so that it fits what stands before it.`));
}

const TIMES = [
  ["queue", "in the queue", "until there was room to run it"],
  ["prefill", "prefilling", "passages that were not there yet"],
  ["assemble", "reading the prompt", "seams and question, up to the first token"],
  ["decode", "writing", "all further tokens"],
];

/** Where the milliseconds went. */
export function timesBar(ms) {
  const parts = TIMES.map(([name, label, why]) => ({ name, label, why, value: ms[name] ?? 0 }));
  const rest = ms.total - parts.reduce((sum, part) => sum + part.value, 0);
  if (rest > Math.max(1, 0.01 * ms.total)) parts.push({ name: "other", label: "other", why: "other work of the server in between", value: rest });
  const bar = h("div", { class: "times-bar", "aria-hidden": "true" }, parts.filter((part) => part.value > 0).map((part) => {
    const piece = h("span", { class: `time ${part.name}` });
    piece.style.flexGrow = part.value;
    return piece;
  }));
  const list = h("ul", { class: "legend plain" }, parts.map((part) =>
    h("li", { title: part.why }, h("span", { class: `swatch time ${part.name}`, "aria-hidden": "true" }), `${part.label} ${milliseconds(part.value)}`)),
    h("li", {}, `${milliseconds(ms.total)} in all`));
  return h("div", { class: "times", role: "group", "aria-label": "Where the time went" }, bar, list);
}
