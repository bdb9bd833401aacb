// Unknown options and values out of range are refused before the model is touched, and the error
// says what is expected.

import { Linear, Sequential } from '@shardweave/nn';
import { OffloadConfigError, OffloadModel, type OffloadOptions } from '@shardweave/offload';
import { createHostStore } from '@shardweave/shard-store';
import { Device } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';

function build(options: unknown): OffloadModel {
  const device = new Device(createReferenceBackend());
  const layers = [0, 1].map(() => new Linear(device, { inFeatures: 2, outFeatures: 2 }));
  const model = new Sequential(device, layers);
  try {
    return new OffloadModel(model, options as OffloadOptions);
  } catch (error) {
    // The error comes before the layers' parameters are moved.
    for (const parameter of model.parameters()) {
      expect(parameter.piece).toBe(undefined);
    }
    throw error;
  }
}

const KNOWN =
  'Known ones: store, resume, numSlices, checkpointActivation, numMicrobatches, computeDType, deviceBudgetBytes, loadAheadBytes, name.';

describe('unknown options', () => {
  it.each([
    ['numSlice', 'Did you mean numSlices?'],
    ['num_slices', 'Did you mean numSlices?'],
    ['numMicroBatches', 'Did you mean numMicrobatches?'],
    ['num_microbatches', 'Did you mean numMicrobatches?'],
    ['checkpoint_activation', 'Did you mean checkpointActivation?'],
    ['checkpointActivations', 'Did you mean checkpointActivation?'],
    ['computeDtype', 'Did you mean computeDType?'],
    ['deviceBudget', 'Did you mean deviceBudgetBytes?'],
    ['device', "The model's own device is used."],
    ['offload_device', 'Use store: it says where parameters rest.'],
    ['optimizer', 'Make the optimizer on model.parameters().'],
    ['resumed', 'Did you mean resume?'],
    ['color', KNOWN],
  ])('%s: what is meant is named', (key, answer) => {
    const make = () => build({ [key]: 2 });
    expect(make).toThrow(OffloadConfigError);
    expect(make).toThrow(`offload: expected known options, got '${key}'. ${answer}`);
  });

  it('one that is undefined is no option', () => {
    expect(() => build({ numSlice: undefined })).not.toThrow();
  });
});

describe('values', () => {
  it.each<[object, string]>([
    [{ numSlices: 0 }, 'numSlices to be a whole number of at least 1, got 0'],
    [{ numSlices: '2' }, 'numSlices to be a whole number of at least 1, got "2"'],
    [{ numMicrobatches: 1.5 }, 'numMicrobatches to be a whole number of at least 1, got 1.5'],
    [{ computeDType: 'fp16' }, "computeDType to be 'f32' or 'f16' or 'bf16', got \"fp16\""],
    [{ computeDType: 'i32' }, `computeDType to be 'f32' or 'f16' or 'bf16', got "i32"`],
    [{ loadAheadBytes: -5 }, 'loadAheadBytes to be a number of at least 0, got -5'],
    [{ loadAheadBytes: Number.NaN }, 'loadAheadBytes to be a number of at least 0, got NaN'],
    [{ deviceBudgetBytes: 0 }, 'deviceBudgetBytes to be a number above 0, got 0'],
    [{ deviceBudgetBytes: Number.NaN }, 'deviceBudgetBytes to be a number above 0, got NaN'],
    [{ deviceBudgetBytes: '1e6' }, `deviceBudgetBytes to be a number above 0, got "1e6"`],
    [{ checkpointActivation: 'no' }, `checkpointActivation to be true or false, got "no"`],
    [{ resume: 1 }, 'resume to be true or false, got 1'],
    [{ name: '' }, `name to be text without '/', got ""`],
    [{ name: 'a/b' }, `name to be text without '/', got "a/b"`],
    [{ store: '/tmp/state' }, `store to be a ShardStore, got "/tmp/state"`],
  ])('%o', (options, message) => {
    expect(() => build(options)).toThrow(OffloadConfigError);
    expect(() => build(options)).toThrow(`offload: expected ${message}.`);
  });

  it('a promise of a store is one that was not awaited', () => {
    const make = () => build({ store: Promise.resolve(createHostStore()) });
    expect(make).toThrow('offload: expected store to be a ShardStore, got a promise. Await it.');
  });

  it('options of no allowed value', () => {
    expect(() => build(4)).toThrow('offload: expected an object of options (');
  });

  it('the borders are taken: one slice, no load ahead, any budget and none', () => {
    const limits = { loadAheadBytes: 0, numMicrobatches: 1 };
    expect(() => build({ ...limits, numSlices: 1, computeDType: 'f32' })).not.toThrow();
    expect(() => build({ ...limits, deviceBudgetBytes: 0.5 })).not.toThrow();
    expect(() => build({ loadAheadBytes: Number.POSITIVE_INFINITY })).not.toThrow();
  });
});
