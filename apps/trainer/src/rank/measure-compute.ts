// What a run computes for a token, and the most that its devices could in the same time.

import { type Backend, Device, matmul } from '@shardweave/tensor-core';
import { isWatched, type PreparedRun } from '../run-config.js';
import { countParameters, numBlocks, type TextConfig, widthOf } from '../task/text-config.js';
import type { ComputeTold } from './events.js';

const ROUNDS = 3;
/** The rows and columns of products that keep a device busy for some milliseconds. */
const SIDES = { reference: 64, cpu: 512, webgpu: 2048 } as const;

/**
 * The floating-point operations that training takes for a token: two for each weight that a token
 * meets in a product, forward, and twice that backward, or once where the weights are frozen; and
 * those of attention between all rows (PaLM, 2022, appendix B). Recomputed ones don't count.
 * @param isFrozen whether adapters are trained beside the model, which are too small to count
 */
export function flopsPerToken(config: TextConfig, seq: number, isFrozen: boolean): number {
  const width = widthOf(config);
  const attention = 12 * numBlocks(config) * width * seq;
  return (isFrozen ? 4 : 6) * productWeights(config, width) + attention;
}

/** The weights that are in products: tables of tokens and positions are only looked up. */
function productWeights(config: TextConfig, width: number): number {
  const table = config.vocab_size * width;
  const parameters = countParameters(config);
  switch (config.model_type) {
    case 'gpt2':
      return parameters - config.n_positions * width; // its table of tokens is the head, too
    case 'bert':
      return parameters - table - config.max_position_embeddings * width;
    default:
      return config.tie_word_embeddings ? parameters : parameters - table;
  }
}

/** What is told of a run before its first step; undefined where nobody watches. */
export async function measureCompute(
  config: PreparedRun,
  backend: Backend,
): Promise<ComputeTold | undefined> {
  const { modelConfig } = config;
  if (!isWatched(config) || modelConfig.model_type === 'module') {
    return undefined; // what a module of people's own computes is not known
  }
  const flops = flopsPerToken(modelConfig, config.seq, config.lora !== undefined);
  const { kind, isSoftware } = backend.info;
  if (kind === 'webgpu' && isSoftware) {
    return { flopsPerToken: flops };
  }
  const side = SIDES[kind];
  let least = Number.POSITIVE_INFINITY;
  for (let round = 0; round <= ROUNDS; round++) {
    const ms = await productMs(backend, side);
    least = round === 0 ? least : Math.min(least, ms); // the first compiles and loads
  }
  return {
    flopsPerToken: flops,
    peakFlops: (2 * side * side * side * 1000 * config.ranks) / least,
  };
}

/** The milliseconds of a product of two f32 matrices of `side` rows and columns. */
export async function productMs(backend: Backend, side: number): Promise<number> {
  const device = new Device(backend);
  const ones = device.full([side, side], 1);
  await backend.sync();
  const start = performance.now();
  matmul(ones, ones);
  await backend.sync();
  const ms = performance.now() - start;
  device.dispose();
  return ms;
}
