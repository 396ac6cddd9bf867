// The server in a few lines: its model, and how full each tier of the cache is.

import { json } from "./api.js";
import { byId, h } from "./dom.js";
import { bytes, count, some, tierName } from "./words.js";

let name = null;

/** Look again, and show it. Quiet where it fails: what the person does next will tell. */
export async function showServer() {
  let told;
  try {
    told = await json("v1/server");
  } catch {
    return;
  }
  byId("server").hidden = false;
  const tiers = Object.entries(told.tiers ?? {}).map(([name, tier]) => {
    const bar = h("span", {});
    bar.style.width = `${tier.budget ? Math.min(100, (100 * tier.nbytes) / tier.budget) : 0}%`;
    const room = tier.budget ? `${bytes(tier.nbytes)} of ${bytes(tier.budget)}` : bytes(tier.nbytes);
    return h("li", {}, h("span", {}, tierName(name)), h("span", { class: "fine" }, `${some(tier.n_entries, "segment")}, ${room}`), h("span", { class: "meter", "aria-hidden": "true" }, bar));
  });
  const policy = told.policy.mode === "full" ? ". It reuses nothing: every prompt is computed in full" : "";
  byId("server-body").replaceChildren(
    h("p", { class: "model", title: told.model }, told.model), h("p", { class: "fine" }, `Takes prompts of up to ${count(told.context_length)} tokens${policy}`),
    h("ul", { class: "plain tiers" }, tiers));
}

/** The name under which to ask. Throws ApiError. */
export async function modelName() {
  name ??= (await json("v1/models")).data[0].id;
  return name;
}
