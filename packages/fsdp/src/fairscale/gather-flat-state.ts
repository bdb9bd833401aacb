// Gathers the optimizer state of one flat parameter from the shards of all ranks to rank 0's host.

import type { HostTensor, Optimizer, ParameterState } from '@shardweave/nn';
import { type FlatProgress, runAt, type StateRun } from '@shardweave/nn/flat';
import type { Tensor } from '@shardweave/tensor-core';
import { agreedProgress } from '../held/agreed-progress.js';
import { callIdentity } from '../ranks/call-identity.js';
import { abortOnError } from '../tree/rank-failure.js';
import { gatherToFirst, type ShardedUnit } from '../unit/sharded-unit.js';

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
  if (unit.group.rank !== 0) {
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

async function gatherShards(
  { group, layout, name }: ShardedUnit,
  own: Uint8Array | undefined,
  operation: string,
): Promise<Uint8Array | undefined> {
  const shard = own ?? new Uint8Array(layout.shardLength * F32_BYTES);
  const identity = callIdentity(operation, name);
  return layout.worldSize === 1
    ? shard
    : gatherToFirst(group, shard, { dtype: 'f32', tag: name, identity });
}
