// These are the smallest budgets in which real models train. Dry runs find them, which compute and
// store nothing. gpt2-xl's runs among the long tests.

import { Gpt2, type Gpt2Config } from '@shardweave/nn';
import { recipeOf } from '@shardweave/nn/flat';
import { OffloadBudgetError, OffloadModel } from '@shardweave/offload';
import { createHostStore } from '@shardweave/shard-store';
import { type Backend, Device } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { expect, it } from 'vitest';

/** Returns the bytes that a step of rows x seq tokens needs with checkpointing, in f32. */
async function leastBudget(
  config: Partial<Gpt2Config>,
  [rows, seq]: readonly [number, number],
): Promise<number> {
  // Values are drawn on the device and read back from there, and nobody looks at them.
  const device = new Device(
    Object.assign(createReferenceBackend(), {
      read: async (...[, , byteLength, into]: Parameters<Backend['read']>) =>
        into ?? new Uint8Array(byteLength),
    }),
  );
  const gpt2 = new Gpt2(device, config, { deferInit: true });
  for (const parameter of gpt2.parameters()) {
    Object.assign(recipeOf(parameter)!, { draw: () => {} });
  }
  const store = Object.assign(createHostStore(), { write: async () => {} });
  const options = { store, checkpointActivation: true, deviceBudgetBytes: 1 };
  const model = new OffloadModel(gpt2, options);
  const ids = () => device.tensor(new Int32Array(rows * seq), [rows, seq]);
  const error = await model.call(ids(), { targets: ids() }).catch((reason: unknown) => reason);
  expect(error).toBeInstanceOf(OffloadBudgetError);
  return (error as OffloadBudgetError).requiredBytes;
}

// The tied table, its gradient, and a chunk of logits. The rest is what the last layer makes for
// the tokens.
const TABLE_BYTES = { gpt2: 167_772_160, xl: 335_544_320 };
const CHUNK_BYTES = 12 * 2 ** 20;

it('GPT-2 124M trains in 400 MB', async () => {
  const bytes = await leastBudget({}, [1, 64]);
  expect(bytes).toBe(348_726_016);
  expect(bytes - 2 * TABLE_BYTES.gpt2 - CHUNK_BYTES).toBeLessThan(1e6);
});

it('GPT-2 124M trains in 420 MB at 2 x 256 tokens', async () => {
  const bytes = await leastBudget({}, [2, 256]);
  expect(bytes).toBe(352_869_120);
  expect(bytes - 2 * TABLE_BYTES.gpt2 - CHUNK_BYTES).toBeLessThan(8e6);
});

it.runIf(process.env.SHARDWEAVE_LONG === '1')('gpt2-xl trains in 900 MB', async () => {
  const bytes = await leastBudget({ n_embd: 1600, n_layer: 48, n_head: 25 }, [1, 64]);
  expect(bytes).toBe(685_999_616);
  expect(bytes - 2 * TABLE_BYTES.xl - CHUNK_BYTES).toBeLessThan(2.5e6);
});
