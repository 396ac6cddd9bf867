// Past conversations, kept in this browser. With an API key they last as long as the key: until the tab is closed.

import { apiKey } from "./api.js";

const NAME = "hypic.conversations.1";
const MOST = 30;

const shelf = () => (apiKey() ? sessionStorage : localStorage);

/** The newest first: {id, title, collection, turns}. */
export function all() {
  try {
    const kept = JSON.parse(shelf().getItem(NAME) ?? "[]");
    return kept.map((conversation) => ({ ...conversation, turns: conversation.turns.map(ended) }));
  } catch {
    return [];
  }
}

/** Keep it, as the newest; the oldest go where there is no room. */
export function keep(conversation) {
  const kept = [conversation, ...all().filter((one) => one.id !== conversation.id)].slice(0, MOST);
  while (kept.length > 0) {
    try {
      shelf().setItem(NAME, JSON.stringify(kept));
      return;
    } catch {
      kept.pop();
    }
  }
}

/** What was under way when it was kept never came to its end. */
const ended = (turn) => ({
  ...turn,
  runs: turn.runs.map((run) => (run.state === "waiting" || run.state === "streaming" ? { ...run, state: "stopped" } : run)),
});

export function forget() {
  shelf().removeItem(NAME);
}
