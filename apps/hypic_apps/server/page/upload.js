// Files on their way to the server, one at a time, with the share that has arrived.

import { ApiError, UNREACHED, authorization, apiKey, errorFrom, renewKey } from "./api.js";

/** Sends one file; told(share) as it goes. Resolves to the server's files. Throws ApiError, AbortError. */
export async function upload(collection, file, signal, told) {
  for (;;) {
    const used = apiKey();
    const { status, text, retryAfter } = await send(collection, file, signal, told);
    if (status >= 200 && status < 300) return JSON.parse(text).data;
    const error = errorFrom(status, text, retryAfter);
    if (!error.asksForKey) throw error;
    await renewKey(used, error.message);
  }
}

/** fetch cannot tell how much has been sent, so XMLHttpRequest. */
function send(collection, file, signal, told) {
  return new Promise((resolve, reject) => {
    const body = new FormData();
    body.append("file", file, file.name);
    const request = new XMLHttpRequest();
    request.open("POST", `v1/collections/${encodeURIComponent(collection)}/files`);
    for (const [name, value] of Object.entries(authorization())) request.setRequestHeader(name, value);
    request.upload.onprogress = (event) => event.lengthComputable && told(event.loaded / event.total);
    request.onload = () => resolve({ status: request.status, text: request.responseText, retryAfter: request.getResponseHeader("Retry-After") });
    request.onerror = () => reject(new ApiError(UNREACHED));
    request.onabort = () => reject(new DOMException("stopped", "AbortError"));
    signal.addEventListener("abort", () => request.abort());
    request.send(body);
  });
}

/** The files of a drop, those in dropped folders too. */
export async function droppedFiles(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (entries.length === 0) return [...transfer.files];
  return (await Promise.all(entries.map(filesOf))).flat();
}

async function filesOf(entry) {
  if (entry.isFile) return [await new Promise((resolve, reject) => entry.file(resolve, reject))];
  const reader = entry.createReader();
  const found = [];
  for (;;) {
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject)); // in batches
    if (some.length === 0) return found;
    found.push(...(await Promise.all(some.map(filesOf))).flat());
  }
}
