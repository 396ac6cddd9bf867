// One request and its answer as it comes.

import { ApiError, post, sentence } from "./api.js";
import { events } from "./sse.js";

/** A run before it has begun. began, first: of performance.now(), when it was sent and when its first text came. state: waiting, streaming, done, stopped or failed. mode: null for the server's own. */
export const newRun = (mode = null) => ({ mode, state: "waiting", text: "", documents: [], hypic: null, finish: null, error: null, began: null, first: null });

/** Fills the run with the answer to request()'s {model, messages, collection}; told() after every change. Never throws:
 * a failure becomes the run's error, in words. */
export async function fillRun(run, request, signal, told) {
  Object.assign(run, newRun(run.mode), { began: performance.now() });
  told();
  try {
    const body = { ...(await request()), stream: true, ...(run.mode && { mode: run.mode }) };
    const response = await post("v1/chat/completions", body, signal);
    for await (const chunk of events(response)) {
      if (chunk.error) throw new ApiError(sentence(chunk.error.message ?? "the server could not finish this answer"), 500, chunk.error.code);
      take(run, chunk);
      told();
    }
    run.state = "done";
  } catch (error) {
    if (error.name === "AbortError" || signal.aborted) run.state = "stopped";
    else {
      run.state = "failed";
      run.error = error instanceof ApiError ? withWait(error) : "The server sent something that this page does not understand. Load the page again.";
      if (!(error instanceof ApiError)) console.error(error);
    }
  }
  told();
}

function take(run, chunk) {
  if (chunk.documents) run.documents = chunk.documents.map((one, i) => ({ ...run.documents[i], ...one }));
  if (chunk.hypic) run.hypic = chunk.hypic;
  const choice = chunk.choices?.[0];
  if (choice?.delta?.content) {
    run.text += choice.delta.content;
    run.state = "streaming";
    run.first ??= performance.now();
  }
  if (choice?.finish_reason) run.finish = choice.finish_reason;
}

const withWait = (error) => (error.retryAfter && !error.message.includes(`${error.retryAfter} s`) ? `${error.message} There may be room in ${error.retryAfter} s.` : error.message);
