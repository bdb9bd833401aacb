// What the caller's store keeps of an instance beside its flat parameters, for a process that
// resumes: a description of its parameters and buffers, and the buffers' values.

import { StoredModel } from '@shardweave/nn/flat';
import type { Device, Tensor } from '@shardweave/tensor-core';
import type { TreeInstance } from '../tree/tree-instance.js';
import { type Residence, rankPrefix } from './residence.js';
import type { LinkGroups } from './unit-links.js';

/** The stored description and buffers; undefined where no later process can find the store. */
export function storedInstance(
  instance: TreeInstance,
  { residence, groups }: { readonly residence: Residence | undefined; readonly groups: LinkGroups },
): StoredModel | undefined {
  if (!residence?.isGiven) {
    return undefined;
  }
  const device: Device = instance.wrapper.device;
  return new StoredModel({
    use: residence.use,
    name: `${rankPrefix(groups)}instance ${instance.name}`,
    device,
    resume: residence.asked,
    lines: () => linesOf(instance, groups),
    buffers: () => ownBuffers(instance),
    numSteps: () => Math.max(0, ...instance.units.map(({ home }) => home?.restingStep ?? 0)),
  });
}

function linesOf(instance: TreeInstance, { processGroup }: LinkGroups): string[] {
  const textOf = (name: string, { dtype, shape }: Tensor) =>
    `${name} ${dtype} [${shape.join(', ')}]`;
  return [
    `rank ${processGroup.rank} of ${processGroup.worldSize}`,
    ...instance.units.map(({ name, form, parameters }) => {
      const list = parameters.map((parameter) => textOf(parameter.path, parameter.tensor));
      return `${name} (${form}): ${list.join(', ')}`;
    }),
    ...ownBuffers(instance).map(([name, buffer]) => `buffer ${textOf(name, buffer)}`),
    ...inner(instance).map(({ name }) => `instance ${name}`),
  ];
}

/** The buffers that no inner instance has. */
function ownBuffers(instance: TreeInstance): (readonly [string, Tensor])[] {
  const others = new Set(
    inner(instance).flatMap((one) => one.wrapper.namedBuffers().map(([, buffer]) => buffer)),
  );
  return instance.wrapper.namedBuffers().filter(([, buffer]) => !others.has(buffer));
}

function inner(instance: TreeInstance): TreeInstance[] {
  return instance.instances().filter((one) => one !== instance);
}
