// The page: its parts, what each tells the others, and the address: #/chat/ID, #/in/COLLECTION, #/alone.

import { apiKey, forgetKey } from "./api.js";
import { startChat } from "./chat.js";
import { startDocuments } from "./documents.js";
import { byId } from "./dom.js";
import { startPast } from "./past.js";
import { modelName, showServer } from "./server.js";
import { startSettings } from "./settings.js";
import { openDocument, startViewer } from "./viewer.js";

const narrow = window.matchMedia("(max-width: 800px)");
localStorage.removeItem("hypic.conversations.1"); // an earlier version kept passages here
sessionStorage.removeItem("hypic.conversations.1");

/** The side, a drawer where the window is narrow. */
function showSide(isOpen) {
  document.body.classList.toggle("side-open", isOpen);
  byId("open-side").setAttribute("aria-expanded", String(isOpen));
  byId("main").inert = isOpen && narrow.matches;
  byId("side").inert = !isOpen && narrow.matches;
}

byId("open-side").addEventListener("click", () => {
  showSide(true);
  byId("close-side").focus();
});
const closeSide = () => {
  if (!document.body.classList.contains("side-open")) return;
  showSide(false);
  byId("open-side").focus();
};
byId("close-side").addEventListener("click", closeSide);
byId("shade").addEventListener("click", closeSide);
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || !document.body.classList.contains("side-open") || document.querySelector("dialog[open]")) return;
  event.preventDefault();
  closeSide();
});
narrow.addEventListener("change", () => showSide(false));
showSide(false);

// What is asked and what is kept.

let chat = null;
let past = null;
const documents = startDocuments({
  chosen: () => {
    chat.collectionChosen();
    showAddress();
  },
  looked: () => chat?.showScope(),
  filled: showServer,
  removed: () => {
    chat.refresh();
    past.look();
  },
  opened: (file) => openDocument(documents.current().name, file),
});

const addressNow = () => {
  if (chat?.current().id) return `#/chat/${chat.current().id}`;
  const name = documents.current()?.name;
  return documents.isAlone() ? "#/alone" : name ? `#/in/${encodeURIComponent(name)}` : "";
};

/** The address of what is shown; a step back leads to what was shown before. */
function showAddress() {
  const address = addressNow();
  if (!chat || address === window.location.hash) return;
  const isStep = window.location.hash.startsWith("#/chat/") || address.startsWith("#/chat/");
  window.history[isStep ? "pushState" : "replaceState"](null, "", address || window.location.pathname);
  past?.draw();
}

/** Show what the address names. */
async function goToAddress() {
  const [, kind, name = ""] = window.location.hash.split("/");
  const told = decodeURIComponent(name);
  if (kind === "chat") {
    try {
      await chat.load(told);
      documents.choose(chat.current().collection);
      return;
    } catch (error) {
      byId("keep-note").textContent = error.message;
      window.history.replaceState(null, "", window.location.pathname);
    }
  }
  if (chat.current().turns.length) chat.startAnew();
  if (kind === "in") documents.choose(told);
  if (kind === "alone") documents.choose(null);
}
window.addEventListener("popstate", goToAddress);

chat = startChat({
  documents, modelName,
  answered: () => {
    showServer();
    documents.lookAtCache();
  },
  moved: () => {
    if (chat) showAddress();
    past?.draw();
  },
  listed: () => past.look(),
});

const startAnew = () => {
  chat.startAnew();
  showAddress();
  closeSide();
  byId("question").focus();
};
past = startPast({
  current: () => chat.current().id,
  open: async (id) => {
    window.history.pushState(null, "", `#/chat/${id}`);
    await goToAddress();
    past.draw();
    closeSide();
    byId("question").focus();
  },
  renamed: (id, title) => chat.renamed(id, title),
  gone: (id) => {
    if (id === null || id === chat.current().id) startAnew();
  },
});
for (const id of ["new-conversation", "new-conversation-2"]) byId(id).addEventListener("click", startAnew);

startViewer();
startSettings(() => chat.showScope());

// The key.

const showKey = () => (byId("forget-key").hidden = !apiKey());
document.addEventListener("hypic:key", () => {
  showKey();
  past.look();
});
byId("forget-key").addEventListener("click", () => {
  forgetKey();
  window.location.assign(window.location.pathname); // what is shown may be another person's
});
showKey();

goToAddress().then(() => {
  documents.look();
  past.look();
});
showServer();
byId("question").focus();
