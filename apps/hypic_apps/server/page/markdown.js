// Markdown as elements. marked (vendored, MIT) reads it; elements are made here, so that no text ever becomes HTML.

import { copyButton } from "./copy.js";
import { h } from "./dom.js";
import { lexer } from "./marked.esm.js";

const LINKS = /^(https?:|mailto:)/i;
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', nbsp: "\u00a0", "#39": "'" };

/** The blocks of a text, also of an unfinished one. */
export const render = (text) => lexer(text).flatMap(block);

function block(token) {
  switch (token.type) {
    case "space": case "def": return [];
    case "heading": return [h("p", { class: "heading" }, inline(token.tokens))];
    case "paragraph": return [h("p", {}, inline(token.tokens))];
    case "text": return token.tokens ? inline(token.tokens) : [decoded(token.text)]; // of a list's item
    case "checkbox": return [token.checked ? "☑ " : "☐ "];
    case "blockquote": return [h("blockquote", {}, token.tokens.flatMap(block))];
    case "list": {
      const items = token.items.map((item) => h("li", {}, item.tokens.flatMap(block)));
      return [token.ordered ? h("ol", { start: Number(token.start) || 1 }, items) : h("ul", {}, items)];
    }
    case "table": return [table(token)];
    case "hr": return [h("hr")];
    case "code": return [code(token)];
    default: return [h("p", {}, token.raw.trim())]; // HTML, and whatever else: as it was written
  }
}

function code({ text, lang }) {
  const pre = h("pre", { tabIndex: 0, role: "group", "aria-label": lang ? `Code, ${lang}` : "Code" }, h("code", {}, text));
  const copy = copyButton(() => text, "Copy the code");
  return copy ? h("div", { class: "code" }, pre, copy) : pre;
}

function table({ header, rows }) {
  const cell = (tag) => (one) => {
    const made = h(tag, tag === "th" ? { scope: "col" } : {}, inline(one.tokens));
    if (one.align) made.classList.add(`to-${one.align}`);
    return made;
  };
  return h("div", { class: "wide-table", tabIndex: 0, role: "group", "aria-label": "Table" },
    h("table", {}, h("thead", {}, h("tr", {}, header.map(cell("th")))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map(cell("td")))))));
}

const inline = (tokens) => tokens.flatMap(piece);

function piece(token) {
  switch (token.type) {
    case "text": return token.tokens ? inline(token.tokens) : [decoded(token.text)];
    case "escape": return [token.text];
    case "strong": return [h("strong", {}, inline(token.tokens))];
    case "em": return [h("em", {}, inline(token.tokens))];
    case "del": return [h("del", {}, inline(token.tokens))];
    case "codespan": return [h("code", {}, token.text)];
    case "br": return [h("br")];
    case "checkbox": return [token.checked ? "☑ " : "☐ "];
    case "link": return link(token);
    default: return [token.raw]; // images, HTML: as they were written
  }
}

/** Only where it can lead nowhere but to a page or a mailbox. */
function link(token) {
  if (!LINKS.test(token.href)) return [token.raw];
  return [h("a", { href: token.href, title: token.href, target: "_blank", rel: "noopener noreferrer" }, inline(token.tokens))];
}

const decoded = (text) =>
  text.replace(/&(#\d{1,7}|#x[0-9a-f]{1,6}|\w{1,8});/gi, (whole, name) => {
    if (ENTITIES[name]) return ENTITIES[name];
    const number = name[0] !== "#" ? NaN : /^#x/i.test(name) ? parseInt(name.slice(2), 16) : parseInt(name.slice(1), 10);
    return number > 0 && number <= 0x10ffff ? String.fromCodePoint(number) : whole;
  });
