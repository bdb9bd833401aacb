// Plain JavaScript passes these options, where no types prevent mistakes. Each mistake throws at
// the call, and the message names the class, the option, what was expected and what came.

import {
  Adam,
  AdamW,
  AddLayerNorm,
  AddRmsNorm,
  BatchNorm1d,
  Conv1D,
  checkpoint,
  clipCoefficient,
  clipGradNorm,
  Dropout,
  Embedding,
  Gelu,
  Gpt2,
  GradScaler,
  LayerNorm,
  Linear,
  learningRateAt,
  ModuleList,
  MultiheadAttention,
  NnConfigError,
  ParameterInit,
  RmsNorm,
  resetParameters,
  Sequential,
  Sgd,
  SyncBatchNorm,
} from '@shardweave/nn';
import type { Tensor } from '@shardweave/tensor-core';
import { afterAll, describe, expect, it } from 'vitest';
import { makeDevice } from './support/support.js';

const device = makeDevice();
afterAll(() => device.dispose());

/** Calls a function as plain JavaScript would. */
// biome-ignore lint/suspicious/noExplicitAny: what the types forbid
type Loose = new (...args: any[]) => unknown;
const make =
  (type: unknown, ...args: unknown[]) =>
  () =>
    new (type as Loose)(...args);

function expectRefusal(call: () => unknown, message: string): void {
  expect(call).toThrow(NnConfigError);
  expect(call).toThrow(message);
}

function leaf(): Tensor {
  return device.zeros([2], { requiresGrad: true });
}

const GROUP = { worldSize: 1, allGather: async () => {} };

/** Options of each class that work, and which of them it needs. */
const CLASSES = [
  [LayerNorm, 'LayerNorm', { normalizedShape: 4, eps: 1e-5 }, ['normalizedShape']],
  [RmsNorm, 'RmsNorm', { normalizedShape: 4, eps: 1e-5, isOffset: true }, ['normalizedShape']],
  [AddLayerNorm, 'AddLayerNorm', { normalizedShape: 4, eps: 1e-5 }, ['normalizedShape']],
  [
    AddRmsNorm,
    'AddRmsNorm',
    { normalizedShape: 4, eps: 1e-5, isOffset: true },
    ['normalizedShape'],
  ],
  [
    Linear,
    'Linear',
    { inFeatures: 2, outFeatures: 3, bias: false, std: 0.1 },
    ['inFeatures', 'outFeatures'],
  ],
  [Conv1D, 'Conv1D', { inFeatures: 2, outFeatures: 3, std: 0.1 }, ['inFeatures', 'outFeatures']],
  [
    Embedding,
    'Embedding',
    { numEmbeddings: 5, embeddingDim: 2, std: 0.1 },
    ['numEmbeddings', 'embeddingDim'],
  ],
  [Dropout, 'Dropout', { p: 0.1 }, ['p']],
  [Gelu, 'Gelu', { approximate: 'tanh' }, []],
  [
    BatchNorm1d,
    'BatchNorm1d',
    { numFeatures: 3, eps: 1e-5, momentum: 0.1, affine: true, trackRunningStats: true },
    ['numFeatures'],
  ],
  [SyncBatchNorm, 'SyncBatchNorm', { numFeatures: 3, group: GROUP }, ['numFeatures', 'group']],
  [
    MultiheadAttention,
    'MultiheadAttention',
    { embedDim: 8, numHeads: 2, dropout: 0.1, residDropout: 0.1, std: 0.1, projStd: 0.1 },
    ['embedDim', 'numHeads'],
  ],
  [ParameterInit, 'ParameterInit', { seed: 1, path: '', isDeferred: false }, ['seed']],
] as const;

describe.each(CLASSES)('%o', (type, name, options, needed) => {
  it('takes options that fit', () => {
    expect(make(type, device, options)).not.toThrow();
  });

  it('refuses what is no object of options, and names those it has', () => {
    expectRefusal(make(type, device, 32), `${name}: expected an object of options`);
    expectRefusal(make(type, device, 32), 'got 32');
    for (const option of Object.keys(options)) {
      expectRefusal(make(type, device, [1]), option);
    }
    expect(make(type, device, null)).toThrow(NnConfigError);
    if (needed.length > 0) {
      expect(make(type, device)).toThrow(NnConfigError);
    }
  });

  it('refuses an unknown option, and names those it has', () => {
    const call = make(type, device, { ...options, dimm: 3 });
    expectRefusal(call, `${name}: expected known options`);
    expectRefusal(call, "got 'dimm'");
  });

  it.each(Object.keys(options))('refuses other types, NaN and negative numbers: %s', (option) => {
    const isFlag = typeof options[option as keyof typeof options] === 'boolean';
    for (const value of [Number.NaN, Number.NEGATIVE_INFINITY, {}, null, isFlag ? 'no' : -1.5]) {
      const call = make(type, device, { ...options, [option]: value });
      expectRefusal(call, `${name}: expected ${option} to be`);
    }
  });

  it('refuses to go without what it needs, and takes undefined for the rest', () => {
    for (const option of Object.keys(options)) {
      const call = make(type, device, { ...options, [option]: undefined });
      if ((needed as readonly string[]).includes(option)) {
        expectRefusal(call, `${name}: expected ${option} to be`);
        expectRefusal(call, 'got nothing');
      } else {
        expect(call).not.toThrow();
      }
    }
  });
});

describe('models and containers', () => {
  it('a module expects a device', () => {
    expectRefusal(
      make(LayerNorm, { normalizedShape: 3 }),
      'LayerNorm: expected a Device as its first argument',
    );
    expectRefusal(make(Sequential, []), 'Sequential: expected a Device');
  });

  it('containers expect modules, and say which is none', () => {
    const gelu = new Gelu(device);
    for (const [type, name] of [
      [Sequential, 'Sequential'],
      [ModuleList, 'ModuleList'],
    ] as const) {
      expectRefusal(make(type, device, gelu), `${name}: expected an array of modules`);
      expectRefusal(make(type, device, [gelu, Gelu]), `${name}: expected a module at index 1`);
      expectRefusal(make(type, device), `${name}: expected an array of modules`);
    }
  });

  it('Gpt2 refuses unknown fields, values that cannot work and unknown options', () => {
    const config = { vocab_size: 9, n_positions: 4, n_embd: 8, n_layer: 1, n_head: 2 };
    const gpt2 = (fields: object, options: object = {}) =>
      make(Gpt2, device, { ...config, ...fields }, options);
    expect(gpt2({ resid_pdrop: undefined })).not.toThrow();
    expectRefusal(gpt2({ n_layers: 2 }), "got 'n_layers'");
    expectRefusal(gpt2({ n_head: 0 }), 'gpt2: expected n_head to be');
    expectRefusal(gpt2({ n_embd: Number.NaN }), 'got NaN');
    expectRefusal(gpt2({ n_inner: -4 }), 'gpt2: expected n_inner to be');
    expectRefusal(gpt2({ embd_pdrop: '0.1' }), 'gpt2: expected embd_pdrop to be');
    expectRefusal(gpt2({ layer_norm_epsilon: Infinity }), 'got Infinity');
    expectRefusal(gpt2({}, { seed: 1.5 }), 'gpt2: expected seed to be');
    expectRefusal(gpt2({}, { deferinit: true }), "got 'deferinit'");
    expectRefusal(make(Gpt2, device, 'gpt2'), 'gpt2: expected an object of options');
  });

  it('checkpoint expects a module and known options', () => {
    const loose = checkpoint as (...args: unknown[]) => unknown;
    expectRefusal(() => loose(Gelu), 'checkpoint: expected a module');
    const gelu = new Gelu(device);
    expectRefusal(() => loose(gelu, { offload: true }), "got 'offload'");
    expectRefusal(
      () => loose(gelu, { offloadToCpu: 1 }),
      'checkpoint: expected offloadToCpu to be',
    );
  });
});

describe.each([
  [Sgd, 'Sgd', ['lr', 'momentum', 'dampening', 'weightDecay']],
  [Adam, 'Adam', ['lr', 'eps', 'weightDecay']],
  [AdamW, 'AdamW', ['lr', 'eps', 'weightDecay']],
] as const)('%o', (type, name, numbers) => {
  it('refuses options, and a group by its number', () => {
    for (const option of numbers) {
      for (const value of [Number.NaN, -1, '0.1', null]) {
        const plain = make(type, [leaf()], { [option]: value });
        expectRefusal(plain, `${name}: expected ${option} to be`);
        const groups = [{ params: [leaf()] }, { params: [leaf()], [option]: value }];
        expectRefusal(make(type, groups), `${name} group 1: expected ${option} to be`);
      }
      expect(make(type, [leaf()], { [option]: undefined })).not.toThrow();
    }
    expectRefusal(make(type, [leaf()], { learningRate: 1 }), "got 'learningRate'");
    expectRefusal(make(type, [leaf()], 0.1), `${name}: expected an object of options`);
    expectRefusal(make(type, [{ params: [leaf()], LR: 1 }]), "got 'LR'");
  });

  it('refuses what are no parameters', () => {
    const message = 'expected an array of parameters or groups';
    for (const params of [undefined, leaf(), { params: [leaf()] }]) {
      expectRefusal(make(type, params), message);
    }
    expectRefusal(make(type, [leaf(), { params: [leaf()] }]), message);
    expectRefusal(make(type, [{ params: leaf() }]), 'expected params to be');
    expectRefusal(make(type, [{ params: [3] }]), 'expected params to be');
    expectRefusal(make(type, [{ lr: 1 }]), 'expected params to be');
  });

  it('refuses a step with what a schedule broke, before anything changes', async () => {
    const parameter = leaf();
    parameter.grad = device.full([2], 1);
    const optimizer = new type([parameter]);
    const [group] = optimizer.groups;
    group!.lr = Number.NaN;
    await expect(optimizer.step()).rejects.toThrow(`${name}: expected lr to be`);
    expect([...(await parameter.toArray())]).toEqual([0, 0]);
    group!.lr = 0.5;
    await optimizer.step();
    expect([...(await parameter.toArray())].every((value) => value < 0)).toBe(true);
    const scale = { gradscale: 1 } as object;
    await expect(optimizer.step(scale)).rejects.toThrow("got 'gradscale'");
    await expect(optimizer.step({ gradScale: 0.5 as never })).rejects.toThrow(NnConfigError);
    await expect(optimizer.step({ flatsAhead: -1 })).rejects.toThrow('flatsAhead');
  });

  it('refuses options of a state dict that cannot work, and takes nothing of it', async () => {
    const parameter = leaf();
    const optimizer = new type([parameter]);
    const named = [['p', parameter]] as const;
    const dict = await optimizer.stateDict(named);
    const wrong = { ...dict, paramGroups: [{ ...dict.paramGroups[0]!, lr: '3' }] };
    const before = optimizer.groups[0]!.lr;
    await expect(optimizer.loadStateDict(wrong as never, named)).rejects.toThrow('expected lr');
    expect(optimizer.groups[0]!.lr).toBe(before);
  });
});

it('Adam expects two betas in [0, 1)', () => {
  for (const betas of [0.9, [0.9], [0.9, 1], [0.9, Number.NaN], [0.9, 0.99, 0.999], ['a', 'b']]) {
    expectRefusal(make(Adam, [leaf()], { betas }), 'Adam: expected betas to be');
  }
  expectRefusal(make(Sgd, [leaf()], { nesterov: 1 }), 'Sgd: expected nesterov to be');
});

describe('GradScaler', () => {
  it.each([
    ['initScale', [0, -1, Number.NaN, Infinity, '65536']],
    ['growthFactor', [1, Number.NaN, Infinity]],
    ['backoffFactor', [0, 1, Number.NaN]],
    ['growthInterval', [0, 1.5, Number.NaN]],
  ])('refuses %s', (option, values) => {
    for (const value of values) {
      expectRefusal(
        make(GradScaler, [leaf()], { [option]: value }),
        `GradScaler: expected ${option} to be`,
      );
    }
    expect(make(GradScaler, [leaf()], { [option]: undefined })).not.toThrow();
  });

  it('refuses an unknown option, and a state that cannot work', () => {
    expectRefusal(make(GradScaler, [leaf()], { scale: 2 }), "got 'scale'");
    const scaler = new GradScaler([leaf()]);
    for (const state of [{}, { scale: 0, growthTracker: 0 }, { scale: 2, growthTracker: -1 }]) {
      expect(() => scaler.loadStateDict(state as never)).toThrow(NnConfigError);
    }
    expect(scaler.factor).toBe(65536);
    scaler.loadStateDict({ scale: 2, growthTracker: 1 });
    expect(scaler.factor).toBe(2);
  });
});

describe('functions', () => {
  it('learningRateAt refuses another kind, steps and rates that are none', () => {
    const rate = (step: unknown, options: object) => () =>
      learningRateAt(step as number, { kind: 'constant', lr: 1, ...options } as never);
    expectRefusal(rate(0, { kind: 'cosin' }), "learningRateAt: expected kind to be 'constant'");
    expectRefusal(rate(-1, {}), 'learningRateAt: expected step to be');
    expectRefusal(rate(0.5, {}), 'learningRateAt: expected step to be');
    expectRefusal(rate(0, { lr: Number.NaN }), 'learningRateAt: expected lr to be');
    expectRefusal(rate(0, { warmup: 3 }), "got 'warmup'");
    expectRefusal(rate(0, { kind: 'cosine' }), 'learningRateAt: expected totalSteps to be');
    expectRefusal(rate(0, { totalSteps: -3 }), 'learningRateAt: expected totalSteps to be');
  });

  it('clipGradNorm refuses what has no gradients, bounds that are none and unknown options', async () => {
    const loose = clipGradNorm as (...args: unknown[]) => Promise<unknown>;
    for (const [args, message] of [
      [[new Gelu(device), 1], 'clipGradNorm: expected at least one parameter'],
      [[[3], 1], 'clipGradNorm: expected a module, several, or parameters'],
      [[{}, 1], 'clipGradNorm: expected a module, several, or parameters'],
      [[[leaf()]], 'clipGradNorm: expected maxNorm'],
      [[[leaf()], 1, { normtype: 1 }], "got 'normtype'"],
      [[[leaf()], 1, { normType: 0 }], 'expected normType to be'],
      [[[leaf()], 1, { unscale: Number.NaN }], 'expected unscale to be'],
    ] as const) {
      const refused = loose(...args);
      await expect(refused).rejects.toThrow(NnConfigError);
      await expect(refused).rejects.toThrow(message);
    }
    expectRefusal(() => clipCoefficient(1, Number.NaN), 'expected maxNorm');
  });

  it('resetParameters refuses another seed', () => {
    const linear = new Linear(device, { inFeatures: 1, outFeatures: 1 });
    expectRefusal(() => resetParameters(linear, { seed: 0.5 }), 'expected seed to be');
    expectRefusal(() => resetParameters(linear, { sed: 1 } as object), "got 'sed'");
  });
});
