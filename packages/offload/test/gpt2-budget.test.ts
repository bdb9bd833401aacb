// The least budgets that real models train in, by dry runs: nothing is computed, and nothing stored.

import { Gpt2, type Gpt2Config } from '@shardweave/nn';
import { recipeOf } from '@shardweave/nn/flat';
import { OffloadBudgetError, OffloadModel } from '@shardweave/offload';
import { createHostStore } from '@shardweave/shard-store';
import { Device } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { expect, it } from 'vitest';

const TOKENS = 64;

/** The bytes that a step of 1 x 64 tokens needs, checkpointed, in f32. */
async function leastBudget(config: Partial<Gpt2Config>): Promise<number> {
  const device = new Device(createReferenceBackend());
  const gpt2 = new Gpt2(device, config, { deferInit: true });
  for (const parameter of gpt2.parameters()) {
    Object.assign(recipeOf(parameter)!, { write: () => {} }); // values are not looked at
  }
  const store = Object.assign(createHostStore(), { write: async () => {} });
  const options = { store, checkpointActivation: true, deviceBudgetBytes: 1 };
  const model = new OffloadModel(gpt2, options);
  const ids = device.tensor(new Int32Array(TOKENS), [1, TOKENS]);
  const error = await model.call(ids).catch((reason: unknown) => reason);
  expect(error).toBeInstanceOf(OffloadBudgetError);
  return (error as OffloadBudgetError).requiredBytes;
}

// The tied table, its gradient, and three of the size of the logits: the caller's, those of the run that
// is repeated, and their gradient. The rest is what the last layer makes of 64 tokens.
const TABLE_BYTES = { gpt2: 167_772_160, xl: 335_544_320 };
const LOGITS_BYTES = 13_631_488;

it('GPT-2 124M trains in 400 MB', async () => {
  const bytes = await leastBudget({});
  expect(bytes).toBe(377_042_432);
  expect(bytes - 2 * TABLE_BYTES.gpt2 - 3 * LOGITS_BYTES).toBeLessThan(1e6);
});

it('gpt2-xl trains in 900 MB', async () => {
  const bytes = await leastBudget({ n_embd: 1600, n_layer: 48, n_head: 25 });
  expect(bytes).toBe(713_289_216);
  expect(bytes - 2 * TABLE_BYTES.xl - 3 * LOGITS_BYTES).toBeLessThan(2e6);
});
