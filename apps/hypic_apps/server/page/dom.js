// Elements out of strings and nodes. Strings become text nodes, never HTML: everything shown may be hostile.

/** An element; props are its properties ("class" for className), "on..." its listeners, other "aria-"/"data-" attributes. */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null) continue;
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export const byId = (id) => document.getElementById(id);

/** Say it to screen readers, without showing it. */
export function announce(text) {
  byId("announce").textContent = text;
}

/** Shows a text where nothing moves when it is the same. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
