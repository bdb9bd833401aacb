// The checks of this package's options, and the rules that only this package needs.

import { having, type OptionRule, optional, optionChecks } from '@shardweave/tensor-core/options';
import { NnConfigError } from './errors.js';

export {
  above,
  allOptional,
  atLeast,
  FINITE,
  FLAG,
  FUNCTION,
  given,
  having,
  OBJECT,
  type OptionRule,
  type OptionRules,
  oneOf,
  optional,
  SEED,
  shown,
  TEXT,
  whole,
} from '@shardweave/tensor-core/options';

export const { checkNames, checkOptions, checkValue } = optionChecks(NnConfigError);

/** A probability that can be 0 but not 1. */
export const PROBABILITY: OptionRule = {
  expected: 'a number in [0, 1)',
  holds: isProbability,
};

export function isProbability(value: unknown): boolean {
  return typeof value === 'number' && value >= 0 && value < 1;
}

/** Where a layer gets its initial values; may be left out. */
export const INIT = optional(having('a ParameterInit', 'normal', 'uniform', 'zeros', 'ones'));

/** A device of any copy of tensor-core. */
export const DEVICE = having('a Device', 'scope', 'backward');
