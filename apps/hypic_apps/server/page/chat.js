// The conversation: the question box, one answer at a time, and keeping it on the server.

import { newRun } from "./answering.js";
import * as kept from "./conversations.js";
import { byId } from "./dom.js";
import { follower } from "./scroll.js";
import { requestFields, systemMessages, told } from "./settings.js";
import { turnView } from "./turn.js";
import { openDocument } from "./viewer.js";

const UNDER_WAY = "An answer is under way: wait for it, or stop it.";

/** documents: {current(), isAlone(), choose(name)}. modelName(): a promise. answered(): after every answer. moved(): another
 * conversation is open, or this one has an address now. listed(): what is kept has changed. */
export function startChat({ documents, modelName, answered, moved, listed }) {
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
    if (!running) showScope();
  };

  const stop = () => running?.abort();

  const addTurn = (turn) => {
    const mine = conversation; // another may be open when this turn ends
    const view = turnView(turn, mine.turns.indexOf(turn) + 1, {
      request: async () => ({
        model: await modelName(),
        messages: [...systemMessages(), ...messagesFor(mine, turn)],
        ...(mine.collection === null ? {} : { collection: mine.collection }),
        ...requestFields(mine.collection !== null),
      }),
      work,
      grown: (run) => follow.grown(run.answer),
      changed: () => save(mine, turn),
      openAt: (one, { passage, sentence }) => {
        const found = one.runs[0].documents[passage];
        if (found) openDocument(mine.collection, { id: found.file_id, filename: found.source ?? found.title }, found, sentence);
      },
    });
    turns.append(view.element);
    return view;
  };

  /** Keep a turn, after those before it; one at a time. What could not be kept is tried again with the next. */
  const save = (one, turn) => {
    one.unsaved.add(turn);
    one.saving = one.saving.then(() => saveAll(one)).then(
      () => one === conversation && (byId("keep-note").textContent = ""),
      (error) => {
        if (error.code === "conversation_not_found") forgetAddress(one); // deleted in another window: begun anew next time
        if (one === conversation) byId("keep-note").textContent = `Not kept yet: ${error.message}`;
      });
  };

  const saveAll = async (one) => {
    if (!one.id) {
      one.id = (await kept.begin(one.title, one.collection)).id;
      one.turns.forEach((turn) => one.unsaved.add(turn));
      if (one === conversation) moved();
    }
    for (const turn of one.turns) {
      if (!one.unsaved.has(turn)) continue;
      one.unsaved.delete(turn);
      try {
        await kept.keepTurn(one.id, one.turns.indexOf(turn), turn);
      } catch (error) {
        one.unsaved.add(turn);
        throw error;
      }
    }
    listed();
  };

  const forgetAddress = (one) => {
    one.id = null;
    one.turns.forEach((turn) => one.unsaved.add(turn));
  };

  const ask = () => {
    const question = box.value.trim();
    const collection = documents.current();
    const scope = collection ? collection.name : documents.isAlone() ? null : undefined;
    if (!question) return;
    if (running) return say(UNDER_WAY);
    if (scope === undefined) return say("Choose a collection first, or No collection, or add files: they make one.");
    if (conversation.turns.length === 0) conversation.collection = scope;
    if (conversation.collection !== scope) open({ ...blank(), collection: scope });
    conversation.title ||= question;
    const turn = { question, runs: [newRun()] };
    conversation.turns.push(turn);
    const view = addTurn(turn);
    box.value = "";
    fitBox();
    showEmpty();
    follow.begin(view.element, view.views[0].answer);
    view.start();
    save(conversation, turn); // the question, should the page be closed before the answer's end
  };

  const open = (other) => {
    stop();
    conversation = other;
    byId("keep-note").textContent = "";
    turns.replaceChildren();
    for (const turn of conversation.turns) addTurn(turn);
    showEmpty();
    moved();
    showScope();
    if (turns.lastChild) byId("scroller").scrollTop = turns.lastChild.offsetTop;
  };

  const showEmpty = () => (byId("empty").hidden = conversation.turns.length > 0);

  const say = (text) => {
    byId("composer-note").setAttribute("role", "alert"); // first: what changes within an alert is read out
    byId("composer-note").textContent = text;
  };

  const showScope = () => {
    const collection = documents.current();
    const scope = collection ? `Collection: ${collection.name}` : documents.isAlone() ? "No collection: the model alone" : "";
    byId("composer-note").removeAttribute("role");
    byId("composer-note").textContent = [scope, told()].filter(Boolean).join(" · ");
    byId("bar-title").textContent = collection?.name ?? (documents.isAlone() ? "No collection" : "");
    box.placeholder = collection ? `Ask ${collection.name}` : "Ask a question";
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

  open(conversation);
  return {
    showScope,
    current: () => conversation,
    startAnew() {
      open(blank());
      box.focus();
    },
    /** Open one that is kept. Throws ApiError. */
    async load(id) {
      if (id === conversation.id) return;
      const found = await kept.load(id);
      open({ ...blank(), ...found, turns: found.turns });
    },
    /** Look again at the one that is open: a file was deleted, and its passages with it. */
    async refresh() {
      const { id } = conversation;
      if (!id || running) return;
      await conversation.saving;
      const top = byId("scroller").scrollTop;
      const found = await kept.load(id).catch(() => null);
      if (!found || id !== conversation.id || running) return;
      open({ ...blank(), ...found });
      byId("scroller").scrollTop = top;
    },
    renamed(id, title) {
      if (id === conversation.id) conversation.title = title;
    },
    /** Another collection was chosen: a conversation belongs to one. */
    collectionChosen() {
      const scope = documents.isAlone() ? null : documents.current()?.name;
      if (conversation.turns.length && conversation.collection !== scope) open(blank());
      showScope();
    },
  };
}

/** The turns before this one that have an answer, then its question: what a model is sent. */
function messagesFor(conversation, turn) {
  const before = conversation.turns.slice(0, conversation.turns.indexOf(turn)).filter((one) => one.runs[0].text);
  const past = before.flatMap((one) => [{ role: "user", content: one.question }, { role: "assistant", content: one.runs[0].text }]);
  return [...past, { role: "user", content: turn.question }];
}

const blank = () => ({ id: null, title: "", collection: null, turns: [], unsaved: new Set(), saving: Promise.resolve() });
