// One answer on the page: its text with citations, and one line of what it cost, which opens.

import { copyButton } from "./copy.js";
import { cite, citer } from "./cite.js";
import { announce, h, setText } from "./dom.js";
import { render } from "./markdown.js";
import { costView } from "./strip.js";
import { some } from "./words.js";

/** element, cost (to be placed beneath the sources), answer (its text's element), update(), name(); title is shown where two stand side by side. */
export function runView(run, title, hooks) {
  const cost = costView(hooks);
  const answer = h("div", { class: "answer" });
  const actions = h("div", { class: "actions" });
  const below = h("div", { class: "below" });
  const heading = h("h3", { class: "run-title" }, title);
  const element = h("section", { class: "run", tabIndex: -1, "aria-label": `${title}, answer ${hooks.number}` }, heading, answer, below, actions);
  let scheduled = false;
  let ticking = null;

  const draw = () => {
    scheduled = false;
    const blocks = render(run.text).map((block) => (block.nodeType ? block : h("p", {}, block)));
    if (run.state !== "streaming" && run.state !== "waiting" && run.documents.length && run.hypic?.answered !== false) {
      cite(blocks, citer(run.documents, hooks.question), hooks.openAt);
    }
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
    if (run.state === "streaming") cost.say("Writing…");
    else if (run.documents.length) cost.say(`Reading ${some(run.documents.length, "passage")}… ${seconds} s`);
    else cost.say(`Waiting for the server… ${seconds} s`);
  };

  const update = () => {
    const isUnderWay = run.state === "waiting" || run.state === "streaming";
    element.dataset.state = cost.element.dataset.state = run.state;
    element.setAttribute("aria-busy", String(isUnderWay));
    if (isUnderWay && ticking === null) {
      below.replaceChildren();
      actions.replaceChildren();
      ticking = setInterval(sayProgress, 100);
    }
    if (isUnderWay) {
      sayProgress();
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
    if (run.hypic) cost.fill(run.hypic, run.documents);
    else cost.say(run.state === "stopped" ? "Stopped: figures come with a finished answer." : run.text ? "The answer broke off." : "No answer.");
    below.replaceChildren(...ending(run, hooks));
  };

  update();
  return {
    element,
    cost: cost.element,
    answer,
    update,
    name(text) {
      setText(heading, text);
      element.setAttribute("aria-label", `${text}, answer ${hooks.number}`);
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
  else if (run.finish === "length") parts.push(h("p", { class: "note" }, "Cut short: the limit of tokens for an answer was reached. Settings has a longer one."));
  if (run.hypic?.n_dropped) {
    parts.push(h("p", { class: "note" }, `${some(run.hypic.n_dropped, "passage was", "passages were")} left out: the model's context had no more room. A new conversation has more.`));
  }
  return parts;
}

function buttons(run, { others, again }) {
  if (run.state === "stopped") return [h("button", { type: "button", onclick: again }, "Ask again")];
  if (!run.text) return [];
  const copy = copyButton(() => run.text, "Copy the answer");
  return [...others(), ...(copy ? [copy] : [])];
}

/** What a screen reader is told when an answer has ended. */
export function announceEnd(run, title) {
  const figures = run.hypic ? ` First token after ${Math.round(run.hypic.ms.ttft)} milliseconds.` : "";
  if (run.state === "done") announce(`${title}: ${run.text}${figures}`);
  if (run.state === "stopped") announce("Stopped.");
}
