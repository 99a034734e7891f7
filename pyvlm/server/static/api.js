// The calls to the server. Addresses are relative, so the page works behind a path prefix.

import { ApiError, errorFromBody, errorOf } from "./errors.js";
import { readEvents } from "./sse.js";
import { readKey } from "./storage.js";

async function call(path, options = {}) {
  const key = readKey();
  const headers = { ...options.headers, ...(key && { Authorization: `Bearer ${key}` }) };
  let response;
  try {
    response = await fetch(path, { ...options, headers, credentials: "omit", cache: "no-store" });
  } catch (cause) {
    if (cause.name === "AbortError") throw cause;
    throw new ApiError({ code: "unreachable", message: "the server cannot be reached" });
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

/** The entries of /v1/models. */
export async function listModels() {
  const response = await call("v1/models");
  const body = await response.json().catch(() => null);
  if (!Array.isArray(body?.data)) {
    throw new ApiError({ code: "bad_response", message: "/v1/models did not answer with a list" });
  }
  return body.data;
}

/**
 * Streams a chat completion: yields {chunk} for each, and {comment} for each comment of the stream.
 * Throws ApiError, or AbortError once `signal` is aborted.
 */
export async function* streamChat(request, signal) {
  const response = await call("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", Accept: "text/event-stream" },
    body: JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  try {
    for await (const event of readEvents(response.body)) {
      if (event.comment !== undefined) yield { comment: event.comment };
      else if (event.data === "[DONE]") return;
      else yield { chunk: parseChunk(event.data) };
    }
  } catch (cause) {
    if (cause.name === "AbortError" || cause instanceof ApiError) throw cause;
    signal.throwIfAborted();
    throw new ApiError({ code: "stream_cut", message: "the connection was lost within the answer" });
  }
  throw new ApiError({ code: "stream_cut", message: "the answer ended before its end mark" });
}

function parseChunk(data) {
  const chunk = JSON.parse(data);
  if (chunk.error) throw errorFromBody(chunk);
  return chunk;
}
