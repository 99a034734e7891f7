// Speaks a stream to screen readers sentence by sentence: a token at a time cannot be followed, and
// the visible text is redrawn too often to be live itself.

const SENTENCE = /^[\s\S]*?[.!?:\n](?=\s|$)/;

export class Announcer {
  #region;
  #waiting = "";

  constructor(region) {
    this.#region = region;
  }

  say(text) {
    const line = document.createElement("p");
    line.textContent = text;
    this.#region.append(line);
  }

  push(text) {
    this.#waiting += text;
    for (let match; (match = SENTENCE.exec(this.#waiting)) && match[0].length < this.#waiting.length; ) {
      this.#speak(match[0].length);
    }
  }

  flush() {
    this.#speak(this.#waiting.length);
  }

  clear() {
    this.#waiting = "";
    this.#region.replaceChildren();
  }

  #speak(length) {
    const text = this.#waiting.slice(0, length).trim();
    this.#waiting = this.#waiting.slice(length);
    if (text) this.say(text);
  }
}
