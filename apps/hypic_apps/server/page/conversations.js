// Conversations, kept on the server by tenant; nothing of them stays in the browser.

import { json, post, request } from "./api.js";

const path = (id) => `v1/chats/${encodeURIComponent(id)}`;

export const all = async (query = "") => (await json(`v1/chats?limit=1000&q=${encodeURIComponent(query)}`)).data;
export const begin = async (title, collection) => (await post("v1/chats", { title, collection })).json();
export const rename = (id, title) => post(path(id), { title });
export const remove = (id) => request(path(id), { method: "DELETE" });
export const removeAll = () => request("v1/chats", { method: "DELETE" });

/** A conversation with its turns. */
export const load = (id) => json(path(id));

/** Keep a turn, whatever became of it: what is under way is kept as stopped, should the page be closed before its end. */
export const keepTurn = (id, i, turn) =>
  request(`${path(id)}/turns/${i}`, {
    method: "PUT",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ question: turn.question, runs: turn.runs.map(told) }),
  });

const told = ({ mode, state, text, finish, error, documents, hypic }) => ({
  mode, text, finish, error, hypic, documents, state: state === "waiting" || state === "streaming" ? "stopped" : state,
});
