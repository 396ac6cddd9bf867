// Collections and the files in the chosen one: made, filled, watched, deleted.

import { json, post, request } from "./api.js";
import { announce, byId, h, setText } from "./dom.js";
import { confirm } from "./confirm.js";
import { collectionList, fileList, isUnderWay } from "./rows.js";
import { droppedFiles, upload } from "./upload.js";
import { some } from "./words.js";

const SOON = 700; // ms between looks while something is under way
const LATER = 3000; // ms after a look that failed
const FIRST_NAME = "documents"; // of the collection that files make where there is none
const CHOSEN = "hypic.collection";

const path = (name) => `v1/collections/${encodeURIComponent(name)}`;

/** changed(): another collection is chosen. filled(): more, or less, is prefilled than before. */
export function startDocuments({ changed, filled }) {
  let collections = null; // null before the first answer
  let name = localStorage.getItem(CHOSEN);
  let files = [];
  let sending = []; // uploads not yet on the server: {id, filename, status, share, collection, file, stop}
  let timer = null;
  let trouble = null; // of the last look, in words
  let wasBusy = false;
  let isSending = false;

  const current = () => collections?.find((one) => one.name === name) ?? null;
  const showCollections = collectionList(byId("collections"), (other) => choose(other));
  const showFiles = fileList(byId("files"), (file) => (file.local ? dismiss(file) : removeFile(file)));

  /** Whether it could be done; why not is said in that place. */
  const did = async (place, action) => {
    byId(place).textContent = "";
    try {
      await action();
      return true;
    } catch (error) {
      byId(place).textContent = error.message;
      return false;
    }
  };

  /** What the server has now; again soon where something is under way. */
  const look = async () => {
    clearTimeout(timer);
    let wait = null;
    try {
      collections = (await json("v1/collections")).data;
      if (!current()) select(collections[0]?.name ?? null);
      const asked = name;
      const found = current() ? (await json(`${path(asked)}/files`)).data : [];
      if (asked !== name) return look();
      files = found.sort((a, b) => b.created_at - a.created_at);
      trouble = null;
      const isBusy = files.some(isUnderWay) || collections.some((one) => one.status === "working");
      if (isBusy) wait = SOON;
      else if (wasBusy) {
        const failed = files.filter((file) => file.status === "failed").length;
        announce(failed ? `${some(failed, "file")} could not be read.` : "All files are ready.");
      }
      if (isBusy || wasBusy) filled();
      wasBusy = isBusy;
    } catch (error) {
      trouble = error.message;
      if (!error.asksForKey) wait = LATER;
    }
    draw();
    clearTimeout(timer);
    if (wait !== null) timer = setTimeout(look, document.hidden ? LATER : wait);
  };

  const select = (other) => {
    if (name !== other) files = [];
    name = other;
    if (other) localStorage.setItem(CHOSEN, other);
    draw();
    changed();
  };

  const choose = (other) => {
    if (other === name || !collections?.some((one) => one.name === other)) return;
    select(other);
    look();
  };

  const draw = () => {
    showCollections(collections ?? [], name);
    byId("files-title").textContent = name ? `Files in ${name}` : "Files";
    byId("delete-collection").hidden = !current();
    showFiles([...sending.filter((one) => one.collection === name), ...files]);
    if (trouble && !collections) drawTrouble(byId("empty"), trouble, look);
    else drawEmpty(byId("empty"), collections, current(), files, pickFiles);
    setText(byId("looking-error"), collections && trouble ? trouble : "");
  };

  const make = async (wanted) => {
    if (!wanted) throw new Error("Write a name first.");
    if (!/^[A-Za-z0-9._-]{1,64}$/.test(wanted)) throw new Error("A name has letters, digits, and . _ - only, 64 at most.");
    const made = await (await post("v1/collections", { name: wanted })).json();
    collections = [...(collections ?? []), made];
    select(made.name);
  };

  const addFiles = async (added) => {
    if (added.length === 0) return;
    if (!(await did("files-error", async () => current() ?? make(FIRST_NAME)))) return;
    for (const file of added) {
      sending.push({ id: `local-${nextId++}`, local: true, filename: file.name, status: "waiting", share: 0, collection: name, file, stop: new AbortController() });
    }
    draw();
    if (!isSending) await sendAll();
  };

  const sendAll = async () => {
    isSending = true;
    for (let one; (one = sending.find((each) => each.status === "waiting")); ) {
      one.status = "uploading";
      draw();
      try {
        await upload(one.collection, one.file, one.stop.signal, (share) => {
          one.share = share;
          draw();
        });
        sending = sending.filter((each) => each !== one);
      } catch (error) {
        if (error.name === "AbortError") sending = sending.filter((each) => each !== one);
        else Object.assign(one, { status: "failed", error: error.message });
      }
      wasBusy = true;
      await look();
    }
    isSending = false;
  };

  /** The focus was on the button of a row that is gone. */
  const keepFocus = () => document.activeElement === document.body && byId("choose-files").focus();

  const dismiss = (file) => {
    file.stop.abort();
    sending = sending.filter((one) => one !== file);
    draw();
    keepFocus();
  };

  const removeFile = async (file) => {
    const text = "Its passages and their cached segments go with it.";
    if (!(await confirm(`Delete ${file.filename}?`, text))) return;
    if (!(await did("files-error", () => request(`${path(name)}/files/${encodeURIComponent(file.id)}`, { method: "DELETE" })))) return;
    announce(`${file.filename} is deleted.`);
    await look();
    keepFocus();
    filled();
  };

  const removeCollection = async () => {
    const collection = current();
    const text = `${some(collection.n_files, "file")} and everything prefilled of them go with it.`;
    if (!(await confirm(`Delete the collection ${collection.name}?`, text))) return;
    if (!(await did("files-error", () => request(path(collection.name), { method: "DELETE" })))) return;
    select(null);
    await look();
    keepFocus();
    filled();
  };

  const pickFiles = () => byId("file-input").click();

  byId("choose-files").addEventListener("click", pickFiles);
  byId("file-input").addEventListener("change", (event) => {
    addFiles([...event.target.files]);
    event.target.value = "";
  });
  byId("delete-collection").addEventListener("click", removeCollection);
  byId("new-collection").addEventListener("submit", async (event) => {
    event.preventDefault();
    const input = byId("collection-name");
    const wanted = input.value.trim();
    if (!(await did("collections-error", () => make(wanted)))) return;
    input.value = "";
    look();
  });
  dropAnywhere(() => name ?? `a new collection, ${FIRST_NAME}`, addFiles);
  document.addEventListener("visibilitychange", () => document.hidden || look());

  return { current, choose, look };
}

let nextId = 1;

/** Why nothing is shown. */
function drawTrouble(place, trouble, again) {
  if (place.dataset.shown === trouble) return;
  place.dataset.shown = trouble;
  place.replaceChildren(h("p", { class: "error", role: "alert" }, trouble), h("button", { type: "button", class: "primary", onclick: again }, "Try again"));
}

/** What to do first. */
function drawEmpty(place, collections, collection, files, pickFiles) {
  if (collections === null) return place.replaceChildren();
  const nReady = files.filter((file) => file.status === "ready").length;
  const isWorking = files.some(isUnderWay);
  let title = "Ask your documents";
  let text = "Add files to begin. The model reads each passage once, now: it is prefilled. Every later question reuses that, and shows you how much.";
  if (collection && nReady) {
    title = `Ask ${collection.name}`;
    text = `${some(collection.n_chunks, "passage")} of ${some(nReady, "file")} ${isWorking ? "so far; the rest is on its way." : "are prefilled and ready."} Above each answer stands how much of its prompt was reused.`;
  } else if (collection && isWorking) {
    text = "Your files are being prefilled. You can ask as soon as the first one is ready.";
  } else if (collection && files.length) {
    text = "None of these files could be read. What is wrong stands beside each; add others.";
  } else if (collection) {
    text = `${collection.name} is empty. ${text}`;
  }
  const key = title + text;
  if (place.dataset.shown === key) return;
  place.dataset.shown = key;
  place.replaceChildren(h("p", { class: "empty-title" }, title), h("p", {}, text),
    nReady || isWorking ? "" : h("button", { type: "button", class: "primary", onclick: pickFiles }, "Choose files"));
}

/** The whole window takes files. */
function dropAnywhere(target, addFiles) {
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
