// Groups of parameters that an optimizer steps by the same options.

import { isTensor, type Tensor } from '@shardweave/tensor-core';
import { type OptionRule, shown } from '../check-options.js';
import { NnConfigError } from '../errors.js';

/** Parameters that share options. Options that are left out are the optimizer's defaults. */
export type ParamGroup<Options> = { readonly params: readonly Tensor[] } & Partial<Options>;

/**
 * A group as the optimizer keeps it. A learning-rate schedule may change its options between steps.
 */
export type OptimizerGroup<Options> = { readonly params: readonly Tensor[] } & {
  -readonly [Name in keyof Options]: Options[Name];
};

/** The rule for a group's `params`. */
export const PARAMETERS: OptionRule = {
  expected: 'an array of tensors',
  holds: (value) => Array.isArray(value) && value.every(isTensor),
};

/**
 * The groups of an optimizer, with its defaults for options that they leave out. A plain list of
 * parameters makes one group.
 * @throws {NnConfigError} for anything else
 */
export function groupsOf<Options extends object>(
  params: readonly Tensor[] | readonly ParamGroup<Options>[],
  defaults: Options,
): OptimizerGroup<Options>[] {
  const isPlain = PARAMETERS.holds(params);
  if (!isPlain) {
    requireGroups(params);
  }
  const groups = (isPlain ? [{ params }] : params) as readonly ParamGroup<Options>[];
  return groups.map((group) => {
    const given = Object.entries(group).filter(([, value]) => value !== undefined);
    return { ...defaults, ...Object.fromEntries(given) } as unknown as OptimizerGroup<Options>;
  });
}

function requireGroups(params: unknown): void {
  const isGroup = (value: unknown) =>
    typeof value === 'object' && value !== null && !Array.isArray(value) && !isTensor(value);
  if (Array.isArray(params) && params.every(isGroup)) {
    return;
  }
  throw new NnConfigError(
    `optimizer: expected an array of parameters or groups, got ${shown(params)}.`,
  );
}
