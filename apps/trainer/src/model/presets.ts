// Shapes of GPT-2 by name. The byte-level ones are small enough for a CPU; the others are OpenAI's.

/** What a GPT-2 is made of; the fields of `config.json` under our names. */
export interface GptShape {
  readonly vocabSize: number;
  readonly positions: number;
  readonly layers: number;
  readonly width: number;
  readonly heads: number;
  /** Probability of dropping; on embeddings, attention weights and residual branches alike. */
  readonly dropout: number;
  readonly layerNormEpsilon: number;
}

interface Preset extends GptShape {
  /** A line for --help. */
  readonly summary: string;
}

const BYTES = { vocabSize: 256, dropout: 0, layerNormEpsilon: 1e-5 } as const;
const GPT2 = { vocabSize: 50257, positions: 1024, dropout: 0.1, layerNormEpsilon: 1e-5 } as const;

/** Every preset of --model. */
export const PRESETS = {
  nano: {
    ...BYTES,
    positions: 64,
    layers: 2,
    width: 64,
    heads: 4,
    summary: 'bytes, 0.1 M parameters',
  },
  micro: { ...BYTES, positions: 128, layers: 4, width: 128, heads: 4, summary: 'bytes, 0.8 M' },
  mini: { ...BYTES, positions: 256, layers: 6, width: 256, heads: 8, summary: 'bytes, 4.9 M' },
  gpt2: { ...GPT2, layers: 12, width: 768, heads: 12, summary: 'BPE, 124 M' },
  'gpt2-medium': { ...GPT2, layers: 24, width: 1024, heads: 16, summary: 'BPE, 355 M' },
  'gpt2-large': { ...GPT2, layers: 36, width: 1280, heads: 20, summary: 'BPE, 774 M' },
  'gpt2-xl': { ...GPT2, layers: 48, width: 1600, heads: 25, summary: 'BPE, 1558 M' },
} as const satisfies Record<string, Preset>;

export type PresetName = keyof typeof PRESETS;

/** Two ranks on two CPU cores learn words of the novel with it in under two minutes. */
export const DEFAULT_PRESET: PresetName = 'micro';

export function isPresetName(name: string): name is PresetName {
  return Object.hasOwn(PRESETS, name);
}

/** Trainable numbers of a shape, the tied head once. */
export function parameterCount(shape: GptShape): number {
  const { vocabSize, positions, layers, width } = shape;
  const block = 12 * width * width + 13 * width; // attention 4w^2 + 4w, mlp 8w^2 + 5w, two norms 4w
  return (vocabSize + positions) * width + layers * block + 2 * width;
}
