// One answer on the page: the strip above it, its text, and below it where the time went.

import { announce, h, setText } from "./dom.js";
import { render } from "./markdown.js";
import { promptStrip, segmentTable, timesBar } from "./strip.js";
import { some } from "./words.js";

/** element, answer (its text's element), update(), name(); title is shown where two stand side by side. */
export function runView(run, title, hooks) {
  const strip = promptStrip(hooks);
  const answer = h("div", { class: "answer" });
  const actions = h("div", { class: "actions" });
  const below = h("div", { class: "below" });
  const heading = h("h3", { class: "run-title" }, title);
  const element = h("section", { class: "run", tabIndex: -1, "aria-label": title }, heading, strip.element, answer, actions, below);
  let scheduled = false;
  let ticking = null;
  let expected = null;

  const draw = () => {
    scheduled = false;
    const blocks = render(run.text);
    blocks.forEach((block, i) => {
      const old = answer.children[i];
      if (!old) answer.append(block);
      else if (!old.isEqualNode(block)) old.replaceWith(block); // what stays keeps the reader's selection
    });
    while (answer.children.length > blocks.length) answer.lastChild.remove();
    hooks.grown?.();
  };

  const sayProgress = () => {
    const seconds = ((performance.now() - run.began) / 1000).toFixed(1);
    hooks.ticked();
    if (run.state === "streaming") strip.say("Writing…");
    else if (run.documents.length) strip.say(`Reading ${some(run.documents.length, "passage")}… ${seconds} s`);
    else strip.say(`Waiting for the server… ${seconds} s`);
  };

  const update = () => {
    const isUnderWay = run.state === "waiting" || run.state === "streaming";
    element.dataset.state = run.state;
    element.setAttribute("aria-busy", String(isUnderWay));
    if (isUnderWay && ticking === null) {
      expected = null;
      below.replaceChildren();
      actions.replaceChildren();
      ticking = setInterval(sayProgress, 100);
    }
    if (isUnderWay) {
      sayProgress();
      if (run.documents !== expected) strip.expect((expected = run.documents));
      if (!scheduled) {
        scheduled = true;
        requestAnimationFrame(draw);
      }
      return;
    }
    clearInterval(ticking);
    ticking = null;
    draw();
    actions.replaceChildren(...buttons(run, hooks));
    if (run.hypic) strip.fill(run.hypic, run.documents);
    else strip.say(run.state === "stopped" ? "Stopped: figures come with a finished answer." : run.text ? "The answer broke off." : "No answer.");
    below.replaceChildren(...ending(run, hooks));
  };

  update();
  return {
    element,
    answer,
    update,
    name(text) {
      setText(heading, text);
      element.setAttribute("aria-label", text);
    },
  };
}

function ending(run, hooks) {
  const parts = [];
  if (run.state === "failed") {
    parts.push(h("p", { class: "error", role: "alert" }, run.error), h("button", { type: "button", onclick: hooks.again }, "Try again"));
    return parts;
  }
  if (run.state === "done" && !run.text.trim()) parts.push(h("p", { class: "note" }, "The model said nothing."));
  if (run.hypic?.finish_reason === "repetition") parts.push(h("p", { class: "note" }, "Cut short: the answer began to repeat itself."));
  else if (run.finish === "length") parts.push(h("p", { class: "note" }, "Cut short: the limit of tokens for an answer was reached."));
  if (run.hypic?.n_dropped) {
    parts.push(h("p", { class: "note" }, `${some(run.hypic.n_dropped, "passage was", "passages were")} left out: the model's context had no more room. A new conversation has more.`));
  }
  if (run.hypic) parts.push(timesBar(run.hypic.ms), segmentTable(run.hypic, run.documents));
  return parts;
}

function buttons(run, { others, again }) {
  if (run.state === "stopped") return [h("button", { type: "button", onclick: again }, "Ask again")];
  if (!run.text) return [];
  const copy = h("button", { type: "button", class: "quiet", onclick: async () => {
    await navigator.clipboard.writeText(run.text).then(() => (copy.textContent = "Copied"), () => (copy.textContent = "Could not copy"));
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  } }, "Copy");
  return [...others(), ...(navigator.clipboard ? [copy] : [])]; // browsers have no clipboard on plain http
}

/** What a screen reader is told when an answer has ended. */
export function announceEnd(run, title) {
  const figures = run.hypic ? ` First token after ${Math.round(run.hypic.ms.ttft)} milliseconds.` : "";
  if (run.state === "done") announce(`${title}: ${run.text}${figures}`);
  if (run.state === "stopped") announce("Stopped.");
}
