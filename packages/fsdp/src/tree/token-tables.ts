// Which parameters of an instance are token tables of which ranks use their parts. Pure.

import type { Module } from '@shardweave/nn';
import { alignElements, encodingOf, type FlatLeaf, tokenTableOf } from '@shardweave/nn/flat';
import type { ResolvedFsdpOptions } from '../resolve-options.js';
import { modulesOutsideInstances } from './own-parameters.js';

type TableOptions = Pick<
  ResolvedFsdpOptions,
  'vocabParallel' | 'groups' | 'masterDType' | 'computeDType'
>;

/**
 * The frozen ones that only embeddings and heads read, that rest in the dtype of computation, and
 * that can be cut between rows, with a row for each rank.
 */
export function tokenTables(
  module: Module,
  own: readonly FlatLeaf[],
  { vocabParallel, groups, masterDType, computeDType }: TableOptions,
): readonly FlatLeaf[] {
  const { worldSize } = groups.processGroup;
  if (!vocabParallel || worldSize === 1) {
    return [];
  }
  const modules = modulesOutsideInstances(module);
  return own.filter(({ tensor }) => {
    const { shape, dtype } = tensor;
    const users = modules.filter((user) => [...user.ownParameters().values()].includes(tensor));
    const isRead = users.every((user) => tokenTableOf(user) === tensor);
    const isResting = dtype !== masterDType || dtype === computeDType;
    if (!isRead || !isResting || tensor.requiresGrad || encodingOf(tensor) !== undefined) {
      return false;
    }
    const [words, width] = shape as [number, number];
    const per = Math.ceil(words / worldSize);
    return alignElements(per * width) === per * width && per * (worldSize - 1) < words;
  });
}
