// The server's times per stage, as a bar with its legend.

import { formatSeconds } from "./measures.js";

const STAGES = ["queue", "fetch", "preprocess_wait", "decode_image", "transform", "encode", "prefill", "decode"];

/** {stage: seconds} of a comment in Server-Timing form, or null where it is another comment. */
export function parseStages(comment) {
  const found = /^server-timing:?\s+(.+)$/i.exec(comment);
  if (!found) return null;
  const times = {};
  for (const entry of found[1].split(",")) {
    const parts = /^\s*(\w+)\s*;\s*dur=([\d.]+)\s*$/.exec(entry);
    if (parts) times[parts[1]] = Number(parts[2]) / 1000;
  }
  return times;
}

/** A <details> with the bar, or null if the comment holds no times. */
export function stageBar(comment) {
  const times = parseStages(comment);
  const shown = times ? STAGES.filter((stage) => times[stage] > 0) : [];
  if (!shown.length) return null;
  const details = document.createElement("details");
  details.className = "stages";
  const summary = document.createElement("summary");
  summary.textContent = "Time by stage";
  const bar = document.createElement("div");
  bar.className = "bar-of-stages";
  bar.setAttribute("aria-hidden", "true");
  const legend = document.createElement("ul");
  for (const stage of shown) {
    const part = document.createElement("span");
    part.className = `stage stage-${STAGES.indexOf(stage)}`;
    part.style.flexGrow = String(times[stage] * 1000); // below 1 in all, they would not fill the bar
    bar.append(part);
    legend.append(legendItem(stage, times[stage]));
  }
  details.append(summary, bar, legend);
  return details;
}

function legendItem(stage, seconds) {
  const item = document.createElement("li");
  const swatch = document.createElement("span");
  swatch.className = `swatch stage-${STAGES.indexOf(stage)}`;
  item.append(swatch, `${stage.replaceAll("_", " ")} ${formatSeconds(seconds)}`);
  return item;
}
