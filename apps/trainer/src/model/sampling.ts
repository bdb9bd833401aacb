// Draws tokens from a model's logits, on the host: one token at a time is nothing to compute.

export interface SamplingOptions {
  /** Below 1: likelier tokens still more often. */
  readonly temperature: number;
  /** Only this many of the likeliest tokens are drawn. */
  readonly topK: number;
}

/**
 * A token by the softmax of logits / temperature, [vocab]; `uniform` in [0, 1) decides. Ties at the
 * edge of topK are broken by the lower token.
 */
export function drawToken(logits: Float32Array, uniform: number, options: SamplingOptions): number {
  const order = Array.from(logits.keys()).sort((a, b) => logits[b]! - logits[a]! || a - b);
  const candidates = order.slice(0, options.topK);
  const most = logits[candidates[0]!]!;
  const weights = candidates.map((token) =>
    Math.exp((logits[token]! - most) / options.temperature),
  );
  let left = uniform * weights.reduce((sum, weight) => sum + weight, 0);
  for (const [i, token] of candidates.entries()) {
    left -= weights[i]!;
    if (left < 0) {
      return token;
    }
  }
  return candidates.at(-1)!;
}

/**
 * Continues `prompt` by `count` tokens. `logitsAfter` gets at most `context` tokens, the last ones,
 * and gives the logits of what follows them, [vocab].
 */
export async function sampleTokens(
  prompt: Uint32Array,
  logitsAfter: (tokens: Uint32Array) => Promise<Float32Array>,
  options: SamplingOptions & {
    readonly count: number;
    readonly context: number;
    readonly uniform: () => number;
    /** Asked before each token; ends early. */
    readonly isOver?: () => boolean;
  },
): Promise<Uint32Array> {
  const tokens = [...prompt];
  for (let i = 0; i < options.count && options.isOver?.() !== true; i++) {
    const logits = await logitsAfter(Uint32Array.from(tokens.slice(-options.context)));
    tokens.push(drawToken(logits, options.uniform(), options));
  }
  return Uint32Array.from(tokens.slice(prompt.length));
}
