// All-gathers are in flight while earlier units compute, in forward and in backward: read off the
// trace, with a delay injected into every collective. How much time that hides is a benchmark's.

import { type CollectiveTrace, withDelay } from '@shardweave/collectives';
import { AdamW } from '@shardweave/nn';
import { type BackendTraceSink, Device } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { describe, expect, it } from 'vitest';
import { forwardBackward, onRanks, shardedGpt2 } from './ranks.js';

const DELAY_MS = 100;
const LAYERS = 3;
/** A machine that starves the host thread lets the device finish first, and nothing is left to overlap. */
const STARVED = { retry: 4 };
const CONFIG = { vocab_size: 37, n_positions: 64, n_embd: 64, n_layer: LAYERS, n_head: 2 };
const ROWS = 4;

type Kernel = Parameters<BackendTraceSink>[0];

/** The collectives and kernels of rank 0 in the third step, when the order of units is known. */
async function traced(
  capUnits: number,
): Promise<{ collectives: CollectiveTrace[]; kernels: Kernel[] }> {
  const [first] = await onRanks(2, async ({ group, rank, worldSize }) => {
    const backend = await createCpuBackend({ threads: 1 });
    const device = new Device(backend);
    const collectives: CollectiveTrace[] = [];
    const kernels: Kernel[] = [];
    const delayed = withDelay(group, DELAY_MS);
    const reduceGroup = withDelay(await group.split(0), DELAY_MS);
    const { model } = shardedGpt2(
      { device, group: delayed, rank, worldSize },
      {
        config: CONFIG,
        fsdp: { processGroupReduceScatter: reduceGroup, gatherCapBytes: capUnits * blockBytes() },
      },
    );
    const optimizer = new AdamW(model.parameters(), { lr: 1e-3 });
    for (let step = 0; step < 3; step++) {
      if (step === 2) {
        delayed.onTrace = (event) => collectives.push(event);
        reduceGroup.onTrace = (event) => collectives.push(event);
        backend.trace((event) => kernels.push(event));
      }
      const rows = { batch: 2 * ROWS, first: rank * ROWS, count: ROWS };
      await forwardBackward(device, model, step, rows, { seq: 64 });
      optimizer.step();
      optimizer.zeroGrad();
      await device.synchronize();
    }
    await backend.dispose();
    return { collectives, kernels };
  });
  return first!;
}

/** Bytes of a gathered block: its parameters at multiples of 128 elements, and padding for two. */
function blockBytes(): number {
  const C = CONFIG.n_embd;
  const sizes = [C, C, 3 * C * C, 3 * C, C * C, C, C, C, 4 * C * C, 4 * C, 4 * C * C, C];
  const elements = sizes.reduce((sum, size) => sum + Math.ceil(size / 128) * 128, 0);
  return 4 * 256 * Math.ceil(elements / 256);
}

function busyMs(kernels: readonly Kernel[], { startMs, endMs }: CollectiveTrace): number {
  return kernels
    .filter(({ track }) => track === 'device')
    .reduce(
      (sum, kernel) =>
        sum + Math.max(0, Math.min(endMs, kernel.endMs) - Math.max(startMs, kernel.startMs)),
      0,
    );
}

describe('with a cap of one unit', () => {
  it('gathers the next unit while one computes, forward and backward', STARVED, async () => {
    const { collectives, kernels } = await traced(1);
    const gathers = collectives.filter(({ name }) => name === 'allGather');
    const reductions = collectives.filter(({ name }) => name === 'reduceScatter');
    const blocks = Array.from({ length: LAYERS }, (_, i) => `block ${i + 1}`);
    gathers.sort((a, b) => a.seq - b.seq);
    expect(gathers.map(({ tag }) => tag)).toEqual(['root', ...blocks, ...[...blocks].reverse()]);
    expect(reductions.map(({ tag }) => tag)).toEqual([...[...blocks].reverse(), 'root']);
    // The root's gather has nothing before it to hide behind, nor has the first block's, which
    // starts beside it; every later one is in flight while kernels run.
    for (const gather of gathers.slice(2)) {
      expect(busyMs(kernels, gather), `gather of ${gather.tag} #${gather.seq}`).toBeGreaterThan(0);
    }
  });

  it('keeps no more in flight than the unit in demand and one ahead', async () => {
    const { collectives } = await traced(1);
    const gathers = collectives.filter(({ name }) => name === 'allGather');
    for (const { tag, startMs } of gathers) {
      const others = gathers.filter((other) => other.startMs < startMs && startMs < other.endMs);
      expect(others.length, `beside ${tag}`).toBeLessThanOrEqual(1);
    }
  });
});

it(
  'with room for all units starts all gathers of a forward at once, and computes while it reduces',
  STARVED,
  async () => {
    const { collectives, kernels } = await traced(LAYERS);
    const forward = collectives
      .filter(({ name }) => name === 'allGather')
      .sort((a, b) => a.seq - b.seq)
      .slice(0, LAYERS + 1);
    const lastStart = Math.max(...forward.map(({ startMs }) => startMs));
    const firstEnd = Math.min(...forward.map(({ endMs }) => endMs));
    expect(lastStart).toBeLessThan(firstEnd);
    const reductions = collectives.filter(({ name }) => name === 'reduceScatter');
    // Which ones lie over kernels depends on how fast the device is; the first has all blocks below.
    expect(reductions[0]!.tag).toBe(`block ${LAYERS}`);
    expect(Math.max(...reductions.map((reduction) => busyMs(kernels, reduction)))).toBeGreaterThan(
      0,
    );
  },
);
