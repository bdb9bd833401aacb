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
  readonly hasHeadNorms: boolean;
  /** Whether what attention and the feed-forward layer give is normalized before it is added. */
  readonly hasBranchNorms: boolean;
  /** What files add to the weights of norms, which the Hub stores as differences from it. */
  readonly normOffset: number;
}

const PLAIN = {
  turnsNeighbors: false,
  isGeneral: false,
  hasHeadNorms: false,
  hasBranchNorms: false,
  normOffset: 0,
};

export const GGUF_FAMILIES: Readonly<Record<Family, GgufFamily>> = {
  llama: { ...PLAIN, architecture: 'llama', turnsNeighbors: true, isGeneral: true },
  qwen2: { ...PLAIN, architecture: 'qwen2' },
  qwen3: { ...PLAIN, architecture: 'qwen3', hasHeadNorms: true },
  smollm3: { ...PLAIN, architecture: 'smollm3', turnsNeighbors: true },
  gemma3_text: {
    ...PLAIN,
    architecture: 'gemma3',
    hasHeadNorms: true,
    hasBranchNorms: true,
    normOffset: 1,
  },
  gpt2: { ...PLAIN, architecture: 'gpt2' },
};
