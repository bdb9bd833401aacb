// Gets and sets this rank's own shards: no values travel, and the only names are those of flat
// parameters. consolidate.ts makes whole parameters of the shards and metadata of all ranks.

import type { StateDict, StateEntry } from '@shardweave/nn';
import {
  bytesOf,
  checkState,
  convertBytes,
  type ExpectedEntry,
  PartRoom,
  writeTensor,
} from '@shardweave/nn/flat';
import { isFloat, type Tensor } from '@shardweave/tensor-core';
import { FLAG, optional } from '@shardweave/tensor-core/options';
import { checkOptions } from '../check-options.js';
import type { FullyShardedDataParallel } from '../fully-sharded-data-parallel.js';
import { agree, agreeOnText } from '../tree/agree.js';
import { collectiveCall } from '../tree/collective-call.js';
import { type Instance, instanceOf } from '../tree/instance.js';
import { requireNoOwnerBeside } from '../tree/own-parameters.js';
import type { ShardedUnit } from '../unit/sharded-unit.js';

/** The name of the flat parameter at `index`, counted over an instance and those below it. */
export function flatKey(index: number): string {
  return `flat_param_${index}`;
}

/**
 * Copies of this rank's shards, padding included, as flat_param_0, flat_param_1, ... in unit order,
 * and of all buffers; later steps do not change them. Allowed in every state but summonFullParams.
 * Once the tree is open it communicates nothing, and waits only for the device.
 * @throws {FsdpStateError} inside summonFullParams, where the shards are stale
 */
export async function localStateDict(fsdp: FullyShardedDataParallel): Promise<StateDict> {
  const root = instanceOf(fsdp);
  await root.initialize();
  requireNoOwnerBeside(root, 'localStateDict');
  for (const instance of root.instances()) {
    instance.activity.expect('localStateDict', ['idle', 'forward', 'backwardPre', 'backwardPost']);
  }
  const entries: StateDict = new Map();
  for (const [index, unit] of unitsOf(root).entries()) {
    const { dtype, shape } = unit.flat;
    entries.set(flatKey(index), { dtype, shape, data: await unit.values.read() });
  }
  for (const [name, buffer] of fsdp.namedBuffers()) {
    entries.set(name, await bufferEntry(buffer));
  }
  return entries;
}

/**
 * Sets this rank's shards and buffers from the localStateDict of the same rank in a world of the
 * same size, and frees full parameters that are still present. Collective: every rank loads its
 * own.
 * @param options.strict refuse missing and unexpected names. Default true.
 * @throws {StateDictError} where names or lengths differ; the other ranks throw
 * {PeerFailedError}, and nothing is loaded on any rank
 * @throws {FsdpStateError} unless the instance is idle
 */
export async function loadLocalStateDict(
  fsdp: FullyShardedDataParallel,
  entries: ReadonlyMap<string, StateEntry>,
  options: { readonly strict?: boolean } = {},
): Promise<void> {
  const call = { operation: 'loadLocalStateDict', states: ['idle'] } as const;
  checkOptions(call.operation, options, { strict: optional(FLAG) });
  const root = instanceOf(fsdp);
  await collectiveCall(root, call, async () => {
    await agreeOnText(root, call.operation, () => {
      checkLocal(root, entries, options);
      return ''; // each rank has values of its own
    });
    await agree(root, call.operation, () => writeLocal(root, entries));
  });
}

function checkLocal(
  root: Instance,
  entries: ReadonlyMap<string, StateEntry>,
  options: { readonly strict?: boolean },
): void {
  requireNoOwnerBeside(root, 'loadLocalStateDict');
  const units = unitsOf(root);
  const expected = new Map<string, ExpectedEntry>(root.wrapper.namedBuffers());
  units.forEach(({ flat }, index) => {
    expected.set(flatKey(index), flat);
  });
  const { strict = true } = options;
  checkState(entries, expected, { operation: 'loadLocalStateDict', strict });
}

async function writeLocal(root: Instance, entries: ReadonlyMap<string, StateEntry>): Promise<void> {
  for (const [index, unit] of unitsOf(root).entries()) {
    const key = flatKey(index);
    const entry = entries.get(key);
    if (entry === undefined) {
      continue;
    }
    await unit.values.write(await bytesOf(key, entry, unit.flat.dtype));
    unit.full.drop();
  }
  for (const [name, buffer] of root.wrapper.namedBuffers()) {
    const entry = entries.get(name);
    if (entry !== undefined) {
      await writeTensor(buffer, name, entry, new PartRoom());
    }
  }
}

/** The flat parameters of an instance and those below it, outer instances first. */
function unitsOf(root: Instance): ShardedUnit[] {
  return root.instances().flatMap(({ units }) => units);
}

/** A buffer's values; a float buffer's are f32, whatever dtype it is computed in. */
async function bufferEntry(buffer: Tensor): Promise<StateEntry> {
  const dtype = isFloat(buffer.dtype) ? 'f32' : buffer.dtype;
  const data = convertBytes(await buffer.toBytes(), buffer.dtype, dtype);
  return { dtype, shape: buffer.shape, data };
}
