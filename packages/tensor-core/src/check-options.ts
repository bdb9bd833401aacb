// The checks of this package's own options, all of which may be left out.

import { OptionError } from './errors.js';
import { allOptional, type OptionRules, optionChecks } from './options.js';

/** PyTorch's names of options that are too far from ours to be taken for a slip. */
const ANSWERS = { dim: 'Use axis.', keepdim: 'Use keepDims.' };

const CHECKS = optionChecks(OptionError, ANSWERS);

/** The optional rules by the rules they are made of, which are kept since ops check each call. */
const OPTIONAL = new WeakMap<object, OptionRules<unknown>>();

/**
 * Checks options, all of which may be left out.
 * @throws {OptionError} for a value that is no object, an unknown name, or a value that breaks its
 * rule
 */
export function checkOptions<Options>(
  owner: string,
  options: unknown,
  rules: OptionRules<Options>,
): void {
  let optional = OPTIONAL.get(rules);
  if (optional === undefined) {
    optional = allOptional(rules);
    OPTIONAL.set(rules, optional);
  }
  CHECKS.checkOptions(owner, options, optional);
}

/** @throws {OptionError} for what is no object, and an unknown name */
export const checkNames = CHECKS.checkNames;

/** @throws {OptionError} for a value that breaks the rule, such as none where the rule has none */
export const checkValue = CHECKS.checkValue;
