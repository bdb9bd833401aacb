// These tests check the exact order and sizes of the samples of a plain model. A tracker leaves no
// trace in it.

import {
  type GatherTrace,
  LayerMemoryTracker,
  type LayerMemoryTrackerOptions,
  MemoryTrackerConfigError,
} from '@shardweave/memory-tracker';
import { checkpoint, Dropout, Gelu, Linear, Module, Sequential } from '@shardweave/nn';
import { add, Device, mean, mul, reshape, type Tensor } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { expect, it } from 'vitest';

const ROWS = 3;
const WEIGHTS = 4 * (10 * 10 + 10); // A Linear from 10 to 10 in f32 has 440 bytes.
const OUTPUT = 4 * ROWS * 10;

function makeDevice(): Device {
  return new Device(createReferenceBackend(), { seed: 5 });
}

function linear(device: Device): Linear {
  return new Linear(device, { inFeatures: 10, outFeatures: 10 });
}

/** Returns a model of Linear, GELU, Linear. */
function stack(device: Device): Sequential {
  return new Sequential(device, [linear(device), new Gelu(device), linear(device)]);
}

async function step(model: Module): Promise<void> {
  const { device } = model;
  await device.scope(async () => {
    const loss = mean(await model.call(device.full([ROWS, 10], 0.5)));
    await loss.backward();
  });
  model.zeroGrad();
}

async function traced(model: Module, options?: LayerMemoryTrackerOptions) {
  using tracker = new LayerMemoryTracker(model, options);
  await step(model);
  return tracker.trace().samples;
}

it('samples leaves in the order of forward and then of backward, with their sizes', async () => {
  const samples = await traced(stack(makeDevice()));
  expect(samples.map(({ phase, name, type }) => `${phase} ${name} ${type}`)).toEqual([
    'forward 0 Linear',
    'forward 1 Gelu',
    'forward 2 Linear',
    'backward 2 Linear',
    'backward 1 Gelu',
    'backward 0 Linear',
  ]);
  expect(samples.map(({ parameterBytes }) => parameterBytes)).toEqual([
    WEIGHTS,
    0,
    WEIGHTS,
    WEIGHTS,
    0,
    WEIGHTS,
  ]);
  const made = samples.map(({ activationBytes, forwardDeltaBytes }) => [
    activationBytes,
    forwardDeltaBytes,
  ]);
  // Each module leaves its output. The temporaries of x W + b are gone when the sample is taken.
  expect(made.slice(0, 3)).toEqual([OUTPUT, OUTPUT, OUTPUT].map((bytes) => [bytes, bytes]));
  expect(made.slice(3)).toEqual([
    [0, 0],
    [0, 0],
    [0, 0],
  ]);
  expect(samples.every(({ pass, gatheredBytes }) => pass === 0 && gatheredBytes === 0)).toBe(true);
});

it("takes live bytes by tag from the device's ledger, and reserved ones from its pool", async () => {
  const device = makeDevice();
  const samples = await traced(stack(device));
  const live = samples.map(({ liveBytes }) => liveBytes);
  expect(live.every(({ parameter }) => parameter === 2 * WEIGHTS)).toBe(true);
  for (const bytes of live) {
    const { total, ...tags } = bytes;
    expect(Object.values(tags).reduce((sum, one) => sum + one, 0)).toBe(total);
  }
  const input = OUTPUT;
  expect(live.slice(0, 3).map(({ activation }) => activation)).toEqual([
    input + OUTPUT,
    input + 2 * OUTPUT,
    input + 3 * OUTPUT, // GELU saves its input, and so does the second Linear.
  ]);
  // The second Linear's gradients are there when GELU's turn comes.
  expect(live.map(({ gradient }) => gradient)).toEqual([0, 0, 0, 0, WEIGHTS, WEIGHTS]);
  for (const { liveBytes, reservedBytes } of samples) {
    expect(reservedBytes).toBeGreaterThanOrEqual(liveBytes.total);
    expect(reservedBytes % 256).toBe(0); // The pool reserves whole buffers.
  }
});

it('samples containers too where asked for all', async () => {
  const device = makeDevice();
  const inner = new Sequential(device, [linear(device), new Gelu(device)]);
  const samples = await traced(new Sequential(device, [inner, linear(device)]), { modules: 'all' });
  expect(samples.map(({ phase, name }) => `${phase} '${name}'`)).toEqual([
    "forward '0.0'",
    "forward '0.1'",
    "forward '0'",
    "forward '1'",
    "forward ''",
    "backward ''",
    "backward '1'",
    "backward '0'",
    "backward '0.1'",
    "backward '0.0'",
  ]);
  expect(samples[2]).toMatchObject({ type: 'Sequential', parameterBytes: WEIGHTS });
  expect(samples[2]!.forwardDeltaBytes).toBe(2 * OUTPUT); // Both are saved for backward.
});

it('counts no storage of an input as an activation, and one that is shared by outputs once', async () => {
  const device = makeDevice();
  class Views extends Module {
    forward(x: Tensor): Tensor[] {
      const made = x.device.full([4], 1);
      return [x, reshape(x, [ROWS * 10]), made, reshape(made, [2, 2])];
    }
  }
  const model = new Sequential(device, [new Views(device)]);
  using tracker = new LayerMemoryTracker(model);
  await device.scope(() => model.call(device.zeros([ROWS, 10])));
  expect(tracker.trace().samples).toMatchObject([{ activationBytes: 16 }]);
});

it('samples what is left of a forward: its temporaries are gone', async () => {
  const device = makeDevice();
  class Temporary extends Module {
    forward(x: Tensor): Tensor {
      x.device.full([1000], 1);
      return x.device.full([4], 1);
    }
  }
  const model = new Sequential(device, [new Temporary(device)]);
  using tracker = new LayerMemoryTracker(model);
  await device.scope(() => model.call(device.zeros([1])));
  expect(tracker.trace().samples).toMatchObject([{ forwardDeltaBytes: 16, activationBytes: 16 }]);
});

it('samples the backward of a module with several outputs once', async () => {
  const device = makeDevice();
  class Outputs extends Module {
    readonly scale = this.parameter('scale', this.device.full([1], 2));

    forward(x: Tensor): Tensor[] {
      return [mul(x, this.scale), mul(x, x), add(x, this.scale)];
    }
  }
  class Sum extends Module {
    forward([a, b, c]: [Tensor, Tensor, Tensor]): Tensor {
      return add(add(a, b), c);
    }
  }
  const layers = [linear(device), new Outputs(device), new Sum(device)];
  const samples = await traced(new Sequential(device, layers));
  const order = samples.slice(3).map(({ phase, name }) => `${phase} ${name}`);
  expect(order).toEqual(['backward 2', 'backward 1', 'backward 0']);
});

it('gives a module that passes its input on its turn in backward', async () => {
  const device = makeDevice();
  const model = new Sequential(device, [linear(device), new Dropout(device, { p: 0 })]);
  const samples = await traced(model);
  expect(samples.map(({ phase, name }) => `${phase} ${name}`)).toEqual([
    'forward 0',
    'forward 1',
    'backward 1',
    'backward 0',
  ]);
  expect(samples[1]!.activationBytes).toBe(0);
});

it("tells a checkpoint's second forward from the first", async () => {
  const device = makeDevice();
  const model = new Sequential(device, [checkpoint(stack(device)), linear(device)]);
  const samples = await traced(model);
  expect(samples.map(({ phase, name, pass }) => `${pass} ${phase} ${name}`)).toEqual([
    ...['0.0', '0.1', '0.2', '1'].map((name) => `0 forward ${name}`),
    '0 backward 1',
    ...['0.0', '0.1', '0.2'].map((name) => `0 recompute ${name}`),
    ...['0.2', '0.1', '0.0'].map((name) => `0 backward ${name}`),
  ]);
});

it('adds up the gathers of its groups between samples, and leaves other listeners theirs', async () => {
  const device = makeDevice();
  const heard: string[] = [];
  const group = {
    worldSize: 4,
    onTrace: (trace: GatherTrace & { readonly tag: string }) => void heard.push(trace.tag),
  };
  const call = (name: string, bytes: number, failed = false): void =>
    group.onTrace({ name, bytes, failed, tag: name });
  class Gathering extends Module {
    forward(x: Tensor): Tensor {
      call('allGather', 110);
      call('reduceScatter', 1000);
      call('allGather', 999, true);
      return x;
    }
  }
  const before = group.onTrace;
  const model = new Sequential(device, [new Gathering(device), new Gathering(device)]);
  const tracker = new LayerMemoryTracker(model, { gathers: [group, group] });
  await device.scope(() => model.call(device.zeros([1])));
  tracker.stop();
  expect(group.onTrace).toBe(before);
  call('allGather', 110);
  const { samples } = tracker.trace();
  expect(samples.map(({ gatheredBytes }) => gatheredBytes)).toEqual([440, 440]);
  expect(samples.map(({ totalGatheredBytes }) => totalGatheredBytes)).toEqual([440, 880]);
  expect(heard).toHaveLength(7);
});

it('stays in the chain, counting nothing, where somebody listens after it', () => {
  const heard: string[] = [];
  const source: { worldSize: number; onTrace: ((trace: GatherTrace) => void) | undefined } = {
    worldSize: 2,
    onTrace: () => void heard.push('first'),
  };
  const tracker = new LayerMemoryTracker(stack(makeDevice()), { gathers: [source] });
  const { onTrace } = source;
  source.onTrace = (trace) => {
    onTrace!(trace);
    heard.push('last');
  };
  tracker.stop();
  source.onTrace({ name: 'allGather', bytes: 1, failed: false });
  expect(heard).toEqual(['first', 'last']);
});

it('waits for the device at every sample, and no longer once it has stopped', async () => {
  const device = makeDevice();
  let numWaits = 0;
  const { synchronize } = device;
  device.synchronize = () => {
    numWaits += 1;
    return synchronize.call(device);
  };
  const model = stack(device);
  const tracker = new LayerMemoryTracker(model);
  await step(model);
  expect(numWaits).toBe(4 + 3 + 3); // Four calls begin, three leaves end, and three go backward.
  // This forward comes before the tracker, and its backward after it.
  await device.scope(async () => {
    const loss = mean(await model.call(device.full([ROWS, 10], 0.5)));
    tracker.stop();
    numWaits = 0;
    await loss.backward();
  });
  await step(model);
  expect(numWaits).toBe(0);
  expect(tracker.isTracking).toBe(false);
  expect(tracker.trace().samples).toHaveLength(6 + 3);
  tracker.stop();
});

it('changes neither loss nor memory', async () => {
  const run = async (isTracked: boolean) => {
    const device = makeDevice();
    const model = stack(device);
    const tracker = new LayerMemoryTracker(model);
    if (!isTracked) {
      tracker.stop();
    }
    const losses: number[] = [];
    for (let i = 0; i < 3; i++) {
      await device.scope(async () => {
        const loss = mean(await model.call(device.full([ROWS, 10], i)));
        await loss.backward();
        losses.push(await loss.item());
      });
    }
    const { live, peak } = device.memory();
    return { losses, live, peak };
  };
  expect(await run(true)).toEqual(await run(false));
});

it('numbers passes, starts anew after a forward that threw, and forgets when told', async () => {
  const device = makeDevice();
  let isFailing = true;
  class Failing extends Module {
    forward(x: Tensor): Tensor {
      if (isFailing) {
        throw new Error('no');
      }
      return x;
    }
  }
  const model = new Sequential(device, [linear(device), new Failing(device)]);
  const tracker = new LayerMemoryTracker(model);
  await expect(step(model)).rejects.toThrow('no');
  isFailing = false;
  tracker.clear();
  await step(model);
  await step(model);
  const seen = tracker.trace().samples.map(({ pass, phase, name }) => `${pass} ${phase} ${name}`);
  expect(seen).toEqual(
    [1, 2].flatMap((pass) => [
      `${pass} forward 0`,
      `${pass} forward 1`,
      `${pass} backward 1`,
      `${pass} backward 0`,
    ]),
  );
});

it('refuses modules of several devices', () => {
  const device = makeDevice();
  const model = new Sequential(device, [linear(device), linear(makeDevice())]);
  expect(() => new LayerMemoryTracker(model)).toThrow(MemoryTrackerConfigError);
  expect(() => new LayerMemoryTracker(model)).toThrow(/got another's at '1'/);
});

it('refuses unknown options', () => {
  const model = stack(makeDevice());
  const tracked = (options: object) => () => new LayerMemoryTracker(model, options);
  expect(tracked({ module: 'all' })).toThrow(/got 'module'. Did you mean modules/);
  expect(tracked({ modules: 'leafs' })).toThrow(/'leaves' or 'all', got "leafs"/);
  expect(tracked({ modules: 'leafs' })).toThrow(MemoryTrackerConfigError);
});

it('samples modules that were put in after it, and none twice', async () => {
  const device = makeDevice();
  const model = stack(device);
  using tracker = new LayerMemoryTracker(model);
  const forward = () => device.scope(() => model.call(device.zeros([ROWS, 10])));
  await forward();
  model.replaceChild('2', new Sequential(device, [linear(device), new Gelu(device)]));
  await forward();
  await forward();
  const seen = tracker.trace().samples.map(({ pass, name }) => `${pass} ${name}`);
  expect(seen).toEqual([
    ...['0 0', '0 1', '0 2'],
    ...['1 0', '1 1', '1 2.0', '1 2.1'],
    ...['2 0', '2 1', '2 2.0', '2 2.1'],
  ]);
});
