// Buckets are reduced while backward goes on, with a delay injected into every collective. The
// order of events decides, not the clock: a layer's backward waits until the first bucket has left,
// and that bucket's all-reduce is kept open until the last gradient is there.

import type { ProcessGroup } from '@shardweave/collectives';
import { withDelay } from '@shardweave/collectives/testing';
import { DistributedDataParallel } from '@shardweave/ddp-buckets';
import { Linear, Sequential } from '@shardweave/nn';
import { chromeTrace, Device, mean, square, type Tensor, Trace } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { expect, it } from 'vitest';
import { onRanks } from './support/ranks.js';

const DELAY_MS = 20;
/** A timeout for an event that never comes in a test that has already failed. */
const GIVE_UP_MS = 30_000;
const DIM = 32;

class Gate {
  open: () => void = () => undefined;
  readonly #opened = new Promise<void>((resolve) => {
    this.open = resolve;
  });

  /** Resolves when it is opened, or after GIVE_UP_MS. */
  async wait(): Promise<void> {
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<void>((resolve) => {
      timer = setTimeout(resolve, GIVE_UP_MS);
    });
    await Promise.race([this.#opened, late]);
    clearTimeout(timer);
  }
}

interface Step {
  readonly events: string[];
  readonly trace: Trace;
  readonly timings: DistributedDataParallel['timings'];
}

/** Traces rank 0's third step, when buckets are learned. */
async function traced(options: { readonly delayAllreduce: boolean }): Promise<Step> {
  const [first] = await onRanks(2, async ({ group, rank }) => {
    const backend = await createCpuBackend({ threads: 1 });
    const trace = new Trace({ rank });
    backend.trace((event) => trace.add(event));
    const device = new Device(backend, { trace });
    const layers = [0, 1, 2].map(() => new Linear(device, { inFeatures: DIM, outFeatures: DIM }));
    const delayed = withDelay(group, DELAY_MS);
    delayed.onTrace = ({ tag = '', startMs, endMs }) =>
      trace.add({ name: tag, track: 'collectives', startMs, endMs });
    const model = new DistributedDataParallel(new Sequential(device, layers), {
      processGroup: delayed,
      prof: true,
      ...(options.delayAllreduce ? options : { messageSize: 1 }),
    });
    const events: string[] = [];
    const left = new Gate();
    const done = new Gate();
    let isWatched = false;
    watch(delayed, { events, left, done, isWatched: () => isWatched });
    // This runs once in each backward, between the last layer's gradients and the first layer's.
    layers[1]!.aroundForward({
      after: (output) => {
        if (!isWatched) {
          return;
        }
        device.beforeGradientOf(output, async () => {
          if (!options.delayAllreduce) {
            await left.wait();
          }
          events.push('layer 1 goes on');
        });
      },
    });
    for (let step = 0; step < 3; step++) {
      isWatched = step === 2;
      if (isWatched) {
        trace.events.length = 0;
        events.length = 0;
        // Backward ends with the weight's gradient or the bias's: both are in the last buckets.
        let numLeft = 2;
        for (const leaf of layers[0]!.parameters()) {
          device.autograd.onGradientFinal(leaf, () => {
            numLeft -= 1;
            if (numLeft > 0) {
              return;
            }
            events.push('last gradient');
            done.open();
          });
        }
      }
      await device.scope(async () => {
        const x = device.tensor(Float32Array.from({ length: 4 * DIM }, Math.sin), [4, DIM]);
        const output: Tensor = await model.call(x);
        await mean(square(output)).backward();
      });
      model.zeroGrad();
      await device.synchronize();
    }
    await backend.dispose();
    return { events, trace, timings: model.timings };
  });
  return first!;
}

/** Notes all-reduces, and keeps the first one open until the last gradient is there. */
function watch(
  group: ProcessGroup,
  to: {
    readonly events: string[];
    readonly left: Gate;
    readonly done: Gate;
    readonly isWatched: () => boolean;
  },
): void {
  const allReduce = group.allReduce.bind(group);
  group.allReduce = async (input, output, options) => {
    const { tag } = options;
    if (to.isWatched()) {
      to.events.push(`${tag} starts`);
    }
    if (to.isWatched() && tag === 'bucket 0') {
      to.left.open();
    }
    await allReduce(input, output, options);
    if (to.isWatched() && tag === 'bucket 0') {
      await to.done.wait();
    }
    if (to.isWatched()) {
      to.events.push(`${tag} ends`);
    }
  };
}

it('the first bucket is in flight while earlier layers compute their gradients', async () => {
  const { events, trace, timings } = await traced({ delayAllreduce: false });
  const at = (event: string) => {
    expect(events).toContain(event);
    return events.indexOf(event);
  };
  expect(at('bucket 0 starts')).toBeLessThan(at('layer 1 goes on'));
  expect(at('layer 1 goes on')).toBeLessThan(at('last gradient'));
  expect(at('last gradient')).toBeLessThan(at('bucket 0 ends'));
  for (const bucket of [1, 2, 3, 4, 5]) {
    expect(at(`bucket ${bucket - 1} starts`)).toBeLessThan(at(`bucket ${bucket} starts`));
  }

  // The trace shows the same: the all-reduce spans ranges of later buckets.
  const find = (name: string) => trace.events.find((event) => event.name === name)!;
  const leaves = (bucket: number) => find(`ddp: bucket ${bucket} leaves`).startMs;
  const inFlight = find('bucket 0');
  expect(inFlight.startMs).toBeLessThan(leaves(5));
  expect(leaves(0)).toBeLessThan(inFlight.startMs);
  const ranges = trace.events.filter(({ track }) => track === 'main').map(({ name }) => name);
  const leaving = [0, 1, 2, 3, 4, 5].map((bucket) => `ddp: bucket ${bucket} leaves`);
  expect(ranges).toEqual(['ddp: before forward', ...leaving, 'ddp: end of backward']);
  expect(chromeTrace([trace])).toContain('"name":"bucket 0"');
  expect(timings!.communicationMs).toBeGreaterThan(0);
  expect(timings!.exposedCommunicationMs).toBeLessThan(timings!.communicationMs);
  expect(timings!.backwardMs).toBeGreaterThan(timings!.exposedCommunicationMs);
  expect(timings!.computeMs).toBeGreaterThan(0);
});

it('delayAllreduce starts nothing before the last gradient, and all is exposed', async () => {
  const { events, timings } = await traced({ delayAllreduce: true });
  const starts = events.findIndex((event) => event.endsWith('starts'));
  expect(starts).toBeGreaterThan(events.indexOf('last gradient'));
  expect(events).toContain('last gradient');
  expect(timings!.exposedCommunicationMs).toBe(timings!.communicationMs);
});
