// A norm has the same bits wherever the gradients are: in one process, packed or not, and in shards
// over any number of ranks, on the device or in a store. And it is the float64 norm.

import { type FullyShardedDataParallel, setGradientDivideFactors } from '@shardweave/fsdp';
import {
  clipCoefficient,
  clipGradNorm,
  gradNorm,
  Module,
  packParameters,
  scaleGradients,
} from '@shardweave/nn';
import { add, type Backend, type Device, mul, sum, type Tensor } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { afterAll, describe, expect, it } from 'vitest';
import { onRanks, type Rank } from '../../../tooling/test-kit/index.ts';
import { noWebGpu, openWebGpu } from '../../../tooling/test-kit/webgpu-device.ts';
import { wrapIn } from './support/sharding.js';

/** Sizes around blocks of 128 elements, and one of more than two nodes of 256 blocks each. */
const SIZES = [1, 7, 127, 128, 129, 1000, 100_003];

/**
 * The gradient of each parameter. Magnitudes differ from block to block, so that the order of
 * addition shows in the bits.
 */
const GRADIENTS = new Map(
  SIZES.map((size) => {
    const values = Float32Array.from({ length: size }, (_, i) => {
      return Math.sin(i + size) * 10 ** (3 * Math.sin(i / 700));
    });
    return [size, values] as const;
  }),
);

/** The gradients of this model's parameters are GRADIENTS times `factor`. */
class Weights extends Module<[factor: number], Tensor> {
  readonly #own: Tensor[] = [];

  constructor(device: Device, sizes: readonly number[], inner?: (bare: Module) => Module) {
    super(device);
    for (const size of sizes) {
      const weight = device.zeros([size], { requiresGrad: true });
      this.#own.push(this.parameter(`w${size}`, weight));
    }
    if (inner !== undefined) {
      this.child('inner', inner(new Weights(device, sizes.slice(1).reverse())));
    }
  }

  async forward(factor: number): Promise<Tensor> {
    let loss = this.device.zeros([1]);
    for (const weight of this.#own) {
      const values = GRADIENTS.get(weight.size)!.map((value) => value * factor);
      loss = add(loss, sum(mul(weight, this.device.tensor(values, [weight.size]))));
    }
    for (const child of this.children().values()) {
      loss = add(loss, (await child.call(factor)) as Tensor);
    }
    return loss;
  }
}

async function setGradients(model: Module, factor: number): Promise<void> {
  await model.device.scope(async () => (await (model.call(factor) as Promise<Tensor>)).backward());
}

/** Returns the norms of one process: added up on the device, on the host, and packed. */
async function singleNorms(backend?: Backend, normType = 2): Promise<number[]> {
  const [norms] = await onRanks(
    1,
    async ({ device }) => {
      const plain = new Weights(device, SIZES, (bare) => bare);
      await setGradients(plain, 1);
      const packed = new Weights(device, SIZES, (bare) => bare);
      packParameters(packed);
      await setGradients(packed, 1);
      const norms: number[] = [];
      for (const parameters of [plain.parameters(), packed.parameters()]) {
        norms.push(await gradNorm(parameters, { normType }));
        if (normType === 2) {
          norms.push(await (await clipGradNorm(parameters, 0)).norm.item());
        }
      }
      return norms;
    },
    backend === undefined ? {} : { backend },
  );
  return norms!;
}

function sharded({ device, group }: Rank, options: object = {}): FullyShardedDataParallel {
  const wrap = wrapIn({ group }, options);
  return wrap(new Weights(device, SIZES, (bare) => wrap(bare, 'inner')), 'root');
}

/**
 * Gives rank 0 the gradients and the others zeros, so that the reduced gradients are those of one
 * process.
 */
async function shardGradients(model: FullyShardedDataParallel, rank: number): Promise<void> {
  await model.initialize();
  setGradientDivideFactors(model, { predivide: 1, postdivide: 1 });
  await setGradients(model, rank === 0 ? 1 : 0);
}

function exactNorm(normType: number): number {
  const values = [...SIZES, ...SIZES.slice(1)].flatMap((size) => [...GRADIENTS.get(size)!]);
  if (normType === Infinity) {
    return values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  }
  return values.reduce((all, value) => all + Math.abs(value) ** normType, 0) ** (1 / normType);
}

/**
 * The types of norms. A square root hides half of all last bits, and sums of magnitudes hide none.
 */
const TYPES = [2, 1, 0.5];

describe.each([
  {
    kind: 'cpu',
    open: () => createCpuBackend({ threads: 1 }),
    worlds: [1, 2, 3, 4, 5],
    reason: undefined,
  },
  { kind: 'webgpu', open: openWebGpu, worlds: [3], reason: noWebGpu },
])('on $kind', ({ open, worlds, reason }) => {
  let opened: Promise<Backend> | undefined;
  const backendOf = () => {
    opened ??= open();
    return opened;
  };
  afterAll(async () => {
    await (await opened)?.dispose();
  });
  const why = reason === undefined ? '' : ` (${reason})`;

  it.skipIf(reason !== undefined)(`one process has one norm, however it asks${why}`, async () => {
    const norms = await singleNorms(await backendOf());
    expect(new Set(norms).size).toBe(1);
    expect(Math.abs(norms[0]! / exactNorm(2) - 1)).toBeLessThan(3e-7);
  });

  it.skipIf(reason !== undefined).each(worlds)(`%i ranks have its bits${why}`, async (world) => {
    const backend = await backendOf();
    const wanted: number[] = [];
    for (const normType of TYPES) {
      wanted.push((await singleNorms(backend, normType))[0]!);
    }
    const variants = [{}, { flattenParameters: false }, { moveParamsToCpu: true }];
    for (const options of world < 4 ? variants : variants.slice(0, 1)) {
      const norms = await onRanks(
        world,
        async (rank) => {
          const model = sharded(rank, options);
          await shardGradients(model, rank.rank);
          const found: number[] = [];
          for (const normType of TYPES) {
            found.push(await gradNorm(model, { normType }));
          }
          return found;
        },
        { backend },
      );
      expect(norms, JSON.stringify(options)).toEqual(norms.map(() => wanted));
    }
  });
});

it.each([1, 3, 0.5, Infinity])('norms of type %d are in that order too', async (normType) => {
  const [wanted] = await singleNorms(undefined, normType);
  expect(Math.abs(wanted! / exactNorm(normType) - 1)).toBeLessThan(1e-6);
  const norms = await onRanks(3, async (rank) => {
    const model = sharded(rank);
    await shardGradients(model, rank.rank);
    return gradNorm(model, { normType });
  });
  expect(new Set([...norms, wanted]).size).toBe(1);
});

it('a parameter that is not trained, or has no gradient, changes nothing', async () => {
  const wanted: number[] = [];
  const got: number[] = [];
  for (const world of [1, 3]) {
    const norms = await onRanks(world, async (rank) => {
      const { device } = rank;
      const frozen = (model: Module) => {
        for (const [i, parameter] of model.parameters().entries()) {
          parameter.requiresGrad = i % 3 !== 1;
        }
        return model;
      };
      const plain = frozen(new Weights(device, SIZES, (bare) => bare));
      await setGradients(plain, 1);
      const model = frozen(
        sharded(rank, { flattenParameters: world === 1 }),
      ) as FullyShardedDataParallel;
      await shardGradients(model, rank.rank);
      return [await gradNorm(plain.parameters()), await gradNorm(model)] as const;
    });
    wanted.push(...norms.map(([norm]) => norm));
    got.push(...norms.map(([, norm]) => norm));
  }
  expect(new Set([...wanted, ...got]).size).toBe(1);
  expect(wanted[0]).toBeLessThan(exactNorm(2) * 0.999);
});

it('ranks exchange a number for each whole parameter and a few where borders cut, in one call', async () => {
  const perRank = await onRanks(4, async (rank) => {
    const model = sharded(rank);
    await shardGradients(model, rank.rank);
    const before = rank.group.stats();
    await gradNorm(model);
    const { allReduces, bytesSent } = rank.group.stats();
    return { calls: allReduces - before.allReduces, sent: bytesSent - before.bytesSent };
  });
  expect(perRank.map(({ calls }) => calls)).toEqual([1, 1, 1, 1]);
  // There are 13 parameters, and the borders of shards cut two: some ten nodes at each border.
  expect(perRank.at(-1)!.sent / Float32Array.BYTES_PER_ELEMENT).toBe(59);
});

it('clipping scales by the factor of one process, bit for bit', async () => {
  const wanted = clipCoefficient((await singleNorms())[0]!, 0.3);
  const [plain] = await onRanks(1, async ({ device }) => {
    const model = new Weights(device, SIZES, (bare) => bare);
    await setGradients(model, 1);
    return (await clipGradNorm(model, 0.3)).scale.item();
  });
  expect(plain).toBe(wanted);
  const firsts = await onRanks(2, async (rank) => {
    const model = sharded(rank);
    await shardGradients(model, rank.rank);
    await scaleGradients(model, (await clipGradNorm(model, 0.3)).scale);
    return ((await model.units[0]!.flat.grad!.toArray()) as Float32Array)[0]!;
  });
  expect(firsts[0]).toBe(Math.fround(GRADIENTS.get(1)![0]! * wanted));
});
