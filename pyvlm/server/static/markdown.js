// The little Markdown that answers get: fenced code, inline code, bold. Everything else stays text.
// Nodes are made one by one and filled through textContent: no string ever becomes markup, and
// nothing here can load or link to an address.

const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
// Lengths are bounded: a text full of open marks must not take quadratic time.
const INLINE = /(?<!`)(`{1,3})(?!`)([^\n]{1,1000}?)(?<!`)\1(?!`)|\*\*(?=\S)([^\n]{0,1000}?\S)\*\*/g;

/** The blocks of a text: {kind: "text" | "code", text}. A fence that is still open is code. */
export function parseBlocks(source) {
  const blocks = [];
  let lines = [];
  let fence = null;
  const close = (kind) => {
    if (kind === "code" || lines.join("\n").trim()) blocks.push({ kind, text: lines.join("\n") });
    lines = [];
  };
  for (const line of source.split("\n")) {
    const mark = FENCE.exec(line);
    if (fence === null && mark) {
      close("text");
      fence = mark[1];
    } else if (fence !== null && line.trim().startsWith(fence) && !line.trim().slice(fence.length)) {
      close("code");
      fence = null;
    } else {
      lines.push(line);
    }
  }
  close(fence === null ? "text" : "code");
  return blocks;
}

/** The pieces of a paragraph: {kind: "text" | "code" | "bold", text}. */
export function parseInline(source) {
  const pieces = [];
  let end = 0;
  for (const match of source.matchAll(INLINE)) {
    if (match.index > end) pieces.push({ kind: "text", text: source.slice(end, match.index) });
    const bold = match[3] !== undefined;
    pieces.push({ kind: bold ? "bold" : "code", text: bold ? match[3] : match[2] });
    end = match.index + match[0].length;
  }
  if (end < source.length) pieces.push({ kind: "text", text: source.slice(end) });
  return pieces;
}

const TAGS = { code: "code", bold: "strong", text: "span" };

function element(tag, text) {
  const node = document.createElement(tag);
  node.textContent = text;
  return node;
}

function block({ kind, text }) {
  if (kind === "code") {
    const pre = document.createElement("pre");
    pre.tabIndex = 0; // a wide block scrolls, by keyboard too
    pre.append(element("code", text));
    return pre;
  }
  const paragraph = document.createElement("p");
  const pieces = parseInline(text.replace(/^\n+|\n+$/g, ""));
  paragraph.append(...pieces.map((piece) => element(TAGS[piece.kind], piece.text)));
  return paragraph;
}

/** Shows `source` in `target`, in place of what was there. Many models begin with a space. */
export function renderText(target, source) {
  target.replaceChildren(...parseBlocks(source.trimStart()).map(block));
}
