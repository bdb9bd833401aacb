// What the caller's store keeps of an instance beside its flat parameters, for a process that
// resumes: a description of its parameters and buffers, and the buffers' values.

import { StoredModel } from '@shardweave/nn/flat';
import type { Device, Tensor } from '@shardweave/tensor-core';
import { type Placement, rankPrefix } from '../unit/placement.js';
import type { LinkGroups } from '../unit/unit-links.js';
import type { TreeInstance } from './tree-instance.js';

/** The stored description and buffers; undefined where no later process can find the store. */
export function storedInstance(
  instance: TreeInstance,
  { placement, groups }: { readonly placement: Placement | undefined; readonly groups: LinkGroups },
): StoredModel | undefined {
  if (!placement?.isGiven) {
    return undefined;
  }
  const device: Device = instance.wrapper.device;
  return new StoredModel({
    use: placement.use,
    name: instanceKey(instance, groups),
    device,
    resume: placement.asked,
    flats: instance.units,
    marks: () => [
      `rank ${groups.processGroup.rank} of ${groups.processGroup.worldSize}`,
      ...inner(instance).map(({ name }) => `instance ${name}`),
    ],
    buffers: () => ownBuffers(instance),
    numSteps: () => Math.max(0, ...instance.units.map(({ home }) => home?.restingStep ?? 0)),
  });
}

/**
 * Takes the names of an instance and its flat parameters in its store. The returned function gives
 * them back.
 * @throws {OptimizerError} where the store has an instance of this name already
 */
export function claimNames(
  { name, units, wrapper }: TreeInstance,
  { placement, groups }: { readonly placement: Placement | undefined; readonly groups: LinkGroups },
): () => void {
  const own = placement?.isGiven ? [instanceKey({ name }, groups)] : [];
  const keys = [...own, ...units.map((unit) => flatKey(unit, groups))];
  return placement?.use.claim(keys, wrapper.device) ?? (() => {});
}

/** The name of a flat parameter in this rank's store. */
export function flatKey({ name }: { readonly name: string }, groups: LinkGroups): string {
  return `${rankPrefix(groups)}${name}`;
}

function instanceKey({ name }: { readonly name: string }, groups: LinkGroups): string {
  return `${rankPrefix(groups)}instance ${name}`;
}

/** The buffers that no inner instance has. */
function ownBuffers(instance: TreeInstance): (readonly [string, Tensor])[] {
  const others = new Set(
    inner(instance).flatMap((nested) => nested.wrapper.namedBuffers().map(([, buffer]) => buffer)),
  );
  return instance.wrapper.namedBuffers().filter(([, buffer]) => !others.has(buffer));
}

function inner(instance: TreeInstance): TreeInstance[] {
  return instance.instances().filter((other) => other !== instance);
}
