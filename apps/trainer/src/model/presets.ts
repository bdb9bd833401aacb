// Shapes of GPT-2 by name. The byte-level ones are small enough for a CPU; the others are OpenAI's.

import { GPT2_DEFAULTS, type Gpt2Config } from '@shardweave/nn';

interface Preset {
  readonly config: Gpt2Config;
  /** The end of its line in --help. */
  readonly summary: string;
}

/**
 * A model over bytes. It needs no dropout before it has seen its text several times. It is narrow,
 * so its weights start larger than GPT-2's: with 0.02 its loss would stay at that of letter pairs
 * for twice as long.
 */
function bytes(size: Partial<Gpt2Config>): Gpt2Config {
  const noDropout = { embd_pdrop: 0, attn_pdrop: 0, resid_pdrop: 0 };
  return { ...GPT2_DEFAULTS, vocab_size: 256, initializer_range: 0.04, ...noDropout, ...size };
}

/** All presets of --model. */
export const PRESETS = {
  nano: {
    config: bytes({ n_positions: 64, n_layer: 2, n_embd: 64, n_head: 4 }),
    summary: 'bytes, 0.1 M',
  },
  micro: {
    config: bytes({ n_positions: 64, n_layer: 4, n_embd: 128, n_head: 4 }),
    summary: 'bytes, 0.8 M',
  },
  mini: {
    config: bytes({ n_positions: 256, n_layer: 6, n_embd: 256, n_head: 8 }),
    summary: 'bytes, 4.9 M',
  },
  gpt2: { config: GPT2_DEFAULTS, summary: 'BPE, 124 M' },
  'gpt2-medium': {
    config: { ...GPT2_DEFAULTS, n_layer: 24, n_embd: 1024, n_head: 16 },
    summary: 'BPE, 355 M',
  },
  'gpt2-large': {
    config: { ...GPT2_DEFAULTS, n_layer: 36, n_embd: 1280, n_head: 20 },
    summary: 'BPE, 774 M',
  },
  'gpt2-xl': {
    config: { ...GPT2_DEFAULTS, n_layer: 48, n_embd: 1600, n_head: 25 },
    summary: 'BPE, 1558 M',
  },
} as const satisfies Record<string, Preset>;

export type PresetName = keyof typeof PRESETS;

/**
 * The default. With it, two ranks on two CPU cores learn words of the novel in under two minutes.
 */
export const DEFAULT_PRESET: PresetName = 'micro';

export function isPresetName(name: string): name is PresetName {
  return Object.hasOwn(PRESETS, name);
}
