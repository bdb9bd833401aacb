// What llama.cpp has for each family of models: the name of its architecture, and what that one
// computes of what a config.json can say.

import type { ModelConfig } from '@shardweave/nn';

export type Family = ModelConfig['model_type'];

interface GgufFamily {
  /** The name in files (`general.architecture`), with which the keys of the model begin. */
  readonly architecture: string;
  /**
   * Whether it turns neighboring columns of a head. In the other families it turns halves, as the
   * Hub's models do.
   */
  readonly turnsNeighbors: boolean;
  /** Whether it reads the tensor of rotary factors, and biases beside those of qwen2. */
  readonly isGeneral: boolean;
}

const PLAIN = { turnsNeighbors: false, isGeneral: false };

export const GGUF_FAMILIES: Readonly<Record<Family, GgufFamily>> = {
  llama: { architecture: 'llama', turnsNeighbors: true, isGeneral: true },
  qwen2: { ...PLAIN, architecture: 'qwen2' },
  qwen3: { ...PLAIN, architecture: 'qwen3' },
  smollm3: { ...PLAIN, architecture: 'smollm3', turnsNeighbors: true },
  gpt2: { ...PLAIN, architecture: 'gpt2' },
};
