// The box at the foot: question, pictures, send and stop.

import { Picture, PictureTray } from "./pictures.js";

const byId = (id) => document.getElementById(id);

export class Composer {
  #question = byId("question");
  #attach = byId("attach");
  #input = byId("file-input");
  #drop = byId("drop-target");
  #tray = new PictureTray(byId("thumbnails"), () => this.notice(null));
  #onSubmit;
  #present;
  #model = null;
  #busy = false;

  /** `present` gives the pictures of earlier turns, which every request sends again. */
  constructor({ onSubmit, onStop, present }) {
    this.#onSubmit = onSubmit;
    this.#present = present;
    byId("stop").addEventListener("click", onStop);
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.#listenToQuestion();
    this.#listenToPictures();
    if (!matchMedia("(pointer: coarse)").matches) this.#question.focus(); // a phone's keyboard stays away
  }

  /** What may be added follows from the model. */
  use(model) {
    this.#model = model;
    this.#attach.disabled = !model.takesPictures;
    this.#attach.title = model.takesPictures
      ? "Add pictures (or drop or paste them)" : "This model takes no pictures";
    this.#input.accept = model.accept;
    this.#question.placeholder = model.takesPictures ? "Ask about your pictures" : "Ask something";
  }

  setBusy(busy) {
    this.#busy = busy;
    const send = byId("send");
    const stop = byId("stop");
    const focused = document.activeElement === send || document.activeElement === stop;
    send.hidden = busy;
    stop.hidden = !busy;
    if (focused) (busy ? stop : this.#question).focus();
  }

  /** Takes a question back that got no answer. What was typed meanwhile stays. */
  giveBack(text, pictures) {
    if (!this.#question.value) this.#question.value = text;
    this.#tray.addFirst(pictures);
    this.#fit();
  }

  markWrong(index) {
    this.#tray.markWrong(index);
  }

  reset() {
    for (const picture of this.#tray.take()) picture.close();
    this.#question.value = "";
    this.notice(null);
    this.#fit();
    this.#question.focus();
  }

  /** Shows a line over the box, with an action {text, run} perhaps; null hides it. */
  notice(text, action = null) {
    const line = byId("notice");
    line.hidden = text === null;
    line.textContent = text ?? "";
    if (!action) return;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "link";
    button.textContent = action.text;
    button.addEventListener("click", action.run);
    line.append(" ", button);
  }

  #submit() {
    const text = this.#question.value.trim();
    if (this.#busy || (!text && !this.#tray.pictures.length)) return;
    this.#question.value = "";
    this.#fit();
    this.#onSubmit(text, this.#tray.take());
  }

  #addFiles(files) {
    if (!this.#model || files.length === 0) return;
    const reason = this.#model.refusal(files, [...this.#present(), ...this.#tray.pictures]);
    if (reason) this.notice(reason);
    else this.#tray.add(files.map((file) => new Picture(file)));
  }

  #fit() {
    this.#question.style.height = "auto";
    this.#question.style.height = `${this.#question.scrollHeight}px`;
  }

  #listenToQuestion() {
    this.#question.addEventListener("input", () => this.#fit());
    this.#question.addEventListener("keydown", (event) => {
      // isComposing: Enter then picks a word of an input method.
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#submit();
    });
  }

  #listenToPictures() {
    this.#attach.addEventListener("click", () => this.#input.click());
    this.#input.addEventListener("change", () => {
      this.#addFiles([...this.#input.files]);
      this.#input.value = ""; // the same file may be picked again
    });
    document.addEventListener("paste", (event) => {
      const files = [...(event.clipboardData?.files ?? [])];
      if (files.length === 0 || document.querySelector("dialog[open]")) return;
      event.preventDefault();
      this.#addFiles(files);
    });
    this.#listenToDrops();
  }

  #listenToDrops() {
    const bringsFiles = (event) => event.dataTransfer?.types.includes("Files");
    document.addEventListener("dragover", (event) => {
      if (!bringsFiles(event)) return;
      event.preventDefault();
      event.dataTransfer.dropEffect = this.#model?.takesPictures ? "copy" : "none";
      this.#drop.hidden = !this.#model?.takesPictures;
    });
    document.addEventListener("dragleave", (event) => {
      if (event.relatedTarget === null) this.#drop.hidden = true; // left the window
    });
    document.addEventListener("drop", (event) => {
      this.#drop.hidden = true;
      if (!bringsFiles(event)) return;
      event.preventDefault(); // a missed drop must not leave the page
      this.#addFiles([...event.dataTransfer.files]);
    });
  }
}
