// Asks for the API key, at most once at a time.

import { writeKey } from "./storage.js";

export class KeyDialog {
  #dialog;
  #input;
  #answer = null;

  constructor(dialog, form, input, cancel) {
    this.#dialog = dialog;
    this.#input = input;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      writeKey(input.value.trim());
      dialog.close("given");
    });
    cancel.addEventListener("click", () => dialog.close("cancelled"));
  }

  /** True once a key was given, false if the person would not. */
  ask() {
    this.#answer ??= new Promise((resolve) => {
      this.#dialog.returnValue = "cancelled"; // what Esc leaves
      this.#input.value = "";
      this.#dialog.showModal();
      this.#dialog.addEventListener("close", () => resolve(this.#dialog.returnValue === "given"), { once: true });
    }).finally(() => { this.#answer = null; });
    return this.#answer;
  }
}
