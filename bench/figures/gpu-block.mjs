// What a model predicts for GPUs that nobody ran, as reports and documents say it.

/**
 * The prediction as a range, with its guesses.
 * @param run a report of bench/kernels/h100-model.mjs
 */
export function modelText({ total, guesses, batch, seq }) {
  const ms = (name) => total[name].toFixed(0);
  const shares = ({ product, attention, clockGhz }) =>
    `${product} of the peak in products and ${attention} in attention, at ${clockGhz} GHz`;
  const { likely, best, worst } = guesses;
  return `By model, never run: a step of GPT-2 124M in f32, ${batch} x ${seq} tokens, takes **${ms('likely')} ms (${ms('best')} to ${ms('worst')})** on an H100 SXM, and ${ms('h200')} on an H200, whose memory alone is faster. The guesses: ${shares(likely)}; at best ${shares(best)}; at worst ${shares(worst)}.`;
}

/** @param run a report of bench/kernels/h100-model.mjs @param {string} link to its Markdown */
export function modelBlock(run, link) {
  return `${modelText(run)} ${run.date} ([report](${link}))`;
}
