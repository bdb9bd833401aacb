// A rank's step and its evaluation by themselves, on a model of one weight whose numbers are known.

import { createMemoryGroup } from '@shardweave/collectives';
import { AdamW, Module } from '@shardweave/nn';
import { createHostStore } from '@shardweave/shard-store';
import { affine, Device, type Tensor } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it, vi } from 'vitest';
import { onRanks } from '../../../tooling/test-kit/ranks.ts';
import { UsageError } from '../src/errors.js';
import { type EvaluationOptions, evaluate, lossAhead } from '../src/rank/step/evaluation.js';
import { groupOf, groupsOf, layerNorms } from '../src/rank/step/layer-norms.js';
import { TrainingStep, type TrainingStepOptions } from '../src/rank/step/training-step.js';
import { type RestOptions, withRest } from '../src/rank/strategies/open-rest.js';
import type { Strategy } from '../src/rank/strategies/strategy.js';
import { sumOfMicroSteps, sumOverRanks } from '../src/rank/strategies/sum-over-ranks.js';
import { net } from './support/each-strategy.js';

class Weight extends Module<[], Tensor> {
  readonly weight: Tensor;

  constructor(device: Device) {
    super(device);
    this.weight = this.parameter('weight', device.full([1], 2));
  }

  forward(): Tensor {
    return this.weight;
  }
}

interface Batch {
  readonly firstRow: number;
  readonly value: number;
}

const CONFIG = { precision: 'fp32', clip: 1, sync: true, steps: 400, out: 'a', ranks: 1 } as const;

/** A step of micro-steps whose losses are the weight, of 2, times these values. */
function stepOf(values: readonly number[], config: object = {}, numTargets = 4) {
  const device = new Device(createReferenceBackend());
  const [group] = createMemoryGroup(1);
  const module = new Weight(device);
  const optimizer = new AdamW([
    { params: [module.weight], lr: 7 },
    { params: [], lr: 8 },
  ] as never);
  const told: unknown[] = [];
  const tell = <T>(what: unknown, is: T): T => {
    told.push(what);
    return is;
  };
  const lossOf = ({ value }: Batch) => affine(module.weight, value, 0);
  const objective = {
    backward: async (batch: Batch, { scale }: { readonly scale: number }): Promise<Tensor> => {
      const loss = lossOf(batch);
      await affine(loss, scale, 0).backward();
      return loss;
    },
    loss: async (batch: Batch): Promise<Tensor> => tell(module.isTraining, lossOf(batch)),
  };
  const data = {
    numMicroSteps: values.length,
    numSteps: 3,
    numTargets: async (step: number) => (step === 9 ? 0 : numTargets),
    microBatch: async (step: number, _: number, i: number) => ({
      ...{ firstRow: 10 * i, value: values[i]! + step },
    }),
  };
  const strategy = {
    ...{ module, optimizer, objective },
    noSync: <T>(run: () => Promise<T>) => tell('noSync', run()),
    step: async ({ gradScale }: { readonly gradScale?: Tensor }) => {
      told.push([
        module.weight.grad && (await module.weight.grad.item()),
        (await gradScale?.item())?.toPrecision(5),
      ]);
      await optimizer.step({ gradScale } as never);
    },
  };
  const begin = vi.spyOn(device.random, 'begin');
  const onPhase = (phase: unknown) => void told.push(phase);
  const options = { device, strategy, data, group, rank: 0, onPhase };
  return {
    ...{ told, begin, module, optimizer, device },
    step: new TrainingStep({
      ...options,
      config: { ...CONFIG, ...config },
    } as unknown as TrainingStepOptions),
    options: { ...options, config: { ...CONFIG, head: { kind: 'lm' }, ...config } },
  };
}

describe('a step', () => {
  it.each<[string, object, readonly unknown[]]>([
    ['adds up all micro-steps, and scales by their targets', { clip: 9 }, [[2.25, undefined]]],
    ['clips', { clip: 1.125 }, [[2.25, '0.50000']]],
    ['waits with all but the last', { clip: 9, sync: false }, ['noSync', [2.25, undefined]]],
    ['of groups waits with none', { clip: 9, sync: false, gradientGroups: 2 }, [[2.25, undefined]]],
    [
      'in f16 unscales',
      { precision: 'fp16', clip: 9 },
      [[2.25 * 2 ** 16, (2 ** -16).toPrecision(5)]],
    ],
    ['in f16 clips too', { precision: 'fp16', clip: 1.125 }, [[2.25 * 2 ** 16, '0.0000076294']]],
  ])('%s', async (_, config, expected) => {
    const { step, told, begin, module, optimizer, device } = stepOf([3, 4], config);
    const found = await step.run(1, 0.5);
    const isScaled = 'precision' in config;
    expect(found).toMatchObject({ loss: 4.5, numTargets: 4, gradNorm: 2.25, isSkipped: false });
    expect(found.lossScale).toBe(isScaled ? 2 ** 16 : 1);
    expect(told.filter((x) => Array.isArray(x) || x === 'noSync')).toEqual(expected);
    expect(told.filter((x) => ['norm', 'update', undefined].includes(x as string))).toEqual([
      ...['norm', 'update', undefined],
    ]);
    expect(begin.mock.calls).toEqual([[{ step: 1, rowOffset: 0 }], [{ step: 1, rowOffset: 10 }]]);
    expect(optimizer.groups.map(({ lr }) => lr)).toEqual([0.5, 0.5]);
    expect(module.weight.grad).toBeUndefined();
    expect(await module.weight.item()).toBeCloseTo(1.49, 2); // 2, less a rate of 0.5 and decay
    device.dispose();
  });

  it('a step in which nothing counts is skipped, and asks for nothing', async () => {
    const { step, told, module, optimizer, device } = stepOf([3]);
    expect(await step.run(9, 0.5)).toEqual({
      ...{ loss: Number.NaN, numTargets: 0, gradNorm: Number.NaN, lossScale: 1, isSkipped: true },
    });
    expect([told, optimizer.groups[0]!.lr, await module.weight.item()]).toEqual([[], 7, 2]);
    device.dispose();
  });

  it('asks whether ranks stop, also where nothing counts', async () => {
    const { options, device } = stepOf([3], { gradientGroups: 1 });
    const wishes = ['go on', 'stop', 'end'];
    const stopWish = () => wishes.shift();
    const step = new TrainingStep({ ...options, stopWish } as unknown as TrainingStepOptions);
    expect(await step.run(0, 0.5)).toMatchObject({ loss: 1.5, stop: 'go on' });
    expect(await step.run(9, 0.5)).toMatchObject({ stop: 'stop', isSkipped: true });
    expect(await step.run(1, 0.5)).toMatchObject({ stop: 'end', isSkipped: false });
    device.dispose();
  });

  it('a step without a decision changes nothing, and can be ended with what it has', async () => {
    const { options, module, device } = stepOf([3], { gradientGroups: 1, ranks: 2 });
    const [group] = createMemoryGroup(2);
    group!.abort('lost');
    const step = new TrainingStep({ ...options, group } as unknown as TrainingStepOptions);
    await expect(step.run(1, 0.5)).rejects.toThrow('lost');
    expect([await module.weight.item(), step.undecided]).toEqual([2, 1]);
    expect(await step.finish()).toMatchObject({ gradNorm: 1, isSkipped: false });
    expect(await module.weight.item()).toBeCloseTo(1.49, 2);
    expect([await step.finish(), step.undecided]).toEqual([undefined, undefined]);
    device.dispose();
  });

  it.each([
    ['fp16', true, 2 ** 15],
    ['fp32', false, 1],
    ['bf16', false, 1],
  ])('%s of a norm that is not finite is skipped: %s', async (precision, isSkipped, next) => {
    const { step, told, device } = stepOf([3e38, 3e38], { precision });
    expect(await step.run(0, 0.5)).toMatchObject({ isSkipped });
    expect(told.filter(Array.isArray)).toHaveLength(isSkipped ? 0 : 1);
    expect(step.lossScale).toBe(next);
    step.loadScaler(undefined);
    expect(step.lossScale).toBe(next);
    step.loadScaler({ scale: 4, growthTracker: 1 });
    expect(step.scaler).toEqual(isSkipped ? { scale: 4, growthTracker: 1 } : undefined);
    device.dispose();
  });

  it.each([
    [{}, 0, true, true],
    [{}, 1, true, false],
    [{}, 6, false, false],
    [{}, 7, true, true],
    [{ out: undefined }, 0, false, false],
    [{ precision: 'fp16' }, 0, true, true],
  ])(
    '%j tells its layers at %i: %s, and their updates: %s',
    async (config, at, layers, updates) => {
      const { step, device, module } = stepOf([1 - at], config);
      const { groups } = await step.run(at, 0.5);
      expect(groups && Object.keys(groups)).toEqual(layers ? ['weight'] : undefined);
      if (layers) {
        expect(groups!.weight!.gradNorm).toBe(0.25);
        const moved = (2 - (await module.weight.item())) / 2;
        const { updateRatio } = groups!.weight!;
        expect(updateRatio).toEqual(updates ? expect.closeTo(moved, 5) : undefined);
      }
      device.dispose();
    },
  );
});

describe('an evaluation', () => {
  const optionsOf = (values: readonly number[], more: object = {}, config: object = {}) => {
    const { options, ...rest } = stepOf(values, config);
    return { ...rest, options: { ...options, ...more } as unknown as EvaluationOptions };
  };

  it('is of all steps and micro-steps, without gradients, and training goes on then', async () => {
    const onStep = vi.fn();
    const { options, told, module, device } = optionsOf([3, 4], { onStep });
    expect(await evaluate(options)).toEqual({ loss: (2 * (7 + 9 + 11)) / 12 });
    expect(onStep.mock.calls).toEqual([
      [1, 3],
      [2, 3],
      [3, 3],
    ]);
    expect([told, module.isTraining, module.weight.grad]).toEqual([
      Array(6).fill(false),
      true,
      undefined,
    ]);
    device.dispose();
  });

  it('is the same sum in groups', async () => {
    const { options, device } = optionsOf([3, 4], {}, { gradientGroups: 2 });
    expect(await evaluate(options)).toEqual({ loss: (2 * (7 + 9 + 11)) / 12 });
    device.dispose();
  });

  it('an evaluation that is given up, or fails, lets training go on', async () => {
    const isGivenUp = async () => told.length === 2;
    const { options, told, module, device } = optionsOf([3, 4], { isGivenUp });
    expect(await evaluate(options)).toBeUndefined();
    expect([told.length, module.isTraining]).toEqual([2, true]);
    const onStep = () => {
      throw new Error('enough');
    };
    await expect(evaluate({ ...options, isGivenUp: undefined, onStep })).rejects.toThrow('enough');
    expect(module.isTraining).toBe(true);
    device.dispose();
  });

  it.each([
    [[4, 0, 0], 0, 0],
    [[0, 0, 4], 0, 2],
    [[0, 0, 4], 2, 2],
    [[4, 0, 0], 1, 3],
    [[0, 0, 0], 1, undefined],
  ])('ahead, of steps with %j targets from %i on, is of %s', async (targets, from, at) => {
    const { options, device } = optionsOf([3]);
    const numTargets = async (step: number) => targets[step % 3]!;
    const found = await lossAhead({ ...options, data: { ...options.data, numTargets } }, from);
    expect(found).toBe(at === undefined ? undefined : (2 * (3 + at)) / 4);
    device.dispose();
  });
});

describe('sums over ranks', () => {
  it.each([
    ['ddp', 0.5],
    ['fsdp', 1.5],
  ] as const)('groups of %s are added in their order', async (strategy, inOrder) => {
    const large = 2 ** 60;
    const values = [large, 1, -large, 0.5]; // by rank and micro-step
    const found = await onRanks(2, async ({ rank, group }) => {
      const own = values.slice(2 * rank, 2 * rank + 2);
      const config = { ranks: 2, gradientGroups: 4, strategy };
      return [
        await sumOfMicroSteps(own, config, { rank, group, tag: 'a' }),
        await sumOfMicroSteps([rank, 1], { ranks: 2 }, { rank, group, tag: 'b' }),
        await sumOfMicroSteps(
          [rank + 1],
          { ...config, gradientGroups: 2 },
          { rank, group, tag: '' },
        ),
        await sumOverRanks(rank === 0 ? Number.NaN : 1, group, 'c'),
        await sumOverRanks(0.1, group, 'd'),
      ];
    });
    const sum = Math.fround(0.1) + Math.fround(0.1);
    expect(found).toEqual([1, 2].map(() => [inOrder, 3, 3, Number.NaN, sum]));
  });

  it('one rank has them as they are, in float64 but for groups', async () => {
    const [group] = createMemoryGroup(1);
    const at = { rank: 0, group: group!, tag: '' };
    expect(await sumOfMicroSteps([0.1, 0.2], { ranks: 1 }, at)).toBe(0.1 + 0.2);
    const found = await sumOfMicroSteps([0.1, 0.2], { ranks: 1, gradientGroups: 2 }, at);
    expect(found).toBe(Math.fround(0.1) + Math.fround(0.2));
  });
});

it.each([
  ['transformer.h.0.attn.c_proj.weight', 'h.0'],
  ['transformer.wte.weight', 'wte'],
  ['model.layers.11.mlp.up_proj.weight', 'layers.11'],
  ['lm_head.weight', 'lm_head'],
  ['bert.encoder.layer.3.output.dense.bias', 'layer.3'],
  ['base_model.model.model.norm.weight', 'norm'],
  ['0.weight', '0'],
  ['layers.1x.weight', 'layers'],
])('the group of %s is %s', (name, group) => {
  expect(groupOf(name)).toBe(group);
});

it('a parameter of two names is in the group of the first, and others are left out', () => {
  const device = new Device(createReferenceBackend());
  const weight = new Weight(device);
  class Tied extends Module<[], Tensor> {
    readonly bias = this.parameter('bias', device.zeros([1]));

    constructor() {
      super(device);
      this.child('wte', weight);
      this.child('head', weight);
    }

    forward(): Tensor {
      return this.bias;
    }
  }
  const module = new Tied();
  expect(new Set(groupsOf(module))).toEqual(
    new Set([
      [module.bias, 'bias'],
      [weight.weight, 'wte'],
    ]),
  );
  expect([...groupsOf(module, new Set([module.bias]))]).toEqual([[module.bias, 'bias']]);
  device.dispose();
});

it('norms of layers are those of all of their parameters', async () => {
  const device = new Device(createReferenceBackend());
  const module = net(device);
  const parameters = [...module.namedParameters()];
  for (const [i, [, parameter]] of parameters.entries()) {
    parameter.grad = device.full(parameter.shape, i + 1).keep();
  }
  const squares = parameters.map(([name, { size }], i) => [name[0]!, size * (i + 1) ** 2] as const);
  const of = (group: string) =>
    Math.sqrt(squares.reduce((all, [at, square]) => all + (at === group ? square : 0), 0));
  const { norm, groups } = await layerNorms(module);
  expect(norm).toBeCloseTo(Math.hypot(of('0'), of('1')), 3);
  expect([...groups]).toEqual(['0', '1'].map((at) => [at, expect.closeTo(of(at), 3)]));
  device.dispose();
});

describe('a directory off the device', () => {
  it.each([
    ['nothing', {}, {}, true],
    ['what was never trained', { untrained: '', run: '/a', x: '1' }, {}, true],
    ['a trained run', { run: '/a', x: '1' }, { out: '/a' }, false],
    ['a trained run that begins anew', { run: '/a', x: '1' }, { fresh: true }, true],
    ['its own run', { run: '/a', x: '1' }, { out: '/a', resume: 'auto' }, true],
    ['another run', { run: '/b', x: '1' }, { out: '/a', resume: 'auto' }, false],
    ['a run without an --out', { run: '', x: '1' }, { resume: '/b' }, false],
    ['what names no run', { x: '1' }, { out: '/a', resume: 'auto' }, false],
  ])('a directory with %s', async (_, keys, config, isOpened) => {
    const store = createHostStore();
    for (const [key, text] of Object.entries(keys)) {
      await store.write(key, new TextEncoder().encode(text));
    }
    const close = vi.spyOn(store, 'close');
    const options = { directory: 'd', config, openStore: async () => store };
    const open = withRest(options as unknown as RestOptions, async (rest) => {
      expect([...rest.store.keys()].sort()).toEqual(['run', 'untrained']);
      await rest.beginStep();
      expect(rest.store.keys()).toEqual(['run']);
      await store.write('untrained', Uint8Array.of(1));
      await rest.beginStep();
      expect([...rest.store.keys()].sort()).toEqual(['run', 'untrained']);
      return {} as Strategy;
    });
    if (isOpened) {
      await open;
      expect(close).not.toHaveBeenCalled();
    } else {
      await expect(open).rejects.toThrow(UsageError);
      expect(close).toHaveBeenCalledOnce();
    }
  });
});
