// docs/fine-tuning.md says which model fits where. Its formula for the bytes between steps gives,
// byte by byte, what two steps of a dry run leave in the ledger. This is checked for the shape of
// SmolLM2-135M, in full and with adapters, alone and sharded.

import { readFileSync } from 'node:fs';
import { createMemoryGroup, type ProcessGroup } from '@shardweave/collectives';
import { FullyShardedDataParallel, shardLayout } from '@shardweave/fsdp';
import { AdamW, applyLora, makeModel, parameterCount, parseModelConfig } from '@shardweave/nn';
import { Device, type MemoryBytes, mean } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { afterAll, expect, it } from 'vitest';

const SEQ = 64;
const RANK = 16;
const SHAPES = new URL('../../../bench/shapes/', import.meta.url);
const configOf = (shape: string) =>
  parseModelConfig(readFileSync(new URL(`${shape}/config.json`, SHAPES), 'utf8'));

const backend = await createCpuBackend({ threads: 1 });
afterAll(() => backend.dispose());

interface Found {
  readonly expected: number;
  /** The bytes between steps. */
  readonly rest: MemoryBytes;
}

/** Takes two steps of one of `worldSize` ranks, all of them dry. */
async function dryRank(processGroup: ProcessGroup, isLora: boolean): Promise<Found> {
  const device = new Device(backend);
  let found: Found | undefined;
  await device.dryRun(async () => {
    const model = makeModel(device, configOf('smollm2-135m'), { deferInit: true });
    if (isLora) {
      applyLora(model, { rank: RANK, baseDType: 'bf16' });
    }
    const blocks = model.layers().slice(1, -1);
    const inBlocks = new Set(blocks.flatMap((block) => block.parameters()));
    const root = model.parameters().filter((parameter) => !inBlocks.has(parameter));
    const elements = (isTrained: boolean) =>
      [...blocks.map((block) => block.parameters()), root].reduce((total, unit) => {
        const sizes = unit.flatMap(({ requiresGrad, size }) =>
          requiresGrad === isTrained ? [size] : [],
        );
        return sizes.length === 0
          ? total
          : total + shardLayout(sizes, processGroup.worldSize).shardLength;
      }, 0);
    const expected = 2 * elements(false) + 12 * elements(true);
    const options = { processGroup, mixedPrecision: true, computeDType: 'bf16' } as const;
    for (const [i, block] of blocks.entries()) {
      model.replaceChild(String(i + 1), new FullyShardedDataParallel(block, options));
    }
    const sharded = new FullyShardedDataParallel(model, options);
    const trained = sharded.parameters().filter(({ requiresGrad }) => requiresGrad);
    const optimizer = new AdamW(trained);
    for (let step = 0; step < 2; step++) {
      await device.scope(async () => {
        const ids = () => device.tensor(new Int32Array(SEQ), [1, SEQ]);
        await mean(await sharded.call(ids(), { targets: ids() })).backward();
        await optimizer.step();
      });
      optimizer.zeroGrad();
    }
    found = { expected, rest: device.ledger.live() };
    optimizer.dispose();
    sharded.dispose();
  });
  device.dispose();
  return found!;
}

it.each([
  [true, 1, 327_651_584],
  [true, 2, 163_825_920],
  [false, 1, 1_614_226_944],
] as const)('LoRA %s over %i ranks: %i bytes between steps', async (isLora, worldSize, bytes) => {
  const groups = createMemoryGroup(worldSize);
  for (const { expected, rest } of await Promise.all(
    groups.map((group) => dryRank(group, isLora)),
  )) {
    expect(rest.total).toBe(bytes);
    expect(expected).toBe(bytes);
    expect(rest.parameter + rest.optimizer).toBe(bytes);
  }
  await Promise.all(groups.map((group) => group.close()));
});

it.each([
  ['smollm2-135m', 134_515_008],
  ['gemma-3-270m', 268_098_176],
  ['qwen2.5-0.5b', 494_032_768],
  ['qwen3-0.6b', 596_049_920],
  ['tinyllama-1.1b', 1_100_048_384],
  ['llama-3.2-1b', 1_235_814_400],
  ['smollm3-3b', 3_075_098_624],
  ['llama-3.1-8b', 8_030_261_248],
])('%s has its published number of parameters', (shape, expected) => {
  expect(parameterCount(configOf(shape))).toBe(expected);
});
