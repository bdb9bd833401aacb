// The policy that wraps a module whose parameters are many enough once its own large parts are
// wrapped.

import { type Module, ModuleList, MultiheadAttention } from '@shardweave/nn';
import {
  FLAG,
  FUNCTION,
  type OptionRule,
  type OptionRules,
  optional,
} from '@shardweave/tensor-core/options';
import { checkOptions } from '../check-options.js';
import type { WrapPolicy } from './auto-wrap.js';

/** A class of modules, abstract ones included. */
// biome-ignore lint/suspicious/noExplicitAny: a class of modules, whatever its constructor takes
export type ModuleClass = abstract new (...args: any[]) => Module;

/** The size from which modules are wrapped, and the modules that are exempt. */
export interface DefaultAutoWrapPolicyOptions {
  /** The least number of elements that is wrapped together. Default 1e8. */
  readonly minNumParams?: number;
  /** Classes of modules whose children are left as they are. Default MultiheadAttention. */
  readonly forceLeafModules?: readonly ModuleClass[];
  /** Classes of modules that are not wrapped themselves. Default ModuleList, which nobody calls. */
  readonly excludeWrapModules?: readonly ModuleClass[];
  /** Wrap the root however small it is. Default false. */
  readonly skipParamsCheckForRoot?: boolean;
}

const CLASSES: OptionRule = optional({
  expected: 'an array of module classes',
  holds: (value) => Array.isArray(value) && value.every(FUNCTION.holds),
});
const RULES: OptionRules<DefaultAutoWrapPolicyOptions> = {
  // Infinity is a size as well: nothing but the root is wrapped then.
  minNumParams: optional({
    expected: 'a number of at least 0',
    holds: (value) => typeof value === 'number' && value >= 0,
  }),
  forceLeafModules: CLASSES,
  excludeWrapModules: CLASSES,
  skipParamsCheckForRoot: optional(FLAG),
};

/** A policy by size (fairscale's default_auto_wrap_policy). */
export function defaultAutoWrapPolicy(options: DefaultAutoWrapPolicyOptions = {}): WrapPolicy {
  checkOptions('defaultAutoWrapPolicy', options, RULES);
  const {
    minNumParams = 1e8,
    forceLeafModules = [MultiheadAttention],
    excludeWrapModules = [ModuleList],
    skipParamsCheckForRoot = false,
  } = options;
  return ({ module, question, unwrappedParams, isRoot }) => {
    const isLarge = unwrappedParams >= minNumParams;
    if (question === 'recurse') {
      return isLarge && !isOneOf(module, forceLeafModules);
    }
    if (isOneOf(module, excludeWrapModules)) {
      return false;
    }
    return isLarge || (isRoot && skipParamsCheckForRoot);
  };
}

function isOneOf(module: Module, classes: readonly ModuleClass[]): boolean {
  return classes.some((moduleClass) => module instanceof moduleClass);
}
