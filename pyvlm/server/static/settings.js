// The drawer's form: system prompt and sampling. An empty field is not sent.

import { readSettings, writeSettings } from "./storage.js";

const NUMBERS = [
  "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
  "max_completion_tokens", "seed",
];

export class Settings {
  #form;

  constructor(form) {
    this.#form = form;
    for (const [name, value] of Object.entries(readSettings())) {
      const field = form.elements[name];
      if (field) field.value = value;
    }
    form.addEventListener("input", () => this.#save());
    form.addEventListener("submit", (event) => event.preventDefault());
  }

  get model() {
    return this.#form.elements.model.value;
  }

  get system() {
    return this.#form.elements.system.value.trim();
  }

  /** The sampling fields that hold a number, as the request names them. */
  get sampling() {
    const fields = NUMBERS.map((name) => this.#form.elements[name]);
    const set = fields.filter((field) => !field.disabled && Number.isFinite(field.valueAsNumber));
    return Object.fromEntries(set.map((field) => [field.name, field.valueAsNumber]));
  }

  /** The first field with a value that the form itself refuses, or null. */
  get invalidField() {
    return NUMBERS.map((name) => this.#form.elements[name]).find((field) => !field.validity.valid) ?? null;
  }

  /** Switches off what the server says that it does not implement. */
  disable(unsupported) {
    for (const name of NUMBERS) this.#form.elements[name].disabled = unsupported.includes(name);
  }

  reset() {
    for (const name of ["system", ...NUMBERS]) this.#form.elements[name].value = "";
    this.#save();
  }

  #save() {
    const names = ["system", ...NUMBERS];
    writeSettings(Object.fromEntries(names.map((name) => [name, this.#form.elements[name].value])));
  }
}
