// The conversation as it is seen.

import { adviceFor } from "./errors.js";
import { renderText } from "./markdown.js";
import { pictureElement } from "./pictures.js";

function make(tag, className, text = "") {
  const node = document.createElement(tag);
  node.className = className;
  node.textContent = text;
  return node;
}

/** An answer that grows. The text is redrawn at most once a frame. */
export class AnswerView {
  #body = make("div", "text");
  #item;
  #frame = 0;
  text = "";

  constructor(item) {
    this.#item = item;
    item.setAttribute("aria-busy", "true");
    item.append(make("p", "who", "Answer"), this.#body);
  }

  remove() {
    this.#item.remove();
  }

  append(text) {
    this.text += text;
    this.#frame ||= requestAnimationFrame(() => this.#draw());
  }

  /** Ends the answer. `notes` say why it is not whole; `facts` are counts and times. */
  finish({ notes = [], facts = [], details = null }) {
    this.#draw();
    this.#item.removeAttribute("aria-busy");
    for (const note of notes) this.#item.append(make("p", "note", note));
    const footer = make("footer", "facts-line");
    for (const fact of facts) footer.append(make("span", "fact", fact));
    if (this.text) footer.append(copyButton(this.text));
    this.#item.append(footer);
    if (details) this.#item.append(details);
  }

  fail(error) {
    this.#item.removeAttribute("aria-busy");
    this.#item.append(errorCard(error));
  }

  #draw() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    renderText(this.#body, this.text);
  }
}

function copyButton(text) {
  const button = make("button", "link", "Copy");
  button.type = "button";
  button.hidden = !navigator.clipboard; // missing where the page is not from a secure origin
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text).then(
      () => { button.textContent = "Copied"; },
      () => { button.textContent = "Not allowed"; },
    );
  });
  return button;
}

function errorCard(error) {
  const card = make("div", "error");
  card.setAttribute("role", "alert");
  const head = make("p", "error-head");
  head.append(make("code", "code", error.code));
  if (error.status) head.append(make("span", "status", `HTTP ${error.status}`));
  card.append(head, make("p", "message", error.message), make("p", "advice", adviceFor(error)));
  return card;
}

export class Transcript {
  #list;
  #scroller;
  #follows = true; // the end is in view, and stays so while it grows

  constructor(list, scroller) {
    this.#list = list;
    this.#scroller = scroller;
    scroller.addEventListener("scroll", () => {
      const { scrollHeight, scrollTop, clientHeight } = scroller;
      this.#follows = scrollHeight - scrollTop - clientHeight < 60;
    });
    const observer = new ResizeObserver(() => { if (this.#follows) this.#toEnd(); });
    observer.observe(list);
    observer.observe(scroller);
  }

  /** Returns the element, to be marked if the question is taken back. */
  addQuestion(text, pictures) {
    const item = this.#add("turn question");
    item.append(make("p", "who", "You"));
    if (pictures.length) {
      const row = make("div", "pictures");
      row.append(...pictures.map(pictureElement));
      item.append(row);
    }
    if (text) item.append(make("p", "text", text));
    return item;
  }

  addAnswer() {
    return new AnswerView(this.#add("turn answer"));
  }

  clear() {
    this.#list.replaceChildren();
  }

  #add(className) {
    const item = make("li", className);
    this.#list.append(item);
    this.#follows = true;
    this.#toEnd();
    return item;
  }

  #toEnd() {
    this.#scroller.scrollTop = this.#scroller.scrollHeight;
  }
}
