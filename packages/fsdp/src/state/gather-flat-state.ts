// The optimizer state of one flat parameter, from the shards of all ranks to rank 0's host.

import { exchangeTexts } from '@shardweave/collectives';
import type { HostTensor, Optimizer, ParameterState } from '@shardweave/nn';
import type { StateHeader } from '@shardweave/nn/flat';
import type { Tensor } from '@shardweave/tensor-core';
import { FsdpStateDictError } from '../errors.js';
import { callIdentity, exchangeCall } from '../tree/call-identity.js';
import { orTell } from '../tree/rank-failure.js';
import type { ShardedUnit } from '../unit/sharded-unit.js';

const F32_BYTES = 4;

/** State of the unit's parameters on rank 0 of its group, nothing on the others. Collective. */
export async function gatherFlatState<Options extends object>(
  unit: ShardedUnit,
  optimizer: Optimizer<Options>,
  operation: string,
): Promise<Map<Tensor, ParameterState>> {
  const own = await orTell(unit.group, operation, () => optimizer.readFlatState(unit.flat));
  const ownHeader = own && { step: own.step, names: [...own.tensors.keys()] };
  const header = await agreedHeader(unit, ownHeader, operation);
  const found = new Map<Tensor, ParameterState>();
  if (header === undefined) {
    return found;
  }
  const parts = new Map<Tensor, Map<string, HostTensor<'f32'>>>();
  for (const name of header.names) {
    const whole = await gatherShards(unit, own?.tensors.get(name), operation);
    for (const [index, { tensor }] of whole === undefined ? [] : unit.parameters.entries()) {
      const start = unit.layout.offsets[index]! * F32_BYTES;
      const data = whole!.slice(start, start + tensor.size * F32_BYTES);
      if (!parts.has(tensor)) {
        parts.set(tensor, new Map());
      }
      parts.get(tensor)!.set(name, { dtype: 'f32', shape: tensor.shape, data });
    }
  }
  if (unit.rank !== 0) {
    return found;
  }
  for (const { tensor } of unit.parameters) {
    const tensors = parts.get(tensor) ?? new Map<string, HostTensor<'f32'>>();
    // Frozen all along: a bare optimizer would have no state for it.
    const isUntouched = [...tensors.values()].every(({ data }) => data.every((byte) => byte === 0));
    if (!tensor.requiresGrad && isUntouched) {
      continue;
    }
    found.set(tensor, { step: header.step, tensors });
  }
  return found;
}

/**
 * Step and tensors of the unit's state; ranks whose shard is all padding have none of their own.
 * Collective over the unit's group.
 */
export async function agreedHeader(
  unit: ShardedUnit,
  own: StateHeader | undefined,
  operation: string,
): Promise<StateHeader | undefined> {
  const text = own === undefined ? '' : JSON.stringify(own);
  const texts = await exchangeTexts(unit.group, text, exchangeCall(operation, unit.name));
  const distinct = [...new Set(texts.filter((other) => other !== ''))];
  if (distinct.length === 0) {
    return undefined;
  }
  if (distinct.length > 1) {
    throw new FsdpStateDictError(
      `optimizer state: expected one step count and the same tensors on all ranks for '${unit.name}', got ${distinct.join(' and ')}. Step every rank's optimizer alike.`,
    );
  }
  return JSON.parse(distinct[0]!) as StateHeader;
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
