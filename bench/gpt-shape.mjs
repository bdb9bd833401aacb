// The GPTs that every engine trains: blocks as in GPT-2, f32, AdamW. BENCH_MODEL in the environment
// chooses one; run.mjs sets it for all engines.

export const MODELS = {
  small: { vocab: 256, seq: 128, width: 128, layers: 4, heads: 4, batch: 8, lr: 1e-3 },
  '26m': { vocab: 1024, seq: 256, width: 512, layers: 8, heads: 8, batch: 4, lr: 1e-3 },
  '124m': { vocab: 50257, seq: 256, width: 768, layers: 12, heads: 12, batch: 2, lr: 1e-3 },
};

export const GPT = MODELS[process.env.BENCH_MODEL ?? 'small'];
export const TOKENS = GPT.batch * GPT.seq;

/** The token ids and targets of a step, which are the same for every engine. */
export function tokens() {
  const at = (i) => (i * 7 + 3 * (i >> 4)) % GPT.vocab;
  return {
    ids: Int32Array.from({ length: TOKENS }, (_, i) => at(i)),
    targets: Int32Array.from({ length: TOKENS }, (_, i) => at(i + 1)),
  };
}

/**
 * Name, shape and initial values of each parameter. Values come from a linear congruence, and the
 * head is tied.
 */
export function parameters() {
  const { width: C, vocab, seq, layers } = GPT;
  let state = 1;
  const random = (size, scale) =>
    Float32Array.from({ length: size }, () => {
      state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
      return (state / 2 ** 32 - 0.5) * 2 * scale;
    });
  const found = [];
  const add = (name, shape, scale, offset = 0) => {
    const size = shape.reduce((a, b) => a * b, 1);
    const values = scale === 0 ? new Float32Array(size).fill(offset) : random(size, scale);
    found.push({ name, shape, values });
  };
  add('wte', [vocab, C], 0.035);
  add('wpe', [seq, C], 0.035);
  for (let l = 0; l < layers; l++) {
    add(`h${l}.ln1.g`, [C], 0, 1);
    add(`h${l}.ln1.b`, [C], 0);
    add(`h${l}.qkv.w`, [C, 3 * C], 0.035);
    add(`h${l}.qkv.b`, [3 * C], 0);
    add(`h${l}.proj.w`, [C, C], 0.012);
    add(`h${l}.proj.b`, [C], 0);
    add(`h${l}.ln2.g`, [C], 0, 1);
    add(`h${l}.ln2.b`, [C], 0);
    add(`h${l}.fc.w`, [C, 4 * C], 0.035);
    add(`h${l}.fc.b`, [4 * C], 0);
    add(`h${l}.out.w`, [4 * C, C], 0.012);
    add(`h${l}.out.b`, [C], 0);
  }
  add('lnf.g', [C], 0, 1);
  add('lnf.b', [C], 0);
  return found;
}

/** The number of parameters of a model whose head is its token table. */
export function parameterCount({ vocab, seq, width, layers }) {
  return (vocab + seq) * width + layers * (12 * width * width + 13 * width) + 2 * width;
}
