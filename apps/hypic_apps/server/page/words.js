// Numbers and the server's codes, as a person reads them.

const grouped = new Intl.NumberFormat("en");

export const count = (n) => grouped.format(n);
export const some = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;
export function milliseconds(ms) {
  if (ms >= 10_000) return `${grouped.format((ms / 1000).toFixed(1))} s`;
  return `${ms < 10 && ms > 0 ? ms.toFixed(1) : count(Math.round(ms))} ms`;
}

export function bytes(n) {
  let unit = "B";
  for (const next of ["kB", "MB", "GB", "TB"]) {
    if (n < 1000) break;
    n /= 1000;
    unit = next;
  }
  return `${unit === "B" || n >= 100 ? Math.round(n) : n.toFixed(1)} ${unit}`;
}

const clock = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", hour12: false });
const day = new Intl.DateTimeFormat("en", { day: "numeric", month: "short" });
const longAgo = new Intl.DateTimeFormat("en", { day: "numeric", month: "short", year: "numeric" });

/** A moment, in seconds since 1970: the time of today, else the day. */
export function whenWas(seconds) {
  const then = new Date(1000 * seconds);
  const now = new Date();
  if (then.toDateString() === now.toDateString()) return clock.format(then);
  return (then.getFullYear() === now.getFullYear() ? day : longAgo).format(then);
}

const TIERS = { device: "GPU memory", host: "memory", disk: "disk", remote: "remote" };
export const tierName = (tier) => TIERS[tier] ?? tier;

export const pageName = (label) => (label ? `page${label.includes("–") ? "s" : ""} ${label}` : "");

const REASONS = {
  never_seen: "not read before",
  evicted: "had made room for others",
  deleted: "was deleted",
  not_stored: "there was no room to keep it",
  missing: "its file was gone",
  truncated: "its file was cut short",
  damaged: "its file was damaged",
  unreadable: "its file could not be read",
  other_version: "stored by another version",
  wrong_key: "its file held something else",
  wrong_shape: "stored for another model",
};

/** How a segment came to be in the prompt: kind of piece (the colour), and words. */
export function origin(tier, missReason) {
  if (tier === "conversation") return { piece: "held", text: "kept from the last turn" };
  if (tier === "live") return { piece: "live", text: "read with the prompt" };
  if (tier) return { piece: "hit", text: `reused from ${tierName(tier)}` };
  const reason = missReason ? `: ${REASONS[missReason] ?? missReason.replaceAll("_", " ")}` : "";
  return { piece: "miss", text: `computed now${reason}` };
}
