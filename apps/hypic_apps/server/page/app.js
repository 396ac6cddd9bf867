// The page: its parts, and what each tells the others.

import { apiKey, forgetKey } from "./api.js";
import { startChat } from "./chat.js";
import { startDocuments } from "./documents.js";
import { byId } from "./dom.js";
import { forget } from "./history.js";
import { modelName, showServer } from "./server.js";

const narrow = window.matchMedia("(max-width: 800px)");

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

let chat = null;
const documents = startDocuments({ changed: () => chat?.collectionChanged(), filled: showServer });
chat = startChat({ documents, modelName, answered: showServer, shown: closeSide });

const showKey = () => (byId("forget-key").hidden = !apiKey());
document.addEventListener("hypic:key", () => {
  showKey();
  chat.keyChanged();
});
byId("forget-key").addEventListener("click", () => {
  forget();
  forgetKey();
  window.location.reload();
});
showKey();

documents.look();
showServer();
byId("question").focus();
