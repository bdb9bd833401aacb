// All-gathers are in flight while earlier units compute, in forward and in backward, with a delay
// injected into every collective. A starved thread must not decide the result: a collective that
// should overlap with other work is kept open until that work has begun. How much time overlap
// hides is measured by a benchmark.

import type { ProcessGroup } from '@shardweave/collectives';
import { withDelay } from '@shardweave/collectives/testing';
import { AdamW } from '@shardweave/nn';
import { type BackendTraceSink, Device } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { describe, expect, it } from 'vitest';
import { forwardBackward, onRanks } from '../../../tooling/test-kit/index.ts';
import { withoutHostMemory } from './support/late-backend.js';
import { shardedGpt2 } from './support/sharding.js';

const DELAY_MS = 25;
const LAYERS = 3;
/**
 * A timeout for work that never comes in a test that has already failed. Starved threads took under
 * 1 s.
 */
const GIVE_UP_MS = 30_000;
const POLL_MS = 2;
const CONFIG = { vocab_size: 37, n_positions: 64, n_embd: 64, n_layer: LAYERS, n_head: 2 };
const ROWS = 4;

type Kernel = Parameters<BackendTraceSink>[0];

interface Collective {
  readonly name: 'allGather' | 'reduceScatter';
  readonly tag: string;
  readonly startMs: number;
  /** Infinity while the collective is in flight. */
  endMs: number;
  /** Kernels that the host has queued since the start, 0 where it waits for the collective. */
  numQueued: number;
}

/**
 * This has the events of rank 0 in the traced step, with collectives in the order of their starts.
 */
class Timeline {
  readonly collectives: Collective[] = [];
  readonly kernels: Kernel[] = [];

  named(name: Collective['name']): Collective[] {
    return this.collectives.filter((collective) => collective.name === name);
  }

  busyMs({ startMs, endMs }: Collective): number {
    return this.kernels
      .filter(({ track }) => track === 'device')
      .map((kernel) => Math.min(endMs, kernel.endMs) - Math.max(startMs, kernel.startMs))
      .reduce((sum, ms) => sum + Math.max(0, ms), 0);
  }
}

/** Says whether a collective that has moved its bytes may end now. */
type MayEnd = (collective: Collective, timeline: Timeline) => boolean;

/** Traces rank 0's third step, when the order of units is known. */
async function traced(capUnits: number, mayEnd: MayEnd): Promise<Timeline> {
  const [first] = await onRanks(2, async ({ group, rank, worldSize }) => {
    // In memory that it shares with its device the host gathers when kernels have left the memory,
    // and so later than it queues the next ones.
    const backend = withoutHostMemory(await createCpuBackend({ threads: 1 }));
    const device = new Device(backend);
    const timeline = new Timeline();
    const delayed = withDelay(group, DELAY_MS);
    const reduceGroup = withDelay(await group.split(0), DELAY_MS);
    const { model } = shardedGpt2(
      { device, group: delayed, rank, worldSize },
      {
        config: CONFIG,
        fsdp: {
          processGroupReduceScatter: reduceGroup,
          bucketCapMb: 0,
          gatherCapBytes: capUnits * blockBytes(),
        },
      },
    );
    const optimizer = new AdamW(model.parameters(), { lr: 1e-3 });
    for (let step = 0; step < 3; step++) {
      if (step === 2 && rank === 0) {
        keepOpen(delayed, 'allGather', { timeline, device, mayEnd });
        keepOpen(reduceGroup, 'reduceScatter', { timeline, device, mayEnd });
        backend.trace((event) => timeline.kernels.push(event));
      }
      const rows = { batch: 2 * ROWS, first: rank * ROWS, count: ROWS };
      await forwardBackward(device, model, step, rows, { seq: 64 });
      await optimizer.step();
      optimizer.zeroGrad();
      await device.synchronize();
    }
    await backend.dispose();
    return timeline;
  });
  return first!;
}

/** Enters a group's calls of one kind in the timeline, each from its start until it may end. */
function keepOpen(
  group: ProcessGroup,
  name: Collective['name'],
  { timeline, device, mayEnd }: { timeline: Timeline; device: Device; mayEnd: MayEnd },
): void {
  const call = group[name].bind(group) as ProcessGroup['reduceScatter'];
  group[name] = async (input, output, options) => {
    const { backend } = device;
    const atStart = backend.dispatches;
    const collective: Collective = {
      name,
      tag: options?.tag ?? '',
      startMs: performance.now(),
      endMs: Number.POSITIVE_INFINITY,
      numQueued: 0,
    };
    timeline.collectives.push(collective);
    await call(input, output, options as Parameters<typeof call>[2]);
    const giveUpMs = performance.now() + GIVE_UP_MS;
    for (;;) {
      collective.numQueued = backend.dispatches - atStart;
      await device.synchronize(); // All queued kernels have run and are in the timeline.
      if (mayEnd(collective, timeline) || performance.now() > giveUpMs) {
        break;
      }
      await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    }
    collective.endMs = performance.now();
  };
}

/**
 * Returns the bytes of a gathered block: its parameters at multiples of 128 elements, padded for
 * two ranks.
 */
function blockBytes(): number {
  const C = CONFIG.n_embd;
  const sizes = [C, C, 3 * C * C, 3 * C, C * C, C, C, C, 4 * C * C, 4 * C, 4 * C * C, C];
  const elements = sizes.reduce((sum, size) => sum + Math.ceil(size / 128) * 128, 0);
  return 4 * 256 * Math.ceil(elements / 256);
}

const BLOCKS = Array.from({ length: LAYERS }, (_, i) => `block ${i + 1}`);
const REVERSED = [...BLOCKS].reverse();

describe('a step with a cap of one unit', () => {
  it('gathers the next unit, and reduces the one before, while one computes', async () => {
    // The root's gather has nothing before it to hide behind. Neither has the first block's, which
    // starts beside it. The first reduction is kept open, while two blocks are still to run.
    const timeline = await traced(1, (collective, so) => {
      const gathers = so.named('allGather');
      const [reduction] = so.named('reduceScatter');
      if (collective.name === 'reduceScatter') {
        return collective !== reduction || collective.numQueued > 0;
      }
      const index = gathers.indexOf(collective);
      if (index < 2) {
        return true;
      }
      // The last block waits for its parameters until the first reduction is on its way.
      const isLast = index === 2 * LAYERS;
      return collective.numQueued > 0 && (!isLast || reduction !== undefined);
    });
    const gathers = timeline.named('allGather');
    const reductions = timeline.named('reduceScatter');
    expect(gathers.map(({ tag }) => tag)).toEqual(['root', ...BLOCKS, ...REVERSED]);
    expect(reductions.map(({ tag }) => tag)).toEqual([...REVERSED, 'root']);
    for (const collective of [...gathers.slice(2), reductions[0]!]) {
      const which = `${collective.name} of ${collective.tag}`;
      expect(collective.numQueued, which).toBeGreaterThan(0);
      expect(timeline.busyMs(collective), which).toBeGreaterThan(0);
    }
  });

  it('keeps no more in flight than the unit in demand and one ahead', async () => {
    const gathers = (await traced(1, () => true)).named('allGather');
    for (const { tag, startMs } of gathers) {
      const others = gathers.filter((other) => other.startMs < startMs && startMs < other.endMs);
      expect(others.length, `beside ${tag}`).toBeLessThanOrEqual(1);
    }
  });
});

it('room for all units starts all gathers of a forward at once', async () => {
  const timeline = await traced(LAYERS, (_, so) => so.named('allGather').length > LAYERS);
  const forward = timeline.named('allGather').slice(0, LAYERS + 1);
  const lastStart = Math.max(...forward.map(({ startMs }) => startMs));
  const firstEnd = Math.min(...forward.map(({ endMs }) => endMs));
  expect(lastStart).toBeLessThan(firstEnd);
});
