// What one answer took: times measured here, counts and stage times as the server reports them.

/** Measures the stream as it arrives in this page; all times in seconds. */
export class Stopwatch {
  #start = performance.now();
  #first = null;
  #last = null;

  mark() {
    this.#last = performance.now();
    this.#first ??= this.#last;
  }

  get firstToken() {
    return this.#first === null ? null : (this.#first - this.#start) / 1000;
  }

  get total() {
    return (performance.now() - this.#start) / 1000;
  }

  /** Tokens per second after the first; null where there is no such span. */
  rate(numTokens) {
    const span = (this.#last - this.#first) / 1000;
    return numTokens > 1 && span > 0 ? (numTokens - 1) / span : null;
  }
}

export function formatSeconds(seconds) {
  const ms = seconds * 1000;
  if (ms < 1000) return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
  return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
}

const count = (number, one, many = `${one}s`) =>
  `${number.toLocaleString("en")} ${number === 1 ? one : many}`;

/** The counts of OpenAI's `usage`, one short phrase each. */
export function usageFacts(usage) {
  if (!usage) return [];
  const facts = [count(usage.prompt_tokens, "prompt token")];
  const positions = usage.prompt_tokens_details?.image_positions;
  if (positions) facts.push(count(positions, "image position"));
  facts.push(count(usage.completion_tokens, "answer token"));
  return facts;
}

/** What was measured here, one short phrase each. */
export function timeFacts(stopwatch, usage) {
  const facts = [];
  if (stopwatch.firstToken !== null) facts.push(`first token ${formatSeconds(stopwatch.firstToken)}`);
  const rate = stopwatch.rate(usage?.completion_tokens ?? 0);
  if (rate !== null) facts.push(`${rate.toFixed(rate < 10 ? 1 : 0)} tokens/s`);
  facts.push(`total ${formatSeconds(stopwatch.total)}`);
  return facts;
}
