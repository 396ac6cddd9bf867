// Server-sent events of a fetch response (EventSource cannot POST).

import { ApiError, UNREACHED } from "./api.js";

const BROKEN_OFF = "The answer broke off: the connection to the server was lost. Try again.";

/** The data of every event, as JSON, until [DONE]. Throws ApiError for an error event or a stream that just ends. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let data = [];
  try {
    for (;;) {
      const { value, done } = await read(reader);
      if (done) throw new ApiError(BROKEN_OFF);
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const raw of lines) {
        const line = raw.replace(/\r$/, "");
        if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
        if (line !== "" || data.length === 0) continue;
        const text = data.join("\n");
        data = [];
        if (text === "[DONE]") return;
        yield JSON.parse(text);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(navigator.onLine ? BROKEN_OFF : UNREACHED);
  }
}
