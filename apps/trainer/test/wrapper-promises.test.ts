// What every wrapper of a model promises: several owners of its parameters, frozen parts, state
// dicts, saves, norms and disposal are as for the plain module. Further programs over the same
// wrappers are in optimizer-programs.test.ts and changed-after-forward.test.ts.

import {
  AdamW,
  BatchNorm1d,
  clipGradNorm,
  type HostTensor,
  hashModel,
  type LazyTensor,
  lazyStateDict,
  loadStateDict,
  type Module,
  type Optimizer,
  ParameterInit,
  Sequential,
  Sgd,
  type StateDict,
  StateDictError,
  stateDict,
} from '@shardweave/nn';
import { cast, type Device, type DType, type Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import {
  backward,
  net,
  parameterOf,
  place,
  replicated,
  STRATEGIES,
  type Strategy,
  textOf,
  train,
  under,
  type Wrapped,
} from './support/each-strategy.js';

const [PLAIN] = STRATEGIES as [Strategy];

const WRAPPERS: readonly Strategy[] = [
  ...STRATEGIES.slice(1),
  {
    name: 'ddp at 2 that keeps its buckets',
    numRanks: 2,
    wrap: replicated({ retainAllreduceBuffers: true }),
  },
];

type Program = (wrapped: Wrapped, bare: Module) => Promise<unknown>;

const withOptimizer =
  (
    make: (params: Tensor[]) => Optimizer<object>,
    before: (wrapped: Wrapped, step: number) => void,
  ) =>
  async (wrapped: Wrapped) => {
    const optimizer = make(wrapped.model.parameters());
    for (let step = 0; step < 6; step++) {
      before(wrapped, step);
      await train(wrapped, optimizer, [step]);
    }
  };

function optimizersOf({ model }: Wrapped): Optimizer<object>[] {
  const [matrices, vectors] = [2, 1].map((rank) =>
    model.parameters().filter(({ shape }) => shape.length === rank),
  );
  return [new AdamW(matrices!, { lr: 0.1 }), new Sgd(vectors!, { lr: 1 })];
}

/** Runs a step, with `between` after its backward. */
async function step(wrapped: Wrapped, index: number, between: () => unknown) {
  await backward(wrapped, index);
  await between();
}

const OWNERS: Readonly<Record<string, Program>> = {
  'one optimizer after another steps, then all zero their gradients': async (wrapped) => {
    const optimizers = optimizersOf(wrapped);
    for (const index of [0, 1, 2]) {
      await backward(wrapped, index);
      for (const optimizer of optimizers) {
        await optimizer.step();
      }
      for (const optimizer of optimizers) {
        optimizer.zeroGrad();
      }
    }
  },
  'each optimizer steps and zeroes its own gradients in turn': async (wrapped) => {
    const optimizers = optimizersOf(wrapped);
    for (const index of [0, 1, 2]) {
      await backward(wrapped, index);
      for (const optimizer of optimizers) {
        await optimizer.step();
        optimizer.zeroGrad();
      }
    }
  },
  "a submodule's zeroGrad leaves the other gradients": async (wrapped, bare) => {
    const optimizer = new Sgd(wrapped.model.parameters(), { lr: 1 });
    for (const index of [0, 1, 2]) {
      await step(wrapped, index, () => bare.children().get('0')!.zeroGrad());
      await optimizer.step();
      optimizer.zeroGrad();
    }
  },
  'parameters are zeroed apart, and the rest adds up': async (wrapped, bare) => {
    const optimizer = new Sgd(wrapped.model.parameters(), { lr: 1 });
    await step(wrapped, 0, () => bare.children().get('0')!.zeroGrad());
    await step(wrapped, 1, () => optimizer.step());
  },
  'a gradient set to undefined is dropped': async (wrapped) => {
    const optimizer = new Sgd(wrapped.model.parameters(), { lr: 1 });
    for (const index of [0, 1, 2]) {
      await step(wrapped, index, () => {
        const weight = parameterOf(wrapped, '0.weight');
        weight.grad?.dispose();
        weight.grad = undefined;
      });
      await optimizer.step();
      optimizer.zeroGrad();
    }
  },
};

const OPTIMIZERS = {
  AdamW: (params: Tensor[]) => new AdamW(params, { lr: 0.05, weightDecay: 0.1 }),
  SGD: (params: Tensor[]) => new Sgd(params, { lr: 0.1, momentum: 0.9 }),
  'plain SGD': (params: Tensor[]) => new Sgd(params, { lr: 0.1 }),
};

/** What a program freezes and thaws before each step. */
const FROZEN: Readonly<Record<string, (wrapped: Wrapped, step: number) => void>> = {
  'a part of a layer that is frozen from the start stays': (wrapped) => {
    parameterOf(wrapped, '0.weight').requiresGrad = false;
  },
  'a whole layer may be frozen and thawed': (wrapped, index) => {
    for (const name of ['0.weight', '0.bias']) {
      parameterOf(wrapped, name).requiresGrad = index % 3 !== 1;
    }
  },
  'a part of a layer may be frozen for good': (wrapped, index) => {
    parameterOf(wrapped, '0.weight').requiresGrad = index < 3;
  },
  'a part of a layer that is thawed later counts its own steps': (wrapped, index) => {
    parameterOf(wrapped, '0.weight').requiresGrad = index >= 3;
  },
};

/** The net with a batch norm behind it, whose running statistics are buffers. */
function normed(device: Device): Sequential<[x: Tensor], Tensor> {
  const layers = [...net(device).children().values(), new BatchNorm1d(device, { numFeatures: 5 })];
  return new Sequential(device, layers as Module<[Tensor], Tensor>[]);
}

/** A state that differs from the first one of `normed` in every float. */
async function changedState(device: Device, dtype: 'f32' | 'f16' | 'bf16' = 'f32') {
  const state: StateDict = new Map();
  const init = new ParameterInit(device, { seed: 8 });
  for (const [name, entry] of await stateDict(normed(device))) {
    const isFloat = entry.dtype === 'f32';
    const drawn = await device.scope(() => cast(init.normal(name, entry.shape), dtype).toBytes());
    state.set(name, isFloat ? { ...entry, dtype, data: drawn } : entry);
  }
  return state;
}

/** The state as lazy tensors, whose reads are noted. */
function lazily(state: StateDict) {
  const reads: string[] = [];
  const lazy = [...state].map(([name, { dtype, shape, data }]) => {
    const read = async () => {
      reads.push(name);
      return data;
    };
    return [name, { dtype, shape, read }] as const;
  });
  return { reads, lazy: new Map<string, LazyTensor>(lazy) };
}

describe.each(WRAPPERS.map((each) => [each.name, each] as const))('%s', (_, strategy) => {
  const asPlain = async (program: Program) => {
    const run = (of: Strategy) =>
      under(of, async (wrapped, bare) => {
        await program(wrapped, bare);
        return textOf(wrapped);
      });
    expect(await run(strategy)).toEqual(await run(PLAIN));
  };

  it.each(Object.keys(OWNERS))('%s', (name) => asPlain(OWNERS[name]!));

  it.each(Object.keys(FROZEN))('%s', async (name) => {
    for (const make of Object.values(OPTIMIZERS)) {
      await asPlain(withOptimizer(make, FROZEN[name]!));
    }
  });

  it('has the norms of the plain module, and its clipped steps', async () => {
    const program = async (wrapped: Wrapped) => {
      const { model } = wrapped;
      const optimizer = new AdamW(model.parameters(), { lr: 0.1 });
      const norms: number[] = [];
      for (const index of [0, 1, 2]) {
        await backward(wrapped, index);
        await model.device.scope(async () => {
          const { norm, scale } = await clipGradNorm(model, 0.01);
          norms.push(await norm.item(), await wrapped.norm());
          await optimizer.step({ gradScale: scale });
        });
        optimizer.zeroGrad();
      }
      expect(Math.min(...norms)).toBeGreaterThan(0.01);
      return { norms, text: await textOf(wrapped) };
    };
    expect(await under(strategy, program)).toEqual(await under(PLAIN, program));
  });

  it('has the hash of the plain module and its optimizer', async () => {
    const program = async (wrapped: Wrapped) => {
      const { model } = wrapped;
      const optimizer = new AdamW(model.parameters(), { lr: 0.1 });
      const first = await hashModel(model, { optimizer });
      await train(wrapped, optimizer, [0, 1]);
      return [first, await hashModel(model, { optimizer })];
    };
    const [first, trained] = await under(strategy, program, normed);
    expect([first, trained]).toEqual(await under(PLAIN, program, normed));
    expect(trained).not.toBe(first);
  });
});

describe.each([PLAIN, ...WRAPPERS].map((each) => [each.name, each] as const))(
  '%s',
  (_, strategy) => {
    it('has the state of the bare module in its order, and loads another, whole or lazy', async () => {
      await under(
        strategy,
        async ({ model }) => {
          const first = await stateDict(model);
          const { device } = model;
          expect([...first.keys()]).toEqual([...(await stateDict(normed(device))).keys()]);
          const state = await changedState(device);
          await loadStateDict(model, state);
          expect(await stateDict(model)).toEqual(state);
          const { lazy, reads } = lazily(first);
          await loadStateDict(model, lazy);
          expect(await stateDict(model)).toEqual(first);
          expect(new Set(reads).size).toBe(reads.length); // Each is read once, or by another rank.
          expect(reads.length).toBeGreaterThan(0);
        },
        normed,
      );
    });

    it.each(['f16', 'bf16'] as const)('parameters and buffers in %s become f32', async (dtype) => {
      await under(
        strategy,
        async ({ model }) => {
          const { device } = model;
          const narrow = await changedState(device, dtype);
          await loadStateDict(model, narrow);
          for (const [name, { dtype: own, shape, data }] of await stateDict(model)) {
            const given = narrow.get(name)!;
            if (own === 'f32') {
              const values = new Float32Array(data.slice().buffer);
              const again = device.scope(() => cast(device.tensor(values, shape), dtype).toBytes());
              expect(await again, name).toEqual(given.data);
            }
          }
        },
        normed,
      );
    });

    it('lists all that does not fit, reads and loads none of it, or what there is where told', async () => {
      await under(
        strategy,
        async ({ model }) => {
          const state = await stateDict(model);
          const { lazy, reads } = lazily(await changedState(model.device));
          const wrong = new Map<string, HostTensor | LazyTensor>(lazy);
          wrong.set('0.bias', { ...lazy.get('0.bias')!, shape: [8] });
          wrong.delete('1.weight');
          wrong.set('x', lazy.get('0.weight')!);
          const loading = loadStateDict(model, wrong);
          await expect(loading).rejects.toMatchObject({
            code: 'STATE_DICT',
            missing: ['1.weight'],
            unexpected: ['x'],
            mismatched: ['0.bias'],
          });
          await expect(loading).rejects.toThrow(
            /Missing: 1\.weight.*Unexpected: x.*Misshapen: '0\.bias': expected f32 \[7\], got f32 \[8\]/,
          );
          for (const [name, dtype] of [
            ['0.bias', 'i32'],
            ['2.num_batches_tracked', 'f32'],
          ] as const satisfies readonly (readonly [string, DType])[]) {
            const swapped = new Map([...state, [name, { ...state.get(name)!, dtype }]] as const);
            await expect(loadStateDict(model, swapped)).rejects.toThrow(StateDictError);
          }
          expect(reads).toEqual([]);
          expect(await stateDict(model)).toEqual(state);
          const few = new Map([['0.bias', lazy.get('0.bias')!]]);
          await expect(loadStateDict(model, few)).rejects.toThrow(StateDictError);
          await loadStateDict(model, few, { strict: false });
          expect((await stateDict(model)).get('0.bias')!.data).toEqual(
            await few.get('0.bias')!.read(),
          );
          const broken = (read: LazyTensor['read']) =>
            loadStateDict(model, new Map([...lazy, ['0.bias', { ...lazy.get('0.bias')!, read }]]));
          await expect(broken(async () => new Uint8Array(8))).rejects.toThrow(/'0\.bias'.*got 8/);
          const failing = broken(() => Promise.reject(new Error('EIO')));
          await expect(failing).rejects.toThrow(/EIO/);
        },
        normed,
      );
    });

    it('gives lazy tensors, whole and in parts, as they are when they are read or were gathered', async () => {
      await under(
        strategy,
        async ({ model }) => {
          const [whole, lazy] = [await stateDict(model), await lazyStateDict(model)];
          expect([...lazy.keys()]).toEqual([...whole.keys()]);
          for (const [name, { dtype, shape, read }] of lazy) {
            expect({ dtype, shape, data: await read() }).toEqual(whole.get(name));
          }
          const part = await lazy.get('1.weight')!.readPart?.({ first: 3, count: 2 });
          const isGathered = strategy.name.startsWith('fsdp at 2'); // whose ranks read whole tensors
          const cut = whole.get('1.weight')!.data.subarray(12, 20);
          expect(part).toEqual(isGathered ? undefined : cut);
          const other = await changedState(model.device);
          await loadStateDict(model, other);
          const then = isGathered ? whole : other;
          expect(await lazy.get('1.weight')!.read()).toEqual(then.get('1.weight')!.data);
        },
        normed,
      );
    });

    it('refuses an extra of a save that is not JSON before anything is written', async () => {
      const store = place();
      await under(strategy, async ({ save }) => {
        const saving = save(store, { extra: { seen: new Map() } });
        await expect(saving).rejects.toThrow(/^save: expected JSON at extra\.seen, .* Map/);
      });
      expect(await store.files()).toEqual([]);
    });
  },
);
