// The policy that wraps exactly the modules that have a wrapperConfig.

import type { WrapPolicy } from '../wrap/auto-wrap.js';
import { wrapperConfigOf } from '../wrap/enable-wrap.js';

/** Looks at every module, and wraps those that have a wrapperConfig, however small they are. */
export const configAutoWrapPolicy: WrapPolicy = ({ module, question }) =>
  question === 'recurse' || wrapperConfigOf(module) !== undefined;
