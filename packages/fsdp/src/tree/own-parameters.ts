// Which parameters of the wrapped module an instance shards itself, and which it uses of other
// instances.

import { joinPath, type Module } from '@shardweave/nn';
import { encodingOf, type FlatGradient, type FlatLeaf } from '@shardweave/nn/flat';
import { type DType, isFloat, type Tensor } from '@shardweave/tensor-core';
import { FsdpConfigError } from '../errors.js';
import { isInstance, type TreeInstance, treeInstanceOf } from './tree-instance.js';

/** A message with more names than this is hard to read. */
const MAX_LISTED = 8;

export interface OwnParameters {
  /** The parameters that no inner instance and no other one has taken. */
  readonly own: readonly FlatLeaf[];
  /** The other instances whose parameters the module uses. */
  readonly owners: ReadonlySet<TreeInstance>;
}

/** The instance that shards a parameter. */
export function ownerOf(tensor: Tensor): TreeInstance | undefined {
  return treeInstanceOf((tensor.gradSink as Partial<FlatGradient> | undefined)?.owner);
}

/**
 * Sorts the parameters below a module, up to inner instances, into own and foreign ones.
 * @throws {FsdpConfigError} for a parameter that cannot be sharded here
 */
export function ownParameters(module: Module, masterDType: DType): OwnParameters {
  const paths = new Map<Tensor, string>();
  collectOutsideInstances(module, '', paths);
  const own: FlatLeaf[] = [];
  const owners = new Set<TreeInstance>();
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
    if (!isFloat(tensor.dtype) || tensor.device !== module.device) {
      throw new FsdpConfigError(
        `fsdp: expected parameters of f32, f16 or bf16 on the module's device, got ${tensor.dtype} '${path}'. Integers are buffers, and a rank has one device.`,
      );
    }
    if (tensor.requiresGrad && encodingOf(tensor) !== undefined) {
      throw new FsdpConfigError(
        `fsdp: expected encoded parameters to be frozen, got requiresGrad of '${path}'. Train something beside it.`,
      );
    }
    if (tensor.requiresGrad && tensor.dtype === 'f32' && masterDType !== 'f32') {
      throw new FsdpConfigError(
        `fsdp: expected ${masterDType} parameters with computeDType alone, got f32 '${path}'. Set mixedPrecision too: the masters are f32 then.`,
      );
    }
    own.push({ path, tensor });
  }
  return { own, owners };
}

/** A module and those below it, without inner instances and what is in them. */
export function modulesOutsideInstances(module: Module): Module[] {
  if (isInstance(module)) {
    return [];
  }
  return [module, ...[...module.children().values()].flatMap(modulesOutsideInstances)];
}

/** Finds parameters with their first paths; stops at inner instances. */
function collectOutsideInstances(module: Module, path: string, found: Map<Tensor, string>): void {
  if (isInstance(module)) {
    return;
  }
  for (const [name, tensor] of module.ownParameters()) {
    if (!found.has(tensor)) {
      found.set(tensor, joinPath(path, name));
    }
  }
  for (const [name, child] of module.children()) {
    collectOutsideInstances(child, joinPath(path, module.childPrefix(name)), found);
  }
}

/**
 * Checks that each parameter below an instance is in exactly one flat parameter, and that each
 * parameter of a flat one is still in the module: modules may have been added or removed since they
 * were wrapped.
 * @param instances those at and below it
 * @throws {FsdpConfigError} naming those that are not
 */
export function requireEachInOneUnit(fsdp: TreeInstance, instances = fsdp.instances()): void {
  const known = new Set([...instances, ...(fsdp.tree?.instances ?? [])]);
  const named = fsdp.wrapper.namedParameters();
  const bare = named.filter(([, tensor]) => ownerOf(tensor) === undefined);
  if (bare.length > 0) {
    throw new FsdpConfigError(
      `fsdp: expected each parameter of '${fsdp.name}' in a flat parameter, got ${listed(bare)} in none, so nobody shards or reduces ${bare.length === 1 ? 'it' : 'them'}. The module was put in after wrapping: put it in before, or wrap it in an instance of its own first.`,
    );
  }
  const elsewhere = named.filter(([, tensor]) => !known.has(ownerOf(tensor)!));
  if (elsewhere.length > 0) {
    throw new FsdpConfigError(
      `fsdp: expected instances that share a parameter below one root, got ${listed(elsewhere)} of ${labelOf(ownerOf(elsewhere[0]![1])!)}, which is not below ${labelOf(fsdp)}. Wrap the module around both, and initialize or call that one first.`,
    );
  }
  const present = new Set(named.map(([, tensor]) => tensor));
  for (const { name, parameters } of instances.flatMap(({ units }) => units)) {
    const gone = parameters.filter(({ tensor }) => !present.has(tensor));
    if (gone.length === 0) {
      continue;
    }
    const paths = gone.map(({ path, tensor }) => [path, tensor] as const);
    throw new FsdpConfigError(
      `fsdp: expected all parameters of flat parameter '${name}' in the module, got ${listed(paths)}, which no module has. Replace modules before wrapping, or give one that will be replaced an instance of its own.`,
    );
  }
}

/**
 * Checks that what is sharded because it was frozen still is: its gradient would need another kind
 * of reduction than those of trained parameters, which every rank has whole.
 * @throws {FsdpConfigError} naming a parameter that is trained by now
 */
export function requireStillFrozen(instances: readonly TreeInstance[]): void {
  for (const { options, units, processGroup } of instances) {
    const table = units.find(({ isTable, isAllFrozen }) => isTable && !isAllFrozen);
    if (table !== undefined) {
      throw new FsdpConfigError(
        `fsdp: expected token tables that were frozen when they were wrapped with vocabParallel to stay so, got requiresGrad of '${table.parameters[0]!.path}'. Set requiresGrad before wrapping; the table is gathered then.`,
      );
    }
    for (const { isWhole, parameters } of options.shardTrained ? [] : units) {
      const thawed = parameters.find(({ tensor }) => tensor.requiresGrad);
      if (!isWhole && processGroup.worldSize > 1 && thawed !== undefined) {
        throw new FsdpConfigError(
          `fsdp: expected parameters that were frozen when they were wrapped with shardTrained: false to stay so, got requiresGrad of '${thawed.path}', which is sharded. Set requiresGrad before wrapping.`,
        );
      }
    }
  }
}

/** The instances outside `instances` whose parameters these use. */
export function ownersBeside(instances: readonly TreeInstance[]): Set<TreeInstance> {
  const tensors = instances.flatMap(({ module }) =>
    modulesOutsideInstances(module).flatMap((outside) => [...outside.ownParameters().values()]),
  );
  const owners = new Set(tensors.flatMap((tensor) => ownerOf(tensor) ?? []));
  for (const instance of instances) {
    owners.delete(instance);
  }
  return owners;
}

/**
 * Refuses an instance that uses a foreign parameter, for calls that handle whole flat parameters.
 * @throws {FsdpConfigError} where the instance uses a parameter that an instance beside it shards
 */
export function requireNoOwnerBeside(fsdp: TreeInstance, operation: string): void {
  const [owner] = ownersBeside(fsdp.instances());
  if (owner === undefined) {
    return;
  }
  throw new FsdpConfigError(
    `${operation}: expected an instance that shards all its parameters, got ${labelOf(fsdp)}, which uses one of ${labelOf(owner)}. Call it on an instance around both.`,
  );
}

/** An instance in an error with its path in the tree, for all of them may have the same name. */
export function labelOf({ name, module }: Pick<TreeInstance, 'name' | 'module'>): string {
  const [path, tensor] = module.namedParameters()[0] ?? [];
  const around = tensor?.name.endsWith(`.${path}`) ? tensor.name.slice(0, -path!.length - 1) : '';
  return around === '' ? `'${name}'` : `'${name}' at '${around}'`;
}

function listed(parameters: readonly (readonly [string, Tensor])[]): string {
  const names = parameters.slice(0, MAX_LISTED).map(([name]) => `'${name}'`);
  const left = parameters.length - names.length;
  return left > 0 ? `${names.join(', ')} and ${left} more` : names.join(', ');
}
