// What stands where there is no conversation yet; and files that are dropped onto the window.

import { byId, h } from "./dom.js";
import { isUnderWay } from "./rows.js";
import { droppedFiles } from "./upload.js";
import { some } from "./words.js";

/** Why nothing is shown. */
export function drawTrouble(place, trouble, again) {
  if (place.dataset.shown === trouble) return;
  place.dataset.shown = trouble;
  place.replaceChildren(h("p", { class: "error", role: "alert" }, trouble), h("button", { type: "button", class: "primary", onclick: again }, "Try again"));
}

/** What to do first. */
export function drawEmpty(place, { collections, collection, isAlone, files }, { pickFiles, askAlone }) {
  if (collections === null) return place.replaceChildren();
  const nReady = files.filter((file) => file.status === "ready").length;
  const isWorking = files.some(isUnderWay);
  let title = "Ask your documents";
  let text = "Add files to begin. The model reads each of them once, now, and answers later questions from what it has read. Every answer tells where it comes from, and how much was read anew.";
  if (isAlone) {
    title = "Ask the model";
    text = "No collection is chosen: the model answers from what it knows, without sources. Choose a collection to ask your documents.";
  } else if (collection && nReady) {
    title = `Ask ${collection.name}`;
    text = `${some(nReady, "file")} with ${some(collection.n_chunks, "passage")} ${isWorking ? "so far; the rest is on its way." : "are there to be asked."} A number in an answer opens the place that it comes from.`;
  } else if (collection && isWorking) {
    text = "Your files are being read. You can ask as soon as the first one is ready.";
  } else if (collection && files.length) {
    text = "None of these files could be read. What is wrong stands beside each; add others.";
  } else if (collection) {
    text = `${collection.name} is empty. ${text}`;
  }
  const key = title + text;
  if (place.dataset.shown === key) return;
  place.dataset.shown = key;
  place.replaceChildren(h("p", { class: "empty-title" }, title), h("p", {}, text),
    ...(nReady || isWorking || isAlone ? [] : [
      h("button", { type: "button", class: "primary", onclick: pickFiles }, "Choose files"),
      h("button", { type: "button", onclick: askAlone }, "Ask without files"),
    ]));
}

/** The whole window takes files. */
export function dropAnywhere(target, addFiles) {
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
  let depth = 0; // enter and leave come for every element passed over
  const show = () => {
    byId("overlay").hidden = depth <= 0;
    byId("overlay-name").textContent = target();
  };
  window.addEventListener("dragenter", (event) => {
    if (!hasFiles(event)) return;
    depth++;
    show();
  });
  window.addEventListener("dragleave", (event) => {
    if (!hasFiles(event)) return;
    depth--;
    show();
  });
  window.addEventListener("dragover", (event) => hasFiles(event) && event.preventDefault());
  window.addEventListener("drop", async (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    depth = 0;
    show();
    addFiles(await droppedFiles(event.dataTransfer));
  });
}
