// What an answer cost: one line, and behind it the prompt drawn to scale (what was reused, what was computed, and why)
// and where the time went.

import { h } from "./dom.js";
import { count, milliseconds, origin, some } from "./words.js";

const LEGEND = {
  hit: "reused",
  held: "of earlier turns",
  leading: "instructions",
  seam: "beginnings (seams)",
  miss: "read for the first time",
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
      return { label: "Instructions", n, seam: 0, pieces: [[kind, n]], where: text, document: null };
    }
    const isCached = piece === "hit" || piece === "miss";
    const seam = isCached ? Math.min(segment.seam_tokens ?? 0, n) : 0;
    const isNamed = document !== null && document !== undefined;
    const known = isNamed ? documents[document] : null;
    const label = isNamed && !known ? "Passage of a deleted file" : known ? `${document + 1}. ${known.title || "Untitled"}` : "Passage of an earlier turn";
    return { label, n, seam, pieces: [["seam", seam], [piece, n - seam]].filter(([, tokens]) => tokens > 0), where: text, document: known ? document : null };
  });
}

const described = (segment) =>
  `${segment.label}: ${some(segment.n, "token")}, ${segment.where}${segment.seam ? `, the first ${segment.seam} computed anew` : ""}`;

/** element; say(text) while an answer comes, fill(hypic, documents) once its figures are there. isOpen: at first. */
export function costView({ pick, point, isOpen }) {
  const headline = h("p", { class: "headline" });
  const element = h("div", { class: "cost" }, headline);
  const bar = h("div", { class: "strip", role: "group", "aria-label": "The prompt, piece by piece" });
  const tip = h("div", { class: "tip", hidden: true, "aria-hidden": "true" });
  const legend = h("ul", { class: "legend prompt-legend plain" });
  const drawn = h("div", { class: "prompt" }, h("div", { class: "strip-place" }, bar, tip), legend);

  const pointAt = (button, segment) => {
    point(segment ? segment.document : null);
    tip.hidden = !segment;
    if (!segment) return;
    tip.textContent = described(segment);
    const place = drawn.getBoundingClientRect();
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
    say(text) {
      headline.replaceChildren(text);
      if (!headline.isConnected || element.firstChild !== headline) element.replaceChildren(headline);
    },
    fill(hypic, documents) {
      const segments = segmentsOf(hypic, documents);
      bar.replaceChildren(...segments.map(segmentButton));
      const totals = {};
      for (const [kind, tokens] of segments.flatMap((segment) => segment.pieces)) totals[kind] = (totals[kind] ?? 0) + tokens;
      legend.replaceChildren(...Object.keys(LEGEND).filter((kind) => totals[kind]).map((kind) =>
        h("li", {}, h("span", { class: `swatch ${kind}`, "aria-hidden": "true" }), `${count(totals[kind])} ${LEGEND[kind]}`)));
      const wasOpen = element.querySelector("details")?.open ?? isOpen();
      element.replaceChildren(h("details", { class: "figures", open: wasOpen },
        h("summary", { class: "headline" }, figures(hypic)),
        h("p", { class: "fine" }, explained(hypic)), drawn, timesBar(hypic.ms), segmentTable(hypic, documents)));
    },
  };
}

/** What was computed of a prompt is never more than it: passages that are read for the first time are computed once
 * alone, and their beginnings once more where they stand. */
const computedOf = (hypic) => Math.min(hypic.computed_tokens, hypic.prompt_tokens);

function figures(hypic) {
  const computed = computedOf(hypic);
  const tokens = computed < hypic.prompt_tokens ? `${count(computed)} of ${some(hypic.prompt_tokens, "token")}` : `all ${some(hypic.prompt_tokens, "token")}`;
  return `${tokens}, ${milliseconds(hypic.ms.ttft)}`;
}

function explained(hypic) {
  const first = `The answer's first word came after ${milliseconds(hypic.ms.ttft)}.`;
  if (hypic.mode === "full") return `Everything was computed for this answer, nothing was reused. ${first}`;
  const reused = hypic.prompt_tokens - computedOf(hypic);
  return `A token is a word, or a part of one. ${count(computedOf(hypic))} were computed for this answer; ${count(reused)} had been read before and were reused. ${first}`;
}

/** The same as words: a table that opens. */
export function segmentTable(hypic, documents) {
  const rows = segmentsOf(hypic, documents).map((segment) =>
    h("tr", {}, h("th", { scope: "row" }, segment.label), h("td", {}, count(segment.n)), h("td", {}, count(segment.seam)), h("td", {}, segment.where)));
  const head = h("tr", {}, ["Piece", "Tokens", "Computed anew", "Where from"].map((text) => h("th", { scope: "col" }, text)));
  const policy = hypic.mode === "full" ? "Everything is computed." : `The first ${some(hypic.seam_tokens, "token")} of a passage, its seam, are computed anew every time, so that it fits what stands before it; the rest is put in as it was read (compose: ${hypic.compose}).`;
  return h("details", { class: "table" }, h("summary", {}, "Piece by piece"),
    h("div", { class: "table-place", tabIndex: 0, role: "group", "aria-label": "The prompt, piece by piece" },
      h("table", {}, h("thead", {}, head), h("tbody", {}, rows))),
    h("p", { class: "fine" }, policy));
}

const TIMES = [
  ["queue", "searching and waiting", "until there was room to run it"],
  ["prefill", "reading for the first time", "passages that were not there yet"],
  ["assemble", "reading the question", "and the beginnings of passages, up to the first token"],
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
