// A button that copies.

import { h } from "./dom.js";

/** null where there is no clipboard: browsers have none on plain http. */
export function copyButton(text, label) {
  if (!navigator.clipboard) return null;
  const button = h("button", { type: "button", class: "quiet copy", "aria-label": label, onclick: async () => {
    await navigator.clipboard.writeText(text()).then(() => (button.textContent = "Copied"), () => (button.textContent = "Could not copy"));
    setTimeout(() => (button.textContent = "Copy"), 1500);
  } }, "Copy");
  return button;
}
