// Server-sent events from a byte stream. A comment is an event of its own: {comment}.

/** Cuts a growing text into lines ended by LF, CR LF or CR. */
export class LineSplitter {
  #rest = "";

  /** The lines that `text` completes. */
  push(text) {
    // A CR at the end may be half of a CR LF: it waits for the next text.
    const lines = (this.#rest + text).split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop();
    return lines;
  }
}

/** Gathers lines into events; an empty line ends one. */
export class EventAssembler {
  #data = [];

  push(line) {
    if (line === "") {
      const data = this.#data;
      this.#data = [];
      return data.length ? { data: data.join("\n") } : null;
    }
    if (line.startsWith(":")) return { comment: line.slice(1).trim() };
    if (line.startsWith("data:")) this.#data.push(line.slice(5).replace(/^ /, ""));
    return null; // event, id and retry mean nothing here
  }
}

/** Yields the events of `body` (a ReadableStream of bytes). Leaving the loop cancels the stream. */
export async function* readEvents(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const lines = new LineSplitter();
  const events = new EventAssembler();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      for (const line of lines.push(decoder.decode(value, { stream: true }))) {
        const event = events.push(line);
        if (event) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // already closed or aborted
  }
}
