// A question, its answer, the sources beside it, and the same question run another way for comparison.

import { fillRun, newRun } from "./answering.js";
import { announce, h } from "./dom.js";
import { announceEnd, runView } from "./run.js";
import { sourcesView } from "./sources.js";
import { milliseconds } from "./words.js";

const NAMES = { full: "Without reuse", hypic: "With reuse" };
const nameOf = (run) => NAMES[run.hypic?.mode ?? run.mode] ?? "Answer";
const otherMode = (run) => (run.hypic?.mode === "full" ? "hypic" : "full");

/** turn: {question, runs}; number: from 1. openAt(turn, {passage, sentence}): in its document. request(): what to send for it. work(task): runs one task with a signal; false where another runs. */
export function turnView(turn, number, { request, work, grown, changed, openAt }) {
  const sources = sourcesView(number, (i) => openAt(turn, { passage: i, sentence: "" }));
  const comparison = h("section", { class: "comparison", hidden: true, tabIndex: -1, "aria-label": `Comparison of answers ${number}` });
  const runs = h("div", { class: "runs" });
  const costs = h("div", { class: "costs" });
  const element = h("article", { class: "turn", "aria-label": `Question: ${turn.question}` },
    h("h2", { class: "question" }, turn.question), comparison, runs, sources.element, costs);
  const views = [];

  const start = (i) =>
    work(async (signal) => {
      announce("Answering.");
      await fillRun(turn.runs[i], request, signal, () => refresh(i));
      announceEnd(turn.runs[i], nameOf(turn.runs[i]));
      changed();
    });

  const compare = () => {
    turn.runs.push(newRun(otherMode(turn.runs[0])));
    if (!start(1)) {
      turn.runs.pop();
      return;
    }
    show(1);
    refresh(0);
    comparison.focus({ preventScroll: true });
    comparison.scrollIntoView({ block: "nearest" });
  };

  const show = (i) => {
    views[i] = runView(turn.runs[i], nameOf(turn.runs[i]), {
      question: turn.question,
      number,
      openAt: (place) => openAt(turn, place),
      isOpen: () => turn.runs.length > 1,
      pick: (document) => sources.open(document),
      point: (document) => sources.point(document),
      grown: () => views[i] && grown(views[i]), // not while a kept one is built
      again: () => {
        if (start(i)) views[i].element.focus({ preventScroll: true }); // its button is gone
      },
      ticked: () => drawComparison(comparison, turn.runs),
      others: () => (turn.runs.length === 1 && turn.runs[0].hypic ? [compareButton(turn.runs[0], compare)] : []),
    });
    runs.append(views[i].element);
    costs.append(views[i].cost);
    refresh(i);
  };

  const refresh = (i) => {
    const run = turn.runs[i];
    views[i]?.update();
    if (i === 0) sources.show(run);
    element.dataset.state = turn.runs.some((one) => one.state === "waiting" || one.state === "streaming") ? "busy" : "rest";
    const isCompared = turn.runs.length > 1;
    if (isCompared && !element.classList.contains("compared")) {
      element.append(sources.element); // both costs come first
      for (const details of costs.querySelectorAll("details.figures")) details.open = true;
    }
    element.classList.toggle("compared", isCompared);
    views.forEach((view, j) => view.name(nameOf(turn.runs[j])));
    drawComparison(comparison, turn.runs);
  };

  turn.runs.forEach((_, i) => show(i));
  return { element, views, start: () => start(0) };
}

const compareButton = (run, compare) =>
  h("button", { type: "button", class: "quiet", onclick: compare, title: otherMode(run) === "full"
    ? "Ask the same once more without reusing anything, and see both answers and their times side by side"
    : "Ask the same once more, reusing what was read before, and see both side by side" },
    otherMode(run) === "full" ? "Compare without reuse" : "Compare with reuse");

/** Both times to first token, to one scale. */
function drawComparison(place, runs) {
  place.hidden = runs.length < 2;
  if (place.hidden) return;
  const times = runs.map(timeToFirst);
  const most = Math.max(...times, 1);
  const rows = runs.map((run, i) => {
    const bar = h("span", { class: `race-bar ${(run.hypic?.mode ?? run.mode) === "full" ? "full" : "reused"}` });
    bar.style.width = `${(100 * times[i]) / most}%`;
    return h("li", {}, h("span", {}, nameOf(run)), h("span", { class: "race-track", "aria-hidden": "true" }, bar), h("strong", {}, run.hypic ? milliseconds(times[i]) : run.state === "failed" || run.state === "stopped" ? "none" : `${(times[i] / 1000).toFixed(1)} s…`));
  });
  place.replaceChildren(h("h3", {}, "Time to the first word"), h("ul", { class: "race plain" }, rows), h("p", { class: "verdict" }, verdict(runs)));
}

/** Milliseconds: the server's once it has told them, until then as seen from here. */
function timeToFirst(run) {
  if (run.hypic) return run.hypic.ms.ttft;
  if (run.state === "failed" || run.state === "stopped") return 0;
  return (run.first ?? performance.now()) - (run.began ?? performance.now());
}

function verdict(runs) {
  if (runs.some((run) => run.state === "failed" || run.state === "stopped")) return "No comparison: one of them did not finish.";
  if (runs.some((run) => !run.hypic)) return "Asking the same once more…";
  const [full, reused] = runs[0].hypic.mode === "full" ? runs : [runs[1], runs[0]];
  const ratio = full.hypic.ms.ttft / Math.max(reused.hypic.ms.ttft, 0.01);
  const speed = ratio >= 1 ? `With reuse the answer began ${ratio.toFixed(1)} times sooner` : `With reuse it took ${(1 / ratio).toFixed(1)} times as long to begin`;
  return `${speed}. ${full.text.trim() === reused.text.trim() ? "Both answers are the same." : "The answers differ."}`;
}
