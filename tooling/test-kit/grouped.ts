// Trains the tiny GPT-2 in groups of rows, as a wrapper deals them out, and tells by one hash what
// all weights are afterwards.

import { createHash } from 'node:crypto';
import { AdamW, clipGradNorm, Gpt2, type Module, Sgd, stateDict } from '@shardweave/nn';
import { type Device, square, sum, type Tensor } from '@shardweave/tensor-core';
import { optimizerGroups, TINY, tokens } from './gpt2.ts';
import { inputs, layer, moduleOf } from './models.ts';
import { onRanks, type Rank } from './ranks.ts';
import { rejectionOf } from './refusals.ts';

/** A wrapper that was given gradientGroups. */
export interface Grouped extends Module {
  readonly groupCalls: readonly (number | undefined)[];
}

export interface GroupedTraining {
  readonly ranks: number;
  /** Wraps the model, in 16 bits where it is to compute in these. */
  readonly wrap: (model: Gpt2, rank: Rank) => Grouped;
  readonly steps?: number;
  /** The rows of a step, which groups need not share evenly. Default 11 for 8 groups. */
  readonly batch?: number;
  /** The factor of the losses, which the step takes out again. */
  readonly lossScale?: number;
}

const NUM_GROUPS = 8;

function tinyGpt2(device: Device): Gpt2 {
  return new Gpt2(device, { ...TINY, embd_pdrop: 0.1, resid_pdrop: 0.1 }, { seed: 3 });
}

/** Trains, and returns the hash of the state on each rank. */
export function trainInGroups(training: GroupedTraining): Promise<string[]> {
  return onRanks(training.ranks, async (rank) => {
    const gpt2 = tinyGpt2(rank.device);
    return trainGrouped(training.wrap(gpt2, rank), rank.device, training);
  });
}

/**
 * The hash of a bare model in f32 that goes the same way: the gradient of each group by itself is
 * read, and they are added level by level, first neighbors, then neighbors of those.
 */
export async function trainGroupsAlone(): Promise<string> {
  const [hash] = await onRanks(1, async ({ device }) => {
    const gpt2 = tinyGpt2(device);
    const parameters = gpt2.parameters();
    return train(gpt2, device, {}, async (step) => {
      const all: Float32Array[][] = parameters.map(() => []);
      for (let group = 0; group < NUM_GROUPS; group++) {
        await groupCall(gpt2, device, { step, group });
        for (const [i, { grad }] of parameters.entries()) {
          all[i]!.push(Float32Array.from((await grad!.toArray()) as Float32Array));
        }
        gpt2.zeroGrad();
      }
      for (const [i, parameter] of parameters.entries()) {
        parameter.grad = device.tensor(byLevels(all[i]!), parameter.shape).keep();
      }
    });
  });
  return hash!;
}

function byLevels(parts: readonly Float32Array[]): Float32Array {
  const above = parts.flatMap((left, i) => {
    const right = parts[i + 1];
    const sum = right === undefined ? left : left.map((x, e) => Math.fround(x + right[e]!));
    return i % 2 === 0 ? [sum] : [];
  });
  return above.length === 1 ? above[0]! : byLevels(above);
}

/** Trains one rank's model, and returns the hash of its state. */
export function trainGrouped(
  model: Grouped,
  device: Device,
  options: Pick<GroupedTraining, 'steps' | 'batch' | 'lossScale'>,
): Promise<string> {
  return train(model, device, options, async (step) => {
    for (const group of model.groupCalls) {
      await groupCall(model, device, { ...options, step, group });
    }
  });
}

async function train(
  model: Module,
  device: Device,
  { steps = 3, lossScale = 1 }: Pick<GroupedTraining, 'steps' | 'lossScale'>,
  backward: (step: number) => Promise<void>,
): Promise<string> {
  const optimizer = new AdamW(optimizerGroups(model), { lr: 1e-2 });
  for (let step = 0; step < steps; step++) {
    await backward(step);
    await device.scope(async () => {
      const { scale } = await clipGradNorm(model, 1, { unscale: 1 / lossScale });
      await optimizer.step({ gradScale: scale });
    });
    optimizer.zeroGrad();
  }
  return hashOf(model);
}

/** Runs forward and backward of one group; an empty call has no rows. */
export async function groupCall(
  model: Module,
  device: Device,
  call: Pick<GroupedTraining, 'batch' | 'lossScale'> & {
    readonly step: number;
    readonly group: number | undefined;
  },
): Promise<void> {
  const { step, batch = 11, group, lossScale = 1 } = call;
  const seq = 8;
  const all = tokens(step, batch, seq, TINY.vocab_size!);
  const [first, end] =
    group === undefined
      ? [0, 0]
      : [group, group + 1].map((g) => Math.floor((g * batch) / NUM_GROUPS));
  await device.scope(async () => {
    device.random.begin({ step, rowOffset: first! });
    const part = (values: Int32Array) =>
      device.tensor(values.slice(first! * seq, end! * seq), [end! - first!, seq]);
    const losses = await model.call(part(all.ids), { targets: part(all.targets) });
    const loss = sum(losses);
    await loss.backward({ gradient: device.full(loss.shape, lossScale / (batch * seq)) });
  });
}

/** SHA-256 over the bytes of all parameters and buffers, in the order of their names. */
export async function hashOf(model: Module): Promise<string> {
  const hash = createHash('sha256');
  for (const [name, { data }] of [...(await stateDict(model))].sort(([a], [b]) =>
    a < b ? -1 : 1,
  )) {
    hash.update(name).update(data);
  }
  return hash.digest('hex');
}

/** A net of two layers whose backward can be made to fail between them. */
export function fragileNet(device: Device) {
  const switches = { fails: false };
  const parts = { first: layer(device), last: layer(device) };
  const net = moduleOf(device, parts, async ({ first, last }, x: Tensor): Promise<Tensor> => {
    const hidden: Tensor = await first.call(x);
    device.beforeGradientOf(hidden, () => {
      if (switches.fails) {
        throw new Error('broke between the layers');
      }
    });
    return last.call(hidden);
  });
  return { net, switches };
}

/**
 * What a wrapper does where the second call of a step fails: its words at the next one, and the
 * hashes of a step after zeroGrad and of one without any failure.
 */
export function afterFailure(
  wrap: (model: Module, rank: Rank) => Grouped,
): Promise<{ refused: string; hashes: string[] }[]> {
  return onRanks(2, async (rank) => {
    const { device } = rank;
    const hashes: string[] = [];
    let refused = '';
    for (const breaks of [true, false]) {
      const { net, switches } = fragileNet(device);
      for (const [i, parameter] of net.parameters().entries()) {
        parameter.storage.write(
          new Uint8Array(
            Float32Array.from({ length: parameter.size }, (_, e) => Math.sin(e + i)).buffer,
          ),
        );
      }
      const model = wrap(net, rank);
      const optimizer = new Sgd(model.parameters(), { lr: 0.1 });
      const call = (group: number | undefined) =>
        device.scope(async () => {
          const rows = group === undefined ? { first: 0, count: 0 } : { first: group, count: 1 };
          const output: Tensor = await model.call(inputs(device, rows));
          await sum(square(output)).backward();
        });
      const [first, second] = model.groupCalls;
      if (breaks) {
        await call(first);
        switches.fails = true;
        await rejectionOf(call(second));
        switches.fails = false;
        refused = ((await rejectionOf(call(second))) as Error).message;
        optimizer.zeroGrad();
      }
      for (const group of model.groupCalls) {
        await call(group);
      }
      await optimizer.step();
      hashes.push(await hashOf(model));
      model.dispose();
    }
    return { refused, hashes };
  });
}
