// Collections and the files in the chosen one: made, filled, watched, deleted. Or no collection: the model alone.

import { json, post, request } from "./api.js";
import { announce, byId, h, setText } from "./dom.js";
import { confirm } from "./confirm.js";
import { collectionList, fileList, isUnderWay } from "./rows.js";
import { upload } from "./upload.js";
import { drawEmpty, drawTrouble, dropAnywhere } from "./welcome.js";
import { count, some } from "./words.js";

const SOON = 700; // ms between looks while something is under way
const LATER = 3000; // ms after a look that failed
const MANY = 6; // files from which on they are searched and chosen
const LOOK_EVERY = 5; // files sent
const FIRST_NAME = "documents"; // of the collection that files make where there is none

const path = (name) => `v1/collections/${encodeURIComponent(name)}`;

/** chosen(): the person has chosen another collection. looked(): what is told of them may be new. filled(): more, or less,
 * is cached than before. removed(): files are gone. opened(file): its text is wanted. */
export function startDocuments({ chosen, looked, filled, removed, opened }) {
  let collections = null; // null before the first answer
  let name = null;
  let isAlone = false; // no collection, on purpose
  let files = [];
  let sending = []; // uploads not yet on the server: {id, filename, status, share, collection, file, stop}
  let timer = null;
  let trouble = null; // of the last look, in words
  let wasBusy = false;
  let isSending = false;
  let nSent = 0; // of those that were added since nothing was under way
  let cached = new Map(); // by file: {n_segments, n_cached}, as of the last look at the cache
  let isWarming = false;
  let selected = new Set();

  const current = () => collections?.find((one) => one.name === name) ?? null;
  const showCollections = collectionList(byId("collections"), (other) => choose(other, true));
  const showFiles = fileList(byId("files"), {
    remove: (file) => (file.local ? dismiss(file) : removeFiles([file])),
    open: opened,
    select: (file, isSelected) => {
      selected[isSelected ? "add" : "delete"](file.id);
      draw();
    },
  });

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
    timer = 0; // under way
    let wait = null;
    try {
      collections = (await json("v1/collections")).data;
      if (!current() && !isAlone) select(collections[0]?.name ?? null);
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
      if (wasBusy && !isBusy) lookAtCache();
      wasBusy = isBusy;
    } catch (error) {
      trouble = error.message;
      if (!error.asksForKey) wait = LATER;
    }
    draw();
    clearTimeout(timer);
    timer = wait === null ? null : setTimeout(look, document.hidden ? LATER : wait);
  };

  /** What is cached now, which is not what once was: other segments may have needed the room. */
  const lookAtCache = async () => {
    const asked = current()?.name;
    if (!asked) return;
    try {
      const told = await json(`${path(asked)}/cached`);
      if (asked !== name) return;
      if (isWarming && !told.is_warming) announce("Everything that there is room for is ready again.");
      cached = new Map(told.data.map((one) => [one.file_id, one]));
      isWarming = told.is_warming;
      if (isWarming) setTimeout(lookAtCache, document.hidden ? LATER : SOON);
      draw();
      if (!isWarming) filled();
    } catch {
      // the next look will tell
    }
  };

  const warm = async () => {
    if (!(await did("files-error", () => post(`${path(name)}/warm`, {})))) return;
    isWarming = true;
    draw();
    await lookAtCache();
  };

  const select = (other) => {
    if (name !== other) {
      files = [];
      cached = new Map();
      isWarming = false;
      selected = new Set();
      byId("files-query").value = "";
    }
    name = other;
    if (other !== null) isAlone = false;
    draw();
  };

  /** null: the model alone. isByHand: where the person did it. */
  const choose = (other, isByHand = false) => {
    isAlone = other === null;
    if (other === name) draw();
    else select(other);
    if (isByHand) chosen();
    look().then(lookAtCache);
  };

  const draw = () => {
    showCollections(collections ?? [], isAlone ? null : name);
    byId("files-section").hidden = isAlone;
    byId("files-title").textContent = "Files";
    byId("files-title").title = name ?? "";
    byId("delete-collection").hidden = !current();
    drawFiles();
    if (trouble && !collections) drawTrouble(byId("empty"), trouble, look);
    else drawEmpty(byId("empty"), { collections, collection: current(), isAlone, files }, { pickFiles, askAlone: () => choose(null, true) });
    setText(byId("looking-error"), collections && trouble ? trouble : "");
    looked();
  };

  const drawFiles = () => {
    const all = [...sending.filter((one) => one.collection === name), ...files.map((file) => ({ ...file, cached: cached.get(file.id) }))];
    const query = byId("files-query").value.trim().toLowerCase();
    const found = query ? all.filter((file) => file.filename.toLowerCase().includes(query) || file.status === query) : all;
    const here = new Set(files.map((file) => file.id));
    selected = new Set([...selected].filter((id) => here.has(id)));
    byId("files-tools").hidden = all.length < MANY;
    if (byId("files-order").value === "name") found.sort((a, b) => a.filename.localeCompare(b.filename, "en", { numeric: true }));
    byId("files").classList.toggle("selectable", all.length >= MANY);
    showFiles(found, selected);
    setText(byId("files-none"), query && !found.length ? "No file has that in its name." : "");
    byId("select-all").checked = found.length > 0 && found.every((file) => file.local || selected.has(file.id));
    byId("select-all").onchange = (event) => {
      selected = new Set(event.target.checked ? found.filter((file) => !file.local).map((file) => file.id) : []);
      draw();
    };
    setText(byId("select-told"), selected.size ? `${some(selected.size, "file")} chosen` : query ? `${count(found.length)} of ${count(all.length)}` : some(all.length, "file"));
    byId("delete-selected").hidden = selected.size === 0;
    drawProgress(all);
    const cold = [...cached.values()].reduce((sum, one) => sum + one.n_segments - one.n_cached, 0);
    byId("warm-place").hidden = !cold && !isWarming;
    byId("warm").hidden = isWarming;
    setText(byId("warm-told"), isWarming ? `Reading again: ${some(cold, "passage")} to go` : `${some(cold, "passage")} would be read when asked for, which takes longer.`);
  };

  /** How far a batch of files is, where it is more than one. */
  const drawProgress = (all) => {
    const isOn = all.some((file) => file.local && file.status !== "failed") || all.some(isUnderWay);
    const nFailed = all.filter((file) => file.status === "failed").length;
    const nReady = all.filter((file) => file.status === "ready").length;
    byId("files-progress").hidden = !isOn || all.length < 2;
    setText(byId("files-progress-told"), `${count(nReady)} of ${some(all.length, "file")} ready${nFailed ? `, ${count(nFailed)} could not be read` : ""}`);
    byId("files-progress-bar").style.width = `${(100 * (nReady + nFailed)) / Math.max(1, all.length)}%`;
  };

  const make = async (wanted) => {
    if (!wanted) throw new Error("Write a name first.");
    if (!/^[A-Za-z0-9._-]{1,64}$/.test(wanted)) throw new Error("A name has letters, digits, and . _ - only, 64 at most.");
    const made = await (await post("v1/collections", { name: wanted })).json();
    collections = [...(collections ?? []), made];
    select(made.name);
    chosen();
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
      if (++nSent % LOOK_EVERY === 0 || !sending.some((each) => each.status === "waiting")) await look();
      else if (timer === null) look();
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

  const removeFiles = async (gone) => {
    const title = gone.length === 1 ? `Delete ${gone[0].filename}?` : `Delete ${some(gone.length, "file")}?`;
    if (!(await confirm(title, "Everything that was read of it goes too, also from conversations."))) return;
    const done = await did("files-error", async () => {
      for (const [i, file] of gone.entries()) {
        if (gone.length > 1) setText(byId("select-told"), `Deleting ${count(i + 1)} of ${count(gone.length)}…`);
        await request(`${path(name)}/files/${encodeURIComponent(file.id)}`, { method: "DELETE" });
      }
    });
    if (done) announce(gone.length === 1 ? `${gone[0].filename} is deleted.` : `${some(gone.length, "file")} are deleted.`);
    await look();
    keepFocus();
    filled();
    removed();
  };

  const removeCollection = async () => {
    const collection = current();
    const text = `${some(collection.n_files, "file")} and everything that was read of them go with it, also from conversations.`;
    if (!(await confirm(`Delete the collection ${collection.name}?`, text))) return;
    if (!(await did("files-error", () => request(path(collection.name), { method: "DELETE" })))) return;
    select(null);
    await look();
    keepFocus();
    filled();
    removed();
    chosen();
  };

  const pickFiles = () => byId("file-input").click();

  byId("choose-files").addEventListener("click", pickFiles);
  byId("file-input").addEventListener("change", (event) => {
    addFiles([...event.target.files]);
    event.target.value = "";
  });
  byId("delete-collection").addEventListener("click", removeCollection);
  byId("delete-selected").addEventListener("click", () => removeFiles(files.filter((file) => selected.has(file.id))));
  byId("files-query").addEventListener("input", draw);
  byId("files-order").addEventListener("change", draw);
  byId("warm").addEventListener("click", warm);
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

  return { current, isAlone: () => isAlone, choose, look: () => look().then(lookAtCache), lookAtCache };
}

let nextId = 1;
