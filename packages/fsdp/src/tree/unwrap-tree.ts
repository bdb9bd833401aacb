// Takes a tree of wrappers off its modules again, so that they can be wrapped on a group of other
// ranks.

import { FsdpStateError } from '../errors.js';
import type { ShardedUnit } from '../unit/sharded-unit.js';
import { type Instance, instanceOf } from './instance.js';
import { isInstance } from './tree-instance.js';

/**
 * Frees gradients, shards and what is gathered, puts the modules back in their wrappers' places,
 * and gives trained parameters memory of their own. Frozen ones have no values until a load.
 * Nothing is sent.
 * @throws {FsdpStateError} on an inner instance, inside forward, backward or summonFullParams, and
 * where trained parameters are sharded
 */
export function unwrapTree(root: Instance): void {
  if (root.tree !== undefined && !root.isRoot) {
    throw root.stateError('unwrap', 'the root instance');
  }
  const instances = root.instances();
  for (const { activity, units } of instances) {
    activity.expect('unwrap', ['idle']);
    units.forEach(requireWhole);
  }
  root.wrapper.zeroGrad();
  root.tree?.reset();
  const around = root.wrapper.namedModules().filter(([, module]) => !isInstance(module));
  for (const [, module] of around) {
    for (const [name, child] of [...module.children()]) {
      if (isInstance(child)) {
        module.replaceChild(name, bareOf(instanceOf(child)));
      }
    }
  }
  for (const instance of instances) {
    for (const unit of instance.units) {
      unit.gradient.sum.reset();
      unit.values.giveBack({ keepsValues: isKept(unit) });
    }
    instance.dispose();
  }
}

/** The module inside an instance, and inside those that it wraps directly. */
export function bareOf({ module }: Instance): Instance['module'] {
  return isInstance(module) ? bareOf(instanceOf(module)) : module;
}

/** Whether its values are no other's to give back. */
function isKept({ isTrained, isAllFrozen }: ShardedUnit): boolean {
  return isTrained || !isAllFrozen;
}

/** @throws {FsdpStateError} for trained parameters of which other ranks have parts */
function requireWhole(unit: ShardedUnit): void {
  const { name, layout, values } = unit;
  const { worldSize } = layout;
  if (!isKept(unit) || (worldSize === 1 && values.home === undefined)) {
    return;
  }
  throw new FsdpStateError(
    `unwrap: expected trained parameters that each rank has whole on its device, got '${name}' over ${worldSize} ranks${values.home === undefined ? '' : ' in a store'}. Set shardTrained: false, or save a checkpoint and load it in a new model.`,
  );
}
