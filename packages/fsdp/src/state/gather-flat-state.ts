// Gathers the optimizer state of one flat parameter from the shards of all ranks to rank 0's host.

import { exchangeTexts } from '@shardweave/collectives';
import type { HostTensor, Optimizer, ParameterState } from '@shardweave/nn';
import { StateDictError } from '@shardweave/nn';
import { type FlatProgress, runAt, type StateRun } from '@shardweave/nn/flat';
import type { Tensor } from '@shardweave/tensor-core';
import { callIdentity, exchangeCall } from '../ranks/call-identity.js';
import { abortOnError } from '../tree/rank-failure.js';
import type { ShardedUnit } from '../unit/sharded-unit.js';

const F32_BYTES = 4;

/**
 * The optimizer state of the unit's parameters on rank 0 of its group, and an empty map on the
 * other ranks. Collective.
 */
export async function gatherFlatState<Options extends object>(
  unit: ShardedUnit,
  optimizer: Optimizer<Options>,
  operation: string,
): Promise<Map<Tensor, ParameterState>> {
  const own = await abortOnError(unit.group, operation, () => optimizer.readFlatState(unit.flat));
  const progress = await agreedProgress(unit, progressIn(unit, own?.runs ?? []), operation);
  const parts = new Map<Tensor, Map<string, HostTensor<'f32'>>>();
  const names = new Set([...progress.values()].flatMap((state) => state.names));
  for (const name of [...names].sort()) {
    const whole = await gatherShards(unit, own?.tensors.get(name), operation);
    for (const [index, { tensor }] of whole === undefined ? [] : unit.parameters.entries()) {
      if (!progress.get(tensor)?.names.includes(name)) {
        continue;
      }
      const start = unit.layout.offsets[index]! * F32_BYTES;
      const data = whole!.slice(start, start + tensor.size * F32_BYTES);
      if (!parts.has(tensor)) {
        parts.set(tensor, new Map());
      }
      parts.get(tensor)!.set(name, { dtype: 'f32', shape: tensor.shape, data });
    }
  }
  if (unit.rank !== 0) {
    return new Map();
  }
  return new Map(
    unit.parameters.flatMap(({ tensor }) => {
      const step = progress.get(tensor)?.step;
      return step === undefined
        ? []
        : [[tensor, { step, tensors: parts.get(tensor) ?? new Map() }] as const];
    }),
  );
}

/** The steps of those parameters that have elements on this rank. */
function progressIn({ parameters }: ShardedUnit, runs: readonly StateRun[]): FlatProgress {
  return new Map(
    parameters.flatMap(({ tensor }) => {
      const { start, length } = tensor.piece!;
      const run = length === 0 ? undefined : runAt(runs, start);
      return run === undefined ? [] : [[tensor, run] as const];
    }),
  );
}

/**
 * What one rank tells about a parameter that it has elements of: its index in the unit, its step (0
 * where it was never stepped), and the names of its state tensors.
 */
type ToldProgress = readonly [index: number, step: number, names: readonly string[]];

/**
 * The step and the state tensors of each parameter of the unit, as told by the ranks that have
 * elements of it. Collective over the unit's group.
 * @throws {StateDictError} where ranks with parts of one parameter differ
 */
export async function agreedProgress(
  unit: ShardedUnit,
  own: FlatProgress,
  operation: string,
): Promise<FlatProgress> {
  const told = unit.parameters.flatMap(({ tensor }, index): ToldProgress[] => {
    const { step, names } = own.get(tensor) ?? { step: 0, names: [] };
    return tensor.piece!.length === 0 ? [] : [[index, step, names]];
  });
  const text = JSON.stringify(told);
  const texts = await exchangeTexts(unit.group, text, exchangeCall(operation, unit.name));
  const agreed = new Map<number, string>();
  for (const [index, ...progress] of texts.flatMap((text) => JSON.parse(text) as ToldProgress[])) {
    const found = JSON.stringify(progress);
    const other = agreed.get(index) ?? found;
    if (other !== found) {
      const { path } = unit.parameters[index]!;
      throw new StateDictError(
        `optimizer state: expected one step count and the same tensors on all ranks for '${path}' of '${unit.name}', got ${other} and ${found}. Step every rank's optimizer alike.`,
      );
    }
    agreed.set(index, found);
  }
  return new Map(
    [...agreed]
      .sort(([a], [b]) => a - b)
      .flatMap(([index, text]) => {
        const [step, names] = JSON.parse(text) as [number, string[]];
        return step === 0 ? [] : [[unit.parameters[index]!.tensor, { step, names }] as const];
      }),
  );
}

async function gatherShards(
  unit: ShardedUnit,
  own: Uint8Array | undefined,
  operation: string,
): Promise<Uint8Array | undefined> {
  const { group, layout } = unit;
  const shard = own ?? new Uint8Array(layout.shardLength * F32_BYTES);
  if (group.worldSize === 1) {
    return shard;
  }
  const whole = unit.rank === 0 ? new Uint8Array(shard.byteLength * group.worldSize) : null;
  const identity = callIdentity(operation, unit.name);
  await group.gather(shard, whole, { root: 0, dtype: 'f32', tag: unit.name, identity });
  return whole ?? undefined;
}
