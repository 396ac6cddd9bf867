// The conversation: the question box, one answer at a time, past conversations.

import { forget, keep, all } from "./history.js";
import { newRun } from "./answering.js";
import { byId, h } from "./dom.js";
import { confirm } from "./confirm.js";
import { follower } from "./scroll.js";
import { turnView } from "./turn.js";

const UNDER_WAY = "An answer is under way: wait for it, or stop it.";

/** documents: {current(), choose(name)}. modelName(): a promise. answered(): after every answer. shown(): another conversation is. */
export function startChat({ documents, modelName, answered, shown }) {
  const box = byId("question");
  const turns = byId("turns");
  const follow = follower(byId("scroller"), byId("latest"));
  let conversation = blank();
  let running = null; // the AbortController of the request under way

  const work = (task) => {
    if (running) {
      say(UNDER_WAY);
      return false;
    }
    running = new AbortController();
    showRunning();
    task(running.signal).finally(() => {
      running = null;
      showRunning();
      follow.end();
      answered();
    });
    return true;
  };

  const showRunning = () => {
    const [now, before] = running ? ["stop", "send"] : ["send", "stop"];
    const isFocused = document.activeElement === byId(before);
    byId(now).hidden = false;
    if (isFocused) byId(now).focus(); // it would be lost with the button
    byId(before).hidden = true;
    if (!running) showCollection();
  };

  const stop = () => running?.abort();

  const addTurn = (turn) => {
    const mine = conversation; // another may be open when this turn ends
    const view = turnView(turn, {
      request: async () => ({ model: await modelName(), messages: messagesFor(mine, turn), collection: mine.collection }),
      work,
      grown: (run) => follow.grown(run.answer),
      changed: () => save(mine),
    });
    turns.append(view.element);
    return view;
  };

  const save = (one) => {
    if (one.turns.some((turn) => turn.runs[0].text)) keep(one);
    listPast();
  };

  const ask = () => {
    const question = box.value.trim();
    const collection = documents.current();
    if (!question) return;
    if (running) return say(UNDER_WAY);
    if (!collection) return say("Choose a collection first, or add files: they make one.");
    if (conversation.collection !== collection.name) open({ ...blank(), collection: collection.name });
    conversation.title ||= question.slice(0, 120);
    const turn = { question, runs: [newRun()] };
    conversation.turns.push(turn);
    const view = addTurn(turn);
    box.value = "";
    fitBox();
    showEmpty();
    follow.begin(view.element, view.views[0].answer);
    view.start();
  };

  const open = (other) => {
    stop();
    conversation = other;
    turns.replaceChildren();
    for (const turn of conversation.turns) addTurn(turn);
    showEmpty();
    listPast();
    showCollection();
    if (turns.lastChild) byId("scroller").scrollTop = turns.lastChild.offsetTop;
  };

  const startAnew = () => {
    open(blank());
    shown();
    box.focus();
  };

  const showEmpty = () => (byId("empty").hidden = conversation.turns.length > 0);

  const say = (text) => {
    byId("composer-note").setAttribute("role", "alert"); // first: what changes within an alert is read out
    byId("composer-note").textContent = text;
  };

  const showCollection = () => {
    const collection = documents.current();
    byId("composer-note").removeAttribute("role");
    byId("composer-note").textContent = collection ? `Collection: ${collection.name}` : "";
    byId("bar-title").textContent = collection?.name ?? "";
  };

  const listPast = () => {
    const kept = all();
    byId("past-section").hidden = kept.length === 0;
    byId("past").replaceChildren(...kept.map((one) =>
      h("li", {}, h("button", { type: "button", class: "row", "aria-current": String(one.id === conversation.id), onclick: () => {
        if (one.id !== conversation.id) {
          documents.choose(one.collection);
          open(one);
        }
        shown();
        box.focus();
      } }, h("span", { class: "row-title" }, one.title), h("span", { class: "fine" }, one.collection)))));
  };

  const fitBox = () => {
    box.style.height = "auto";
    box.style.height = `${Math.min(box.scrollHeight, 200)}px`;
  };

  box.addEventListener("input", fitBox);
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    ask();
  });
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    ask();
  });
  byId("stop").addEventListener("click", stop);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !event.defaultPrevented && !document.querySelector("dialog[open]")) stop();
  });
  for (const id of ["new-conversation", "new-conversation-2"]) byId(id).addEventListener("click", startAnew);
  byId("forget").addEventListener("click", async () => {
    if (!(await confirm("Forget all conversations?", "They are kept in this browser only, and cannot be brought back.", "Forget"))) return;
    forget();
    startAnew();
  });

  open(conversation);
  return {
    /** Another collection was chosen: a conversation belongs to one. */
    collectionChanged() {
      const name = documents.current()?.name ?? null;
      if (conversation.turns.length && conversation.collection !== name) open(blank());
      showCollection();
    },
    /** Another key was given or forgotten: what is shown may be another person's. */
    keyChanged: listPast,
  };
}

/** The turns before this one that have an answer, then its question: what a model is sent. */
function messagesFor(conversation, turn) {
  const before = conversation.turns.slice(0, conversation.turns.indexOf(turn)).filter((one) => one.runs[0].text);
  const past = before.flatMap((one) => [{ role: "user", content: one.question }, { role: "assistant", content: one.runs[0].text }]);
  return [...past, { role: "user", content: turn.question }];
}

const blank = () => ({ id: crypto.randomUUID?.() ?? String(Date.now()), title: "", collection: null, turns: [] });
