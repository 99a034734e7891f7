// What an entry of /v1/models says: what the model takes, the limits, and all of it as rows to show.

const MIB = 1 << 20;
const HIDDEN = new Set(["id", "object", "created", "owned_by", "unsupported_parameters"]);

export class Model {
  constructor(entry) {
    this.id = entry.id;
    this.entry = entry;
    const found = entry.capabilities ?? {};
    this.takesPictures = (found.modalities ?? []).includes("image");
    this.formats = this.takesPictures ? (found.image_formats ?? []) : [];
    this.limits = entry.limits ?? {};
  }

  /** Media types for a file dialog. */
  get accept() {
    return this.formats.map((format) => `image/${format.toLowerCase()}`).join(",") || "image/*";
  }

  /** Names of request fields that a chat may not set. */
  get unsupportedParameters() {
    return Object.keys(this.entry.unsupported_parameters?.chat ?? {});
  }

  get summary() {
    return `${this.id} · ${this.takesPictures ? "text and pictures" : "text only"}`;
  }

  get hint() {
    if (!this.takesPictures) return "This model takes text alone.";
    const { max_images: count, max_image_bytes: bytes } = this.limits;
    const each = bytes ? `, ${formatBytes(bytes)} each` : "";
    const most = count ? ` Up to ${count} in a conversation${each}.` : "";
    return `Drop, paste or pick pictures${this.formats.length ? ` (${this.formats.join(", ")})` : ""}.${most}`;
  }

  /** Rows of [name, value] for everything that the server reports. */
  get facts() {
    const unsupported = ["not supported", format("", this.unsupportedParameters)];
    return [["model", this.id], ...rows(this.entry, HIDDEN), unsupported];
  }

  /**
   * Why `files` cannot join `present` (pictures of the conversation), or null. Only what is plain
   * from name and size: the server decides.
   */
  refusal(files, present) {
    if (!this.takesPictures) return `${this.id} takes no pictures.`;
    const { max_images: count, max_image_bytes: bytes, max_request_image_bytes: total } = this.limits;
    const foreign = files.find((file) => !this.#mayRead(file));
    if (foreign) return `${foreign.name}: the server takes ${this.formats.join(", ")}.`;
    const large = files.find((file) => bytes && file.size > bytes);
    if (large) return `${large.name} has ${formatBytes(large.size)}; the limit is ${formatBytes(bytes)} a picture.`;
    if (count && present.length + files.length > count) {
      return `The server takes ${count} pictures in a conversation; this would be ${present.length + files.length}.`;
    }
    const sum = [...present.map((picture) => picture.file), ...files].reduce((n, file) => n + file.size, 0);
    if (total && sum > total) {
      return `All pictures together would have ${formatBytes(sum)}; the limit is ${formatBytes(total)}.`;
    }
    return null;
  }

  /** A type that the browser does not know is left to the server. */
  #mayRead({ type }) {
    if (!type || !this.formats.length) return !type || type.startsWith("image/");
    return this.formats.some((format) => type === `image/${format.toLowerCase()}`) || type === "image/x-ms-bmp";
  }
}

export function formatBytes(bytes) {
  if (bytes < 1024) return `${bytes} bytes`;
  if (bytes < MIB) return `${Math.round(bytes / 1024)} KiB`;
  const mib = bytes / MIB;
  return `${mib >= 10 || Number.isInteger(mib) ? Math.round(mib) : mib.toFixed(1)} MiB`;
}

function rows(object, hidden = new Set()) {
  return Object.entries(object)
    .filter(([name, value]) => !hidden.has(name) && value !== null)
    .flatMap(([name, value]) =>
      typeof value === "object" && !Array.isArray(value) ? rows(value) : [[label(name), format(name, value)]],
    );
}

const label = (name) => name.replace(/_(bytes|s)$/, "").replaceAll("_", " ");

function format(name, value) {
  if (Array.isArray(value)) return value.length ? value.join(", ") : "none";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number") return String(value);
  if (name.endsWith("_bytes")) return formatBytes(value);
  return value.toLocaleString("en") + (name.endsWith("_s") ? " s" : "");
}
