// Failures of a call, and what a person can do about each.

export class ApiError extends Error {
  constructor({ status = 0, code, message, param = null, retryAfter = null }) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.code = code;
    this.param = param;
    this.retryAfter = retryAfter; // seconds
  }
}

export const ADVICE = {
  empty_prompt: "Type a question or add a picture.",
  invalid_parameter: "Correct the named setting and send again.",
  unsupported_parameter: "This server does not know the named setting: clear it under Settings.",
  image_decode_failed: "The picture is damaged or is not what its name says. Replace it and send again.",
  image_fetch_failed: "The server could not fetch the picture. Save it here first and add the file.",
  image_count: "Send another number of pictures.",
  image_shape: "The picture's data has the wrong shape. Use a picture file.",
  image_dtype: "The picture's data has the wrong type. Use a picture file.",
  non_finite: "The picture's data holds values that are no numbers. Use a picture file.",
  placeholder_mismatch: "Pictures and their places in the text do not match. Start a new chat.",
  modality_unsupported: "Leave out what this model cannot take; Settings lists what it can.",
  model_unsupported: "This model cannot take pictures here. Ask with text alone.",
  media_policy_violation: "The picture is outside this server's limits (see Settings). Use another or a smaller one.",
  context_overflow: "The conversation is too long for this model. Start a new chat, send fewer pictures, or lower Max tokens.",
  chat_template_failed: "The model's chat template refused this conversation. Start a new chat.",
  invalid_api_key: "Enter a valid API key.",
  model_not_found: "Choose a model under Settings.",
  body_too_large: "All pictures together are too large. Send fewer or smaller ones, or start a new chat.",
  not_found: "This server has no such path. Reload this page.",
  method_not_allowed: "This server does not answer such calls here. Reload this page.",
  request_timeout: "The pictures took too long to arrive. Send fewer or smaller ones.",
  unsupported_media_type: "Reload this page.",
  queue_full: "The server is busy. Wait a little and send again.",
  model_invalid: "The server's model is broken. Tell whoever runs it.",
  missing_tensor: "The server's model is incomplete. Tell whoever runs it.",
  program_mismatch: "The server's model does not fit its program. Tell whoever runs it.",
  compile_failed: "The server could not build its model. Tell whoever runs it.",
  cache_unusable: "The server cannot use its cache. Tell whoever runs it.",
  address_in_use: "The server's address is taken by another program. Tell whoever runs it.",
  runtime_missing: "The server lacks a part of its installation. Tell whoever runs it.",
  device_unavailable: "The server's device is not available. Tell whoever runs it.",
  out_of_memory: "The server ran out of memory. Send fewer pictures, or try again later.",
  engine_failed: "This one request failed. Send it again.",
  engine_dead: "The server must be restarted. Tell whoever runs it.",
  draining: "The server is shutting down. Try again when it is back.",
  loading: "The model is still loading. Try again in a moment.",
  deadline: "The request took too long. Ask for a shorter answer, or try again later.",
  unreadable_file: "The file was moved or changed. Add it again.",
  unreachable: "Check that the server runs and that this machine reaches it, then send again.",
  stream_cut: "The connection broke off. Send again.",
  bad_response: "Something between this page and the server answered in its place. Check the address.",
};

/** What to do about an error, in one line. */
export function adviceFor(error) {
  const advice = ADVICE[error.code] ?? byStatus(error.status);
  return error.retryAfter ? `${advice} The server says: in ${error.retryAfter} s.` : advice;
}

function byStatus(status) {
  if (status >= 500) return "The server failed. Send again, or tell whoever runs it.";
  if (status >= 400) return "Change the message or the settings and send again.";
  return "Send again.";
}

/** The error of a response that is not a success. */
export async function errorOf(response) {
  const seconds = Number.parseInt(response.headers.get("Retry-After") ?? "", 10);
  const retryAfter = Number.isFinite(seconds) ? seconds : null;
  const body = await response.json().catch(() => null);
  return errorFromBody(body, response.status, retryAfter);
}

/** The error in an OpenAI error body. */
export function errorFromBody(body, status = 0, retryAfter = null) {
  const { code, message, param } = body?.error ?? {};
  return new ApiError({
    status,
    code: code ?? (status === 401 ? "invalid_api_key" : "bad_response"),
    message: message ?? `the answer has status ${status} and no error body`,
    param: param ?? null,
    retryAfter,
  });
}
