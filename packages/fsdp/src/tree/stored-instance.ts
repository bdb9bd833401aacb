// What stores have of instances: their flat parameters, and what the caller's store keeps beside
// them for a process that resumes, which is a description of parameters and buffers, and the
// buffers' values.

import { type StoredFlat, StoredModel, type StoreUse } from '@shardweave/nn/flat';
import type { Tensor } from '@shardweave/tensor-core';
import type { RankGroups } from '../ranks/rank-groups.js';
import { rankPrefix } from '../unit/placement.js';
import type { TreeInstance } from './tree-instance.js';

/** The homes of the flat parameters that rest in stores. */
export function homesOf(instances: readonly TreeInstance[]): StoredFlat[] {
  return instances.flatMap(({ units }) => units.flatMap(({ values }) => values.home ?? []));
}

/** The step counters of the instances' stores, each once. */
export function homeStepsOf(instances: readonly TreeInstance[]): Set<StoreUse> {
  return new Set(homesOf(instances).map(({ steps }) => steps));
}

/** Keeps steps and norms away from what rests in stores until the returned function is called. */
export function occupyUnits(instances: readonly TreeInstance[], by: string): () => void {
  const ends = homesOf(instances).map((home) => home.occupy(by));
  return () => {
    for (const end of ends) {
      end();
    }
  };
}

/** The stored description and buffers; undefined where no later process can find the store. */
export function storedInstance(instance: TreeInstance): StoredModel | undefined {
  const { units, options, wrapper } = instance;
  const { placement, groups } = options;
  if (!placement?.isGiven) {
    return undefined;
  }
  return new StoredModel({
    use: placement.use,
    name: instanceKey(instance, groups),
    device: wrapper.device,
    resume: placement.asked,
    flats: units.map(({ values }) => values),
    marks: () => [
      `rank ${groups.processGroup.rank} of ${groups.processGroup.worldSize}`,
      ...inner(instance).map(({ name }) => `instance ${name}`),
    ],
    buffers: () => ownBuffers(instance),
    numSteps: () => Math.max(0, ...homesOf([instance]).map(({ states }) => states.step ?? 0)),
  });
}

/**
 * Takes the names of an instance and its flat parameters in its store. The returned function gives
 * them back.
 * @throws {OptimizerError} where the store has an instance of this name already
 */
export function claimNames({ name, units, wrapper, options }: TreeInstance): () => void {
  const { placement, groups } = options;
  const own = placement?.isGiven ? [instanceKey({ name }, groups)] : [];
  const keys = [...own, ...units.map((unit) => flatKey(unit, groups))];
  return placement?.use.claim(keys, wrapper.device) ?? (() => {});
}

/** The name of a flat parameter in this rank's store. */
export function flatKey({ name }: { readonly name: string }, groups: RankGroups): string {
  return `${rankPrefix(groups)}${name}`;
}

function instanceKey({ name }: { readonly name: string }, groups: RankGroups): string {
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
