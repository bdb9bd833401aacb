// The next slice loads while one computes and the one before leaves, and the host's buffers are
// bounded and reused. The tests check orders and counts of events with a store that answers late.

import { AdamW, Linear, Sequential } from '@shardweave/nn';
import { OffloadModel, type OffloadOptions } from '@shardweave/offload';
import { createDryStore, createHostStore, type ShardStore } from '@shardweave/shard-store';
import { type Backend, Device, mean, square } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';

const LAYERS = 6;
// Layer i maps WIDTH + i to WIDTH + i + 1, so that a kernel's sizes show its layer.
const WIDTH = 10;
const ROWS = 3;
const FLAT_BYTES = 4 * (256 + 128); // This is the largest flat: its weight and its bias, padded.

/** Resolves after some turns of the event loop, in which everything that doesn't wait goes on. */
async function turns(): Promise<void> {
  for (let i = 0; i < 4; i++) {
    await new Promise((resolve) => setImmediate(resolve));
  }
}

function lateStore(events: string[]): ShardStore {
  const store = createHostStore();
  const { read, write } = { read: store.read.bind(store), write: store.write.bind(store) };
  return Object.assign(store, {
    async read(...[key, ...rest]: Parameters<ShardStore['read']>) {
      events.push(`read ${nameOf(key)}`);
      await turns();
      await read(key, ...rest);
    },
    async write(...args: Parameters<ShardStore['write']>) {
      events.push(`write ${nameOf(args[0])}`);
      await turns();
      await write(...args);
    },
  });
}

/** Writes 'offload.3/parameter' as 'parameter 3'; the model's own keys stay as they are. */
function nameOf(key: string): string {
  const [, layer = '', part = key] = /offload\.(\d+)\/(.*)/.exec(key) ?? [];
  return `${part} ${layer}`;
}

function recordingBackend(events: string[]): Backend {
  const backend = createReferenceBackend();
  const run = backend.run.bind(backend);
  backend.run = (kernel, call) => {
    if (kernel === 'matmul') {
      const { m, n, k } = call as { m: number; n: number; k: number };
      const [small] = [m, n, k].filter((dim) => dim !== ROWS).sort((a, b) => a - b);
      events.push(`run ${small! - WIDTH}`);
    }
    run(kernel, call);
  };
  return backend;
}

function build(options: OffloadOptions) {
  const events: string[] = [];
  const device = new Device(recordingBackend(events), { seed: 2 });
  const layers = Array.from(
    { length: LAYERS },
    (_, i) => new Linear(device, { inFeatures: WIDTH + i, outFeatures: WIDTH + i + 1 }),
  );
  const model = new OffloadModel(new Sequential(device, layers), {
    store: lateStore(events),
    numSlices: LAYERS,
    ...options,
  });
  const optimizer = new AdamW(model.parameters(), { lr: 1e-2 });
  const pass = () =>
    device.scope(async () => {
      const x = device.tensor(new Float32Array(ROWS * WIDTH).fill(0.5), [ROWS, WIDTH]);
      const result = mean(square(await model.call(x)));
      events.push('loss');
      await result.backward();
    });
  const step = async () => {
    await pass();
    await optimizer.step();
    optimizer.zeroGrad();
  };
  return { device, model, events, pass, step };
}

/** Returns the events of a pass whose order is known from the pass before. */
async function settledPass(options: OffloadOptions) {
  const { events, pass, step } = build(options);
  await step();
  events.length = 0;
  await pass();
  const loss = events.indexOf('loss');
  return { forward: events.slice(0, loss), backward: events.slice(loss) };
}

describe.each([true, false])('checkpointing %s', (checkpointActivation) => {
  it('the next slice is being read when kernels of one start, in forward', async () => {
    const { forward } = await settledPass({ checkpointActivation });
    for (let i = 0; i + 1 < LAYERS; i++) {
      expect(forward.indexOf(`read parameter ${i + 1}`)).toBeLessThan(forward.indexOf(`run ${i}`));
    }
  });

  it('the slice before is being read in backward, while gradients leave', async () => {
    const { backward } = await settledPass({ checkpointActivation });
    for (let i = LAYERS - 1; i > 0; i--) {
      const run = backward.indexOf(`run ${i}`);
      expect(backward.indexOf(`read parameter ${i - 1}`)).toBeLessThan(run);
      expect(backward.indexOf(`write gradient ${i}`)).toBeGreaterThan(run);
    }
    // They don't leave one after the other: the first is on its way before the last has run.
    expect(backward.indexOf(`write gradient ${LAYERS - 1}`)).toBeLessThan(
      backward.indexOf('run 0'),
    );
  });

  it('one slice at a time is on the device, and none computes before it came', async () => {
    const { device, model, pass, step } = build({ checkpointActivation });
    const present: number[] = [];
    const run = device.backend.run.bind(device.backend);
    await step();
    device.backend.run = (kernel, call) => {
      present.push(model.flats.filter((flat) => flat.full.isPresent).length);
      run(kernel, call);
    };
    await pass();
    expect(Math.max(...present)).toBe(1);
    expect(model.flats.filter((flat) => flat.full.isPresent)).toEqual([]);
  });

  it('the cap on reading ahead holds: one slice ahead, or none', async () => {
    const one = await settledPass({ checkpointActivation, loadAheadBytes: FLAT_BYTES });
    expect(one.forward.indexOf('read parameter 1')).toBeLessThan(one.forward.indexOf('run 0'));
    expect(one.forward.indexOf('read parameter 2')).toBeGreaterThan(one.forward.indexOf('run 0'));
    const none = await settledPass({ checkpointActivation, loadAheadBytes: 0 });
    expect(none.forward.indexOf('read parameter 1')).toBeGreaterThan(none.forward.indexOf('run 0'));
  });

  it('steps like those before make no host buffer', async () => {
    const { model, step } = build({ checkpointActivation });
    expect(await numUntilNoneIsMade(model, step)).toBeLessThan(MOST_RUNS);
    expect(model.hostMemory()).toMatchObject({ stagingBytes: 0, parkedBytes: 0 });
  });

  it('host buffers stay under the cap and the slice in demand, gradients too', async () => {
    const { model, pass } = build({ checkpointActivation, loadAheadBytes: FLAT_BYTES });
    await pass();
    await pass();
    // The slices loaded ahead and in use, the gradients that leave, the sums that these are added
    // to, and the next slice's gradients.
    const bound = 2 * FLAT_BYTES + FLAT_BYTES + 2 * FLAT_BYTES;
    expect(model.hostMemory().peakStagingBytes).toBeLessThanOrEqual(bound);
    expect(model.hostMemory().stagingBytes).toBe(0);
  });
});

it('batches of other sizes leave no host buffers behind', async () => {
  const device = new Device(createReferenceBackend(), { seed: 2 });
  const layers = Array.from(
    { length: 3 },
    () => new Linear(device, { inFeatures: 8, outFeatures: 8 }),
  );
  const model = new OffloadModel(layers, { checkpointActivation: true });
  const pass = (rows: number) =>
    device.scope(async () => {
      const x = device.tensor(new Float32Array(rows * 8).fill(0.5), [rows, 8]);
      await mean(square(await model.call(x))).backward();
    });
  expect(await numUntilNoneIsMade(model, () => pass(2))).toBeLessThan(MOST_RUNS);
  for (const rows of [3, 4, 5]) {
    await pass(rows);
  }
  const { heldBytes } = model.hostMemory();
  for (let i = 0; i < 3; i++) {
    await pass(1);
  }
  expect(model.hostMemory().heldBytes).toBeLessThan(heldBytes);
});

it('a store that keeps nothing takes no host memory for what passes to it', async () => {
  const device = new Device(createReferenceBackend(), { seed: 2 });
  const layers = [0, 1].map(() => new Linear(device, { inFeatures: 8, outFeatures: 8 }));
  const options = { checkpointActivation: true, store: createDryStore() };
  const model = new OffloadModel(layers, options);
  const optimizer = new AdamW(model.parameters());
  await device.scope(async () => {
    await mean(square(await model.call(device.zeros([2, 8])))).backward();
    await optimizer.step();
  });
  const { peakStagingBytes, heldBytes, numBuffersMade } = model.hostMemory();
  expect(peakStagingBytes).toBeGreaterThan(0);
  expect([heldBytes, numBuffersMade]).toEqual([0, 0]);
});

const MOST_RUNS = 50;

/**
 * Runs until three runs in a row have made no host buffer, at most MOST_RUNS times, and returns the
 * number of runs. Timing decides how many buffers are needed at once, so each of the first runs may
 * make some.
 */
async function numUntilNoneIsMade(model: OffloadModel, run: () => Promise<void>): Promise<number> {
  let numRuns = 0;
  for (let numQuiet = 0; numQuiet < 3 && numRuns < MOST_RUNS; numRuns++) {
    const { numBuffersMade } = model.hostMemory();
    await run();
    numQuiet = model.hostMemory().numBuffersMade === numBuffersMade ? numQuiet + 1 : 0;
  }
  return numRuns;
}
