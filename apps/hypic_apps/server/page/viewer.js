// A file's text, opened at a passage, with the sentence marked that an answer came from.

import { json } from "./api.js";
import { byId, h } from "./dom.js";
import { render } from "./markdown.js";
import { some } from "./words.js";

const AT_ONCE = 1000; // passages a request
const AROUND = 40; // passages shown before and after the one that was asked for; more at a press

let shown = 0; // which opening this is: a later one wins

/** Open a file at a passage, {text, title, page_label}, or at its beginning. sentence: of it, to be marked. */
export async function openDocument(collection, file, passage = null, sentence = "") {
  const mine = ++shown;
  const dialog = byId("viewer");
  const body = byId("viewer-body");
  byId("viewer-title").textContent = file.filename;
  byId("viewer-about").textContent = "Opening…";
  body.replaceChildren();
  if (!dialog.open) dialog.showModal();
  let passages;
  try {
    passages = await passagesOf(collection, file.id, (filename) => (byId("viewer-title").textContent = filename));
  } catch (error) {
    if (mine !== shown) return;
    byId("viewer-about").textContent = `${error.message}${passage ? " This is the passage as it was read:" : ""}`;
    if (passage) body.replaceChildren(passageView({ ...passage, page_label: null }, isMarkdown(file.filename), sentence, true));
    return;
  }
  if (mine !== shown) return;
  show(passages, file.filename, passage, sentence);
}

async function passagesOf(collection, id, named) {
  const found = [];
  for (let total = 1; found.length < total; ) {
    const part = await json(`v1/collections/${encodeURIComponent(collection)}/files/${encodeURIComponent(id)}/passages?limit=${AT_ONCE}&offset=${found.length}`);
    named(part.filename);
    total = part.total;
    if (part.data.length === 0) break;
    found.push(...part.data);
  }
  return found;
}

function show(passages, filename, wanted, sentence) {
  const body = byId("viewer-body");
  const at = wanted ? passages.findIndex((one) => one.text === wanted.text && (one.title === wanted.title || !wanted.title)) : -1;
  const pages = new Set(passages.map((one) => one.page_label).filter(Boolean)).size;
  const size = [some(passages.length, "passage"), pages ? some(pages, "page") : ""].filter(Boolean).join(" on ");
  byId("viewer-about").textContent = wanted && at < 0 ? `${size}. The passage is not in it any more.` : size;
  let [from, to] = at < 0 ? [0, Math.min(passages.length, 2 * AROUND)] : [Math.max(0, at - AROUND), Math.min(passages.length, at + AROUND + 1)];
  const formed = isMarkdown(filename);
  const view = (i) => [...headings(passages, i), passageView(passages[i], formed, i === at ? sentence : "", i === at)];
  const before = h("button", { type: "button", class: "wide" }, "Show what stands before");
  const after = h("button", { type: "button", class: "wide" }, "Show what follows");
  const text = h("div", { class: "document" });
  const showButtons = () => {
    before.hidden = from === 0;
    after.hidden = to === passages.length;
  };
  before.addEventListener("click", () => {
    const next = Math.max(0, from - 2 * AROUND);
    const height = body.scrollHeight;
    text.prepend(...range(next, from).flatMap(view));
    from = next;
    body.scrollTop += body.scrollHeight - height;
    showButtons();
  });
  after.addEventListener("click", () => {
    const next = Math.min(passages.length, to + 2 * AROUND);
    text.append(...range(to, next).flatMap(view));
    to = next;
    showButtons();
  });
  text.append(...range(from, to).flatMap(view));
  showButtons();
  body.replaceChildren(before, text, after);
  (text.querySelector("mark") ?? text.querySelector(".cited"))?.scrollIntoView({ block: "center" });
  body.focus({ preventScroll: true });
}

const range = (from, to) => Array.from({ length: to - from }, (_, i) => from + i);
const isMarkdown = (filename) => /\.(md|markdown|mdown)$/i.test(filename);

/** The page, and the title of a document among several, where they begin. */
function headings(passages, i) {
  const [now, before] = [passages[i], passages[i - 1]];
  const made = [];
  if (now.title && before && now.document !== before.document) made.push(h("h3", {}, now.title));
  if (now.page_label && now.page_label !== before?.page_label) made.push(h("p", { class: "page-label" }, `Page ${now.page_label}`));
  return made;
}

function passageView(passage, formed, sentence, isCited) {
  const blocks = formed ? render(passage.text) : passage.text.split(/\n{2,}/).map((text) => h("p", { class: "plain-text" }, text));
  const element = h("section", { class: isCited ? "cited" : "", "aria-label": isCited ? "The passage that was read" : undefined }, blocks);
  if (sentence) markSentence(element, sentence);
  return element;
}

/** Mark a sentence in an element, which has it perhaps with other blanks and without its asterisks: letters count. */
function markSentence(element, sentence) {
  const wanted = solid(sentence);
  const texts = [];
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  let all = "";
  const places = []; // of every letter in all: its text, and where in it
  for (let text; (text = walker.nextNode()); ) {
    texts.push(text);
    [...text.data.matchAll(LETTERS)].forEach((match) => {
      all += match[0].toLowerCase();
      for (let i = 0; i < match[0].toLowerCase().length; i++) places.push([text, match.index]);
    });
  }
  const start = wanted ? all.indexOf(wanted) : -1;
  if (start < 0) return;
  const [first, last] = [places[start], places[start + wanted.length - 1]];
  for (const text of texts.slice(texts.indexOf(first[0]), texts.indexOf(last[0]) + 1)) {
    const from = text === first[0] ? first[1] : 0;
    const to = text === last[0] ? last[1] + 1 : text.length;
    if (!text.data.slice(from, to).trim()) continue;
    const range = document.createRange();
    range.setStart(text, from);
    range.setEnd(text, to);
    range.surroundContents(h("mark"));
  }
}

const LETTERS = /[\p{L}\p{N}]/gu;
const solid = (text) => (text.match(LETTERS) ?? []).join("").toLowerCase();

/** Its buttons, once. */
export function startViewer() {
  const dialog = byId("viewer");
  byId("viewer-close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close()); // the ground around it
  dialog.addEventListener("close", () => byId("viewer-body").replaceChildren());
}
