// Parameters that nobody shards or moves: their values are in their tensors, or in the flat that
// packs them, which is the master of 16-bit copies.

import { byteSize, type DType, type Tensor } from '@shardweave/tensor-core';
import { NnConfigError } from '../errors.js';
import { nameOf, pieceOf } from '../flat/layout/flat-plan.js';
import { isCopy, isSharded, markCopies, masterOf } from '../flat/placement.js';
import { readWords } from '../flat/read-words.js';
import { whenSettled } from '../flat/when-settled.js';
import type { ElementRange } from '../host-tensor.js';
import { dropRecipe, fillDeferred } from '../parameters/deferred-parameter.js';
import { ALONE, type AtRest, type HeldCall, type HeldPart, type HeldRanks } from './held.js';
import { entryBytes, type GivenEntry, type PartRoom, partsOfEntry } from './state-entry.js';

/**
 * What a process holds of plain parameters.
 * @param named the parameters with their names in errors
 * @param ranks the processes that hold the same values, of which the first writes into saves
 * @throws {NnConfigError} for a parameter that is sharded, or a copy of values in a store
 */
export function plainAtRest(
  named: readonly (readonly [string, Tensor])[],
  { operation, by }: HeldCall,
  ranks: HeldRanks = ALONE,
): AtRest {
  if (by !== 'gradients') {
    requireHere(named, operation);
  }
  const parameters = named.map(([, tensor]) => tensor);
  const part: HeldPart = {
    parameters,
    suffix: '',
    isShared: true,
    isWriting: ranks.isFirst,
    readLater: readTensor,
    readWhole: async () => readTensor,
    write: async (given, room) => {
      for (const [parameter, entry] of given) {
        if (parameter.blocks !== undefined) {
          parameter.storage.fill(); // what is written are its words
          dropRecipe(parameter);
        }
        await writeTensor(masterOf(parameter), ...entry, room);
        markCopies([parameter], operation);
      }
    },
    dropCopies: () => {},
    agreeOnProgress: async (own) => own,
  };
  // Whole tensors are all queued to be read at once, so a step beside that cannot mix them.
  const requireUnchanged = by === 'pieces' ? noteVersions(parameters, operation) : () => {};
  return { parts: parameters.length === 0 ? [] : [part], ranks, requireUnchanged };
}

/** Reads a parameter where it rests, or some of its elements. */
async function readTensor(parameter: Tensor, part?: ElementRange): Promise<Uint8Array> {
  const tensor = masterOf(parameter);
  if (part === undefined) {
    return tensor.toBytes();
  }
  const size = byteSize(tensor.dtype);
  const start = (tensor.offset + part.first) * size;
  const end = start + part.count * size;
  return readWords((...range) => tensor.storage.read(...range), start, end);
}

/**
 * Writes an entry that checkState has let pass into a tensor, which converts floats on its device.
 * @throws {StateDictError} for a lazy tensor that gives another number of bytes
 */
export async function writeTensor(
  tensor: Tensor,
  name: string,
  entry: GivenEntry,
  room: PartRoom,
): Promise<void> {
  if (tensor.size === 0) {
    return;
  }
  const { device } = tensor;
  const dtype = entry.dtype as DType;
  if (dtype === tensor.dtype && 'read' in entry) {
    for await (const { first, bytes } of partsOfEntry(name, entry, { dtype, room })) {
      fillDeferred(tensor);
      await whenSettled(tensor.storage);
      tensor.storage.write(bytes, (tensor.offset + first) * byteSize(dtype));
    }
    return;
  }
  const bytes = 'data' in entry && entry.tensor === undefined ? entry.data : undefined;
  const data = bytes ?? (await entryBytes(name, entry));
  fillDeferred(tensor);
  if (dtype === tensor.dtype) {
    tensor.storage.write(data, tensor.offset * byteSize(dtype));
    return;
  }
  device.noGrad(() =>
    device.scope(() => {
      device.copyInto(tensor, device.tensor(data, entry.shape, { dtype, tag: 'staging' }));
    }),
  );
}

/**
 * @throws {NnConfigError} for a tensor whose values rest on other ranks, or elsewhere than in its
 * storage
 */
function requireHere(named: readonly (readonly [string, Tensor])[], operation: string): void {
  for (const [name, tensor] of named) {
    const got = isSharded(tensor)
      ? `a shard of ${tensor.piece!.length}`
      : isCopy(tensor) && tensor.piece!.isPacked !== true
        ? 'a copy for computing of what rests elsewhere'
        : undefined;
    if (got === undefined) {
      continue;
    }
    throw new NnConfigError(
      `${operation}: expected all ${tensor.size} elements of '${name}' to rest here, got ${got}. Call it with the wrapper that holds them, or with a module around that one.`,
    );
  }
}

/** Returns a check that throws where a flat of the parameters has changed since. */
function noteVersions(parameters: readonly Tensor[], operation: string): () => void {
  const flats = [...new Set(parameters.map((parameter) => pieceOf(parameter).flat))];
  const versions = flats.map(({ storage }) => storage.version);
  return () => {
    const changed = flats.find(({ storage }, i) => storage.version !== versions[i]);
    if (changed !== undefined) {
      throw new NnConfigError(
        `${operation}: expected parameters at rest until it ends, got a step or a load of ${nameOf(changed)} beside it. Await it first.`,
      );
    }
  };
}
