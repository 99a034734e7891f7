// The conversation as data, and the request it makes. Turns are {role, text, pictures}.

export class Conversation {
  turns = [];

  addQuestion(text, pictures) {
    this.turns.push({ role: "user", text, pictures });
  }

  addAnswer(text) {
    this.turns.push({ role: "assistant", text, pictures: [] });
  }

  /** Takes back the last question, which got no answer. */
  takeBack() {
    return this.turns.pop();
  }

  get pictures() {
    return this.turns.flatMap((turn) => turn.pictures);
  }

  /** Lets go of the pictures; the conversation is of no use then. */
  close() {
    for (const picture of this.pictures) picture.close();
  }

  async messages(system) {
    const messages = await Promise.all(this.turns.map(messageOf));
    return system ? [{ role: "system", content: system }, ...messages] : messages;
  }
}

async function messageOf({ role, text, pictures }) {
  if (pictures.length === 0) return { role, content: text };
  const parts = await Promise.all(pictures.map(imagePart));
  if (text) parts.push({ type: "text", text });
  return { role, content: parts };
}

async function imagePart(picture) {
  return { type: "image_url", image_url: { url: await picture.dataUrl() } };
}
