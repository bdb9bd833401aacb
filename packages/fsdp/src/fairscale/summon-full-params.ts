// Makes parameters whole, in f32, for the time of a callback.

import type { Storage } from '@shardweave/tensor-core';
import { allOptional, FLAG, type OptionRules } from '@shardweave/tensor-core/options';
import { checkOptions } from '../check-options.js';
import type { FullyShardedDataParallel } from '../fully-sharded-data-parallel.js';
import { collectiveCall } from '../tree/collective-call.js';
import { instanceOf } from '../tree/instance.js';
import { ownersBeside } from '../tree/own-parameters.js';
import type { ShardedUnit } from '../unit/sharded-unit.js';

/** Which instances are made whole, and whether what is written is kept. */
export interface SummonOptions {
  /**
   * Make nested instances whole too. Default true. Instances that share a parameter with these
   * always are.
   */
  readonly recurse?: boolean;
  /** Throw away what the callback writes. Default false: each rank keeps its own shard of it. */
  readonly volatile?: boolean;
}

const RULES: OptionRules<SummonOptions> = allOptional({ recurse: FLAG, volatile: FLAG });

/**
 * Runs `body` while the parameters hold their whole values in the masters' dtype. Of what `body`
 * writes, each rank keeps only its own shard, so ranks that write different values make a patchwork
 * (as in fairscale). Collective. The shards are restored also where `body` throws.
 * @throws {FsdpStateError} inside a forward, backward or another summonFullParams of the same
 * instance
 */
export async function summonFullParams<T>(
  fsdp: FullyShardedDataParallel,
  body: () => T | Promise<T>,
  options: SummonOptions = {},
): Promise<T> {
  checkOptions('summonFullParams', options, RULES);
  const instance = instanceOf(fsdp);
  const below = options.recurse === false ? [instance] : instance.instances();
  // An instance that an outer summonFullParams has made whole stays so.
  const beside = [...ownersBeside(below)].filter(
    ({ activity }) => activity.state !== 'summonFullParams',
  );
  const instances = [...below, ...beside];
  const summoned: Summoned[] = [];
  const call = { operation: 'summonFullParams', states: ['idle'], instances } as const;
  for (const each of instances) {
    each.activity.expect(call.operation, call.states);
  }
  const gathered = collectiveCall(instance, call, async () => {
    for (const unit of instances.flatMap(({ units }) => units)) {
      const storage = await summon(unit);
      summoned.push({ unit, storage, numChanges: storage.changes.watch() });
    }
  });
  const ends = instances.map(({ activity }) => activity.beginSummon());
  const outcome = await settled(async () => {
    await gathered;
    return body();
  });
  const failures = outcome.status === 'rejected' ? [outcome.reason] : [];
  for (const each of summoned.reverse()) {
    const dismissed = dismiss(each, { isKept: options.volatile !== true });
    await dismissed.catch((error: unknown) => failures.push(error));
  }
  for (const end of ends) {
    end();
  }
  if (outcome.status === 'rejected' || failures.length > 0) {
    throw failures[0];
  }
  return outcome.value;
}

/** Who changed a parameter that was written here, in the error of a backward that saved it. */
const BY = 'a write inside summonFullParams';

/** A unit whose parameters are whole, and the storage that holds them meanwhile. */
interface Summoned {
  readonly unit: ShardedUnit;
  readonly storage: Storage;
  /** How many changes the storage had seen when the callback began. */
  readonly numChanges: number;
}

async function settled<T>(work: () => Promise<T>): Promise<PromiseSettledResult<T>> {
  const [outcome] = await Promise.allSettled([work()]);
  return outcome!;
}

async function summon(unit: ShardedUnit): Promise<Storage> {
  const { values, full } = unit;
  if (values.isEncoded) {
    if (!full.isPresent) {
      await full.finishLoad(full.startLoad());
    }
    return full.storage; // the values in the compute dtype, because there are no others
  }
  const bytes = await unit.gatherMaster('summonFullParams');
  const { elementCount } = full.storage;
  const storage = unit.flat.device.storage(elementCount, unit.flat.dtype, 'gathered');
  storage.fill();
  storage.write(bytes);
  point(unit, storage);
  return storage;
}

function point({ parameters, layout }: ShardedUnit, storage: Storage): void {
  parameters.forEach(({ tensor }, index) => {
    tensor.rebind(storage, layout.offsets[index]!);
  });
}

/**
 * Points the parameters back into shards. What was written is kept in this rank's shard, wherever
 * it rests, or refused.
 */
async function dismiss(
  { unit, storage, numChanges }: Summoned,
  options: { readonly isKept: boolean },
): Promise<void> {
  const { values, full, flat, shardIndex } = unit;
  const written = storage.changes.runsSince(numChanges);
  storage.changes.unwatch();
  if (values.isEncoded) {
    if (options.isKept) {
      full.keepWrites(); // refuses what was written
    }
    return full.drop();
  }
  let read: Promise<Uint8Array> | undefined;
  if (options.isKept && values.home?.holdsState) {
    const { byteLength } = flat.storage;
    read = storage.read(shardIndex * byteLength, byteLength);
  } else if (options.isKept) {
    const mine = storage.view(shardIndex * flat.size, flat.size);
    flat.device.backend.run('cast', { x: mine, out: flat.view() });
    flat.storage.markWritten(BY, []);
    full.storage.markOutdated(BY, written);
  }
  full.drop();
  point(unit, full.storage);
  storage.release();
  if (read !== undefined) {
    await values.write(await read, 0, written);
  }
}
