// One question and its streamed answer, from the request to the last figure.

import { streamChat } from "./api.js";
import { ApiError } from "./errors.js";
import { Stopwatch, timeFacts, usageFacts } from "./measures.js";
import { stageBar } from "./stages.js";

const NOTES = {
  length: "Cut at the token limit.",
  stopped: "Stopped.",
};

/**
 * Streams the answer to `request` into `view`, and speaks it.
 * Returns {text, error}: error is null, an ApiError, or "stopped".
 */
export async function exchange(request, { view, announcer, signal }) {
  const state = { stopwatch: new Stopwatch(), usage: null, finish: null, stages: null };
  const error = await readAll(request, state, { view, announcer, signal });
  announcer.flush();
  const reason = error === "stopped" ? "stopped" : state.finish;
  view.finish({
    notes: NOTES[reason] ? [NOTES[reason]] : [],
    facts: view.text || !error ? [...usageFacts(state.usage), ...timeFacts(state.stopwatch, state.usage)] : [],
    details: state.stages,
  });
  if (error instanceof ApiError) view.fail(error);
  return { text: view.text, error };
}

async function readAll(request, state, { view, announcer, signal }) {
  try {
    for await (const event of streamChat(request, signal)) take(event, state, view, announcer);
    return null;
  } catch (cause) {
    if (cause.name === "AbortError") return "stopped";
    if (cause instanceof ApiError) return cause;
    throw cause;
  }
}

function take({ chunk, comment }, state, view, announcer) {
  if (comment !== undefined) {
    state.stages = stageBar(comment) ?? state.stages;
    return;
  }
  const choice = chunk.choices?.[0];
  const text = choice?.delta?.content;
  if (text) {
    state.stopwatch.mark();
    view.append(text);
    announcer.push(text);
  }
  state.finish = choice?.finish_reason ?? state.finish;
  state.usage = chunk.usage ?? state.usage;
}
