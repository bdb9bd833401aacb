// OffloadModel names these ranges in the device's trace.

import { Linear, Sequential } from '@shardweave/nn';
import { OffloadModel, type OffloadOptions } from '@shardweave/offload';
import { Device, mean, square, type Tensor, Trace } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';

const DIM = 4;

/**
 * Returns the names of the ranges in one forward and backward, with their layers, in the order of
 * their starts.
 */
async function ranges(options: OffloadOptions, isTraining = true): Promise<string[]> {
  const trace = new Trace();
  const device = new Device(createReferenceBackend(), { seed: 1, trace });
  const layers = [0, 1, 2].map(() => new Linear(device, { inFeatures: DIM, outFeatures: DIM }));
  const model = new OffloadModel(new Sequential(device, layers), { numSlices: 2, ...options });
  const pass = () =>
    device.scope(async () => {
      const x = device.zeros([4, DIM]);
      if (!isTraining) {
        return void (await device.noGrad(() => model.call(x)));
      }
      await mean(square((await model.call(x)) as Tensor)).backward();
    });
  await pass();
  trace.events.length = 0;
  await pass();
  const own = trace.events.filter(({ name }) => name.startsWith('offload: '));
  for (const { track, startMs, endMs } of own) {
    expect(track).toBe('main');
    expect(endMs).toBeGreaterThanOrEqual(startMs);
  }
  // No range begins before the previous one has ended, so they end in the order in which they
  // start.
  return own.map(({ name, args }) => `${name.slice('offload: '.length)} ${args!.layers}`);
}

const stay = (phase: string, runs: readonly string[], layers: string) =>
  [`${phase}_load`, ...runs, `${phase}_drop`].map((name) => `${name} ${layers}`);

describe('the named ranges of each slice', () => {
  it('a slice without checkpointing runs forward with gradients', async () => {
    const forward = ['forward_pass_with_enable_grad'];
    expect(await ranges({})).toEqual([
      ...stay('forward', forward, '0'),
      ...stay('forward', forward, '1 2'),
      ...stay('backward', ['backward_pass'], '1 2'),
      ...stay('backward', ['backward_pass'], '0'),
    ]);
  });

  it('checkpointed: a slice runs again before its backward', async () => {
    const backward = ['backward_pass', 'forward_pass_with_enable_grad', 'backward_pass'];
    expect(await ranges({ checkpointActivation: true })).toEqual([
      ...stay('forward', ['no_grad_forward_pass'], '0'),
      ...stay('forward', ['no_grad_forward_pass'], '1 2'),
      ...stay('backward', backward, '1 2'),
      ...stay('backward', backward, '0'),
    ]);
  });

  it('micro-batches have one load and one drop for all of them', async () => {
    const names = await ranges({ checkpointActivation: true, numMicrobatches: 2 });
    const count = (name: string) => names.filter((found) => found.startsWith(name)).length;
    expect([count('forward_load'), count('backward_load')]).toEqual([2, 2]);
    expect([count('forward_drop'), count('backward_drop')]).toEqual([2, 2]);
    expect(count('no_grad_forward_pass')).toBe(4);
    expect(count('forward_pass_with_enable_grad')).toBe(4);
  });

  it('an evaluation has forwards alone, and a dry run has none', async () => {
    const expected = [
      ...stay('forward', ['no_grad_forward_pass'], '0'),
      ...stay('forward', ['no_grad_forward_pass'], '1 2'),
    ];
    expect(await ranges({}, false)).toEqual(expected);
    const trace = new Trace();
    const device = new Device(createReferenceBackend(), { trace });
    const model = new OffloadModel([new Linear(device, { inFeatures: DIM, outFeatures: DIM })], {
      deviceBudgetBytes: 1e6,
    });
    await device.noGrad(() => device.scope(() => model.call(device.zeros([1, DIM]))));
    expect(trace.events.filter(({ name }) => name === 'offload: forward_load').length).toBe(1);
  });
});
