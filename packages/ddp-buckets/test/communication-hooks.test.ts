// Buckets are added up over ranks exactly, rounded, or as low-rank factors.

import { createMemoryGroup } from '@shardweave/collectives';
import {
  allReduceHook,
  type CommunicationHook,
  compressionHook,
  type HookBucket,
  powerSgdHook,
  type StatefulHook,
} from '@shardweave/ddp-buckets';
import {
  clipGradNorm,
  GradScaler,
  Linear,
  type Module,
  resetParameters,
  Sequential,
  Sgd,
} from '@shardweave/nn';
import { Device, mean, square, sum, type Tensor } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';
import { errorsOnRanks } from '../../../tooling/test-kit/index.ts';
import {
  Bag,
  forwardBackward,
  makeOptimizer,
  onRanks,
  pull,
  pulled,
  type Rank,
  SMALL_BUCKETS,
  tinyGpt2,
  wrap,
} from './support/ranks.js';

const DIM = 16;

/** Returns two layers whose gradients differ widely in magnitude. */
function layers({ device }: Pick<Rank, 'device'>): Sequential {
  return new Sequential(
    device,
    [0, 1].map(() => new Linear(device, { inFeatures: DIM, outFeatures: DIM })),
  );
}

async function backward(model: ReturnType<typeof wrap>, rank: Rank, step: number): Promise<void> {
  const { device } = rank;
  await device.scope(async () => {
    const values = Float32Array.from({ length: 4 * DIM }, (_, i) =>
      Math.sin(i + 7 * rank.rank + step),
    );
    const output: Tensor = await model.call(device.tensor(values, [4, DIM]));
    await mean(square(output)).backward();
  });
}

/** Returns all gradients in one array. */
async function flatGradients(model: ReturnType<typeof wrap>): Promise<number[]> {
  const all = await Promise.all(model.parameters().map(({ grad }) => grad!.toArray()));
  return all.flatMap((values) => [...values]);
}

/**
 * Returns the bytes that rank 0 sends and its gradients, step by step. All ranks have the same
 * gradients.
 */
async function reduced(
  makeHook: () => CommunicationHook | undefined,
  options: { readonly steps?: number; readonly worldSize?: number } = {},
) {
  const { steps = 1, worldSize = 2 } = options;
  const perRank = await onRanks(worldSize, async (rank) => {
    const hook = makeHook();
    const model = wrap(layers(rank), rank, hook === undefined ? {} : { communicationHook: hook });
    // The errors of gradients that no step uses are forgotten.
    const optimizer = new Sgd(model.parameters(), { lr: 0 });
    const endStep = async () => {
      await optimizer.step();
      model.zeroGrad();
    };
    await backward(model, rank, 0); // This step learns the buckets.
    await endStep();
    const before = rank.group.stats().bytesSent;
    const gradients: number[][] = [];
    for (let step = 0; step < steps; step++) {
      await backward(model, rank, 1); // The gradient is the same in every step.
      gradients.push(await flatGradients(model));
      await endStep();
    }
    return { gradients, bytesSent: (rank.group.stats().bytesSent - before) / steps };
  });
  for (const { gradients } of perRank) {
    expect(gradients).toEqual(perRank[0]!.gradients);
  }
  return perRank[0]!;
}

const distance = (a: readonly number[], b: readonly number[]) =>
  Math.sqrt(a.reduce((total, x, i) => total + (x - b[i]!) ** 2, 0));
const norm = (a: readonly number[]) => distance(a, Array(a.length).fill(0));
const total = (list: readonly number[][]) =>
  list[0]!.map((_, i) => list.reduce((s, one) => s + one[i]!, 0));

describe('the interface', () => {
  it('hands a hook each bucket in order, with its members and a lasting key', async () => {
    await onRanks(2, async (rank) => {
      const seen: HookBucket[] = [];
      const communicationHook: CommunicationHook = {
        name: 'noting',
        isSerial: false,
        reduce: (bucket) => {
          seen.push(bucket);
          return allReduceHook.reduce(bucket);
        },
      };
      const spec = { a: 3, b: [130, 'f16'], c: 5 } as const;
      const model = wrap(new Bag(rank.device, spec), rank, { messageSize: 8, communicationHook });
      for (let step = 0; step < 3; step++) {
        model.zeroGrad();
        await pull(model, 1 + rank.rank);
        expect(await pulled(model)).toEqual({ a: 1.5, b: 3, c: 4.5 });
      }
      const last = seen.slice(-2);
      expect(last.map(({ index, isLast, dtype, tag }) => [index, isLast, dtype, tag])).toEqual([
        [0, false, 'f16', 'bucket 0'],
        [1, true, 'f32', 'bucket 1'],
      ]);
      expect(last[1]!.members).toEqual([
        { path: 'c', shape: [5], offset: 0, size: 5 },
        { path: 'a', shape: [3], offset: 128, size: 3 },
      ]);
      expect(last[1]!.bytes.byteLength).toBe(256 * 4);
      expect(last[1]!.layout).toBe(seen[3]!.layout);
      expect(last[1]!.group).toBe(rank.group);
    });
  });

  it('calls a serial hook when the bucket before has ended, on every rank', async () => {
    await onRanks(3, async (rank) => {
      let numRunning = 0;
      const orders: string[] = [];
      const communicationHook: CommunicationHook = {
        name: 'twice',
        isSerial: true,
        reduce: async (bucket) => {
          numRunning += 1;
          expect(numRunning).toBe(1);
          orders.push(bucket.tag);
          await allReduceHook.reduce(bucket);
          for (let i = 0; i < rank.rank; i++) {
            await new Promise((resolve) => setTimeout(resolve, 1));
          }
          await rank.group.barrier();
          numRunning -= 1;
        },
      };
      const spec = { a: 3, b: 3, c: 3, d: 3 };
      const model = wrap(new Bag(rank.device, spec), rank, { messageSize: 1, communicationHook });
      await pull(model, rank.rank);
      expect(await pulled(model)).toEqual({ a: 1, b: 2, c: 3, d: 4 });
      expect(orders).toEqual(['bucket 0', 'bucket 1', 'bucket 2', 'bucket 3']);
    });
  });

  it('a hook that fails on all ranks fails their backwards with its error, and ends nothing', async () => {
    await onRanks(2, async (rank) => {
      let hasWire = false;
      const communicationHook: CommunicationHook = {
        name: 'failing',
        isSerial: false,
        reduce: (bucket) =>
          hasWire ? allReduceHook.reduce(bucket) : Promise.reject(new Error('no wire')),
      };
      const model = wrap(new Bag(rank.device, { a: 3 }), rank, { communicationHook });
      await expect(pull(model, 1)).rejects.toThrow('no wire');
      expect(rank.device.memory().live.gradient).toBe(0);
      hasWire = true;
      await pull(model, 1);
      expect(await pulled(model)).toEqual({ a: 1 });
    });
  });
});

it('the default hook sends exact values over a group that compresses by default', async () => {
  const backend = createReferenceBackend();
  const groups = createMemoryGroup(2, { wire: 'bf16' });
  await Promise.all(
    groups.map(async (group, rank) => {
      const model = wrap(new Bag(new Device(backend), { a: 3 }), { group });
      await pull(model, 1.0009765625 + rank); // The factor needs eleven bits of mantissa.
      expect(await pulled(model)).toEqual({ a: 1.5009765625 });
      await group.close();
    }),
  );
  await backend.dispose();
});

describe('compressionHook', () => {
  it.each([
    ['f16', 2, 1e-3],
    ['bf16', 2, 1e-2],
    ['int8', 3.5, 2e-2], // The step before adds its error.
  ] as const)(
    '%s sends fewer bytes and is near the exact mean',
    async (wire, factor, tolerance) => {
      const exact = await reduced(() => undefined);
      const rounded = await reduced(() => compressionHook({ wire }));
      expect(rounded.bytesSent * factor).toBeLessThanOrEqual(exact.bytesSent);
      const [a, b] = [rounded.gradients[0]!, exact.gradients[0]!];
      expect(distance(a, b) / norm(b)).toBeLessThan(tolerance);
      expect(a).not.toEqual(b);
    },
  );

  it('int8 adds what a step loses to the next one; without feedback the loss adds up', async () => {
    const steps = 20;
    const exact = total((await reduced(() => undefined, { steps })).gradients);
    const lossOf = async (errorFeedback: boolean) => {
      const hook = () => compressionHook({ wire: 'int8', errorFeedback });
      return distance(total((await reduced(hook, { steps })).gradients), exact) / norm(exact);
    };
    const [fed, plain] = [await lossOf(true), await lossOf(false)];
    expect(fed).toBeLessThan(plain / 5);
  });

  it('feeds errors back by default with int8 alone', async () => {
    for (const wire of ['int8', 'bf16'] as const) {
      const gradientsOf = (errorFeedback?: boolean) => {
        const given = errorFeedback === undefined ? {} : { errorFeedback };
        return reduced(() => compressionHook({ wire, ...given }), { steps: 3 });
      };
      const byDefault = await gradientsOf();
      expect(byDefault).toEqual(await gradientsOf(wire === 'int8'));
      expect(byDefault).not.toEqual(await gradientsOf(wire !== 'int8'));
    }
  });

  it('leaves 16-bit buckets as they are, also where buckets are made anew', async () => {
    await onRanks(2, async (rank) => {
      const bag = new Bag(rank.device, { a: [3, 'f16'], b: 300, c: 300 });
      const model = wrap(bag, rank, { communicationHook: compressionHook({ wire: 'int8' }) });
      await pull(model, 1 + rank.rank);
      bag.get('b').requiresGrad = false;
      model.zeroGrad();
      await pull(model, 1 + rank.rank);
      const found = await pulled(model);
      expect(found).toMatchObject({ a: 1.5, b: undefined });
      expect(found.c).toBeCloseTo(4.5, 1);
    });
  });
});

describe('powerSgdHook', () => {
  it('is exact for matrices of its rank, and for vectors', async () => {
    await onRanks(3, async (rank) => {
      const { device } = rank;
      const linear = new Linear(device, { inFeatures: DIM, outFeatures: DIM });
      const model = wrap(linear, rank, { communicationHook: powerSgdHook() });
      // Each rank's gradient of the weight is the same vector times ones, so their mean has rank 1.
      const values = (r: number) =>
        Float32Array.from({ length: DIM }, (_, i) => (1 + r) * Math.cos(i));
      await device.scope(async () => {
        await sum(await model.call(device.tensor(values(rank.rank), [1, DIM]))).backward();
      });
      const gradient = await linear.weight.grad!.toArray();
      gradient.forEach((value, i) => {
        expect(value).toBeCloseTo(2 * Math.cos(i % DIM), 5);
      });
      expect([...(await linear.bias!.grad!.toArray())]).toEqual(Array(DIM).fill(1));
    });
  });

  it('sends two factors for each matrix', async () => {
    const { bytesSent } = await reduced(() => powerSgdHook({ matrixApproximationRank: 2 }));
    const factors = 2 * (DIM + DIM) * 2; // This counts matrices, their two sides, and the rank.
    const vectors = 2 * DIM;
    expect(bytesSent).toBe((factors + vectors) * 4);
  });

  it('adds what a step loses to the next one', async () => {
    const steps = 60;
    const exact = total((await reduced(() => undefined, { steps })).gradients);
    const lossOf = async (errorFeedback: boolean) => {
      const hook = () => powerSgdHook({ errorFeedback });
      return distance(total((await reduced(hook, { steps })).gradients), exact) / norm(exact);
    };
    const [fed, plain] = [await lossOf(true), await lossOf(false)];
    expect(plain).toBeGreaterThan(0.05);
    expect(fed).toBeLessThan(plain / 3);
  });

  it('is exact for startStep steps, and where it would save too little', async () => {
    const exact = await reduced(() => undefined, { steps: 2 });
    const late = await reduced(() => powerSgdHook({ startStep: 2 }), { steps: 2 });
    expect(late.gradients[0]).toEqual(exact.gradients[0]);
    expect(late.gradients[1]).not.toEqual(exact.gradients[1]);
    const never = await reduced(() => powerSgdHook({ minCompressionRate: 100 }), { steps: 2 });
    expect(never.gradients).toEqual(exact.gradients);
  });

  it('counts startStep from the newest layer of a bucket', async () => {
    const gradientsOf = async (hook: () => CommunicationHook) => {
      const [gradients] = await onRanks(2, async (rank) => {
        const module = layers(rank);
        const model = wrap(module, rank, { communicationHook: hook() });
        const [, last] = module.children().values();
        const found: number[][] = [];
        for (let step = 0; step < 6; step++) {
          for (const parameter of last!.parameters()) {
            parameter.requiresGrad = step > 2;
          }
          model.zeroGrad();
          await backward(model, rank, step);
          found.push(step > 2 ? await flatGradients(model) : []);
        }
        return found.slice(3);
      });
      return gradients!;
    };
    const exact = await gradientsOf(() => allReduceHook);
    const late = await gradientsOf(() => powerSgdHook({ startStep: 2 }));
    expect(late.slice(0, 2)).toEqual(exact.slice(0, 2));
    expect(late[2]).not.toEqual(exact[2]);
  });

  it('a hook without warm starts draws new factors each step, equal on all ranks', async () => {
    const changeOf = async (warmStart: boolean) => {
      const hook = () => powerSgdHook({ warmStart, errorFeedback: false });
      const { gradients } = await reduced(hook, { steps: 20, worldSize: 3 });
      return distance(gradients[19]!, gradients[18]!);
    };
    // Factors that are kept from step to step settle on the best ones for a constant gradient.
    expect(await changeOf(true)).toBeLessThan((await changeOf(false)) / 10);
  });
});

describe('a step that overflows', () => {
  it.each([
    ['f16', () => compressionHook({ wire: 'f16', errorFeedback: true })],
    ['bf16', () => compressionHook({ wire: 'bf16', errorFeedback: true })],
    ['int8', () => compressionHook({ wire: 'int8' })],
    ['PowerSGD', () => powerSgdHook()],
  ] as const)('is told on all ranks, and left behind: %s', async (_, makeHook) => {
    for (const bad of [Number.NaN, Number.POSITIVE_INFINITY]) {
      await onRanks(2, async (rank) => {
        const hook = makeHook();
        let isBad = false;
        const communicationHook: CommunicationHook = {
          ...hook,
          reduce: (bucket) => {
            // One rank has such a gradient, as if its loss was scaled too far.
            if (isBad && rank.rank === 1) {
              new Float32Array(bucket.bytes.buffer).fill(bad);
            }
            return hook.reduce(bucket);
          },
        };
        const model = wrap(layers(rank), rank, { communicationHook });
        const finite: boolean[] = [];
        const optimizer = new Sgd(model.parameters(), { lr: 0.1 });
        for (let step = 0; step < 8; step++) {
          isBad = step === 2 || step === 5;
          await backward(model, rank, step);
          finite.push((await flatGradients(model)).every(Number.isFinite));
          if (step === 5) {
            // This program steps all the same, with zeros: the hook is not told to forget.
            for (const { grad } of model.parameters()) {
              rank.device.backend.run('fill', { out: grad!.view(), value: 0 });
            }
            await optimizer.step();
          }
          model.zeroGrad();
        }
        expect(finite).toEqual([true, true, false, true, true, false, true, true]);
      });
    }
  });
});

const STATEFUL = [
  ['bf16', () => compressionHook({ wire: 'bf16', errorFeedback: true })],
  ['int8', () => compressionHook({ wire: 'int8' })],
  ['PowerSGD', () => powerSgdHook()],
  ['PowerSGD without warm starts', () => powerSgdHook({ warmStart: false })],
  ['PowerSGD that starts late', () => powerSgdHook({ startStep: 4 })],
] as const;

/**
 * Trains from step `first` up to `last`, in which gradients differ by rank and step. Each parameter
 * has a bucket of its own: int8 rounds in blocks of its bucket, and the first buckets of a run are
 * not those that it learns.
 */
async function train(
  rank: Rank,
  hook: CommunicationHook,
  steps: { readonly first: number; readonly last: number; readonly from?: Sequential },
): Promise<Sequential> {
  const module = layers(rank);
  resetParameters(module, { seed: 3 });
  for (const [i, tensor] of (steps.from?.parameters() ?? []).entries()) {
    module.parameters()[i]!.storage.write(await tensor.toBytes());
  }
  const model = wrap(module, rank, {
    communicationHook: hook,
    allreduceTriggerParams: module.parameters(),
  });
  const optimizer = new Sgd(model.parameters(), { lr: 0.5 });
  for (let step = steps.first; step < steps.last; step++) {
    await backward(model, rank, step);
    await optimizer.step();
    optimizer.zeroGrad();
  }
  return module;
}

async function valuesOf(module: Module): Promise<number[]> {
  const all = await Promise.all(module.parameters().map((tensor) => tensor.toArray()));
  return all.flatMap((values) => [...values]);
}

describe.each(STATEFUL)('a resumed run: %s', (_, makeHook) => {
  it('goes on with the bits of one that never stopped, and does not without its state', async () => {
    await onRanks(2, async (rank) => {
      const whole = await valuesOf(await train(rank, makeHook(), { first: 0, last: 6 }));
      const resumed = async (isLoaded: boolean) => {
        const before = makeHook();
        const from = await train(rank, before, { first: 0, last: 3 });
        const hook = makeHook();
        if (isLoaded) {
          hook.loadStateDict(before.stateDict());
        }
        return valuesOf(await train(rank, hook, { first: 3, last: 6, from }));
      };
      expect(await resumed(true)).toEqual(whole);
      expect(await resumed(false)).not.toEqual(whole);
    });
  });

  it('loads into a hook that is in use, and what it gave stays as it was', async () => {
    await onRanks(2, async (rank) => {
      const hook = makeHook();
      await train(rank, hook, { first: 0, last: 2 });
      const state = hook.stateDict();
      const copy = new Map([...state].map(([name, values]) => [name, values.slice()]));
      hook.loadStateDict(new Map());
      expect(hook.stateDict()).toEqual(new Map());
      hook.loadStateDict(state);
      expect(hook.stateDict()).toEqual(copy);
    });
  });
});

describe.each(STATEFUL)('a state that is loaded: %s', (_, makeHook) => {
  it('takes the place of what the hook has met since', async () => {
    await onRanks(2, async (rank) => {
      const hook = makeHook();
      const model = wrap(layers(rank), rank, { communicationHook: hook });
      const optimizer = new Sgd(model.parameters(), { lr: 0 });
      const gradientsOf = async (step: number) => {
        await backward(model, rank, step);
        const gradients = await flatGradients(model);
        await optimizer.step();
        optimizer.zeroGrad();
        return gradients;
      };
      for (let step = 0; step < 6; step++) {
        await gradientsOf(step);
      }
      const state = hook.stateDict();
      const expected = await gradientsOf(6);
      expect(await gradientsOf(6)).not.toEqual(expected);
      hook.loadStateDict(state);
      expect(await gradientsOf(6)).toEqual(expected);
    });
  });
});

describe('the state of a hook', () => {
  it('what is no state of a hook is refused', () => {
    for (const [, makeHook] of STATEFUL) {
      const hook = makeHook();
      for (const wrong of [
        new Map([['0.weight', new Float32Array(4)]]),
        new Map([['0.weight error', [1, 2]]]) as unknown as Map<string, Float32Array>,
      ]) {
        expect(() => hook.loadStateDict(wrong)).toThrow(
          expect.objectContaining({ code: 'DDP_CONFIG' }),
        );
      }
    }
  });

  it('a state of another shape is refused where its bucket is sent', async () => {
    await onRanks(2, async (rank) => {
      for (const [, makeHook] of STATEFUL) {
        const hook = makeHook();
        hook.loadStateDict(new Map([['0.weight error', new Float32Array(4)]]));
        await expect(train(rank, hook, { first: 0, last: 1 })).rejects.toMatchObject({
          code: 'DDP_STATE',
          message: expect.stringContaining("expected 256 numbers as '0.weight error', got 4"),
        });
      }
    });
  });

  it('a state that one rank alone has loaded is no silent difference of factors', async () => {
    const errors = await errorsOnRanks(2, async (rank) => {
      const before = powerSgdHook();
      await train(rank, before, { first: 0, last: 3 });
      const hook = powerSgdHook();
      if (rank.rank === 1) {
        hook.loadStateDict(before.stateDict());
      }
      await train(rank, hook, { first: 3, last: 4 });
    });
    for (const error of errors) {
      expect(error).toMatchObject({ code: 'MISMATCH' });
      expect((error as Error).message).toContain('loaded factors');
    }
  });

  it('is that of one wrapper: another one is refused', async () => {
    await onRanks(2, async (rank) => {
      for (const [, makeHook] of STATEFUL) {
        const hook = makeHook();
        await train(rank, hook, { first: 0, last: 1 });
        await expect(train(rank, hook, { first: 0, last: 1 })).rejects.toMatchObject({
          code: 'DDP_STATE',
          message: expect.stringContaining('Make a hook for each wrapper'),
        });
      }
    });
  });
});

it('PowerSGD goes on after a gradient of zeros, such as that of the first half of an adapter', async () => {
  await onRanks(2, async (rank) => {
    const { device } = rank;
    const linear = new Linear(device, { inFeatures: DIM, outFeatures: DIM, bias: false });
    const model = wrap(linear, rank, { communicationHook: powerSgdHook() });
    const optimizer = new Sgd(model.parameters(), { lr: 0 });
    for (const value of [0, 0, 1]) {
      optimizer.zeroGrad();
      await device.scope(async () => {
        await sum(await model.call(device.full([1, DIM], value))).backward();
      });
      await optimizer.step();
    }
    for (const value of await linear.weight.grad!.toArray()) {
      expect(value).toBeCloseTo(1, 5);
    }
  });
});

describe.each(STATEFUL)('gradients that no step has used: %s', (_, makeHook) => {
  /** Returns the errors of all parameters that the hook remembers. */
  const errorsOf = (hook: StatefulHook) =>
    [...hook.stateDict()].flatMap(([name, values]) => (name.endsWith(' error') ? [...values] : []));

  it('leave no error where a loss scaler has skipped their step', async () => {
    /** Trains with a huge finite gradient at step 3 of one rank, whose step is skipped. */
    const weightsOf = async (isHuge: boolean) => {
      const perRank = await onRanks(2, async (rank) => {
        const hook = makeHook();
        let isNext = false;
        const communicationHook: CommunicationHook = {
          ...hook,
          reduce: (bucket) => {
            const { buffer, byteOffset, byteLength } = bucket.bytes;
            if (isNext && rank.rank === 1) {
              new Float32Array(buffer, byteOffset, byteLength / 4).fill(1e30);
            }
            return hook.reduce(bucket);
          },
        };
        const module = layers(rank);
        const model = wrap(module, rank, { communicationHook });
        const optimizer = new Sgd(model.parameters(), { lr: 0.5 });
        const scaler = new GradScaler(model, { initScale: 1 });
        for (let step = 0; step < 12; step++) {
          isNext = isHuge && step === 6;
          await backward(model, rank, step);
          const found = await rank.device.scope(async () => {
            const { norm } = await clipGradNorm(model, 1e9);
            return !Number.isFinite(await norm.item());
          });
          expect(found).toBe(isNext);
          if (!found && step !== 6) {
            await optimizer.step();
          }
          optimizer.zeroGrad();
          scaler.update(found);
        }
        return valuesOf(module);
      });
      expect(perRank[0]).toEqual(perRank[1]);
      return perRank[0]!;
    };
    const [calm, huge] = [await weightsOf(false), await weightsOf(true)];
    expect(distance(huge, calm) / norm(calm)).toBeLessThan(1e-2);
  });

  it('are forgotten by parameter, and those of several backwards before a step are not', async () => {
    await onRanks(2, async (rank) => {
      const hook = makeHook();
      const module = layers(rank);
      const model = wrap(module, rank, { communicationHook: hook });
      const optimizer = new Sgd(model.parameters(), { lr: 0.5 });
      for (let step = 0; step < 6; step++) {
        await backward(model, rank, step);
      }
      expect(errorsOf(hook).some((value) => value !== 0)).toBe(true);
      await optimizer.step();
      optimizer.zeroGrad();
      expect(errorsOf(hook).some((value) => value !== 0)).toBe(true);
      await backward(model, rank, 6);
      module.children().get('0')!.zeroGrad();
      const left = [...hook.stateDict()].filter(([name]) => name.endsWith(' error'));
      for (const [name, values] of left) {
        expect(values.every((value) => value === 0) || name.startsWith('1.')).toBe(true);
      }
      expect(errorsOf(hook).some((value) => value !== 0)).toBe(true);
      model.zeroGrad();
      expect(errorsOf(hook).every((value) => value === 0)).toBe(true);
    });
  });

  it('are forgotten where their backward has failed on all ranks', async () => {
    await onRanks(2, async (rank) => {
      const hook = makeHook();
      let isFailing = false;
      const communicationHook: CommunicationHook = {
        ...hook,
        reduce: async (bucket) => {
          await hook.reduce(bucket);
          if (isFailing) {
            throw new Error('broken');
          }
        },
      };
      const model = wrap(layers(rank), rank, { communicationHook });
      for (let step = 0; step < 6; step++) {
        await backward(model, rank, step);
      }
      isFailing = true;
      await expect(backward(model, rank, 6)).rejects.toThrow('broken');
      expect(errorsOf(hook).every((value) => value === 0)).toBe(true);
    });
  });
});

/** Returns the loss of the twentieth step. */
async function trainedLoss(makeHook: () => CommunicationHook): Promise<number> {
  const backend = await createCpuBackend({ threads: 1 });
  const body = async (rank: Rank) => {
    const options = { ...SMALL_BUCKETS, communicationHook: makeHook() };
    const model = wrap(tinyGpt2(rank.device), rank, options);
    const optimizer = makeOptimizer(model, 'adamw');
    let loss = 0;
    for (let step = 0; step < 20; step++) {
      const rows = { batch: 4, first: 2 * rank.rank, count: 2 };
      loss = await forwardBackward(rank.device, model, step, rows);
      await optimizer.step();
      optimizer.zeroGrad();
    }
    return loss;
  };
  const [loss] = await onRanks(2, body, { backend });
  await backend.dispose();
  return loss!;
}

it('bf16, int8 and PowerSGD train a GPT nearly as exact gradients do', async () => {
  const exact = await trainedLoss(() => allReduceHook);
  expect(exact).toBeLessThan(2.9); // The loss began at 3.6.
  for (const makeHook of [
    () => compressionHook({ wire: 'bf16' }),
    () => compressionHook({ wire: 'int8' }),
    // A few exact steps come first, as with PyTorch's hook. Factors that start at random together
    // with the training cost up to a third of a unit of loss over six initial models, and a
    // twentieth after five exact steps.
    () => powerSgdHook({ matrixApproximationRank: 4, startStep: 5 }),
  ]) {
    expect(await trainedLoss(makeHook), makeHook().name).toBeLessThan(exact + 0.1);
  }
});
