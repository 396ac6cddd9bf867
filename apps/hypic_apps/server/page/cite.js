// Which passages a sentence of an answer comes from: their sentences that have most of its words, rare ones first.
// Models of this size name no sources themselves; a sentence whose words stand nowhere gets none.

import { h } from "./dom.js";

const ENOUGH = 0.55; // of a sentence's words, by their weight, that have to stand in what is cited for it
const MOST = 3; // places that are cited for a sentence
const WORTH = 0.2; // of the words, that a place has to add to those before it
const ASKED = 0.5; // what a word of the question counts: an answer repeats it whatever it was made from
const TIE = 0.05; // what having the question's words counts, between places that say the same

/** A text's sentences, each {text, index}, that make it up: they end with a line, or at a full stop behind a word (of "Mr."
 * or "U.S." none) and before no small letter. */
function sentencesIn(text) {
  const found = [];
  let start = 0;
  for (const match of text.matchAll(/[.!?]["”’)\]]*\s+|\n\s*/g)) {
    const end = match.index + match[0].length;
    const isLine = match[0].includes("\n");
    if (!isLine && (!/[\p{L}\p{N}\p{P}]{3}$|\p{N}$/u.test(text.slice(Math.max(0, match.index - 3), match.index).split(/[\s.]/).pop()) || /^\p{Ll}/u.test(text.slice(end, end + 2)))) continue;
    found.push({ text: text.slice(start, end), index: start });
    start = end;
  }
  if (start < text.length) found.push({ text: text.slice(start), index: start });
  return found;
}

const wordsOf = (text) => new Set(text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? []);

/** find(sentence): the places {passage, sentence} that it comes from. documents: of the answer, null where one is gone. */
export function citer(documents, question) {
  const places = documents.flatMap((document, passage) =>
    document?.text ? sentencesIn(document.text).map(({ text }) => ({ passage, sentence: text.trim(), words: wordsOf(`${document.title ?? ""} ${text}`) })) : []);
  const n = new Map();
  for (const { words } of places) for (const word of words) n.set(word, (n.get(word) ?? 0) + 1);
  const asked = wordsOf(question);
  const weight = (word) => (asked.has(word) ? ASKED : 1) * Math.log(1 + places.length / (n.get(word) ?? 0.5));
  const sum = (words) => [...words].reduce((total, word) => total + weight(word), 0);
  const tie = (place) => (asked.size ? [...asked].filter((word) => place.words.has(word)).length / asked.size : 0);
  return (sentence) => {
    const all = sum(wordsOf(sentence));
    let left = [...wordsOf(sentence)];
    const cited = [];
    while (all && cited.length < MOST) {
      const scored = places.map((place) => {
        const said = sum(left.filter((word) => place.words.has(word))) / all;
        return { place, said, score: said + TIE * tie(place) };
      });
      const best = scored.reduce((one, other) => (other.score > one.score ? other : one), { score: -1, said: 0 });
      if (best.said < WORTH) break;
      cited.push(best.place);
      left = left.filter((word) => !best.place.words.has(word));
    }
    return all && 1 - sum(left) / all >= ENOUGH ? cited : [];
  };
}

/** Put a button behind what each sentence of these blocks says: [1] for the first passage. open(place) at a press. */
export function cite(blocks, find, open) {
  const leaves = blocks.flatMap((block) => [block, ...block.querySelectorAll("p, li, td")]).filter((one) => one.matches("p, li, td") && !one.matches(".heading") && !one.querySelector("p, li, pre, table"));
  for (const leaf of leaves) {
    const ends = sentencesIn(leaf.textContent).map(({ text, index }) => ({ places: find(text), end: index + text.trimEnd().replace(/[.!?…:;]+$/, "").length }));
    ends.forEach((one, i) => { // what the next sentence cites too stands behind that one
      one.places = one.places.filter((place) => !ends[i + 1]?.places.some((next) => next.sentence === place.sentence && next.passage === place.passage));
    });
    for (const { places, end } of ends.reverse()) if (places.length) insertAt(leaf, end, places.map((place) => mark(place, open)));
  }
}

function mark(place, open) {
  const number = place.passage + 1;
  return h("button", { type: "button", class: "cite", "aria-label": `Source ${number}: see where it says so`, title: place.sentence, onclick: () => open(place) }, String(number));
}

/** Behind so many characters of an element's text. */
function insertAt(element, offset, nodes) {
  const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  let at = 0;
  for (let text; (text = texts.nextNode()); ) {
    if (at + text.length >= offset) {
      text.splitText(offset - at).before(...nodes);
      return;
    }
    at += text.length;
  }
  element.append(...nodes);
}
