// A little Markdown as elements: paragraphs, headings, lists, quotes, code, bold, italic. Links stay text.

import { h } from "./dom.js";

const FENCE = /^ {0,3}(```|~~~)/;
const HEADING = /^(#{1,6})\s+(.*)$/;
const BULLET = /^\s{0,3}[-*+]\s+(.*)$/;
const NUMBER = /^\s{0,3}(\d{1,9})[.)]\s+(.*)$/;
const QUOTE = /^\s{0,3}>\s?(.*)$/;

/** The blocks of a text, also of an unfinished one. */
export function render(text) {
  const lines = text.replaceAll("\r\n", "\n").split("\n");
  const blocks = [];
  let i = 0;
  const take = (pattern) => {
    const taken = [];
    for (let match; i < lines.length && (match = pattern.exec(lines[i])); i++) taken.push(match);
    return taken;
  };
  while (i < lines.length) {
    const line = lines[i];
    const fence = FENCE.exec(line);
    const heading = HEADING.exec(line);
    if (fence) {
      const code = [];
      for (i++; i < lines.length && !lines[i].trimStart().startsWith(fence[1]); i++) code.push(lines[i]);
      i++;
      blocks.push(h("pre", { tabIndex: 0 }, h("code", {}, code.join("\n"))));
    } else if (heading) {
      blocks.push(h("p", { class: "heading" }, inline(heading[2])));
      i++;
    } else if (BULLET.test(line)) {
      blocks.push(h("ul", {}, take(BULLET).map((match) => h("li", {}, inline(match[1])))));
    } else if (NUMBER.test(line)) {
      const items = take(NUMBER);
      blocks.push(h("ol", { start: Number(items[0][1]) }, items.map((match) => h("li", {}, inline(match[2])))));
    } else if (QUOTE.test(line)) {
      blocks.push(h("blockquote", {}, inline(take(QUOTE).map((match) => match[1]).join("\n"))));
    } else if (line.trim() === "") {
      i++;
    } else {
      const paragraph = [line];
      for (i++; i < lines.length && !startsBlock(lines[i]); i++) paragraph.push(lines[i]);
      blocks.push(h("p", {}, inline(paragraph.join("\n"))));
    }
  }
  return blocks;
}

const startsBlock = (line) =>
  line.trim() === "" || [FENCE, HEADING, BULLET, NUMBER, QUOTE].some((pattern) => pattern.test(line));

const INLINE = /`([^`\n]+)`|\*\*(?=\S)([^*\n]+?)\*\*|(?<![\w*])\*(?=\S)([^*\n]+?)\*(?![\w*])/g;

function inline(text) {
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(INLINE)) {
    nodes.push(text.slice(end, match.index));
    const [whole, code, bold, italic] = match;
    if (code !== undefined) nodes.push(h("code", {}, code));
    else if (bold !== undefined) nodes.push(h("strong", {}, bold));
    else nodes.push(h("em", {}, italic));
    end = match.index + whole.length;
  }
  nodes.push(text.slice(end));
  return nodes;
}
