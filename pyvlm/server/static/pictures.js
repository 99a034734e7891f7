// Pictures of the message that is being written: an ordered list, shown as thumbnails.

const TYPE_OF_SUFFIX = {
  png: "image/png", jpg: "image/jpeg", jpeg: "image/jpeg", webp: "image/webp", gif: "image/gif",
  bmp: "image/bmp", tif: "image/tiff", tiff: "image/tiff",
};

/** One picture: its file, a preview address that lives until `close`, and its data URL. */
export class Picture {
  #dataUrl = null;

  constructor(file) {
    this.file = file;
    this.name = file.name || "pasted picture";
    this.type = typeOf(file);
    this.preview = URL.createObjectURL(file);
  }

  /** Read once, kept for the later turns that send it again. */
  dataUrl() {
    this.#dataUrl ??= readBase64(this.file).then((base64) => `data:${this.type};base64,${base64}`);
    return this.#dataUrl;
  }

  close() {
    URL.revokeObjectURL(this.preview);
  }
}

/** The media type a browser gives, or else the one of the name's suffix. */
export function typeOf(file) {
  const suffix = file.name?.split(".").pop().toLowerCase();
  return file.type || TYPE_OF_SUFFIX[suffix] || "image/unknown";
}

function readBase64(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => reject(new Error(`${file.name} can no longer be read`));
    reader.readAsDataURL(file);
  });
}

/** The picture as an <img>; a file that the browser cannot show becomes a labelled box. */
export function pictureElement(picture) {
  const image = document.createElement("img");
  image.src = picture.preview;
  image.alt = picture.name;
  image.title = picture.name;
  image.addEventListener("error", () => {
    const box = document.createElement("span");
    box.className = "no-preview";
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", `${picture.name} (no preview)`);
    box.title = picture.name;
    box.textContent = picture.name;
    image.replaceWith(box);
  });
  return image;
}

/** The thumbnails of the composer. `onChange` runs after each change of the list. */
export class PictureTray {
  #list;
  #onChange;
  pictures = [];

  constructor(list, onChange) {
    this.#list = list;
    this.#onChange = onChange;
  }

  add(pictures) {
    this.pictures.push(...pictures);
    this.#show();
  }

  addFirst(pictures) {
    this.pictures.unshift(...pictures);
    this.#show();
  }

  /** Hands the pictures over to the caller, and is empty then. */
  take() {
    const taken = this.pictures;
    this.pictures = [];
    this.#show();
    return taken;
  }

  /** Marks one thumbnail as the reason of an error. */
  markWrong(index) {
    this.#list.children[index]?.classList.add("wrong");
  }

  #remove(index) {
    this.pictures[index].close();
    this.pictures.splice(index, 1);
    this.#show();
    const buttons = this.#list.querySelectorAll("button");
    (buttons[Math.min(index, buttons.length - 1)] ?? document.getElementById("question")).focus();
  }

  #show() {
    this.#list.hidden = this.pictures.length === 0;
    this.#list.replaceChildren(...this.pictures.map((picture, index) => {
      const item = document.createElement("li");
      const remove = document.createElement("button");
      remove.type = "button";
      remove.textContent = "×";
      remove.setAttribute("aria-label", `Remove picture ${index + 1}, ${picture.name}`);
      remove.addEventListener("click", () => this.#remove(index));
      item.append(pictureElement(picture), remove);
      return item;
    }));
    this.#onChange();
  }
}
