// What an instance shards of the module it wraps, and what it uses of other instances.

import { joinPath, type Module } from '@shardweave/nn';
import type { DType, GradSink, Tensor } from '@shardweave/tensor-core';
import { FsdpConfigError } from './errors.js';
import type { FullyShardedDataParallel } from './fully-sharded-data-parallel.js';
import { isFsdp } from './is-fsdp.js';
import type { UnitParameter } from './sharded-unit.js';

/** The sink of a sharded parameter knows its instance. */
export interface OwnedSink extends GradSink {
  readonly instance: FullyShardedDataParallel;
}

export interface OwnParameters {
  /** Those that no inner instance and no other has taken. */
  readonly own: readonly UnitParameter[];
  /** The instances whose parameters the module uses besides. */
  readonly owners: ReadonlySet<FullyShardedDataParallel>;
}

/** The instance that shards a parameter. */
export function ownerOf(tensor: Tensor): FullyShardedDataParallel | undefined {
  return (tensor.gradSink as Partial<OwnedSink> | undefined)?.instance;
}

/**
 * Sorts the parameters below a module, up to inner instances.
 * @throws {FsdpConfigError} for one that cannot be sharded here
 */
export function ownParameters(module: Module, masterDType: DType): OwnParameters {
  const paths = new Map<Tensor, string>();
  collectOutsideInstances(module, '', paths);
  const own: UnitParameter[] = [];
  const owners = new Set<FullyShardedDataParallel>();
  for (const [tensor, path] of paths) {
    const owner = ownerOf(tensor);
    if (owner !== undefined) {
      owners.add(owner);
      continue;
    }
    if (tensor.piece !== undefined) {
      throw new FsdpConfigError(
        `fsdp: expected parameters of no other flat tensor, got '${path}', which was packed. Sharding flattens parameters itself.`,
      );
    }
    if (tensor.dtype !== masterDType || tensor.device !== module.device) {
      throw new FsdpConfigError(
        `fsdp: expected ${masterDType} parameters on the module's device, got ${tensor.dtype} '${path}'. With f32 parameters set mixedPrecision to compute in 16 bits; with 16-bit ones set computeDType to theirs.`,
      );
    }
    own.push({ path, tensor });
  }
  return { own, owners };
}

/** A module and those below it, without inner instances and theirs. */
export function modulesOutsideInstances(module: Module): Module[] {
  if (isFsdp(module)) return [];
  return [module, ...[...module.children().values()].flatMap(modulesOutsideInstances)];
}

/** Finds parameters with their first paths; stops at inner instances. */
function collectOutsideInstances(module: Module, path: string, found: Map<Tensor, string>): void {
  if (isFsdp(module)) return;
  for (const [name, tensor] of module.ownParameters()) {
    if (!found.has(tensor)) found.set(tensor, joinPath(path, name));
  }
  for (const [name, child] of module.children()) {
    collectOutsideInstances(child, joinPath(path, module.childPrefix(name)), found);
  }
}
