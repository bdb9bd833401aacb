// Adapters train with every strategy. A frozen base in 16 bits is gathered and never reduced, and
// the trained parts are f32. A formula gives exactly what each rank holds.

import { openSave, type PieceStore, piecesIn } from '@shardweave/checkpoint';
import type { ProcessGroup } from '@shardweave/collectives';
import { DistributedDataParallel } from '@shardweave/ddp-buckets';
import { FullyShardedDataParallel, shardLayout } from '@shardweave/fsdp';
import {
  AdamW,
  applyLora,
  checkpoint,
  Decoder,
  loadCheckpoint,
  type Module,
  packParameters,
  saveCheckpoint,
  stateDict,
} from '@shardweave/nn';
import { OffloadModel } from '@shardweave/offload';
import { createHostStore } from '@shardweave/shard-store';
import { type Device, mean, mul, sum } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { onRanks, type Rank } from '../../../tooling/test-kit/ranks.ts';

const CONFIG = {
  model_type: 'llama',
  vocab_size: 23,
  hidden_size: 12,
  intermediate_size: 20,
  num_hidden_layers: 2,
  num_attention_heads: 3,
  num_key_value_heads: 1,
  max_position_embeddings: 16,
  initializer_range: 0.1,
} as const;
const RANK = 2;
const ROWS = 12; // These are the rows of all ranks together.
const SEQ = 6;
const STEPS = 4;

interface Options {
  readonly baseDType?: 'f32' | 'bf16';
  readonly isCheckpointing?: boolean;
}

/**
 * Makes a decoder with adapters whose second factors are not zero, so that both factors have
 * gradients.
 */
function adapted(device: Device, { baseDType = 'f32' }: Options = {}): Decoder {
  const model = new Decoder(device, CONFIG, { seed: 5 });
  applyLora(model, { rank: RANK, alpha: 4, baseDType, seed: 6 });
  for (const [name, { storage, size }] of model.namedParameters()) {
    if (name.includes('lora_B')) {
      const values = Float32Array.from({ length: size }, (_, i) => Math.sin(i + name.length) / 5);
      storage.write(new Uint8Array(values.buffer));
    }
  }
  return model;
}

function sharded(
  device: Device,
  group: ProcessGroup,
  options: Options & { readonly isMixed?: boolean } = {},
): FullyShardedDataParallel {
  const model = adapted(device, options);
  const fsdp = {
    processGroup: group,
    bucketCapMb: 0, // Each flat is reduced by itself.
    processGroupReduceScatter: 'default' as const, // All calls go through one group.
    ...(options.isMixed === true ? { mixedPrecision: true, computeDType: 'bf16' as const } : {}),
  };
  for (const [i, block] of model.layers().slice(1, -1).entries()) {
    const inner = options.isCheckpointing === true ? checkpoint(block) : block;
    const unit = new FullyShardedDataParallel(inner, { ...fsdp, name: `block${i}` });
    model.replaceChild(String(i + 1), unit);
  }
  return new FullyShardedDataParallel(model, { ...fsdp, name: 'root' });
}

/**
 * Returns the losses of a few steps with this rank's rows. Gradients are those of the mean over all
 * rows.
 */
async function train({ device, rank, worldSize }: Rank, model: Module): Promise<number[]> {
  const optimizer = new AdamW(
    model.parameters().filter(({ requiresGrad }) => requiresGrad),
    { lr: 1e-2 },
  );
  const rows = ROWS / worldSize;
  const losses: number[] = [];
  for (let step = 0; step < STEPS; step++) {
    await device.scope(async () => {
      const tokens = (shift: number) =>
        device.tensor(
          Int32Array.from({ length: rows * SEQ }, (_, i) => {
            const row = rank * rows + Math.floor(i / SEQ);
            return (row * 7 + step * 3 + 2 * ((i % SEQ) + shift)) % CONFIG.vocab_size;
          }),
          [rows, SEQ],
        );
      const each = await model.call(tokens(0), { targets: tokens(1) });
      // Each rank takes the mean over its rows, and wrappers take the mean over ranks.
      await mean(each).backward();
      losses.push((await sum(each).item()) / ROWS / SEQ);
    });
    await optimizer.step();
    optimizer.zeroGrad();
  }
  optimizer.dispose();
  return losses;
}

const add = (perRank: readonly (readonly number[])[]): number[] =>
  perRank[0]!.map((_, step) => perRank.reduce((total, losses) => total + losses[step]!, 0));

function expectNear(actual: readonly number[], expected: readonly number[], most: number): void {
  actual.forEach((value, i) => {
    expect(Math.abs(value - expected[i]!), `step ${i}`).toBeLessThan(most);
  });
}

const isAdapter = ([name]: readonly [string, unknown]): boolean => name.includes('lora_');

async function alone(options: Options = {}): Promise<{ losses: number[]; base: unknown }> {
  const [result] = await onRanks(1, async (rank) => {
    const model = adapted(rank.device, options);
    const losses = await train(rank, model);
    const state = await stateDict(model);
    return { losses, base: [...state].filter((entry) => !isAdapter(entry)) };
  });
  return result!;
}

it.each(['f32', 'bf16'] as const)(
  'training over ranks and at rest is as alone, base in %s',
  async (baseDType) => {
    const { losses, base } = await alone({ baseDType });
    expect(losses.at(-1)!).toBeLessThan(losses[0]! - 0.02);
    // Beside a base in 16 bits activations have 16 bits too, so the order of sums has a lasting
    // effect.
    const most = (baseDType === 'f32' ? 2e-6 : 5e-3) * losses[0]!;
    for (const worldSize of [1, 2, 3, 4]) {
      const isCheckpointing = worldSize === 3;
      const perRank = await onRanks(worldSize, async (rank) => {
        const model = sharded(rank.device, rank.group, { baseDType, isCheckpointing });
        const seen = await train(rank, model);
        const state = await stateDict(model);
        if (rank.rank === 0) {
          expect([...state].filter((entry) => !isAdapter(entry))).toEqual(base);
        }
        return seen;
      });
      expectNear(add(perRank), losses, most);
    }
    const replicated = await onRanks(2, async (rank) => {
      const model = adapted(rank.device, { baseDType });
      return train(rank, new DistributedDataParallel(model, { processGroup: rank.group }));
    });
    expectNear(add(replicated), losses, most);
    const [packed, offloaded] = await Promise.all([
      onRanks(1, async (rank) => {
        const model = adapted(rank.device, { baseDType });
        packParameters(model);
        return train(rank, model);
      }),
      onRanks(1, async (rank) => {
        const model = new OffloadModel(adapted(rank.device, { baseDType }), { numSlices: 3 });
        const seen = await train(rank, model);
        const state = await stateDict(model);
        expect([...state].filter((entry) => !isAdapter(entry))).toEqual(base);
        return seen;
      }),
    ]);
    expectNear(packed[0]!, losses, most);
    expectNear(offloaded[0]!, losses, most);
  },
);

it('computes in 16 bits near f32', async () => {
  const { losses } = await alone();
  const perRank = await onRanks(2, (rank) =>
    train(rank, sharded(rank.device, rank.group, { baseDType: 'bf16', isMixed: true })),
  );
  expectNear(add(perRank), losses, 5e-3 * losses[0]!);
});

it.each([1, 2, 3, 4])(
  'holds what the formula says, on %i ranks, and reduces adapters alone',
  async (worldSize) => {
    const perRank = await onRanks(worldSize, async (rank) => {
      const { device, group } = rank;
      const model = sharded(device, group, { baseDType: 'bf16', isMixed: true });
      await train(rank, model);
      const seen: [name: string, tag: string | undefined][] = [];
      group.onTrace = ({ name, tag }) => void seen.push([name, tag]);
      const optimizer = new AdamW(
        model.parameters().filter(({ requiresGrad }) => requiresGrad),
        { lr: 1e-2 },
      );
      let afterBackward = device.memory().live;
      await device.scope(async () => {
        const ids = device.tensor(new Int32Array(SEQ), [1, SEQ]);
        await mean(mul(await model.call(ids, { targets: ids }), 1)).backward();
      });
      afterBackward = device.memory().live;
      await optimizer.step();
      const { parameter, optimizer: state } = device.memory().live;
      return { parameter, state, gradient: afterBackward.gradient, seen };
    });
    const { hidden_size: C, intermediate_size: I, vocab_size: V, num_hidden_layers: L } = CONFIG;
    const kv = C / 3;
    const adapters = (out: number, width: number) => [RANK * width, out * RANK];
    const trained = [
      ...[C, kv, kv, C].flatMap((out) => adapters(out, C)),
      ...adapters(I, C),
      ...adapters(I, C),
      ...adapters(C, I),
    ];
    const base = [C, C * C, kv * C, kv * C, C * C, C, I * C, I * C, C * I];
    const shard = (sizes: number[]) => shardLayout(sizes, worldSize).shardLength;
    const numTrained = L * shard(trained);
    const numFrozen = L * shard(base) + shard([V * C, C, V * C]);
    for (const { parameter, gradient, state, seen } of perRank) {
      expect({ parameter, gradient, state }).toEqual({
        parameter: 4 * numTrained + 2 * numFrozen,
        gradient: 4 * numTrained,
        state: 8 * numTrained,
      });
      const tagsOf = (call: string) => seen.filter(([name]) => name === call).map(([, tag]) => tag);
      const isAlone = worldSize === 1;
      expect(tagsOf('reduceScatter')).toEqual(isAlone ? [] : ['block1', 'block0']);
      const frozen = tagsOf('allGather').filter((tag) => tag?.endsWith('.frozen'));
      const inForward = ['block0.frozen', 'block1.frozen'];
      expect(frozen).toEqual(isAlone ? [] : [...inForward, ...inForward.toReversed()]);
    }
  },
);

describe('saves of what is trained alone', () => {
  const adapters = (state: ReadonlyMap<string, { readonly data: Uint8Array }>) =>
    [...state].filter(isAdapter).map(([name, { data }]) => [name, [...data]]);
  const trainedOf = (model: Module) =>
    model.parameters().filter(({ requiresGrad }) => requiresGrad);

  it('hold no frozen parameter, and load into every other way of training', async () => {
    const store = piecesIn(createHostStore());
    const [saved] = await onRanks(3, async (rank) => {
      const model = sharded(rank.device, rank.group, { baseDType: 'bf16' });
      await train(rank, model);
      const optimizer = new AdamW(trainedOf(model));
      await saveCheckpoint(model, store, { optimizer, onlyTrained: true });
      return adapters(await stateDict(model));
    });
    const save = await openSave(store);
    expect([...save.tensors.values()].every(({ name }) => name.includes('lora_'))).toBe(true);
    expect(await loadedAlone(store)).toEqual(saved);
    await onRanks(2, async (rank) => {
      const model = sharded(rank.device, rank.group, { baseDType: 'bf16' });
      await loadCheckpoint(model, store, { onlyTrained: true });
      expect(adapters(await stateDict(model))).toEqual(saved);
    });
    await onRanks(1, async ({ device }) => {
      const model = new OffloadModel(adapted(device), { numSlices: 2 });
      await loadCheckpoint(model, store, { onlyTrained: true });
      expect(adapters(await stateDict(model))).toEqual(saved);
    });
    await onRanks(1, async ({ device }) => {
      await expect(loadCheckpoint(adapted(device), store)).rejects.toThrow(/missing|q_proj/);
    });
  });

  async function loadedAlone(store: PieceStore) {
    const [loaded] = await onRanks(1, async ({ device }) => {
      const model = adapted(device);
      await loadCheckpoint(model, store, { onlyTrained: true });
      return adapters(await stateDict(model));
    });
    return loaded;
  }
});
